"""`pickmix score`, `assign` and `sample`: questions to a saved model."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Self

import click
import numpy as np

from pickmix.cli.console import clear_errors, notes
from pickmix.cli.reading import Place, finite_chunks, open_place, place_options, read_finite
from pickmix.data.files import check_writable, replacing, write_table
from pickmix.data.sources import RowSource
from pickmix.estimators.mixture import Mixture
from pickmix.estimators.persistence import load

# Rows shown when there is no --out.
SHOWN = 10

model_argument = click.argument("model", type=click.Path(path_type=Path))
data_argument = click.argument("data", type=click.Path(path_type=Path))
out_option = click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the result: .csv, .npy, .npz or .parquet.",
)


@click.command()
@model_argument
@data_argument
@place_options
@out_option
@clear_errors
def score(model: Path, out: Path | None, **place: Any) -> None:
    """Tell the log-density of each row of DATA under MODEL.

    Prints the mean; --out writes a column `log_density`. Rows far below the others are outliers.
    DATA is a file, a folder of Parquet files, or a pattern in quotes; files above 256 MB, folders
    and patterns are read piece by piece.

    \b
    Example:
      pickmix score pickmix-model rows.csv --out scores.csv
      pickmix score pickmix-model "parts/*.parquet" --out scores.csv
    """
    total, n_rows = 0.0, 0
    asking = contextlib.closing(_ask(model, Place(**place)))
    with notes(), Delivery(out) as delivery, asking as asked:
        for estimator, rows in asked:
            log_density = estimator.score_samples(rows)
            total += float(log_density.sum())
            n_rows += rows.shape[0]
            delivery.add({"log_density": log_density})
    click.echo(f"mean log-density of {n_rows:,} rows: {total / n_rows:.6f}")
    delivery.tell()


@click.command()
@model_argument
@data_argument
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="M",
    help="How many components per row, most probable first.",
)
@place_options
@out_option
@clear_errors
def assign(model: Path, top: int, out: Path | None, **place: Any) -> None:
    """Tell the most probable components of each row of DATA under MODEL.

    The result has columns `component_1`, `probability_1`, `component_2`, ... with components
    numbered from 0. Those of a sum-product-transform network are the children of its root. DATA is
    as in `pickmix score`.

    \b
    Example:
      pickmix assign pickmix-model rows.csv --top 3 --out components.csv
    """
    total, n_rows = 0.0, 0
    used: np.ndarray = np.empty(0, dtype=np.int64)
    asking = contextlib.closing(_ask(model, Place(**place)))
    with notes(), Delivery(out) as delivery, asking as asked:
        for estimator, rows in asked:
            components, probabilities = estimator.top_components(rows, top)
            used = np.union1d(used, components[:, 0])
            total += float(probabilities[:, 0].sum())
            n_rows += rows.shape[0]
            result = {}
            for number in range(top):
                result[f"component_{number + 1}"] = components[:, number]
                result[f"probability_{number + 1}"] = probabilities[:, number]
            delivery.add(result)
    click.echo(
        f"{n_rows:,} rows, {used.shape[0]:,} components in use, "
        f"mean probability of the first: {total / n_rows:.4f}"
    )
    delivery.tell()


@click.command()
@model_argument
@click.option("-n", "n_rows", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")
@out_option
@clear_errors
def sample(model: Path, n_rows: int, seed: int, out: Path | None) -> None:
    """Draw rows from MODEL.

    The result has the columns of the fitted data and `component`, the component each row came
    from; an .npy file has the data's columns only.

    \b
    Example:
      pickmix sample pickmix-model -n 10000 --seed 1 --out made.csv
    """
    delivery = Delivery(out)
    estimator, names = _load(model)
    estimator.random_state = seed
    rows, components = estimator.sample(n_rows)
    # The estimator groups rows by component; whoever takes the first few wants a mixed lot.
    order = np.random.default_rng(seed).permutation(n_rows)
    rows, components = rows[order], components[order]
    names = names or [f"column_{d}" for d in range(rows.shape[1])]
    result = {name: rows[:, place] for place, name in enumerate(names)}
    if out is None or out.suffix.lower() != ".npy":
        result["component"] = components
    with delivery:
        delivery.add(result)
    delivery.tell()


def _load(path: Path) -> tuple[Any, list[str] | None]:
    """Load a model and take its column names off, as rows come as plain arrays here."""
    estimator = load(path)
    if isinstance(estimator, Mixture):
        raise ValueError(
            f"{path}: a Mixture of components of your own can be asked from Python only: "
            "pickmix.load(path, component=...)"
        )
    names = vars(estimator).pop("feature_names_in_", None)
    return estimator, None if names is None else names.tolist()


def _ask(model: Path, place: Place) -> Generator[tuple[Any, np.ndarray], None, None]:
    """Load a model; yield it with the rows to ask it about, all at once or chunk by chunk."""
    estimator, fitted = _load(model)
    like = None if place.columns is not None else fitted

    def check(n_columns: int) -> None:
        if n_columns != estimator.n_features_in_:
            raise ValueError(
                f"{place.data}: expected the {estimator.n_features_in_} columns that {model} was "
                f"fitted to, got {n_columns}; choose them with --columns"
            )

    if place.is_small:
        rows = None if like is None else _read_like(place, like)
        if rows is None:
            rows, _ = read_finite(place)
        check(rows.shape[1])
        yield estimator, rows
        return
    with _open_like(place, like) as source:
        check(source.n_columns)
        for rows in finite_chunks(source):
            yield estimator, rows


def _read_like(place: Place, fitted: list[str]) -> np.ndarray | None:
    """Read the columns a model was fitted to by name, or None if the file has no names."""
    try:
        return read_finite(replace(place, columns=fitted))[0]
    except ValueError:
        if read_finite(place)[1] is None:
            return None
        raise


def _open_like(place: Place, fitted: list[str] | None) -> RowSource:
    """The same for rows that stay where they are, which are opened without names then."""
    if fitted is None:
        return open_place(place)
    try:
        return open_place(place, fitted)
    except ValueError:
        source = open_place(place)
        if source.names is None:
            return source
        source.close()
        raise


class Delivery:
    """Takes a result piece by piece, and writes it or shows its beginning.

    A .csv is written as the pieces come; of others, they are collected. The file appears whole or
    not at all.

    Parameters
    ----------
    out : Path or None
        The file; None shows the first rows.
    """

    def __init__(self, out: Path | None) -> None:
        # Before the work, not after it.
        self._out = None if out is None else check_writable(out)
        self._stack = contextlib.ExitStack()
        self._pieces: list[dict[str, np.ndarray]] = []
        self._file: IO[str] | None = None
        self._n_rows = 0

    def __enter__(self) -> Self:
        if self._out is not None and self._out.suffix.lower() == ".csv":
            temporary = self._stack.enter_context(replacing(self._out))
            self._file = self._stack.enter_context(
                open(temporary, "w", newline="", encoding="utf-8")
            )
        return self

    def add(self, columns: dict[str, np.ndarray]) -> None:
        """Take the next rows."""
        n_before, self._n_rows = self._n_rows, self._n_rows + len(next(iter(columns.values())))
        if self._file is not None:
            _write_csv(self._file, columns, header=n_before == 0)
        elif self._out is not None:
            self._pieces.append(columns)
        elif n_before < SHOWN:
            n_here = SHOWN - n_before
            # Copies: a piece of a large array would keep all of it.
            self._pieces.append({name: values[:n_here].copy() for name, values in columns.items()})

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)
        if self._out is not None and self._file is None and error[0] is None:
            write_table(self._out, self._columns())

    def _columns(self) -> dict[str, np.ndarray]:
        return {
            name: np.concatenate([piece[name] for piece in self._pieces])
            for name in self._pieces[0]
        }

    def tell(self) -> None:
        """Say where the result is, or show its beginning."""
        if self._out is not None:
            click.echo(f"wrote {self._out}")
            return
        columns = self._columns()
        click.echo(",".join(columns))
        for row in zip(*columns.values(), strict=True):
            click.echo(",".join(f"{value:.6g}" for value in row))
        if self._n_rows > SHOWN:
            click.echo(f"... {self._n_rows - SHOWN:,} more rows; --out FILE writes all")


def _write_csv(file: IO[str], columns: dict[str, np.ndarray], header: bool) -> None:
    writer = csv.writer(file)
    if header:
        writer.writerow(columns)
    # Python's floats print the shortest digits that read back to the same number.
    writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
