"""The sweep: compiled like the reference, for any threads, and true to the posterior."""

import numpy as np
import pytest
from family_cases import (
    BACKENDS,
    K,
    Source,
    both_backends,
    draw,
    every_family,
    every_plain_family,
    known,
)
from scipy import stats
from scipy.special import softmax

from pickmix.families.gaussian import (
    DiagonalGaussian,
    FullGaussian,
    SphericalGaussian,
    TiedGaussian,
)
from pickmix.kernels import numba_kernels, numpy_kernels
from pickmix.selection.partitions import Partition
from pickmix.selection.randomness import StepRandomness, Stream
from pickmix.threads import use_threads

PARTITION = Partition.of_blocks(np.random.default_rng(8).permutation(K), 3)


def _key(step):
    return StepRandomness(seed=5, step=step).key(Stream.POSTERIOR)


def _sweep(engine, layout, model, rows, components, **options):
    weights = np.random.default_rng(4).uniform(0.5, 2.0, rows.shape[0])
    numbers = np.arange(rows.shape[0])
    partition = options.pop("partition", PARTITION)
    source = Source(rows, weights)
    return engine.sweep(layout, model, source, numbers, components, partition, _key(1), **options)


def _assert_alike(found, expected, rtol=1e-4):
    """Statistics equal to float32: sums relative to the largest of their kind."""
    found, expected = (each.at(np.argsort(each.members)) for each in (found, expected))
    np.testing.assert_array_equal(found.members, expected.members)
    assert found.total_weight == pytest.approx(expected.total_weight)
    largest = expected.mass.max()
    deviation = np.sqrt(np.maximum(expected.scatter.max(axis=0, initial=0.0), 0.0) / largest)
    width = float(deviation.max(initial=1.0))
    np.testing.assert_allclose(found.mass, expected.mass, atol=rtol * largest)
    np.testing.assert_allclose(found.squares, expected.squares, atol=rtol * largest)
    seen = expected.mass > 1e-2 * largest
    assert seen.any()
    np.testing.assert_allclose(found.mean[seen], expected.mean[seen], atol=10 * rtol * width)
    if expected.scatter.size:
        atol = rtol * np.abs(expected.scatter).max()
        np.testing.assert_allclose(found.scatter, expected.scatter, atol=atol)
    np.testing.assert_allclose(found.counts, expected.counts, atol=rtol * largest)


@every_family
@pytest.mark.parametrize("greedy", [False, True])
def test_small_blocks_together_are_each_by_itself(name, greedy):
    """Blocks of two, as splits have them, with few rows each and one without."""
    mixture = known(name)
    state = mixture.state(numpy_kernels)
    n = 40
    source = Source(mixture.rows[:n], np.random.default_rng(4).uniform(0.5, 2.0, n))
    pairs = np.random.default_rng(8).permutation(K - K % 2).astype(np.int32).reshape(-1, 2)
    start = np.random.default_rng(1).choice(pairs[1:].ravel(), n)

    def sweep(numbers, members):
        return numpy_kernels.sweep(
            state.layout,
            state.model,
            source,
            numbers,
            start[numbers],
            Partition.of_blocks(members.ravel(), 2),
            _key(1),
            greedy=greedy,
        )

    together = sweep(np.arange(n), pairs)
    assert together.evaluations == 2 * n
    for place, pair in enumerate(pairs):
        numbers = np.flatnonzero(np.isin(start, pair))
        alone = sweep(numbers, pair)
        np.testing.assert_array_equal(together.components[numbers], alone.components)
        np.testing.assert_allclose(together.log_sums[numbers], alone.log_sums, rtol=1e-9)
        both = together.statistics.at(np.arange(2 * place, 2 * place + 2))
        for found, expected in zip(both.sums, alone.statistics.sums, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)


@every_family
@pytest.mark.parametrize(("beta", "greedy"), [(1.0, False), (0.4, True)])
def test_compiled_sweep_is_the_reference(name, beta, greedy):
    mixture = known(name)
    state = mixture.state(numpy_kernels)
    start = np.random.default_rng(1).integers(0, K, mixture.rows.shape[0]).astype(np.int32)
    expected, found = (
        _sweep(
            engine,
            state.layout,
            state.model,
            mixture.rows,
            start.copy(),
            beta=beta,
            greedy=greedy,
        )
        for engine in (numpy_kernels, numba_kernels)
    )
    # Draws differ where a uniform meets a border of the weights to within float32.
    assert np.mean(found.components != expected.components) < 0.005
    assert found.evaluations == expected.evaluations
    np.testing.assert_allclose(found.log_sums, expected.log_sums, rtol=1e-4, atol=1e-4)
    _assert_alike(found.statistics, expected.statistics)
    inside = PARTITION.block_of_position()[np.argsort(PARTITION.members)]
    np.testing.assert_array_equal(inside[found.components], inside[start])


@every_plain_family
def test_parts_are_the_reference_to_rounding(name):
    mixture = known(name, 90)
    random = np.random.default_rng(2)
    chosen = random.integers(-1, K, (90, 3)).astype(np.int32)
    pair_weights = random.random((90, 3))
    weights = random.uniform(0.5, 2.0, 90)
    share = random.dirichlet(np.ones(K), 90).T
    layout = mixture.family.layout
    results = []
    for engine in (numpy_kernels, numba_kernels):
        state = mixture.state(engine)
        state.decay(0.3)
        sums = engine.sums_of_all(layout, mixture.rows, weights, share)
        pairs = engine.pair_statistics(
            layout, K, mixture.rows, weights, chosen, pair_weights, weights.sum()
        )
        gains = engine.blend(layout, state.moments, state.model, pairs, 0.01, True)
        results.append([*sums, *vars(pairs).values(), *gains, *state.moments, *state.model])
    for expected, found in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@every_family
@both_backends
def test_sweeps_keep_the_posterior(name, backend):
    """Chains of a few rows, all begun at one component, end as the exact posterior says."""
    n_rows, n_chains, n_sweeps = 3, 1000, 20
    mixture = known(name, 40, seed=11)
    engine = BACKENDS[backend]
    state = mixture.state(engine)
    posterior = softmax(mixture.log_joints(mixture.raw), axis=0)
    # Rows that are at home in several components.
    rows = np.argsort(posterior.max(axis=0))[:n_rows]
    posterior = posterior[:, rows]
    source = Source(np.repeat(mixture.rows[rows], n_chains, axis=0))
    numbers = np.arange(n_rows * n_chains)
    components = np.zeros(numbers.shape[0], dtype=np.int32)
    random = np.random.default_rng(0)
    for step in range(n_sweeps):
        partition = Partition.of_blocks(random.permutation(K), 3)
        components = engine.sweep(
            state.layout,
            state.model,
            source,
            numbers,
            components,
            partition,
            _key(step),
            wants_statistics=False,
        ).components
    for i in range(n_rows):
        seen = np.bincount(components[i * n_chains : (i + 1) * n_chains], minlength=K)
        expected = n_chains * posterior[:, i]
        rare = expected < 8.0
        seen = np.append(seen[~rare], seen[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
        statistic = np.sum(np.square(seen - expected) / np.maximum(expected, 1.0))
        assert stats.chi2.sf(statistic, seen.shape[0] - 1) > 1e-4


@every_family
@both_backends
def test_block_weights_average_to_responsibilities(name, backend):
    """Statistics over many partitions, of chains that follow the posterior, are those of EM."""
    mixture = known(name, 300, seed=12)
    engine = BACKENDS[backend]
    state = mixture.state(engine)
    posterior = softmax(mixture.log_joints(mixture.raw), axis=0)
    random = np.random.default_rng(1)
    masses = []
    for _ in range(30):
        cumulative = np.cumsum(posterior, axis=0)[:-1]
        components = (cumulative <= random.random(300)).sum(axis=0).astype(np.int32)
        partition = Partition.of_blocks(random.permutation(K), 3)
        swept = engine.sweep(
            state.layout,
            state.model,
            Source(mixture.rows),
            np.arange(300),
            components,
            partition,
            _key(0),
        )
        masses.append(swept.statistics.mass[np.argsort(swept.statistics.members)])
    error = np.mean(masses, axis=0) - posterior.sum(axis=1)
    # Weights within a block vary less than draws would.
    variance = (posterior * (1.0 - posterior)).sum(axis=1)
    assert (np.abs(error) < 4.0 * np.sqrt(variance / 30)).all()


@every_family
def test_threads_do_not_change_bits(name):
    mixture = known(name, 400)
    state = mixture.state(numpy_kernels)
    # Enough rows for several chunks, and for blocks in pieces.
    rows = np.tile(mixture.rows, (50, 1))
    start = np.zeros(rows.shape[0], dtype=np.int32)
    everyone, swept = Partition.of_blocks(np.arange(K), K), []
    for n_threads in (1, 2):
        with use_threads(n_threads):
            done = _sweep(numba_kernels, state.layout, state.model, rows, start, partition=everyone)
        swept.append(done)
    one, two = swept
    np.testing.assert_array_equal(one.components, two.components)
    np.testing.assert_array_equal(one.log_sums, two.log_sums)
    for array, other in zip(
        vars(one.statistics).values(), vars(two.statistics).values(), strict=True
    ):
        np.testing.assert_array_equal(array, other)
    # And the pieces of a block are merged to what one piece holds.
    expected = numpy_kernels.sweep(
        state.layout,
        state.model,
        Source(rows, np.random.default_rng(4).uniform(0.5, 2.0, rows.shape[0])),
        np.arange(rows.shape[0]),
        start,
        Partition.of_blocks(np.arange(K), K),
        _key(1),
    )
    _assert_alike(one.statistics, expected.statistics)


@pytest.mark.parametrize(
    "family", [FullGaussian, TiedGaussian, DiagonalGaussian, SphericalGaussian]
)
@pytest.mark.parametrize(("origin", "narrow"), [(1e8, 1.0), (0.0, 1e-3), (0.0, 1e-7)])
def test_far_and_narrow_components(family, origin, narrow):
    """Nothing cancels far from the origin, nor where components are narrow beside their block."""
    random = np.random.default_rng(7)
    means = origin + random.standard_normal((K, 3))
    unit = family(3, reg_covar=0.0)
    # Every other component is narrow; with one covariance for all, all are.
    widths = np.where(np.arange(K) % 2 == 0, narrow, 0.5)
    if family is TiedGaussian:
        widths[:] = narrow
    shape = np.eye(3) + 0.3
    matrices = np.square(widths)[:, None, None] * shape
    covariances = unit.unpack(unit.pack_matrices(matrices[:1] if unit.shared else matrices))
    parameters = {"means": means, "covariances": covariances}
    rows = np.concatenate([draw(unit, parameters, k, 60, random) for k in range(K)])
    components = np.repeat(np.arange(K), 60).astype(np.int32)
    moments = unit.moments_of(parameters, np.zeros(3))._replace(mass=np.full(K, 1.0 / K))
    prior = unit.make_prior(moments, "none", 420.0)
    model = unit.empty_model(K)
    failed = unit.maximise(moments, np.arange(K), prior, model, None)
    assert not failed.any()
    model.log_mass[:] = -np.log(K)
    expected, found = (
        _sweep(engine, unit.layout, model, rows, components)
        for engine in (numpy_kernels, numba_kernels)
    )
    assert np.mean(found.components != expected.components) < 0.01
    np.testing.assert_allclose(found.log_sums, expected.log_sums, atol=0.05, rtol=1e-4)
    one, other = (
        each.statistics.at(np.argsort(each.statistics.members)) for each in (found, expected)
    )
    np.testing.assert_allclose(one.mass, other.mass, rtol=5e-3)
    # Relative to each component's own width.
    own = np.sqrt(other.scatter.max(axis=1) / other.mass)[:, None]
    assert (np.abs(one.mean - other.mean) < 5e-3 * own + 1e-15 * abs(origin)).all()
    assert (np.abs(one.scatter - other.scatter) < 1e-2 * own**2 * other.mass[:, None]).all()
