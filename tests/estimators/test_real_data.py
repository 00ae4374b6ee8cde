"""Real data, where the machine has it: PICKMIX_DATA names the folder."""

import os
from pathlib import Path

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture as BaselineMixture

from pickmix import GaussianMixture

DATA = os.environ.get("PICKMIX_DATA")

pytestmark = [
    pytest.mark.skipif(DATA is None, reason="PICKMIX_DATA does not name a folder of data sets"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]


def standardised_halves(name):
    X = np.loadtxt(Path(str(DATA)) / "loda" / name / "normal.txt")
    rng = np.random.default_rng(0)
    X = X[rng.permutation(X.shape[0])]
    half = X.shape[0] // 2
    mean, scale = X[:half].mean(axis=0), X[:half].std(axis=0)
    return (X[:half] - mean) / scale, (X[half:] - mean) / scale


@pytest.mark.slow
def test_held_out_likelihood_is_scikit_learns_or_better():
    """Default settings against EM from a k-means start, 20 components, reg_covar 1e-3."""
    train, test = standardised_halves("pendigits")
    ours = GaussianMixture(20, reg_covar=1e-3, random_state=0).fit(train)
    baseline = BaselineMixture(20, reg_covar=1e-3, random_state=0).fit(train)
    one = BaselineMixture(1, reg_covar=1e-3).fit(train)
    # Different local optima of the same model: half a nat covers their spread over seeds.
    assert ours.score(test) > baseline.score(test) - 0.5
    assert ours.score(test) > one.score(test) + 1.0
