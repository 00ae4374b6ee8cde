"""`pickmix.report`: one HTML file about a fitted mixture."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from pickmix.data.files import replacing
from pickmix.diagnostics.columns import is_table, nameless
from pickmix.estimators.validation import check_integer
from pickmix.reporting.collecting import collect
from pickmix.reporting.page import render
from pickmix.reporting.subject import Subject, choose_rows


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
) -> str | Path:
    """Write a report on a fitted mixture: one HTML file that needs no network.

    It answers the first questions: how good is the mixture, how did the fit end, what to try next,
    what are the components and how are they related, do columns look as the mixture says, and
    which rows are the most unusual.

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
    subject = choose_rows(model, X, ids, max_rows)
    page = make_page(subject, title=title, held_out=held_out, n_unusual=n_unusual)
    if target is None:
        return page
    write_page(page, target)
    return target


def leave_report(model: Any, rows: Any, target: Path, *, names: list[str] | None = None) -> Path:
    """Write the report of a fit beside its model.

    Parameters
    ----------
    model : fitted estimator of pickmix
    rows : (N, D) array, source of rows or TypedTable
        What it was fitted to.
    target : Path
    names : list of str, default=None
        Names of the columns of an array.
    """
    asked = model if is_table(model) else nameless(model)
    subject = choose_rows(asked, rows, None, None)
    if names is not None and not is_table(model):
        subject = replace(subject, names=names)
    write_page(make_page(subject, title=None, held_out=False, n_unusual=10), target)
    return target


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


def make_page(subject: Subject, *, title: str | None, held_out: bool | None, n_unusual: int) -> str:
    """The text of a report."""
    payload = collect(subject, title=title, held_out=held_out, n_unusual=n_unusual)
    return render(payload)


def write_page(page: str, target: Path) -> None:
    """Write a page; the file appears whole or not at all."""
    with replacing(target) as temporary:
        temporary.write_text(page, encoding="utf-8")
