"""Which columns of levels depend on each other given the component: a tree of the worst pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree
from scipy.special import xlogy

_MOST_PAIRS = 2_000  # Pairs of levels of two columns, at most: every component has as many numbers.
_MOST_LEVELS = 4_000  # Levels of all columns that are looked at; columns of most levels are left.
_BLOCK_ROWS = 4_096


def choose_parents(
    rows: np.ndarray,
    n_levels: Sequence[int],
    row_weights: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    probabilities: np.ndarray | None = None,
) -> np.ndarray:
    """The parent of each column (Q,), -1 if it has none, of levels (N, Q), NaN where missing.

    A maximum spanning forest: an edge is worth what the pair's frequencies gain, per row, over those
    of a mixture of independent columns with weights (K,) and probabilities (K, M) of levels (of
    independent columns, Chow and Liu 1968, if it is not given), less half the logarithm of the rows
    for every number that it adds.

    >>> random = np.random.default_rng(0)
    >>> first = random.integers(3, size=500)
    >>> rows = np.column_stack([first, random.integers(2, size=500), (first + 1) % 3])
    >>> choose_parents(rows.astype(float), [3, 2, 3])
    array([-1, -1,  0])
    """
    sizes = np.array(n_levels, dtype=np.int64)
    Q = sizes.shape[0]
    parents = np.full(Q, -1, dtype=np.int64)
    by_size = np.argsort(sizes, kind="stable")
    kept = np.sort(by_size[np.cumsum(sizes[by_size]) <= _MOST_LEVELS])
    if kept.size < 2:
        return parents
    seen = _pair_counts(rows[:, kept], sizes[kept], row_weights)
    starts = np.cumsum(sizes[kept]) - sizes[kept]
    if probabilities is None or weights is None:
        frequencies = np.diagonal(seen)
        expected = np.outer(frequencies, frequencies)
    else:
        offsets = np.cumsum(sizes) - sizes
        places = np.concatenate([offsets[q] + np.arange(sizes[q]) for q in kept.tolist()])
        tables = probabilities[:, places]
        expected = (tables.T * weights) @ tables
    gains = _gains(seen, expected, starts, sizes[kept])
    forest = minimum_spanning_tree(-np.maximum(gains, 0.0))
    links = ((forest + forest.T) != 0).astype(np.float64)
    degrees = np.asarray(links.sum(axis=0)).ravel()
    placed = np.zeros(kept.shape[0], dtype=np.bool_)
    for root in np.argsort(-degrees, kind="stable").tolist():
        if placed[root] or not degrees[root]:
            continue
        order, above = breadth_first_order(links, root, directed=False)
        placed[order] = True
        parents[kept[order[1:]]] = kept[above[order[1:]]]
    return parents


def _pair_counts(rows: np.ndarray, sizes: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Rows (M, M) that have both levels."""
    starts, M = np.cumsum(sizes) - sizes, int(sizes.sum())
    counts = np.zeros((M, M))
    scale = 1.0 if weights is None else len(rows) / float(np.sum(weights))
    for first in range(0, rows.shape[0], _BLOCK_ROWS):
        block = rows[first : first + _BLOCK_ROWS]
        which, column = np.nonzero(~np.isnan(block))
        ones = np.zeros((block.shape[0], M), dtype=np.float32)
        ones[which, block[which, column].astype(np.int64) + starts[column]] = 1.0
        if weights is None:
            counts += ones.T @ ones
        else:
            own = weights[first : first + _BLOCK_ROWS, None] * scale
            counts += (ones * own.astype(np.float32)).T @ ones
    return counts


def _gains(
    seen: np.ndarray, expected: np.ndarray, starts: np.ndarray, sizes: np.ndarray
) -> np.ndarray:
    """What each pair of columns gains (Q, Q) by its frequencies, above the diagonal."""

    def sums(values: np.ndarray) -> np.ndarray:
        return np.asarray(np.add.reduceat(np.add.reduceat(values, starts, axis=0), starts, axis=1))

    totals = sums(seen)
    # Of rows that have both.
    likely = np.maximum(sums(expected), 1e-300)
    scaled = expected * np.repeat(np.repeat(totals / likely, sizes, axis=0), sizes, axis=1)
    found = sums(xlogy(seen, np.maximum(seen, 1e-300)) - xlogy(seen, np.maximum(scaled, 1e-300)))
    numbers = np.outer(sizes - 1, sizes - 1)
    found -= 0.5 * numbers * np.log(np.maximum(totals, 1.0))
    found[np.outer(sizes, sizes) > _MOST_PAIRS] = 0.0
    return np.triu(found, 1)
