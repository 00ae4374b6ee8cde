"""Drawn rows beside real ones: told apart, and copied."""

import numpy as np
import pytest
from scipy.stats import ks_2samp

from pickmix import compare


def rows(seed, n=600, shift=0.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    return {
        "x": x,
        "y": x + 0.5 * rng.normal(size=n) + shift,
        "town": np.where(x + rng.normal(size=n) > 0, "Oslo", "Lyon"),
    }


def test_rows_of_one_distribution_cannot_be_told_apart():
    found = compare(rows(0), rows(1), rows(2))
    assert found.c2st > 0.85
    assert found.c2st_held_out > 0.85
    assert max(found.columns.values()) < 0.1
    assert found.copies == 0.0
    assert found.near_copies < 0.06
    assert "C2ST against held-out rows" in str(found)


def test_what_differs_is_named_first():
    found = compare(rows(0), rows(1, shift=2.0))
    assert found.c2st < 0.3
    assert np.isnan(found.c2st_held_out)
    assert next(iter(found.columns)) == "y"
    assert "y" in next(iter(found.pairs))
    expected = ks_2samp(rows(0)["y"], rows(1, shift=2.0)["y"]).statistic
    assert found.columns["y"] == pytest.approx(expected)
    broken = rows(1)
    broken["town"] = broken["town"][::-1]
    pair, distance = next(iter(compare(rows(0), broken).pairs.items()))
    assert "town" in pair
    assert distance > 0.15
    # Each column by itself is right.
    assert max(compare(rows(0), broken).columns.values()) < 0.1


def test_copies_are_given_away_by_held_out_rows():
    real = rows(0)
    found = compare(real, real, rows(2))
    assert found.copies == 1.0
    assert found.near_copies == 1.0


def test_shares_of_levels_by_hand():
    real = {"a": ["u"] * 30 + ["v"] * 70, "x": np.arange(100.0)}
    drawn = {"a": ["u"] * 50 + ["v"] * 40 + ["w"] * 10, "x": np.arange(100.0)}
    assert compare(real, drawn).columns["a"] == pytest.approx(0.3)
    drawn = {"a": ["u"] * 30 + ["v"] * 50 + [None] * 20, "x": np.arange(100.0)}
    assert compare(real, drawn).columns["a"] == pytest.approx(0.2)


def test_tables_must_match():
    with pytest.raises(ValueError, match=r"drawn must have the columns of real, but lacks.*town"):
        compare(rows(0), {"x": np.zeros(50), "y": np.zeros(50)})
    with pytest.raises(ValueError, match="held_out must have at least 30 rows"):
        compare(rows(0), rows(1), rows(2, n=5))
