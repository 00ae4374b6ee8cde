"""Which components are paired: neighbours that may be merged, and splits with merges."""

from __future__ import annotations

import numpy as np

from pickmix.selection.partitions import Partition

_PARTNERS = 3  # The nearest components of a block that a component is compared with.
BLOCKS_AT_ONCE = 1024  # Blocks compared at a time, to save memory.


def nearest_in_blocks(partition: Partition, first_block: int, points: np.ndarray) -> np.ndarray:
    """Pairs (n, 2) of components and the nearest others of their block, for some blocks."""
    offsets = partition.offsets[first_block : first_block + BLOCKS_AT_ONCE + 1]
    sizes = np.diff(offsets)
    width = int(sizes.max())
    n_partners = min(_PARTNERS, width - 1)
    if n_partners < 1:
        return np.empty((0, 2), dtype=np.int64)
    within = np.arange(width) < sizes[:, None]
    places = np.where(within, offsets[:-1, None] + np.arange(width), 0)
    members = partition.members[places].astype(np.int64)
    here = points[members]
    squares = np.einsum("bgd,bgd->bg", here, here)
    distances = squares[:, :, None] + squares[:, None, :] - 2.0 * here @ here.transpose(0, 2, 1)
    distances[:, np.arange(width), np.arange(width)] = np.inf
    distances[~(within[:, None, :] & within[:, :, None])] = np.inf
    nearest = np.argpartition(distances, n_partners - 1, axis=2)[:, :, :n_partners]
    found = np.isfinite(np.take_along_axis(distances, nearest, axis=2))
    others = np.take_along_axis(members[:, None, :], nearest, axis=2)
    pairs = np.stack(np.broadcast_arrays(members[:, :, None], others), axis=-1)
    return np.asarray(pairs[found])


def match_disjointly(partner: np.ndarray, loss: np.ndarray, most: int) -> np.ndarray:
    """Disjoint pairs (m, 2) of components and partners, cheapest first, at most `most`."""
    used = np.zeros(partner.shape[0], dtype=np.bool_).tolist()
    pairs: list[tuple[int, int]] = []
    for a in np.argsort(loss, kind="stable").tolist():
        b = int(partner[a])
        if len(pairs) == most:
            break
        if b >= 0 and not used[a] and not used[b]:
            used[a] = used[b] = True
            pairs.append((a, b))
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def match_splits_to_merges(
    chosen: np.ndarray, best: np.ndarray, pairs: np.ndarray, n_components: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pair the best splits with the cheapest merges; a component does one or the other.

    chosen (S,): components that may be split; best (S,): their places, best first; pairs (m, 2)
    that may be merged, cheapest first. Returns places in `chosen` and numbers of pairs.
    """
    is_split = [False] * n_components
    is_merged = [False] * n_components
    listed = pairs.tolist()
    which, made = [], []
    pair = 0
    for place, component in zip(best.tolist(), chosen[best].tolist(), strict=True):
        if pair == len(listed):
            break
        if is_merged[component]:
            continue
        found = pair
        while found < len(listed) and any(is_split[k] or k == component for k in listed[found]):
            found += 1
        if found == len(listed):
            # No room for this split; its pairs may make room for another.
            continue
        pair = found
        is_split[component] = True
        is_merged[listed[pair][0]] = is_merged[listed[pair][1]] = True
        which.append(place)
        made.append(pair)
        pair += 1
    return np.array(which, dtype=np.int64), np.array(made, dtype=np.int64)
