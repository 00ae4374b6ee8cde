"""Densities of all the smaller mixtures of a tree of merges, from one evaluation of its nodes."""

from __future__ import annotations

import numpy as np


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
        order = np.argsort(places, kind="stable")
        self.members = members[order]
        self.starts = np.flatnonzero(np.diff(places[order], prepend=-1))
        self.places = places[order][self.starts]

    def __call__(self, log_joint: np.ndarray) -> np.ndarray:
        """Log-densities (G, R) at all levels from log-joints (2 K - 1, R) of all nodes."""
        gathered = log_joint[self.members]
        largest = np.maximum.reduceat(gathered, self.starts, axis=0)
        sizes = np.diff(self.starts, append=self.members.shape[0])
        with np.errstate(invalid="ignore"):
            gathered -= np.repeat(largest, sizes, axis=0)
        np.exp(gathered, out=gathered)
        sums = np.full((2 * self.size, log_joint.shape[1]), -np.inf)
        sums[self.places] = largest + np.log(np.add.reduceat(gathered, self.starts, axis=0))
        begin = 2
        while begin <= self.size:
            below = slice(begin, 2 * begin)
            above = np.repeat(sums[begin // 2 : begin], 2, axis=0)
            sums[below] = np.logaddexp(sums[below], above)
            begin *= 2
        return sums[self.size : self.size + self.n_levels]
