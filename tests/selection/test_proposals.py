"""The stored tables against the paper's recursions on dense N x K tables."""

import numpy as np
import pytest
from scipy import stats

from pickmix.selection.proposals import TableForgettingProposal, TableProposal
from pickmix.selection.randomness import StepRandomness

N, K = 400, 9


def dense_table(visits, forgetting):
    """n_{i,t} = (1 - e_z gamma_t) n_{i,t-1} + gamma_t e_z, or counts, from 1/K per entry."""
    table = np.full((N, K), 1.0 / K)
    for rows, states, gamma in visits:
        for row, chain in zip(rows, states, strict=True):
            for z in chain:
                if forgetting:
                    table[row, z] = (1.0 - gamma) * table[row, z] + gamma
                else:
                    table[row, z] += 1.0
    return table


@pytest.mark.parametrize(
    ("proposal", "forgetting"), [(TableForgettingProposal(), True), (TableProposal(), False)]
)
def test_tables_follow_the_recursion(proposal, forgetting, backend):
    rng = np.random.default_rng(0)
    proposal.table_type = backend.Table
    proposal.start(N, K)
    visits = []
    for t in range(30):
        rows = rng.choice(N, 150, replace=False)
        states = rng.integers(0, 5, (150, 3)).astype(np.int32)
        gamma = 1.0 if t < 3 else 0.2
        proposal.observe(rows, states, gamma)
        visits.append((rows, states, gamma))
    table = dense_table(visits, forgetting)
    expected = table / table.sum(axis=1, keepdims=True)
    rows = np.arange(N)
    for k in range(K):
        current = np.full(N, k, dtype=np.int32)
        candidates, log_q, log_q_current = proposal.propose(
            rows, current, 4, 0, StepRandomness(0, 1)
        )
        np.testing.assert_allclose(np.exp(log_q_current), expected[:, k], rtol=1e-10)
        np.testing.assert_allclose(
            np.exp(log_q), np.take_along_axis(expected, candidates.astype(int), axis=1), rtol=1e-10
        )


def test_draws_follow_the_table(backend):
    proposal = TableForgettingProposal()
    proposal.table_type = backend.Table
    n = 10_000
    proposal.start(n, K)
    rows = np.arange(n)
    states = np.tile(np.array([[2, 5, 2]], dtype=np.int32), (n, 1))
    proposal.observe(rows, states, 0.3)
    table = np.full(K, 1.0 / K)
    for z in (2, 5, 2):
        table[z] = 0.7 * table[z] + 0.3
    candidates, _, _ = proposal.propose(rows, states[:, 0], 2, 0, StepRandomness(5, 1))
    counts = np.bincount(candidates.ravel(), minlength=K)
    assert stats.chisquare(counts, counts.sum() * table / table.sum()).pvalue > 1e-4
