"""The laws of the selection rules, on tables of log-joints: no Gaussian in sight."""

import numpy as np
import pytest
from scipy import stats

from pickmix.closed_form.rules import (
    ExactPosterior,
    MetropolisHastings,
    PosteriorDraws,
    TopComponents,
)
from pickmix.selection.proposals import (
    Proposal,
    TableForgettingProposal,
    TableProposal,
    UniformProposal,
)
from pickmix.selection.randomness import StepRandomness, Stream

K = 7
N_CHAINS = 4_000
BETAS = [1.0, 0.4, 1.6]
# Three kinds of rows: spread out, nearly decided, and decided with a far second best.
LOG_JOINTS = np.array(
    [
        [-1.0, -1.2, -0.7, -2.0, -1.5, -3.0, -0.9],
        [-4.0, -0.1, -3.0, -2.5, -6.0, -3.3, -2.9],
        [-5.0, -9.0, -4.0, -0.5, -4.4, -12.0, -3.6],
    ]
)


class TableEvaluator:
    """Rows of a few kinds with fixed log-joints (n_kinds, K)."""

    n_components = K

    def __init__(self, log_joint_of_rows, backend):
        self.table = log_joint_of_rows
        self.backend = backend
        self.evaluations = 0

    def log_joint(self, candidates):
        self.evaluations += candidates.size
        return np.take_along_axis(self.table, candidates.astype(np.int64), axis=1)

    def log_joint_all(self):
        self.evaluations += self.table.size
        return np.ascontiguousarray(self.table.T)


class RingProposal(Proposal):
    """A lopsided walk on a ring: depends on the current state, and is not symmetric."""

    independent = False
    jumps = np.array([1, -1, 2, -2, 3, -3])
    probabilities = np.array([0.3, 0.1, 0.2, 0.1, 0.1, 0.2])

    def propose(self, rows, current, n_draws, first_draw, random):
        u = random.uniforms(Stream.PROPOSAL, rows, 1, first_draw)
        which = np.searchsorted(np.cumsum(self.probabilities), u, side="right")
        candidates = (current[:, None] + self.jumps[which]) % K
        # Jumps stand in pairs of opposites.
        log_q_back = np.log(self.probabilities[which ^ 1])
        return candidates, np.log(self.probabilities[which]), log_q_back[:, 0]


class OptimalProposal(Proposal):
    """q(z) = p(z | x), written out as an ordinary proposal."""

    def __init__(self, posterior_of_rows):
        self.posterior = posterior_of_rows

    def propose(self, rows, current, n_draws, first_draw, random):
        u = random.uniforms(Stream.PROPOSAL, rows, n_draws, first_draw)
        cumulative = np.cumsum(self.posterior, axis=1)
        candidates = (u[:, :, None] > cumulative[rows][:, None, :]).sum(axis=2)
        log_q = np.log(np.take_along_axis(self.posterior[rows], candidates, axis=1))
        log_q_current = np.log(self.posterior[rows, current])
        return candidates, log_q, log_q_current


def exact_posterior(log_joint, beta):
    weights = np.exp(beta * (log_joint - log_joint.max(axis=-1, keepdims=True)))
    return weights / weights.sum(axis=-1, keepdims=True)


def run_chains(rule, log_joint, beta, n_visits, backend, step_size=0.3, learn_until=None):
    """Run N_CHAINS independent chains on equal rows; return their states after n_visits."""
    rows = np.arange(N_CHAINS)
    evaluate = TableEvaluator(np.repeat(log_joint[None], N_CHAINS, axis=0), backend)
    chain = np.zeros(N_CHAINS, dtype=np.int32)
    rule.start(chain, K, backend)
    for t in range(1, n_visits + 1):
        if learn_until is not None and t == learn_until:
            rule.proposal.observe = lambda *args: None
        selection = rule.select(evaluate, rows, beta, step_size, StepRandomness(11, t))
    return chain, selection


def p_value(states, expected):
    counts = np.bincount(states, minlength=K)
    return stats.chisquare(counts, expected * counts.sum()).pvalue


RULES = {
    "uniform": (lambda: MetropolisHastings(UniformProposal(), 2), 100, None),
    # Tables learn for some visits and are frozen then: a proposal that learns forever from its own
    # chain is only exact in the limit, a frozen one is exact. T sticks so fast that after 20
    # visits the frozen chain would need thousands of moves to settle.
    "table": (lambda: MetropolisHastings(TableProposal(), 2), 200, 4),
    "table-forgetting": (lambda: MetropolisHastings(TableForgettingProposal(), 2), 100, 20),
    "ring": (lambda: MetropolisHastings(RingProposal(), 3), 150, None),
    "optimal": (lambda: PosteriorDraws(2), 1, None),
}


@pytest.mark.parametrize(("kind", "beta"), list(enumerate(BETAS)))
@pytest.mark.parametrize("name", RULES)
def test_the_chain_settles_on_the_exact_posterior(name, kind, beta, backend):
    make, n_visits, learn_until = RULES[name]
    states, _ = run_chains(
        make(), LOG_JOINTS[kind], beta, n_visits, backend, learn_until=learn_until
    )
    # 30 fixed-seed tests: below 1e-4 would be a one-in-330 accident among all of them.
    assert p_value(states, exact_posterior(LOG_JOINTS[kind], beta)) > 1e-4


def test_the_chi_square_would_notice_a_wrong_acceptance_rule(backend):
    """The same harness with q left out of the ratio of a lopsided proposal must fail."""

    class Careless(RingProposal):
        def propose(self, *args):
            candidates, log_q, log_q_back = super().propose(*args)
            return candidates, np.zeros(log_q.shape), np.zeros(log_q_back.shape)

    states, _ = run_chains(MetropolisHastings(Careless(), 3), LOG_JOINTS[0], 1.0, 150, backend)
    assert p_value(states, exact_posterior(LOG_JOINTS[0], 1.0)) < 1e-10


def test_mhsaem_with_the_optimal_proposal_is_mcsaem(backend):
    """Every draw is accepted, and the selected pairs have the same distribution."""
    beta, n_draws = 1.0, 3
    log_joint = LOG_JOINTS[0]
    posterior = np.repeat(exact_posterior(log_joint, beta)[None], N_CHAINS, axis=0)
    chained = MetropolisHastings(OptimalProposal(posterior), n_draws)
    _, by_chain = run_chains(chained, log_joint, beta, 1, backend)
    _, by_draws = run_chains(PosteriorDraws(n_draws), log_joint, beta, 1, backend)
    assert by_chain.acceptance == pytest.approx(1.0, abs=1e-12)
    assert by_draws.acceptance == 1.0

    def counts(selection):
        """How often each component was selected 1, 2 or 3 times out of 3."""
        times = np.rint(selection.weights * n_draws).astype(int)
        kept = selection.components >= 0
        codes = selection.components[kept] * n_draws + times[kept] - 1
        return np.bincount(codes, minlength=K * n_draws)

    table = np.array([counts(by_chain), counts(by_draws)])
    assert stats.chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue > 1e-4


def test_acceptance_is_the_mean_of_alpha(backend):
    """One move from a known state with U: E[alpha] = mean_k min(1, p_k / p_current)."""
    log_joint = LOG_JOINTS[1]
    _, selection = run_chains(MetropolisHastings(UniformProposal(), 1), log_joint, 1.0, 1, backend)
    alpha = np.minimum(1.0, np.exp(log_joint - log_joint[0]))
    standard_error = alpha.std() / np.sqrt(N_CHAINS)
    assert abs(selection.acceptance - alpha.mean()) < 4 * standard_error


def test_evaluations_are_counted_as_made(backend):
    rows = np.arange(100)
    table = np.repeat(LOG_JOINTS[:1], 100, axis=0)
    for rule in (
        ExactPosterior(),
        TopComponents(2),
        PosteriorDraws(2),
        MetropolisHastings(UniformProposal(), 4),
        MetropolisHastings(RingProposal(), 4),
    ):
        evaluate = TableEvaluator(table, backend)
        rule.start(np.zeros(100, dtype=np.int32), K, backend)
        selection = rule.select(evaluate, rows, 1.0, 0.1, StepRandomness(0, 1))
        assert selection.evaluations == evaluate.evaluations


def test_a_proposal_works_as_its_rule_does(backend):
    rule = MetropolisHastings(UniformProposal(), 1)
    rule.start(np.zeros(3, dtype=np.int32), K, backend)
    assert rule.proposal.table_type is backend.Table


@pytest.mark.parametrize("beta", BETAS)
def test_exact_posterior_gives_responsibilities_and_likelihoods(beta, backend):
    evaluate = TableEvaluator(LOG_JOINTS, backend)
    selection = ExactPosterior().select(evaluate, np.arange(3), beta, 1.0, StepRandomness(0, 1))
    np.testing.assert_allclose(selection.weights.T, exact_posterior(LOG_JOINTS, beta), rtol=1e-13)
    expected = np.log(np.exp(LOG_JOINTS).sum(axis=1))
    np.testing.assert_allclose(selection.log_likelihood, expected, rtol=1e-13)


@pytest.mark.parametrize("beta", BETAS)
def test_top_components_renormalises_the_best(beta, backend):
    evaluate = TableEvaluator(LOG_JOINTS, backend)
    selection = TopComponents(3).select(evaluate, np.arange(3), beta, 1.0, StepRandomness(0, 1))
    order = np.argsort(-LOG_JOINTS, axis=1)[:, :3]
    np.testing.assert_array_equal(selection.components, order)
    kept = np.take_along_axis(LOG_JOINTS, order, axis=1)
    np.testing.assert_allclose(selection.weights, exact_posterior(kept, beta), rtol=1e-13)


def test_weights_sum_to_one_and_components_are_distinct(backend):
    rule = MetropolisHastings(UniformProposal(), 5)
    _, selection = run_chains(rule, LOG_JOINTS[0], 1.0, 3, backend)
    np.testing.assert_allclose(selection.weights.sum(axis=1), 1.0, rtol=1e-12)
    for row in selection.components[:200]:
        used = row[row >= 0]
        assert len(set(used.tolist())) == used.size


@pytest.mark.parametrize("proposal", [UniformProposal, RingProposal])
def test_reused_log_joints_change_nothing_while_parameters_stand_still(proposal, backend):
    fresh = MetropolisHastings(proposal(), 2)
    reused = MetropolisHastings(proposal(), 2, reuse_log_joint=True)
    states, by_fresh = run_chains(fresh, LOG_JOINTS[0], 1.0, 5, backend)
    again, by_reused = run_chains(reused, LOG_JOINTS[0], 1.0, 5, backend)
    np.testing.assert_array_equal(states, again)
    assert by_fresh.evaluations == 3 * N_CHAINS
    assert by_reused.evaluations == 2 * N_CHAINS


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        (lambda n: np.full((n, 1), K), r"Wrong.propose must return candidates in \[0, 7\)"),
        (lambda n: np.full((n, 1), -1), r"Wrong.propose must return candidates in \[0, 7\)"),
        (lambda n: np.zeros((n, 2), dtype=int), "integer candidates of shape"),
        (lambda n: np.zeros((n, 1)), "integer candidates of shape"),
    ],
)
def test_wrong_candidates_of_a_users_proposal_are_named(candidates, message, backend):
    class Wrong(Proposal):
        def propose(self, rows, current, n_draws, first_draw, random):
            return candidates(rows.size), 0.0, 0.0

    with pytest.raises(ValueError, match=message):
        run_chains(MetropolisHastings(Wrong(), 1), LOG_JOINTS[0], 1.0, 1, backend)


def test_a_users_log_q_must_be_finite(backend):
    class Lost(Proposal):
        def propose(self, rows, current, n_draws, first_draw, random):
            return np.zeros((rows.size, n_draws), dtype=int), np.nan, 0.0

    with pytest.raises(ValueError, match=r"Lost\.propose must return finite log q"):
        run_chains(MetropolisHastings(Lost(), 1), LOG_JOINTS[0], 1.0, 1, backend)


@pytest.mark.parametrize("beta", BETAS)
def test_rows_that_nothing_explains_select_nothing(beta, backend):
    table = np.full((2, K), -np.inf)
    table[1] = LOG_JOINTS[0]
    evaluate = TableEvaluator(table, backend)
    selection = TopComponents(3).select(evaluate, np.arange(2), beta, 1.0, StepRandomness(0, 1))
    assert (selection.components[0] == -1).all()
    assert (selection.weights[0] == 0.0).all()
    assert selection.weights[1].sum() == pytest.approx(1.0)
