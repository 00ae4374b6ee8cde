"""What is found in the values of columns: steps, counts, dates in text."""

import numpy as np
import pytest

from pickmix.inputs.frames import read_typed
from pickmix.inputs.kinds import find_step, find_time_step, looks_like_counts, parse_times

STEPS = {
    "whole": (np.array([3, -7, 12]), 1.0),
    "tenths": (np.array([0.1, 0.2, 3.7, -1.9]), 0.1),
    "halves": (np.array([0.5, 1.5, 7.0]), 0.5),
    "quarters": (np.array([0.25, 0.5, 12.75]), 0.25),
    "fives": (np.array([5.0, 15.0, 100.0]), 5.0),
    "thousands": (np.array([3000, 7000, -12000]), 1000.0),
    "twenty-fives": (np.array([25, 75, 150]), 25.0),
    "sevens have no decimal step but one": (np.array([7, 21, 70]), 1.0),
    "far from the origin": (1e8 + np.array([0.5, 1.0, 2.5]), 0.5),
    "float32": (np.array([0.1, 0.2, 31.7], dtype=np.float32), 0.1),
    "zero too": (np.array([0.0, 0.03]), 0.01),
    "money": (np.array([1234567.89, 0.01, 5.5]), 0.01),
}


@pytest.mark.parametrize("case", STEPS)
def test_the_step_is_the_largest_that_all_values_share(case):
    values, expected = STEPS[case]
    assert find_step(values).size == expected


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).normal(size=50),
        np.random.default_rng(0).normal(size=50).astype(np.float32),
        np.random.default_rng(0).normal(size=50) * 1e8,
        np.array([1.0, 2.0, np.pi]),
        np.array([1e-20, 1.0]),
    ],
)
def test_numbers_that_are_not_rounded_have_no_step(values):
    assert find_step(values) is None


def test_counts_look_like_mixtures_of_poisson_distributions():
    rng = np.random.default_rng(0)
    assert looks_like_counts(rng.poisson(0.5, 2000))
    assert looks_like_counts(rng.poisson(rng.gamma(1.0, 3.0, 2000)))
    # Binomial: variance below the mean.
    assert not looks_like_counts(np.append(rng.binomial(5, 0.7, 2000), 0))
    # Hours of a day, days of a week: no tail.
    assert not looks_like_counts(rng.integers(0, 24, 2000))
    assert not looks_like_counts(rng.integers(0, 7, 2000))
    # Ages, and sums of money that are mostly zero.
    assert not looks_like_counts(rng.integers(18, 90, 2000))
    assert not looks_like_counts(np.where(rng.random(2000) < 0.9, 0, 5000))


@pytest.mark.parametrize(
    ("times", "step"),
    [
        (["2020-01-01", "2021-05-07"], np.timedelta64(1, "D")),
        (["2020-01-01T00:00:00", "2021-05-07T00:00:00"], np.timedelta64(1, "D")),
        (["2020-01-01T05:00:00", "2021-05-07T00:00:00"], np.timedelta64(1, "h")),
        (["2020-01-01T05:45:00", "2021-05-07T00:00:00"], np.timedelta64(15, "m")),
        (["2020-01-01T05:00:01", "2021-05-07T00:00:00"], np.timedelta64(1, "s")),
        (["1960-01-01T05:00:00.001", "2021-05-07T00:00:00"], np.timedelta64(1, "ms")),
    ],
)
def test_steps_of_times(times, step):
    assert find_time_step(np.array(times, dtype="M8")) == step
    assert find_time_step(np.array(times, dtype="M8[us]")) == step


def test_text_of_dates_is_parsed_and_other_text_is_not():
    texts = ["2020-02-29", "1999-12-31 23:59:00", None, "2020-01-01 00:00:01.5"]
    column, _ = parse_times(read_typed({"t": texts}).columns["t"])
    expected = np.array(
        ["2020-02-29T00:00", "1999-12-31T23:59", "NaT", "2020-01-01T00:00:01.5"], dtype="M8[ms]"
    )
    np.testing.assert_array_equal(column.values[[0, 1, 3]], expected[[0, 1, 3]])
    assert column.missing.tolist() == [False, False, True, False]
    for bad in ("2020-02-30", "2020-1-1", "tomorrow", "2020-01-01T25:00"):
        found, level = parse_times(read_typed({"t": ["2020-01-01", bad]}).columns["t"])
        assert found is None
        assert level == bad
