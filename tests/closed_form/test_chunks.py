"""Sums over chunks: pairs of neighbours first, however many chunks come at a time."""

import pytest

from pickmix.closed_form.chunks import Pairwise, add_in_pairs


def concatenate(one, other):
    return f"({one}{other})"


def neighbours_first(values):
    while len(values) > 1:
        pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
        values = [concatenate(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return values[0]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 8, 11, 16, 23, 64, 100])
@pytest.mark.parametrize("size", [1, 2, 4, 32])
def test_runs_of_powers_of_two_add_up_in_the_same_order(n, size):
    values = [chr(ord("A") + i) for i in range(n)]
    sums = Pairwise(concatenate)
    for start in range(0, n, size):
        run = values[start : start + size]
        sums.put(add_in_pairs(run, concatenate), len(run))
    assert sums.total() == add_in_pairs(values, concatenate) == neighbours_first(values)
    assert len(sums.kept) <= n.bit_length()


def test_nothing_adds_up_to_none():
    assert add_in_pairs([], concatenate) is None
    assert Pairwise(concatenate).total() is None
