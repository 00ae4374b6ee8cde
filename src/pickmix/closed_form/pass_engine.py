"""Engine 1 on tables that are not in memory: passes over all rows, chunk by chunk.

A mixture comes here when it has been fitted to a sample of the rows in memory. Each pass sweeps all
chunks under one frozen mixture, and then takes one step with the statistics of all rows. So it does
not matter in which order rows are stored, or where: a table that is sorted by time or by class is
read from its beginning to its end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pickmix.closed_form.chunk_tasks import Sweeping, add_statistics, joined, sweep_chunk
from pickmix.closed_form.chunks import Chunks, Pairwise
from pickmix.closed_form.engine import ClosedFormEngine
from pickmix.closed_form.local_fleet import LocalFleet
from pickmix.closed_form.partition_engine import estimate_shrinkage
from pickmix.closed_form.search import N_PROBES, draw_routes
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows, Batches
from pickmix.selection.partitions import Partition, draw_partition
from pickmix.selection.randomness import StepRandomness, Stream
from pickmix.selection.settings import RandomPartition
from pickmix.sweep.statistics import Statistics

# Passes over which the statistics are averaged at the end, and the power of gamma there.
_SETTLING_PASSES = 2
_SETTLING_POWER = 0.6
# Passes draw from steps that no fit in memory comes to.
_FIRST_STEP = 2**40
# Children of a pass's randomness.
_PARTITION, _SWEEP, _SAMPLE = 0, 1, 2


class PassEngine(ClosedFormEngine):
    """Makes passes over all rows of some chunks.

    A step is one run over some chunks, so that a fit can end, or be saved, within a pass that takes
    hours. The mixture changes only at the end of a pass. First every pass replaces the statistics
    (gamma = 1), as in EM. When the log-likelihood has stopped rising they are averaged over some
    passes, which takes the noise of the draws out of the parameters. The last of `max_passes` are
    averaged in any case.

    The mixture was fitted to a sample: `source` holds its rows and `chain` the states of their
    chains; `probe` and `log_base` are those of the sample. `mean_weight` is that of all rows.
    """

    def __init__(
        self,
        state: MixtureState,
        source: ArrayRows,
        chain: np.ndarray,
        chunks: Chunks,
        mean_weight: float,
        settings: RandomPartition,
        seed: int,
        probe: np.ndarray | None,
        log_base: float,
        max_passes: int,
    ) -> None:
        super().__init__(state, source, probe, log_base)
        self.chunks = chunks
        self.mean_weight = mean_weight
        self.settings = settings
        self.seed = seed
        self.n_rows = int(chunks.offsets[-1])
        self.n_chunks = chunks.offsets.shape[0] - 1
        # A fit that resumes keeps it, with any number of workers: sums have one order.
        self._chunks_per_step = chunks.chunks_per_run
        self._last_passes = max_passes - _SETTLING_PASSES
        self.n_passes = 0
        self._settling_since: int | None = None
        self._sample = LocalFleet(
            state.backend, source, chain, Batches(source.n_rows, source.n_rows, seed)
        )
        self._states: list[np.ndarray | None] = [None] * self.n_chunks
        self._next = 0
        self._shared: Sweeping | None = None
        self._sums = Pairwise(self._add)

    @property
    def chain(self) -> np.ndarray:
        return self._sample.chain

    @property
    def steps_per_pass(self) -> int:
        return int(-(-self.n_chunks // self._chunks_per_step))

    def _add(self, one: list[Statistics], other: list[Statistics]) -> list[Statistics]:
        layout = self.state.family.layout
        return [a.plus(b, layout) for a, b in zip(one, other, strict=True)]

    def may_end(self, step: int) -> bool:
        """Whether the statistics have settled; the first plateau lets them begin to."""
        if self._settling_since is None:
            self._settling_since = self.n_passes
        return self.n_passes - self._settling_since >= _SETTLING_PASSES

    def live_components(self) -> int:
        return int(np.count_nonzero(self.state.weights * self.n_rows >= 0.5))

    def step(self, t: int) -> None:
        """Sweep some chunks; after the last one of a pass, absorb the statistics."""
        if self._next == 0:
            self.state.pool()
        if self._shared is None:
            self._shared = self._begin_pass()
        first, last = self._next, min(self._next + self._chunks_per_step, self.n_chunks)
        results, parts = self.chunks.run(
            sweep_chunk, range(first, last), self._shared, self._states[first:last], add_statistics
        )
        self._states[first:last] = [result.states for result in results]
        self.counters.evaluations += sum(result.evaluations for result in results)
        self._sums.put(parts, last - first)
        n_rows = int(self.chunks.offsets[last] - self.chunks.offsets[first])
        self.counters.rows += n_rows
        self.counters.acceptance_sum += n_rows
        self._next = last
        if self._next == self.n_chunks:
            self._end_pass()

    def _random(self) -> StepRandomness:
        return StepRandomness(self.seed, _FIRST_STEP + self.n_passes)

    def _begin_pass(self) -> Sweeping:
        """What all chunks of this pass share."""
        state, random = self.state, self._random()
        many = state.n_components > self.settings.block_size
        searches = many and any(states is None for states in self._states)
        return Sweeping(
            family=state.family,
            model=state.model,
            partition=self._draw_partition(random),
            cells=draw_routes(state, random).cells if searches else None,
            n_probes=N_PROBES,
            key=random.child(_SWEEP).key(Stream.POSTERIOR),
            beta=1.0,
            centre=self.source.center,
            mean_weight=self.mean_weight,
            compiled=state.backend.threads is not None,
        )

    def _draw_partition(self, random: StepRandomness) -> Partition:
        return draw_partition(
            self.state.positions(),
            self.settings.block_size,
            self.settings.shuffle,
            random.child(_PARTITION),
            self.state.backend.operations,
            self.state.scales(),
        )

    def _end_pass(self) -> None:
        """SA-step and M-step with the statistics of all rows."""
        state, random = self.state, self._random()
        statistics = joined(self._sums.total())
        self.n_passes += 1
        self._next = 0
        self._shared = None
        self._sums = Pairwise(self._add)
        gamma = 1.0
        if self._settling_since is None and self.n_passes > max(1, self._last_passes):
            self._settling_since = self.n_passes - 1
        if self._settling_since is not None:
            gamma = float((self.n_passes - self._settling_since + 1) ** -_SETTLING_POWER)
        before = (1.0 - gamma) ** 2 / max(state.prior.n_rows, 1.0)
        state.prior.n_rows = min(self.n_rows, 1.0 / (before + gamma**2 / self.n_rows))
        self.counters.refused += state.absorb(statistics, gamma).shape[0]
        if state.prior.estimates_shrinkage:
            # The sample stands for all rows, once its chains have followed the mixture.
            partition = self._draw_partition(random.child(_SAMPLE))
            moved = self._sample.sweep(
                state, partition, 1, random.child(_SAMPLE), wants_statistics=False
            )
            self.counters.evaluations += moved.evaluations
            estimate_shrinkage(self._sample, state, partition, 1)

    def __getstate__(self) -> dict[str, Any]:
        # A pass that is under way is known by its number and by the mixture.
        return vars(self) | {"_shared": None, "_sums": self._sums.kept}

    def __setstate__(self, values: dict[str, Any]) -> None:
        vars(self).update(values)
        self._sums = Pairwise(self._add)
        self._sums.kept = values["_sums"]
