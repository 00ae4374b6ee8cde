"""Random-partition Gibbs leaves the posterior invariant, and its weights have it as their mean."""

import numpy as np
import pytest
from scipy import stats

from pickmix.selection.partitions import Partition, RandomPartition, Tree, draw_partition
from pickmix.selection.randomness import StepRandomness
from pickmix.selection.rules import PartitionGibbs
from pickmix.threads import Threads

K = 7
N_CHAINS = 20_000
LOG_JOINT = np.array([-1.0, -1.2, -0.7, -2.0, -1.5, -3.0, -0.9])
MEANS = np.random.default_rng(0).normal(size=(K, 2))


class TableEvaluator:
    """Equal rows with the log-joints of LOG_JOINT."""

    n_components = K
    threads = Threads()

    def log_joint(self, candidates):
        return np.where(candidates >= 0, LOG_JOINT[candidates], -np.inf)


def posterior(beta=1.0):
    weights = np.exp(beta * LOG_JOINT)
    return weights / weights.sum()


def rule_at(chain):
    rule = PartitionGibbs(RandomPartition(block_size=3))
    rule.start(chain.astype(np.int32), K)
    return rule


def move(rule, step, beta=1.0, shuffle=0.2):
    random = StepRandomness(5, step)
    rule.partition = draw_partition(MEANS, 3, shuffle, random, Threads())
    return rule.select(TableEvaluator(), np.arange(rule.chain.shape[0]), beta, 1.0, random)


def p_value(chain, beta=1.0):
    return stats.chisquare(np.bincount(chain, minlength=K), chain.shape[0] * posterior(beta)).pvalue


@pytest.mark.parametrize("beta", [1.0, 0.4, 1.6])
def test_the_posterior_stays(beta):
    rng = np.random.default_rng(1)
    rule = rule_at(rng.choice(K, N_CHAINS, p=posterior(beta)))
    for step in range(5):
        move(rule, step, beta)
        assert p_value(rule.chain, beta) > 1e-4


@pytest.mark.parametrize("shuffle", [0.05, 0.5])
def test_chains_come_to_the_posterior_from_anywhere(shuffle):
    rule = rule_at(np.full(N_CHAINS, 5))
    for step in range(200):
        move(rule, step, shuffle=shuffle)
    assert p_value(rule.chain) > 1e-4


def test_weights_have_the_posterior_as_their_mean():
    # By enumeration: sum_z p(z) w(z -> k) = p(k), whatever the partition.
    for step in range(20):
        rule = rule_at(np.arange(K))
        selection = move(rule, step)
        weights = np.zeros((K, K))
        inside = selection.components >= 0
        rows = np.broadcast_to(np.arange(K)[:, None], inside.shape)[inside]
        weights[rows, selection.components[inside]] = selection.weights[inside]
        np.testing.assert_allclose(posterior() @ weights, posterior(), rtol=1e-12)
        assert selection.evaluations == inside.sum()


def test_one_block_of_all_is_the_exact_posterior():
    tree = Tree(np.empty((0, 2)), np.empty(0), np.empty((0, 2), dtype=np.int32), -1)
    rule = rule_at(np.arange(K))
    rule.partition = Partition(np.arange(K, dtype=np.int32), np.array([0, K]), tree)
    selection = rule.select(TableEvaluator(), np.arange(K), 1.0, 1.0, StepRandomness(0, 1))
    np.testing.assert_allclose(selection.weights, np.tile(posterior(), (K, 1)), rtol=1e-12)


def test_chains_stay_within_their_block():
    rule = rule_at(np.random.default_rng(0).integers(K, size=500))
    before = rule.chain.copy()
    move(rule, 3)
    block = np.empty(K, dtype=int)
    block[rule.partition.members] = rule.partition.block_of_position()
    np.testing.assert_array_equal(block[before], block[rule.chain])
