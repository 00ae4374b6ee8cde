"""Sum-product-transform networks against the enumeration of their trees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from explicit_trees import every_tree, log_softmax, split_scope, tree_as_affine_map
from quick_jit import quick_jit
from scipy import stats
from scipy.special import logsumexp
from step_inputs import numbers_of, p_value

from pickmix.gradient.compilation import precision
from pickmix.gradient.network import flatten
from pickmix.gradient.sptn import SumProductTransform

# s, b, l, D, transforms. Scopes are uneven or shorter than b in some.
SHAPES = {
    "one layer": (3, 1, 1, 2, True),
    "uneven": (2, 2, 3, 5, True),
    "clipped": (2, 8, 2, 3, True),
    "one coordinate": (3, 2, 2, 1, True),
    "triangular, uneven": (2, 2, 3, 5, "triangular"),
    "children by layer": ((3, 2), 2, 2, 3, "triangular"),
    "no transforms": (2, 2, 2, 5, False),
}
N_POINTS = 2
N_DRAWS = 20_000


def random_tables(network, seed=0):
    """Parameters without any symmetry; those of padded places too, where they must not matter."""
    rng = np.random.default_rng(seed)
    return tuple(0.5 * rng.normal(size=shape) for shape in network.shapes)


def random_log_root(network, seed=1):
    return log_softmax(np.random.default_rng(seed).normal(size=network.n_children))


def maps_of_trees(network, tables, trees, shape):
    """(A, c, log-weight) of each tree by explicit affine maps."""
    _, n_partitions, n_layers, n_features, _ = shape
    rows = network.rows(trees)
    named = network.unpack([table[row] for table, row in zip(tables, rows, strict=True)])
    return [
        tree_as_affine_map(
            [{name: value[number] for name, value in layer.items()} for layer in named],
            tree,
            n_partitions,
            n_layers,
            n_features,
        )
        for number, tree in enumerate(trees)
    ]


class Case:
    """One network with all its trees at a few points, and the same by explicit affine maps."""

    def __init__(self, shape):
        self.network = network = SumProductTransform(*shape)
        self.tables, self.log_root = random_tables(network), random_log_root(network)
        self.trees = every_tree(network)
        self.x = np.random.default_rng(3).normal(size=(N_POINTS, network.n_features))
        # Every tree with every point.
        self.choices = np.repeat(self.trees, N_POINTS, axis=0)
        self.points = np.tile(self.x, (len(self.trees), 1))
        self.weights = np.random.default_rng(4).normal(size=len(self.points))
        self.records = tuple(
            table[row] for table, row in zip(self.tables, network.rows(self.choices), strict=True)
        )

        def along_trees(records, choices, x, weights):
            parameters = network.unpack(records)
            density, pull = jax.vjp(lambda p: network.log_density(p, choices, x), parameters)
            return density, network.pack(*pull(weights))

        def over_all(tables, log_root, x, beta):
            best = network.most_probable_tree(tables, log_root, x)
            return network.log_density_all(tables, x, beta), best

        self.along_trees, compiled = quick_jit(along_trees), quick_jit(over_all)

        def in_numpy(x, beta):
            with precision("float64"):
                return map(np.asarray, compiled(self.tables, self.log_root, x, beta))

        self.over_all = in_numpy
        with precision("float64"):
            found = self.along_trees(self.records, self.choices, self.points, self.weights)
        density, self.gradient = jax.tree.map(np.asarray, found)
        self.marginal, self.best = self.over_all(self.x, 1.0)
        self.tempered, _ = self.over_all(self.x, 0.5)
        self.density = density.reshape(len(self.trees), N_POINTS)
        self.log_joint = self.density + self.log_root[self.trees[:, 0], None]

        self.maps = maps_of_trees(network, self.tables, self.trees, shape)


@pytest.fixture(scope="module")
def cases():
    """Networks by name, each made when it is first asked for."""

    class Cases(dict):
        def __missing__(self, name):
            return self.setdefault(name, Case(SHAPES[name]))

    return Cases()


@pytest.fixture(scope="module", params=SHAPES)
def case(request, cases):
    return cases[request.param]


# -- what there is ------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_trees_and_parameters_are_counted_where_scopes_are_short(name):
    s, b, n_layers, n_features, transforms = SHAPES[name]

    by_layer = (s,) * n_layers if isinstance(s, int) else s

    def count(size, n_left):
        """Trees and free parameters of a sum node and all below."""
        s = by_layer[n_layers - n_left]
        angles = size * (size - 1) // 2
        own = 0
        if transforms or n_left == 1:
            own += 2 * size
        if transforms:
            # The rotation behind the scaling counts only where a product divides the scope.
            two = transforms is True and n_left > 1 and b > 1
            own += angles * (2 if two else 1)
        trees, below = 1, 0
        if n_left > 1:
            for part in split_scope(size, b):
                part_trees, part_parameters = count(part, n_left - 1)
                trees, below = trees * part_trees, below + part_parameters
        return s * trees, s - 1 + s * (own + below)

    network = SumProductTransform(*SHAPES[name])
    assert (network.n_trees, network.n_parameters) == count(n_features, n_layers)


def test_children_are_given_for_every_layer():
    with pytest.raises(ValueError, match="one number for each of the 2 layers"):
        SumProductTransform((3, 2, 2), 2, 2, 4)


@pytest.mark.parametrize("name", SHAPES)
def test_trees_share_a_row_when_they_agree_on_the_way_to_it(name):
    network = SumProductTransform(*SHAPES[name])
    trees = every_tree(network)
    for layer, rows, (n_rows, _) in zip(
        network.layers, network.rows(trees), network.shapes, strict=True
    ):
        # All rows are used, and by one slot only.
        assert sorted(set(rows.ravel().tolist())) == list(range(n_rows))
        for slot, path in enumerate(layer.paths):
            ways = [tuple(tree[list(path)]) for tree in trees]
            assert len(set(zip(ways, rows[:, slot].tolist(), strict=True))) == len(set(ways))
            assert len(set(rows[:, slot].tolist())) == len(set(ways))


def trained(kind):
    """Which numbers of a record (width,) training may change."""
    example = {name: np.full(value.shape, 1.0) for name, value in kind.example.items()}
    for name in kind.constants:
        example[name] *= 0.0
    return np.asarray(flatten(example, 0))


# -- single trees -------------------------------------------------------------------------


def test_every_tree_is_a_gaussian(case):
    for density, (matrix, shift, log_weight) in zip(case.density, case.maps, strict=True):
        back = np.linalg.inv(matrix)
        gaussian = stats.multivariate_normal(-back @ shift, back @ back.T)
        np.testing.assert_allclose(density - log_weight, gaussian.logpdf(case.x), atol=1e-8)


def test_the_gradient_is_the_derivative(case):
    rng = np.random.default_rng(8)
    step = 1e-5
    directions = [
        rng.normal(size=record.shape) * trained(kind)
        for kind, record in zip(case.network.kinds, case.records, strict=True)
    ]
    values = []
    for sign in (1.0, -1.0):
        moved = tuple(
            record + sign * step * direction
            for record, direction in zip(case.records, directions, strict=True)
        )
        with precision("float64"):
            values.append(case.along_trees(moved, case.choices, case.points, case.weights)[0])
    differences = case.weights * (np.asarray(values[0]) - np.asarray(values[1])) / (2 * step)
    expected = sum(
        (gradient * direction).sum(axis=(1, 2))
        for gradient, direction in zip(case.gradient, directions, strict=True)
    )
    np.testing.assert_allclose(differences, expected, rtol=1e-5, atol=1e-5)


# Scopes (5), (3, 2), (2, 1, 1, 1): two rotations above, one in the last layer, or a triangle each.
@pytest.mark.parametrize(
    ("name", "n_mixing"),
    [("uneven", 2 * (10 + 3 + 1) + 1), ("triangular, uneven", 10 + 3 + 1 + 1)],
)
def test_parameters_of_padded_places_do_nothing(name, n_mixing, cases):
    """No gradient reaches them: as many numbers are moved as the tree has parameters."""
    case = cases[name]
    network = case.network
    moved = sum((gradient[0] != 0.0).sum() for gradient in case.gradient)
    # Scale and shift, and two logits for each sum node below the root.
    assert moved == n_mixing + 2 * 15 + 2 * 6
    assert moved < sum(record[0].size for record in case.records)
    assert network.layers[2].sizes == (2, 1, 1, 1)


@pytest.mark.parametrize("name", ["uneven", "triangular, uneven", "no transforms"])
def test_transforms_invert_and_know_their_jacobian(name, cases):
    network, records = cases[name].network, cases[name].records
    rng = np.random.default_rng(6)
    # An affine map is known by what it does to zero and to the unit vectors.
    sizes = [kind.real.size for kind in network.kinds]
    points = [
        np.concatenate([np.zeros((1, size)), np.eye(size), rng.normal(size=(1, size))])
        for size in sizes
    ]

    def everything(parameters):
        found = []
        for kind, params, x in zip(network.kinds, parameters, points, strict=True):
            repeated = {name: jnp.repeat(value, len(x), 0) for name, value in params.items()}
            y = kind.forward(repeated, x.reshape(-1, *kind.real.shape))
            log_det = jnp.sum(kind.log_scale(params)) if "log_scale" in params else 0.0
            found.append((y, kind.inverse(repeated, y), log_det))
        return found

    with precision("float64"):
        found = quick_jit(everything)(network.unpack([record[:1] for record in records]))
    for (y, back, log_det), x, kind in zip(found, points, network.kinds, strict=True):
        np.testing.assert_allclose(np.asarray(back).reshape(x.shape), x, atol=1e-12)
        y = np.asarray(y).reshape(x.shape)
        sign, expected = np.linalg.slogdet(y[1:-1] - y[0])
        assert sign == 1.0
        np.testing.assert_allclose(log_det, expected, atol=1e-8)
        padded = ~kind.real.ravel()
        np.testing.assert_array_equal(y[:, padded], x[:, padded])


@pytest.mark.parametrize("name", ["uneven", "triangular, uneven", "no transforms"])
def test_samples_have_the_trees_mean_and_covariance(name, cases):
    case = cases[name]
    number = len(case.trees) // 3
    choices = np.tile(case.trees[number], (N_DRAWS, 1))
    with precision("float64"):
        rows = quick_jit(case.network.sample)(case.tables, choices, jax.random.key(0))
    matrix, shift, _ = case.maps[number]
    leaves = np.asarray(rows) @ matrix.T + shift
    # Sent through the map, they must be N(0, I); five standard errors of 5 + 15 numbers.
    assert (np.abs(leaves.mean(axis=0)) < 5 / np.sqrt(N_DRAWS)).all()
    spread = np.cov(leaves.T) - np.eye(5)
    assert (np.abs(spread) < 5 * np.sqrt((1 + np.eye(5)) / N_DRAWS)).all()


# -- all trees ----------------------------------------------------------------------------


def test_the_upward_pass_sums_over_trees(case):
    first = case.trees[:, 0]
    for child in range(case.network.n_children):
        below = case.density[first == child]
        np.testing.assert_allclose(
            case.marginal[:, child], logsumexp(below, axis=0), rtol=0.0, atol=1e-10
        )
        np.testing.assert_allclose(
            case.tempered[:, child], logsumexp(0.5 * below, axis=0), rtol=0.0, atol=1e-10
        )
    np.testing.assert_allclose(
        logsumexp(case.marginal + case.log_root, axis=1),
        logsumexp(case.log_joint, axis=0),
        rtol=0.0,
        atol=1e-10,
    )


def test_the_most_probable_tree_is_found(case):
    np.testing.assert_array_equal(case.best, case.trees[case.log_joint.argmax(axis=0)])


@pytest.mark.parametrize("name", ["uneven", "children by layer"])
def test_draws_follow_the_posterior_of_trees(name, cases):
    case = cases[name]
    network = case.network
    x = np.tile(case.x[0], (N_DRAWS // 2, 1))
    uniforms = np.random.default_rng(12).random((N_DRAWS // 2, 2, network.n_slots))
    draw = quick_jit(network.draw)
    for beta in (1.0, 0.5):
        with precision("float64"):
            trees = np.asarray(draw(case.tables, case.log_root, x, uniforms, beta))
        numbers = numbers_of(network, trees)
        tempered = beta * case.log_joint[:, 0]
        posterior = np.exp(tempered - logsumexp(tempered))
        assert p_value(numbers, posterior) > 1e-4


# -- starts and sizes ---------------------------------------------------------------------


def test_the_start_is_the_papers():
    network = SumProductTransform(64, 2, 2, 2, "rotations")
    tables = network.start(0, jnp.float32)
    assert tuple(table.shape for table in tables) == network.shapes
    for kind, table in zip(network.kinds, tables, strict=True):
        params = {name: np.asarray(value) for name, value in kind.unflatten(table).items()}
        scale = np.exp(params["log_scale"])
        assert (scale > 0.0).all()
        assert (scale < 1.0).all()
        assert stats.kstest(scale.ravel(), stats.uniform.cdf).pvalue > 1e-4
        for name in params:
            if name.startswith("angles"):
                turns = params[name].ravel() / (2 * np.pi)
                assert stats.kstest(turns, stats.uniform.cdf).pvalue > 1e-4
        assert stats.kstest(100 * params["shift"].ravel(), stats.norm.cdf).pvalue > 1e-4
        if "logits" in params:
            np.testing.assert_array_equal(params["logits"], 0.0)


@pytest.mark.parametrize("name", ["clipped", "triangular, uneven", "no transforms"])
def test_placed_trees_lie_around_the_centre_of_their_first_choice(name):
    shape = SHAPES[name]
    network = SumProductTransform(*shape)
    rng = np.random.default_rng(0)
    centres = 100.0 * rng.normal(size=(network.n_children, network.n_features))
    scales = np.exp(rng.normal(size=centres.shape))
    with precision("float64"):
        tables = network.place(network.start(1, jnp.float64), centres, scales, 2)
    trees = every_tree(network)
    maps = maps_of_trees(network, [np.asarray(table) for table in tables], trees, shape)
    for tree, (matrix, shift, _) in zip(trees, maps, strict=True):
        mean = -np.linalg.solve(matrix, shift)
        assert (np.abs(mean - centres[tree[0]]) < 5.0 * scales[tree[0]].max()).all()
        # As wide as asked for, up to what tells the children below apart.
        volume = -np.linalg.slogdet(matrix)[1] - np.log(scales[tree[0]]).sum()
        assert abs(volume) < network.n_features


def test_a_network_of_the_papers_largest_size_is_evaluated():
    network = SumProductTransform(128, 8, 2, 30)
    assert network.n_trees == 128**9
    rng = np.random.default_rng(0)
    tables = tuple(0.3 * rng.normal(size=shape).astype(np.float32) for shape in network.shapes)
    choices = rng.integers(128, size=(4, 9)).astype(np.int32)
    choices[-1] = 127
    x = rng.normal(size=(4, 30)).astype(np.float32)

    def everything(tables, choices, x):
        parameters = network.gather(tables, choices)
        density, pull = jax.vjp(lambda p: network.log_density(p, choices, x), parameters)
        return density, *pull(jnp.ones(4, x.dtype))

    density, gradients = quick_jit(everything)(tables, choices, x)
    assert density.dtype == np.float32
    assert np.isfinite(density).all()
    for leaf in jax.tree.leaves(gradients):
        assert np.isfinite(leaf).all()
    # The last tree ends at the last row of each table.
    assert [int(rows[-1, -1]) for rows in network.rows(choices)] == [
        shape[0] - 1 for shape in network.shapes
    ]
    ((matrix, shift, log_weight),) = maps_of_trees(network, tables, choices[:1], (128, 8, 2, 30, 1))
    leaves = matrix @ x[0] + shift
    expected = stats.norm.logpdf(leaves).sum() + np.linalg.slogdet(matrix)[1] + log_weight
    assert float(density[0]) == pytest.approx(expected, rel=1e-4)
