"""Searches for rows without a chain.

Some random trees lead a row to a block each, and sweeps uphill from the best of them move it to
where it belongs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows
from pickmix.selection.partitions import Partition, draw_partition
from pickmix.selection.randomness import StepRandomness, Stream

# Child of a step's randomness that draws the search.
_SEARCH = 1000


def search(
    state: MixtureState, source: ArrayRows, partitions: Sequence[Partition], n_routes: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Find, for each row, a likely component and a lower bound of its log-density.

    The trees of the first `n_routes` partitions lead each row to as many blocks. From the block
    with the largest sum of p(x, k) it goes uphill through the blocks of the other partitions. The
    bound is the largest sum that was met. Returns components (N,) int32, bounds (N,) of log-joint
    sums, and the number of evaluations.
    """
    rows = np.arange(source.n_rows)
    chain = np.zeros(source.n_rows, dtype=np.int32)
    bounds = np.full(source.n_rows, -np.inf)
    key = StepRandomness(0, 0).key(Stream.POSTERIOR)
    evaluations = 0
    for number, partition in enumerate(partitions):
        begin = chain
        if number < n_routes:
            begin = _led_down(state, source, partition)
        done = state.backend.sweep(
            state.layout,
            state.model,
            source,
            rows,
            begin,
            partition,
            key,
            wants_statistics=False,
            greedy=True,
        )
        evaluations += done.evaluations
        if number < n_routes:
            chain = np.where(done.log_sums > bounds, done.components, chain)
        else:
            # A climb never goes down, whatever the sum over its block is.
            chain = done.components
        bounds = np.maximum(bounds, done.log_sums)
    return chain, bounds, evaluations


def _led_down(state: MixtureState, source: ArrayRows, partition: Partition) -> np.ndarray:
    """A component of the block that the partition's tree leads each row to, (N,)."""
    assert partition.tree is not None
    first_member = partition.members[partition.offsets[:-1]]
    chain = np.empty(source.n_rows, dtype=np.int32)
    for start in range(0, source.n_rows, 65536):
        part = np.arange(start, min(start + 65536, source.n_rows))
        places = state.family.row_places(source.gather(part))
        chain[part] = first_member[state.backend.operations.leaf_of(partition.tree, places)]
    return chain


def draw_routes(
    state: MixtureState, n_partitions: int, block_size: int, random: StepRandomness
) -> list[Partition]:
    """Partitions for `search`."""
    return [
        draw_partition(
            state.places(),
            block_size,
            0.0,
            random.child(_SEARCH + number),
            state.backend.operations,
            state.widths(),
        )
        for number in range(n_partitions)
    ]
