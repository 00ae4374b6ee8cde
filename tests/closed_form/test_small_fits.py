"""Small problems are solved before a compiler has started: nothing of them is compiled."""

import subprocess
import sys

PROGRAM = """
import warnings
import numpy as np
from numba.core.dispatcher import Dispatcher

def refuse(self, signature):
    raise AssertionError(f"{self.py_func.__module__}.{self.py_func.__name__} was compiled")

Dispatcher.compile = refuse

from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from pickmix import GaussianMixture, RandomPartition, SearchSet

warnings.simplefilter("ignore", ConvergenceWarning)
X = load_iris().data
kinds = [
    {"algorithm": "em"}, {"algorithm": "saem"}, {"algorithm": "ssaem"}, {"algorithm": "mcsaem"},
    {"algorithm": "tsaem"}, {"algorithm": "tsaem", "proposal": SearchSet(2, all_pairs=True)},
    {"proposal": RandomPartition(block_size=2)}, {"init_params": "paper"},
    {"init_params": "k-means++"}, {"init_params": "kmeans"}, {"init_params": "random"},
    {"init_params": "random_from_data"}, {"reuse_log_joint": True, "proposal": "uniform"},
    {"batch_size": 20}, {"n_jobs": 2}, {"n_init": 2}, {"annealing": "anti"},
]
for proposal in ("auto", "partition", "uniform", "optimal", "table", "table-forgetting"):
    kinds.append({"proposal": proposal})
weights = np.random.default_rng(0).random(X.shape[0])
for covariance_type in ("full", "tied", "diag", "spherical"):
    for settings in kinds:
        mixture = GaussianMixture(4, covariance_type=covariance_type, max_iter=8, random_state=0,
                                  **settings)
        mixture.fit(X, sample_weight=weights)
        assert mixture.compile_seconds_ == 0.0
        assert mixture.predict(X).shape == (150,)
        assert np.isfinite(mixture.score_samples(X)).all()
        assert mixture.sample(10)[0].shape == (10, 4)
    mixture.score_samples(X, n_candidates=32)
    mixture.predict(X, n_candidates=64)
    mixture.predict_proba(X), mixture.top_components(X, 2), mixture.bic(X), mixture.precisions_
    online = GaussianMixture(4, covariance_type=covariance_type, random_state=0)
    for _ in range(9):
        online.partial_fit(X).partial_fit(X.astype(np.float32)[:7], sample_weight=weights[:7])
    online.set_params(warm_start=True).fit(X)
print("done")
"""


def test_nothing_is_compiled():
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


def test_the_guard_sees_compilation():
    """The same guard stops a problem that is too large for NumPy."""
    large = PROGRAM.partition("kinds = [")[0] + "GaussianMixture(300, max_iter=1).fit(X[:, :1].repeat(3, 0))"
    command = [sys.executable, "-c", large]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "was compiled" in done.stderr
