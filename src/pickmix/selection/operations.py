"""Array operations of selection: one contract, for NumPy and for compiled kernels.

`ArrayOperations` compiles nothing and runs small problems; `CompiledOperations` runs large ones.
Both draw the same numbers from the same keys; sums may differ in their last bits. Log-joints of all
components are (K, B), as they are computed; those of a few candidates (B, C). `rows` (B,) are
distinct row numbers. A row that no component explains has NaN weights and likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from pickmix.selection.arrays import ArrayOperations, DenseNeighbours, DenseTable
    from pickmix.selection.sparse import SparseNeighbours, SparseTable

LEAST_QUANTILE = 0.3  # Splits of a tree put at least this share of blocks on each side.
EXCHANGE_DRAW = 2**19  # First draw of exchanges, beyond those of directions.


@dataclass(frozen=True)
class Tree:
    """Splits of space: row x goes to the second child where directions[n] . x >= thresholds[n].

    children (n, 2): another node, or leaf number l as -1 - l. Without nodes there is one leaf.
    """

    directions: np.ndarray
    thresholds: np.ndarray
    children: np.ndarray
    root: int

    @classmethod
    def unfilled(cls, n_nodes: int, n_features: int) -> Tree:
        children = np.empty((n_nodes, 2), dtype=np.int32)
        return cls(np.empty((n_nodes, n_features)), np.empty(n_nodes), children, -1)


Operations: TypeAlias = "ArrayOperations"
Table: TypeAlias = "DenseTable | SparseTable"
Neighbours: TypeAlias = "DenseNeighbours | SparseNeighbours"
