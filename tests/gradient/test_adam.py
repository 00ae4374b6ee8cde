"""Adam on rows of tables against Adam written out for one row at a time."""

import jax
import numpy as np
import pytest
from quick_jit import quick_jit

from pickmix.gradient.adam import Adam, dense_update, row_update, sum_duplicates
from pickmix.gradient.compilation import precision

N_ROWS, WIDTH, RATE = 11, 3, 0.01


class RowByRow:
    """Algorithm 1 of Kingma and Ba for every row by itself; a row's time is its own visits."""

    def __init__(self, table):
        self.table = table.copy()
        self.first, self.second = np.zeros_like(table), np.zeros_like(table)
        self.count = np.zeros(len(table), dtype=int)

    def update(self, row, gradient):
        self.count[row] += 1
        self.first[row] = 0.9 * self.first[row] + 0.1 * gradient
        self.second[row] = 0.999 * self.second[row] + 0.001 * gradient**2
        unbiased = self.first[row] / (1 - 0.9 ** self.count[row])
        spread = np.sqrt(self.second[row] / (1 - 0.999 ** self.count[row]))
        self.table[row] -= RATE * unbiased / (spread + 1e-8)


def start(seed=0):
    table = np.random.default_rng(seed).normal(size=(N_ROWS, WIDTH))
    return table, Adam(np.zeros_like(table), np.zeros_like(table), np.zeros(N_ROWS))


def assert_same_bits(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


@pytest.fixture(scope="module")
def visit():
    """One update of the rows of a batch, compiled once."""

    def update(table, adam, rows, gradient, keep):
        visited = sum_duplicates(rows, gradient, table.shape[0])
        return visited, row_update(table, adam, visited, RATE, keep)

    compiled = quick_jit(update)

    def call(*arguments):
        with precision("float64"):
            return jax.tree.map(np.asarray, compiled(*arguments))

    return call


# Some rows twice, one row only, all different, and more visits than the table has rows.
@pytest.mark.parametrize(
    "rows", [[3, 3, 0, 10, 3, 0], [7] * 6, [5, 4, 9, 2, 0, 1], np.arange(33) % 11]
)
def test_gradients_of_equal_rows_are_summed(rows, visit):
    rows = np.asarray(rows, np.int32)
    gradient = np.random.default_rng(1).normal(size=(len(rows), WIDTH))
    visited, _ = visit(*start(), rows, gradient, True)
    distinct = np.unique(rows)
    expected = np.zeros((N_ROWS, WIDTH))
    np.add.at(expected, rows, gradient)
    n_distinct = len(distinct)
    np.testing.assert_array_equal(visited.rows[:n_distinct], distinct)
    # What is left over must not be taken for a row.
    np.testing.assert_array_equal(visited.rows[n_distinct:], N_ROWS)
    np.testing.assert_allclose(visited.gradient[:n_distinct], expected[distinct], atol=1e-14)
    np.testing.assert_array_equal(visited.gradient[n_distinct:], 0.0)


def test_rows_are_updated_at_their_own_pace(visit):
    rng = np.random.default_rng(2)
    table, adam = start()
    first_table = table.copy()
    expected = RowByRow(table)
    for _ in range(50):
        # Row 10 is visited always, some now and then, rows 6 and 7 never.
        rows = np.append(rng.choice([0, 1, 2, 3, 4, 5, 8, 9], size=5), 10).astype(np.int32)
        # Rows whose gradients differ by orders of magnitude, and vanish now and then.
        gradient = rng.normal(size=(6, WIDTH)) * 10.0 ** rng.integers(-4, 3, size=(6, 1))
        gradient *= rng.random((6, WIDTH)) < 0.9
        _, (table, adam) = visit(table, adam, rows, gradient, True)
        for row in np.unique(rows):
            expected.update(row, gradient[rows == row].sum(axis=0))
    np.testing.assert_allclose(table, expected.table, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(adam.first, expected.first, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(adam.second, expected.second, rtol=1e-10, atol=1e-14)
    np.testing.assert_array_equal(adam.updates, expected.count)
    assert_same_bits([np.asarray(table)[6:8]], [first_table[6:8]])
    assert not np.asarray(adam.first)[6:8].any()
    assert expected.count[[6, 7, 10]].tolist() == [0, 0, 50]


def test_a_refused_update_of_rows_changes_nothing(visit):
    rows = np.array([0, 4, 4, 10, 2, 3], np.int32)
    gradient = np.full((6, WIDTH), np.nan)
    table, adam = start()
    _, (found, found_adam) = visit(table, adam, rows, gradient, False)
    assert_same_bits([found, *found_adam], [table, *adam])


def test_a_dense_update_moves_all_rows_and_a_refused_one_none():
    rng = np.random.default_rng(3)
    table, adam = start()
    expected = RowByRow(table)
    update = quick_jit(dense_update)
    for _ in range(20):
        gradient = rng.normal(size=table.shape)
        with precision("float64"):
            table, adam = update(table, adam, gradient, RATE, True)
        for row in range(N_ROWS):
            expected.update(row, gradient[row])
    np.testing.assert_allclose(table, expected.table, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(adam.first, expected.first, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(adam.second, expected.second, rtol=1e-10, atol=1e-14)
    np.testing.assert_array_equal(adam.updates, 20)
    with precision("float64"):
        found, found_adam = update(table, adam, np.full_like(gradient, np.nan), RATE, False)
    assert_same_bits([found, *found_adam], [table, *adam])


def test_the_bias_correction_keeps_its_digits_in_float32():
    """With a constant gradient the corrected moments are the gradient, at every count."""
    gradient = 0.5
    before = np.array([0, 1, 9, 999])
    first = ((1 - 0.9**before) * gradient)[:, None].astype(np.float32)
    second = ((1 - 0.999**before) * gradient**2)[:, None].astype(np.float32)
    adam = Adam(first, second, before.astype(np.float32))
    moved, _ = quick_jit(dense_update)(
        np.zeros((4, 1), np.float32),
        adam,
        np.full((4, 1), gradient, np.float32),
        np.float32(1.0),
        True,
    )
    # A handful of roundings of 6e-8.
    np.testing.assert_allclose(moved, -1.0, atol=1e-6)
