"""Random-partition Gibbs on a stream of batches, with no state per row.

A row of a stream has no chain to go on from: some random trees lead it to a block each, a sweep
uphill from the best of them moves it to where it belongs, and another one weighs the statistics.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pickmix.closed_form.mixture import GaussianMixtureState, Increment
from pickmix.closed_form.partition_gibbs import sweep
from pickmix.closed_form.relocation import Relocation
from pickmix.data.rows import ArrayRows
from pickmix.selection.partitions import Partition, RandomPartition, draw_partition
from pickmix.selection.randomness import StepRandomness, Stream

# Trees that new rows are led down, and sweeps uphill from the best block found, before the sweep
# that counts.
_ROUTES = 4
_CLIMBS = 1
# Rows per component in which a step may replace all statistics.
_ROWS_PER_COMPONENT = 100
_POWER = 0.6
# Batches between rounds of relocation, and rows per component that such a batch must have.
_RELOCATE_EVERY = 4
_RELOCATION_ROWS = 40
# Times the usual margin that a move must gain. Halves are fitted to the batch that judges them,
# wholes are not; and moves by chance would go on for ever in a stream, each one undoing what was
# learnt from many batches.
_CAUTION = 4.0


def automatic_gamma(n_rows: int, n_seen: float, n_components: int) -> float:
    """Step size of a batch of `n_rows` after `n_seen` rows.

    (1 + u)^-0.6, where u counts the rows seen in units that are large enough to learn all
    components from; a batch that is only a part of such a unit gets that part of it.
    """
    unit = max(n_rows, _ROWS_PER_COMPONENT * n_components)
    return n_rows / unit * float((1.0 + n_seen / unit) ** -_POWER)


class OnlineMixture:
    """A Gaussian mixture that follows a stream of batches.

    Parameters
    ----------
    state : GaussianMixtureState
        Updated in place.
    settings : RandomPartition
    center : (D,) array
        Origin of the coordinates of `state`.
    seed : int
    n_seen : float
        Rows seen before.
    n_batches : int
        Batches seen before.
    """

    def __init__(
        self,
        state: GaussianMixtureState,
        settings: RandomPartition,
        center: np.ndarray,
        seed: int,
        n_seen: float,
        n_batches: int,
    ) -> None:
        self.state = state
        self.settings = settings
        self.center = center
        self.seed = seed
        self.n_seen = n_seen
        self.n_batches = n_batches
        self.evaluations = 0
        self._partitions: list[Partition] = []
        self._rows_to_go = 0

    def learn(self, source: ArrayRows, gamma: float | None, relocates: bool) -> tuple[float, int]:
        """Learn from one batch; returns a bound of its log-likelihood and the updates refused.

        The bound is the mean log-density per row of the blocks that the rows ended in, under the
        parameters before the update.
        """
        state = self.state
        self.n_batches += 1
        random = StepRandomness(self.seed, self.n_batches)
        if gamma is None:
            gamma = automatic_gamma(source.n_rows, self.n_seen, state.n_components)
        self.n_seen += source.n_rows
        before = (1.0 - gamma) ** 2 / max(state.n_rows, 1.0)
        state.n_rows = min(self.n_seen, 1.0 / (before + gamma**2 / source.n_rows))
        self._draw_partitions(source.n_rows, random)
        chain, _, evaluations = search(
            state, source, self._partitions[:-1], _ROUTES, self._key(random)
        )
        rows = np.arange(source.n_rows)
        done = sweep(state, source, chain, rows, self._partitions[-1], self._key(random))
        self.evaluations += evaluations + done.evaluations
        weights = source.weights_of(done.rows)[0]
        shift = float(np.log(state.floored_masses.sum()))
        bound = float(weights @ done.log_sums / weights.sum()) - shift
        increment = Increment(state, state.n_components)
        increment.add_moments(done.members, done.moments, source.weights_of(rows)[1])
        refused = state.absorb(increment, gamma)
        if (
            relocates
            and self.n_batches % _RELOCATE_EVERY == 0
            and source.n_rows >= _RELOCATION_ROWS * state.n_components
        ):
            relocation = Relocation(state, source, chain)
            relocation.margin *= _CAUTION
            relocation.round(rows, random)
            self.evaluations += relocation.evaluations
        return bound, refused

    def _key(self, random: StepRandomness) -> np.uint64:
        return random.key(Stream.POSTERIOR)

    def _draw_partitions(self, n_rows: int, random: StepRandomness) -> None:
        """Draw new partitions once per K rows or more."""
        if self._rows_to_go <= 0:
            self._rows_to_go = self.state.n_components
            self.state.pool()
            self._partitions = [
                draw_partition(
                    self.state.model.mean,
                    self.settings.block_size,
                    self.settings.shuffle if number == _ROUTES + _CLIMBS else 0.0,
                    random,
                    self.state.threads,
                    self.state.widths(),
                    number,
                )
                for number in range(_ROUTES + _CLIMBS + 1)
            ]
        self._rows_to_go -= n_rows


def search(
    state: GaussianMixtureState,
    source: ArrayRows,
    partitions: Sequence[Partition],
    n_routes: int,
    key: np.uint64,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Find, for each row, a likely component and a lower bound of its log-density.

    The trees of the first `n_routes` partitions lead each row to as many blocks. From the block
    with the largest sum of p(x, k) it goes uphill through the blocks of the other partitions. The
    bound is the largest sum that was met. Returns components (N,) int32, bounds (N,) of log-joint
    sums, and the number of evaluations.
    """
    chain = np.full(source.n_rows, -1, dtype=np.int32)
    bounds = np.full(source.n_rows, -np.inf)
    rows = np.arange(source.n_rows)
    evaluations = 0
    for number, partition in enumerate(partitions):
        candidate = np.full_like(chain, -1) if number < n_routes else chain.copy()
        done = sweep(
            state, source, candidate, rows, partition, key, wants_moments=False, greedy=True
        )
        evaluations += done.evaluations
        better = done.rows[done.log_sums > bounds[done.rows]]
        bounds[done.rows] = np.maximum(bounds[done.rows], done.log_sums)
        if number < n_routes:
            chain[better] = candidate[better]
        else:
            # A climb never goes down, whatever the sum over its block is.
            chain = candidate
    return chain, bounds, evaluations


def draw_search_partitions(
    state: GaussianMixtureState, n_partitions: int, block_size: int, seed: int
) -> list[Partition]:
    """Partitions for `search`."""
    return [
        draw_partition(
            state.model.mean,
            block_size,
            0.0,
            StepRandomness(seed, number),
            state.threads,
            state.widths(),
        )
        for number in range(n_partitions)
    ]
