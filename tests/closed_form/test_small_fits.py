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
kinds = [{"algorithm": name} for name in ("em", "saem", "ssaem", "tsaem", "mcsaem")]
kinds += [{"proposal": name}
          for name in ("auto", "partition", "uniform", "optimal", "table", "table-forgetting")]
others = [
    {"algorithm": "tsaem", "proposal": SearchSet(2, all_pairs=True)},
    {"proposal": RandomPartition(block_size=2)}, {"reuse_log_joint": True, "proposal": "uniform"},
    {"batch_size": 20}, {"n_jobs": 2}, {"n_init": 2}, {"annealing": "anti"},
]
others += [{"init_params": name}
           for name in ("paper", "k-means++", "kmeans", "random", "random_from_data")]
weights = np.random.default_rng(0).random(X.shape[0])
for covariance_type in ("full", "tied", "diag", "spherical"):
    for settings in kinds + others if covariance_type == "full" else kinds[::5]:
        mixture = GaussianMixture(4, covariance_type=covariance_type, max_iter=2, random_state=0,
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
    for _ in range(4):
        online.partial_fit(X).partial_fit(X.astype(np.float32)[:7], sample_weight=weights[:7])
    online.set_params(warm_start=True).fit(X)
print("nothing was compiled")
# The guard sees what is too large for NumPy.
GaussianMixture(300, algorithm="em", max_iter=1).fit(np.repeat(X, 3, axis=0))
"""


def test_nothing_is_compiled():
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "nothing was compiled\n", done.stderr
    assert done.returncode == 1
    assert "AssertionError: pickmix." in done.stderr
