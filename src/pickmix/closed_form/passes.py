"""Engine 1 on tables that are not in memory: passes over all rows, chunk by chunk.

A mixture comes here when it has been fitted to a sample of the rows in memory. Each pass sweeps all
chunks under one frozen mixture, and then takes one step with the statistics of all rows. So it does
not matter in which order rows are stored, or where: a table that is sorted by time or by class is
read from its beginning to its end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pickmix.checks import check_restored
from pickmix.closed_form.algorithm import (
    check_chain,
    estimate_shrinkage,
    mean_log_base,
    mean_log_likelihood,
    probe_rows,
)
from pickmix.closed_form.chains import Chains
from pickmix.closed_form.chunks import Chunk, Chunks, Pairwise
from pickmix.closed_form.search import N_PROBES, Cells, Routes, draw_routes, search
from pickmix.closed_form.state import FrozenMixture, MixtureState
from pickmix.data.rows import ArrayRows, Batches, make_rows
from pickmix.families.base import Family
from pickmix.families.layout import Model
from pickmix.fitting.loop import Counters
from pickmix.fitting.settings import FitSettings
from pickmix.kernels import choose
from pickmix.kernels.statistics import Statistics
from pickmix.selection.partitions import Partition, draw_partition
from pickmix.selection.randomness import StepRandomness, Stream

# Passes over which the statistics are averaged at the end, and the power of gamma there.
_AVERAGING_PASSES = 2
_AVERAGING_POWER = 0.6
# Passes draw from steps that no fit in memory comes to.
_FIRST_STEP = 2**40
# Children of a pass's randomness.
_PARTITION, _SWEEP, _SAMPLE = 0, 1, 2
# Facts about the course of the passes that a checkpoint keeps.
_FACTS = ("n_passes", "_averages_since", "_next", "_chunks_per_step")


class ChunkSwept(NamedTuple):
    """Result of the sweep of a chunk."""

    states: np.ndarray  # Where its chains stand now, (n,).
    evaluations: int


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The job of a pass: move all chains once, under one frozen mixture."""

    family: Family
    model: Model
    partition: Partition
    #: Where rows without a chain look for a component; None if all components are in one block.
    cells: Cells | None
    key: np.uint64  # Of the draws.
    centre: np.ndarray  # Origin of the coordinates, (D,), in the order of the family's columns.
    mean_weight: float  # What a row weighs on average.
    compiled: bool

    def work(self, chunk: Chunk, state: np.ndarray | None) -> tuple[ChunkSwept, Statistics]:
        """Move the chains of a chunk; one that has none yet finds them by a search."""
        family, values, weights = self.family, chunk.rows, chunk.weights
        backend = choose(self.compiled)
        if state is None:
            problem = family.check(values)
            if problem is not None:
                last = chunk.first + len(values)
                raise ValueError(f"X, among rows {chunk.first + 1} to {last}: {problem}.")
        unseen = np.isnan(values).all(axis=1)
        if unseen.any():
            weights = np.where(unseen, 0.0, 1.0 if weights is None else weights)
        values = family.coordinates(values)
        rows = make_rows(values, weights, self.centre)
        evaluations = 0
        if state is not None:
            chain = state.astype(np.int32)
        elif self.cells is not None:
            mixture = FrozenMixture(family, self.model, backend)
            chain, _, evaluations = search(mixture, rows, Routes(self.cells, N_PROBES))
        else:
            chain = np.zeros(rows.n_rows, dtype=np.int32)
        swept = backend.sweep(
            family.layout,
            self.model,
            _NumberedRows(rows, chunk.first, self.mean_weight),
            np.arange(chunk.first, chunk.first + rows.n_rows),
            chain,
            self.partition,
            self.key,
            1.0,
            wants_log_sums=False,
        )
        assert swept.statistics is not None
        met = np.flatnonzero(swept.statistics.mass > 0.0)
        met = met[np.argsort(swept.statistics.members[met], kind="stable")]
        states = swept.components.astype(_state_dtype(self.model.location.shape[0]))
        result = ChunkSwept(states, evaluations + swept.evaluations)
        return result, swept.statistics.at(met)

    def add(self, one: Statistics, other: Statistics) -> Statistics:
        return one.plus(other, self.family.layout)


class _NumberedRows:
    """Rows of a chunk under their numbers in the whole table."""

    def __init__(self, rows: ArrayRows, first: int, mean_weight: float) -> None:
        self._rows, self._first, self._mean_weight = rows, first, mean_weight

    def gather(self, rows: np.ndarray) -> np.ndarray:
        return self._rows.gather(rows - self._first)

    def gather_about(self, rows: np.ndarray, origin: np.ndarray) -> np.ndarray:
        return self._rows.gather_about(rows - self._first, origin)

    def weights_of(self, rows: np.ndarray) -> tuple[np.ndarray, float]:
        return self._rows.weights_of(rows - self._first)[0], rows.shape[0] * self._mean_weight

    def patterns_of(self, rows: np.ndarray) -> np.ndarray | None:
        return self._rows.patterns_of(rows - self._first)

    def features(self, make: Callable[[np.ndarray], Any], size: int) -> Any:
        return None


def _state_dtype(n_components: int) -> type[np.integer[Any]]:
    """Type of the numbers of components that are kept between passes."""
    return np.uint16 if n_components <= 2**16 else np.int32


class PassEngine:
    """Makes passes over all rows of some chunks.

    A step is one run over some chunks, so that a fit can end, or be saved, within a pass that takes
    hours. The mixture changes only at the end of a pass. First every pass replaces the statistics
    (gamma = 1), as in EM. When the log-likelihood has stopped rising they are averaged over some
    passes, which takes the noise of the draws out of the parameters. The last of `max_iter` are
    averaged in any case.

    The mixture was fitted to a sample: `source` holds its rows and `chain` the states of their
    chains. `mean_weight` is that of all rows.
    """

    #: Name of the outcome when an update is refused.
    refusal = "singular_covariance"

    def __init__(
        self,
        state: MixtureState,
        source: ArrayRows,
        chain: np.ndarray,
        chunks: Chunks,
        mean_weight: float,
        settings: FitSettings,
        seed: int,
    ) -> None:
        assert settings.partition is not None
        self.state = state
        self.source = source
        self.probe = probe_rows(settings)
        self.log_base = mean_log_base(state.family, source, self.probe)
        self.counters = Counters()
        self.chunks = chunks
        self.mean_weight = mean_weight
        self.settings = settings.partition
        self.seed = seed
        self.n_rows = int(chunks.offsets[-1])
        self.n_chunks = chunks.offsets.shape[0] - 1
        # A fit that resumes keeps it, with any number of workers: sums have one order.
        self._chunks_per_step = chunks.chunks_per_run
        self._last_passes = int(settings.max_iter) - _AVERAGING_PASSES
        self.n_passes = 0
        self._averages_since: int | None = None
        self._sample = Chains(source, chain, Batches(source.n_rows, source.n_rows, seed))
        self._states: list[np.ndarray | None] = [None] * self.n_chunks
        self._next = 0
        self._sweep: Sweep | None = None
        self._sums = Pairwise(self._add)

    @property
    def steps_per_pass(self) -> int:
        return int(-(-self.n_chunks // self._chunks_per_step))

    def _add(self, one: Statistics, other: Statistics) -> Statistics:
        return one.plus(other, self.state.family.layout)

    def may_end(self, step: int) -> bool:
        """Whether the statistics have settled; the first plateau lets them begin to."""
        if self._averages_since is None:
            self._averages_since = self.n_passes
        return self.n_passes - self._averages_since >= _AVERAGING_PASSES

    def log_likelihood(self) -> float:
        assert self.probe is not None
        return mean_log_likelihood(self.state, self.source, self.probe) + self.log_base

    def validation(self) -> float | None:
        return None

    def live_components(self) -> int:
        return int(np.count_nonzero(self.state.weights * self.n_rows >= 0.5))

    def advance(self, first: int, most: int) -> int:
        """Sweep some chunks; after the last one of a pass, absorb the statistics."""
        if self._next == 0:
            self.state.pool()
        if self._sweep is None:
            self._sweep = self._begin_pass()
        begin, end = self._next, min(self._next + self._chunks_per_step, self.n_chunks)
        results, statistics = self.chunks.run(
            self._sweep, range(begin, end), self._states[begin:end]
        )
        self._states[begin:end] = [result.states for result in results]
        self.counters.evaluations += sum(result.evaluations for result in results)
        self._sums.put(statistics, end - begin)
        n_rows = int(self.chunks.offsets[end] - self.chunks.offsets[begin])
        self.counters.rows += n_rows
        self.counters.acceptance_sum += n_rows
        self._next = end
        if self._next == self.n_chunks:
            self._end_pass()
        return 1

    def _random(self) -> StepRandomness:
        return StepRandomness(self.seed, _FIRST_STEP + self.n_passes)

    def _begin_pass(self) -> Sweep:
        state, random = self.state, self._random()
        many = state.n_components > self.settings.block_size
        searches = many and any(states is None for states in self._states)
        return Sweep(
            family=state.family,
            model=state.model,
            partition=self._draw_partition(random),
            cells=draw_routes(state, random).cells if searches else None,
            key=random.child(_SWEEP).key(Stream.POSTERIOR),
            centre=self.source.center,
            mean_weight=self.mean_weight,
            compiled=state.backend.COMPILED,
        )

    def _draw_partition(self, random: StepRandomness) -> Partition:
        return draw_partition(
            self.state.positions(),
            self.settings.block_size,
            self.settings.shuffle,
            random.child(_PARTITION),
            self.state.backend,
            self.state.scales(),
        )

    def _end_pass(self) -> None:
        """SA-step and M-step with the statistics of all rows."""
        state, random = self.state, self._random()
        statistics = self._sums.total()
        self.n_passes += 1
        self._next = 0
        self._sweep = None
        self._sums = Pairwise(self._add)
        gamma = 1.0
        if self._averages_since is None and self.n_passes > max(1, self._last_passes):
            self._averages_since = self.n_passes - 1
        if self._averages_since is not None:
            gamma = float((self.n_passes - self._averages_since + 1) ** -_AVERAGING_POWER)
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

    def content(self) -> dict[str, Any]:
        """All that the next step depends on; a pass under way is known by its number."""
        return {
            "state": self.state.content(),
            "chain": self._sample.chain,
            "counters": dataclasses.asdict(self.counters),
            "facts": {name: getattr(self, name) for name in _FACTS},
            "states": self._states,
            "sums": [[count, vars(statistics)] for count, statistics in self._sums.kept],
        }

    def restore(self, content: dict[str, Any]) -> None:
        """Take back the content of an engine of the same fit."""
        K = self.state.n_components
        self.state.restore(content["state"])
        self._sample.chain[:] = check_chain(content["chain"], self._sample.chain, K)
        for name in _FACTS:
            setattr(self, name, content["facts"][name])
        if len(content["states"]) != self.n_chunks or not 0 <= self._next <= self.n_chunks:
            raise ValueError(f"states: expected those of {self.n_chunks} chunks, got others")
        sizes = np.diff(self.chunks.offsets).tolist()
        self._states = [
            None if kept is None else check_chain(kept, np.empty(size, dtype=_state_dtype(K)), K)
            for kept, size in zip(content["states"], sizes, strict=True)
        ]
        self._sums.kept = [
            (int(count), _checked_statistics(statistics, self.state))
            for count, statistics in content["sums"]
        ]
        for name, value in content["counters"].items():
            setattr(self.counters, name, value)


def _checked_statistics(kept: dict[str, Any], state: MixtureState) -> Statistics:
    """Statistics of a file, if kernels can trust them."""
    n = np.shape(kept["members"])[0]
    sums = {
        name: check_restored(name, kept[name], array[:1].repeat(n, axis=0))
        for name, array in state.moments._asdict().items()
    }
    like = np.empty(n, dtype=np.int32 if kept["members"].dtype == np.int32 else np.int64)
    members = check_chain(kept["members"], like, state.n_components)
    return Statistics(members, **sums, total_weight=float(kept["total_weight"]))
