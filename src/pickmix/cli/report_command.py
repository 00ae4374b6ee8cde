"""`pickmix report`: one HTML file about a saved model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from pickmix.cli.asking import Piece, Saved, asking, asking_options, load_model
from pickmix.cli.console import clear_errors, notes
from pickmix.cli.reading import STANDARD, Place
from pickmix.diagnostics.columns import column_names
from pickmix.reporting.report import check_target, make_page, write_page
from pickmix.reporting.subject import Subject, affordable_rows, subject_of, take_rows


@click.command()
@asking_options
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
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors and notes.")
@clear_errors
def report(
    model: Path,
    out: Path,
    title: str | None,
    held_out: bool | None,
    most: int | None,
    unusual: int,
    quiet: bool,
    **place: Any,
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
        for name, other in (("MODEL", model), ("DATA", place["data"])):
            if out.exists() and other.exists() and out.samefile(other):
                raise ValueError(f"--out {out}: expected a file to write, got {name} itself")
    saved = load_model(model)
    # Messages must not get among the page.
    to_errors = out == STANDARD
    with notes():
        with asking(saved, Place(**place)) as pieces:
            subject = _choose(saved, pieces, most or affordable_rows(saved.estimator))
        page = make_page(subject, title=title, held_out=held_out, n_unusual=unusual)
    if out == STANDARD:
        click.echo(page, nl=False)
    else:
        write_page(page, out)
    if not quiet:
        n_looked_at = subject.numbers.shape[0]
        which = f"{n_looked_at:,} of {subject.n_rows:,} rows"
        size = len(page.encode()) / 1e6
        click.echo(f"{which}, {size:.1f} MB", err=to_errors)
        if out != STANDARD:
            click.echo(f"wrote {out}")


@dataclass
class _Kept:
    """Rows that were chosen so far: their numbers, names, and the keys that they were drawn by."""

    rows: Any
    numbers: np.ndarray
    ids: dict[str, np.ndarray]
    keys: np.ndarray

    def lowest(self, most: int) -> _Kept:
        """The rows with the lowest keys, in their order."""
        if self.keys.shape[0] <= most:
            return self
        few = np.sort(np.argpartition(self.keys, most)[:most])
        ids = {name: values[few] for name, values in self.ids.items()}
        return _Kept(take_rows(self.rows, few), self.numbers[few], ids, self.keys[few])

    def joined(self, other: _Kept) -> _Kept:
        """These rows and others; of arrays only, as tables come in one piece."""
        ids = {name: np.concatenate([own, other.ids[name]]) for name, own in self.ids.items()}
        return _Kept(
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.numbers, other.numbers]),
            ids,
            np.concatenate([self.keys, other.keys]),
        )


def _choose(saved: Saved, pieces: Iterator[Piece], most: int) -> Subject:
    """Rows of all pieces, each with the same chance, and no more in memory than are asked for."""
    random = np.random.default_rng(0)
    kept: _Kept | None = None
    n_rows = 0
    for piece in pieces:
        numbers = piece.first + np.arange(piece.n_rows)
        own = _Kept(piece.rows, numbers, piece.ids, random.random(piece.n_rows)).lowest(most)
        kept = own if kept is None else kept.joined(own).lowest(most)
        n_rows += piece.n_rows
    if kept is None:
        raise ValueError("DATA must have rows, got none")
    names = column_names(saved.estimator) if saved.is_table else saved.labels
    id_name = next(iter(kept.ids), "id")
    ids = kept.ids.get(id_name)
    return subject_of(saved.estimator, kept.rows, kept.numbers, n_rows, ids, id_name, names)
