"""Queries of Dask collections: computed later, and equal to those of arrays."""

import numpy as np
import pandas as pd
import pytest

from pickmix import GaussianMixture
from pickmix.estimators import row_sources

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
dd = pytest.importorskip("dask.dataframe")

ROWS = np.random.default_rng(0).normal(size=(50, 2))
FRAME = pd.DataFrame(ROWS, columns=["a", "b"])


def fit(X):
    return GaussianMixture(3, random_state=0, max_iter=5, tol=0.0).fit(X)


@pytest.fixture(scope="module")
def mixture():
    return fit(ROWS)


def rows(chunks=(20, -1)):
    return da.from_array(ROWS, chunks=chunks)


@pytest.mark.parametrize("chunks", [(20, -1), (20, 1)])
def test_arrays(mixture, chunks):
    scores = mixture.score_samples(rows(chunks))
    assert (scores.shape, scores.chunks, scores.dtype) == ((50,), ((20, 20, 10),), np.float64)
    np.testing.assert_allclose(scores.compute(), mixture.score_samples(ROWS), rtol=1e-12)
    assert mixture.score(rows(chunks)) == pytest.approx(mixture.score(ROWS), rel=1e-12)
    bounds = mixture.score_samples(rows(chunks), n_candidates=32)
    np.testing.assert_allclose(bounds.compute(), scores.compute(), rtol=1e-4)
    labels = mixture.predict(rows(chunks))
    assert np.issubdtype(labels.dtype, np.integer)
    np.testing.assert_array_equal(labels.compute(), mixture.predict(ROWS))
    shares = mixture.predict_proba(rows(chunks))
    assert (shares.shape, shares.chunks) == ((50, 3), ((20, 20, 10), (3,)))
    np.testing.assert_allclose(shares.compute(), mixture.predict_proba(ROWS), rtol=1e-12)


def test_pairs_read_every_row_once(mixture):
    read = []

    def keep(block):
        read.append(len(block))
        return block

    collection = rows().map_blocks(keep, dtype=np.float64, meta=ROWS[:0])
    pair = mixture.top_components(collection, 2)
    assert read == []
    assert [part.shape for part in pair] == [(50, 2), (50, 2)]
    answers = dask.compute(*pair, scheduler="synchronous")
    assert sorted(read) == [10, 20, 20]
    for part, expected in zip(answers, mixture.top_components(ROWS, 2), strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-12)


def test_dataframes(mixture):
    named = fit(FRAME)
    collection = dd.from_pandas(FRAME, npartitions=3)
    scores = named.score_samples(collection)
    assert isinstance(scores, da.Array)
    assert np.isnan(scores.shape[0])
    np.testing.assert_allclose(scores.compute(), mixture.score_samples(ROWS), rtol=1e-12)
    pair = named.top_components(collection, 2)
    assert pair[0].chunks[1] == (2,)
    for part, expected in zip(dask.compute(*pair), mixture.top_components(ROWS, 2), strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-12)
    # Blocks of unknown length, and rows as arrays.
    unknown = mixture.predict(collection.to_dask_array())
    np.testing.assert_array_equal(unknown.compute(), mixture.predict(ROWS))


def test_partitions_without_rows(mixture):
    scores = mixture.score_samples(da.concatenate([rows()[:0], rows()]))
    np.testing.assert_allclose(scores.compute(), mixture.score_samples(ROWS), rtol=1e-12)


def test_errors_name_the_partition(mixture):
    bad = ROWS.copy()
    bad[45] = np.inf
    with pytest.raises(ValueError, match=r"partition 2: .*infinity"):
        mixture.score_samples(da.from_array(bad, chunks=(20, -1))).compute()
    frame = pd.DataFrame(bad, columns=["a", "b"])
    with pytest.raises(ValueError, match=r"partition 4: .*infinity"):
        fit(FRAME).score_samples(dd.from_pandas(frame, npartitions=5)).compute()
    with pytest.raises(ValueError, match=r"got \(3,\)"):
        mixture.score_samples(da.zeros(3))


@pytest.mark.slow
def test_a_large_estimator_is_sent_to_workers_once(cluster, mixture, monkeypatch):
    """Graphs that hold more than 10 MB make Dask warn."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(row_sources, "_SMALL", 100)
    with distributed.Client(cluster, timeout=60) as client:
        scores = mixture.score_samples(rows())
        future = client.compute(scores)
        np.testing.assert_allclose(future.result(timeout=120), mixture.score_samples(ROWS))
        held = {str(key) for keys in client.has_what().values() for key in keys}
        assert sum(key.startswith("pickmix-GaussianMixture") for key in held) == 1
