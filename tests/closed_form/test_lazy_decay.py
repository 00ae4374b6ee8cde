"""The sparse, lazily decayed update against a dense reference that follows METHOD to the letter."""

import numpy as np
import pytest
from known_states import BACKENDS, both_backends, every_covariance, in_use, project, state_of

K, D, B, M = 12, 3, 40, 2
REG = 1e-4
FLOOR = 1e-6
MEAN_WEIGHT = 1.0
# What `make_prior` asks for: with fewer effective rows the pooled covariance is in play.
LEAST_COUNT = D + 1.0


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
        # The start stands for as many degrees of freedom as it has, not for its whole mass.
        freedom = np.sum(weights - self.squares / weights)
        self.start = self.pooled * (freedom - 1.0)
        self.in_use = covariances.copy()

    def step(self, X, row_weights, components, weights, gamma):
        share = np.zeros((X.shape[0], K))
        for j in range(components.shape[1]):
            np.add.at(share, (np.arange(X.shape[0]), components[:, j]), weights[:, j])
        share *= row_weights[:, None]
        self.start = (1 - gamma) * self.start
        # What as many rows weigh on average over all batches, not in this one.
        total = MEAN_WEIGHT * X.shape[0]
        self.s0 = (1 - gamma) * self.s0 + gamma * share.sum(axis=0) / total
        self.s1 = (1 - gamma) * self.s1 + gamma * share.T @ X / total
        outer = X[:, :, None] * X[:, None, :]
        self.s2 = (1 - gamma) * self.s2 + gamma * np.tensordot(share.T, outer, 1) / total
        self.squares = (1 - gamma) ** 2 * self.squares
        self.squares += gamma**2 * np.square(share).sum(axis=0) / total**2
        touched = np.flatnonzero(share.sum(axis=0) > 0)
        for k in touched:
            self.means[k] = self.s1[k] / self.s0[k]
            own = self.s2[k] / self.s0[k] - np.outer(self.means[k], self.means[k])
            self.statistics[k] = project(self.name, own)
        # Components that gamma = 1 emptied keep mean and covariance, and weigh nothing.
        alive = self.s0 > 0
        if self.least_count:
            freedom = np.sum(self.s0[alive] - self.squares[alive] / self.s0[alive])
            effective = self.s0.sum() * freedom / self.squares.sum()
            trust = min(1.0, effective / self.least_count)
            estimate = (np.tensordot(self.s0, self.statistics, 1) + self.start) / freedom
            self.pooled = trust * estimate + (1 - trust) * self.pooled
        else:
            self.pooled = np.tensordot(self.s0, self.statistics, 1) / self.s0.sum()
        for k in touched:
            trust = 1.0
            if self.least_count:
                trust = min(1.0, self.s0[k] ** 2 / self.squares[k] / self.least_count)
            self.in_use[k] = trust * self.statistics[k] + (1 - trust) * self.pooled

    def covariances(self):
        if self.name == "tied":
            return np.repeat(self.pooled[None], K, axis=0)
        return self.in_use

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


@pytest.mark.parametrize("shrinkage", ["few", "none"])
@pytest.mark.parametrize("schedule", ["constant", "two-phase", "large"])
@every_covariance
@both_backends
def test_lazy_sparse_updates_equal_the_dense_recursion(backend, name, schedule, shrinkage):
    rng = np.random.default_rng(7)
    weights, means = rng.dirichlet(np.ones(K)), rng.normal(size=(K, D))
    counts = np.full(K, 6.0)
    covariances = np.repeat(np.eye(D)[None], K, axis=0)
    least_count = LEAST_COUNT if shrinkage == "few" else 0.0
    reference = DenseReference(name, weights, means, covariances, counts, least_count)
    state = state_of(
        name,
        weights,
        means,
        covariances,
        reg_covar=REG,
        floor=FLOOR,
        counts=counts,
        shrinkage=shrinkage,
        backend=backend,
    )
    # "large" drives the lazy scale through many renormalisations: 0.1^400 = 1e-400.
    gammas = {
        "constant": lambda t: 0.05,
        "two-phase": lambda t: 1.0 if t < 5 else 0.05,
        "large": lambda t: 0.9,
    }[schedule]
    n_steps = 400 if schedule == "large" else 150
    for t, X, row_weights, components, pair_weights in batches(rng, n_steps):
        added = state.backend.pair_statistics(
            state.layout, K, X, row_weights, components, pair_weights, MEAN_WEIGHT * B
        )
        # Without a prior, a component that a step emptied and met once has no covariance but reg.
        assert state.absorb(added, gammas(t)).size == 0
        reference.step(X, row_weights, components, pair_weights, gammas(t))
    np.testing.assert_allclose(state.weights, reference.weights(), rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(state.model.location, reference.means, rtol=1e-9, atol=1e-9)
    expected = reference.covariances() + REG * np.eye(D)
    np.testing.assert_allclose(in_use(state), expected, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(
        state.effective_counts(),
        np.divide(reference.s0**2, reference.squares, where=reference.squares > 0, out=np.zeros(K)),
        rtol=1e-8,
    )


@both_backends
def test_a_step_that_forgets_everything_keeps_missed_components_selectable(backend):
    means = np.array([[0.0, 0.0], [5.0, 5.0]])
    state = state_of(
        "full",
        [0.5, 0.5],
        means,
        np.repeat(np.eye(2)[None], 2, axis=0),
        reg_covar=1e-6,
        floor=1e-3,
        shrinkage="few",
        backend=backend,
    )
    rows = np.random.default_rng(0).normal(size=(30, 2))
    engine = BACKENDS[backend]()
    state.absorb(
        engine.pair_statistics(
            state.layout,
            2,
            rows,
            np.ones(30),
            np.zeros((30, 1), dtype=np.int32),
            np.ones((30, 1)),
            30.0,
        ),
        1.0,
    )
    np.testing.assert_allclose(state.model.location[0], rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(state.model.location[1], means[1])
    np.testing.assert_allclose(in_use(state)[1], (1 + 1e-6) * np.eye(2), atol=1e-12)
    np.testing.assert_allclose(state.weights, np.array([1.0, 1e-3]) / 1.001, rtol=1e-12)


@both_backends
def test_a_batch_without_weight_changes_nothing(backend):
    state = state_of("full", [0.5, 0.5], np.eye(2), np.stack([np.eye(2)] * 2), backend=backend)
    before = state.snapshot()
    empty = state.backend.pair_statistics(
        state.layout,
        2,
        np.zeros((0, 2)),
        np.zeros(0),
        np.zeros((0, 1), dtype=np.int32),
        np.zeros((0, 1)),
        0.0,
    )
    assert state.absorb(empty, 0.5).size == 0
    for now, then in zip(state.moments + state.model, before.moments + before.model, strict=True):
        np.testing.assert_array_equal(now, then)
