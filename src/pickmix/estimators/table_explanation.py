"""Why a row of a table is unusual, in the units and levels of the table."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pickmix.data.typed_encoding import decode_column, level_names
from pickmix.data.typed_levels import as_fitted
from pickmix.data.typed_schema import LEVEL_KINDS, ColumnSchema, TableSchema
from pickmix.data.typed_tables import TypedColumn, TypedTable
from pickmix.estimators.questions_explain import Explanation

# Rows in the printed form.
_MOST_SHOWN = 3


@dataclass(frozen=True)
class TableExplanation:
    """How surprising each cell of some rows is, given the other cells of its row.

    Columns are those of the model, in the order of the table that was fitted.

    Attributes
    ----------
    names : tuple of str
    kinds : tuple of str
        As in the schema.
    values : (N, D) object array
        The cells; None if missing.
    log_density : (N,) array
        log p(row) of the observed cells, in the units of the table.
    log_conditional : (N, D) array
        log p(cell | other cells of the row). A low value is a surprise. NaN if missing.
    expected : (N, D) object array
        Mean of a number given the others, the date in the middle, the most probable level.
    spread : (N, D) array
        Standard deviation given the others, of dates in days. For a level: the probability of the
        expected level.
    ranked : (N, M) int array
        Numbers of columns, the largest `surprise` first; -1 after the last observed cell.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    values: np.ndarray
    log_density: np.ndarray
    log_conditional: np.ndarray
    expected: np.ndarray
    spread: np.ndarray
    ranked: np.ndarray

    def __len__(self) -> int:
        return int(self.values.shape[0])

    @property
    def surprise(self) -> np.ndarray:
        """How much less probable a cell is than the expected value, (N, D), in nats.

        That is log p(expected | others) - log p(cell | others), where the expected value is the
        most probable level, or the peak of a normal distribution with the spread. It has no units,
        so it compares columns of all kinds; z standard deviations are about z^2 / 2.
        """
        is_level = np.isin(self.kinds, LEVEL_KINDS)
        with np.errstate(divide="ignore"):
            peak = np.where(is_level, 0.0, -0.5 * np.log(2.0 * np.pi))
            peak = peak + np.where(is_level, 1.0, -1.0) * np.log(self.spread)
        return np.asarray(peak - self.log_conditional)

    def table(self, i: int, top: int | None = None) -> str:
        """A text table of row i: its cells, the most surprising first."""
        lines = [("column", "value", "expected", "spread", "log p(value | others)")]
        for column in [int(column) for column in self.ranked[i] if column >= 0][:top]:
            spread = f"{self.spread[i, column]:.3g}"
            if self.kinds[column] in LEVEL_KINDS:
                spread = f"(p = {spread})"
            else:
                spread = f"+- {spread}{' days' if self.kinds[column] == 'date' else ''}"
            lines.append(
                (
                    self.names[column],
                    _shown(self.values[i, column]),
                    _shown(self.expected[i, column]),
                    spread,
                    f"{self.log_conditional[i, column]:.3f}",
                )
            )
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        texts = [
            "  ".join(
                [line[0].ljust(widths[0])]
                + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
            ).rstrip()
            for line in lines
        ]
        return "\n".join([f"row {i}: log p(row) = {self.log_density[i]:.3f}", *texts])

    def records(self) -> list[dict[str, Any]]:
        """One dict for each row and ranked column, most surprising first."""
        rows, ranks = np.nonzero(self.ranked >= 0)
        return [
            {
                "row": row,
                "rank": rank,
                "column": self.names[column],
                "value": self.values[row, column],
                "expected": self.expected[row, column],
                "spread": float(self.spread[row, column]),
                "log_conditional": float(self.log_conditional[row, column]),
                "log_density": float(self.log_density[row]),
            }
            for row, rank in zip(rows.tolist(), ranks.tolist(), strict=True)
            for column in [int(self.ranked[row, rank])]
        ]

    def to_frame(self) -> Any:
        """A pandas frame with a line per row and ranked column."""
        # Here, as pandas is no requirement.
        pandas: Any = importlib.import_module("pandas")
        return pandas.DataFrame(self.records())

    def __str__(self) -> str:
        shown = [self.table(i) for i in range(min(len(self), _MOST_SHOWN))]
        if len(self) > _MOST_SHOWN:
            shown.append(f"... and {len(self) - _MOST_SHOWN} more rows")
        return "\n\n".join(shown)


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def explain_table(
    schema: TableSchema,
    table: TypedTable,
    found: Explanation,
    log_units: np.ndarray,
    top: int | None,
) -> TableExplanation:
    """What was found of encoded rows, in the units of the table."""
    place = {column.name: number for number, column in enumerate(schema.modelled)}
    columns = [column for column in schema.columns.values() if column.is_modelled]
    order = np.array([place[column.name] for column in columns])
    shape = found.values.shape
    values, expected = np.full(shape, None, dtype=object), np.full(shape, None, dtype=object)
    spread = found.spread[:, order].copy()
    for number, column in enumerate(columns):
        seen = ~np.isnan(found.values[:, order[number]])
        if column.name in table.columns:
            values[seen, number] = _cells(column, table.columns[column.name], seen)
        expected[seen, number] = _expected(column, found.expected[seen, order[number]])
        if column.kind not in LEVEL_KINDS:
            spread[:, number] *= column.scale
    explanation = TableExplanation(
        names=tuple(column.name for column in columns),
        kinds=tuple(column.kind for column in columns),
        values=values,
        log_density=found.log_density + log_units.sum(axis=1),
        log_conditional=(found.log_conditional + log_units)[:, order],
        expected=expected,
        spread=spread,
        ranked=np.zeros((shape[0], 0), dtype=np.int64),
    )
    surprise = explanation.surprise
    seen = ~np.isnan(surprise)
    ranked = np.argsort(np.where(seen, -surprise, np.inf), axis=1, kind="stable")
    ranked[np.arange(shape[1]) >= np.count_nonzero(seen, axis=1)[:, None]] = -1
    return replace(explanation, ranked=ranked[:, :top])


def _cells(schema: ColumnSchema, column: TypedColumn, seen: np.ndarray) -> list[Any]:
    """Seen values of a column as plain objects; dates as text."""
    column = as_fitted(schema, column)
    values = column.values[seen]
    if column.storage == "time" and schema.kind == "date":
        values = values.astype(f"{values.dtype.kind}8[{schema.unit}]")
    if column.levels is not None:
        return list(column.levels[values])
    return [str(value) for value in values] if column.storage == "time" else values.tolist()


def _expected(column: ColumnSchema, coordinates: np.ndarray) -> list[Any]:
    """Expected values as plain objects; numbers are not rounded."""
    if column.kind in LEVEL_KINDS:
        names = level_names(column)
        return [names[code] for code in coordinates.astype(np.int64).tolist()]
    if column.kind == "date":
        return [str(value) for value in decode_column(column, coordinates).values]
    plain: list[Any] = (coordinates * column.scale + column.origin).tolist()
    return plain
