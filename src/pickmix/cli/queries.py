"""`pickmix score`, `assign` and `sample`: questions to a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from pickmix.cli.console import clear_errors, columns_option, key_option, notes, read_finite
from pickmix.data.files import check_writable, write_table
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
@columns_option
@key_option
@out_option
@clear_errors
def score(
    model: Path, data: Path, columns: list[str] | None, key: str | None, out: Path | None
) -> None:
    """Tell the log-density of each row of DATA under MODEL.

    Prints the mean; --out writes a column `log_density`. Rows far below the others are outliers.

    \b
    Example:
      pickmix score pickmix-model rows.csv --out scores.csv
    """
    _check_out(out)
    estimator, rows = _prepare(model, data, columns, key)
    with notes():
        log_density = estimator.score_samples(rows)
    click.echo(f"mean log-density of {log_density.shape[0]:,} rows: {log_density.mean():.6f}")
    _deliver({"log_density": log_density}, out)


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
@columns_option
@key_option
@out_option
@clear_errors
def assign(
    model: Path,
    data: Path,
    top: int,
    columns: list[str] | None,
    key: str | None,
    out: Path | None,
) -> None:
    """Tell the most probable components of each row of DATA under MODEL.

    The result has columns `component_1`, `probability_1`, `component_2`, ... with components
    numbered from 0. Those of a sum-product-transform network are the children of its root.

    \b
    Example:
      pickmix assign pickmix-model rows.csv --top 3 --out components.csv
    """
    _check_out(out)
    estimator, rows = _prepare(model, data, columns, key)
    with notes():
        components, probabilities = estimator.top_components(rows, top)
    result = {}
    for place in range(top):
        result[f"component_{place + 1}"] = components[:, place]
        result[f"probability_{place + 1}"] = probabilities[:, place]
    used = np.unique(components[:, 0]).shape[0]
    click.echo(
        f"{rows.shape[0]:,} rows, {used:,} components in use, "
        f"mean probability of the first: {probabilities[:, 0].mean():.4f}"
    )
    _deliver(result, out)


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
    _check_out(out)
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
    _deliver(result, out)


def _check_out(out: Path | None) -> None:
    # Before the work, not after it.
    if out is not None:
        check_writable(out)


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


def _prepare(
    model: Path, data: Path, columns: list[str] | None, key: str | None
) -> tuple[Any, np.ndarray]:
    """Load a model and the rows to ask it about."""
    estimator, fitted = _load(model)
    rows = _read_like(data, fitted, key) if columns is None and fitted is not None else None
    if rows is None:
        rows, _ = read_finite(data, columns, key)
    if rows.shape[1] != estimator.n_features_in_:
        raise ValueError(
            f"{data}: expected the {estimator.n_features_in_} columns that {model} was fitted to, "
            f"got {rows.shape[1]}; choose them with --columns"
        )
    return estimator, rows


def _read_like(data: Path, fitted: list[str], key: str | None) -> np.ndarray | None:
    """Read the columns a model was fitted to by name, or None if the file has no names."""
    try:
        return read_finite(data, fitted, key)[0]
    except ValueError:
        if read_finite(data, None, key)[1] is None:
            return None
        raise


def _deliver(columns: dict[str, np.ndarray], out: Path | None) -> None:
    """Write the result, or show its beginning."""
    if out is not None:
        write_table(out, columns)
        click.echo(f"wrote {out}")
        return
    click.echo(",".join(columns))
    values = list(columns.values())
    for row in range(min(SHOWN, values[0].shape[0])):
        click.echo(",".join(f"{column[row]:.6g}" for column in values))
    if values[0].shape[0] > SHOWN:
        click.echo(f"... {values[0].shape[0] - SHOWN:,} more rows; --out FILE writes all")
