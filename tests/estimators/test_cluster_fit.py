"""Fits of Dask collections: the bits of a local fit, whatever becomes of workers."""

import os
import signal
import threading

import numpy as np
import pytest
from killing import Killed
from small_tables import small_samples

from pickmix import FlowMixture, GaussianMixture, open_rows

distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

K = 8
N, CHUNK = 6000, 500


def draw(n, seed):
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(99).normal(size=(K, 2)) * 6.0
    return means[rng.integers(0, K, n)] + rng.normal(size=(n, 2))


X = draw(N, 0)


@pytest.fixture(scope="module")
def client(cluster):
    with distributed.Client(cluster, timeout=60) as client:
        client.wait_for_workers(2, timeout=120)
        yield client


@pytest.fixture(scope="module", autouse=True)
def _samples_of_1000_rows():
    with small_samples(1000 * 16):
        yield


def fit(rows, **options):
    return GaussianMixture(K, random_state=0).fit(rows, **options)


def bits(mixture):
    return b"".join(a.tobytes() for a in (mixture.weights_, mixture.means_, mixture.covariances_))


@pytest.fixture(scope="module")
def expected():
    return fit(open_rows(X, chunk_size=CHUNK))


def test_the_bits_of_a_local_fit(client, expected):
    assert expected.trace_.shape[0] > 3
    mixture = fit(da.from_array(X, chunks=(CHUNK, 2)))
    assert bits(mixture) == bits(expected)
    # Steps take several partitions here.
    assert mixture.n_steps_ < expected.n_steps_
    np.testing.assert_array_equal(
        mixture.trace_["log_likelihood"], expected.trace_["log_likelihood"]
    )


def test_a_worker_that_is_killed_changes_nothing(client, expected):
    (address, pid), *_ = client.run(os.getpid).items()
    seen = []

    def kill(info):
        seen.append(info.step)
        # In the passes over all rows, which begin after six evaluations.
        if len(seen) == 7:
            threading.Timer(0.02, os.kill, (pid, signal.SIGKILL)).start()

    collection = da.from_array(X, chunks=(CHUNK, 2))
    mixture = GaussianMixture(K, random_state=0, callbacks=kill).fit(collection)
    assert len(seen) > 7
    assert bits(mixture) == bits(expected)
    assert address not in client.nthreads()


@pytest.mark.slow
def test_dataframes_of_parquet_files(client, tmp_path, expected):
    dd = pytest.importorskip("dask.dataframe")
    pandas = pytest.importorskip("pandas")
    for number in range(N // CHUNK):
        part = X[number * CHUNK : (number + 1) * CHUNK]
        frame = pandas.DataFrame({"a": part[:, 0], "b": part[:, 1], "name": "text"})
        frame.to_parquet(tmp_path / f"part-{number:02d}.parquet")
    table = dd.read_parquet(tmp_path)
    mixture = fit(table, columns=["a", "b"])
    assert bits(mixture) == bits(expected)
    assert mixture.feature_names_in_.tolist() == ["a", "b"]
    # The columns of the fit are found by name.
    lazy = mixture.score_samples(table)
    assert isinstance(lazy, da.Array)
    np.testing.assert_allclose(lazy.compute(), expected.score_samples(X), rtol=1e-9)
    assert mixture.bic(table) == pytest.approx(expected.bic(X))


def test_weights(client):
    weights = np.where(X[:, 0] > 0.0, 3.0, 1.0)
    local = fit(open_rows(X, chunk_size=CHUNK), sample_weight=weights)
    collection = da.from_array(X, chunks=(CHUNK, 2))
    assert bits(fit(collection, sample_weight=weights)) == bits(local)
    for bad, message in ((-weights, ">= 0"), (0.0 * weights, "only zeros"), (weights[1:], "shape")):
        with pytest.raises(ValueError, match=message):
            fit(collection, sample_weight=bad)
    with pytest.raises(ValueError, match="only zeros"):
        fit(collection, sample_weight=da.zeros(N, chunks=CHUNK))


def test_checkpoints(client, tmp_path, expected, capsys):
    collection = da.from_array(X, chunks=(CHUNK, 2))
    settings = {"random_state": 0, "checkpoint": tmp_path, "checkpoint_every": 0.0}

    def kill(info):
        if info.step > 5:
            raise Killed

    with pytest.raises(Killed):
        GaussianMixture(K, callbacks=kill, **settings).fit(collection)
    mixture = GaussianMixture(K, **settings).fit(collection)
    assert "resuming" in capsys.readouterr().err
    assert bits(mixture) == bits(expected)
    with pytest.raises(ValueError, match="another fit"):
        GaussianMixture(K, **settings).fit(da.from_array(X + 1.0, chunks=(CHUNK, 2)))


def test_bad_partitions_are_named(client):
    bad = X.copy()
    bad[5003, 1] = np.inf
    with pytest.raises(ValueError, match=r"finite numbers, got inf in partition 10.*column 1"):
        fit(da.from_array(bad, chunks=(CHUNK, 2)))


def test_errors_of_what_needs_rows_in_memory(client):
    collection = da.from_array(X, chunks=(CHUNK, 2))
    with pytest.raises(TypeError, match="one batch at a time"):
        GaussianMixture(K).partial_fit(collection)
    with pytest.raises(TypeError, match="Dask"):
        FlowMixture(2).fit(collection)
    em = GaussianMixture(K, algorithm="em", max_steps=2, random_state=0)
    assert bits(em.fit(collection)) == bits(
        GaussianMixture(K, algorithm="em", max_steps=2, random_state=0).fit(X)
    )
