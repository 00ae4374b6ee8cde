"""Fits to awkward data that several tests share, and what makes one usable."""

import numpy as np
import pytest

from pickmix import GaussianMixture

ALGORITHMS = [
    {"algorithm": "em"},
    {"algorithm": "mhsaem"},
    {"algorithm": "mhsaem", "proposal": "uniform"},
    {"algorithm": "tsaem"},
]
every_algorithm = pytest.mark.parametrize(
    "settings", ALGORITHMS, ids=lambda s: "-".join(s.values())
)
COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")
every_covariance = pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
# Algorithms differ in what they select, covariances in the M-step: not all pairs of them differ.
some_pairs = pytest.mark.parametrize(
    ("settings", "covariance_type"),
    [(settings, "full") for settings in ALGORITHMS[:3]]
    + list(zip(ALGORITHMS[:2] + ALGORITHMS[3:], COVARIANCE_TYPES[1:], strict=True)),
    ids=lambda value: value if isinstance(value, str) else "-".join(value.values()),
)
named_pairs = pytest.mark.parametrize(
    ("algorithm", "covariance_type"),
    list(zip(("em", "ssaem", "mhsaem", "mcsaem"), COVARIANCE_TYPES, strict=True)),
)


def clusters(n_rows=400, n_features=2, seed=0):
    """Rows of three clusters that overlap a little."""
    rng = np.random.default_rng(seed)
    centres = 3.0 * rng.normal(size=(3, n_features))
    return centres[rng.integers(3, size=n_rows)] + rng.normal(size=(n_rows, n_features))


def fitted(X, n_components=3, sample_weight=None, **settings):
    """A fit of fixed length in small batches, with a fixed seed; EM goes on until it converges."""
    if settings.get("algorithm") != "em":
        settings = {"max_steps": 60, "batch_size": 64} | settings
    mixture = GaussianMixture(n_components, **({"random_state": 0} | settings))
    return mixture.fit(X, sample_weight=sample_weight)


def diagonals(mixture):
    """Variances of all components, (K, D), whatever the covariance type."""
    covariances = mixture.covariances_
    shape = mixture.means_.shape
    if mixture.covariance_type in ("full", "tied"):
        covariances = np.diagonal(np.broadcast_to(covariances, (*shape, shape[1])), 0, -2, -1)
    elif mixture.covariance_type == "spherical":
        covariances = covariances[:, None]
    return np.broadcast_to(covariances, shape)


def assert_usable(mixture, X):
    """Finite parameters, weights that sum to one, positive variances, finite answers."""
    for name in ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_"):
        assert np.isfinite(getattr(mixture, name)).all(), name
    assert mixture.weights_.sum() == pytest.approx(1.0)
    assert (mixture.weights_ >= 0.0).all()
    assert (diagonals(mixture) > 0.0).all()
    assert np.isfinite(mixture.score_samples(X)).all()
    np.testing.assert_allclose(mixture.predict_proba(X).sum(axis=1), 1.0)
    assert set(mixture.predict(X)) <= set(range(mixture.n_components))
