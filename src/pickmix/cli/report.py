"""`pickmix report`: one HTML file about a saved model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from pickmix.cli.console import clear_errors, notes
from pickmix.cli.data import STANDARD
from pickmix.cli.saved import Chunk, load_model, query_options, querying
from pickmix.inspection.report import (
    affordable_rows,
    check_column_shape,
    check_target,
    make_page,
    subject_of,
)
from pickmix.inspection.view import View


@click.command()
@query_options
@click.option(
    "--out",
    type=click.Path(path_type=Path, allow_dash=True),
    default=Path("report.html"),
    show_default=True,
    help="The file to write, ending in .html or .htm; - writes the page to standard output.",
)
@click.option("--title", metavar="TEXT", help="Heading of the report. [default: names the model]")
@click.option(
    "--held-out/--fitted",
    "held_out",
    default=None,
    help="Whether the fit has not seen the rows of DATA, or has. [default: it has if there are as "
    "many as it had, else this is not known]",
)
@click.option(
    "--rows",
    "most",
    type=click.IntRange(min=1),
    metavar="N",
    help="Look at so many rows, chosen at random. [default: as many as some seconds allow, 20,000 "
    "for 500 components]",
)
@click.option(
    "--unusual",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="How many of the most unusual rows to show.",
)
@click.option(
    "--column-shape",
    metavar="HEIGHTxWIDTH",
    help="Shape of the pictures whose points the columns are, such as 28x28: centres and loadings "
    "of components are shown as pictures.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors and notes.")
@clear_errors
def report(
    model: Path,
    out: Path,
    title: str | None,
    held_out: bool | None,
    most: int | None,
    unusual: int,
    column_shape: str | None,
    quiet: bool,
    **data: Any,
) -> None:
    """Write a report on MODEL as one HTML file, by the rows of DATA.

    The file needs no network and no other file: open it in a browser. It says how good the mixture
    is, how the fit ended and what to try next. It shows rows and components on a map, the tree of
    their merges, a table of components that can be sorted and searched, how well the mixture fits
    each column, and the most unusual rows with the cells that make them unusual.

    Rows that the fit has not seen say more about a mixture than those of the fit. Say which of the
    two they are with --held-out or --fitted. DATA is as in `pickmix score`. Large data are read
    once, and some rows of all parts are looked at.

    \b
    Example:
      pickmix report pickmix-model rows.csv --out report.html
      pickmix report pickmix-model new.csv --held-out --id name --title "Customers, June"
    """
    if out != STANDARD:
        check_target(out)
        for name, other in (("MODEL", model), ("DATA", data["data"])):
            if out.exists() and other.exists() and out.samefile(other):
                raise ValueError(f"--out {out}: expected a file to write, got {name} itself")
    saved = load_model(model)
    with notes():
        with querying(saved, **data) as chunks:
            kept, id_name, n_rows = _choose(chunks, most or affordable_rows(saved.estimator))
        rows, numbers = kept["rows"], kept["numbers"]
        view = View(saved.estimator, None if saved.is_table else saved.labels)
        named = kept.get("ids"), id_name
        subject = subject_of(view, rows, len(rows), *named, numbers=numbers, n_rows=n_rows)
        target = None if out == STANDARD else out
        shape = None
        if column_shape is not None:
            sizes = column_shape.split("x")
            shape = [int(size) for size in sizes] if all(map(str.isdecimal, sizes)) else sizes
            check_column_shape(shape, len(subject.view.columns), "--column-shape")
        page = make_page(
            subject, target, title=title, held_out=held_out, n_unusual=unusual, column_shape=shape
        )
    if target is None:
        click.echo(page, nl=False)
    if not quiet:
        size = len(page.encode()) / 1e6
        # Messages must not get among the page.
        shown = f"{len(numbers):,} of {n_rows:,} rows, {size:.1f} MB"
        click.echo(shown, err=out == STANDARD)
        if out != STANDARD:
            click.echo(f"wrote {out}")


def _choose(chunks: Iterator[Chunk], most: int) -> tuple[dict[str, Any], str, int]:
    """Rows of all chunks, each with the same chance; also the column of ids, and N.

    No more are kept in memory than `most` and those of a chunk.
    """
    random = np.random.default_rng(0)
    kept: dict[str, Any] = {}
    id_name, n_rows = "id", 0
    for chunk in chunks:
        columns: dict[str, Any] = {
            "rows": chunk.rows,
            "numbers": chunk.first + np.arange(len(chunk)),
        }
        columns["keys"] = random.random(len(chunk))
        if chunk.ids:
            ((id_name, columns["ids"]),) = chunk.ids.items()
        # Tables come in one chunk.
        kept = {n: np.concatenate([kept[n], columns[n]]) for n in kept} if kept else columns
        if len(kept["keys"]) > most:
            lowest = np.sort(np.argpartition(kept["keys"], most)[:most])
            kept = {name: values.take(lowest, axis=0) for name, values in kept.items()}
        n_rows += len(chunk)
    if not kept:
        raise ValueError("DATA must have rows, got none")
    return kept, id_name, n_rows
