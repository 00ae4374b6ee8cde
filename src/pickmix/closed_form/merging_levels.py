"""Densities of all the smaller mixtures of a tree of merges, from one evaluation of its nodes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_array

# Sums of exponentials below this have lost digits.
_TOO_SMALL = 1e-280


class LevelSums:
    """Sums log-joints of nodes over those that are left at each of some levels.

    A node is left at a range of levels: from the merge that makes it to the merge that takes it.
    So each is added to the few nodes of a binary tree over the levels that cover its range, and
    what a level sums up to stands on its way from the root. Nothing is subtracted, so nothing
    cancels.

    Parameters
    ----------
    children : (K - 1, 2) int array
        As in `Merges`.
    levels : (G,) int array
        Numbers of components, rising.

    Examples
    --------
    >>> sums = LevelSums(np.array([[0, 2], [1, 3]]), np.array([1, 2, 3]))
    >>> np.exp(sums(np.log([[0.5], [0.25], [0.125], [0.75], [1.0]]))).ravel()
    array([1.   , 1.   , 0.875])
    """

    def __init__(self, children: np.ndarray, levels: np.ndarray) -> None:
        n_merges = children.shape[0]
        K = n_merges + 1
        # Merge i leaves K - 1 - i components.
        most = np.concatenate([np.full(K, K), K - 1 - np.arange(n_merges)])
        least = np.ones(2 * K - 1, dtype=np.int64)
        least[children] = (K - np.arange(n_merges))[:, None]
        self.n_levels = levels.shape[0]
        self.size = 1 << (self.n_levels - 1).bit_length()
        left = np.searchsorted(levels, least, side="left") + self.size
        right = np.searchsorted(levels, most, side="right") + self.size
        nodes = np.arange(2 * K - 1)
        covers: list[tuple[np.ndarray, np.ndarray]] = []
        while (left < right).any():
            inside = left < right
            at_left, at_right = inside & (left % 2 == 1), inside & (right % 2 == 1)
            covers.append((left[at_left], nodes[at_left]))
            covers.append((right[at_right] - 1, nodes[at_right]))
            left, right = (left + at_left) // 2, (right - at_right) // 2
        places, members = map(np.concatenate, zip(*covers, strict=True))
        shape = (2 * self.size, 2 * K - 1)
        self.covering = csr_array((np.ones(places.shape[0]), (places, members)), shape=shape)

    def __call__(self, log_joint: np.ndarray) -> np.ndarray:
        """Log-densities (G, R) at all levels from log-joints (2 K - 1, R) of all nodes."""
        largest = log_joint.max(axis=0)
        sums = self.covering @ np.exp(log_joint - largest)
        for above, below in self._ways_down():
            sums[below] += np.repeat(sums[above], 2, axis=0)
        sums = sums[self.size : self.size + self.n_levels]
        # A few broad components may be nothing beside a narrow one that comes later.
        lost = np.flatnonzero((sums < _TOO_SMALL).any(axis=0))
        with np.errstate(divide="ignore"):
            found = np.log(sums) + largest
        if lost.shape[0]:
            found[:, lost] = self._in_logarithms(log_joint[:, lost])
        return np.asarray(found)

    def _in_logarithms(self, log_joint: np.ndarray) -> np.ndarray:
        """The same, however small a density is beside others; ten times slower."""
        sums = np.full((2 * self.size, log_joint.shape[1]), -np.inf)
        filled = np.flatnonzero(np.diff(self.covering.indptr))
        starts = self.covering.indptr[filled]
        sums[filled] = np.logaddexp.reduceat(log_joint[self.covering.indices], starts, axis=0)
        for above, below in self._ways_down():
            sums[below] = np.logaddexp(sums[below], np.repeat(sums[above], 2, axis=0))
        return sums[self.size : self.size + self.n_levels]

    def _ways_down(self) -> Iterator[tuple[slice, slice]]:
        """Pairs of neighbouring rows of the binary tree, from its root down."""
        begin = 1
        while begin < self.size:
            yield slice(begin, 2 * begin), slice(2 * begin, 4 * begin)
            begin *= 2
