"""Which rows go into a report: a sample, typical and unusual ones, and some of each component."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pickmix.diagnostics.columns import some_rows
from pickmix.diagnostics.component_table import ComponentTable
from pickmix.diagnostics.unusual import UnusualRow

# Cells of the rows in a report, which take some six bytes each, and rows of the sample.
_MOST_CELLS = 120_000
_MOST_SAMPLED = 3_000
# Rows of each component, if there is room.
_OF_EACH = 8


@dataclass(frozen=True)
class Shown:
    """Rows of a report.

    Attributes
    ----------
    rows : (n,) int64 array
        Their numbers among those that were looked at. The sample comes first.
    n_sampled : int
        How many of them are the sample, which stands for all rows.
    place : dict
        From the number of a row to its place in the report.
    """

    rows: np.ndarray
    n_sampled: int
    place: dict[int, int]


def choose_shown(table: ComponentTable, unusual: list[UnusualRow], n_columns: int) -> Shown:
    """Choose the rows of a report.

    First a sample, for the map. Then unusual rows, the typical rows of all components, the heaviest
    first, and a few more of each component, as far as there is room.
    """
    component = table.looked.component
    n_rows = component.shape[0]
    room = max(600, _MOST_CELLS // n_columns)
    sample = some_rows(n_rows, min(_MOST_SAMPLED, room // 2))
    heaviest = np.argsort(-table.weight, kind="stable")
    typical = table.typical[heaviest]
    others = np.concatenate(
        [
            np.array([row.row for row in unusual], dtype=np.int64),
            typical[typical >= 0][: room // 2],
            _of_each(component)[: max(0, room - sample.size)],
        ]
    )
    # The first of each, in this order.
    every = np.concatenate([sample, others])
    _, first = np.unique(every, return_index=True)
    rows = every[np.sort(first)]
    place = {row: number for number, row in enumerate(rows.tolist())}
    return Shown(rows, int(sample.shape[0]), place)


def _of_each(component: np.ndarray) -> np.ndarray:
    """The first rows of every component, then the second ones, and so on."""
    order = np.argsort(component, kind="stable")
    starts = np.searchsorted(component[order], component[order], side="left")
    turn = np.arange(order.shape[0]) - starts
    few = turn < _OF_EACH
    return np.asarray(order[few][np.argsort(turn[few], kind="stable")])
