"""A family that a user adds has everything that those of the package have."""

import numpy as np
import pytest
from exponential_family import Exponential
from scipy import stats

import pickmix
from pickmix import FamilyMixture
from pickmix.families.registry import FAMILIES

TIMES = np.array([[0.1, 4.0], [3.0, 0.2]])


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    constructor = lambda rows, reg_covar: Exponential(rows.shape[1])  # noqa: E731
    monkeypatch.setitem(FAMILIES, "exponential", constructor)


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 2000)
    return rng.exponential(TIMES[labels])


@pytest.fixture
def mixture(X):
    return FamilyMixture("exponential", 2, random_state=0).fit(X)


def density(mixture, X):
    """log p(x) by SciPy, (N,)."""
    times = mixture.parameters_["times"]
    parts = [stats.expon(scale=mean).logpdf(X).sum(axis=1) for mean in times]
    return np.logaddexp(*(np.log(mixture.weights_)[:, None] + parts))


def test_the_fit_finds_the_times(X, mixture):
    found = mixture.parameters_["times"]
    found = found[np.argsort(found[:, 0])]
    # The standard error of a mean of 1,000 times is 3 percent; components overlap a little.
    assert found == pytest.approx(TIMES, rel=0.15)
    assert mixture.score_samples(X) == pytest.approx(density(mixture, X))


def test_gaps_and_groups(X):
    rows = np.column_stack([X, np.random.default_rng(1).normal(size=X.shape[0])])
    rows[::7, 1] = np.nan
    family = [("full", [2]), ("exponential", [0, 1])]
    mixture = FamilyMixture(family, 2, random_state=0).fit(rows)
    found = mixture.parameters_["exponential1_times"]
    assert found[np.argsort(found[:, 0])] == pytest.approx(TIMES, rel=0.2)


def test_queries(X, mixture):
    drawn, components = mixture.sample(4000, random_state=0)
    for k in range(2):
        of_k = drawn[components == k]
        errors = mixture.parameters_["times"][k] / np.sqrt(of_k.shape[0])
        assert np.abs(of_k.mean(axis=0) - mixture.parameters_["times"][k]).max() < 4 * errors.max()
    answers = mixture.conditional({0: [0.05, 8.0]})
    weights = mixture.predict_proba(np.array([[0.05, np.nan], [8.0, np.nan]]))
    assert answers.weights() == pytest.approx(weights)
    assert answers.mean()[:, 0] == pytest.approx(weights @ mixture.parameters_["times"][:, 1])
    marginal = mixture.marginal([1])
    explanation = mixture.explain(X[:50])
    others = mixture.marginal([0]).score_samples(X[:50, :1])
    assert explanation.log_conditional[:, 1] == pytest.approx(density(mixture, X[:50]) - others)
    assert marginal.score_samples(X[:5, 1:]).shape == (5,)
    assert mixture.impute([[0.05, np.nan]])[0, 1] == pytest.approx(answers.mean()[0, 0])


def test_merges(X):
    mixture = FamilyMixture("exponential", 6, random_state=0).fit(X)
    assert (np.diff(mixture.merge_tree().linkage[:, 2]) >= 0.0).all()
    alone = mixture.reduce(1)
    expected = mixture.weights_ @ mixture.parameters_["times"]
    assert alone.parameters_["times"][0] == pytest.approx(expected)
    assert pickmix.path(mixture, X[:500]).log_likelihood.max() >= mixture.score(X[:500]) - 1e-9


def test_saved_and_loaded(X, mixture, tmp_path):
    again = pickmix.load(pickmix.save(mixture, tmp_path / "model"))
    assert np.array_equal(again.score_samples(X), mixture.score_samples(X))
    mixture.parameters_ = {"times": -mixture.parameters_["times"]}
    with pytest.raises(ValueError, match="damaged: times must not be negative"):
        pickmix.load(pickmix.save(mixture, tmp_path / "damaged.npz"))


def test_report(X, mixture, tmp_path):
    path = pickmix.report(mixture, X, tmp_path / "report.html")
    assert path.stat().st_size > 10_000
