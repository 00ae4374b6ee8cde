"""The path over the number of components: all of it from one evaluation of the tree."""

import numpy as np
import pytest
import sklearn.mixture
from table_cases import mixed_table, rows_of

from pickmix import (
    ComponentPath,
    FamilyMixture,
    FlowMixture,
    GaussianMixture,
    TableMixture,
    choose_n_components,
    path,
)

RNG = np.random.default_rng(0)
GRID = 8.0 * RNG.integers(0, [4, 3], (3000, 2)) + RNG.normal(size=(3000, 2))
FITTED, HELD_OUT = GRID[:2000], GRID[2000:]


@pytest.fixture(scope="module")
def mixture():
    return GaussianMixture(40, random_state=0).fit(FITTED)


def test_every_number_is_as_good_as_its_mixture_says(mixture):
    found = path(mixture, HELD_OUT, FITTED)
    assert found.n_components.tolist() == list(range(1, 41))
    for place in (0, 1, 7, 11, 25, 39):
        smaller = mixture.reduce(int(found.n_components[place]))
        assert found.log_likelihood[place] == pytest.approx(smaller.score(HELD_OUT), abs=1e-9)
        assert found.bic[place] == pytest.approx(smaller.bic(FITTED), rel=1e-10)
        assert found.aic[place] == pytest.approx(smaller.aic(FITTED), rel=1e-10)


def test_standard_errors_are_of_differences_row_by_row(mixture):
    found = path(mixture, HELD_OUT)
    best = int(np.argmax(found.log_likelihood))
    of_best = mixture.reduce(int(found.n_components[best])).score_samples(HELD_OUT)
    assert found.standard_error[best] == pytest.approx(0.0, abs=1e-12)
    for k in (5, 30):
        differences = mixture.reduce(k).score_samples(HELD_OUT) - of_best
        expected = differences.std(ddof=1) / np.sqrt(HELD_OUT.shape[0])
        assert found.standard_error[k - 1] == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_groups_are_counted(mixture):
    found = path(mixture, HELD_OUT, FITTED)
    assert found.choose() == 12
    assert found.choose("bic") == 12
    assert choose_n_components(mixture, HELD_OUT) == 12
    assert found.mixture().weights_.shape == (12,)
    assert found.mixture(4).weights_.shape == (4,)
    assert found.choose("best") >= found.choose()


@pytest.mark.parametrize("rule", ["bic", "aic"])
def test_criteria_of_validation_rows_are_pointed_out(mixture, rule):
    found = path(mixture, HELD_OUT)
    with pytest.warns(UserWarning, match=f"rule='{rule}' is meant for the rows of the fit"):
        found.choose(rule)
    assert found.choose("best") >= found.choose()


def made(log_likelihood, standard_error, bic, aic):
    arrays = [np.array(values, dtype=float) for values in (log_likelihood, standard_error)]
    return ComponentPath(np.array([1, 2, 4, 8]), *arrays, np.array(bic), np.array(aic), None)


def test_rules():
    found = made([-3.0, -2.1, -2.0, -2.05], [0.2, 0.12, 0.0, 0.01], [9, 5, 6, 7], [9, 8, 4, 3])
    assert found.choose("best") == 4
    assert found.choose() == 2
    assert found.choose("bic") == 2
    assert found.choose("aic") == 8
    certain = made([-3.0, -2.1, -2.0, -2.05], [0.2, 0.01, 0.0, 0.01], [9, 5, 6, 7], [9, 8, 4, 3])
    assert certain.choose() == 4


def test_rows_with_gaps_and_covariances_that_are_shared():
    gappy = HELD_OUT.copy()
    gappy[::7, 0] = np.nan
    mixture = GaussianMixture(20, covariance_type="tied", random_state=0).fit(FITTED)
    found = path(mixture, gappy)
    assert found.n_components.tolist() == [*range(1, 17), 18, 20]
    assert found.log_likelihood[11] == pytest.approx(mixture.reduce(12).score(gappy), abs=1e-9)
    full = GaussianMixture(20, random_state=0).fit(FITTED)
    found = path(full, gappy)
    assert found.log_likelihood[11] == pytest.approx(full.reduce(12).score(gappy), abs=1e-9)


def test_counts_and_tables():
    counts = RNG.poisson(np.repeat([1.0, 8.0, 40.0], 300)[:, None], (900, 2)).astype(float)
    shuffled = RNG.permutation(counts)
    mixture = FamilyMixture("poisson", 12, random_state=0).fit(shuffled[:600])
    found = path(mixture, shuffled[600:], shuffled[:600])
    assert found.choose("bic") == 3
    assert found.log_likelihood[4] == pytest.approx(mixture.reduce(5).score(shuffled[600:]))
    table = mixed_table(300, gaps=0.05)
    fitted, held_out = rows_of(table, np.arange(200)), rows_of(table, np.arange(200, 300))
    tables = TableMixture(5, random_state=0).fit(fitted)
    found = path(tables, held_out)
    for k in (1, 3, 5):
        assert found.log_likelihood[k - 1] == pytest.approx(tables.reduce(k).score(held_out))


def test_many_components_have_a_path_in_steps():
    mixture = GaussianMixture(1500)
    rng = np.random.default_rng(1)
    mixture.weights_ = np.full(1500, 1 / 1500)
    mixture.means_ = rng.normal(size=(1500, 2))
    mixture.covariances_ = np.broadcast_to(0.01 * np.eye(2), (1500, 2, 2)).copy()
    mixture.n_features_in_ = 2
    found = path(mixture, rng.normal(size=(50, 2)))
    assert (np.diff(found.n_components) > 0).all()
    assert found.n_components[[0, 511, -1]].tolist() == [1, 512, 1500]
    assert found.n_components.shape[0] < 700
    assert np.isfinite(found.log_likelihood).all()


def test_rows_in_a_file(mixture, tmp_path):
    np.save(tmp_path / "rows.npy", HELD_OUT)
    found = path(mixture, tmp_path / "rows.npy")
    assert found.log_likelihood == pytest.approx(path(mixture, HELD_OUT).log_likelihood)
    assert repr(found) == "<ComponentPath from 1 to 40 components; 12 are enough>"
    dask_array = pytest.importorskip("dask.array")
    with pytest.raises(TypeError, match="got a Dask collection"):
        path(mixture, dask_array.from_array(HELD_OUT))


def test_mixtures_that_cannot_be_merged():
    with pytest.raises(TypeError, match="got a sklearn GaussianMixture"):
        path(sklearn.mixture.GaussianMixture(2), HELD_OUT)
    with pytest.raises(
        TypeError, match=r"mixture must be a GaussianMixture.*got a pickmix FlowMixture"
    ):
        path(FlowMixture(2), HELD_OUT)
