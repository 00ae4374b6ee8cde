"""Which rows go into a report, where there is no room for all of them."""

import numpy as np

from pickmix.inspection.components import ComponentTable
from pickmix.inspection.shown_rows import choose_shown
from pickmix.inspection.unusual import UnusualRow
from pickmix.inspection.view import Looked


def table_of(component, K, typical):
    n = component.shape[0]
    looked = Looked(np.zeros((n, 1)), component, np.zeros(n), np.zeros(n))
    weight = np.bincount(component, minlength=K) / n
    rows = np.bincount(component, minlength=K)
    nothing = np.zeros(K)
    return ComponentTable(weight, rows, nothing, rows, nothing, typical, nothing[:, None], looked)


def made(n=50_000, K=400, seed=0):
    component = np.random.default_rng(seed).integers(K, size=n)
    typical = np.array([np.flatnonzero(component == k)[-1] for k in range(K)])
    return table_of(component, K, typical), component, typical


def test_a_sample_comes_first_then_unusual_and_typical_rows():
    table, _, typical = made()
    odd = [UnusualRow(row, -9.0, 0, ()) for row in (49_000, 49_001)]
    shown = choose_shown(table, odd, n_columns=4)
    assert shown.n_sampled == 3000
    assert (np.diff(shown.rows[:3000]) > 0).all()
    assert {49_000, 49_001} <= set(shown.rows.tolist())
    assert set(typical.tolist()) <= set(shown.rows.tolist())
    assert np.unique(shown.rows).size == shown.rows.size
    assert all(shown.rows[place] == row for row, place in shown.place.items())


def test_every_component_has_some_rows():
    table, component, _ = made()
    shown = choose_shown(table, [], n_columns=4)
    assert np.bincount(component[shown.rows], minlength=400).min() >= 8


def test_wide_tables_have_fewer_rows_and_the_heaviest_components_first():
    table, _, typical = made()
    shown = choose_shown(table, [], n_columns=400)
    assert shown.n_sampled == 300
    assert shown.rows.size <= 1000
    heaviest = np.argsort(-table.weight, kind="stable")
    assert set(typical[heaviest[:300]].tolist()) <= set(shown.rows.tolist())


def test_components_without_rows_have_no_typical_one():
    component = np.zeros(10, dtype=np.int64)
    shown = choose_shown(table_of(component, 2, np.array([3, -1])), [], n_columns=1)
    assert sorted(shown.rows.tolist()) == list(range(10))
