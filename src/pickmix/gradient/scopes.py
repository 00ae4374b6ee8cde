"""How a sum-product-transform network divides the coordinates among its sum nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Layer:
    """The sum nodes that a tree reaches in one layer.

    Attributes
    ----------
    sizes : tuple of int
        Coordinates in the scope of each slot; they lie side by side in the order of the slots.
    parents, parts : tuple of int
        The slot of the layer above that each slot hangs from, and as which of its parts.
    paths : tuple of tuple of int
        For each slot, the places of the choices above it and of its own one among all choices.
    """

    sizes: tuple[int, ...]
    parents: tuple[int, ...]
    parts: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...]

    @property
    def width(self) -> int:
        """Coordinates of the largest scope; smaller ones are padded."""
        return max(self.sizes)

    @property
    def coordinates(self) -> np.ndarray:
        """Coordinate at each place of each padded scope, (slots, width); D where there is none."""
        starts = np.concatenate(([0], np.cumsum(self.sizes)[:-1]))
        places = starts[:, None] + np.arange(self.width)
        return np.where(self.real, places, sum(self.sizes))

    @property
    def real(self) -> np.ndarray:
        """Which places of the padded scopes hold a coordinate, (slots, width)."""
        return np.arange(self.width) < np.array(self.sizes)[:, None]


def divide(n_features: int, n_partitions: int, n_layers: int) -> list[Layer]:
    """Layers of a network over D coordinates, products of at most b contiguous parts.

    Examples
    --------
    >>> [layer.sizes for layer in divide(7, 2, 3)]
    [(7,), (4, 3), (2, 2, 2, 1)]
    >>> divide(7, 2, 3)[2].paths
    ((0, 1, 3), (0, 1, 4), (0, 2, 5), (0, 2, 6))
    """
    layers = [Layer((n_features,), (0,), (0,), ((0,),))]
    n_before = 1
    for _ in range(1, n_layers):
        above = layers[-1]
        sizes: list[int] = []
        parents: list[int] = []
        parts: list[int] = []
        paths: list[tuple[int, ...]] = []
        for slot, size in enumerate(above.sizes):
            n_parts = min(n_partitions, size)
            for part in range(n_parts):
                # As even as possible, the larger parts first.
                sizes.append(size // n_parts + (part < size % n_parts))
                parents.append(slot)
                parts.append(part)
                paths.append((*above.paths[slot], n_before + len(paths)))
        layers.append(Layer(tuple(sizes), tuple(parents), tuple(parts), tuple(paths)))
        n_before += len(sizes)
    return layers
