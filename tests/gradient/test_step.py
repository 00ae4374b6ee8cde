"""One step of the gradient engine against gradients of all trees, and what it must not do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from explicit_trees import every_tree, log_softmax
from quick_jit import quick_jit
from scipy.special import logsumexp
from small_models import (
    LENGTHS,
    LOG_JOINTS,
    N_ROWS,
    NETWORKS,
    K,
    gaussian_log_joint,
    random_parameters,
    random_rows,
)
from step_inputs import make_batches, make_state, same_bits

from pickmix.gradient.adam import Adam
from pickmix.gradient.algorithm import Batch, Root, _update_root
from pickmix.gradient.compilation import precision
from pickmix.gradient.settings import StepSettings

# -- the gradient of one selection step --------------------------------------------------------


@pytest.fixture(scope="module")
def dense_gradient():
    """Gradient of sum_i w_i log p(x_i, z_i) with respect to whole tables and logits."""

    def compute(name, tables, logits, x, trees, weights):
        network = NETWORKS[name]

        def objective(tables, logits):
            parameters = network.gather(tables, trees)
            log_joint = network.log_density(parameters, trees, x)
            log_joint = log_joint + jax.nn.log_softmax(logits)[trees[:, 0]]
            return jnp.sum(weights * log_joint)

        with precision("float64"):
            gradients = quick_jit(jax.grad(objective, (0, 1)))(tables, logits)
        return jax.tree.map(np.asarray, gradients)

    return compute


@pytest.mark.parametrize("name", ["flows", "trees"])
def test_row_gradients_are_the_dense_gradients(name, programs, dense_gradient):
    network, n_samples, rate = NETWORKS[name], 3, 0.01
    tables, logits = random_parameters(name)
    x = random_rows(name)
    rng = np.random.default_rng(5)
    batches = make_batches(network, N_ROWS, LENGTHS[n_samples], n_samples, rate=rate)
    weights = rng.random((LENGTHS[n_samples], N_ROWS)) / N_ROWS
    # Chains and candidates never go to the last child of the root, so its rows are not visited.
    candidates = batches.candidates.copy()
    candidates[..., 0] %= network.n_children - 1
    batches = batches._replace(weights=weights, candidates=candidates)
    chain = rng.integers(network.n_children, size=(N_ROWS, network.n_slots))
    chain[:, 0] %= network.n_children - 1
    state = make_state(tables, logits, chain)
    program = programs(name, algorithm="mhsaem", n_samples=n_samples)
    found, summary = program(x, state, batches, 1)
    assert summary.refused == 0

    # What was selected: M states for each row.
    states = summary.states[0]
    np.testing.assert_array_equal(states[:, -1], found.chain)
    trees = states.reshape(-1, network.n_slots)
    pair_weights = np.repeat(weights[0] / n_samples, n_samples)
    gradients, logits_gradient = dense_gradient(
        name, tables, logits, np.repeat(x, n_samples, axis=0), trees, pair_weights
    )
    for table, new, adam, gradient, rows in zip(
        tables, found.tables, found.adams, gradients, network.rows(trees), strict=True
    ):
        visited = np.isin(np.arange(len(table)), rows)
        assert not visited.all()
        # Adam goes down, so its gradient is that of minus the objective.
        np.testing.assert_allclose(adam.first, -0.1 * gradient, atol=1e-12)
        np.testing.assert_allclose(adam.second, 0.001 * gradient**2, atol=1e-14)
        np.testing.assert_array_equal(adam.updates, visited.astype(float))
        step = rate * gradient / (np.abs(gradient) + 1e-8)
        np.testing.assert_allclose(new, table + step, atol=1e-8)
        assert same_bits(new[~visited], table[~visited])
    # The root's: e_z - pi for each pair.
    chosen = np.eye(network.n_children)[trees[:, 0]]
    expected = pair_weights @ (chosen - np.exp(log_softmax(logits)))
    np.testing.assert_allclose(logits_gradient, expected, atol=1e-12)
    np.testing.assert_allclose(found.root.adam.first[0], -0.1 * expected, atol=1e-12)
    step = rate * expected / (np.abs(expected) + 1e-8)
    np.testing.assert_allclose(found.root.logits, logits + step, atol=1e-8)


# -- steps that are not made, and rows that do not count ------------------------------------------


def trained(name, programs, n_samples=1, n_steps=3):
    """A state with moments, and batches to go on with."""
    network = NETWORKS[name]
    tables, logits = random_parameters(name)
    chain = np.random.default_rng(11).integers(network.n_children, size=(N_ROWS, network.n_slots))
    batches = make_batches(network, N_ROWS, LENGTHS[n_samples], n_samples, seed=4, rate=0.01)
    program = programs(name, algorithm="mhsaem", n_samples=n_samples)
    state, _ = program(random_rows(name), make_state(tables, logits, chain), batches, n_steps)
    return program, state, batches


def step_of(batches, number):
    """The same batches with another one in front."""
    return jax.tree.map(lambda values: np.roll(values, -number, axis=0), batches)


def test_only_the_steps_that_are_asked_for_are_made(programs):
    program, state, batches = trained("gaussians", programs)
    x = random_rows("gaussians")
    assert same_bits(program(x, state, batches, 0)[0], state)
    together, summary = program(x, state, batches, 3)
    # States of steps that were not made stay zero.
    assert not summary.states[3:].any()
    one_by_one = state
    for number in range(3):
        one_by_one, _ = program(x, one_by_one, step_of(batches, number), 1)
    assert same_bits(together, one_by_one)
    assert not same_bits(together, program(x, state, batches, 4)[0])


@pytest.mark.parametrize("name", ["gaussians", "trees"])
def test_a_step_that_meets_a_nan_is_refused(name, programs):
    n_samples = 1 if name == "gaussians" else 3
    program, state, batches = trained(name, programs, n_samples)
    broken = random_rows(name)
    broken[17, 1] = np.nan
    found, summary = program(broken, state, batches, 1)
    assert summary.refused == 1
    assert same_bits(found, state)
    found, summary = program(broken, state, batches, 2)
    assert summary.refused == 2
    assert same_bits(found, state)
    assert np.isfinite(summary.acceptances.sum())


def test_steps_after_a_refused_one_are_made(programs):
    """The others are those of a run that never met the row."""
    program, state, batches = trained("gaussians", programs)
    broken = random_rows("gaussians")
    broken[17] = np.nan
    rows = batches.rows.copy()
    rows[[0, 2], 17] = 18
    rows[[0, 2], 18] = 19
    batches = batches._replace(rows=rows)
    found, summary = program(broken, state, batches, 3)
    assert summary.refused == 1
    expected, _ = program(broken, state, step_of(batches, 0), 1)
    expected, _ = program(broken, expected, step_of(batches, 2), 1)
    assert same_bits(found, expected)


def test_rows_that_fill_up_neither_move_nor_count(programs):
    """Half a batch, filled up, makes the same chains, shares and gradients as it would alone."""
    program, state, batches = trained("gaussians", programs)
    x = random_rows("gaussians")
    half = N_ROWS // 2
    filled = batches._replace(rows=batches.rows.copy(), weights=batches.weights.copy())
    filled.rows[:, half:] = N_ROWS
    filled.weights[:, :half] = 1.0 / half
    filled.weights[:, half:] = 0.0
    # Candidates of the filling rows are a component that no other row is on.
    filled.candidates[:, :half] %= K - 1
    filled.candidates[:, half:] = K - 1
    filled.uniforms[:, half:] = 0.0
    state = state._replace(chain=state.chain % (K - 1))
    found, summary = program(x, state, filled, 1)
    assert same_bits(found.chain[half:], state.chain[half:])
    assert summary.refused == 0
    # Nor is their component visited.
    assert same_bits(found.tables[0][-1], state.tables[0][-1])
    for new, old in zip(found.adams[0], state.adams[0], strict=True):
        assert same_bits(new[-1], old[-1])
    shares = np.bincount(found.chain[:half, 0], minlength=K) / half
    gradient = np.exp(log_softmax(state.root.logits)) - shares
    expected = 0.9 * state.root.adam.first[0] + 0.1 * gradient
    np.testing.assert_allclose(found.root.adam.first[0], expected, atol=1e-12)
    log_joint = gaussian_log_joint(state.tables, state.root.logits, x[:half])
    before = np.take_along_axis(log_joint, state.chain[:half].T, axis=0)[0]
    after = np.take_along_axis(log_joint, filled.candidates[0, :half, 0].T, axis=0)[0]
    acceptance = np.minimum(1.0, np.exp(after - before)).sum()
    assert float(summary.acceptances.sum()) == pytest.approx(acceptance, rel=1e-12)


# -- options ---------------------------------------------------------------------------------------


def test_long_gradients_are_clipped(programs):
    network = NETWORKS["gaussians"]
    tables, logits = random_parameters("gaussians")
    x = random_rows("gaussians")
    state = make_state(tables, logits, np.zeros((N_ROWS, 1)))
    batches = make_batches(network, N_ROWS, LENGTHS[1], 1, rate=0.01)
    free, _ = programs("gaussians", algorithm="mhsaem")(x, state, batches, 1)
    gradient, root_gradient = 10 * free.adams[0].first, 10 * free.root.adam.first
    norm = np.sqrt(np.sum(gradient**2))
    clipped, _ = programs("gaussians", algorithm="mhsaem", gradient_clip=0.1)(x, state, batches, 1)
    assert norm > 0.1
    np.testing.assert_allclose(10 * clipped.adams[0].first, 0.1 / norm * gradient, atol=1e-14)
    np.testing.assert_allclose(10 * clipped.root.adam.first, 0.1 / norm * root_gradient, atol=1e-14)
    # A short gradient is left as it is: weights a hundredth as large.
    batches = batches._replace(weights=0.01 * batches.weights)
    short, _ = programs("gaussians", algorithm="mhsaem", gradient_clip=0.1)(x, state, batches, 1)
    np.testing.assert_allclose(10 * short.adams[0].first, 0.01 * gradient, atol=1e-16)


def test_closed_form_weights_move_towards_the_shares(programs):
    network = NETWORKS["gaussians"]
    tables, logits = random_parameters("gaussians")
    x = random_rows("gaussians")
    state = make_state(tables, logits, np.zeros((N_ROWS, 1)))
    program = programs("gaussians", algorithm="mhsaem", closed_form_weights=True)
    weights = np.exp(log_softmax(logits))
    for gamma in (0.3, 1.0):
        batches = make_batches(network, N_ROWS, LENGTHS[1], 1, gamma=gamma)
        # The last component is selected by no row.
        batches.candidates[...] %= K - 1
        found, _ = program(x, state, batches, 1)
        shares = np.bincount(found.chain[:, 0], minlength=K) / N_ROWS
        assert shares[-1] == 0.0
        expected = np.maximum((1 - gamma) * weights + gamma * shares, 1e-4 / K)
        np.testing.assert_allclose(np.exp(found.root.logits), expected, rtol=1e-12)
        assert same_bits(found.root.adam, state.root.adam)


# -- dense steps -----------------------------------------------------------------------------------


def directional_differences(function, tables, gradients, step=1e-5, n_directions=5):
    """Central differences of a function of tables along random directions, and the gradient's."""
    rng = np.random.default_rng(6)
    for _ in range(n_directions):
        directions = [rng.normal(size=table.shape) for table in tables]
        ahead, behind = (
            function(
                [table + sign * step * way for table, way in zip(tables, directions, strict=True)]
            )
            for sign in (1.0, -1.0)
        )
        expected = sum((g * way).sum() for g, way in zip(gradients, directions, strict=True))
        yield (ahead - behind) / (2 * step), expected


@pytest.mark.parametrize("name", ["gaussians", "trees"])
def test_dense_steps_follow_the_exact_gradient(name, programs):
    network, log_joint_of = NETWORKS[name], LOG_JOINTS[name]
    tables, logits = random_parameters(name)
    x = random_rows(name)[:4]
    weights = np.array([0.1, 0.4, 0.3, 0.2])
    state = make_state(tables, logits, np.zeros((4, network.n_slots)))
    log_joint = log_joint_of(tables, logits, x)
    first = every_tree(network)[:, 0]
    program = programs(name, algorithm="em")
    for beta in (1.0, 0.5):
        batches = make_batches(network, 4, 1, 1, beta=beta, rate=0.01)
        batches.weights[0] = weights
        found, summary = program(x, state, batches)
        assert summary.refused == 0
        gradients = [-10 * adam.first for adam in found.adams]
        # Responsibilities by enumeration, frozen while the parameters move.
        tempered = beta * log_joint
        responsibilities = np.exp(tempered - logsumexp(tempered, axis=0))

        def expectation(tables, responsibilities=responsibilities):
            return np.sum(weights * responsibilities * log_joint_of(tables, logits, x))

        def log_likelihood(tables):
            return np.sum(weights * logsumexp(log_joint_of(tables, logits, x), axis=0))

        functions = [expectation, log_likelihood] if beta == 1.0 else [expectation]
        for function in functions:
            for difference, expected in directional_differences(function, tables, gradients):
                assert difference == pytest.approx(expected, rel=1e-6, abs=1e-8)
        shares = np.array([responsibilities[first == z].sum(0) for z in range(network.n_children)])
        root = weights @ shares.T - np.exp(log_softmax(logits))
        np.testing.assert_allclose(-10 * found.root.adam.first[0], root, atol=1e-12)
        for adam in found.adams:
            np.testing.assert_array_equal(adam.updates, 1.0)


def test_em_and_sgd_make_the_same_step(programs):
    tables, logits = random_parameters("gaussians")
    x = random_rows("gaussians")[:4]
    state = make_state(tables, logits, np.zeros((4, 1)))
    batches = make_batches(NETWORKS["gaussians"], 4, 1, 1, rate=0.01)
    by_em, _ = programs("gaussians", algorithm="em")(x, state, batches)
    by_sgd, _ = programs("gaussians", algorithm="sgd")(x, state, batches)
    assert same_bits(by_em, by_sgd)
    assert not same_bits(by_em, state)
    x[2] = np.nan
    refused, summary = programs("gaussians", algorithm="sgd")(x, state, batches)
    assert summary.refused == 1
    assert same_bits(refused, state)


@pytest.mark.parametrize("closed_form", [False, True])
def test_a_child_without_rows_keeps_some_weight(closed_form):
    settings = StepSettings("mhsaem", closed_form_weights=closed_form)
    one, shares = jnp.ones(()), jnp.array([1.0, 0.0])
    batch = Batch(*[one] * len(Batch._fields))
    logits = jnp.array([0.0, -40.0])
    root = Root(logits, Adam.start(logits[None]))
    root = _update_root(root, shares, one, batch, one > 0.0, settings)
    np.testing.assert_allclose(np.exp(root.log_weights)[1], 0.5e-4, rtol=1e-3)
