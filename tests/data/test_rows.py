import numpy as np
import pytest

from pickmix.data.rows import ArrayRows, Batches


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_come_centred_in_float64(dtype, order):
    data = np.asarray(np.random.default_rng(0).normal(3.0, 1.0, (100, 4)), dtype=dtype, order=order)
    weights = np.random.default_rng(1).random(100)
    source = ArrayRows(data, weights)
    center = np.average(data.astype(float), axis=0, weights=weights)
    np.testing.assert_allclose(source.center, center, rtol=1e-12)
    rows = np.array([5, 99, 5])
    gathered = source.gather(rows)
    assert gathered.dtype == np.float64
    np.testing.assert_allclose(gathered, data[rows].astype(float) - center, atol=1e-12)
    taken, total = source.weights_of(rows)
    np.testing.assert_array_equal(taken, weights[rows])
    assert total == pytest.approx(3 * weights.mean())
    spread = np.average(np.square(data - center), axis=0, weights=weights)
    np.testing.assert_allclose(source.spread(), spread, rtol=1e-6)


def test_the_centre_of_far_away_data_is_exact_to_float64():
    data = 1e8 + np.random.default_rng(0).normal(size=(100_000, 2))
    expected = 1e8 + (data - 1e8).mean(axis=0)
    np.testing.assert_allclose(ArrayRows(data).center, expected, rtol=0, atol=3e-8)


@pytest.mark.parametrize(
    ("n_rows", "batch_size"), [(10, 3), (10, 10), (10, 100), (1000, 7), (1, 1)]
)
def test_every_pass_visits_every_row_once(n_rows, batch_size):
    batches = Batches(n_rows, batch_size, seed=3)
    for number in range(3):
        steps = range(number * batches.n_batches + 1, (number + 1) * batches.n_batches + 1)
        parts = [batches.rows(step).copy() for step in steps]
        sizes = {part.size for part in parts}
        assert max(sizes) <= batch_size
        assert max(sizes) - min(sizes) <= 1
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n_rows))


def test_batches_are_a_function_of_seed_and_step():
    there = Batches(1000, 100, seed=3)
    in_order = [there.rows(step).copy() for step in range(1, 31)]
    back = Batches(1000, 100, seed=3)
    for step in (30, 7, 12, 1):
        np.testing.assert_array_equal(back.rows(step), in_order[step - 1])
    assert (Batches(1000, 100, seed=4).rows(1) != in_order[0]).any()
    assert (np.concatenate(in_order[:10]) != np.concatenate(in_order[10:20])).any()
