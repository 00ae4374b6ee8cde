"""The most unusual rows, and which of their cells make them so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.estimators.validation import check_integer
from pickmix.inspection.view import Looked, view_of
from pickmix.model.explanation import LEVEL_KINDS


@dataclass(frozen=True)
class Reason:
    """A cell that is a surprise, given the other cells of its row, in the user's terms."""

    column: str
    observed: Any
    #: The mean given the other cells, or the most probable level.
    expected: Any
    #: Standard deviation given the others; of a level, the probability of the expected one.
    spread: float
    #: log p(observed | others)
    log_conditional: float
    is_level: bool
    #: "days" of the spread of dates, else empty.
    unit: str = ""


@dataclass(frozen=True)
class UnusualRow:
    """A row of low log-density."""

    #: Its number among the rows that were looked at, from 0.
    row: int
    log_density: float
    #: Its most probable component.
    component: int
    #: The most surprising cell first; empty for models that cannot explain.
    reasons: tuple[Reason, ...]


def unusual_rows(
    model: Any, X: Any, n_rows: int = 10, *, reasons: int = 5, looked: Looked | None = None
) -> list[UnusualRow]:
    """The rows of lowest log-density, the lowest first, with explanations.

    Rows of which nothing was seen are left out. Rows with gaps have the log-density of fewer
    columns, so they tend to come later than complete ones.

    >>> from pickmix import GaussianMixture
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> mixture = GaussianMixture(1).fit(X)
    >>> X[7, 1] = 9.0
    >>> (row,) = unusual_rows(mixture, X, 1)
    >>> row.row, row.reasons[0].column, row.reasons[0].observed
    (7, 'column 1', 9.0)
    """
    check_integer("n_rows", n_rows, 0)
    check_integer("reasons", reasons, 1)
    view = view_of(model)
    rows = view.read(X)
    looked = view.look(rows) if looked is None else looked
    seen = np.flatnonzero(~np.isnan(looked.rows).all(axis=1))
    lowest = seen[np.argsort(looked.log_density[seen], kind="stable")[:n_rows]]
    why: list[tuple[Reason, ...]] = [()] * lowest.shape[0]
    if lowest.size and view.is_closed_form:
        explanation = view.explain(rows.take(lowest), reasons)
        why = [_reasons(explanation, place, view.names) for place in range(lowest.shape[0])]
    return [
        UnusualRow(row, float(looked.log_density[row]), int(looked.component[row]), cells)
        for row, cells in zip(lowest.tolist(), why, strict=True)
    ]


def _reasons(explanation: Any, row: int, names: Sequence[str]) -> tuple[Reason, ...]:
    return tuple(
        Reason(
            names[column],
            _plain(explanation.values[row, column]),
            _plain(explanation.expected[row, column]),
            float(explanation.spread[row, column]),
            float(explanation.log_conditional[row, column]),
            explanation.kinds[column] in LEVEL_KINDS,
            "days" if explanation.kinds[column] == "date" else "",
        )
        for column in map(int, explanation.ranked[row])
        if column >= 0
    )


def _plain(value: Any) -> Any:
    """Values as Python has them."""
    return value.item() if isinstance(value, np.generic) else value
