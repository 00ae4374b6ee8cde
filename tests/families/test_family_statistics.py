"""Statistics as a value: they add up in any grouping, and select by components."""

from functools import reduce

import numpy as np
import pytest
from family_cases import K, every_family, known

from pickmix.kernels import numpy_kernels
from pickmix.kernels.statistics import merge

FIELDS = ("mass", "squares", "mean", "scatter", "counts")


def _parts(name, origin=0.0):
    """Statistics of nine parts of the rows, with some components each; and of all rows at once."""
    mixture = known(name, 90)
    layout = mixture.family.layout
    rows = mixture.rows.copy()
    rows[:, : layout.n_coordinates] += origin
    random = np.random.default_rng(1)
    weights = random.uniform(0.5, 2.0, 90)
    components = random.integers(-1, K, (90, 2)).astype(np.int32)
    pair_weights = random.random((90, 2))

    def of(some):
        return numpy_kernels.pair_statistics(
            layout, K, rows[some], weights[some], components[some], pair_weights[some],
            float(some.shape[0]),
        )  # fmt: skip

    return layout, [of(part) for part in np.split(np.arange(90), 9)], of(np.arange(90))


def _assert_same(found, expected, atol=1e-9):
    one, other = np.argsort(found.members), np.argsort(expected.members)
    np.testing.assert_array_equal(found.members[one], expected.members[other])
    assert found.total_weight == pytest.approx(expected.total_weight)
    for field in FIELDS:
        np.testing.assert_allclose(
            getattr(found, field)[one], getattr(expected, field)[other], rtol=1e-9, atol=atol
        )


@every_family
def test_any_grouping_gives_the_same(name):
    layout, parts, whole = _parts(name)

    def plus(one, other):
        return one.plus(other, layout)

    def by_halves(some):
        middle = len(some) // 2
        return (
            some[0] if len(some) == 1 else plus(by_halves(some[:middle]), by_halves(some[middle:]))
        )

    _assert_same(reduce(plus, parts), whole)
    _assert_same(reduce(plus, parts[::-1]), whole)
    _assert_same(by_halves(parts), whole)
    stacked = tuple(np.concatenate([getattr(part, field) for part in parts]) for field in FIELDS)
    members = np.concatenate([part.members for part in parts])
    _assert_same(merge(members, stacked, layout, 90.0), whole)
    # Components in the same order take a shorter way.
    _assert_same(plus(whole, whole), plus(whole, whole.at(np.arange(K)[::-1])))


@every_family
def test_nothing_cancels_far_away(name):
    layout, parts, whole = _parts(name, origin=1e8)
    _, _, near = _parts(name)
    added = reduce(lambda a, b: a.plus(b, layout), parts)
    # Rows themselves are rounded to 1.5e-8 there.
    for found in (added, whole):
        one, other = np.argsort(found.members), np.argsort(near.members)
        np.testing.assert_allclose(found.scatter[one], near.scatter[other], rtol=1e-5, atol=1e-5)
