"""Columns that begin anew after a period: means, fills and files go around the circle."""

import numpy as np
import pytest
from scipy.stats import circmean

import pickmix
from pickmix import TableMixture
from pickmix.inputs.errors import InputError


@pytest.fixture(scope="module")
def nights():
    rng = np.random.default_rng(0)
    late = rng.random(1200) < 0.5
    hour = np.where(late, rng.normal(0.0, 1.5, 1200), rng.normal(13.0, 2.0, 1200)).round() % 24
    return {"hour": hour.astype(int), "light": np.where(late, 0.0, 5.0) + rng.normal(0, 0.3, 1200)}


@pytest.fixture(scope="module")
def mixture(nights):
    return TableMixture(3, random_state=0, schema={"hour": "periodic"}).fit(nights)


def test_means_and_deviations_are_circular(nights, mixture):
    mean, std = mixture.predict_columns({"light": [0.0, 5.0]}, "hour", return_std=True)
    levels, shares = mixture.predict_levels({"light": [0.0, 5.0]}, "hour")
    for row in range(2):
        drawn = np.repeat(levels, np.rint(1e6 * shares[row]).astype(int))
        expected = circmean(drawn, high=24)
        away = (drawn - expected + 12) % 24 - 12
        assert abs((mean[row] - expected + 12) % 24 - 12) < 0.01
        assert std[row] == pytest.approx(np.sqrt(np.square(away).mean()), rel=0.01)
    assert min(mean[0], 24 - mean[0]) < 1.0
    assert std[0] < 2.0


def test_fills_and_quantiles_go_around(mixture):
    filled = mixture.impute({"hour": [None] * 2, "light": [0.0, 5.0]})["hour"]
    assert filled[0] in (23, 0, 1)
    assert filled[1] in (12, 13, 14)
    low, middle, high = mixture.conditional({"light": 0.0}, "hour").quantile([0.1, 0.5, 0.9])[
        "hour"
    ][0]
    assert low in (21, 22, 23)
    assert middle in (23, 0, 1)
    assert high in (1, 2, 3)


def test_densities_are_those_of_ordinals(nights, mixture):
    plain = TableMixture(3, random_state=0, schema={"hour": "ordinal"}).fit(nights)
    assert mixture.score(nights) == plain.score(nights)
    assert mixture.schema_["hour"].period == 24
    assert "period 24" in str(mixture.schema_)


def test_files_and_kinds(nights, mixture, tmp_path):
    pickmix.save(mixture, tmp_path / "model")
    loaded = pickmix.load(tmp_path / "model")
    assert loaded.schema_ == mixture.schema_
    again = TableMixture(3, random_state=0, schema=mixture.schema_.kinds).fit(nights)
    assert again.schema_ == mixture.schema_
    given = loaded.predict_columns({"light": [0.0]}, "hour")
    assert given == mixture.predict_columns({"light": [0.0]}, "hour")


@pytest.mark.parametrize(
    ("values", "kind", "period"),
    [
        (np.arange(7), "periodic", 7),
        (np.arange(1, 13), "periodic", 12),
        (np.arange(0, 360, 10), "periodic 360", 360),
        (np.arange(0.0, 6.28, 0.01), "periodic", 2 * np.pi),
    ],
)
def test_usual_periods(values, kind, period):
    table = {"x": np.tile(values, 10), "y": np.random.default_rng(0).normal(size=10 * len(values))}
    fitted = TableMixture(1, random_state=0, schema={"x": kind}).fit(table)
    assert fitted.schema_["x"].period == pytest.approx(period)


@pytest.mark.parametrize("kind", ["periodic 5", "periodic week"])
def test_periods_that_are_too_short(kind):
    with pytest.raises(InputError, match="must have a period that is larger"):
        TableMixture(1, schema={"x": kind}).fit({"x": list(range(7)) * 9, "y": range(63)})
