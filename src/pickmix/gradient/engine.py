"""The gradient engine: batches, draws and schedules go in, chunks of steps come out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pickmix.data.rows import Batches
from pickmix.gradient.adam import Adam
from pickmix.gradient.blocks import Blocks
from pickmix.gradient.chunk import make_chunk
from pickmix.gradient.compilation import kept_programs
from pickmix.gradient.network import Network
from pickmix.gradient.partitions import Partitions
from pickmix.gradient.precision import DType, precision
from pickmix.gradient.proposals import TreeProposal
from pickmix.gradient.queries import score_samples
from pickmix.gradient.remembered import Remembered, rises
from pickmix.gradient.select import evaluate
from pickmix.gradient.start import Start
from pickmix.gradient.state import Batch, Options, Root, State, log_weights_of
from pickmix.selection.counters import Counters
from pickmix.selection.randomness import StepRandomness, Stream
from pickmix.selection.schedules import Schedule

# Steps per compiled call at most, and the time that one may take, so that Ctrl-C and time limits
# are heard.
_MOST_STEPS = 128
_CHUNK_SECONDS = 0.25


@dataclass
class Schedules:
    """gamma_t of closed-form weights and learning proposals, beta_t, and the learning rate."""

    rate: Callable[[int], float]
    gamma: Schedule
    beta: Schedule | None


class GradientEngine:
    """Fits a network by the steps of `step.py`. What the loop sees of engine 2.

    Parameters
    ----------
    network : Network
    start : Start
        Parameters, and the tree that each row begins with.
    options : Options
    data : (N, D) array
        Rows, as the network sees them.
    row_weights : (N,) array or None
    proposal : TreeProposal or None
        For "mhsaem".
    batches : Batches
    schedules : Schedules
    seed : int
    probe : (n,) int array
        Rows on which the training log-likelihood is measured.
    validation : (V, D) array or None
        Rows that are watched, not learnt from.
    dtype : dtype
    log_volume : float or (D,) array
        Added to log-likelihoods: log|det| of the way from the data to the rows. By columns for
        rows that were seen in part: columns that are NaN add nothing.
    partitions : Partitions or None
        For "partition".
    """

    #: Name of the outcome when a step is refused.
    refusal = "non_finite"

    def __init__(
        self,
        network: Network,
        start: Start,
        options: Options,
        data: np.ndarray,
        row_weights: np.ndarray | None,
        proposal: TreeProposal | None,
        batches: Batches,
        schedules: Schedules,
        seed: int,
        probe: np.ndarray,
        validation: np.ndarray | None,
        dtype: DType,
        log_volume: float | np.ndarray = 0.0,
        partitions: Partitions | None = None,
    ) -> None:
        self.network = network
        self.options = options
        self.proposal = proposal
        self.partitions = partitions
        self._partition_number = -1
        self.batches = batches
        self.schedules = schedules
        self.seed = seed
        self.dtype = np.dtype(dtype)
        self.log_volume = log_volume
        self.counters = Counters()
        self._batch_size = -(-data.shape[0] // batches.n_batches)
        self._row_weights = row_weights
        self._seconds_per_step = 0.0
        with precision(self.dtype):
            self._data = jnp.asarray(data, self.dtype)
            self._probe = self._data[jnp.asarray(probe)]
            self._validation = None if validation is None else jnp.asarray(validation, self.dtype)
            # Copies: a compiled step reuses the memory of the state that it is given.
            copies = tuple(jnp.array(table, self.dtype) for table in start.tables)
            logits = jnp.array(start.log_weights, self.dtype)
            self.state = State(
                copies,
                tuple(Adam.start(table) for table in compress(copies, network.learns)),
                Root(logits, Adam.start(logits[None])),
                jnp.array(start.chain, jnp.int32),
                jnp.zeros(0, self.dtype),
            )
        self._watched_scores: np.ndarray | None = None
        self._first: Remembered | None = None
        self._remembered: Remembered | None = None
        learns = proposal is not None and proposal.learns
        self._chunk = make_chunk(network, options, learns)

    # -- what the loop calls --------------------------------------------------------------

    def compile(self) -> float:
        """Compile everything before the clock starts; return the seconds that took."""
        started = time.perf_counter()
        with precision(self.dtype), kept_programs():
            if self.options.reuse_log_joint:
                self._evaluate_chain()
            self._renew_partition(1)
            batches = self._prepare(1, 0)
            self.state, _ = self._chunk(self._data, self.state, batches, jnp.int32(0))
            self.state.chain.block_until_ready()
        self.log_likelihood()
        self.validation()
        return time.perf_counter() - started

    def advance(self, first: int, most: int) -> int:
        """Make steps first, first + 1, ..., at most `most` of them; return how many."""
        n_steps = self._chunk_length(first, most)
        started = time.perf_counter()
        with precision(self.dtype):
            self._renew_partition(first)
            batches = self._prepare(first, n_steps)
            self.state, summary = self._chunk(self._data, self.state, batches, jnp.int32(n_steps))
            acceptances = np.asarray(summary.acceptances)[:n_steps].tolist()
            refused = int(summary.refused)
            states = np.asarray(summary.states)
        visits = [self.batches.rows(first + number) for number in range(n_steps)]
        n_visits = sum(rows.shape[0] for rows in visits)
        if self.proposal is not None and self.proposal.learns and not refused:
            for number, rows in enumerate(visits):
                gamma = self.schedules.gamma(first + number)
                self.proposal.observe(rows, states[number, : rows.shape[0]], gamma)
        self._seconds_per_step = (time.perf_counter() - started) / n_steps
        self.counters.rows += n_visits
        self.counters.evaluations += n_visits * self._evaluations_per_visit()
        draws = self.options.algorithm in ("mhsaem", "partition", "mcsaem")
        # One by one: sums must not depend on how steps are cut into calls.
        for acceptance in acceptances:
            self.counters.acceptance_sum += acceptance if draws else float("nan")
        self.counters.refused += refused
        return n_steps

    def log_likelihood(self) -> float:
        """Mean log-likelihood of the probe's rows."""
        return float(self._scores(self._probe).mean())

    def validation(self) -> float | None:
        """Mean log-likelihood of the validation rows, if there are any."""
        if self._validation is None:
            return None
        self._watched_scores = self._scores(self._validation)
        return float(self._watched_scores.mean())

    def remember(self) -> None:
        """Keep a copy of the parameters as they are, after `validation` has looked at them."""
        scores = self._watched_scores
        self._remembered = Remembered(self.parameters(), self.log_weights(), scores)
        if self._first is None:
            self._first = self._remembered

    def live_components(self) -> int:
        """Children of the root that weigh at least half a row."""
        weights = np.exp(self.log_weights())
        return int(np.count_nonzero(weights * self._data.shape[0] >= 0.5))

    def may_end(self, step: int) -> bool:
        """A plateau ends the fit, at any step."""
        return True

    # -- parameters -----------------------------------------------------------------------

    def log_weights(self) -> np.ndarray:
        """Log-weights of the root's children, (s,)."""
        with precision(self.dtype):
            return np.asarray(log_weights_of(self.state.root), np.float64)

    def parameters(self) -> tuple[np.ndarray, ...]:
        """Copies of the tables."""
        return tuple(np.array(table) for table in self.state.tables)

    def best(self) -> Remembered:
        """What was remembered last, or first if no better than that, or else what there is now."""
        if self._remembered is None or self._first is None:
            return Remembered(self.parameters(), self.log_weights(), None)
        is_better = self._first.scores is None or rises(self._remembered.scores, self._first.scores)
        return self._remembered if is_better else self._first

    def chain(self) -> np.ndarray:
        """The tree that each row's chain stands on, (N, n_slots)."""
        return np.array(self.state.chain)

    def export(self) -> dict[str, Any]:
        """All that the next step needs and rows, settings and seed do not tell.

        Copies, with the bits they have here: arrays, numbers and containers of them, and what the
        proposal holds.
        """
        return {
            "state": _as_plain(self.state),
            "partition_number": self._partition_number,
            "counters": vars(self.counters).copy(),
            "first": None if self._first is None else tuple(self._first),
            "remembered": None if self._remembered is None else tuple(self._remembered),
            "proposal": None if self.proposal is None else self.proposal.export(),
        }

    def take_up(self, exported: dict[str, Any]) -> None:
        """Go on where another engine, for the same rows, settings and seed, has stood."""
        state = exported["state"]
        with precision(self.dtype):
            # Copies, as in the beginning.
            arrays = jax.tree.map(jnp.array, state)
        logits, root_adam = arrays["root"]
        blocks = arrays["blocks"]
        self.state = State(
            tuple(arrays["tables"]),
            tuple(Adam(*adam) for adam in arrays["adams"]),
            Root(logits, Adam(*root_adam)),
            arrays["chain"],
            arrays["log_joint"],
            None if blocks is None else Blocks(*blocks),
        )
        self._partition_number = exported["partition_number"]
        self.counters = Counters(**exported["counters"])
        first, last = exported["first"], exported["remembered"]
        self._first = None if first is None else Remembered(*first)
        self._remembered = None if last is None else Remembered(*last)
        if self.proposal is not None:
            self.proposal.take_up(exported["proposal"])

    def _scores(self, rows: jax.Array) -> np.ndarray:
        """Log-likelihoods (V,) of rows."""
        scores = score_samples(
            self.network, self.state.tables, self.log_weights(), rows, self.dtype
        )
        if isinstance(self.log_volume, np.ndarray):
            return np.asarray(scores + ~np.isnan(rows) @ self.log_volume)
        return np.asarray(scores + self.log_volume)

    # -- inputs of steps ------------------------------------------------------------------

    def _chunk_length(self, first: int, most: int) -> int:
        """Steps of the next call: no row twice unless q never changes, and not for too long."""
        length = min(most, _MOST_STEPS)
        if self.proposal is not None and not self.proposal.is_fixed:
            length = min(length, self.batches.n_batches - (first - 1) % self.batches.n_batches)
        if self.partitions is not None:
            length = min(length, self.partitions.steps_left(first))
        if self._seconds_per_step:
            return max(1, min(length, int(_CHUNK_SECONDS / self._seconds_per_step)))
        # How long a step takes is not known yet.
        return min(length, 4)

    def _evaluations_per_visit(self) -> int:
        if self.options.algorithm == "mhsaem":
            return self.options.n_samples + (0 if self.options.reuse_log_joint else 1)
        if self.partitions is not None:
            return self.partitions.block_size
        return self.network.n_evaluated_by_all

    def _renew_partition(self, step: int) -> None:
        """Draw the partition that a step uses, unless it is there already."""
        if self.partitions is None or self.partitions.number(step) == self._partition_number:
            return
        self._partition_number = self.partitions.number(step)
        blocks = self.partitions.draw(self._partition_number, self.state.tables)
        self.state = self.state._replace(blocks=blocks)
        self.counters.evaluations += self.partitions.n_evaluations

    def _prepare(self, first: int, n_steps: int) -> Batch:
        """Inputs of steps first, ..., first + n_steps - 1, filled up to the compiled length."""
        n_rows, n_slots = self._data.shape[0], self.network.n_slots
        shape = (_MOST_STEPS, self._batch_size, self.options.n_samples)
        # Uniforms for draws from a posterior; acceptance has its own, from the proposal.
        posterior_shape = {"mcsaem": (shape[2], n_slots), "partition": (2,)}.get(
            self.options.algorithm
        )
        rows = np.full(shape[:2], n_rows, np.int32)
        weights = np.zeros(shape[:2], self.dtype)
        candidates = np.zeros((*shape, n_slots), np.int32)
        log_q = np.zeros(shape, self.dtype)
        log_q_current = np.zeros(shape[:2], self.dtype)
        uniforms = np.zeros((*shape[:2], *(posterior_shape or shape[2:])), self.dtype)
        noise = np.zeros((*shape[:2], self._data.shape[1] if self.options.noise else 0), self.dtype)
        beta, rate, gamma = np.ones((3, _MOST_STEPS), self.dtype)
        chain = None
        if self.proposal is not None and not self.proposal.is_fixed and n_steps:
            chain = np.asarray(self.state.chain)
        for number in range(n_steps):
            step = first + number
            batch = self.batches.rows(step)
            n_here = batch.shape[0]
            rows[number, :n_here] = batch
            weights[number, :n_here] = self._weights(batch)
            if self.proposal is not None:
                current = np.zeros((n_here, n_slots), np.int32) if chain is None else chain[batch]
                # All but the first draw of a proposal that depends on z_bar are made later.
                n_draws = 1 if self.options.propose_again is not None else shape[2]
                proposed = self.proposal.propose(batch, current, n_draws, 0, step)
                candidates[number, :n_here, :n_draws] = proposed[0]
                log_q[number, :n_here, :n_draws] = proposed[1]
                log_q_current[number, :n_here] = proposed[2]
                uniforms[number, :n_here] = self.proposal.uniforms(batch, step)
            elif posterior_shape is not None:
                random = StepRandomness(self.seed, step)
                drawn = random.uniforms(Stream.POSTERIOR, batch, int(np.prod(posterior_shape)))
                uniforms[number, :n_here] = drawn.reshape(n_here, *posterior_shape)
            if self.options.noise:
                noise[number, :n_here] = self._draw_noise(batch, step)
            rate[number] = self.schedules.rate(step)
            gamma[number] = self.schedules.gamma(step)
            if self.schedules.beta is not None:
                beta[number] = self.schedules.beta(step)
        steps = np.arange(first, first + _MOST_STEPS, dtype=np.int32)
        if self.options.propose_again is not None:
            candidates = candidates[:, :, :1]
            log_q = log_q[:, :, :1]
        inputs: list[Any] = [rows, weights, candidates, log_q, log_q_current, uniforms, noise]
        return Batch(*inputs, *map(jnp.asarray, (beta, rate, gamma, steps)))

    def _draw_noise(self, rows: np.ndarray, step: int) -> np.ndarray:
        """Noise (B, D) for rows (B,): normal draws of Box and Muller from the rows' uniforms."""
        n_features = self._data.shape[1]
        random = StepRandomness(self.seed, step)
        drawn = random.uniforms(Stream.NOISE, rows, n_features + n_features % 2)
        first, second = np.split(drawn, 2, axis=1)
        radius = np.sqrt(-2.0 * np.log1p(-first))
        angle = 2.0 * np.pi * second
        normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        return np.asarray(self.options.noise * normal[:, :n_features])

    def _weights(self, rows: np.ndarray) -> np.ndarray | float:
        """Weight of each row in the objective: its own over what as many rows weigh on average."""
        if self._row_weights is None:
            return 1.0 / int(rows.shape[0])
        average: float = rows.shape[0] * self._row_weights.mean()
        return np.asarray(self._row_weights[rows] / average)

    def _evaluate_chain(self) -> None:
        """Evaluate every row at its first tree, for steps that reuse log-joints."""
        log_weights = log_weights_of(self.state.root)
        values = []
        for start in range(0, self._data.shape[0], 1024):
            block = self._data[start : start + 1024]
            trees = self.state.chain[start : start + 1024, None]
            values.append(
                evaluate(self.network, self.state.tables, log_weights, trees, block).log_joint[:, 0]
            )
        self.counters.evaluations += self._data.shape[0]
        self.state = self.state._replace(log_joint=jnp.concatenate(values))


def _as_plain(state: State) -> dict[str, Any]:
    """A state as NumPy arrays in tuples; what is None stays so."""

    def plain(values: Any) -> Any:
        if isinstance(values, tuple):
            return tuple(plain(value) for value in values)
        return None if values is None else np.array(values)

    return {name: plain(values) for name, values in state._asdict().items()}
