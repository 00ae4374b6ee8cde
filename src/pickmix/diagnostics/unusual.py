"""The most unusual rows, and which of their cells make them so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.data.typed_readers import read_typed
from pickmix.diagnostics.columns import column_names, is_table, nameless
from pickmix.diagnostics.looking import Looked, look_at
from pickmix.estimators.validation import check_integer


@dataclass(frozen=True)
class Reason:
    """A cell that is a surprise, given the other cells of its row.

    Attributes
    ----------
    column : str
    observed, expected : Any
        In the table's own terms. What was expected is the mean given the others, or the most
        probable level.
    spread : float
        Standard deviation given the others; of a level, the probability of the expected one.
    log_conditional : float
        log p(observed | others).
    is_level : bool
        Whether the column holds levels.
    unit : str
        "days" of the spread of dates, else empty.
    """

    column: str
    observed: Any
    expected: Any
    spread: float
    log_conditional: float
    is_level: bool
    unit: str = ""


@dataclass(frozen=True)
class UnusualRow:
    """A row of low log-density.

    Attributes
    ----------
    row : int
        Its number among the rows that were looked at, from 0.
    log_density : float
    component : int
        Its most probable component.
    reasons : tuple of Reason
        The most surprising cell first; empty for models that cannot be asked.
    """

    row: int
    log_density: float
    component: int
    reasons: tuple[Reason, ...]


def unusual_rows(
    model: Any,
    X: Any,
    n_rows: int = 10,
    *,
    reasons: int = 5,
    looked: Looked | None = None,
    names: Sequence[str] | None = None,
) -> list[UnusualRow]:
    """The rows of lowest log-density, the lowest first, with explanations.

    Rows of which nothing was seen are left out. Rows with gaps have the log-density of fewer
    columns, so they tend to come later than complete ones.

    Parameters
    ----------
    model : fitted estimator of pickmix
    X : table of N rows, as the model takes it
    n_rows : int, default=10
    reasons : int, default=5
        Cells of each row.
    looked : Looked, default=None
        What `look_at(model, X)` gave, if it was called before.
    names : sequence of D str, default=None
        What the columns are called; None is what the model calls them.

    Returns
    -------
    found : list of UnusualRow
        Without reasons if the model has no `explain`, as deep ones.

    Examples
    --------
    >>> import numpy as np
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
    looked = look_at(model, X) if looked is None else looked
    seen = np.flatnonzero(~np.isnan(looked.rows).all(axis=1))
    lowest = seen[np.argsort(looked.log_density[seen], kind="stable")[:n_rows]]
    why: list[tuple[Reason, ...]] = [()] * lowest.shape[0]
    if lowest.size and hasattr(model, "explain"):
        names = column_names(model) if names is None else names
        why = _explain(model, X, looked, lowest, reasons, names)
    return [
        UnusualRow(row, float(looked.log_density[row]), int(looked.component[row]), own)
        for row, own in zip(lowest.tolist(), why, strict=True)
    ]


def _explain(
    model: Any, X: Any, looked: Looked, rows: np.ndarray, top: int, names: Sequence[str]
) -> list[tuple[Reason, ...]]:
    if is_table(model):
        found = model.explain(read_typed(X).take(rows), top=top)
        names = list(found.names)
    else:
        found = nameless(model).explain(looked.rows[rows], top=top)
    is_level = [kind in ("level", "category", "boolean") for kind in found.kinds]
    return [
        tuple(
            Reason(
                names[column],
                _plain(found.values[place, column]),
                _plain(found.expected[place, column]),
                float(found.spread[place, column]),
                float(found.log_conditional[place, column]),
                is_level[column],
                "days" if found.kinds[column] == "date" else "",
            )
            for column in map(int, found.ranked[place])
            if column >= 0
        )
        for place in range(rows.shape[0])
    ]


def _plain(value: Any) -> Any:
    """Values as Python has them."""
    return value.item() if isinstance(value, np.generic) else value
