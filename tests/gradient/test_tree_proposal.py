"""Proposals for trees whose sum nodes have different numbers of children."""

import numpy as np
import pytest
from scipy import stats

from pickmix.gradient.candidates import TreeProposal
from pickmix.selection.proposals import TableProposal, UniformProposal

N_CHOICES = (5, 2, 3, 2)
N_ROWS = 4000


def make(proposal, n_choices=N_CHOICES, n_draws=2):
    return TreeProposal(proposal, N_ROWS, n_choices, n_draws, 0, np.dtype(np.float64))


def test_uniform_choices_at_every_slot_independent_of_each_other():
    rows = np.arange(N_ROWS)
    current = np.zeros((N_ROWS, 4), np.int32)
    drawn, log_q, log_q_current = make(UniformProposal()).propose(rows, current, 2, 0, 1)
    assert drawn.shape == (N_ROWS, 2, 4)
    assert not log_q.any()
    assert not log_q_current.any()
    numbers = np.ravel_multi_index(np.moveaxis(drawn, -1, 0), N_CHOICES)
    counts = np.bincount(numbers.ravel(), minlength=60)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_what_is_learnt_of_one_slot_stays_there_and_can_be_taken_up():
    rows = np.arange(N_ROWS)
    visited = np.tile(np.array([4, 1, 2, 0], np.int32), (N_ROWS, 1))
    taught = make(TableProposal())
    for _ in range(30):
        taught.observe(rows, np.repeat(visited[:, None], 2, axis=1), 0.5)
    other = make(TableProposal())
    other.restore(taught.content())
    results = [each.propose(rows, visited, 2, 0, 7) for each in (taught, other)]
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)
    candidates, log_q, log_q_current = results[0]
    share = (candidates == visited[:, None]).mean(axis=(0, 1))
    assert (share > 0.9).all()
    # A tree's log q is the sum of its choices', so equal trees have equal ones.
    same = (candidates == visited[:, None]).all(axis=2)
    np.testing.assert_allclose(
        log_q[same], np.repeat(log_q_current[:, None], 2, axis=1)[same], atol=1e-12
    )


@pytest.mark.parametrize("kind", [UniformProposal, TableProposal])
def test_equal_numbers_need_one_proposal(kind):
    proposal = kind()
    make(proposal, (3, 3, 3))
    assert proposal.n_components == 3
    assert len(make(kind(), (3, 3)).content()["groups"]) == 1
