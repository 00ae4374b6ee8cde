"""`pickmix.report`: one HTML file about a fitted mixture, that needs no network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pickmix.checks import check_integer
from pickmix.estimators.row_sources import is_large, open_fitted
from pickmix.inputs.files import replacing
from pickmix.inputs.open_rows import is_dask
from pickmix.inspection.page import Subject, collect, render
from pickmix.inspection.view import Rows, View

# Evaluations of a component on a row: about a second's worth, and about ten.
_QUICK, _SLOW = 1e7, 3e8
# Rows: at least, at most, and per component if that is not too slow.
_FEWEST, _MOST, _PER_COMPONENT = 2_000, 100_000, 10
# A deep component costs about so many Gaussians.
_COST_OF_DEPTH = 20
# Rows of a large source that are read together.
_BLOCK_ROWS = 500


def report(
    model: Any,
    X: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    title: str | None = None,
    ids: Any = None,
    held_out: bool | None = None,
    max_rows: int | None = None,
    n_unusual: int = 10,
    X_fit: Any = None,
    column_shape: tuple[int, int] | None = None,
) -> str | Path:
    """Write a report on a fitted mixture: one HTML file that needs no network.

    It answers the first questions: how good is the mixture, how did the fit end, what to try next,
    what are the clusters and components and how are they related, what do columns hold, how well
    are they predicted by the others, do they look as the mixture says, and which rows are the most
    unusual: those that a `MixtureDetector` finds among the rows, or those of the lowest log-density
    where it cannot; the page says which.

    Parameters
    ----------
    model : fitted estimator of pickmix
    X : table of shape (N, D)
        Rows to look at the mixture with, as the model takes them: an array or a data frame, a table
        of a `TableMixture`, or files and sources, of which some rows are read. Rows that the model
        was not fitted to say more.
    path : str or path, default=None
        The file to write; it ends in .html or .htm. None returns the text of the page.
    title : str, default=None
        The heading. None names the model.
    ids : array-like of shape (N,), or str, default=None
        What names the rows; or the column of X that does.
    held_out : bool, default=None
        Whether the model has not seen these rows. None takes them for those of the fit if there are
        as many, and else says that it is not known.
    max_rows : int, default=None
        Look at so many rows, chosen at random. None takes as many as some seconds allow: 20,000
        for 500 Gaussians.
    n_unusual : int, default=10
        How many unusual rows are shown.
    X_fit : table of shape (M, D), default=None
        Rows that the model was fitted to, if X are others. Some of them are scored, to see whether
        the mixture overfits. None compares with the record of the fit, which is of few rows.
    column_shape : tuple of two int, default=None
        Height and width, if the columns are the points of pictures, line by line: the centre of a
        component, and its loadings if covariances have low rank, are shown as pictures.

    Returns
    -------
    path : Path
        The file that was written; or the text of the page, if `path` is None.

    Examples
    --------
    >>> import numpy as np
    >>> import pickmix
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> mixture = pickmix.GaussianMixture(3, random_state=0).fit(X)
    >>> page = pickmix.report(mixture, X)
    >>> page[:15]
    '<!doctype html>'
    """
    if max_rows is not None:
        check_integer("max_rows", max_rows, 1)
    check_integer("n_unusual", n_unusual, 0)
    target = None if path is None else check_target(path)
    view = View(model)
    check_column_shape(column_shape, len(view.columns))
    most = affordable_rows(model) if max_rows is None else max_rows
    id_name, named = _read_ids(X, ids)
    rows, fitted = (None if each is None else _without_ids(view, each, ids) for each in (X, X_fit))
    subject = subject_of(view, rows, most, named, id_name, fitted=fitted)
    page = make_page(
        subject,
        target,
        title=title,
        held_out=held_out,
        n_unusual=n_unusual,
        column_shape=column_shape,
    )
    return page if target is None else target


def check_column_shape(shape: Any, n_columns: int, name: str = "column_shape") -> None:
    """Raise unless so many columns are pictures of this shape, or there are none."""
    if shape is None:
        return
    sizes = shape if isinstance(shape, tuple | list) else ()
    whole = all(isinstance(size, int | np.integer) and size > 0 for size in sizes)
    if len(sizes) != 2 or not whole or sizes[0] * sizes[1] != n_columns:
        raise ValueError(
            f"{name} must be a height and a width whose product is the number of columns, "
            f"{n_columns:,}, got {shape!r}."
        )


def check_target(path: str | os.PathLike[str]) -> Path:
    """Return the path of a report to be written, if it can be; before the work.

    It ends in .html or .htm, so that no model and no data can be replaced by a slip.
    """
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{target}: expected a file name such as report.html, got a folder")
    if target.suffix.lower() not in (".html", ".htm"):
        raise ValueError(
            f"{target}: expected a file name ending in .html or .htm, got {target.suffix!r}"
        )
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target}: the folder {target.parent} does not exist")
    if not os.access(target.parent, os.W_OK):
        raise PermissionError(f"{target}: cannot write to {target.parent}")
    return target


def make_page(subject: Subject, target: Path | None = None, **settings: Any) -> str:
    """The text of a report; settings as those of `collect`. A `target` appears whole or not."""
    page = render(collect(subject, **settings))
    if target is not None:
        with replacing(target) as temporary:
            temporary.write_text(page, encoding="utf-8")
    return page


def affordable_rows(model: Any) -> int:
    """How many rows a report reads by default."""
    K = int(model.weights_.shape[0])
    deep = not hasattr(model, "merge_tree")
    cost = _COST_OF_DEPTH * float(getattr(model, "n_paths_", K)) if deep else float(K)
    wished = max(_QUICK / cost, min(_PER_COMPONENT * K, _SLOW / cost))
    return int(min(_MOST, max(_FEWEST, wished)))


def subject_of(
    view: View,
    X: Any,
    most: int,
    ids: Sequence[Any] | None = None,
    id_name: str = "id",
    *,
    numbers: np.ndarray | None = None,
    n_rows: int | None = None,
    fitted: Any = None,
) -> Subject:
    """A mixture, and at most so many rows that stand for those of X, whose names are `ids`.

    If X is a part of `n_rows` rows of data, `numbers` are those of its rows. `fitted` are rows of
    the fit, if X are others.
    """
    rows = _choose_rows(view, X, most)
    if ids is not None:
        if len(ids) != rows.n_data:
            raise ValueError(
                f"ids must hold one value for each of {rows.n_data:,} rows, got {len(ids):,}."
            )
        ids = ["" if ids[n] is None else str(ids[n]) for n in rows.numbers.tolist()]
    if numbers is not None:
        rows = replace(rows, numbers=numbers[rows.numbers], n_data=n_rows or rows.n_data)
    others = None if fitted is None else _choose_rows(view, fitted, most)
    return Subject(view, rows, ids, id_name, others)


def _choose_rows(view: View, X: Any, most: int) -> Rows:
    """Rows of X that stand for all of them: of a large source, evenly spaced blocks."""
    if not (getattr(view.estimator, "_takes_sources", True) and is_large(X)):
        return view.read(X, most)
    if is_dask(X):
        raise ValueError(
            "X must be rows in memory, files or a source; of a Dask collection, compute some rows "
            "first: X.sample(frac=...).compute()."
        )
    with open_fitted(view.estimator, X) as source:
        n_rows = source.n_rows
        if n_rows <= most:
            return view.read(source.read(0, n_rows))
        n_blocks = max(1, most // _BLOCK_ROWS)
        size = most // n_blocks
        starts = np.linspace(0, n_rows - size, n_blocks).astype(np.int64)
        blocks = [source.read(start, start + size) for start in starts.tolist()]
        numbers = (starts[:, None] + np.arange(size)).ravel()
        return replace(view.read(np.concatenate(blocks)), numbers=numbers, n_data=n_rows)


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


def _without_ids(view: View, X: Any, ids: Any) -> Any:
    """A data frame without the column that names its rows, unless the model has that one too."""
    tabular = not getattr(view.estimator, "_takes_sources", True)
    if tabular or not isinstance(ids, str) or not hasattr(X, "columns"):
        return X
    if ids in view.names or len(X.columns) == view.estimator.n_features_in_:
        return X
    # pandas and polars both take a list of names.
    return X[[name for name in X.columns if name != ids]]
