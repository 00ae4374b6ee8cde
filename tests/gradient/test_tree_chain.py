"""The chains of the gradient engine against exact posteriors; parameters stand still."""

import jax.numpy as jnp
import numpy as np
import pytest
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
from step_inputs import Program, make_batches, make_state, numbers_of, p_value, same_bits

from pickmix.gradient.settings import StepSettings


def two_kinds_of_rows(name):
    """Rows that are copies of two points: their chains are independent draws."""
    return np.repeat(random_rows(name)[:2], N_ROWS // 2, axis=0)


def posteriors(name, beta):
    """Exact p(z | x)^beta, normalised, for the two kinds of rows."""
    tables, logits = random_parameters(name)
    tempered = beta * LOG_JOINTS[name](tables, logits, two_kinds_of_rows(name)[:: N_ROWS // 2])
    return np.exp(tempered - logsumexp(tempered, axis=0)).T


def p_values(name, trees, beta):
    """One for each kind of row; trees (N, ..., n_slots)."""
    numbers = numbers_of(NETWORKS[name], trees)
    halves = np.split(numbers, 2)
    return [p_value(*pair) for pair in zip(halves, posteriors(name, beta), strict=True)]


@pytest.mark.parametrize("name", ["gaussians", "triangular trees"])
def test_moves_are_those_of_metropolis_and_hastings(name, programs):
    """M moves by the book, with the same candidates and uniforms and any numbers for log q."""
    network, n_samples, beta = NETWORKS[name], 3, 0.7
    tables, logits = random_parameters(name)
    x = random_rows(name)
    rng = np.random.default_rng(6)
    chain = rng.integers(network.n_choices, size=(N_ROWS, network.n_slots))
    batches = make_batches(network, N_ROWS, LENGTHS[n_samples], n_samples, beta=beta)
    batches.log_q[0] = rng.normal(size=(N_ROWS, n_samples))
    batches.log_q_current[0] = rng.normal(size=N_ROWS)
    program = programs(name, algorithm="mhsaem", n_samples=n_samples)
    found, summary = program(x, make_state(tables, logits, chain), batches, 1)

    log_joint = LOG_JOINTS[name](tables, logits, x)
    every = np.arange(N_ROWS)
    current, log_q_current = numbers_of(network, chain), batches.log_q_current[0].copy()
    candidates = numbers_of(network, batches.candidates[0])
    acceptance = 0.0
    for draw in range(n_samples):
        proposed, log_q = candidates[:, draw], batches.log_q[0, :, draw]
        ratio = beta * (log_joint[proposed, every] - log_joint[current, every])
        probability = np.minimum(1.0, np.exp(ratio + log_q_current - log_q))
        accepted = batches.uniforms[0, :, draw] < probability
        current = np.where(accepted, proposed, current)
        log_q_current = np.where(accepted, log_q, log_q_current)
        acceptance += probability.sum() / n_samples
        np.testing.assert_array_equal(numbers_of(network, summary.states[0, :, draw]), current)
    np.testing.assert_array_equal(numbers_of(network, found.chain), current)
    assert float(summary.acceptances.sum()) == pytest.approx(acceptance, rel=1e-10)


@pytest.mark.parametrize(
    ("name", "n_samples", "beta"),
    [("gaussians", 1, 0.5), ("triangular trees", 3, 1.0)],
)
def test_the_chain_settles_on_the_exact_posterior(name, n_samples, beta, programs):
    network = NETWORKS[name]
    tables, logits = random_parameters(name)
    state = make_state(tables, logits, np.zeros((N_ROWS, network.n_slots)))
    batches = make_batches(network, N_ROWS, LENGTHS[n_samples], n_samples, seed=2, beta=beta)
    program = programs(name, algorithm="mhsaem", n_samples=n_samples)
    found, summary = program(two_kinds_of_rows(name), state, batches)
    # A rate of zero: only the chains move.
    assert same_bits(found.tables, state.tables)
    assert same_bits(found.root.logits, state.root.logits)
    assert summary.refused == 0
    assert min(p_values(name, found.chain, beta)) > 1e-4


@pytest.mark.parametrize("name", ["plain trees"])
def test_mcsaem_draws_from_the_exact_posterior(name, programs):
    network, n_samples = NETWORKS[name], 2
    tables, logits = random_parameters(name)
    state = make_state(tables, logits, np.zeros((N_ROWS, network.n_slots)))
    program = programs(name, algorithm="mcsaem", n_samples=n_samples)
    for beta in (1.0, 0.5):
        batches = make_batches(network, N_ROWS, 1, n_samples, beta=beta)
        uniforms = np.random.default_rng(12).random((1, N_ROWS, n_samples, network.n_slots))
        found, summary = program(
            two_kinds_of_rows(name), state, batches._replace(uniforms=uniforms)
        )
        np.testing.assert_array_equal(found.chain, summary.states[0, :, -1])
        assert summary.acceptances.sum() == N_ROWS
        assert min(p_values(name, summary.states[0], beta)) > 1e-4


def test_proposals_that_depend_on_the_state_are_asked_again(programs):
    """A lopsided walk on a ring, whose q of the second draw depends on the first's outcome."""
    network, n_samples, n_steps = NETWORKS["gaussians"], 3, 40
    jumps = np.array([1, -1, 2, -2])
    log_q = np.log([0.4, 0.1, 0.15, 0.35])
    rng = np.random.default_rng(9)
    drawn = rng.choice(4, (n_steps, n_samples, N_ROWS), p=np.exp(log_q))

    def propose_again(rows, current, draw, step):
        which = jnp.asarray(drawn)[step - 1, draw]
        candidates = (current[:, 0] + jnp.asarray(jumps)[which]) % K
        # Jumps stand in pairs of opposites.
        back = jnp.asarray(log_q)[which ^ 1]
        return candidates[:, None, None].astype(jnp.int32), jnp.asarray(log_q)[which][:, None], back

    program = Program(
        network,
        StepSettings("mhsaem", n_samples, propose_again=propose_again),
        returns_states=False,
    )
    tables, logits = random_parameters("gaussians")
    state = make_state(tables, logits, np.zeros((N_ROWS, 1)))
    batches = make_batches(network, N_ROWS, n_steps, n_samples, seed=3)
    first = batches._replace(candidates=batches.candidates[:, :, :1], log_q=batches.log_q[:, :, :1])
    for step in range(n_steps):
        which = drawn[step, 0]
        first.candidates[0, :, 0] = (state.chain + jumps[which, None]) % K
        first.log_q[0, :, 0], first.log_q_current[0] = log_q[which], log_q[which ^ 1]
        first.uniforms[0], first.step[0] = batches.uniforms[step], step + 1
        state, _ = program(two_kinds_of_rows("gaussians"), state, first, 1)
    assert min(p_values("gaussians", state.chain, 1.0)) > 1e-4


def test_reused_log_joints_change_nothing_while_parameters_stand_still(programs):
    network, n_samples = NETWORKS["gaussians"], 3
    tables, logits = random_parameters("gaussians")
    x = random_rows("gaussians")
    state = make_state(tables, logits, np.zeros((N_ROWS, 1)))
    batches = make_batches(network, N_ROWS, LENGTHS[n_samples], n_samples)
    fresh, fresh_summary = programs("gaussians", algorithm="mhsaem", n_samples=n_samples)(
        x, state, batches
    )
    log_joint = gaussian_log_joint(tables, logits, x)
    reused, reused_summary = programs(
        "gaussians", algorithm="mhsaem", n_samples=n_samples, reuse_log_joint=True
    )(x, state._replace(log_joint=log_joint[0]), batches)
    np.testing.assert_array_equal(reused_summary.states, fresh_summary.states)
    for one, other in zip(reused.adams, fresh.adams, strict=True):
        np.testing.assert_allclose(one.first, other.first, atol=1e-13)
    # What is kept for the next visit is the value where the chain stands.
    here = np.take_along_axis(log_joint, reused.chain.T, axis=0)[0]
    np.testing.assert_allclose(reused.log_joint, here, atol=1e-12)
