"""Chunks of a table: the order of sums, what a look at them finds, and sweeps chunk by chunk."""

import pickle

import numpy as np
import pytest
from known_states import state_of

from pickmix.closed_form.chunk_tasks import (
    RANGE,
    Inspection,
    Sweeping,
    add_facts,
    add_statistics,
    inspect_chunk,
    joined,
    sweep_chunk,
)
from pickmix.closed_form.chunks import LocalChunks, Pairwise, add_in_pairs, cut
from pickmix.closed_form.local_fleet import LocalFleet
from pickmix.data.rows import ArrayRows, Batches
from pickmix.inputs.open_rows import open_rows
from pickmix.selection.partitions import draw_partition
from pickmix.selection.randomness import StepRandomness, Stream
from pickmix.sweep.reference import Reference


def concatenated(one, other):
    return f"({one}{other})"


def neighbours_first(values):
    while len(values) > 1:
        pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
        values = [concatenated(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return values[0]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 8, 11, 16, 23, 64, 100])
@pytest.mark.parametrize("size", [1, 2, 4, 32])
def test_runs_of_powers_of_two_add_up_in_the_same_order(n, size):
    values = [chr(ord("A") + i) for i in range(n)]
    sums = Pairwise(concatenated)
    for start in range(0, n, size):
        some = values[start : start + size]
        sums.put(add_in_pairs(some, concatenated), len(some))
    assert sums.total() == add_in_pairs(values, concatenated) == neighbours_first(values)
    assert len(sums.kept) <= n.bit_length()


def test_nothing_adds_up_to_none():
    assert add_in_pairs([], concatenated) is None
    assert Pairwise(concatenated).total() is None


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    return (rng.normal(size=(5003, 3)) * [1.0, 1e-3, 50.0] + [1e6, 0.0, -3.0]).astype(np.float32)


def looked_at(rows, size, n_sampled, weights=None, seed=0):
    chunks = LocalChunks(open_rows(rows), size, Reference(), weights)
    numbers = range(chunks.offsets.shape[0] - 1)
    shared = Inspection(seed, rows.shape[0], n_sampled)
    return chunks.run(inspect_chunk, numbers, shared, [None] * len(numbers), add_facts)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [100, 1024, 5003, 10**6])
def test_facts_are_those_of_all_rows(rows, size, weighted):
    weights = np.random.default_rng(1).exponential(size=5003) if weighted else None
    _, (facts,) = looked_at(rows, size, 10, weights)
    wide = rows.astype(np.float64)
    mean = np.average(wide, axis=0, weights=weights)
    np.testing.assert_allclose(facts.mean, mean, rtol=1e-12)
    assert facts.weight == pytest.approx(5003 if weights is None else weights.sum())
    np.testing.assert_array_equal(facts.low, wide.min(axis=0))
    np.testing.assert_array_equal(facts.high, wide.max(axis=0))


def test_a_sample_is_spread_over_all_chunks_without_repetition():
    numbers = np.arange(10_000.0)[:, None]
    results, _ = looked_at(numbers, 777, 2500)
    sample = np.concatenate([result.rows for result in results])[:, 0]
    assert np.unique(sample).shape[0] == 2500
    # Each chunk gives its share, to one row.
    for result in results:
        assert abs(result.rows.shape[0] - 0.25 * 777) < 60 or result is results[-1]
    shares = np.histogram(sample, bins=10, range=(0, 10_000))[0]
    assert shares.min() > 190
    again, _ = looked_at(numbers, 777, 2500)
    np.testing.assert_array_equal(np.concatenate([r.rows for r in again])[:, 0], sample)
    other, _ = looked_at(numbers, 777, 2500, seed=1)
    assert not np.array_equal(np.concatenate([r.rows for r in other])[:, 0], sample)


def test_a_sample_of_all_rows_is_all_rows(rows):
    results, _ = looked_at(rows, 1000, 5003)
    np.testing.assert_array_equal(np.concatenate([r.rows for r in results]), rows)


@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_the_first_bad_value_is_found(rows, bad):
    rows[[2345, 4000], [1, 0]] = bad
    results, _ = looked_at(rows, 1000, 10)
    found = [result.bad for result in results]
    assert found[2][:2] == (2345, 1)
    assert found[4][:2] == (4000, 0)
    assert found[0] is None


@pytest.fixture(params=["reference", "compiled"])
def mixture(request):
    rng = np.random.default_rng(3)
    K = 70
    means = rng.normal(size=(K, 3)) * 4.0
    covariances = np.repeat(np.eye(3)[None], K, axis=0)
    weights = np.full(K, 1.0 / K)
    X = means[rng.integers(0, K, 6000)] + rng.normal(size=(6000, 3))
    state = state_of("full", weights, means, covariances, backend=request.param)
    return state, X


def sweeping(state, routes=(), centre=None):
    random = StepRandomness(0, 1)
    partition = draw_partition(state.positions(), 16, 0.05, random, state.backend.operations)
    return Sweeping(
        state.family,
        state.model,
        partition,
        list(routes),
        2,
        random.key(Stream.POSTERIOR),
        1.0,
        np.zeros(3) if centre is None else centre,
        1.0,
        state.backend.threads is not None,
    )


@pytest.mark.parametrize("size", [512, 1000, 6000])
def test_chunks_draw_what_all_rows_together_draw(mixture, size):
    state, X = mixture
    chain = np.random.default_rng(4).integers(0, 70, 6000).astype(np.int32)
    shared = sweeping(state)
    chunks = LocalChunks(open_rows(X), size, state.backend)
    states = [chain[a:b] for a, b in zip(chunks.offsets[:-1], chunks.offsets[1:], strict=True)]
    results, parts = chunks.run(sweep_chunk, range(len(states)), shared, states, add_statistics)
    source = ArrayRows(X, center=np.zeros(3), compiled=shared.compiled)
    fleet = LocalFleet(state.backend, source, chain.copy(), Batches(6000, 6000, 0))
    whole = fleet.sweep(state, shared.partition, 1, StepRandomness(0, 1))
    np.testing.assert_array_equal(np.concatenate([r.states for r in results]), fleet.chain)
    assert sum(r.evaluations for r in results) == whole.evaluations
    total = joined(parts)
    expected = whole.statistics.at(np.argsort(whole.statistics.members))
    met = expected.mass > 0.0
    np.testing.assert_array_equal(total.members, expected.members[met])
    np.testing.assert_allclose(total.mass, expected.mass[met], rtol=1e-5)
    np.testing.assert_allclose(total.mean, expected.mean[met], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(total.scatter, expected.scatter[met], rtol=1e-3, atol=1e-2)
    assert total.total_weight == 6000.0


def test_the_task_travels(mixture):
    state, X = mixture
    shared = sweeping(state)
    again = pickle.loads(pickle.dumps(shared))
    chunks = LocalChunks(open_rows(X), 2000, state.backend)
    chain = np.zeros(2000, dtype=np.int32)
    ours = chunks.run(sweep_chunk, [1], shared, [chain], add_statistics)
    theirs = chunks.run(sweep_chunk, [1], again, [chain], add_statistics)
    np.testing.assert_array_equal(ours[0][0].states, theirs[0][0].states)
    np.testing.assert_array_equal(ours[1][0].scatter, theirs[1][0].scatter)


def test_ranges_of_components_change_no_bit(mixture, monkeypatch):
    state, X = mixture
    shared = sweeping(state)
    chain = np.random.default_rng(4).integers(0, 70, 6000).astype(np.int32)
    totals = []
    for size, n_parts in ((RANGE, 1), (16, 5), (7, 8)):
        monkeypatch.setattr("pickmix.closed_form.chunk_tasks.RANGE", size)
        chunks = LocalChunks(open_rows(X), 50, state.backend)
        states = [chain[a:b] for a, b in zip(chunks.offsets[:-1], chunks.offsets[1:], strict=True)]
        _, parts = chunks.run(sweep_chunk, range(len(states)), shared, states, add_statistics)
        assert len(parts) == n_parts
        totals.append(joined(parts))
    for other in totals[1:]:
        for name, value in vars(totals[0]).items():
            assert np.asarray(value).tobytes() == np.asarray(getattr(other, name)).tobytes()


def test_reading_goes_on_where_the_last_run_ended(rows, monkeypatch):
    source = open_rows(rows)
    opened = []
    from pickmix.closed_form import chunks as module

    real = module.read_ahead
    monkeypatch.setattr(
        module, "read_ahead", lambda s, ranges: opened.append(ranges[0]) or real(s, ranges)
    )
    chunks = LocalChunks(source, 1000, Reference())

    def look(shared, backend, chunk, states):
        return (chunk.first, chunk.rows[0, 0]), []

    seen = []
    for chunk in (0, 1, 2, 4, 5, 0):
        results, _ = chunks.run(look, [chunk], None, [None], None)
        seen += results
    assert seen == [(c * 1000, rows[c * 1000, 0]) for c in (0, 1, 2, 4, 5, 0)]
    assert opened == [(0, 1000), (4000, 5000), (0, 1000)]
    chunks.close()


def test_cut():
    assert cut(10, 5).tolist() == [0, 5, 10]
    assert cut(11, 5).tolist() == [0, 5, 10, 11]
    assert cut(3, 5).tolist() == [0, 3]
