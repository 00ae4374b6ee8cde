"""Random-partition Gibbs for Gaussian mixtures: one sweep over a batch of rows.

For a random partition of the components into blocks, every row's component is replaced by a draw
from its posterior within the block that holds it. For any partition that does not depend on the
chains this is a Gibbs step, so it leaves the posterior over components invariant. And if a chain
follows the posterior, the posterior weights within its block have the posterior as their mean:
they, not the draw, weigh the sufficient statistics.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pickmix.closed_form.blocks import sweep_blocks
from pickmix.closed_form.mixture import GaussianMixtureState
from pickmix.data.rows import ArrayRows
from pickmix.selection.partitions import Partition, group_rows

# Blocks with more rows than this are cut, so that a single block is work for many threads; each
# piece sums up on its own.
_PIECE_ROWS = 8192
# Problems of so few rows times components (a block's worth at most) are computed in float64
# throughout: they are fast anyway, and float32 costs digits.
_SMALL_PROBLEM = 100_000
_COUNTED_COMPONENTS = 32
# Rows that a thread gathers at a time.
_GATHERED_ROWS = 16384


@dataclass
class Sweep:
    """What a sweep leaves behind.

    Attributes
    ----------
    evaluations : int
        Component evaluations made.
    rows : (B,) int array
        The rows, grouped by block.
    ends : (n_blocks,) int array
        Where the rows of each block end.
    log_sums : (B,) array
        log sum of p(x, k)^beta over the row's block, in the order of `rows`.
    members : int array
        Components, perhaps several times each.
    moments : (mass, squares, mean, scatter)
        Statistics in the order of `members`, if they were wanted.
    """

    evaluations: int
    rows: np.ndarray
    ends: np.ndarray
    log_sums: np.ndarray
    members: np.ndarray
    moments: tuple[np.ndarray, ...]

    def block_totals(self, source: ArrayRows) -> np.ndarray:
        """Sum of `log_sums` over the rows of each block, with their weights, (n_blocks,)."""
        return self._totals(self.log_sums * source.weights_of(self.rows)[0])

    def block_weights(self, source: ArrayRows) -> np.ndarray:
        """Sum of the weights of the rows of each block, (n_blocks,)."""
        return self._totals(source.weights_of(self.rows)[0])

    def _totals(self, values: np.ndarray) -> np.ndarray:
        running = np.concatenate([[0.0], np.cumsum(values)])
        return np.diff(running[np.concatenate([[0], self.ends])])


def make_moments(n_places: int, state: GaussianMixtureState) -> tuple[np.ndarray, ...]:
    """Buffers for (mass, squares, mean, scatter) of `n_places` components."""
    return (
        np.zeros(n_places),
        np.zeros(n_places),
        np.empty((n_places, state.n_features)),
        np.empty((n_places, state.structure.packed_size)),
    )


def sweep(
    state: GaussianMixtureState,
    source: ArrayRows,
    chain: np.ndarray,
    rows: np.ndarray,
    partition: Partition,
    key: np.uint64,
    beta: float = 1.0,
    wants_moments: bool = True,
    greedy: bool = False,
) -> Sweep:
    """Move the chains of `rows` (B,) once, under a frozen mixture.

    `chain` (N,) is updated. A row whose entry is -1 stands nowhere yet: the partition's tree tells
    its block. With `greedy`, chains move to the best component of their block instead of a drawn
    one.
    """
    n_places = partition.members.shape[0]
    position = np.full(state.n_components, -1, dtype=np.int32)
    position[partition.members] = np.arange(n_places, dtype=np.int32)
    lost = rows[chain[rows] < 0]
    if lost.shape[0]:
        place_chains(source, chain, lost, partition, state)
    place_ends = np.empty(n_places, dtype=np.int64)
    grouped = np.empty(rows.shape[0], dtype=np.int64)
    group_rows(chain, rows, position, n_places, place_ends, grouped)
    block_ends = place_ends[partition.offsets[1:] - 1]
    pieces = _cut(partition, np.concatenate([[0], block_ends]))
    moments = make_moments(pieces.members.shape[0] if wants_moments else 0, state)
    log_sums = np.empty(rows.shape[0])
    evaluations = int(np.diff(pieces.ends) @ np.diff(pieces.places))
    exact = source.n_rows * min(state.n_components, _COUNTED_COMPONENTS) <= _SMALL_PROBLEM

    def work_on(*bounds: int) -> None:
        """Gather the rows of some chunks of pieces, and sweep through them."""
        for chunk in range(*bounds):
            first, last = int(pieces.chunks[chunk]), int(pieces.chunks[chunk + 1])
            span = slice(int(pieces.ends[first]), int(pieces.ends[last]))
            numbers = grouped[span]
            drawn = np.empty(numbers.shape[0], dtype=np.int32)
            sweep_blocks(
                state.model,
                source.gather(numbers),
                source.weights_of(numbers)[0],
                numbers,
                pieces.members,
                pieces.places,
                pieces.ends,
                first,
                last,
                beta,
                key,
                greedy,
                exact,
                drawn,
                moments,
                log_sums[span],
            )
            chain[numbers] = drawn

    work = evaluations * 2.0 * (state.structure.packed_size + state.n_features + 10.0)
    state.threads.run(work_on, pieces.chunks.shape[0] - 1, work)
    return Sweep(evaluations, grouped, block_ends, log_sums, pieces.members, moments)


@dataclass(frozen=True)
class _Pieces:
    """Blocks cut into pieces of at most _PIECE_ROWS rows, and chunks of pieces to gather.

    Piece q holds the components members[places[q]:places[q + 1]] and the rows ends[q]..ends[q + 1];
    chunk c the pieces chunks[c]..chunks[c + 1].
    """

    members: np.ndarray
    places: np.ndarray
    ends: np.ndarray
    chunks: np.ndarray


def _cut(partition: Partition, bounds: np.ndarray) -> _Pieces:
    """Cut blocks whose rows lie between the bounds (n_blocks + 1,)."""
    counts = np.diff(bounds)
    n_pieces = np.maximum(1, -(-counts // _PIECE_ROWS))
    sizes = np.diff(partition.offsets)
    if n_pieces.max() == 1:
        members, places, ends = partition.members, partition.offsets, bounds
    else:
        block = np.repeat(np.arange(partition.n_blocks), n_pieces)
        number = np.arange(block.shape[0]) - np.repeat(np.cumsum(n_pieces) - n_pieces, n_pieces)
        first = bounds[:-1][block] + counts[block] * number // n_pieces[block]
        ends = np.append(first, bounds[-1])
        places = np.concatenate([[0], np.cumsum(sizes[block])])
        starts = np.repeat(partition.offsets[:-1][block] - places[:-1], sizes[block])
        members = partition.members[np.arange(places[-1]) + starts]
    wished = np.arange(_GATHERED_ROWS, int(bounds[-1]), _GATHERED_ROWS)
    cuts = np.unique(np.searchsorted(ends[1:-1], wished) + 1) if ends.shape[0] > 2 else wished[:0]
    cuts = cuts[cuts < ends.shape[0] - 1]
    chunks = np.concatenate([[0], cuts, [ends.shape[0] - 1]]).astype(np.int64)
    return _Pieces(members, places, ends, chunks)


def place_chains(
    source: ArrayRows,
    chain: np.ndarray,
    rows: np.ndarray,
    partition: Partition,
    state: GaussianMixtureState,
) -> None:
    """Let the chains of `rows` stand somewhere in the block that the partition's tree leads to."""
    first_member = partition.members[partition.offsets[:-1]]
    for start in range(0, rows.shape[0], 65536):
        part = rows[start : start + 65536]
        leaves = partition.tree.leaf_of(source.gather(part), state.threads)
        chain[part] = first_member[leaves]
