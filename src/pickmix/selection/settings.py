"""Settings of selection that users pass to estimators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RandomPartition:
    """Settings of `proposal="partition"`: random-partition Gibbs.

    Every visit draws a random partition of the components into blocks of neighbours and replaces
    the component of each row by a draw from its posterior within the row's block. No proposal is
    rejected, and the cost of a visit does not depend on the number of components.

    Parameters
    ----------
    block_size : int, default=32
        G, the most components per block.
    shuffle : float, default=0.02
        Share of the components that change places between blocks at random.
    relocate : bool or "auto", default="auto"
        Move components that are hardly needed to where rows are badly explained, early in a fit.
        "auto" does so unless the start was given.

    Examples
    --------
    >>> from pickmix import GaussianMixture, RandomPartition
    >>> mixture = GaussianMixture(n_components=1000, proposal=RandomPartition(block_size=16))
    """

    block_size: int = 32
    shuffle: float = 0.02
    relocate: bool | str = "auto"

    def __post_init__(self) -> None:
        if isinstance(self.block_size, bool) or not isinstance(self.block_size, int | np.integer):
            raise ValueError(f"block_size must be an integer >= 2, got {self.block_size!r}.")
        if not 2 <= self.block_size <= 4096:
            raise ValueError(f"block_size must lie in [2, 4096], got {self.block_size!r}.")
        if not 0.0 <= self.shuffle <= 1.0:
            raise ValueError(f"shuffle must lie in [0, 1], got {self.shuffle!r}.")
        if self.relocate not in (True, False, "auto"):
            raise ValueError(f"relocate must be True, False or 'auto', got {self.relocate!r}.")


@dataclass(frozen=True)
class SearchSet:
    """Settings of `algorithm="tsaem"`: the components that a visit of a row evaluates.

    Parameters
    ----------
    n_neighbours : int, default=15
        Nearest components of each component that the row holds.
    n_explore : int, default=1
        Components drawn uniformly.
    all_pairs : bool, default=False
        Find the nearest by the distances of all K^2 pairs of means in every step, as in the paper's
        figures, instead of learning them during the fit.
    """

    n_neighbours: int = 15
    n_explore: int = 1
    all_pairs: bool = False

    def __post_init__(self) -> None:
        if self.n_neighbours < 1 or self.n_explore < 0:
            raise ValueError(
                "n_neighbours must be >= 1 and n_explore >= 0, "
                f"got {self.n_neighbours!r} and {self.n_explore!r}."
            )
