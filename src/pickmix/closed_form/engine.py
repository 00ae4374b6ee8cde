"""Engine 1: mixtures of Gaussians by sparse sufficient statistics.

`ClosedFormEngine.step` is the paper's Algorithm 1 with the closed-form M-step; which algorithm of
Table 1 it runs depends on the selection rule alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pickmix.closed_form import evaluation
from pickmix.closed_form.mixture import GaussianMixtureState, Increment
from pickmix.data.rows import ArrayRows, Batches
from pickmix.selection.counters import Counters
from pickmix.selection.kernels import log_sum_exp
from pickmix.selection.randomness import StepRandomness
from pickmix.selection.rules import Selection, SelectionRule
from pickmix.selection.schedules import Schedule

# Log-joints of all components for one block of rows take about this many numbers (16 MB), unless
# 16 rows take more; and a block that every component meets stays in the cache.
_BLOCK_NUMBERS = 2_000_000
_DENSE_BLOCK_ROWS = 1024
_SPARSE_BLOCK_ROWS = 65536


def dense_block_rows(n_components: int) -> int:
    """Rows per block when every component is evaluated."""
    return max(16, min(_DENSE_BLOCK_ROWS, _BLOCK_NUMBERS // n_components))


class BatchEvaluator:
    """log p(x_i, k) under a frozen mixture for one block of rows (see `Evaluator`)."""

    def __init__(self, state: GaussianMixtureState, rows: np.ndarray) -> None:
        self.state = state
        self.rows = rows
        self.n_components = state.n_components
        self.threads = state.threads
        self._work_each = state.structure.packed_size + 4.0 * state.n_features

    def columns(self) -> np.ndarray:
        """The rows transposed, (D, R)."""
        return np.ascontiguousarray(self.rows.T)

    def log_joint(self, candidates: np.ndarray) -> np.ndarray:
        """Log-joints of the candidates (B, C)."""
        out = np.empty(candidates.shape)
        self.threads.run(
            evaluation.evaluate_candidates,
            candidates.shape[0],
            candidates.size * self._work_each,
            self.state.model,
            self.rows,
            candidates,
            out,
        )
        return out

    def log_joint_all(self) -> np.ndarray:
        """Log-joints of all components (K, B)."""
        out = np.empty((self.n_components, self.rows.shape[0]))
        self.threads.run(
            evaluation.evaluate_all,
            self.n_components,
            out.size * self._work_each,
            self.state.model,
            self.columns(),
            out,
        )
        return out

    def nearest_components(self, n_neighbours: int) -> np.ndarray:
        """The nearest components of each by distance of means, itself first, (K, G) int32."""
        mean = self.state.model.mean
        squares = np.einsum("kd,kd->k", mean, mean)
        distances = squares[:, None] - 2.0 * mean @ mean.T + squares
        np.fill_diagonal(distances, -np.inf)
        return np.argsort(distances, axis=1, kind="stable")[:, :n_neighbours].astype(np.int32)


class ClosedFormEngine:
    """Fits a Gaussian mixture state to rows, one step at a time.

    Parameters
    ----------
    state : GaussianMixtureState
        Updated in place.
    source : ArrayRows
    rule : SelectionRule
        Started by the caller.
    batches : Batches
    step_size : callable t -> gamma_t
    annealing : callable t -> beta_t, or None for beta = 1
    seed : int
    probe : int array or None
        Rows whose log-likelihood is evaluated; None for rules that compute it anyway.
    first_step : int
        Where this fit's steps begin; annealing counts from there.
    """

    def __init__(
        self,
        state: GaussianMixtureState,
        source: ArrayRows,
        rule: SelectionRule,
        batches: Batches,
        step_size: Schedule,
        annealing: Schedule | None,
        seed: int,
        probe: np.ndarray | None,
        first_step: int = 1,
    ) -> None:
        self.state = state
        self.source = source
        self.rule = rule
        self.batches = batches
        self.step_size = step_size
        self.annealing = annealing
        self.seed = seed
        self.first_step = first_step
        largest_batch = -(-source.n_rows // batches.n_batches)
        width = state.n_components if rule.width is None else rule.width
        self._increment = Increment(state, largest_batch * width)
        self._block_rows = _SPARSE_BLOCK_ROWS
        if rule.evaluates_all:
            self._block_rows = dense_block_rows(state.n_components)
        self.counters = Counters()
        self._probe = probe
        # Log-likelihoods that an exhaustive rule computes anyway, since the last estimate.
        self._log_likelihood_sum = 0.0
        self._log_likelihood_weight = 0.0

    #: Name of the outcome when an update is refused.
    refusal = "singular_covariance"

    def advance(self, first: int, most: int) -> int:
        """Do one step."""
        self.step(first)
        return 1

    def validation(self) -> None:
        """No rows are set apart."""

    def may_end(self, step: int) -> bool:
        """Nothing is left to do when the log-likelihood has stopped rising."""
        return True

    def step(self, t: int) -> None:
        """Do step t of Algorithm 1."""
        gamma = self._step_size_of(t)
        beta = 1.0 if self.annealing is None else self.annealing(t - self.first_step + 1)
        random = StepRandomness(self.seed, t)
        # Form the set I.
        batch = self.batches.rows(t)
        self._increment.clear()
        self._select(batch, beta, gamma, random)
        # SA-step and M-step for k in unique(z).
        self.counters.refused += self.state.absorb(self._increment, gamma)

    def _step_size_of(self, t: int) -> float:
        return self.step_size(t)

    def _select(self, batch: np.ndarray, beta: float, gamma: float, random: StepRandomness) -> None:
        """Select components for the batch and add their statistics to the increment."""
        increment = self._increment
        for start in range(0, batch.shape[0], self._block_rows):
            block = batch[start : start + self._block_rows]
            # S-step: select components for the rows of the block, under frozen parameters.
            evaluate = BatchEvaluator(self.state, self.source.gather(block))
            selection = self.rule.select(evaluate, block, beta, gamma, random)
            # Add the sufficient statistics of the selected pairs.
            weights, total_weight = self.source.weights_of(block)
            if selection.components is None:
                increment.add_all(evaluate.columns(), weights, total_weight, selection.weights)
            else:
                increment.add_pairs(
                    evaluate.rows, weights, total_weight, selection.components, selection.weights
                )
            self._record(selection, weights)

    def _record(self, selection: Selection, weights: np.ndarray) -> None:
        n_rows = weights.shape[0]
        self.counters.rows += n_rows
        self.counters.evaluations += selection.evaluations
        self.counters.acceptance_sum += selection.acceptance * n_rows
        if selection.log_likelihood is not None:
            shift = float(np.log(self.state.floored_masses.sum()))
            self._log_likelihood_sum += float(weights @ selection.log_likelihood)
            self._log_likelihood_sum -= shift * float(weights.sum())
            self._log_likelihood_weight += float(weights.sum())

    def log_likelihood(self) -> float:
        """Mean log-likelihood per row.

        Rules that evaluate every component have it for the batches since the last call, at no
        cost; for the others a fixed sample of rows is evaluated.
        """
        if self._probe is None:
            estimate = self._log_likelihood_sum / self._log_likelihood_weight
            self._log_likelihood_sum = self._log_likelihood_weight = 0.0
            return estimate
        values = log_likelihood(self.state, self.source, self._probe)
        weights, _ = self.source.weights_of(self._probe)
        return float(weights @ values / weights.sum())

    def live_components(self) -> int:
        """Components that weigh at least half a row."""
        return int(np.count_nonzero(self.state.weights * self.source.n_rows >= 0.5))


def log_likelihood(state: GaussianMixtureState, source: ArrayRows, rows: np.ndarray) -> np.ndarray:
    """log p(x_i) for the given rows of the source, every component evaluated, in blocks."""
    out = np.empty(rows.shape[0])
    for block, log_joint in log_joint_blocks(state, source, rows):
        state.threads.run(
            log_sum_exp, log_joint.shape[1], 15.0 * log_joint.size, log_joint, out[block]
        )
    return out


def log_joint_blocks(
    state: GaussianMixtureState, source: ArrayRows, rows: np.ndarray
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield (slice of `rows`, log p(x_i, k) of shape (K, R)) block by block, weights normalised."""
    shift = float(np.log(state.floored_masses.sum()))
    block_rows = dense_block_rows(state.n_components)
    for first in range(0, rows.shape[0], block_rows):
        block = slice(first, min(first + block_rows, rows.shape[0]))
        log_joint = BatchEvaluator(state, source.gather(rows[block])).log_joint_all()
        log_joint -= shift
        yield block, log_joint
