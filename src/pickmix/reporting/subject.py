"""What a report is about: a model, and rows that stand for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from pickmix.data.dask_data import is_dask
from pickmix.data.typed_readers import read_typed
from pickmix.data.typed_tables import TypedTable
from pickmix.diagnostics.columns import column_names, is_table, nameless, read_values, some_rows
from pickmix.estimators.row_sources import is_large, open_fitted

# Evaluations of a component on a row: about a second's worth, and some ten.
_QUICK, _SLOW = 1e7, 3e8
# Rows: at least, at most, and per component if that is not too slow.
_FEWEST, _MOST, _PER_COMPONENT = 2_000, 100_000, 10
# A deep component costs about so many Gaussians.
_COST_OF_DEPTH = 20
# Rows of a large source that lie together.
_BLOCK_ROWS = 500


@dataclass(frozen=True)
class Subject:
    """A fitted model, and rows to look at.

    Attributes
    ----------
    model : fitted estimator of pickmix
        Without names of its columns if it takes arrays.
    names : list of D str
        Names of the columns that it describes.
    rows : (n, D) array or TypedTable
        Rows to look at.
    numbers : (n,) int64 array
        Their numbers in the data, from 0.
    n_rows : int
        Rows of the data.
    ids : list of n str, or None
        What names the rows.
    id_name : str
        What the column that names them is called.
    """

    model: Any
    names: list[str]
    rows: Any
    numbers: np.ndarray
    n_rows: int
    ids: list[str] | None = None
    id_name: str = "id"


def affordable_rows(model: Any) -> int:
    """How many rows a report looks at, unless it is told."""
    K = int(model.weights_.shape[0])
    cost = float(K)
    if not (is_table(model) or hasattr(model, "_fitted_family")):
        cost = _COST_OF_DEPTH * float(getattr(model, "n_paths_", K))
    wished = max(_QUICK / cost, min(_PER_COMPONENT * K, _SLOW / cost))
    return int(min(_MOST, max(_FEWEST, wished)))


def subject_of(
    model: Any,
    rows: Any,
    numbers: np.ndarray,
    n_rows: int,
    ids: Any = None,
    id_name: str = "id",
    names: list[str] | None = None,
) -> Subject:
    """A subject out of rows that were chosen already."""
    names = column_names(model) if names is None else names
    named = None if ids is None else ["" if value is None else str(value) for value in ids]
    asked = model if is_table(model) else nameless(model)
    return Subject(asked, list(names), rows, np.asarray(numbers), n_rows, named, id_name)


def choose_rows(model: Any, X: Any, ids: Any, max_rows: int | None) -> Subject:
    """Rows of X that stand for all of them, and what names them; see `report`."""
    check_is_fitted(model)
    most = affordable_rows(model) if max_rows is None else max_rows
    if is_table(model):
        id_name, named = _read_ids(X, ids)
        table = read_typed(X)
        numbers = some_rows(table.n_rows, most)
        _check_ids(named, table.n_rows)
        chosen: Any = table.take(numbers)
        return subject_of(model, chosen, numbers, table.n_rows, _taken(named, numbers), id_name)
    if is_large(X):
        rows, numbers, n_rows = _sample(model, X, most)
        _, named = _read_ids(X, ids)
        _check_ids(named, n_rows)
        return subject_of(model, rows, numbers, n_rows, _taken(named, numbers))
    id_name, named = _read_ids(X, ids)
    values = read_values(model, _without_ids(model, X, ids))
    _check_ids(named, values.shape[0])
    numbers = some_rows(values.shape[0], most)
    chosen = values[numbers]
    return subject_of(model, chosen, numbers, values.shape[0], _taken(named, numbers), id_name)


def _read_ids(X: Any, ids: Any) -> tuple[str, Any]:
    """The name of the column that names the rows, and what it holds."""
    if not isinstance(ids, str):
        return "id", None if ids is None else list(ids)
    known = list(X) if isinstance(X, Mapping) else list(getattr(X, "columns", ()))
    if ids not in known:
        listed = ", ".join(map(repr, known[:10])) or "none"
        raise ValueError(f"ids must name a column of X, got {ids!r}; there are: {listed}.")
    values = X[ids]
    return ids, values.to_list() if hasattr(values, "to_list") else list(values)


def _without_ids(model: Any, X: Any, ids: Any) -> Any:
    """A data frame without the column that names its rows, unless the model has that one too."""
    if not isinstance(ids, str) or not hasattr(X, "columns"):
        return X
    own: Any = getattr(model, "feature_names_in_", ())
    if ids in own or len(X.columns) == model.n_features_in_:
        return X
    # pandas and polars both take a list of names.
    return X[[name for name in X.columns if name != ids]]


def _check_ids(ids: Any, n_rows: int) -> None:
    if ids is not None and len(ids) != n_rows:
        raise ValueError(f"ids must hold one value for each of {n_rows:,} rows, got {len(ids):,}.")


def _taken(ids: Any, numbers: np.ndarray) -> list[Any] | None:
    return None if ids is None else [ids[number] for number in numbers.tolist()]


def _sample(model: Any, X: Any, most: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Blocks of rows of a source, evenly spaced; all rows if they are few."""
    if is_dask(X):
        raise ValueError(
            "X must be rows in memory, files or a source; of a Dask collection, compute some rows "
            "first: X.sample(frac=...).compute()."
        )
    with open_fitted(model, X) as source:
        n_rows = source.n_rows
        if n_rows <= most:
            return source.read(0, n_rows), np.arange(n_rows), n_rows
        n_blocks = max(1, most // _BLOCK_ROWS)
        size = most // n_blocks
        starts = np.linspace(0, n_rows - size, n_blocks).astype(np.int64)
        rows = [source.read(start, start + size) for start in starts.tolist()]
        numbers = (starts[:, None] + np.arange(size)).ravel()
        return np.concatenate(rows), numbers, n_rows


def take_rows(rows: Any, which: np.ndarray) -> Any:
    """Some of the rows of a subject."""
    return rows.take(which) if isinstance(rows, TypedTable) else rows[which]
