"""Rows under a mixture that is estimated without them, against SciPy and a fit of the others."""

import numpy as np
import pytest
from known_states import both_backends, fleet_of, in_use, state_of
from scipy import stats

from pickmix.closed_form.evaluation import left_out_log_sums
from pickmix.closed_form.local_fleet import Detour
from pickmix.selection.partitions import Partition

K, D, N = 4, 2, 240


def brute_force(state, rows, row_weights, candidates):
    """log sum_k of p(x, k): moments and matrices without the row, densities by SciPy."""
    counts, matrices = state.effective_rows(), in_use(state)
    own = state.prior.sample_shares(counts)
    masses, means = state.floored_masses, state.model.location
    found = []
    for x, row_weight, ours in zip(rows, row_weights, candidates, strict=True):
        ours = [k for k in ours if k >= 0]
        joint = np.array([np.log(masses[k]) + logpdf(x, means[k], matrices[k]) for k in ours])
        shares = row_weight * np.exp(joint - np.logaddexp.reduce(joint))
        for place, k in enumerate(ours):
            w, n = shares[place], counts[k]
            if w > 1e-3 and k != state.prior.background:
                away = x - means[k]
                # A row makes up no more than 98 % of a covariance in its direction.
                most = 0.98 / (away @ np.linalg.solve(matrices[k], away))
                b = min(own[k] * n / (n - 1.0) ** 2 * w, most)
                matrix = matrices[k] - b * np.outer(away, away)
                # The mean of the others.
                mean = (n * means[k] - w * x) / (n - w)
                joint[place] = np.log(masses[k]) + logpdf(x, mean, matrix)
        found.append(np.logaddexp.reduce(joint))
    return np.array(found)


def logpdf(x, mean, matrix):
    return stats.multivariate_normal(mean, matrix).logpdf(x)


def problem(backend, spread=1.5, weights=None, seed=0):
    """Components that overlap, the rows behind them, and a fleet."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(K, size=N)
    centres = spread * rng.normal(size=(K, D))
    factors = rng.normal(size=(K, D, D)) + 1.5 * np.eye(D)
    X = centres[labels] + np.einsum("nij,nj->ni", factors[labels], rng.normal(size=(N, D)))
    own = [X[labels == k] for k in range(K)]
    state = state_of(
        "full",
        np.bincount(labels) / N,
        np.stack([rows.mean(axis=0) for rows in own]) - X.mean(axis=0),
        np.stack([np.cov(rows.T, bias=True) for rows in own]),
        shrinkage="pooled",
        n_rows=N,
        backend=backend,
    )
    state.prior.pseudo_rows = np.array([0.0, 3.0, 40.0, 1e12])
    everyone = np.arange(K, dtype=np.int32)
    state.family.maximise(state.moments, everyone, state.prior, state.model, state.backend.threads)
    fleet = fleet_of(state.backend, X, labels, weights)
    fleet.source.center = X.mean(axis=0)
    return state, fleet, X - X.mean(axis=0), labels


ALL = np.tile(np.arange(K), (N, 1))


class TestLogSums:
    @both_backends
    def test_over_all_components(self, backend):
        state, _, rows, _ = problem(backend)
        weights = np.random.default_rng(1).uniform(0.3, 2.0, N)
        found = left_out_log_sums(state, rows, weights)
        np.testing.assert_allclose(found, brute_force(state, rows, weights, ALL), rtol=1e-9)

    @both_backends
    def test_over_candidates(self, backend):
        state, _, rows, _ = problem(backend)
        weights = np.ones(N)
        some = np.random.default_rng(2).permuted(ALL, axis=1)[:, :3].astype(np.int32)
        some[::3, 2] = -1
        found = left_out_log_sums(state, rows, weights, some)
        np.testing.assert_allclose(found, brute_force(state, rows, weights, some), rtol=1e-9)
        one = some[:, :1].copy()
        found = left_out_log_sums(state, rows, 0.7 * weights, one)
        np.testing.assert_allclose(found, brute_force(state, rows, 0.7 * weights, one), rtol=1e-9)

    @both_backends
    def test_a_background_does_not_miss_a_row(self, backend):
        state, _, rows, _ = problem(backend)
        state.prior.allow_background(np.abs(rows).max(axis=0))
        state.prior.background = 1
        everyone = np.arange(K, dtype=np.int32)
        state.family.maximise(
            state.moments, everyone, state.prior, state.model, state.backend.threads
        )
        found = left_out_log_sums(state, rows, np.ones(N))
        np.testing.assert_allclose(found, brute_force(state, rows, np.ones(N), ALL), rtol=1e-9)

    @both_backends
    def test_far_groups_are_fitted_to_the_others(self, backend):
        """No leaning at all: then a left-out density is that of a plain fit to the other rows."""
        state, _, rows, labels = problem(backend, spread=300.0)
        state.prior.pseudo_rows = np.zeros(K)
        state.prior.freedoms = np.full(D, 1e-12)
        everyone = np.arange(K, dtype=np.int32)
        state.family.maximise(
            state.moments, everyone, state.prior, state.model, state.backend.threads
        )
        found = left_out_log_sums(state, rows, np.ones(N))
        for i in range(0, N, 7):
            others = rows[(labels == labels[i]) & (np.arange(N) != i)]
            density = logpdf(rows[i], others.mean(axis=0), np.cov(others.T, bias=True))
            expected = density + np.log(np.mean(labels == labels[i]))
            assert found[i] == pytest.approx(expected, rel=1e-8)

    @both_backends
    def test_a_row_that_nothing_explains_has_a_finite_value(self, backend):
        state, _, _, _ = problem(backend)
        found = left_out_log_sums(state, np.array([[1e160, -1e160], [0.0, 1e9]]), np.ones(2))
        assert np.isfinite(found).all()
        assert (found < -1e9).all()


class TestJudge:
    @both_backends
    def test_blocks_are_judged_by_their_rows(self, backend):
        weights = np.random.default_rng(3).uniform(0.5, 4.0, N)
        state, fleet, rows, labels = problem(backend, weights=weights)
        # Rows of component 3 take no part, those of 1 are judged by the block of 2 alone.
        into = np.array([0, 2, 2, -1], dtype=np.int32)
        blocks = [[0, 1], [2]]
        partition = Partition(np.array([0, 1, 2], dtype=np.int32), np.array([0, 2, 3]))
        sums, totals, evaluations = fleet.judge(state, partition, Detour(into))
        # Two for a row of component 0, one for a row of 1 or 2.
        assert evaluations == 2 * np.sum(labels == 0) + np.sum((labels == 1) | (labels == 2))
        for number, block in enumerate(blocks):
            part = np.isin(into[labels], block) & (labels != 3)
            assert totals[number] == pytest.approx(weights[part].sum())
            # Row weights count in units of a mean row.
            values = brute_force(
                state, rows[part], weights[part] / weights.mean(), np.tile(block, (part.sum(), 1))
            )
            assert sums[number] == pytest.approx(weights[part] @ values, rel=1e-9)

    def test_many_rows_are_judged_in_parts(self, monkeypatch):
        state, fleet, _, _ = problem("reference")
        partition = Partition.of_blocks(np.arange(K), 2)
        detour = Detour(np.arange(K, dtype=np.int32))
        whole = fleet.judge(state, partition, detour)
        monkeypatch.setattr("pickmix.closed_form.local_fleet._BLOCK_ROWS", 37)
        for one, other in zip(fleet.judge(state, partition, detour), whole, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)
        assert whole[2] == 2 * N

    def test_rows_that_take_no_part_cost_nothing(self):
        state, fleet, _, _ = problem("reference")
        partition = Partition.of_blocks(np.arange(K), 2)
        nobody = Detour(np.full(K, -1, dtype=np.int32))
        sums, totals, evaluations = fleet.judge(state, partition, nobody)
        np.testing.assert_array_equal(sums, 0.0)
        np.testing.assert_array_equal(totals, 0.0)
        assert evaluations == 0


class TestAstray:
    @both_backends
    def test_rows_are_those_that_a_background_explains_best(self, backend, monkeypatch):
        weights = np.random.default_rng(4).uniform(0.5, 3.0, N)
        state, fleet, rows, _ = problem(backend, weights=weights)
        far = np.arange(3, N, 20)
        rows[far] *= np.linspace(2.0, 9.0, 12)[:, None]
        fleet.source.data = rows + fleet.source.center
        state.prior.allow_background(np.abs(rows).max(axis=0))
        # Chains of these rows stand anywhere.
        fleet.chain[far] = np.arange(12) % K
        relative = weights / weights.mean()
        here = brute_force(state, rows, relative, ALL)
        matrix = np.diag(np.square(0.5 * np.abs(rows).max(axis=0)))
        there = np.log(0.02) + stats.multivariate_normal(np.zeros(D), matrix).logpdf(rows)
        better = np.flatnonzero(there > here)
        assert 3 < better.shape[0] < 20
        for block in (65536, 50):
            monkeypatch.setattr("pickmix.closed_form.local_fleet._BLOCK_ROWS", block)
            monkeypatch.setattr("pickmix.closed_form.local_fleet._FAR_ROWS", 5)
            gain, found = fleet.astray(state, 0.02)
            np.testing.assert_array_equal(np.sort(found), better)
            expected = relative[better] @ (there - here)[better]
            assert gain == pytest.approx(expected, rel=1e-8)

    def test_chains_are_put_on_a_component(self):
        _, fleet, _, labels = problem("reference")
        before = labels.copy()
        fleet.put(np.array([3, 17, 99]), 2)
        assert (fleet.chain[[3, 17, 99]] == 2).all()
        others = np.delete(np.arange(N), [3, 17, 99])
        np.testing.assert_array_equal(fleet.chain[others], before[others])


class TestWitnesses:
    @pytest.mark.parametrize("batch_size", [None, 120])
    @both_backends
    def test_rows_of_a_component_with_their_posterior(self, backend, batch_size):
        weights = np.random.default_rng(5).uniform(0.5, 3.0, N)
        state, _, rows, labels = problem(backend, weights=weights)
        fleet = fleet_of(state.backend, rows, labels, weights, batch_size)
        fleet.source.center = np.zeros(D)
        partition = Partition.of_blocks(np.array([2, 0, 3, 1]), 2)
        chosen = np.array([3, 0])
        held_out = fleet.held_out(state, partition, 1, chosen)
        np.testing.assert_array_equal(held_out.components, chosen)
        in_step = fleet.batches.rows(1)
        matrices = in_use(state)
        for place, (k, partner) in enumerate([(3, 1), (0, 2)]):
            own = in_step[labels[in_step] == k]
            found = held_out.weights[place] > 0.0
            # Eight per column at most, of those whose chains stand there.
            assert found.sum() <= 8 * D
            assert found.sum() >= min(own.shape[0], 8 * D) / 2
            where = held_out.residuals[place][found] + state.moments.mean[k]
            row, which = np.nonzero(np.abs(where[:, None] - rows[own]).max(axis=2) < 1e-12)
            np.testing.assert_array_equal(row, np.arange(found.sum()))
            assert np.unique(which).shape == which.shape
            joint = [
                np.log(state.floored_masses[c])
                + np.array([logpdf(x, state.model.location[c], matrices[c]) for x in where])
                for c in (k, partner)
            ]
            expected = np.exp(joint[0] - np.logaddexp(*joint))
            expected *= weights[own[which]] / weights.mean()
            np.testing.assert_allclose(held_out.weights[place][found], expected, rtol=2e-3)

    def test_a_component_without_rows_has_no_witnesses(self):
        state, fleet, _, _ = problem("reference")
        fleet.chain[fleet.chain == 2] = 0
        whole = Partition.of_blocks(np.arange(K), K)
        held_out = fleet.held_out(state, whole, 1, np.array([2, 1]))
        assert not held_out.weights[0].any()
        assert held_out.weights[1].any()
        fleet.chain[:] = 0
        assert not fleet.held_out(state, whole, 1, np.array([2, 1])).weights.any()

    def test_they_let_a_state_choose(self):
        state, fleet, _, _ = problem("reference")
        before = state.prior.pseudo_rows.copy()
        whole = Partition.of_blocks(np.arange(K), K)
        state.estimate_shrinkage(fleet.held_out(state, whole, 1, np.arange(K)))
        assert (state.prior.pseudo_rows != before).all()
