"""EM gives what scikit-learn's EM gives: per iteration, at the end, and in every query."""

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as Reference

from pickmix import GaussianMixture

COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")
N_ITERATIONS = 40
K, D = 4, 3


def overlapping_rows(n_rows=600, seed=0):
    """Rows of K overlapping Gaussians, so that EM is still moving after 40 iterations."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(0.0, 1.5, (K, D))
    scales = np.eye(D) + 0.2 * rng.normal(size=(K, D, D))
    labels = rng.integers(K, size=n_rows)
    return centres[labels] + np.einsum("ndc,nc->nd", scales[labels], rng.normal(size=(n_rows, D)))


def start_parameters(covariance_type, X, seed=1):
    """Weights, means and precisions in scikit-learn's shapes, none of them special."""
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(K, 5.0))
    half = rng.normal(size=(K, D, D)) * 0.3 + np.eye(D)
    full = half @ half.transpose(0, 2, 1)
    precisions = {
        "full": full,
        "tied": full[0],
        "diag": rng.uniform(0.5, 2.0, (K, D)),
        "spherical": rng.uniform(0.5, 2.0, K),
    }[covariance_type]
    means = X[rng.choice(X.shape[0], K, replace=False)].astype(np.float64)
    return {"weights_init": weights, "means_init": means, "precisions_init": precisions}


def fit_both(covariance_type, X, n_iterations=N_ITERATIONS, reg_covar=1e-6):
    shared = {"covariance_type": covariance_type, "tol": 0.0, "reg_covar": reg_covar}
    shared |= start_parameters(covariance_type, X)
    with pytest.warns(ConvergenceWarning):
        # tol = 0 never converges, which scikit-learn always warns about.
        reference = Reference(K, max_iter=n_iterations, **shared).fit(X)
    ours = GaussianMixture(K, algorithm="em", max_iter=n_iterations, **shared).fit(X)
    return ours, reference


@pytest.fixture(scope="module", params=COVARIANCE_TYPES)
def fitted(request):
    X = overlapping_rows()
    return (X, *fit_both(request.param, X))


def test_log_likelihood_of_every_iteration(fitted):
    _, ours, reference = fitted
    assert ours.n_iter_ == ours.n_steps_ == len(ours.trace_) == N_ITERATIONS
    assert ours.outcome_ == "max_iter"
    assert not ours.converged_
    np.testing.assert_allclose(ours.trace_["log_likelihood"], reference.lower_bounds_, rtol=1e-12)
    assert ours.lower_bound_ == pytest.approx(reference.lower_bound_, rel=1e-12)
    # The comparison means something only while the likelihood moves.
    assert np.ptp(reference.lower_bounds_) > 0.01


def test_parameters(fitted):
    _, ours, reference = fitted
    for name in ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_"):
        mine, theirs = getattr(ours, name), getattr(reference, name)
        assert mine.shape == theirs.shape, name
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-10, err_msg=name)


def test_queries(fitted):
    X, ours, reference = fitted
    new = np.concatenate([X, overlapping_rows(seed=5), 10.0 * overlapping_rows(100, seed=6)])
    np.testing.assert_allclose(ours.score_samples(new), reference.score_samples(new), rtol=1e-9)
    np.testing.assert_array_equal(ours.predict(new), reference.predict(new))
    np.testing.assert_allclose(
        ours.predict_proba(new), reference.predict_proba(new), rtol=1e-7, atol=1e-10
    )
    for name in ("score", "aic", "bic"):
        expected = getattr(reference, name)(new)
        assert getattr(ours, name)(new) == pytest.approx(expected, rel=1e-10), name


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_stops_at_the_same_iteration(covariance_type):
    X = overlapping_rows()
    shared = {"covariance_type": covariance_type, "tol": 1e-4, "max_iter": 500}
    shared |= start_parameters(covariance_type, X)
    reference = Reference(K, **shared).fit(X)
    ours = GaussianMixture(K, algorithm="em", **shared).fit(X)
    assert ours.n_iter_ == reference.n_iter_
    assert ours.converged_
    assert ours.outcome_ == "converged"


class TestStartsOfScikitLearn:
    @pytest.mark.parametrize(
        ("covariance_type", "init_params", "n_init", "dtype"),
        [(covariance_type, "kmeans", 1, np.float64) for covariance_type in COVARIANCE_TYPES]
        + [("full", "random", 3, np.float64), ("tied", "kmeans", 3, np.float32)],
    )
    def test_same_numbers_for_the_same_seed(self, covariance_type, init_params, n_init, dtype):
        # Both from the same values: those of float32 as they are for ours, exactly as many digits
        # for scikit-learn, which would compute in float32.
        X = overlapping_rows().astype(dtype)
        shared = {"covariance_type": covariance_type, "init_params": init_params, "tol": 0.0}
        shared |= {"max_iter": 5, "n_init": n_init, "random_state": 3}
        with pytest.warns(ConvergenceWarning):
            reference = Reference(K, **shared).fit(X.astype(np.float64))
        ours = GaussianMixture(K, algorithm="em", **shared).fit(X)
        np.testing.assert_allclose(ours.lower_bounds_, reference.lower_bounds_, rtol=1e-6)
        for name in ("weights_", "means_", "covariances_"):
            mine, theirs = getattr(ours, name), getattr(reference, name)
            np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6, err_msg=name)

    def test_weights_for_clusters_without_rows(self):
        # Two distinct rows for three clusters: scikit-learn says so, and one cluster is empty.
        X = np.repeat([[0.0, 0.0], [5.0, 5.0]], 10, axis=0)
        with pytest.warns(ConvergenceWarning, match="distinct clusters"):
            mixture = GaussianMixture(
                3,
                algorithm="em",
                init_params="kmeans",
                weights_init=[0.2, 0.3, 0.5],
                random_state=0,
            ).fit(X)
        assert np.isfinite(mixture.score_samples(X)).all()


def test_proposal_is_the_algorithms_name():
    X = overlapping_rows()
    for algorithm in ("em", "saem", "ssaem", "tsaem", "mcsaem"):
        mixture = GaussianMixture(K, algorithm=algorithm, max_steps=2, random_state=0).fit(X)
        assert mixture.proposal_ == algorithm


def test_n_init_keeps_the_best_start():
    # Two far pairs of clusters and K = 4: a single random start often puts two means into one
    # cluster. The seeds of a run with n_init are a prefix of those of a longer one.
    rng = np.random.default_rng(3)
    corners = np.array([[0.0, 0.0], [4.0, 0.0], [20.0, 0.0], [24.0, 0.0]])
    X = np.repeat(corners, 50, axis=0) + rng.normal(size=(200, 2))
    settings = {"algorithm": "em", "init_params": "random_from_data", "tol": 1e-6, "max_iter": 300}
    final = [
        GaussianMixture(4, n_init=n, random_state=0, **settings).fit(X).lower_bound_
        for n in (1, 2, 4, 8)
    ]
    assert (np.diff(final) >= 0.0).all()
    assert final[-1] > final[0]
    best = Reference(4, means_init=corners, tol=1e-6, max_iter=300, random_state=0).fit(X)
    assert final[-1] == pytest.approx(best.lower_bound_, abs=1e-4)


@pytest.mark.parametrize("n_columns", [255, 257])  # Factors are compiled, or of LAPACK.
def test_wide_rows(n_columns):
    random = np.random.default_rng(0)
    X = random.normal(size=(600, n_columns)) @ np.diag(np.linspace(0.5, 2.0, n_columns))
    mixture, reference = GaussianMixture(1, algorithm="em").fit(X), Reference(1).fit(X)
    np.testing.assert_allclose(
        mixture.score_samples(X[:50]), reference.score_samples(X[:50]), rtol=1e-9
    )
