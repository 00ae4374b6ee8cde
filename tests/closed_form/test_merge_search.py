"""The cheapest merges are found, among neighbours and in every number of components."""

import numpy as np
import pytest
from scipy.cluster.hierarchy import is_monotonic, is_valid_linkage

from pickmix.families.gaussian import FullGaussian, SphericalGaussian
from pickmix.families.layout import Moments
from pickmix.kernels import numba_kernels, numpy_kernels
from pickmix.model.merging import LevelSums, find_merges
from pickmix.threads import use_threads


def full_mixture(n_components, n_columns, seed=0):
    random = np.random.default_rng(seed)
    factors = 0.3 * random.normal(size=(n_components, n_columns, n_columns))
    covariances = factors @ factors.transpose(0, 2, 1) + 0.05 * np.eye(n_columns)
    means = random.normal(size=(n_components, n_columns))
    weights = random.dirichlet(np.full(n_components, 2.0))
    family = FullGaussian(n_columns, 0.0)
    moments = family.moments_of({"means": means, "covariances": covariances}, np.zeros(n_columns))
    return family, moments._replace(mass=weights), weights, means, covariances


def merge(weights, means, covariances, i, j):
    """Weight, mean and covariance of two components together."""
    w = weights[i] + weights[j]
    mean = (weights[i] * means[i] + weights[j] * means[j]) / w
    away = means[i] - means[j]
    covariance = (weights[i] * covariances[i] + weights[j] * covariances[j]) / w
    return w, mean, covariance + weights[i] * weights[j] / w**2 * np.outer(away, away)


def runnalls(weights, means, covariances, i, j):
    """The cost of a merge as the paper writes it."""
    w, _, covariance = merge(weights, means, covariances, i, j)
    terms = [weights[k] * np.linalg.slogdet(covariances[k])[1] for k in (i, j)]
    return 0.5 * (w * np.linalg.slogdet(covariance)[1] - sum(terms))


def greedy(weights, means, covariances):
    """Merges of the cheapest pair of all, one after another: sets of leaves, and costs."""
    nodes = {
        frozenset([k]): (weights[k], means[k], covariances[k]) for k in range(weights.shape[0])
    }
    made, costs = [], []
    while len(nodes) > 1:
        names = list(nodes)
        arrays = [np.array(part) for part in zip(*nodes.values(), strict=True)]
        pairs = [(i, j) for i in range(len(names)) for j in range(i)]
        actual = [runnalls(*arrays, i, j) for i, j in pairs]
        i, j = pairs[int(np.argmin(actual))]
        merged = merge(*arrays, i, j)
        del nodes[names[i]], nodes[names[j]]
        nodes[names[i] | names[j]] = merged
        made.append(names[i] | names[j])
        costs.append(min(actual))
    return made, costs


def leaves_of(merges):
    n = merges.costs.shape[0] + 1
    nodes = [frozenset([k]) for k in range(n)]
    for a, b in merges.children.tolist():
        nodes.append(nodes[a] | nodes[b])
    return nodes


def as_linkage(merges):
    sizes = [len(leaves) for leaves in leaves_of(merges)][merges.costs.shape[0] + 1 :]
    return np.column_stack([merges.children, np.maximum.accumulate(merges.costs), sizes])


def test_merges_are_those_of_the_cheapest_pair_of_all():
    family, moments, *arrays = full_mixture(40, 3)
    merges = find_merges(family, moments, numpy_kernels)
    made, costs = greedy(*arrays)
    assert set(leaves_of(merges)[40:]) == set(made)
    assert np.sort(merges.costs) == pytest.approx(np.sort(costs), abs=1e-12)


def test_neighbours_of_trees_find_nearly_the_merges_of_all_pairs(monkeypatch):
    family, moments, *_ = full_mixture(400, 3)
    by_trees = find_merges(family, moments, numpy_kernels)
    monkeypatch.setattr("pickmix.model.merging._ALL_PAIRS", 1000)
    by_all = find_merges(family, moments, numpy_kernels)
    # What half of the components, and nine tenths, cost to merge away.
    for n_merges in (200, 360):
        ratio = by_trees.costs[:n_merges].sum() / by_all.costs[:n_merges].sum()
        assert ratio < 1.03


def test_equal_components_and_components_without_weight_can_be_merged():
    family, moments, *_ = full_mixture(50, 2)
    equal = Moments(*(np.repeat(part[:1], 50, axis=0) for part in moments))
    merges = find_merges(family, equal._replace(mass=np.full(50, 0.02)), numpy_kernels)
    assert is_valid_linkage(as_linkage(merges))
    assert merges.costs == pytest.approx(np.zeros(49), abs=1e-14)
    mass = moments.mass.copy()
    mass[10:] = 1e-300
    weightless = find_merges(family, moments._replace(mass=mass), numpy_kernels)
    assert (weightless.costs >= 0.0).all()
    assert weightless.costs[:40] == pytest.approx(np.zeros(40), abs=1e-14)


def test_a_background_is_merged_last():
    family, moments, *_ = full_mixture(30, 2)
    merges = find_merges(family, moments, numpy_kernels, background=4)
    assert 4 in merges.children[-1]
    assert 4 not in merges.children[:-1]


def test_one_component_has_no_merges():
    family, moments, *_ = full_mixture(1, 2)
    assert find_merges(family, moments, numpy_kernels).children.shape == (0, 2)
    only = find_merges(family, moments, numpy_kernels, background=0)
    assert only.costs.shape == (0,)


def test_costs_of_many_components_grow_slowly(monkeypatch):
    n, random = 5000, np.random.default_rng(0)
    family = SphericalGaussian(2, 0.0)
    parameters = {
        "means": random.normal(size=(n, 2)),
        "covariances": random.uniform(0.5, 2.0, n) * 1e-5,
    }
    moments = family.moments_of(parameters, np.zeros(2))
    compared = []
    original = SphericalGaussian.negative_entropy

    def counting(self, moments, shared):
        compared.append(moments.mass.shape[0])
        return original(self, moments, shared)

    monkeypatch.setattr(SphericalGaussian, "negative_entropy", counting)
    moments = moments._replace(mass=random.dirichlet(np.full(n, 5.0)))
    with use_threads(2):
        linkage = as_linkage(find_merges(family, moments, numba_kernels))
    assert is_valid_linkage(linkage)
    assert is_monotonic(linkage)
    # K log K: far from the 1.2e7 pairs.
    assert sum(compared) < 5 * n * np.log2(n)


@pytest.mark.parametrize("scale", [3.0, 400.0])
def test_levels_sum_up_what_is_left(scale):
    # Densities that differ by e^1000 too, which no exponential in float64 holds.
    family, moments, *_ = full_mixture(37, 2)
    merges = find_merges(family, moments, numpy_kernels)
    random = np.random.default_rng(3)
    log_joint = random.normal(0.0, scale, (2 * 37 - 1, 5))
    levels = np.array([1, 2, 3, 7, 20, 36, 37])
    level_sums = LevelSums(merges.children, levels)
    sums = level_sums(log_joint[level_sums.nodes])
    for level, actual in zip(levels.tolist(), sums, strict=True):
        n_merges = 37 - level
        gone = set(merges.children[:n_merges].ravel().tolist())
        left = [node for node in range(37 + n_merges) if node not in gone]
        assert len(left) == level
        assert actual == pytest.approx(np.logaddexp.reduce(log_joint[left], axis=0), rel=1e-12)
