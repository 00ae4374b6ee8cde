"""Queries of Dask collections: lazy, and equal to those of arrays."""

import pickle

import numpy as np
import pytest

from pickmix import GaussianMixture
from pickmix.estimators import row_sources
from pickmix.estimators.row_sources import lazily

dask = pytest.importorskip("dask")
cloudpickle = pytest.importorskip("cloudpickle")
da = pytest.importorskip("dask.array")

ROWS = np.random.default_rng(0).normal(size=(50, 2))


@pytest.fixture(scope="module")
def mixture():
    return GaussianMixture(3, random_state=0, max_iter=5, tol=0.0).fit(ROWS)


@pytest.fixture(scope="module")
def client(cluster):
    distributed = pytest.importorskip("distributed")
    with distributed.Client(cluster, timeout=20, set_as_default=False) as client:
        yield client


CALLS = []


class Counting:
    """An estimator that tells what it was asked, and with how many threads."""

    def __init__(self):
        self.n_jobs = None
        self._chain = np.zeros(1000)

    def score_samples(self, X):
        CALLS.append((len(X), self.n_jobs, type(X).__name__, hasattr(self, "_chain")))
        return np.asarray(X).sum(axis=1)

    def top_components(self, X, m):
        CALLS.append(len(X))
        order = np.argsort(np.asarray(X), axis=1)[:, :m]
        return order, np.take_along_axis(np.asarray(X), order, axis=1)


@pytest.fixture(autouse=True)
def _forget():
    CALLS.clear()


def rows(chunks=(20, -1)):
    return da.from_array(ROWS, chunks=chunks)


def n_copies(collection, estimator):
    """Tasks of a graph that hold an estimator, rather than a key of it."""
    size = len(pickle.dumps(row_sources._for_queries(estimator)))
    graph = dict(dask.optimize(collection)[0].__dask_graph__())
    return sum(len(cloudpickle.dumps(task)) > size for task in graph.values())


def test_array(mixture):
    for chunks in ((20, -1), (20, 1)):
        scores = lazily(mixture.score_samples, rows(chunks), np.float64)
        assert (scores.shape, scores.chunks, scores.dtype) == ((50,), ((20, 20, 10),), np.float64)
        assert n_copies(scores, mixture) == 1
        np.testing.assert_allclose(scores.compute(), mixture.score_samples(ROWS), rtol=1e-12)
    labels = lazily(mixture.predict, rows(), np.int64)
    assert labels.dtype == np.int64
    np.testing.assert_array_equal(labels.compute(), mixture.predict(ROWS))
    shares = lazily(mixture.predict_proba, rows(), np.float64, 3)
    assert (shares.shape, shares.chunks) == ((50, 3), ((20, 20, 10), (3,)))
    np.testing.assert_allclose(shares.compute(), mixture.predict_proba(ROWS), rtol=1e-12)


def test_pair(mixture):
    pair = lazily(mixture.top_components, rows(), (np.int32, np.float64), 2, m=2)
    assert [part.shape for part in pair] == [(50, 2), (50, 2)]
    assert [part.dtype for part in pair] == [np.int32, np.float64]
    for part, expected in zip(dask.compute(*pair), mixture.top_components(ROWS, 2), strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-12)


def test_rows_are_queried_once_for_a_pair():
    counting = Counting()
    pair = lazily(counting.top_components, rows(), (np.int64, np.float64), 2, m=2)
    assert CALLS == []
    dask.compute(*pair, scheduler="synchronous")
    assert sorted(CALLS) == [10, 20, 20]


def test_dataframe(mixture):
    dd = pytest.importorskip("dask.dataframe")
    import pandas as pd

    frame = pd.DataFrame(ROWS, columns=["a", "b"])
    named = GaussianMixture(3, random_state=0, max_iter=5, tol=0.0).fit(frame)
    collection = dd.from_pandas(frame, npartitions=3)
    scores = lazily(named.score_samples, collection, np.float64)
    assert isinstance(scores, da.Array)
    assert np.isnan(scores.shape[0])
    assert n_copies(scores, named) == 1
    np.testing.assert_allclose(scores.compute(), mixture.score_samples(ROWS), rtol=1e-12)
    pair = lazily(named.top_components, collection, (np.int32, np.float64), 2, m=2)
    assert pair[0].chunks[1] == (2,)
    for part, expected in zip(dask.compute(*pair), mixture.top_components(ROWS, 2), strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-12)
    # Blocks of unknown length, and rows as arrays.
    unknown = lazily(mixture.predict, collection.to_dask_array(), np.int64)
    np.testing.assert_array_equal(unknown.compute(), mixture.predict(ROWS))
    # Workers see frames, with their names.
    counting = Counting()
    lazily(counting.score_samples, collection, np.float64).compute(scheduler="synchronous")
    assert {call[2] for call in CALLS} == {"DataFrame"}


def test_one_thread_and_nothing_but_the_model():
    counting = Counting()
    lazily(counting.score_samples, rows(), np.float64).compute(scheduler="synchronous")
    assert sorted(CALLS) == [(n, 1, "ndarray", False) for n in (10, 20, 20)]
    assert counting.n_jobs is None
    assert counting._chain.size


def test_partitions_without_rows(mixture):
    collection = da.concatenate([rows()[:0], rows()])
    scores = lazily(mixture.score_samples, collection, np.float64)
    np.testing.assert_allclose(scores.compute(), mixture.score_samples(ROWS), rtol=1e-12)


def test_errors_name_the_partition(mixture):
    dd = pytest.importorskip("dask.dataframe")
    import pandas as pd

    bad = ROWS.copy()
    bad[45] = np.inf
    with pytest.raises(ValueError, match=r"partition 2: .*infinity"):
        lazily(mixture.score_samples, da.from_array(bad, chunks=(20, -1)), np.float64).compute()
    frame = pd.DataFrame(bad, columns=["a", "b"])
    named = GaussianMixture(1, max_iter=1, tol=0.0).fit(frame[:40])
    with pytest.raises(ValueError, match=r"partition 4: .*infinity"):
        lazily(named.score_samples, dd.from_pandas(frame, npartitions=5), np.float64).compute()
    with pytest.raises(ValueError, match=r"got \(3,\)"):
        lazily(mixture.score_samples, da.zeros(3), np.float64)


def test_on_a_cluster(mixture, client):
    expected = mixture.score_samples(ROWS)
    with client.as_current():
        future = client.compute(lazily(mixture.score_samples, rows(), np.float64))
        np.testing.assert_allclose(future.result(timeout=60), expected, rtol=1e-12)


def test_a_large_estimator_is_sent_once(mixture, client, monkeypatch):
    monkeypatch.setattr(row_sources, "_SMALL", 1000)
    expected = mixture.score_samples(ROWS)
    with client.as_current():
        scores = lazily(mixture.score_samples, rows(), np.float64)
        assert n_copies(scores, mixture) == 0
        held = [str(k) for keys in client.has_what().values() for k in keys]
        assert sum(k.startswith("GaussianMixture") for k in held) == 1
        np.testing.assert_allclose(client.compute(scores).result(timeout=60), expected, rtol=1e-12)
        np.testing.assert_allclose(client.compute(scores).result(timeout=60), expected, rtol=1e-12)
