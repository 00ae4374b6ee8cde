"""Missing values in rows that stay where they are: files, sources, clusters."""

import numpy as np
import pytest
from small_tables import small_samples

from pickmix import FamilyMixture, GaussianMixture, open_rows

# So few that fits run in NumPy.
N, K = 2700, 3


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    centres = 6.0 * rng.normal(size=(K, 3))
    complete = centres[rng.integers(K, size=N)] + rng.normal(size=(N, 3))
    gone = rng.random((N, 3)) < 0.25
    gone[gone.all(axis=1), 0] = False
    return np.where(gone, np.nan, complete)


@pytest.fixture(scope="module")
def passes():
    """Samples of 900 rows: tables do not come into memory as a whole."""
    with small_samples(900 * 24):
        yield


@pytest.fixture(scope="module")
def in_memory(rows):
    return GaussianMixture(K, random_state=0).fit(rows)


def test_passes_over_a_file(rows, passes, in_memory, tmp_path):
    np.save(tmp_path / "rows.npy", rows)
    from_file = GaussianMixture(K, random_state=0).fit(tmp_path / "rows.npy")
    assert from_file.n_rows_seen_ == N
    assert from_file.score(rows) > in_memory.score(rows) - 0.02
    scores = from_file.score_samples(tmp_path / "rows.npy")
    np.testing.assert_allclose(scores, from_file.score_samples(rows), atol=1e-9)
    np.testing.assert_array_equal(from_file.predict(tmp_path / "rows.npy"), from_file.predict(rows))


def test_rows_without_values_do_not_count(rows, passes, in_memory):
    """A fifth of the table is empty; means, weights and likelihoods are those of the rest."""
    empty = np.full((N // 4, 3), np.nan)
    mixed = np.random.default_rng(1).permutation(np.concatenate([rows, empty]))
    with pytest.warns(UserWarning, match=r"675 row\(s\) of X hold missing values only"):
        mixture = GaussianMixture(K, random_state=0).fit(open_rows(mixed, chunk_size=800))
    assert mixture.score(rows) > in_memory.score(rows) - 0.02
    np.testing.assert_allclose(mixture.weights_.sum(), 1.0)
    assert mixture.n_rows_seen_ == N
    assert abs(mixture.lower_bound_ - mixture.score(rows)) < 0.1


def test_more_components_than_rows_with_values(passes):
    few = np.full((50, 2), np.nan)
    few[:5] = np.arange(10.0).reshape(5, 2)
    with (
        pytest.warns(UserWarning, match="45 row"),
        pytest.raises(ValueError, match="n_components must be at most"),
    ):
        GaussianMixture(10).fit(open_rows(few))


def test_a_column_without_values_is_named(rows, passes, tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(rows, columns=["a", "b", "c"])
    frame["b"] = np.nan
    frame.to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match="only missing values in column 'b'"):
        GaussianMixture(2).fit(tmp_path / "rows.parquet")


def test_infinity_is_refused(rows, passes, in_memory):
    bad = rows.copy()
    bad[2000, 1] = -np.inf
    with pytest.raises(ValueError, match=r"X must hold finite numbers, got -inf"):
        GaussianMixture(2).fit(open_rows(bad, chunk_size=800))
    with pytest.raises(ValueError, match=r"X must hold finite numbers, got -inf"):
        in_memory.score_samples(open_rows(bad))


def test_streams_of_chunks(rows, in_memory):
    mixture = GaussianMixture(K, random_state=0).partial_fit(open_rows(rows, chunk_size=900))
    empty = np.concatenate([rows, np.full((900, 3), np.nan)])
    again = GaussianMixture(K, random_state=0).partial_fit(open_rows(empty, chunk_size=900))
    np.testing.assert_array_equal(mixture.means_, again.means_)
    assert mixture.score(rows) > in_memory.score(rows) - 0.1


def test_counts_and_levels_in_chunks(passes):
    rng = np.random.default_rng(3)
    kind = rng.integers(2, size=N)
    table = np.column_stack([rng.poisson(2.0 + 9.0 * kind), (kind + (rng.random(N) < 0.1)) % 2])
    table = np.where(rng.random((N, 2)) < 0.2, np.nan, table)
    family = [("poisson", [0]), ("categorical", [1])]
    with pytest.warns(UserWarning, match="missing values only"):
        mixture = FamilyMixture(family, 2, random_state=0).fit(open_rows(table, chunk_size=800))
    rates = np.sort(mixture.parameters_["poisson0_rates"][:, 0])
    np.testing.assert_allclose(rates, [2.0, 11.0], atol=0.4)
