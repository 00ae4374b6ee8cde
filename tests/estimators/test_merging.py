"""Trees of merges, smaller mixtures and clusters at any level, as users see them."""

import copy
import functools

import numpy as np
import pandas as pd
import pytest
from scipy.cluster.hierarchy import fcluster, is_monotonic, is_valid_linkage
from sklearn.metrics import adjusted_rand_score
from table_cases import mixed_table

from pickmix import FamilyMixture, GaussianMixture, TableMixture

RNG = np.random.default_rng(0)
X = np.concatenate([RNG.normal(centre, 1.0, (200, 3)) for centre in (0.0, 3.0, 20.0, 24.0)])
COUNTS = RNG.poisson(np.repeat([1.0, 6.0, 30.0], 200)[:, None], (600, 2)).astype(float)


@functools.cache
def fit_once(covariance_type, n_components):
    mixture = GaussianMixture(n_components, covariance_type=covariance_type, random_state=0)
    return mixture.fit(X)


def fitted(covariance_type="full", n_components=12):
    return copy.deepcopy(fit_once(covariance_type, n_components))


every_form = pytest.mark.parametrize("form", ["full", "tied", "diag", "spherical"])


def overall(mixture):
    """Mean and covariance of all rows under a mixture; what a spherical one has, is its trace."""
    D = mixture.means_.shape[1]
    covariances = mixture.covariances_
    if mixture.covariance_type == "spherical":
        covariances = covariances[:, None, None] * np.eye(D)
    elif mixture.covariance_type == "diag":
        covariances = covariances[:, :, None] * np.eye(D)
    covariances = np.broadcast_to(covariances, (mixture.weights_.shape[0], D, D))
    mean = mixture.weights_ @ mixture.means_
    away = mixture.means_ - mean
    within = np.einsum("k,kde->de", mixture.weights_, covariances)
    return mean, within + np.einsum("k,kd,ke->de", mixture.weights_, away, away)


@every_form
def test_the_linkage_is_one_that_scipy_understands(form):
    tree = fitted(form).merge_tree()
    assert is_valid_linkage(tree.linkage)
    assert is_monotonic(tree.linkage)
    assert tree.linkage[-1, 3] == tree.n_components == 12
    for n_clusters in range(1, 13):
        ours = tree.labels(n_clusters)
        theirs = fcluster(tree.linkage, n_clusters, "maxclust")
        assert len(set(ours)) == n_clusters
        # SciPy cuts by heights, so equal heights fall together.
        if len(set(theirs)) == n_clusters:
            assert adjusted_rand_score(ours, theirs) == 1.0
        weights = np.bincount(ours, tree.weights)
        assert (np.diff(weights) <= 0.0).all()


@every_form
def test_a_smaller_mixture_keeps_mean_and_covariance_of_all_rows(form):
    mixture = fitted(form)
    mean, covariance = overall(mixture)
    for n_components in (11, 4, 1):
        smaller = mixture.reduce(n_components)
        assert smaller.weights_.shape == (n_components,)
        assert smaller.n_components == n_components
        assert smaller.weights_.sum() == pytest.approx(1.0)
        found_mean, found = overall(smaller)
        assert found_mean == pytest.approx(mean, abs=1e-9)
        if form in ("full", "tied"):
            assert found == pytest.approx(covariance, abs=1e-9)
        elif form == "diag":
            assert np.diag(found) == pytest.approx(np.diag(covariance), abs=1e-9)
        else:
            assert np.trace(found) == pytest.approx(np.trace(covariance), abs=1e-9)


def test_levels_add_up_posterior_probabilities():
    mixture = fitted()
    labels = mixture.merge_tree().labels(5)
    expected = np.zeros((X.shape[0], 5))
    np.add.at(expected.T, labels, mixture.predict_proba(X).T)
    found = mixture.predict_proba(X, level=5)
    assert found == pytest.approx(expected, abs=1e-12)
    assert (mixture.predict(X, level=5) == expected.argmax(axis=1)).all()
    assert (mixture.predict(X, level=1) == 0).all()


def test_passes_over_rows_improve_a_smaller_mixture():
    mixture = fitted(n_components=30)
    merged = mixture.reduce(4)
    before = {name: np.copy(getattr(mixture, name)) for name in ("weights_", "means_")}
    refitted = mixture.reduce(4, X, max_iter=10)
    assert refitted.score(X) > merged.score(X)
    assert refitted.n_components == 4
    assert refitted.warm_start is False
    for name, value in before.items():
        assert (getattr(mixture, name) == value).all()


def test_the_tree_follows_the_parameters():
    mixture = fitted()
    before = mixture.merge_tree()
    assert (mixture.merge_tree().costs == before.costs).all()
    mixture.means_[:, 0] *= 3.0
    changed = mixture.merge_tree()
    assert (changed.costs != before.costs).any()
    mixture.set_params(n_components=5).fit(X)
    assert mixture.merge_tree().n_components == 5


def test_a_background_stays_to_the_end():
    # A few rows far from all groups, each in a place of its own.
    astray = np.random.default_rng(0).uniform(-300.0, 300.0, (25, 3))
    mixture = GaussianMixture(12, random_state=0).fit(np.concatenate([X, astray]))
    assert mixture.background_ is not None
    smaller = mixture.reduce(3)
    kept, original = smaller.background_, mixture.background_
    assert smaller.weights_[kept] == pytest.approx(mixture.weights_[original])
    assert smaller.covariances_[kept] == pytest.approx(mixture.covariances_[original])


def test_a_background_without_rows_is_no_cluster():
    mixture = fitted()
    mixture.weights_[3] = 1e-6
    mixture.covariances_[3] *= 1e3
    mixture.background_ = 3
    assert (np.bincount(mixture.predict(X, level=2)) == 400).all()
    assert mixture.reduce(2).background_ is None


def test_other_columns_are_refused():
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    mixture = GaussianMixture(6, random_state=0).fit(frame)
    with pytest.raises(ValueError, match="feature names"):
        mixture.reduce(3, frame[["a", "b"]])
    with pytest.raises(ValueError, match="expecting 3 features"):
        fitted().reduce(3, X[:, :2])
    with pytest.raises(ValueError, match="feature names"):
        mixture.reduce(3, frame[["c", "b", "a"]])
    assert mixture.reduce(3, frame).feature_names_in_.tolist() == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("family", "rows"),
    [
        ("poisson", COUNTS),
        ("categorical", np.minimum(COUNTS, 9.0)),
        ([("poisson", [0]), ("diag", [1])], COUNTS),
        ([("tied", [0, 1])], COUNTS),
    ],
)
def test_mixtures_of_other_families(family, rows):
    mixture = FamilyMixture(family, 8, random_state=0).fit(rows)
    tree = mixture.merge_tree()
    assert is_valid_linkage(tree.linkage)
    smaller = mixture.reduce(3)
    # What merging costs bounds what the likelihood of drawn rows falls by.
    drawn = mixture.sample(1000, random_state=1)[0]
    falls = mixture.score_samples(drawn) - smaller.score_samples(drawn)
    error = falls.std() / np.sqrt(falls.shape[0])
    if "tied" not in str(family):
        assert falls.mean() < tree.costs[: 8 - 3].sum() + 4.0 * error
    assert smaller.reduce(1).weights_.tolist() == [1.0]


def test_a_mixture_of_tables():
    table = mixed_table(200, gaps=0.05)
    mixture = TableMixture(9, max_iter=10, tol=0.0, random_state=0).fit(table)
    assert mixture.merge_tree().n_components == 9
    smaller = mixture.reduce(3)
    assert isinstance(smaller, TableMixture)
    assert smaller.predict(table).max() == 2
    assert mixture.predict_proba(table, level=3).shape == (200, 3)
    assert (mixture.predict(table, level=3) < 3).all()
    # Three merged components are at their optimum already.
    assert mixture.reduce(6, table).score(table) > mixture.reduce(6).score(table)
    assert smaller.sample(5, random_state=0).keys() == table.keys()
    assert mixture.n_components == mixture.weights_.shape[0] == 9


@pytest.mark.parametrize("value", [0, 13, 2.5, "three"])
def test_numbers_of_components_that_make_no_sense(value):
    mixture = fitted()
    with pytest.raises((ValueError, TypeError), match="n_components must be"):
        mixture.reduce(value)
    with pytest.raises((ValueError, TypeError), match="level must be"):
        mixture.predict(X, level=value)
    with pytest.raises((ValueError, TypeError), match="n_clusters must be"):
        mixture.merge_tree().labels(value)
