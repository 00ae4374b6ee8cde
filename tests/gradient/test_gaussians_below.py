"""Networks whose lower layers begin with small mixtures."""

import numpy as np
import pytest
from quick_jit import quick_jit
from scipy import stats
from scipy.special import logsumexp

from pickmix.gradient import start as starts
from pickmix.gradient.compilation import precision
from pickmix.gradient.sptn import SumProductTransform
from pickmix.gradient.start import Gaussians, gaussian_start

# s, b, l, D, transforms: padded scopes, one coordinate alone, several layers.
SHAPES = {
    "no transforms": ((3, 2), 2, 2, 5, False),
    "triangular, three layers": ((2, 2, 3), 2, 3, 5, "triangular"),
    "rotations": ((2, 3), 2, 2, 5, "rotations"),
}
N_ROWS = 400


def random_gaussians(n, width, rng, form="full"):
    cholesky = 0.4 * np.tril(rng.normal(size=(n, width, width)), -1)
    if form == "diag":
        cholesky *= 0.0
    cholesky += np.exp(0.3 * rng.normal(size=(n, width, 1))) * np.eye(width)
    return Gaussians(rng.dirichlet(3 * np.ones(n)), rng.normal(size=(n, width)), cholesky)


def begin(network, seed=0):
    """A Gaussian start, rows drawn from it, and random trees with the rows' first choices."""
    rng = np.random.default_rng(seed)
    form = "full" if network.transforms else "diag"
    root = random_gaussians(network.n_children, network.n_features, rng, form)
    chain = rng.integers(network.n_choices, size=(N_ROWS, network.n_slots)).astype(np.int32)
    white = rng.normal(size=(N_ROWS, network.n_features, 1))
    rows = root.means[chain[:, 0]] + np.linalg.solve(root.cholesky[chain[:, 0]], white)[..., 0]
    with precision("float64"):
        tables = network.start(1, np.float64)
        tables = network.take_gaussians(tables, root.means, root.cholesky, 2)
    return root, tables, chain, rows


class Recorder:
    """Stands in for `better_mixture`: any mixture, or none for every third node."""

    def __init__(self):
        self.found, self.rows = [], []

    def __call__(self, rows, most, generator, form="full"):
        number = len(self.found)
        rng = np.random.default_rng(number)
        found = None
        if number % 3 != 2:
            # One component less than there are children: one of them must be two.
            found = random_gaussians(max(1, most - number % 2), rows.shape[1], rng, form)
        self.found.append(found)
        self.rows.append(rows)
        return found

    def by_node(self, network):
        """Mixtures by (depth, slot, node): all nodes have rows, and come in this order."""
        nodes = [
            (depth, slot, node)
            for depth in range(1, len(network.kinds))
            for slot in range(network.slots[depth])
            for node in range(network.n_paths[depth - 1])
        ]
        assert len(nodes) == len(self.found)
        return dict(zip(nodes, self.found, strict=True))


def below(network, found, depth, slot, path, y):
    """Log-density of y (N, size) below a child: the product over its parts."""
    if depth + 1 == len(network.kinds):
        return stats.norm.logpdf(y).sum(axis=1)
    layer, total, place = network.layers[depth + 1], 0.0, 0
    for number, size in enumerate(layer.sizes):
        if layer.parents[number] == slot:
            part = y[:, place : place + size]
            total = total + at_node(network, found, depth + 1, number, path, part)
            place += size
    return total


def at_node(network, found, depth, slot, node, y):
    """Log-density of y (N, size) at a sum node, by its definition."""
    mixture = found[depth, slot, node]
    n_children = network.children[depth]
    if mixture is None:
        # All children are alike, but what is below them is not.
        values = [
            below(network, found, depth, slot, node * n_children + c, y) for c in range(n_children)
        ]
        return logsumexp(values, axis=0) - np.log(n_children)
    values = []
    for c, (mean, factor) in enumerate(zip(mixture.means, mixture.cholesky, strict=True)):
        inner = below(network, found, depth, slot, node * n_children + c, (y - mean) @ factor.T)
        values.append(inner + np.log(mixture.weights[c]) + np.linalg.slogdet(factor)[1])
    return logsumexp(values, axis=0)


@pytest.fixture
def no_noise(monkeypatch):
    monkeypatch.setattr(starts, "_NOISE", 0.0)


@pytest.mark.parametrize("name", SHAPES)
def test_density_is_that_of_the_small_mixtures(name, monkeypatch, no_noise):
    network = SumProductTransform(*SHAPES[name])
    root, tables, chain, rows = begin(network)
    recorder = Recorder()
    monkeypatch.setattr(starts, "better_mixture", recorder)
    # Which component is copied does not matter, but the test must know it.
    monkeypatch.setattr(Gaussians, "repeated", lambda self, n, seed: fill(self, n))
    with precision("float64"):
        after, _ = network.take_gaussians_below(tables, chain, rows, 3)
        x = rows[:20] + 0.1
        density = np.asarray(quick_jit(network.log_density_all)(after, x))
    found = {
        node: None if mixture is None else fill(mixture, network.children[node[0]])
        for node, mixture in recorder.by_node(network).items()
    }
    for k in range(network.n_children):
        y = (x - root.means[k]) @ root.cholesky[k].T
        expected = below(network, found, 0, 0, k, y) + np.linalg.slogdet(root.cholesky[k])[1]
        np.testing.assert_allclose(density[:, k], expected, rtol=1e-8, atol=1e-8)


def fill(mixture, n):
    """The same density with its first component several times."""
    copies = n - mixture.n_components
    which = np.concatenate([np.arange(mixture.n_components), np.zeros(copies, int)])
    weights = mixture.weights / np.where(np.arange(mixture.n_components) == 0, 1 + copies, 1)
    return Gaussians(weights[which], mixture.means[which], mixture.cholesky[which])


@pytest.mark.parametrize("name", ["triangular, three layers", "no transforms"])
def test_chains_stand_where_the_posterior_says(name, monkeypatch, no_noise):
    network = SumProductTransform(*SHAPES[name])
    _, tables, chain, rows = begin(network)
    recorder = Recorder()
    monkeypatch.setattr(starts, "better_mixture", recorder)
    with precision("float64"):
        after, moved = network.take_gaussians_below(tables, chain, rows, 3)
        named = network.unpack([table[:, None] for table in after])
    np.testing.assert_array_equal(moved[:, 0], chain[:, 0])
    scores = []
    calls = iter(zip(recorder.by_node(network), recorder.found, recorder.rows, strict=True))
    for (depth, slot, node), mixture, seen in calls:
        layer, n_children = network.layers[depth], network.children[depth]
        parent = layer.parents[slot]
        place = layer.paths[slot][-1]
        above = np.asarray(network.rows(moved)[depth - 1])[:, parent]
        row = parent * network.n_paths[depth - 1] + node
        members = above == row
        assert seen.shape == (members.sum(), layer.sizes[slot])
        if mixture is None:
            np.testing.assert_array_equal(moved[members, place], chain[members, place])
            continue
        weights = np.exp(named[depth - 1]["logits"][row, 0, layer.parts[slot]])
        assert weights.sum() == pytest.approx(1.0)
        # The children are the mixture's Gaussians, perhaps repeated: by first moments of choices.
        repeated = mixture.repeated(n_children, 0)
        if mixture.n_components == n_children:
            joint = repeated.log_joint(seen)
            posterior = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
            drawn = moved[members, place][:, None] == np.arange(n_children)
            spread = np.sqrt((posterior * (1 - posterior)).sum(axis=0))
            scores.extend((drawn.sum(axis=0) - posterior.sum(axis=0)) / spread)
    assert len(scores) >= 4
    assert np.abs(scores).max() < 4.0


def crescents(n, seed):
    """Two curved clusters in four columns."""
    rng = np.random.default_rng(seed)
    side = rng.choice([-1.0, 1.0], size=n)
    angle = rng.uniform(0.0, np.pi, n)
    rows = 0.1 * rng.normal(size=(n, 4))
    rows[:, 0] += np.cos(angle)
    rows[:, 1] += np.sin(angle)
    rows[:, 2] += 3.0 * side
    return rows, (side > 0).astype(int)


@pytest.mark.parametrize("transforms", ["triangular", False])
def test_rows_that_were_not_seen_gain(transforms):
    network = SumProductTransform((2, 4), 2, 2, 4, transforms)
    rows, side = crescents(600, 0)
    fresh, _ = crescents(2000, 1)
    covariances = [np.cov(rows[side == k].T) for k in range(2)]
    root = Gaussians(
        np.full(2, 0.5),
        np.array([rows[side == k].mean(axis=0) for k in range(2)]),
        np.linalg.inv(np.linalg.cholesky(covariances)),
    )
    start = gaussian_start(network, root, rows, 0, "float32")
    plain = network.take_gaussians(network.start(0, np.float32), root.means, root.cholesky, 0)
    score = quick_jit(network.log_density_all)
    before, after = (
        logsumexp(np.asarray(score(tables, fresh.astype(np.float32))) + np.log(0.5), axis=1).mean()
        for tables in (plain, start.tables)
    )
    assert after > before + 0.3
    # Same seed, same start.
    again = gaussian_start(network, root, rows, 0, "float32")
    np.testing.assert_array_equal(start.chain, again.chain)
    np.testing.assert_array_equal(start.tables[1], again.tables[1])


def test_gaussian_rows_keep_the_start():
    """Two parts, both as they should be: the start is that of the Gaussians, bit by bit."""
    network = SumProductTransform((2, 4), 2, 2, 4, "triangular")
    root, tables, chain, _ = begin(network)
    tables = tuple(np.asarray(table, np.float32) for table in tables)
    rng = np.random.default_rng(0)
    white = rng.normal(size=(N_ROWS, 4, 1))
    rows = root.means[chain[:, 0]] + np.linalg.solve(root.cholesky[chain[:, 0]], white)[..., 0]
    after, moved = network.take_gaussians_below(tables, chain, rows, 0)
    for one, two in zip(tables, after, strict=True):
        np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(chain, moved)
