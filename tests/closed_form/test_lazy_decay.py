"""The sparse, lazily decayed update against a dense reference that follows METHOD to the letter."""

import numpy as np
import pytest

from pickmix.closed_form.mixture import GaussianMixtureState, Increment
from pickmix.closed_form.structures import STRUCTURES

K, D, B, M = 12, 3, 40, 2
REG = 1e-4
FLOOR = 1e-6
MEAN_WEIGHT = 1.0


class DenseReference:
    """s_k <- (1 - gamma) s_k + gamma (1/B) sum_i w_ik T(x_i) for ALL k, T(x) = (1, x, x x')."""

    def __init__(self, name, weights, means, covariances, counts, least_count):
        self.name, self.least_count = name, least_count
        self.s0 = weights.copy()
        self.s1 = weights[:, None] * means
        outer = means[:, :, None] * means[:, None, :]
        self.s2 = weights[:, None, None] * (covariances + outer)
        self.squares = weights**2 / counts
        self.means, self.statistics = means.copy(), covariances.copy()
        self.pooled = np.tensordot(weights, covariances, 1)
        self.scatter = self.pooled * np.sum(weights - self.squares / weights)
        self.in_use = covariances.copy()

    def project(self, matrices):
        if self.name in ("full", "tied"):
            return matrices
        diagonal = np.diagonal(matrices, axis1=-2, axis2=-1)
        if self.name == "spherical":
            diagonal = np.repeat(diagonal.mean(axis=-1, keepdims=True), D, axis=-1)
        return diagonal[..., None] * np.eye(D)

    def step(self, X, row_weights, components, weights, gamma):
        share = np.zeros((X.shape[0], K))
        for j in range(components.shape[1]):
            np.add.at(share, (np.arange(X.shape[0]), components[:, j]), weights[:, j])
        share *= row_weights[:, None]
        # What as many rows weigh on average over all batches, not in this one.
        total = MEAN_WEIGHT * X.shape[0]
        self.s0 = (1 - gamma) * self.s0 + gamma * share.sum(axis=0) / total
        self.s1 = (1 - gamma) * self.s1 + gamma * share.T @ X / total
        outer = X[:, :, None] * X[:, None, :]
        self.s2 = (1 - gamma) * self.s2 + gamma * np.tensordot(share.T, outer, 1) / total
        self.squares = (1 - gamma) ** 2 * self.squares
        self.squares += gamma**2 * np.square(share).sum(axis=0) / total**2
        touched = np.flatnonzero(share.sum(axis=0) > 0)
        frozen_pool = self.pooled
        for k in touched:
            mean = self.s1[k] / self.s0[k]
            self.means[k] = mean
            self.statistics[k] = self.project(self.s2[k] / self.s0[k] - np.outer(mean, mean))
            trust = min(1.0, self.s0[k] ** 2 / self.squares[k] / self.least_count)
            self.in_use[k] = trust * self.statistics[k] + (1 - trust) * frozen_pool
        # Components that gamma = 1 emptied keep mean and covariance, and weigh nothing.
        alive = self.s0 > 0
        freedom = np.sum(self.s0[alive] - self.squares[alive] / self.s0[alive])
        effective = self.s0.sum() * freedom / self.squares.sum()
        trust = min(1.0, effective / self.least_count)
        estimate = np.tensordot(self.s0, self.statistics, 1) / freedom
        self.pooled = trust * estimate + (1 - trust) * self.pooled

    def weights(self):
        floored = np.maximum(self.s0, FLOOR)
        return floored / floored.sum()


def batches(rng, n_steps):
    centres = rng.normal(size=(K, D)) * 2
    for t in range(n_steps):
        # A few components are met rarely, so that decay matters.
        picks = rng.choice(K, (B, 1), p=np.r_[np.full(K - 3, 0.99 / (K - 3)), np.full(3, 0.01 / 3)])
        other = (picks + rng.integers(1, K, (B, 1))) % (K - 3)
        components = np.hstack([picks, np.where(other == picks, (other + 1) % (K - 3), other)])
        X = centres[picks[:, 0]] + rng.normal(size=(B, D))
        yield t, X, rng.random(B) + 0.5, components.astype(np.int32), rng.dirichlet(np.ones(M), B)


@pytest.mark.parametrize("schedule", ["constant", "two-phase", "large"])
@pytest.mark.parametrize("name", list(STRUCTURES))
def test_lazy_sparse_updates_equal_the_dense_recursion(name, schedule):
    rng = np.random.default_rng(7)
    structure = STRUCTURES[name](D)
    weights, means = rng.dirichlet(np.ones(K)), rng.normal(size=(K, D))
    counts = np.full(K, 6.0)
    covariances = np.repeat(np.eye(D)[None], K, axis=0)
    packed = structure.pack_matrices(covariances[: 1 if structure.shared else K])
    # With trust often below one the pooled covariance is in play throughout.
    least_count = 60.0
    reference = DenseReference(name, weights, means, covariances, counts, least_count)
    state = GaussianMixtureState(structure, weights, means, packed, REG, FLOOR, counts, least_count)
    increment = Increment(state, B * M)
    # "large" drives the lazy scale through many renormalisations: 0.1^400 = 1e-400.
    gammas = {
        "constant": lambda t: 0.05,
        "two-phase": lambda t: 1.0 if t < 5 else 0.05,
        "large": lambda t: 0.9,
    }[schedule]
    for t, X, row_weights, components, pair_weights in batches(rng, 400):
        increment.clear()
        increment.add_pairs(X, row_weights, MEAN_WEIGHT * B, components, pair_weights)
        assert state.absorb(increment, gammas(t)) == 0
        reference.step(X, row_weights, components, pair_weights, gammas(t))
    np.testing.assert_allclose(state.weights, reference.weights(), rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(state.model.mean, reference.means, rtol=1e-10, atol=1e-10)
    if name == "tied":
        expected = structure.pack(reference.pooled + REG * np.eye(D))
    else:
        expected = structure.pack_matrices(reference.in_use + REG * np.eye(D))
    np.testing.assert_allclose(state.covariances_in_use(), expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(
        state.effective_counts(),
        np.divide(reference.s0**2, reference.squares, where=reference.squares > 0, out=np.zeros(K)),
        rtol=1e-8,
    )


def test_a_step_that_forgets_everything_keeps_missed_components_selectable():
    structure = STRUCTURES["full"](2)
    means = np.array([[0.0, 0.0], [5.0, 5.0]])
    state = GaussianMixtureState(
        structure,
        np.array([0.5, 0.5]),
        means,
        structure.pack_matrices(np.repeat(np.eye(2)[None], 2, axis=0)),
        1e-6,
        weight_floor=1e-3,
        least_count=3.0,
    )
    rows = np.random.default_rng(0).normal(size=(30, 2))
    increment = Increment(state, 30)
    increment.add_pairs(
        rows, np.ones(30), 30.0, np.zeros((30, 1), dtype=np.int32), np.ones((30, 1))
    )
    state.absorb(increment, 1.0)
    np.testing.assert_allclose(state.model.mean[0], rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(state.model.mean[1], means[1])
    np.testing.assert_allclose(state.covariances_in_use()[1], [1 + 1e-6, 0.0, 1 + 1e-6])
    np.testing.assert_allclose(state.weights, np.array([1.0, 1e-3]) / 1.001, rtol=1e-12)
