"""Components that stay as given, and labels of some rows."""

import numpy as np
import pytest
from sklearn.base import clone

import pickmix
from pickmix import FamilyMixture, GaussianMixture

COVARIANCES = {"full": np.eye(2)[None] * 25.0, "diag": np.full((1, 2), 25.0), "spherical": [25.0]}


def rows_on_background(n_rows=1500, seed=0):
    """Two groups on a broad background of known shape, which has 40 % of the rows."""
    rng = np.random.default_rng(seed)
    which = rng.choice(3, n_rows, p=[0.4, 0.35, 0.25])
    spread = np.array([5.0, 0.5, 0.5])[which]
    centres = np.array([[0.0, 0.0], [3.0, 3.0], [-3.0, 2.0]])
    return centres[which] + spread[:, None] * rng.normal(size=(n_rows, 2)), which


@pytest.mark.parametrize("covariance_type", ["full", "diag", "spherical"])
def test_a_known_background_stays_and_the_rest_is_found(covariance_type):
    X, _ = rows_on_background()
    fixed = np.zeros((1, 2)), COVARIANCES[covariance_type]
    settings = {"covariance_type": covariance_type, "random_state": 0, "tol": 1e-4}
    mixture = GaussianMixture(3, fixed_components=fixed, **settings).fit(X)
    np.testing.assert_array_equal(mixture.means_[0], fixed[0][0])
    np.testing.assert_array_equal(mixture.covariances_[0], fixed[1][0])
    assert mixture.weights_.sum() == pytest.approx(1.0)
    assert mixture.weights_[0] == pytest.approx(0.4, abs=0.05)
    found = mixture.means_[1:][np.argsort(-mixture.weights_[1:])]
    np.testing.assert_allclose(found, [[3.0, 3.0], [-3.0, 2.0]], atol=0.15)
    # The bound is the likelihood, and rises.
    assert mixture.lower_bound_ == pytest.approx(mixture.score(X))
    assert np.diff(mixture.lower_bounds_).min() > -1e-2


def test_one_free_component_is_em():
    """With one free component each round of EM has a closed form."""
    X, _ = rows_on_background(400)
    fixed = np.zeros((1, 2)), COVARIANCES["full"]
    settings = {"reg_covar": 0.0, "random_state": 0, "tol": 1e-9}
    mixture = GaussianMixture(2, fixed_components=fixed, **settings).fit(X)
    posteriors = mixture.predict_proba(X)
    np.testing.assert_allclose(mixture.weights_, posteriors.mean(axis=0), atol=2e-3)
    mean = posteriors[:, 1] @ X / posteriors[:, 1].sum()
    np.testing.assert_allclose(mixture.means_[1], mean, atol=0.02)


def test_fixed_components_of_a_fit_and_what_follows(tmp_path):
    X, which = rows_on_background()
    known = GaussianMixture(2, random_state=0).fit(X[which == 1])
    fixed = known.means_, known.covariances_
    mixture = GaussianMixture(5, fixed_components=fixed, random_state=0).fit(X)
    np.testing.assert_array_equal(mixture.means_[:2], known.means_)
    assert mixture.reduce(3).means_.shape == (3, 2)
    assert mixture.marginal([1]).fixed_components is None
    assert clone(mixture).fit(X).score(X) == mixture.score(X)
    again = pickmix.load(pickmix.save(mixture, tmp_path / "mixture.npz"))
    np.testing.assert_array_equal(again.score_samples(X), mixture.score_samples(X))


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"fixed_components": 3}, {}, "fixed_components must be a pair"),
        ({"n_components": "auto"}, {}, "n_components must be a number"),
        ({"n_components": 1}, {}, "n_components counts the fixed components too"),
        ({"covariance_type": "tied"}, {}, "not for covariance_type"),
        (
            {"fixed_components": (np.zeros((1, 3)), COVARIANCES["full"])},
            {},
            r"fixed_components\[0\]",
        ),
        ({"means_init": np.zeros((3, 2))}, {}, "fixed_components and means_init"),
        ({}, {"noise": np.ones((100, 2))}, "fixed_components and noise"),
        ({}, {"labels": np.zeros(100)}, "labels and fixed_components"),
    ],
)
def test_mistakes_about_fixed_components(settings, options, message):
    X, _ = rows_on_background(100)
    settings = {"fixed_components": (np.zeros((1, 2)), COVARIANCES["full"])} | settings
    with pytest.raises(ValueError, match=message):
        GaussianMixture(**{"n_components": 3} | settings).fit(X, **options)


def test_a_stream_moves_all_components():
    mixture = GaussianMixture(3, fixed_components=(np.zeros((1, 2)), COVARIANCES["full"]))
    with pytest.raises(ValueError, match="partial_fit moves all components"):
        mixture.partial_fit(rows_on_background(100)[0])


def test_labels_keep_groups_apart():
    # Two groups that lie one in the other; rows alone do not tell them apart at two components.
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=1200)
    X = rng.normal(size=(1200, 2)) * np.where(y, 0.6, 2.0)[:, None] + y[:, None] * 0.5
    labels = np.where(np.arange(1200) < 600, y, -1)
    mixture = GaussianMixture(2, random_state=0).fit(X, labels=labels)
    assert mixture.labels_.tolist() == [0, 1]
    shares = mixture.label_probabilities_
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    small = int(shares[:, 1].argmax())
    np.testing.assert_allclose(np.sort(shares[:, 1]), [0.0, 1.0], atol=0.05)
    np.testing.assert_allclose(mixture.means_[small], [0.5, 0.5], atol=0.1)
    np.testing.assert_allclose(np.diag(mixture.covariances_[small]), 0.36, atol=0.08)
    # The mixture of rows is that of rows and labels, summed over labels.
    assert mixture.predict(X).shape == (1200,)
    assert not hasattr(mixture.fit(X), "labels_")


def test_labels_of_text_and_of_other_families():
    counts = np.random.default_rng(0).poisson(np.repeat([2.0, 20.0], 100)[:, None], (200, 2))
    labels = np.array([None] * 200, dtype=object)
    labels[[0, 150]] = "few", "many"
    mixture = FamilyMixture("poisson", 2, random_state=0).fit(counts, labels=labels)
    many = int(mixture.parameters_["rates"][:, 0].argmax())
    assert mixture.labels_[mixture.label_probabilities_[many].argmax()] == "many"
    with pytest.raises(ValueError, match="labels must have one value"):
        mixture.fit(counts, labels=labels[:5])
    with pytest.raises(ValueError, match="only missing ones"):
        mixture.fit(counts, labels=np.full(200, -1))
