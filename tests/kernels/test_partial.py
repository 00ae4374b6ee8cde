"""Rows seen in part: NumPy against scipy, and the compiled sweep against NumPy."""

import numpy as np
import pytest
from scipy import stats

from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows, PartialRows, fill, fill_from, find_patterns
from pickmix.families.gaussian import GAUSSIANS
from pickmix.families.layout import Moments
from pickmix.families.registry import make_family
from pickmix.kernels import numba_kernels, numpy_kernels
from pickmix.kernels.numpy_kernels.partial import condition
from pickmix.selection.partitions import Partition
from pickmix.selection.randomness import StepRandomness, Stream
from pickmix.threads import use_threads

N, D, K = 120, 4, 21
KEY = StepRandomness(0, 1).key(Stream.POSTERIOR)
NOISES = ["none", "variances", "covariances"]


def gaussian_case(name, seed=0):
    """A family and K of its components, with what scipy needs of them."""
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(K, D, D))
    full = roots @ roots.transpose(0, 2, 1) + 0.1 * np.eye(D)
    covariances = {
        "full": full,
        "tied": full[0],
        "diag": full[:, np.arange(D), np.arange(D)],
        "spherical": full[:, 0, 0],
    }[name]
    parameters = {"means": 2.0 * rng.normal(size=(K, D)), "covariances": covariances}
    return GAUSSIANS[name](D, 0.0), parameters


def dense_covariances(name, covariances):
    """As (K, D, D)."""
    if name == "full":
        return covariances
    if name == "tied":
        return np.broadcast_to(covariances, (K, D, D))
    if name == "diag":
        return covariances[:, :, None] * np.eye(D)
    return covariances[:, None, None] * np.eye(D)


def state_of(family, parameters, backend, seed=0):
    weights = np.random.default_rng(seed).dirichlet(np.ones(K))
    moments = family.moments_of(parameters, np.zeros(family.layout.n_columns))
    moments = moments._replace(mass=weights)
    prior = family.make_prior(moments, "none", N)
    return MixtureState(family, moments, backend, prior, 1e-300).require_sound()


def partial_source(noise, seed=1):
    """Rows with gaps (one without any value, one complete), and their noise matrices."""
    rng = np.random.default_rng(seed)
    rows = 2.0 * rng.normal(size=(N, D))
    rows[rng.random((N, D)) < 0.3] = np.nan
    rows[3], rows[4] = np.nan, 1.0
    matrices = np.zeros((N, D, D))
    packed = None
    if noise == "variances":
        packed = rng.uniform(0.1, 2.0, (N, D))
        matrices = packed[:, :, None] * np.eye(D)
    elif noise == "covariances":
        roots = rng.normal(size=(N, D, D))
        matrices = roots @ roots.transpose(0, 2, 1)
        i, j = np.tril_indices(D)
        packed = matrices[:, i, j]
    weights = rng.uniform(0.5, 2.0, N)
    return PartialRows(rows, weights, np.zeros(D), noise=packed), matrices


@pytest.fixture
def compiled():
    with use_threads(2):
        yield numba_kernels


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", list(GAUSSIANS))
def test_log_joints_are_those_of_the_marginals(name, noise):
    family, parameters = gaussian_case(name)
    state = state_of(family, parameters, numpy_kernels)
    source, matrices = partial_source(noise)
    rows = source.gather(np.arange(N))
    found = state.backend.log_joint_all(state.layout, state.model, rows)
    covariances = dense_covariances(name, parameters["covariances"])
    weights = state.weights
    for i in range(0, N, 3):
        seen = ~np.isnan(source.data[i])
        for k in range(0, K, 4):
            expected = np.log(weights[k])
            if seen.any():
                total = (covariances[k] + matrices[i])[np.ix_(seen, seen)]
                mean = parameters["means"][k, seen]
                normal = stats.multivariate_normal(mean, total)
                expected += normal.logpdf(source.data[i, seen])
            np.testing.assert_allclose(found[k, i], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", list(GAUSSIANS))
def test_rows_are_completed_as_the_joint_distribution_says(name, noise):
    """Mean and covariance of the complete row, from the joint of it and what was seen."""
    family, parameters = gaussian_case(name)
    state = state_of(family, parameters, numpy_kernels)
    source, matrices = partial_source(noise)
    rows = source.gather(np.arange(N))
    covariances = dense_covariances(name, parameters["covariances"])
    found = condition(state.layout, state.model, np.arange(K), rows)
    for i in range(0, N, 5):
        seen = np.flatnonzero(~np.isnan(source.data[i]))
        for k in range(0, K, 6):
            mean, covariance = parameters["means"][k], covariances[k]
            gain = np.zeros((D, seen.size))
            if seen.size:
                total = (covariance + matrices[i])[np.ix_(seen, seen)]
                gain = covariance[:, seen] @ np.linalg.inv(total)
            expected = gain @ (source.data[i, seen] - mean[seen])
            np.testing.assert_allclose(found.completed[k, i], expected, atol=1e-9)
            rest = covariance - gain @ covariance[seen]
            np.testing.assert_allclose(found.rest[k, found.kinds[i]], rest, atol=1e-9)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", list(GAUSSIANS))
def test_compiled_equals_reference(name, noise, compiled):
    family, parameters = gaussian_case(name)
    check_backends(state_of(family, parameters, numpy_kernels), noise, compiled)


@pytest.mark.parametrize(
    "description",
    [
        "poisson",
        "categorical",
        [("full", [0, 2]), ("poisson", [3]), ("categorical", [1])],
        [("categorical", [0]), ("diag", [3, 1]), ("poisson", [2])],
    ],
)
def test_compiled_equals_reference_for_counts_and_levels(description, compiled):
    rng = np.random.default_rng(2)
    complete = rng.integers(0, 4, (N, D)).astype(np.float64)
    complete[:4] = np.arange(4)[:, None]
    family = make_family(description, complete, 1e-6)
    order = slice(None) if family.column_order is None else family.column_order
    backend = numpy_kernels
    rows = ArrayRows(complete[:, order], center=np.zeros(D))
    components = rng.integers(0, K, N).astype(np.int32)
    statistics = backend.pair_statistics(
        family.layout, K, rows.data, np.ones(N), components[:, None], np.ones((N, 1)), N
    )
    moments = family.moments_of(
        family.parameters(_model_of(family, statistics), np.zeros(D)), np.zeros(D)
    )
    moments = moments._replace(mass=rng.dirichlet(np.ones(K)))
    prior = family.make_prior(moments, "none", N)
    state = MixtureState(family, moments, numpy_kernels, prior, 1e-300)
    with_gaps = complete[:, order].copy()
    with_gaps[rng.random((N, D)) < 0.3] = np.nan
    source = PartialRows(with_gaps, rng.uniform(0.5, 2.0, N), np.zeros(D))
    compare(state, source, compiled)
    # Of a complete row the complete sweep says the same, but for what no parameter changes.
    full = state.backend.log_joint_all(state.layout, state.model, rows.data)
    nothing_missing = condition(state.layout, state.model, np.arange(K), rows.data)
    np.testing.assert_allclose(nothing_missing.log_joint, full, rtol=1e-9, atol=1e-9)


def _model_of(family, statistics):
    """Components around those of some statistics, none of them without spread."""
    members = statistics.members
    rng = np.random.default_rng(3)
    layout = family.layout
    mean = rng.uniform(0.5, 3.0, (K, layout.n_coordinates))
    mean[members] = statistics.mean / 2.0 + 0.5
    i, j = layout.pairs()
    scatter = np.where(i == j, rng.uniform(0.5, 2.0, (K, layout.n_products)), 0.1)
    counts = rng.uniform(0.5, 1.5, (K, layout.n_levels))
    for first, last in zip(layout.offsets[:-1], layout.offsets[1:], strict=True):
        counts[:, first:last] /= counts[:, first:last].sum(axis=1, keepdims=True)
    moments = Moments(np.full(K, 1 / K), np.full(K, 1e-3), mean, scatter, counts)
    prior = family.make_prior(moments, "none", N)
    return MixtureState(family, moments, numpy_kernels, prior, 1e-300).model


def check_backends(state, noise, compiled):
    compare(state, partial_source(noise)[0], compiled)


def compare(state, source, compiled):
    """All that a backend does for rows seen in part, in NumPy and compiled."""
    reference = state.backend
    layout, model = state.layout, state.model
    rng = np.random.default_rng(4)
    numbers = np.arange(N)
    rows, weights = source.gather(numbers), source.weights_of(numbers)[0]
    both = reference, compiled
    close = {"rtol": 1e-9, "atol": 1e-9}
    one, two = (backend.log_joint_all(layout, model, rows) for backend in both)
    np.testing.assert_allclose(two, one, **close)
    candidates = rng.integers(-1, K, (N, 3)).astype(np.int32)
    for wanted in (candidates, None):
        for a, b in zip(
            *(x.condition_pairs(layout, model, rows, wanted) for x in both), strict=True
        ):
            np.testing.assert_allclose(b, a, **close)
    for a, b in zip(
        *(x.sums_of_all(layout, rows, weights, np.exp(one - one.max(0)), model) for x in both),
        strict=True,
    ):
        np.testing.assert_allclose(b, a, **close)
    pairs = [
        x.pair_statistics(layout, K, rows, weights, candidates, rng.random((N, 3)), 7.0, model)
        for x, rng in ((x, np.random.default_rng(5)) for x in both)
    ]
    same_statistics(*pairs, close)
    # Weights below 2e-9 are none in the compiled sweep.
    close = {"rtol": 1e-6, "atol": 1e-6}
    partition = Partition.of_blocks(rng.permutation(K).astype(np.int32), 16)
    chain = rng.integers(0, K, N).astype(np.int32)
    for beta in (1.0, 0.5):
        a, b = (x.sweep(layout, model, source, numbers, chain, partition, KEY, beta) for x in both)
        np.testing.assert_array_equal(a.components, b.components)
        np.testing.assert_allclose(b.log_sums, a.log_sums, **close)
        assert a.evaluations == b.evaluations
        same_statistics(a.statistics, b.statistics, close)
    a, b = (
        x.sweep(layout, model, source, numbers, chain, partition, KEY, greedy=True) for x in both
    )
    np.testing.assert_array_equal(a.components, b.components)


def same_statistics(one, two, close):
    a, b = np.argsort(one.members), np.argsort(two.members)
    np.testing.assert_array_equal(one.members[a], two.members[b])
    for name in ("mass", "squares", "mean", "scatter", "counts"):
        x, y = getattr(one, name)[a], getattr(two, name)[b]
        if name == "mean":
            # What hardly weighs anything may be anywhere.
            x, y = x * one.mass[a, None], y * two.mass[b, None]
        np.testing.assert_allclose(y, x, **close)
    assert one.total_weight == two.total_weight


def test_only_rows_that_were_given_are_gathered(compiled):
    """Rows of a chunk of a file are numbered from where the chunk begins."""
    family, parameters = gaussian_case("full")
    state = state_of(family, parameters, compiled)
    source = partial_source("none")[0]
    gather = source.gather
    source.gather = lambda rows: gather(rows) if (rows >= 5).all() else pytest.fail("row 0")
    partition = Partition.of_blocks(np.arange(K, dtype=np.int32), 7)
    numbers, chain = np.arange(5, N), np.zeros(N - 5, dtype=np.int32)
    compiled.sweep(state.layout, state.model, source, numbers, chain, partition, KEY)


class TestPartialRows:
    def test_centre_extent_and_spread_are_of_what_was_seen(self):
        rows = np.array([[1.0, np.nan], [3.0, 10.0], [np.nan, 30.0]])
        source = PartialRows(rows, np.array([1.0, 3.0, 1.0]))
        np.testing.assert_allclose(source.center, [2.5, 15.0])
        np.testing.assert_allclose(source.extent(), [1.5, 15.0])
        np.testing.assert_allclose(source.spread(), [0.75, 75.0])

    def test_far_from_the_origin(self):
        rows = 1e8 + np.array([[1.0, np.nan], [3.0, 10.0], [np.nan, 30.0]])
        source = PartialRows(rows, None)
        np.testing.assert_allclose(source.center - 1e8, [2.0, 20.0], atol=1e-7)

    def test_parts_keep_patterns_noise_and_weights(self):
        source, _ = partial_source("variances")
        some = np.array([5, 3, 80])
        part = source.part(some, np.array([1.0, 2.0, 3.0]))
        np.testing.assert_array_equal(part.gather(np.arange(3)), source.gather(some))
        np.testing.assert_array_equal(part.patterns_of(np.arange(3)), source.patterns_of(some))
        assert part.mean_weight == 2.0

    @pytest.mark.parametrize("n_columns", [3, 9, 70])
    def test_equal_patterns_have_equal_numbers(self, n_columns):
        rng = np.random.default_rng(0)
        rows = np.where(rng.random((200, n_columns)) < 0.1, np.nan, 1.0)
        patterns = find_patterns(rows)
        missing = np.isnan(rows)
        same = (missing[:, None, :] == missing[None]).all(axis=2)
        np.testing.assert_array_equal(patterns[:, None] == patterns[None], same)


def test_filling_takes_the_nearest_row_by_what_was_seen():
    rng = np.random.default_rng(0)
    donors = rng.normal(size=(50, 3)) * [1.0, 10.0, 100.0]
    rows = donors[rng.integers(50, size=30)] + 0.01 * rng.normal(size=(30, 3))
    rows[np.arange(30), rng.integers(3, size=30)] = np.nan
    filled = fill_from(rows, donors)
    scale = donors.std(axis=0)
    for row, got in zip(rows, filled, strict=True):
        distances = np.nansum(np.square((donors - row) / scale), axis=1)
        expected = np.where(np.isnan(row), donors[distances.argmin()], row)
        np.testing.assert_array_equal(got, expected)


def test_filling_without_a_complete_row():
    rows = np.array([[1.0, np.nan, 3.0], [np.nan, 2.0, 3.0], [1.0, 2.0, np.nan]] * 4)
    filled = fill(rows)
    assert np.isfinite(filled).all()
    np.testing.assert_array_equal(filled[~np.isnan(rows)], rows[~np.isnan(rows)])


@pytest.mark.parametrize("groups", ["full", [("full", 9), ("poisson", 2), ("full", 5)]], ids=str)
def test_rows_that_miss_little_are_evaluated_as_complete_ones(groups, compiled):
    """Wide rows with gaps of their own take another way, by the precision of what is missing."""
    n_columns, n_rows, n_components = 16, 80, 19
    rng = np.random.default_rng(11)
    rows = rng.poisson(4.0, (n_rows, n_columns)).astype(np.float64)
    rows[np.arange(n_rows), rng.integers(n_columns, size=n_rows)] = np.nan
    rows[rng.random(rows.shape) < 0.1] = np.nan
    rows[:3] = 2.0
    description, first = groups, 0
    if groups != "full":
        description = []
        for name, size in groups:
            description.append((name, list(range(first, first + size))))
            first += size
    family = make_family(description, np.where(np.isnan(rows), 1.0, rows), 1e-6)
    layout = family.layout
    i, j = layout.pairs()
    roots = rng.normal(size=(n_components, n_columns, n_columns))
    dense = roots @ roots.transpose(0, 2, 1) / n_columns + 0.2 * np.eye(n_columns)
    moments = Moments(
        rng.dirichlet(np.ones(n_components)),
        np.full(n_components, 1e-3),
        rng.uniform(1.0, 6.0, (n_components, n_columns)),
        dense[:, i, j],
        np.zeros((n_components, 0)),
    )
    prior = family.make_prior(moments, "none", n_rows)
    state = MixtureState(family, moments, numpy_kernels, prior, 1e-300).require_sound()
    source = PartialRows(rows, rng.uniform(0.5, 2.0, n_rows), np.zeros(n_columns))
    partition = Partition.of_blocks(rng.permutation(n_components).astype(np.int32), 19)
    chain = np.zeros(n_rows, dtype=np.int32)
    arguments = layout, state.model, source, np.arange(n_rows), chain, partition, KEY
    close = {"rtol": 1e-6, "atol": 1e-6}
    one, two = (backend.sweep(*arguments) for backend in (state.backend, compiled))
    np.testing.assert_array_equal(one.components, two.components)
    np.testing.assert_allclose(two.log_sums, one.log_sums, **close)
    same_statistics(one.statistics, two.statistics, close)
