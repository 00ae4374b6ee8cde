"""Random-partition Gibbs in the gradient engine: exact chains, exact weights, sparse steps."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from explicit_trees import every_tree
from quick_jit import quick_jit
from scipy.special import logsumexp
from small_models import LOG_JOINTS, NETWORKS, gaussian_log_joint, random_parameters
from step_inputs import (
    DiagonalGaussian,
    Program,
    make_batches,
    make_state,
    numbers_of,
    p_value,
    same_bits,
)

from pickmix import RandomPartition
from pickmix.data.rows import Batches
from pickmix.gradient.algorithm import Batch, select_in_blocks
from pickmix.gradient.candidates import Partitions
from pickmix.gradient.compilation import precision
from pickmix.gradient.components import ComponentMixture
from pickmix.gradient.realnvp import RealNVP
from pickmix.gradient.settings import StepSettings
from pickmix.gradient.sptn import SumProductTransform

OPTIONS = StepSettings("partition")
# Seven do not fall into equal blocks of three: some places stay empty.
K, D, N_ROWS = 7, 2, 1000


class LocatedGaussian(DiagonalGaussian):
    """It also says where it is, so that partitions follow trees over the means."""

    def location(self, params):
        return params["mean"]


MODELS = {
    "located": ComponentMixture(LocatedGaussian(), K, D),
    "unlocated": ComponentMixture(DiagonalGaussian(), K, D),
    "trees": NETWORKS["trees"],
    "plain trees": NETWORKS["plain trees"],
}


def parameters(name):
    if name in NETWORKS:
        return random_parameters(name)
    rng = np.random.default_rng(3)
    return (0.5 * rng.normal(size=(K, 2 * D)),), rng.normal(size=K)


def log_joint_of(name, tables, logits, x):
    """log p(x, tree) of every tree, (n_trees, B), without JAX."""
    return LOG_JOINTS.get(name, gaussian_log_joint)(tables, logits, x)


def make_partitions(network, block_size, shuffle=0.02, seed=0, n_rows=N_ROWS, batch_size=100):
    settings = RandomPartition(block_size=block_size, shuffle=shuffle)
    return Partitions(network, settings, Batches(n_rows, batch_size, 0), seed)


def draw_blocks(partitions, number, tables):
    with precision("float64"):
        return jax.tree.map(np.asarray, partitions.draw(number, tables))


def one_batch(n_rows, uniforms, beta=1.0):
    rows = np.arange(n_rows, dtype=np.int32)
    nothing = np.zeros(n_rows)
    return Batch(rows, nothing, nothing, nothing, nothing, uniforms, nothing, beta, 0.0, 0.0, 1)


def selector(network):
    """`select_in_blocks` compiled; takes and gives NumPy arrays in float64."""
    compiled = quick_jit(partial(select_in_blocks, network, OPTIONS))

    def select(state, batch, x):
        with precision("float64"):
            return jax.tree.map(np.asarray, compiled(state, batch, x))

    return select


class TestWeights:
    @pytest.mark.parametrize(
        ("name", "block_size", "beta"),
        [("located", 3, 0.5), ("unlocated", 4, 1.0), ("trees", 2, 0.5)],
    )
    def test_their_mean_over_the_posterior_is_the_posterior(self, name, block_size, beta):
        """sum_z p(z | x) w(z -> k) = p(k | x), by enumeration of all z."""
        network = MODELS[name]
        tables, logits = parameters(name)
        trees = every_tree(network)
        x = np.random.default_rng(4).normal(size=network.n_features)
        tempered = beta * log_joint_of(name, tables, logits, x[None])[:, 0]
        posterior = np.exp(tempered - logsumexp(tempered))
        state = make_state(tables, logits, trees)
        data = np.tile(x, (len(trees), 1))
        select = selector(network)
        partitions = make_partitions(network, block_size, shuffle=0.5)
        for number in range(5):
            blocks = draw_blocks(partitions, number, tables)
            for slot in range(network.n_slots):
                place = (slot + 0.5) / network.n_slots
                uniforms = np.tile([place, 0.3], (len(trees), 1))
                batch = one_batch(len(trees), uniforms, beta)
                found = select(state._replace(blocks=blocks), batch, data)
                np.testing.assert_allclose(found.weights.sum(axis=1), 1.0, atol=1e-12)
                reached = numbers_of(network, found.trees)
                mean = np.zeros(len(trees))
                np.add.at(mean, reached, posterior[:, None] * found.weights)
                np.testing.assert_allclose(mean, posterior, atol=1e-12)
                # A chain moves within its block, and says what it evaluated there.
                chosen = numbers_of(network, found.states)
                assert (np.where(reached == chosen, found.weights, 0.0).max(axis=1) > 0.0).all()
                chosen = chosen[:, 0]
                np.testing.assert_allclose(beta * found.log_joint, tempered[chosen], atol=1e-10)


@pytest.mark.parametrize(
    ("name", "block_size", "shuffle", "beta"),
    [("located", 3, 0.5, 0.5), ("trees", 2, 0.02, 1.0)],
)
def test_the_chain_settles_on_the_exact_posterior(name, block_size, shuffle, beta):
    """From one component for all rows, with a new partition every few steps."""
    network = MODELS[name]
    tables, logits = parameters(name)
    points = np.random.default_rng(1).normal(size=(2, network.n_features))
    x = np.repeat(points, N_ROWS // 2, axis=0)
    rng = np.random.default_rng(2)
    program = Program(network, OPTIONS)
    partitions = make_partitions(network, block_size, shuffle)
    state = make_state(tables, logits, np.zeros((N_ROWS, network.n_slots)))
    batches = make_batches(network, N_ROWS, 2, 1, beta=beta)
    # By exact products of transitions all settings are within 1e-4 of the posterior then.
    for number in range(40):
        state = state._replace(blocks=draw_blocks(partitions, number, tables))
        uniforms = rng.random((2, N_ROWS, 2))
        state, summary = program(x, state, batches._replace(uniforms=uniforms))
        assert summary.refused == 0
        assert summary.acceptances.sum() == 2 * N_ROWS
        np.testing.assert_array_equal(summary.states[-1, :, 0], state.chain)
    # A rate of zero: only the chains move.
    assert same_bits(state.tables, tables)
    tempered = beta * log_joint_of(name, tables, logits, points)
    posteriors = np.exp(tempered - logsumexp(tempered, axis=0)).T
    halves = np.split(numbers_of(network, state.chain), 2)
    values = [p_value(*pair) for pair in zip(halves, posteriors, strict=True)]
    assert min(values) > 1e-4


@pytest.fixture(scope="module")
def program():
    return Program(ComponentMixture(RealNVP(hidden=2), K, 3), OPTIONS)


class TestStep:
    """One step from chains that stay away from one block."""

    n_rows = 200

    @staticmethod
    def begin(network):
        rng = np.random.default_rng(7)
        tables = tuple(0.5 * rng.normal(size=shape) for shape in network.shapes)
        logits = rng.normal(size=network.n_children)
        blocks = draw_blocks(make_partitions(network, 3), 0, tables)
        return rng, tables, logits, blocks

    @staticmethod
    def chains_elsewhere(network, rng, blocks, n_rows):
        """Components of all blocks but the last."""
        children = blocks.members[0, :-1]
        return rng.choice(children[children >= 0], size=(n_rows, network.n_slots))

    def test_gradients_are_those_of_the_weighted_log_joint_and_others_keep_bits(self, program):
        network, n_rows, rate = program.network, self.n_rows, 0.01
        rng, tables, logits, blocks = self.begin(network)
        x = rng.normal(size=(n_rows, 3))
        chain = self.chains_elsewhere(network, rng, blocks, n_rows)
        state = make_state(tables, logits, chain)._replace(blocks=blocks)
        batches = make_batches(network, n_rows, 1, 1, rate=rate)
        row_weights = rng.random((1, n_rows)) / n_rows
        batches = batches._replace(weights=row_weights, uniforms=rng.random((1, n_rows, 2)))
        found, summary = program(x, state, batches)
        assert summary.refused == 0

        members = blocks.members[0, blocks.block_of[0, chain[:, 0]]]
        is_member = members >= 0
        assert not is_member.all()
        with precision("float64"):

            def log_joint(tables, logits):
                choices = jnp.asarray(np.maximum(members, 0).reshape(-1, 1))
                params = network.gather(tables, choices)
                density = network.log_density(
                    params, choices, jnp.repeat(jnp.asarray(x), 3, axis=0)
                )
                return (density + jax.nn.log_softmax(logits)[choices[:, 0]]).reshape(-1, 3)

            values = np.where(is_member, np.asarray(quick_jit(log_joint)(tables, logits)), -np.inf)
            weights = np.exp(values - logsumexp(values, axis=1, keepdims=True))
            weights = row_weights.T * weights

            def objective(tables, logits):
                return jnp.sum(weights * log_joint(tables, logits))

            gradients = quick_jit(jax.grad(objective, (0, 1)))(tables, logits)
        (gradient,), root_gradient = jax.tree.map(np.asarray, gradients)
        visited = np.isin(np.arange(K), members[is_member])
        assert 0 < visited.sum() < K
        np.testing.assert_allclose(found.adams[0].first, -0.1 * gradient, atol=1e-12)
        np.testing.assert_array_equal(found.adams[0].updates, visited.astype(float))
        step = rate * gradient / (np.abs(gradient) + 1e-8)
        np.testing.assert_allclose(found.tables[0], tables[0] + step, atol=1e-8)
        assert same_bits(found.tables[0][~visited], tables[0][~visited])
        np.testing.assert_allclose(found.root.adam.first[0], -0.1 * root_gradient, atol=1e-12)
        assert same_bits(found.blocks, blocks)

    def test_trees_visit_only_rows_of_their_blocks(self):
        network = SumProductTransform(4, 2, 2, 3)
        rng = np.random.default_rng(8)
        tables = tuple(0.5 * rng.normal(size=shape) for shape in network.shapes)
        blocks = draw_blocks(make_partitions(network, 2), 0, tables)
        # All rows on one tree: two children at one of three sum nodes, six trees in all.
        state = make_state(tables, np.zeros(4), np.ones((100, 3)))._replace(blocks=blocks)
        batches = make_batches(network, 100, 1, 1, rate=0.01)
        batches = batches._replace(uniforms=rng.random((1, 100, 2)))
        x = rng.normal(size=(100, 3))
        found, summary = Program(network, OPTIONS)(x, state, batches)
        assert summary.refused == 0
        reached = []
        for slot in range(3):
            for child in blocks.members[slot, blocks.block_of[slot, 1]]:
                tree = np.ones(3, np.int32)
                tree[slot] = child
                reached.append(tree)
        assert (found.chain[:, None] == np.array(reached)).all(axis=2).any(axis=1).all()
        assert ((found.chain != 1).sum(axis=1) <= 1).all()
        rows = network.rows(np.array(reached))
        for new, old, own in zip(found.tables, tables, rows, strict=True):
            visited = np.isin(np.arange(len(old)), own)
            assert (new[visited] != old[visited]).any(axis=1).all()
            assert same_bits(new[~visited], old[~visited])

    def test_a_step_that_meets_a_nan_is_refused(self, program):
        network, n_rows = program.network, self.n_rows
        rng, tables, logits, blocks = self.begin(network)
        x = rng.normal(size=(n_rows, 3))
        x[7, 1] = np.nan
        state = make_state(tables, logits, np.zeros((n_rows, 1)))._replace(blocks=blocks)
        batches = make_batches(network, n_rows, 1, 1, rate=0.01)
        batches = batches._replace(uniforms=rng.random((1, n_rows, 2)))
        found, summary = program(x, state, batches)
        assert summary.refused == 1
        assert same_bits(found, state)
        # Rows that fill a batch up count for nothing, whatever they hold.
        x[[7, 19]] = x[[19, 7]]
        rows = batches.rows.copy()
        rows[0, 19] = n_rows
        found, summary = program(x, state, batches._replace(rows=rows))
        assert summary.refused == 0
        assert np.isfinite(found.root.logits).all()
        assert same_bits(found.chain[19], state.chain[19])

    def test_components_without_density_here_are_left_alone(self):
        class HalfLine:
            """Exponential from a start on: no density, and no gradient, before it."""

            def init(self, key, n_features):
                return jax.random.normal(key, (1,))

            def log_prob(self, params, x):
                return jnp.where(x[0] >= params[0], jnp.log(x[0] - params[0]) * 0 - x[0], -jnp.inf)

        network = ComponentMixture(HalfLine(), 4, 1)
        tables = (np.array([[-1.0], [-2.0], [50.0], [60.0]]),)
        blocks = draw_blocks(make_partitions(network, 4), 0, tables)
        x = np.linspace(0.0, 5.0, 20)[:, None]
        # Chains on components that have lost their rows find others.
        state = make_state(tables, np.zeros(4), np.full((20, 1), 2))._replace(blocks=blocks)
        batches = make_batches(network, 20, 1, 1, rate=0.01)
        batches = batches._replace(uniforms=np.random.default_rng(0).random((1, 20, 2)))
        found, summary = Program(network, OPTIONS)(x, state, batches)
        assert summary.refused == 0
        assert (found.chain < 2).all()
        np.testing.assert_array_equal(found.adams[0].updates, [1.0, 1.0, 0.0, 0.0])
        assert same_bits(found.tables[0][2:], tables[0][2:])


class TestPartitions:
    @pytest.mark.parametrize(("n_children", "block_size"), [(1, 2), (7, 9), (53, 3)])
    def test_every_child_is_in_one_block(self, n_children, block_size):
        network = ComponentMixture(LocatedGaussian(), n_children, D)
        tables = (np.random.default_rng(n_children).normal(size=(n_children, 2 * D)),)
        partitions = make_partitions(network, block_size)
        assert partitions.block_size <= block_size
        blocks = draw_blocks(partitions, 1, tables)
        members = blocks.members[0]
        assert members.shape == (partitions.n_blocks, partitions.block_size)
        np.testing.assert_array_equal(np.sort(members[members >= 0]), np.arange(n_children))
        # The last place is never empty, and the width is no larger than it must be.
        assert (members[:, -1] >= 0).all()
        assert (members[:, 0] >= 0).any()
        for block, row in enumerate(members):
            assert (blocks.block_of[0, row[row >= 0]] == block).all()

    def test_they_follow_the_locations_and_the_number(self):
        network = ComponentMixture(LocatedGaussian(), 24, 1)
        tables = (np.column_stack([np.zeros(24), np.arange(24.0)]),)
        partitions = make_partitions(network, 4, shuffle=0.0)
        first, again = (draw_blocks(partitions, 0, tables) for _ in range(2))
        assert same_bits(first, again)
        assert (np.ptp(first.members[0], axis=1) == 3).all()
        scattered = draw_blocks(make_partitions(network, 4, shuffle=1.0), 0, tables)
        assert np.ptp(scattered.members[0], axis=1).mean() > 6.0
        network = ComponentMixture(LocatedGaussian(), 23, 1)
        partitions = make_partitions(network, 4, shuffle=0.0)
        drawn = [draw_blocks(partitions, number, (tables[0][:23],)) for number in (0, 9)]
        assert not same_bits(*drawn)

    def test_a_partition_serves_a_pass_or_enough_steps(self):
        network = ComponentMixture(LocatedGaussian(), 24, 1)
        assert make_partitions(network, 4, n_rows=5000).n_steps == 50
        partitions = make_partitions(network, 4, n_rows=1000)
        assert partitions.n_steps == 20
        assert [partitions.number(step) for step in (1, 20, 21, 41)] == [0, 0, 1, 2]
        assert [partitions.steps_left(step) for step in (1, 20, 21)] == [20, 1, 20]
        # Finding many locations takes a tenth of the evaluations at most.
        network = ComponentMixture(LocatedGaussian(), 10_000, 1)
        partitions = make_partitions(network, 4, n_rows=1000)
        spent = partitions.n_steps * 100 * 4
        assert 10 * partitions.n_evaluations <= spent < 10 * partitions.n_evaluations + 4000

    def test_locations_of_flows_are_images_of_the_origin(self):
        component = RealNVP(hidden=2)
        network = ComponentMixture(component, 5, 3)
        rng = np.random.default_rng(0)
        tables = (rng.normal(size=network.shapes[0]),)
        with precision("float64"):
            points = quick_jit(network.locations)(tables)
            params = network.unpack((jnp.asarray(tables[0])[:, None],))
            back = np.asarray(quick_jit(jax.vmap(component.forward))(params, points)[0])
        np.testing.assert_allclose(back, 0.0, atol=1e-10)
        assert network.location_draws == 1

    def test_locations_of_components_that_can_be_drawn_from(self):
        class Drawn(DiagonalGaussian):
            def sample(self, params, key):
                noise = jax.random.normal(key, params["mean"].shape, params["mean"].dtype)
                return params["mean"] + jnp.exp(params["log_scale"]) * noise

        network = ComponentMixture(Drawn(), 3, 2)
        means = np.random.default_rng(0).normal(size=(3, 2))
        with precision("float64"):
            points = quick_jit(network.locations)(
                (np.column_stack([np.full((3, 2), -9.0), means]),)
            )
        np.testing.assert_allclose(points, means, atol=1e-3)
        assert network.location_draws == 8

    @pytest.mark.parametrize("transforms", [True, False])
    def test_locations_of_a_placed_network_are_where_it_was_placed(self, transforms):
        network = SumProductTransform(4, 2, 2, 3, transforms=transforms)
        centres = 10.0 * np.random.default_rng(0).normal(size=(4, 3))
        with precision("float64"):
            tables = network.place(network.start(0, "float64"), centres, np.ones((4, 3)), 0)
            points = np.asarray(quick_jit(network.locations)(tables))
        np.testing.assert_allclose(points, centres, atol=2.0)

    def test_a_component_that_overflows_elsewhere_finds_a_block(self):
        network = ComponentMixture(LocatedGaussian(), 6, 1)
        tables = (np.column_stack([np.zeros(6), [0.0, np.inf, 1.0, np.nan, 2.0, -np.inf]]),)
        blocks = draw_blocks(make_partitions(network, 2), 0, tables)
        np.testing.assert_array_equal(np.sort(blocks.members.ravel()), np.arange(6))
