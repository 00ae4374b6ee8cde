"""Trees of columns: how they are chosen, and what is left of them without some columns."""

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

    A maximum spanning forest: an edge is worth what the pair's frequencies gain over those of a
    mixture of independent columns, with weights (K,) and probabilities (K, M) of levels, less half
    the logarithm of the rows for every number that it adds. If no mixture is given, columns count
    as independent (Chow and Liu 1968).

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


def inner_gaps(missing: np.ndarray, parents: Sequence[int]) -> np.ndarray:
    """Whether rows (N,) have a level whose parent is missing, by missing cells (N, Q)."""
    found = np.zeros(missing.shape[0], dtype=np.bool_)
    for q, parent in enumerate(parents):
        if parent >= 0:
            found |= missing[:, parent] & ~missing[:, q]
    return found


def parents_first(parents: Sequence[int], n_columns: int) -> list[int]:
    """Columns in an order in which parents come before their children."""
    if len(parents) != n_columns or not all(-1 <= p < n_columns for p in parents):
        raise ValueError(
            f"column_parents must be one number from -1 to {n_columns - 1} for each of the "
            f"{n_columns} columns, got {list(parents)!r}."
        )
    order: list[int] = []
    placed = {-1}
    while len(order) < n_columns:
        ready = [q for q, p in enumerate(parents) if p in placed and q not in placed]
        if not ready:
            raise ValueError(
                "column_parents must make a tree: no column may be its own ancestor, got "
                f"{list(parents)!r}."
            )
        order += ready
        placed.update(ready)
    return order


def restricted_parents(parents: Sequence[int], columns: Sequence[int]) -> list[int]:
    """Parents of some columns among each other, where the others are summed out.

    >>> restricted_parents([-1, 0, 1, 1], [0, 2])
    [-1, 0]
    >>> restricted_parents([-1, 0, 0], [1, 2])
    [-1, 0]
    """
    neighbours: list[list[int]] = [[] for _ in parents]
    for q, parent in enumerate(parents):
        if parent >= 0:
            neighbours[q].append(parent)
            neighbours[parent].append(q)
    kept = {column: number for number, column in enumerate(columns)}
    found: dict[int, int] = {}
    for root in columns:
        if root in found:
            continue
        # Steps away from a column that stays: a column, the one before, the last that stays.
        steps = [(root, -1, -1)]
        for column, before, above in steps:
            if column in kept:
                found[column], above = above, kept[column]
            steps += [(other, column, above) for other in neighbours[column] if other != before]
        # Branches with columns that stay. Those that are summed out may have one.
        ways = dict.fromkeys((column for column, _, _ in steps), 0) | {-1: 0}
        for column, before, _ in reversed(steps):
            if column in kept:
                ways[column] = 1
            if ways[column] > 1:
                raise TreeOfColumnsError(column)
            ways[before] += ways[column]
    return [found[column] for column in columns]


class TreeOfColumnsError(ValueError):
    """Columns that are not a tree when another is summed out."""

    def __init__(self, column: int) -> None:
        self.column = column
        super().__init__(
            f"columns that depend on each other by way of column {column} are not a tree without "
            "it. Ask for that column too, or fit with dependence=None."
        )
