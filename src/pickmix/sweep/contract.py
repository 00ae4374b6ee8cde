"""What the two implementations of a sweep have in common, and which one runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from pickmix.families.layout import Layout
from pickmix.sweep.statistics import Statistics

if TYPE_CHECKING:
    from pickmix.sweep.compiled import Compiled
    from pickmix.sweep.reference import Reference

# Smaller problems run in NumPy: a fit of some hundred sweeps then takes a few seconds.
MOST_COMPONENTS = 256
_MOST_WORK = 16e6  # Multiply-adds of a sweep.
_PARTIAL_WORK = 40.0  # Cost of partial rows in NumPy, relative to complete ones.
_BLOCK = 32


class Rows(Protocol):
    """Where the rows of a chunk are: numbered 0, 1, ..., with weights, centred."""

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """The given rows, centred, as (B, D) float64."""

    def weights_of(self, rows: np.ndarray) -> tuple[np.ndarray, float]:
        """Weights of the given rows, (B,), and what as many rows weigh on average."""

    def patterns_of(self, rows: np.ndarray) -> np.ndarray | None:
        """Numbers (B,) of the sets of cells that are missing; None if all rows are complete."""

    def features(self, make: Callable[[np.ndarray], Any], size: int) -> Any:
        """`make` of all rows, kept for later sweeps; None if `size` numbers per row are many."""


@dataclass(frozen=True)
class Swept:
    """What a sweep returns."""

    components: np.ndarray  # (B,) The component that each row's chain has moved to.
    statistics: Statistics | None  # The additive update.
    log_sums: np.ndarray  # (B,) log sum of p(x, k)^beta over the row's block; may be empty.
    evaluations: int  # Component evaluations made.


Backend: TypeAlias = "Reference | Compiled"


def needs_compiled(
    layout: Layout, n_rows: int, n_components: int, is_partial: bool = False
) -> bool:
    """Whether compiling pays, by sizes and by whether rows are partial (slow in NumPy)."""
    work = n_rows * min(n_components, _BLOCK) * layout.work()
    if is_partial:
        work *= _PARTIAL_WORK
    return n_components > MOST_COMPONENTS or work > _MOST_WORK
