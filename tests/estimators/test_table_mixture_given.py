"""Conditions of a TableMixture: they come back as they are, and mistakes are named."""

import datetime

import numpy as np
import pandas as pd
import pytest

from pickmix import TableMixture


@pytest.fixture(scope="module")
def mixture():
    rng = np.random.default_rng(0)
    n = 200
    table = {
        "x": rng.integers(0, 40, n) * 25,
        "y": rng.normal(size=n).round(1),
        "c": rng.choice(["a", "b"], n),
        "b": rng.integers(0, 2, n),
        "day": np.datetime64("2024-01-01") + rng.integers(0, 99, n).astype("m8[D]"),
        "k": ["only"] * n,
        "since": np.full(n, np.datetime64("2020-01-01")),
    }
    return TableMixture(2, random_state=0, max_iter=5, tol=0.0).fit(table)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x", 37),
        ("x", 37.0),
        ("x", [3, 4, 5]),
        ("y", 0.123456789),
        ("y", np.array(0.1)),
        ("c", np.array("a")),
        ("day", np.datetime64("2024-02-03")),
        ("day", np.array(np.datetime64("2024-02-03", "ns"))),
        ("day", "2024-02-03"),
        ("k", "only"),
        ("since", "2020-01-01"),
        ("since", np.datetime64("2020-01-01", "ns")),
    ],
)
def test_given_values_come_back(mixture, name, value):
    drawn = mixture.sample(3, 0, given={name: value, "b": 1})
    wanted = value if isinstance(value, list) else [value] * 3
    if name in ("day", "since"):
        wanted = np.array([np.datetime64(one) for one in wanted])
    assert drawn[name].tolist() == np.asarray(wanted, dtype=drawn[name].dtype).tolist()
    assert drawn["b"].tolist() == [1, 1, 1]


def test_cells_without_a_value_are_drawn(mixture):
    drawn = mixture.sample(3, 0, given={"x": [37, None, 38], "y": [0.15, 0.25, None]})
    assert drawn["x"][[0, 2]].tolist() == [37, 38]
    assert drawn["x"][1] % 25 == 0
    assert drawn["y"][:2].tolist() == [0.15, 0.25]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": 3.7}, r"given\['x'\] must be a whole number, .* got 3.7"),
        ({"c": None}, r"given\['c'\] must be a value, got None"),
        ({"y": float("nan")}, r"given\['y'\] must be a value, got nan"),
        ({"day": np.datetime64("NaT")}, r"given\['day'\] must be a value"),
        ({"c": "z"}, r"given\['c'\] must be a level that the fit has seen, got 'z'"),
        ({"b": 2}, r"given\['b'\] must be true or false, or 1 or 0, got 2"),
        ({"y": "abc"}, r"given\['y'\] must hold numbers, got 'abc'"),
        ({"y": ["1", "abc", "2"]}, r"given\['y'\] must hold numbers, but row 1 holds 'abc'"),
        ({"y": np.inf}, r"given\['y'\] must hold finite numbers, got inf"),
        ({"day": "May"}, r"given\['day'\] must hold dates.*, got 'May'"),
        ({"day": "2024-02-03T10:30"}, r"given\['day'\] must be a time of whole days"),
        ({"k": "other"}, r"given\['k'\] must be 'only', the only value in the fit, got 'other'"),
        ({"since": "2020-01-02"}, r"given\['since'\] must be '2020-01-01'"),
        ({"z": 1}, "given names 'z', expected columns of the model"),
        ({"x": [1, 2]}, r"given\['x'\] must be one value or 3, got 2"),
    ],
)
def test_mistakes_are_named(mixture, given, message):
    with pytest.raises(ValueError, match=message):
        mixture.sample(3, 0, given=given)


def test_constants_say_nothing(mixture):
    answers = mixture.conditional({"k": "only"})
    np.testing.assert_allclose(answers.mean()["y"], mixture.conditional({}).mean()["y"])
    with pytest.raises(ValueError, match="the only value in the fit"):
        mixture.conditional({"k": "other", "y": 0.0})
    with pytest.raises(ValueError, match="must be a value"):
        mixture.conditional({"c": None})


def zoned_table(zone="Europe/Paris", n=50):
    times = pd.date_range("2024-03-01 12:30", periods=n, freq="D", tz=zone)
    return pd.DataFrame({"t": times, "x": np.arange(n) + 0.5})


def test_dates_with_zones_want_conditions_with_zones():
    mixture = TableMixture(1, random_state=0, max_iter=5, tol=0.0).fit(zoned_table())
    moment = pd.Timestamp("2024-03-10 12:30", tz="Europe/Paris")
    for value in (moment, moment.to_pydatetime(), moment.tz_convert("UTC"), "2024-03-10T11:30Z"):
        drawn = mixture.sample(2, 0, given={"t": value})
        assert drawn["t"].tolist() == [moment, moment]
        assert str(drawn["t"].dt.tz) == "Europe/Paris"
    for value in (datetime.datetime(2024, 3, 10, 12, 30), "2024-03-10T12:30"):
        with pytest.raises(ValueError, match=r"must have a time zone, .*Europe/Paris"):
            mixture.sample(2, 0, given={"t": value})
