"""Cells of components, and searches for rows without a chain."""

import pickle

import numpy as np
import pytest
from known_states import BACKENDS, both_backends, every_covariance, state_of
from scipy import stats

from pickmix import FamilyMixture
from pickmix.closed_form import cells as cells_module
from pickmix.closed_form.cells import draw_cells
from pickmix.closed_form.search import Routes, draw_routes, search
from pickmix.closed_form.state import FrozenMixture
from pickmix.data.rows import ArrayRows
from pickmix.selection.randomness import StepRandomness
from pickmix.sweep.compiled import Compiled
from pickmix.threads import Threads

N, K, D = 800, 60, 3
# What float32 leaves of a log-sum.
DIGITS = {"reference": 1e-9, "compiled": 2e-3}


def blocks(partition):
    return np.split(partition.members, partition.offsets[1:-1])


def squared_distances(cells, places):
    """From the centres of the cells, (B, C), in widths."""
    away = (places / cells.widths)[:, None] - cells.centres.astype(np.float64)
    return np.square(away).sum(axis=2)


@pytest.fixture
def many_regions(monkeypatch):
    """Few cells are many."""
    monkeypatch.setattr(cells_module, "_MOST_UNGROUPED", 4)
    monkeypatch.setattr(cells_module, "_REGION_SIZE", 4)
    monkeypatch.setattr(cells_module, "_REGIONS", 3)


class TestCells:
    @pytest.mark.parametrize("n_nearest", [1, 4, 17, 40])
    @pytest.mark.parametrize("n_features", [1, 3, 4, 8, 19])
    @both_backends
    def test_nearest_is_a_full_search(self, backend, n_features, n_nearest):
        rng = np.random.default_rng(n_features)
        widths = rng.uniform(0.1, 3.0, n_features)
        points = rng.normal(size=(500, n_features)) * widths
        cells = draw_cells(points, widths, 10, StepRandomness(0, 1), BACKENDS[backend]())
        rows = rng.normal(size=(300, n_features)) * widths
        # An array in column order is the same array.
        found = cells.nearest(np.asfortranarray(rows), n_nearest, BACKENDS[backend]())
        squares = squared_distances(cells, rows)
        n_found = min(n_nearest, cells.n_cells)
        assert found.dtype == np.int32
        assert (found[:, n_found:] == -1).all()
        own = np.take_along_axis(squares, found[:, :n_found], axis=1)
        np.testing.assert_allclose(own, np.sort(squares, axis=1)[:, :n_found], rtol=1e-4, atol=1e-6)
        # Each cell once.
        assert (np.diff(np.sort(found[:, :n_found], axis=1), axis=1) > 0).all()

    @both_backends
    def test_cells_are_equally_near_twice(self, backend):
        """Among equals the first one comes first, and none is left out."""
        places = np.repeat(np.arange(20.0), 3)[:, None]
        cells = draw_cells(places, np.ones(1), 3, StepRandomness(0, 1), BACKENDS[backend]())
        halfway = np.arange(19)[:, None] + 0.5
        found = cells.nearest(halfway, 2, BACKENDS[backend]())
        squares = squared_distances(cells, halfway)
        for row, pair in zip(squares, found, strict=True):
            np.testing.assert_array_equal(np.sort(row)[:2], row[pair])
            assert row[pair[0]] < row[pair[1]] or pair[0] < pair[1]

    @pytest.mark.parametrize("size", [1, 7, 32])
    @both_backends
    def test_every_component_is_in_one_cell(self, backend, size):
        rng = np.random.default_rng(1)
        # Crowds, and places that many components share.
        crowds = [rng.normal(size=(n, 2)) * w for n, w in ((150, 0.01), (90, 5.0), (60, 0.0))]
        places = np.concatenate(crowds)
        cells = draw_cells(places, np.ones(2), size, StepRandomness(0, 1), BACKENDS[backend]())
        sizes = np.diff(cells.partition.offsets)
        np.testing.assert_array_equal(np.sort(cells.partition.members), np.arange(300))
        assert cells.n_cells == cells.partition.n_blocks
        assert sizes.min() >= 1
        assert sizes.max() <= 2 * size
        means = [places[block].mean(axis=0) for block in blocks(cells.partition)]
        np.testing.assert_allclose(cells.centres, means, rtol=1e-5, atol=1e-6)

    @both_backends
    def test_neighbours_share_a_cell(self, backend):
        """Far groups of as many components as a cell should have are the cells."""
        rng = np.random.default_rng(2)
        centres = 100.0 * rng.normal(size=(12, 3))
        group = rng.permutation(np.repeat(np.arange(12), 20))
        places = centres[group] + rng.normal(size=(240, 3))
        cells = draw_cells(places, np.ones(3), 20, StepRandomness(0, 1), BACKENDS[backend]())
        inertia = sum(
            np.square(places[block] - places[block].mean(axis=0)).sum()
            for block in blocks(cells.partition)
        )
        spread = np.square(places - places.mean(axis=0)).sum()
        assert inertia < 0.05 * spread

    @both_backends
    def test_regions_find_nearly_the_same(self, backend, many_regions):
        rng = np.random.default_rng(3)
        places = rng.normal(size=(600, 3))
        cells = draw_cells(places, np.ones(3), 12, StepRandomness(0, 1), BACKENDS[backend]())
        n_regions = cells.region_centres.shape[0]
        assert n_regions > 6
        assert cells.offsets[-1] == cells.n_cells
        np.testing.assert_array_equal(np.sort(cells.partition.members), np.arange(600))
        rows = rng.normal(size=(400, 3))
        found = cells.nearest(rows, 3, BACKENDS[backend]())
        squares = squared_distances(cells, rows)
        expected = np.argsort(squares, axis=1)[:, :3]
        shared = (found[:, :, None] == expected[:, None, :]).any(axis=2).mean()
        assert shared > 0.9
        # They are the nearest ones of the six nearest regions.
        away = rows[:, None] - cells.region_centres
        regions = np.argsort(np.square(away).sum(axis=2), axis=1)[:, :6]
        region_of = np.repeat(np.arange(n_regions), np.diff(cells.offsets))
        allowed = (region_of[None, :, None] == regions[:, None, :]).any(axis=2)
        squares[~allowed] = np.inf
        own = np.take_along_axis(squares, found, axis=1)
        np.testing.assert_allclose(own, np.sort(squares, axis=1)[:, :3], rtol=1e-4)

    @both_backends
    def test_few_cells_in_a_rows_regions(self, backend, many_regions):
        """What is missing is marked, and nothing is named twice."""
        places = np.random.default_rng(4).normal(size=(300, 2))
        cells = draw_cells(places, np.ones(2), 6, StepRandomness(0, 1), BACKENDS[backend]())
        some = cells.nearest_of_scaled(places.astype(np.float32), 12, BACKENDS[backend](), 1)
        assert (some[:, 0] >= 0).all()
        assert (some[:, -1] == -1).all()
        for row in some:
            named = row[row >= 0]
            assert np.unique(named).size == named.size
            assert (row[named.size :] == -1).all()

    def test_backends_draw_the_same_cells(self):
        places = np.random.default_rng(5).normal(size=(400, 3))
        one, other = (
            draw_cells(places, np.ones(3), 16, StepRandomness(0, 1), make())
            for make in BACKENDS.values()
        )
        # A component that is equally near to two cells may be in either.
        assert (one.partition.offsets == other.partition.offsets).mean() > 0.8
        np.testing.assert_allclose(
            np.sort(one.centres[:, 0]), np.sort(other.centres[:, 0]), atol=0.2
        )

    @both_backends
    def test_far_away_rows(self, backend):
        places = np.random.default_rng(6).normal(size=(100, 2))
        cells = draw_cells(places, np.ones(2), 10, StepRandomness(0, 1), BACKENDS[backend]())
        rows = np.array([[1e300, 0.0], [-1e300, 1e300], [1e16, -1e12], [0.0, 1e5]])
        found = cells.nearest(rows, 4, BACKENDS[backend]())
        assert (found >= 0).all()
        highest = cells.centres[:, 1].argmax()
        assert found[-1, 0] == highest


def problem(backend, name="full", seed=0):
    """A state, its rows, and log p(x, k) of all by SciPy, (N, K)."""
    rng = np.random.default_rng(seed)
    means, weights = 2.0 * rng.normal(size=(K, D)), rng.dirichlet(np.full(K, 3.0))
    variances = rng.uniform(0.05, 0.3, K)
    if name == "tied":
        variances[:] = 0.1
    labels = rng.integers(K, size=N)
    X = means[labels] + np.sqrt(variances[labels])[:, None] * rng.normal(size=(N, D))
    X[:20] *= 5.0
    covariances = variances[:, None, None] * np.eye(D)
    source = ArrayRows(X)
    state = state_of(name, weights, means - source.center, covariances, backend=backend)
    deviations = np.sqrt(variances)[:, None]
    log_joint = stats.norm.logpdf(X[:, None], means, deviations).sum(axis=2) + np.log(weights)
    return state, source, log_joint


def routes_of(state, size, n_probes, **settings):
    return draw_routes(
        state,
        StepRandomness(0, 1),
        cell_size=size,
        n_probes=n_probes,
        **settings,
    )


@pytest.mark.parametrize("size", [K, 7, 1])
@every_covariance
@both_backends
def test_all_cells_are_exact(backend, name, size):
    state, source, log_joint = problem(backend, name)
    components, bounds, evaluations = search(state, source, routes_of(state, size, K))
    exact = np.logaddexp.reduce(log_joint, axis=1)
    np.testing.assert_allclose(bounds, exact, rtol=1e-5, atol=DIGITS[backend])
    assert (components == log_joint.argmax(axis=1)).mean() > 0.998
    # Where the best components of two cells may be equally good, they are compared.
    assert N * K <= evaluations <= 1.05 * N * K
    if size != 7:
        assert evaluations == N * K


@pytest.mark.parametrize("size", [4, 16])
@both_backends
def test_bounds_are_lower_bounds(backend, size):
    state, source, log_joint = problem(backend)
    exact = np.logaddexp.reduce(log_joint, axis=1)
    last = np.full(N, -np.inf)
    for n_probes in (1, 2, 4):
        components, bounds, evaluations = search(state, source, routes_of(state, size, n_probes))
        assert (bounds <= exact + DIGITS[backend] + 1e-5 * np.abs(exact)).all()
        # The component that is reported is one that the bound has met.
        own = log_joint[np.arange(N), components]
        assert (own <= bounds + DIGITS[backend] + 1e-5 * np.abs(own)).all()
        # Whoever looks further finds no less.
        assert (bounds >= last).all()
        last = bounds
        assert evaluations <= n_probes * N * 2 * size
    # Most rows find what matters to them.
    assert (bounds > exact - 0.1).mean() > (0.8 if size == 4 else 0.98)


@pytest.mark.parametrize("background", [None, 5])
@both_backends
def test_a_search_by_hand(backend, background):
    """The best component of three cells."""
    state, source, log_joint = problem(backend)
    routes = routes_of(state, 8, 3, background=background)
    components, bounds, _ = search(state, source, routes)
    cells = blocks(routes.cells.partition)
    places = source.gather(np.arange(N))
    nearest = np.argsort(squared_distances(routes.cells, places), axis=1)[:, :3]
    agreed = 0
    for row in range(0, N, 3):
        met = [cells[c] for c in nearest[row]]
        if background is not None:
            met.append(np.array([background]))
        every = np.unique(np.concatenate(met))
        bound = np.logaddexp.reduce(log_joint[row, every])
        # Nobody is counted twice: the background may be in one of the cells.
        assert bounds[row] == pytest.approx(bound, rel=1e-5, abs=DIGITS[backend])
        agreed += components[row] == every[log_joint[row, every].argmax()]
    # Float32 may hold two components for equally good.
    assert agreed >= len(range(0, N, 3)) - 1


@both_backends
def test_rows_that_belong_nowhere_find_the_background(backend):
    rng = np.random.default_rng(7)
    means = np.concatenate([rng.normal(size=(59, D)), np.zeros((1, D))])
    variances = np.append(np.full(59, 0.01), 100.0)
    X = np.concatenate([means[:59], 8.0 * rng.normal(size=(100, D))])
    source = ArrayRows(X, center=np.zeros(D))
    covariances = variances[:, None, None] * np.eye(D)
    state = state_of("full", np.full(60, 1 / 60), means, covariances, backend=backend)
    state.prior.background = 59
    for n_probes in (1, 60):
        components, bounds, evaluations = search(state, source, routes_of(state, 6, n_probes))
        assert (components[59:] == 59).mean() > 0.95
        assert evaluations >= 159
    np.testing.assert_array_equal(components[:59], np.arange(59))
    exact = stats.norm.logpdf(X[:, None], means, np.sqrt(variances)[:, None]).sum(axis=2)
    exact = np.logaddexp.reduce(exact - np.log(60), axis=1)
    np.testing.assert_allclose(bounds, exact, rtol=1e-4, atol=DIGITS[backend])


def test_backends_search_alike():
    found = []
    for backend in BACKENDS:
        state, source, _ = problem(backend)
        found.append(search(state, source, routes_of(state, 8, 3)))
    (one, lower, n), (other, upper, m) = found
    assert n == pytest.approx(m, rel=0.02)
    assert (one == other).mean() > 0.97
    assert np.mean(np.abs(lower - upper) < 1e-2) > 0.97


@both_backends
def test_routes_travel(backend):
    """What a worker needs is in the routes and in a frozen mixture; copies find the same."""
    state, source, _ = problem(backend)
    routes = routes_of(state, 8, 3)
    again = pickle.loads(pickle.dumps(routes))
    for array in (again.cells.centres, again.cells.offsets, again.cells.region_centres):
        array.flags.writeable = False
    frozen = FrozenMixture(state.family, state.model, BACKENDS[backend]())
    ours, theirs = search(state, source, routes), search(frozen, source, again)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_any_number_of_threads(monkeypatch):
    monkeypatch.setattr("pickmix.threads.MINIMUM_WORK", 10)
    found = []
    for n_threads in (1, 2, 5):
        state, source, _ = problem("compiled")
        state.backend = Compiled(Threads(n_threads))
        routes = routes_of(state, 8, 3)
        found.append((routes.cells.partition.members, *search(state, source, routes)))
        state.backend.threads.close()
    for other in found[1:]:
        for one, another in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, another)


@both_backends
def test_a_search_again(backend):
    first, second = (
        search(state, source, routes_of(state, 8, 2))
        for state, source, _ in (problem(backend), problem(backend))
    )
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def test_few_components_are_one_cell():
    state, source, log_joint = problem("reference")
    routes = draw_routes(state, StepRandomness(0, 1), cell_size=K)
    assert routes.cells.n_cells == 1
    assert isinstance(routes, Routes)
    components, _, evaluations = search(state, source, routes)
    assert evaluations == N * K
    np.testing.assert_array_equal(components, log_joint.argmax(axis=1))


MIXED = [("diag", [0, 1]), ("poisson", [2]), ("categorical", [3])]


@pytest.mark.parametrize("family", ["poisson", "categorical", MIXED], ids=str)
def test_places_of_other_families(family):
    """Rows of counts and of levels are looked for elsewhere than where they are."""
    rng = np.random.default_rng(8)
    X = rng.poisson(rng.uniform(0.5, 9.0, (40, 4))[rng.integers(40, size=1500)]).astype(float)
    if family != "poisson":
        X = np.minimum(X, 5.0)
    mixture = FamilyMixture(family, 80, max_iter=5, tol=0.0, random_state=0).fit(X)
    exact = mixture.score_samples(X)
    np.testing.assert_allclose(mixture.score_samples(X, n_candidates=10_000), exact, atol=2e-3)
    bound = mixture.score_samples(X, n_candidates=64)
    assert (bound <= exact + 2e-3).all()
    assert (exact - bound).mean() < 0.5
