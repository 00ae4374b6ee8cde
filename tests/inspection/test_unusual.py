"""The most unusual rows: those of lowest log-density, with the reasons that `explain` gives."""

import numpy as np
import pytest

from pickmix import GaussianMixture, TableMixture
from pickmix.inspection.unusual import unusual_rows


@pytest.fixture(scope="module")
def numbers():
    rng = np.random.default_rng(0)
    a = rng.normal(size=500)
    X = np.column_stack([a, 2.0 * a + 0.1 * rng.normal(size=500), rng.normal(size=500)])
    mixture = GaussianMixture(2, random_state=0, max_iter=10, tol=0.0).fit(X)
    X = X.copy()
    X[42, 1] = 5.0
    X[7] = np.nan
    X[9, 2] = np.nan
    return mixture, X


def test_the_lowest_come_first_and_rows_of_nothing_never(numbers):
    mixture, X = numbers
    found = unusual_rows(mixture, X, 5)
    scores = mixture.score_samples(X)
    kept = np.delete(np.arange(500), 7)
    lowest = kept[np.argsort(scores[kept], kind="stable")[:5]]
    assert [row.row for row in found] == lowest.tolist()
    np.testing.assert_allclose([row.log_density for row in found], scores[lowest])
    assert [row.component for row in found] == mixture.predict(X)[lowest].tolist()
    assert all(row.row != 7 for row in unusual_rows(mixture, X, 500))


def test_reasons_are_those_of_explain(numbers):
    mixture, X = numbers
    first = unusual_rows(mixture, X, 1, reasons=2)[0]
    assert first.row == 42
    explanation = mixture.explain(X[[42]], top=2)
    columns = explanation.ranked[0].tolist()
    assert [reason.column for reason in first.reasons] == [f"column {c}" for c in columns]
    assert first.reasons[0].observed == X[42, columns[0]]
    np.testing.assert_allclose(first.reasons[0].expected, explanation.expected[0, columns[0]])
    assert not first.reasons[0].is_level


def test_gaps_are_no_reasons(numbers):
    mixture, X = numbers
    by_row = {row.row: row for row in unusual_rows(mixture, X, 500)}
    assert {reason.column for reason in by_row[9].reasons} == {"column 0", "column 1"}


def test_none_are_given_if_none_are_asked_for(numbers):
    assert unusual_rows(*numbers, 0) == []
    with pytest.raises(ValueError, match="n_rows"):
        unusual_rows(*numbers, -1)


def test_a_table_speaks_its_own_terms():
    rng = np.random.default_rng(0)
    n = 300
    group = rng.integers(0, 2, n)
    table = {
        "city": np.array(["Oslo", "Rome"], dtype=object)[group],
        "height": rng.normal(100.0 * group, 1.0),
        "since": np.datetime64("2020-01-01") + 300 * group + rng.integers(0, 10, n),
    }
    mixture = TableMixture(2, random_state=0, max_iter=20, tol=0.0).fit(table)
    table["city"] = table["city"].copy()
    table["city"][5] = "Oslo" if group[5] else "Rome"
    odd = unusual_rows(mixture, table, 1)[0]
    assert odd.row == 5
    assert odd.reasons[0].column == "city"
    assert odd.reasons[0].is_level
    assert odd.reasons[0].observed == table["city"][5]
    assert {reason.unit for reason in odd.reasons if reason.column == "since"} <= {"days"}
