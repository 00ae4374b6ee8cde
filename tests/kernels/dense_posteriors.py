"""Mixtures of Gaussians with rows, and what their blocks add up to, by dense algebra in float64."""

from dataclasses import dataclass

import numpy as np
import pytest

from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows
from pickmix.families.gaussian import GAUSSIANS
from pickmix.families.layout import Moments
from pickmix.kernels import numba_kernels, numpy_kernels
from pickmix.selection.partitions import Partition, draw_partition
from pickmix.selection.randomness import StepRandomness, Stream

N, K, D, G = 3000, 40, 4, 8
EVERYONE = np.arange(N)
RANDOM = StepRandomness(3, 7)
KEY = RANDOM.key(Stream.POSTERIOR)
BACKENDS = {"reference": numpy_kernels, "compiled": numba_kernels}
# What float32 leaves of weights and of sums relative to the largest, and of log-sums.
SUMS = {"reference": 1e-9, "compiled": 1e-4}
LOG_SUMS = {"reference": 1e-9, "compiled": 2e-3}
every_covariance = pytest.mark.parametrize("name", list(GAUSSIANS))
both_backends = pytest.mark.parametrize("backend", list(BACKENDS))


@dataclass
class Problem:
    """A mixture, its rows, blocks, and the components that the rows stand on."""

    weights: np.ndarray
    covariances: np.ndarray
    state: MixtureState
    source: ArrayRows
    partition: Partition
    chain: np.ndarray

    def sweep(self, engine, chain=None, numbers=EVERYONE, **settings):
        """A sweep of the rows `numbers` by a backend."""
        return engine.sweep(
            self.state.layout,
            self.state.model,
            self.source,
            numbers,
            (self.chain if chain is None else chain)[numbers],
            settings.pop("partition", self.partition),
            KEY,
            **settings,
        )

    def block_of(self):
        """Block of each component, (K,)."""
        return self.partition.block_of_position()[np.argsort(self.partition.members)]

    def posterior(self, beta=1.0):
        """Block posteriors (K, N), zero outside the blocks, and the logarithms of their sums."""
        rows = self.source.gather(EVERYONE)
        log_joint = np.full((K, N), -np.inf)
        means, block = self.state.moments.mean, self.block_of()
        for k in range(K):
            own = block[self.chain] == block[k]
            lower = np.linalg.cholesky(self.covariances[k])
            white = (rows[own] - means[k]) @ np.linalg.inv(lower).T
            log_joint[k, own] = -0.5 * np.square(white).sum(axis=1) - np.log(np.diag(lower)).sum()
        log_joint += np.log(self.weights)[:, None] - 0.5 * D * np.log(2.0 * np.pi)
        log_joint *= beta
        largest = log_joint.max(axis=0)
        weights = np.exp(log_joint - largest)
        total = weights.sum(axis=0)
        return weights / total, largest + np.log(total)


def make(name, width=0.15, seed=0, weights=None):
    """K overlapping components in the unit cube, `width` wide, and N rows of them."""
    rng = np.random.default_rng(seed)
    family = GAUSSIANS[name](D, reg_covar=0.0)
    means = rng.random((K, D))
    factors = width * rng.normal(size=(K, D, D + 2)) / np.sqrt(D + 2.0)
    matrices = factors @ factors.transpose(0, 2, 1) + 1e-3 * width**2 * np.eye(D)
    chosen = rng.integers(K, size=N)
    noise = rng.normal(size=(N, D + 2))
    source = ArrayRows(means[chosen] + np.einsum("nij,nj->ni", factors[chosen], noise), weights)
    shares = rng.dirichlet(np.full(K, 3.0))
    diagonals = np.diagonal(matrices, axis1=1, axis2=2)
    covariances = {
        "full": matrices,
        "tied": np.repeat(np.tensordot(shares, matrices, 1)[None], K, axis=0),
        "diag": diagonals[:, :, None] * np.eye(D),
        "spherical": diagonals.mean(axis=1)[:, None, None] * np.eye(D),
    }[name]
    packed = family.pack_matrices(covariances)
    moments = Moments(
        shares.copy(), shares**2, means - source.center, packed, np.zeros((K, 0))
    )  # fmt: skip
    prior = family.make_prior(moments, "none", float(N))
    state = MixtureState(family, moments, numpy_kernels, prior).require_sound()
    partition = draw_partition(means - source.center, G, 0.1, RANDOM, numpy_kernels)
    return Problem(shares, covariances, state, source, partition, chosen.astype(np.int32))


def by_component(statistics):
    """Mass (K,), mean (K, D) and scatter (K, P) in the order of components."""
    assert np.unique(statistics.members).size == statistics.members.size == K
    order = np.argsort(statistics.members)
    return statistics.mass[order], statistics.mean[order], statistics.scatter[order]


def assert_sums(problem, posterior, statistics, tolerance):
    """Statistics are those of the rows under posterior weights (K, N) times the rows' own."""
    rows = problem.source.gather(EVERYONE)
    mass, mean, scatter = by_component(statistics)
    row_weights = np.ones(N) if problem.source.weights is None else problem.source.weights
    weighted = posterior * row_weights
    expected_mass = weighted.sum(axis=1)
    np.testing.assert_allclose(mass, expected_mass, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(
        statistics.squares[np.argsort(statistics.members)],
        np.square(weighted).sum(axis=1),
        rtol=2 * tolerance,
        atol=2 * tolerance,
    )
    assert statistics.total_weight == pytest.approx(row_weights.sum())
    family = problem.state.family
    for k in np.flatnonzero(expected_mass > 1e-3):
        expected_mean = weighted[k] @ rows / expected_mass[k]
        away = rows - expected_mean
        matrix = (weighted[k][:, None] * away).T @ away
        # Every form but the diagonal ones keeps all products.
        expected = matrix[np.tril_indices(D)]
        if family.layout.n_products == D:
            expected = np.diag(matrix)
        scale = np.sqrt(np.abs(expected).max() / expected_mass[k])
        np.testing.assert_allclose(mean[k], expected_mean, atol=10 * tolerance * scale)
        atol = 10 * tolerance * np.abs(expected).max()
        np.testing.assert_allclose(scatter[k], expected, atol=atol)
