"""Log-likelihoods under a frozen mixture, every component evaluated, block by block."""

from __future__ import annotations

import numpy as np

from pickmix.closed_form.state import MixtureState
from pickmix.families.base import LeftOutPairs
from pickmix.families.layout import Model, log_weights
from pickmix.families.shrinkage import FEWEST_ROWS
from pickmix.kernels.statistics import Rows
from pickmix.selection.partitions import Partition
from pickmix.selection.randomness import StepRandomness, Stream

# Log-joints of all components for one block of rows take about this many numbers (16 MB), unless
# 16 rows take more; and a block of a dense E-step stays in the cache.
_BLOCK_NUMBERS = 2_000_000
_BLOCK_ROWS = 1024
_BLOCK_COMPONENTS = 512  # Components per block of a sweep that evaluates all of them.
_LEAST = -1e300  # Log-density of a row that nothing explains.
_LITTLE = 1e-3  # Negligible weight of a row in a component.


def dense_block_rows(n_components: int) -> int:
    """Rows per block when every component is evaluated."""
    return max(16, min(_BLOCK_ROWS, _BLOCK_NUMBERS // n_components))


def log_likelihoods(state: MixtureState, source: Rows, rows: np.ndarray) -> np.ndarray:
    """log p(x_i) (B,) of rows, without `Family.log_base`, by sweeps through every block."""
    out = np.full(rows.shape[0], -np.inf)
    key = StepRandomness(0, 0).key(Stream.POSTERIOR)
    for first in range(0, state.n_components, _BLOCK_COMPONENTS):
        last = min(first + _BLOCK_COMPONENTS, state.n_components)
        some = Model(
            *(part[first:last] if len(part) == state.n_components else part for part in state.model)
        )
        swept = state.backend.sweep(
            state.layout,
            some,
            source,
            rows,
            np.zeros(rows.shape[0], dtype=np.int32),
            Partition.of_blocks(np.arange(last - first), last - first),
            key,
            wants_statistics=False,
            greedy=True,
        )
        out = np.logaddexp(out, swept.log_sums)
    return out - state.log_total()


def _likeness(
    state: MixtureState, rows: np.ndarray, candidates: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Log-joints (B, W) of candidates (None: all); log p(x | k) of complete rows as distant.

    The latter are without tables and linear parts.
    """
    backend, layout, model = state.backend, state.layout, state.model
    some = slice(None) if candidates is None else candidates
    if layout.is_partial(rows):
        joint, squares = backend.condition_pairs(layout, model, rows, candidates)
        normaliser = model.log_normaliser[0 if model.factor.shape[0] == 1 else some]
        return joint, normaliser - 0.5 * squares
    if candidates is None:
        joint = np.ascontiguousarray(backend.log_joint_all(layout, model, rows).T)
    else:
        joint = backend.log_joint(layout, model, rows, candidates)
    likeness = joint - log_weights(model, some)
    which = np.arange(joint.shape[1])[None] if candidates is None else candidates
    for level, first in zip(rows.T[layout.n_coordinates :], layout.offsets[:-1], strict=True):
        likeness -= model.tables[which, (level.astype(np.int64) + first)[:, None]]
    if model.linear.shape[0]:
        for d in range(layout.n_coordinates):
            likeness -= model.linear[which, d] * (rows[:, d, None] - model.location[which, d])
    return joint, likeness


def left_out_log_sums(
    state: MixtureState,
    rows: np.ndarray,
    row_weights: np.ndarray,
    candidates: np.ndarray | None = None,
) -> np.ndarray:
    """log sum_k p(x, k), (B,), of rows (B, D), each component estimated without the row.

    row_weights (B,) are in units of a mean row. With candidates (B, W), padded with -1, the sum is
    over these, else over all components.
    """
    joint, likeness = _likeness(state, rows, candidates)
    joint, likeness = np.maximum(joint, _LEAST), np.maximum(likeness, _LEAST)
    if candidates is None:
        all_components = np.arange(state.n_components, dtype=np.int32)
        candidates = np.broadcast_to(all_components, (rows.shape[0], state.n_components))
    counts = state.effective_rows(candidates)
    if candidates.shape[1] == 1:
        only, every = candidates[:, 0], np.arange(rows.shape[0])
        pairs = LeftOutPairs(only, likeness[:, 0], rows, every, row_weights, counts[:, 0])
        falls = state.family.left_out_falls(state.model, state.prior, pairs)
        return np.asarray(joint[:, 0] - falls)
    weights = np.exp(joint - joint.max(axis=1, keepdims=True))
    weights *= (row_weights / weights.sum(axis=1))[:, None]
    # Leaving out a row with negligible weight changes nothing, unless the component is empty.
    some = np.nonzero((weights > _LITTLE) | (counts < FEWEST_ROWS))
    pairs = LeftOutPairs(
        candidates[some], likeness[some], rows, some[0], weights[some], counts[some]
    )
    joint[some] -= state.family.left_out_falls(state.model, state.prior, pairs)
    largest = joint.max(axis=1)
    return np.asarray(largest + np.log(np.exp(joint - largest[:, None]).sum(axis=1)))
