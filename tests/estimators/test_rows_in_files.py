"""Fits and queries of rows that stay where they are: files, mapped arrays, functions, sources."""

import numpy as np
import pytest
from small_tables import small_samples

from pickmix import FamilyMixture, GaussianMixture, open_rows
from pickmix.estimators import row_sources

K, N = 6, 9000


def draw(n, seed, dtype=np.float32):
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(99).normal(size=(K, 3)) * 5.0
    labels = rng.integers(0, K, n)
    return (means[labels] + rng.normal(size=(n, 3))).astype(dtype)


X = draw(N, 0)
HELD_OUT = draw(4000, 1)


@pytest.fixture(scope="module", autouse=True)
def _samples_of_1500_rows():
    with small_samples(1500 * 12):
        yield


def fit(rows, **parameters):
    return GaussianMixture(K, random_state=0, **parameters).fit(rows)


def bits(mixture):
    arrays = (mixture.weights_, mixture.means_, mixture.covariances_)
    return (
        b"".join(array.tobytes() for array in arrays) + mixture.trace_["log_likelihood"].tobytes()
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path_factory.mktemp("rows")
    np.save(folder / "rows.npy", X)
    parts = folder / "parts"
    parts.mkdir()
    for number, part in enumerate(np.array_split(X, 3)):
        table = pa.table({"a": part[:, 0], "b": part[:, 1], "c": part[:, 2]})
        pq.write_table(table, parts / f"part-{number}.parquet", row_group_size=2100)
        np.save(folder / f"piece-{number}.npy", part)
    return folder


class Slices:
    def __len__(self):
        return X.shape[0]

    def __getitem__(self, rows):
        return X[rows]


def batches():
    for start in range(0, X.shape[0], 2101):
        yield X[start : start + 2101]


@pytest.fixture(scope="module")
def kinds(files):
    return {
        "npy": str(files / "rows.npy"),
        "path": files / "rows.npy",
        "pieces": str(files / "piece-*.npy"),
        "memmap": np.load(files / "rows.npy", mmap_mode="r"),
        "parquet": files / "parts",
        "pattern": str(files / "parts" / "*.parquet"),
        "function": batches,
        "slices": Slices(),
        "array": X,
    }


@pytest.fixture(scope="module")
def expected(_samples_of_1500_rows):
    return fit(open_rows(X, chunk_size=1024))


@pytest.mark.parametrize(
    "kind",
    ["pieces", "memmap", "parquet", "function", "slices"],
)
def test_the_same_bits_wherever_rows_are(kinds, expected, kind):
    with open_rows(kinds[kind], chunk_size=1024) as source:
        assert bits(fit(source)) == bits(expected)


def test_the_same_bits_for_any_number_of_threads(expected):
    assert bits(fit(open_rows(X, chunk_size=1024), n_jobs=3)) == bits(expected)


def test_sorted_rows_are_no_harm(expected):
    in_order = X[np.argsort(X[:, 0])]
    assert (
        fit(open_rows(in_order, chunk_size=1024)).score(HELD_OUT) > expected.score(HELD_OUT) - 0.02
    )


def test_the_first_passes_see_a_sample_only():
    visited = []

    source = open_rows(X, chunk_size=1024)
    read = source.read
    source.read = lambda first, last: visited.append((first, last)) or read(first, last)
    mixture = fit(source)
    # Chunks are read from the beginning to the end, once to look and once per pass.
    chunks = [(a, min(a + 1024, N)) for a in range(0, N, 1024)]
    n_passes, rest = divmod(len(visited), len(chunks))
    assert rest == 0
    assert visited == chunks * n_passes
    in_sample = mixture.trace_["step"] < mixture.n_steps_ - (n_passes - 1) * len(chunks) + 1
    assert in_sample.sum() > 1
    assert n_passes < 12


def test_tables_that_fit_and_other_algorithms_read_all_rows(files):
    with small_samples(2**30):
        assert bits(fit(files / "rows.npy")) == bits(fit(X))
    ours = fit(files / "rows.npy", algorithm="em", max_steps=3)
    assert bits(ours) == bits(fit(X, algorithm="em", max_steps=3))


def test_other_algorithms_refuse_what_memory_cannot_hold(files, monkeypatch):
    monkeypatch.setattr(row_sources, "memory", lambda: 1000.0)
    with pytest.raises(MemoryError, match=r"algorithm='em'.*needs all rows in memory"):
        fit(files / "rows.npy", algorithm="em")


def test_weights():
    # Rows of weight two are rows that are there twice.
    weights = np.ones(N)
    weights[X[:, 0] > 0.0] = 2.0
    weights[:100] = 0.0
    heavy = GaussianMixture(K, random_state=0).fit(
        open_rows(X, chunk_size=1024), sample_weight=weights
    )
    light = fit(open_rows(X, chunk_size=1024))
    assert heavy.score(HELD_OUT, sample_weight=1.0 + (HELD_OUT[:, 0] > 0)) > light.score(
        HELD_OUT, sample_weight=1.0 + (HELD_OUT[:, 0] > 0)
    )
    mean = np.average(X, axis=0, weights=weights)
    np.testing.assert_allclose(heavy.weights_ @ heavy.means_, mean, atol=6e-3)
    for bad, message in ((weights[:5], "shape"), (-weights, ">= 0"), (0 * weights, "only zeros")):
        with pytest.raises(ValueError, match=message):
            GaussianMixture(K).fit(open_rows(X), sample_weight=bad)


def test_families_learn_levels_of_all_rows():
    rng = np.random.default_rng(0)
    counts = rng.poisson(3.0, size=(N, 2)).astype(np.float64)
    levels = rng.integers(0, 3, size=(N, 1))
    levels[-1] = 7
    table = np.concatenate([counts, levels], axis=1)
    family = [("categorical", [2]), ("poisson", [0, 1])]
    mixture = FamilyMixture(family, 3, random_state=0).fit(open_rows(table, chunk_size=1024))
    assert mixture.column_limits_[2] == 7.0
    assert np.isfinite(mixture.score_samples(table[-5:])).all()
    table[4500, 0] = -1.0
    with pytest.raises(ValueError, match=r"column 0 must hold counts.*the smallest values"):
        FamilyMixture(family, 3, random_state=0).fit(open_rows(table, chunk_size=1024))


def test_names_and_columns(files):
    mixture = GaussianMixture(K, random_state=0).fit(files / "parts", columns=["c", "a"])
    assert mixture.feature_names_in_.tolist() == ["c", "a"]
    # The same columns are found in the wider table.
    scores = mixture.score_samples(files / "parts")
    bare = GaussianMixture(K, random_state=0).fit(open_rows(X, columns=[2, 0]))
    np.testing.assert_array_equal(scores, bare.score_samples(X[:, [2, 0]]))
    with pytest.raises(ValueError, match="has 3 features"):
        bare.score_samples(files / "rows.npy")
    with pytest.raises(ValueError, match="columns is for files"):
        GaussianMixture(K).fit(X, columns=[0, 1])


def assert_alike(ours, theirs):
    # Few rows are evaluated in NumPy, many by kernels: the last bits may differ.
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_queries_are_those_of_arrays(expected, kinds):
    for kind in ("npy", "memmap", "parquet", "function", "slices"):
        rows = kinds[kind]
        assert_alike(expected.score_samples(rows), expected.score_samples(X))
    rows = open_rows(X, chunk_size=2333)
    assert np.mean(expected.predict(rows) != expected.predict(X)) < 1e-3
    actual = expected.predict(rows, n_candidates=64), expected.predict(X, n_candidates=64)
    assert np.mean(actual[0] != actual[1]) < 1e-3
    for ours, theirs in zip(
        expected.top_components(rows, 2), expected.top_components(X, 2), strict=True
    ):
        assert_alike(ours, theirs)
    assert_alike(expected.predict_proba(rows), expected.predict_proba(X))
    assert expected.score(rows) == pytest.approx(expected.score(X), rel=1e-12)


def test_partial_fit_takes_chunks_as_batches():
    by_hand = GaussianMixture(K, random_state=0)
    for start in range(0, N, 3000):
        by_hand.partial_fit(X[start : start + 3000])
    by_chunks = GaussianMixture(K, random_state=0)
    by_chunks.partial_fit(open_rows(X, chunk_size=3000))
    assert by_chunks.means_.tobytes() == by_hand.means_.tobytes()
    by_hand.partial_fit(X[:2000])
    by_chunks.partial_fit(open_rows(X[:2000]))
    assert by_chunks.means_.tobytes() == by_hand.means_.tobytes()
    assert by_chunks.n_rows_seen_ == N + 2000


def test_bad_rows_are_named(files, tmp_path):
    bad = X.copy()
    bad[5234, 1] = np.inf
    np.save(tmp_path / "bad.npy", bad)
    with pytest.raises(ValueError, match=r"finite.*inf.*bad\.npy, row 5235, column 1"):
        fit(tmp_path / "bad.npy")
    mixture = fit(files / "rows.npy", max_steps=2, tol=1.0)
    with pytest.raises(ValueError, match=r"inf in .*bad\.npy, row 5235, column 1"):
        mixture.score_samples(tmp_path / "bad.npy")
    with pytest.raises(ValueError, match=r"inf in .*bad\.npy, row 5235, column 1"):
        mixture.partial_fit(tmp_path / "bad.npy")
    # By the number that it has in the file.
    with pytest.raises(ValueError, match=r"row 5235, column 1\."):
        fit(open_rows(tmp_path / "bad.npy", columns=[2, 1]))


def test_a_generator_is_refused_with_a_remedy():
    with pytest.raises(TypeError, match="used up after one pass"):
        fit(batches())


def test_progress_counts_rows(capsys):
    fit(open_rows(X, chunk_size=1024), verbose=1)
    shown = capsys.readouterr().err
    assert "pass 1:" in shown
    assert "9.00k/9.00k" in shown
    assert "pass 2:" in shown


def test_columns_are_found_by_name_whatever_brings_them(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X[:3000, :2], columns=["a", "b"])
    mixture = GaussianMixture(3, random_state=0).fit(frame)
    expected = mixture.score_samples(frame)
    turned = frame[["b", "a"]]
    np.savez(tmp_path / "turned.npz", X=turned.to_numpy(), columns=["b", "a"])
    for rows in (lambda: iter([turned[:1000], turned[1000:]]), tmp_path / "turned.npz"):
        assert_alike(mixture.score_samples(rows), expected)
    with pytest.raises(ValueError, match="'b'"):
        mixture.score_samples(lambda: iter([frame.rename(columns={"b": "c"})]))


def test_rows_of_no_weight_are_no_rows():
    weights = np.zeros(N)
    weights[::20] = 1.0
    mixture = GaussianMixture(3, random_state=0)
    source = open_rows(X, chunk_size=1024)
    subset = mixture.fit(source, sample_weight=weights).score(HELD_OUT)
    assert subset > GaussianMixture(3, random_state=0).fit(X[::20]).score(HELD_OUT) - 0.05
    few = np.zeros(N)
    few[:2] = 1.0
    with pytest.raises(ValueError, match="n_components must be at most"):
        mixture.fit(source, sample_weight=few)
    # A stream passes over chunks without weight.
    heavy = np.zeros(N)
    heavy[1024:4000] = 1.0
    assert GaussianMixture(3, random_state=0).partial_fit(source, sample_weight=heavy).n_steps_ > 0
