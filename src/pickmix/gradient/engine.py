"""The gradient engine: batches, draws and schedules go in, chunks of steps come out."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import compress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pickmix.data.rows import Batches
from pickmix.fitting.loop import Counters
from pickmix.gradient.adam import Adam
from pickmix.gradient.algorithm import Batch, Root, State, evaluate, make_chunk
from pickmix.gradient.candidates import Blocks, Partitions, TreeProposal
from pickmix.gradient.compilation import kept_programs, precision
from pickmix.gradient.network import Network, cast
from pickmix.gradient.queries import Fitted
from pickmix.gradient.settings import Settings
from pickmix.gradient.start import Start
from pickmix.selection.partitions import RandomPartition
from pickmix.selection.proposals import Proposal
from pickmix.selection.randomness import StepRandomness, Stream

# Steps per compiled call at most, and the time that one may take, so that Ctrl-C and time limits
# are noticed.
_MOST_STEPS = 128
_CHUNK_SECONDS = 0.25
# Evaluations of components that a measurement of the log-likelihood may cost, and its fewest rows.
_PROBE_EVALUATIONS = 100_000
_FEWEST_PROBED = 100
# The same for validation rows: evaluations, and the fewest and the most rows.
_WATCHED_EVALUATIONS = 500_000
_WATCHED = (200, 2000)
# Parameters replace others if validation rows gain more than so many standard errors, and those of
# a Gaussian start if they gain more than the second. That is the best of many looks, often on ten
# rows: with one error, bent components ended below Gaussians of all rows on 3 of 4 small tables
# where they were kept (seed 10 of `deep-uci`, not one of those that it measures).
_ERRORS, _ERRORS_OF_GAUSSIANS = 1.0, 3.0

#: Of each table that learns, and of the root at the end: first and second moments, and updates.
Moments = list[tuple[np.ndarray, ...]]


class Remembered(NamedTuple):
    """Parameters of some step: tables, log-weights (s,) and scores (V,) of validation rows."""

    tables: tuple[np.ndarray, ...]
    log_weights: np.ndarray
    scores: np.ndarray | None


def rises(
    scores: np.ndarray | None, before: np.ndarray | None, from_gaussians: bool = False
) -> bool:
    """Whether the mean of scores (V,) is above that of others by more than chance.

    By some standard errors of the differences, row by row: few rows say little.
    """
    if scores is None or before is None or scores.shape != before.shape:
        return False
    if not np.isfinite(before).all():
        return True
    differences = scores - before
    if differences.shape[0] < 2:
        return bool(differences.mean() > 0.0)
    error = differences.std(ddof=1) / np.sqrt(differences.shape[0])
    return bool(differences.mean() > (_ERRORS_OF_GAUSSIANS if from_gaussians else _ERRORS) * error)


def padded_rows(n_rows: int) -> int:
    """Rows that a program for `n_rows` rows is compiled for: few programs serve all batches."""
    return max(16, 1 << (n_rows - 1).bit_length())


def _choose_probe(n_rows: int, evaluations_per_row: int) -> np.ndarray:
    """Choose rows for the training log-likelihood: as many as are affordable, always the same."""
    affordable = max(_FEWEST_PROBED, _PROBE_EVALUATIONS // evaluations_per_row)
    generator = np.random.Generator(np.random.Philox(key=0))
    return np.sort(generator.choice(n_rows, min(n_rows, affordable), replace=False))


def _choose_validation(rows: np.ndarray, evaluations_per_row: int) -> np.ndarray:
    """Choose validation rows in one order for all fits: fewer rows are the first ones of more."""
    most = int(np.clip(_WATCHED_EVALUATIONS // evaluations_per_row, *_WATCHED))
    order = np.random.Generator(np.random.Philox(key=1)).permutation(rows.shape[0])
    return rows[order[:most]]


class GradientEngine:
    """Fits a network by the steps of `algorithm.py`. What the loop sees of engine 2.

    Rows `data` (N, D) and `validation` (V, D) are in the network's coordinates; `log_volume` is
    log|det| of the map from the user's, by column (D,) if some values are missing (NaN). A batch of
    a stream has `steps_before` it, from which its steps are numbered on. Its rows are padded to
    powers of two, so that batches of about the same size share a compiled program; steps never
    visit padding rows.
    """

    #: Name of the outcome when a step is refused.
    refusal = "non_finite"

    def __init__(
        self,
        network: Network,
        start: Start,
        settings: Settings,
        data: np.ndarray,
        row_weights: np.ndarray | None,
        validation: np.ndarray | None,
        seed: int,
        log_volume: float | np.ndarray = 0.0,
        steps_before: int | None = None,
        from_gaussians: bool = False,
    ) -> None:
        self.network = network
        self.seed = seed
        self.from_gaussians = from_gaussians
        self.dtype = np.dtype(settings.dtype)
        self.log_volume = log_volume
        self.counters = Counters()
        self._n_rows = data.shape[0]
        batch_size = min(settings.batch_size or self._n_rows, self._n_rows)
        self.batches = Batches(self._n_rows, batch_size, seed)
        self.steps_before = steps_before or 0
        step_settings = settings.of_step()
        self.proposal: TreeProposal | None = None
        self.partitions: Partitions | None = None
        if isinstance(settings.proposal, Proposal):
            sizes = (self._n_rows, network.n_choices, settings.n_samples)
            self.proposal = TreeProposal(settings.proposal, *sizes, seed, self.dtype)
            if not settings.proposal.independent and settings.n_samples > 1:
                step_settings = replace(step_settings, propose_again=self.proposal.propose_again)
        elif isinstance(settings.proposal, RandomPartition):
            self.partitions = Partitions(network, settings.proposal, self.batches, seed)
        self.settings, self._draws_again = settings, step_settings.propose_again is not None
        self._partition_number = -1
        self._row_weights = row_weights
        self._seconds_per_step = 0.0
        self._batch_size = -(-self._n_rows // self.batches.n_batches)
        n_padding = 0
        if steps_before is not None:
            n_padded = padded_rows(self._n_rows)
            n_padding = n_padded - self._n_rows
            self._batch_size = min(settings.batch_size or n_padded, n_padded)
        probe = _choose_probe(self._n_rows, network.n_evaluated_by_all)
        if validation is not None:
            validation = _choose_validation(validation, network.n_evaluated_by_all)
        padding = (0, n_padding), (0, 0)
        padded = cast(np.pad(data, padding) if n_padding else data, self.dtype)
        self._probe = padded[probe]
        self._validation = None if validation is None else cast(validation, self.dtype)
        tables, logits = map(np.asarray, start.tables), np.array(start.log_weights, self.dtype)
        with precision(self.dtype):
            self._data = jax.device_put(padded)
            # Copies: a compiled step reuses the memory of the state that it is given.
            copies = tuple(jax.device_put(np.array(table, self.dtype)) for table in tables)
            self.state = State(
                copies,
                tuple(Adam.start(table) for table in compress(copies, network.learns)),
                Root(jax.device_put(logits), Adam.start(logits[None])),
                jax.device_put(np.pad(start.chain, padding).astype(np.int32)),
                jax.device_put(np.zeros(0, self.dtype)),
            )
        self._watched_scores: np.ndarray | None = None
        self._first: Remembered | None = None
        self._remembered: Remembered | None = None
        learns = self.proposal is not None and self.proposal.learns
        self._chunk = make_chunk(network, step_settings, learns)

    # -- what the loop calls --------------------------------------------------------------

    def compile(self) -> float:
        """Compile everything before the clock starts; return the seconds that took."""
        started = time.perf_counter()
        with precision(self.dtype), kept_programs():
            if self.settings.reuse_log_joint:
                self._evaluate_chain()
            self._renew_partition(1)
            batches = self._prepare(1, 0)
            self.state, _ = self._chunk(self._data, self.state, batches, jnp.int32(0))
            self.state.chain.block_until_ready()
        self.log_likelihood()
        self.validation()
        return time.perf_counter() - started

    def advance(self, first: int, most: int) -> int:
        first -= self.steps_before
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
                gamma = self.settings.step_size(self.steps_before + first + number)
                self.proposal.observe(rows, states[number, : rows.shape[0]], gamma)
        self._seconds_per_step = (time.perf_counter() - started) / n_steps
        self.counters.rows += n_visits
        self.counters.evaluations += n_visits * self._evaluations_per_visit()
        draws = self.settings.algorithm in ("mhsaem", "partition", "mcsaem")
        # One by one: sums must not depend on how steps are cut into calls.
        for acceptance in acceptances:
            self.counters.acceptance_sum += acceptance if draws else float("nan")
        self.counters.refused += refused
        return n_steps

    def log_likelihood(self) -> float:
        """Mean log-likelihood of the probe's rows."""
        return float(self._scores(self._probe).mean())

    def validation(self) -> float | None:
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
        weights = np.exp(self.log_weights())
        return int(np.count_nonzero(weights * self._n_rows >= 0.5))

    def may_end(self, step: int) -> bool:
        return True

    # -- parameters -----------------------------------------------------------------------

    def log_weights(self) -> np.ndarray:
        """Log-weights of the root's children, (s,)."""
        with precision(self.dtype):
            return np.asarray(self.state.root.log_weights, np.float64)

    def parameters(self) -> tuple[np.ndarray, ...]:
        """Copies of the tables."""
        return tuple(np.array(table) for table in self.state.tables)

    def best(self) -> Remembered:
        """What was remembered last, or first if no better than that, or else what there is now."""
        if self._remembered is None or self._first is None:
            return Remembered(self.parameters(), self.log_weights(), None)
        first, last = self._first, self._remembered
        is_better = first.scores is None or rises(last.scores, first.scores, self.from_gaussians)
        return last if is_better else first

    def chain(self) -> np.ndarray:
        """The tree that each row's chain stands on, (N, n_slots)."""
        return np.array(self.state.chain)

    def content(self) -> dict[str, Any]:
        """All that the next step needs beyond rows, settings and seed: copies of the arrays."""
        state, blocks = self.state, self.state.blocks
        return {
            "tables": self.parameters(),
            "moments": self.moments(),
            "logits": np.array(state.root.logits),
            "chain": self.chain(),
            "log_joint": np.array(state.log_joint),
            "blocks": None if blocks is None else tuple(map(np.array, blocks)),
            "partition_number": self._partition_number,
            "counters": vars(self.counters).copy(),
            "first": None if self._first is None else tuple(self._first),
            "remembered": None if self._remembered is None else tuple(self._remembered),
            "proposal": None if self.proposal is None else self.proposal.content(),
        }

    def restore(self, kept: dict[str, Any]) -> None:
        """Continue from the `content` of an engine for the same rows, settings and seed."""
        blocks, first, remembered = kept["blocks"], kept["first"], kept["remembered"]
        with precision(self.dtype):
            self.state = State(
                tuple(map(jnp.array, kept["tables"])),
                (),
                Root(jnp.array(kept["logits"]), self.state.root.adam),
                jnp.array(kept["chain"]),
                jnp.array(kept["log_joint"]),
                None if blocks is None else Blocks(*map(jnp.array, blocks)),
            )
        self.set_moments(kept["moments"])
        self._partition_number = kept["partition_number"]
        self.counters = Counters(**kept["counters"])
        self._first = None if first is None else Remembered(*first)
        self._remembered = None if remembered is None else Remembered(*remembered)
        if self.proposal is not None:
            self.proposal.restore(kept["proposal"])

    def moments(self) -> Moments:
        """Copies of Adam's moments, of the tables that learn and of the root."""
        adams: Any = [*self.state.adams, self.state.root.adam]
        return [tuple(np.array(values) for values in adam) for adam in adams]

    def set_moments(self, moments: Moments) -> None:
        """Continue with Adam's moments of another engine."""
        with precision(self.dtype):
            *adams, root = (
                Adam(*(jnp.array(values, self.dtype) for values in adam)) for adam in moments
            )
        logits = self.state.root.logits
        self.state = self.state._replace(adams=tuple(adams), root=Root(logits, root))

    def _scores(self, rows: np.ndarray) -> np.ndarray:
        """Log-likelihoods (V,) of rows."""
        fitted = Fitted(self.network, self.state.tables, self.log_weights(), self.dtype)
        scores = fitted.score_samples(rows)
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
        if self.settings.algorithm == "mhsaem":
            return self.settings.n_samples + (0 if self.settings.reuse_log_joint else 1)
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
        shape = (_MOST_STEPS, self._batch_size, self.settings.n_samples)
        # Uniforms for draws from a posterior; acceptance has its own, from the proposal.
        posterior_shape = {"mcsaem": (shape[2], n_slots), "partition": (2,)}.get(
            self.settings.algorithm
        )
        rows = np.full(shape[:2], n_rows, np.int32)
        weights = np.zeros(shape[:2], self.dtype)
        candidates = np.zeros((*shape, n_slots), np.int32)
        log_q = np.zeros(shape, self.dtype)
        log_q_current = np.zeros(shape[:2], self.dtype)
        uniforms = np.zeros((*shape[:2], *(posterior_shape or shape[2:])), self.dtype)
        noise = np.zeros(
            (*shape[:2], self._data.shape[1] if self.settings.noise else 0), self.dtype
        )
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
                n_draws = 1 if self._draws_again else shape[2]
                proposed = self.proposal.propose(batch, current, n_draws, 0, step)
                candidates[number, :n_here, :n_draws] = proposed[0]
                log_q[number, :n_here, :n_draws] = proposed[1]
                log_q_current[number, :n_here] = proposed[2]
                uniforms[number, :n_here] = self.proposal.uniforms(batch, step)
            elif posterior_shape is not None:
                random = StepRandomness(self.seed, step)
                drawn = random.uniforms(Stream.POSTERIOR, batch, int(np.prod(posterior_shape)))
                uniforms[number, :n_here] = drawn.reshape(n_here, *posterior_shape)
            if self.settings.noise:
                noise[number, :n_here] = self._draw_noise(batch, step)
            scheduled = self.steps_before + step
            rate[number] = self.settings.learning_rate(scheduled)
            gamma[number] = self.settings.step_size(scheduled)
            if self.settings.annealing is not None:
                beta[number] = self.settings.annealing(scheduled)
        steps = np.arange(first, first + _MOST_STEPS, dtype=np.int32)
        if self._draws_again:
            candidates = candidates[:, :, :1]
            log_q = log_q[:, :, :1]
        inputs: list[Any] = [rows, weights, candidates, log_q, log_q_current, uniforms, noise]
        inputs += [beta, rate, gamma, steps]
        return Batch(*inputs)

    def _draw_noise(self, rows: np.ndarray, step: int) -> np.ndarray:
        """Noise (B, D) for rows (B,): normal draws of Box and Muller from the rows' uniforms."""
        n_features = self._data.shape[1]
        random = StepRandomness(self.seed, step)
        drawn = random.uniforms(Stream.NOISE, rows, n_features + n_features % 2)
        first, second = np.split(drawn, 2, axis=1)
        radius = np.sqrt(-2.0 * np.log1p(-first))
        angle = 2.0 * np.pi * second
        normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        return np.asarray(self.settings.noise * normal[:, :n_features])

    def _weights(self, rows: np.ndarray) -> np.ndarray | float:
        """Weight of each row in the objective: its own over what as many rows weigh on average."""
        if self._row_weights is None:
            return 1.0 / int(rows.shape[0])
        average: float = rows.shape[0] * self._row_weights.mean()
        return np.asarray(self._row_weights[rows] / average)

    def _evaluate_chain(self) -> None:
        """Evaluate every row at its first tree, for steps that reuse log-joints."""
        values = []
        for start in range(0, self._data.shape[0], 1024):
            block = self._data[start : start + 1024]
            trees = self.state.chain[start : start + 1024, None]
            values.append(evaluate(self.network, self.state, trees, block)[:, 0])
        self.counters.evaluations += self._n_rows
        self.state = self.state._replace(log_joint=jnp.concatenate(values))
