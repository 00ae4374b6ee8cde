"""`pickmix fit`."""

from __future__ import annotations

import copy
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from pickmix.cli.console import (
    WordOrNumber,
    clear_errors,
    columns_option,
    key_option,
    notes,
    read_finite,
    show_table,
)
from pickmix.data.files import write_table
from pickmix.data.mixsim import generate
from pickmix.estimators.gaussian_mixture import INIT_PARAMS, GaussianMixture
from pickmix.estimators.persistence import save
from pickmix.estimators.plan import ALGORITHMS, PROPOSALS
from pickmix.fitting.trace import TRACE_DTYPE

DEFAULTS = GaussianMixture().get_params()
EXAMPLE_ROWS, EXAMPLE_COMPONENTS = 100_000, 500
# Scoring every row costs rows x components; beyond this the fit's own sample of rows must do.
MOST_EVALUATIONS = 10**9
INTERRUPTED_EXIT_CODE = 130


@dataclass
class Data:
    """What is fitted: rows, where they come from, and the truth if it is known."""

    rows: np.ndarray
    source: str
    names: list[str] | None = None
    true_log_likelihood: float | None = None


def _option(*names: str, parameter: str, help: str, **settings: Any) -> Any:
    """Make an option whose default is the estimator's own."""
    default = DEFAULTS[parameter]
    settings.setdefault("show_default", default is not None)
    return click.option(*names, parameter, default=default, help=help, **settings)


@click.command()
@click.argument("data", required=False, type=click.Path(path_type=Path))
@click.option(
    "--components",
    "n_components",
    type=click.IntRange(min=1),
    help="K, the number of components. [default: rows / 100, at most 500]",
)
@_option(
    "--covariance",
    parameter="covariance_type",
    type=click.Choice(["full", "tied", "diag", "spherical"]),
    help="Shape of the components; tied: one for all.",
)
@_option(
    "--algorithm",
    parameter="algorithm",
    type=click.Choice(ALGORITHMS),
    help="em visits all components on all rows; tsaem and mhsaem only a few per row.",
)
@_option(
    "--proposal",
    parameter="proposal",
    type=click.Choice(PROPOSALS),
    help="For mhsaem: how a row finds the components it tries.",
)
@_option("--samples", parameter="n_samples", type=int, metavar="M", help="Draws per row and visit.")
@_option(
    "--batch-size",
    parameter="batch_size",
    type=WordOrNumber(int, "auto"),
    help="Rows per step.",
)
@_option(
    "--step-size",
    parameter="step_size",
    type=WordOrNumber(float, "auto", "paper"),
    help="How far a step moves towards its batch, in (0, 1].",
)
@_option(
    "--annealing",
    parameter="annealing",
    type=click.Choice(["anti"]),
    help="Flatten posteriors first and sharpen them later, as the paper does.",
)
@_option("--max-iter", parameter="max_iter", type=int, help="Passes over the rows at most.")
@_option("--max-steps", parameter="max_steps", type=int, help="Exact number of steps instead.")
@_option("--max-time", parameter="max_time", type=float, help="Seconds of work at most.")
@_option(
    "--tol",
    parameter="tol",
    type=float,
    help="Stop when the log-likelihood per row rises by less.",
)
@_option(
    "--reg-covar", parameter="reg_covar", type=float, help="Added to every component's variances."
)
@_option(
    "--init", parameter="init_params", type=click.Choice(INIT_PARAMS), help="How to choose a start."
)
@click.option("--seed", "random_state", type=int, default=0, show_default=True, help="Random seed.")
@_option("--jobs", parameter="n_jobs", type=int, help="Threads. [default: all cores]")
@columns_option
@key_option
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("pickmix-model"),
    show_default=True,
    help="Folder for the model, fit.png and trace.csv.",
)
@click.option("--quiet", is_flag=True, help="Print nothing but notes and errors.")
@click.option("--no-plot", is_flag=True, help="Leave out fit.png.")
@clear_errors
def fit(
    data: Path | None,
    columns: list[str] | None,
    key: str | None,
    out: Path,
    quiet: bool,
    no_plot: bool,
    **parameters: Any,
) -> None:
    """Fit a Gaussian mixture to the rows of DATA, and save it.

    Without DATA it fits an embedded example: 100,000 rows drawn from a known mixture of 500
    components in the plane. Ctrl-C ends a fit early and saves what it has.

    \b
    Examples:
      pickmix fit
      pickmix fit rows.csv --components 1000 --covariance diag
      pickmix fit rows.parquet --columns age,income --out model --max-time 60
    """
    _check_out(out)
    plots = not no_plot and importlib.util.find_spec("matplotlib") is not None
    if not no_plot and not plots:
        click.echo("note: no fit.png without matplotlib: pip install pickmix[plot]", err=True)
    table = _example() if data is None else _read(data, columns, key)
    n_rows, n_columns = table.rows.shape
    if parameters["n_components"] is None:
        parameters["n_components"] = max(1, min(EXAMPLE_COMPONENTS, n_rows // 100))
    model = GaussianMixture(**parameters, verbose=0 if quiet else 1)
    if not quiet:
        click.echo(
            f"Fitting {model.n_components:,} {model.covariance_type} components to {n_rows:,} rows "
            f"of {n_columns:,} columns by {model.algorithm}: {table.source}"
        )
        click.echo("Compiling (some seconds the first time, then cached) ...", err=True)
    with notes():
        model.fit(table.rows)
        model.verbose = DEFAULTS["verbose"]
        named = _with_names(model, table.names)
        _save(named, out)
        log_likelihood, measured_on = _log_likelihood(model, table.rows)
        if plots:
            _draw(named, table, out / "fit.png", log_likelihood)
    if not quiet:
        _summarise(model, table, log_likelihood, measured_on)
        saved = ["model.json", "arrays.npz", "trace.csv"] + (["fit.png"] if plots else [])
        early = "interrupted " if model.outcome_ == "interrupted" else ""
        click.echo(f"The {early}model is in {out} ({', '.join(saved)}).")
    if model.outcome_ == "interrupted":
        click.get_current_context().exit(INTERRUPTED_EXIT_CODE)


def _example() -> Data:
    """Make rows of a known mixture, with component sizes that leave a picture readable."""
    mixture = generate(EXAMPLE_COMPONENTS, 2, max_overlap=0.75, random_state=0)
    rows, _ = mixture.sample(EXAMPLE_ROWS, random_state=0)
    # The estimator's kernels give the mixture's own score several times faster.
    truth = GaussianMixture(EXAMPLE_COMPONENTS)
    truth.weights_, truth.means_ = mixture.weights, mixture.means
    truth.covariances_, truth.n_features_in_ = mixture.covariances, 2
    return Data(rows, "the embedded example", true_log_likelihood=truth.score(rows))


def _read(path: Path, columns: list[str] | None, key: str | None) -> Data:
    rows, names = read_finite(path, columns, key)
    return Data(rows, str(path), names)


def _check_out(out: Path) -> None:
    """Refuse a folder that cannot be written to before the work, not after it."""
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise PermissionError(f"{out}: cannot write to {existing}")


def _with_names(model: GaussianMixture, names: list[str] | None) -> GaussianMixture:
    """Name the model's columns as scikit-learn does; score and assign find them by it."""
    named = copy.copy(model)
    if names is not None:
        named.feature_names_in_ = np.array(names, dtype=object)
    return named


def _save(model: GaussianMixture, out: Path) -> None:
    save(model, out)
    write_table(out / "trace.csv", {name: model.trace_[name] for name in TRACE_DTYPE.names or ()})


def _log_likelihood(model: GaussianMixture, rows: np.ndarray) -> tuple[float, str]:
    """Measure the log-likelihood per row on all rows if that can be afforded; and tell on which."""
    if rows.shape[0] * model.n_components <= MOST_EVALUATIONS:
        return model.score(rows), "all rows"
    return model.lower_bound_, "a sample of rows"


def _draw(model: GaussianMixture, table: Data, path: Path, log_likelihood: float) -> None:
    # Here and not above: matplotlib is an extra.
    from pickmix.plotting import plot_fit

    references = None
    if table.true_log_likelihood is not None:
        # The curve comes from a sample of rows; what is compared must come from the same rows.
        references = {
            "true mixture, on all rows": table.true_log_likelihood,
            "this fit, on all rows": log_likelihood,
        }
    plot_fit(model, table.rows, path, references=references)


def _summarise(
    model: GaussianMixture, table: Data, log_likelihood: float, measured_on: str
) -> None:
    n_rows, n_columns = table.rows.shape
    # A slice, as a fit interrupted twice has no record at all; its sums are then zero.
    last = model.trace_[-1:]
    passes = float(last["epoch"].sum())
    evaluations = model.n_component_evaluations_ / (n_rows * passes) if passes else 0.0
    lines = [
        ("rows", f"{n_rows:,}"),
        ("columns", f"{n_columns:,}"),
        ("components", f"{model.n_components:,}"),
        ("live components", f"{int(last['live_components'].sum()):,}"),
        ("log-likelihood per row", f"{log_likelihood:.4f}  ({measured_on})"),
    ]
    if table.true_log_likelihood is not None:
        lines.append(("the true mixture's", f"{table.true_log_likelihood:.4f}"))
    acceptance = float(last["acceptance"].sum())
    lines += [
        ("acceptance", "-" if np.isnan(acceptance) else f"{acceptance:.3f}"),
        ("passes", f"{passes:.1f}"),
        ("steps", f"{model.n_steps_:,}"),
        ("components per row and pass", f"{evaluations:.1f}"),
        ("seconds of work", f"{float(last['seconds'].sum()):.2f}"),
        ("outcome", model.outcome_),
    ]
    show_table(lines)
