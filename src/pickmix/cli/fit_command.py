"""`pickmix fit`."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
from pathlib import Path
from typing import Any

import click
import numpy as np

from pickmix.cli.console import INTERRUPTED_EXIT_CODE, clear_errors, notes, show_table
from pickmix.cli.fit_data import Data, example, find_schema, read_data
from pickmix.cli.fit_options import fit_options
from pickmix.cli.fit_out import check_out
from pickmix.cli.models import CLOSED_FORM, DEEP, KINDS, SectionedCommand, given_parameters
from pickmix.cli.reading import Place
from pickmix.cli.summary import measure, name_parts, summary
from pickmix.data.typed_kinds import KINDS as COLUMN_KINDS
from pickmix.data.typed_tables import TypedTable
from pickmix.estimators.deep_inference import require_jax

EXAMPLE_ROWS, EXAMPLE_COMPONENTS = 100_000, 500
# Some seconds: enough to see what a deep model makes of the example. To choose the number of
# components would take longer than the fit, and find this one.
EXAMPLE_STEPS, EXAMPLE_FLOWS, EXAMPLE_CHILDREN_BELOW = 2000, 128, 4


@click.command(cls=SectionedCommand)
@click.argument("data", required=False, type=click.Path(path_type=Path, allow_dash=True))
@fit_options
@clear_errors
def fit(
    data: Path | None,
    model: str,
    columns: list[str] | None,
    exclude: list[str] | None,
    id: str | None,
    decimal: str | None,
    key: str | None,
    cache: Path | None,
    chunk_size: int | None,
    out: Path,
    keep: bool,
    quiet: bool,
    no_plot: bool,
    no_report: bool,
    **values: Any,
) -> None:
    """Fit a mixture to the rows of DATA, and save it.

    \b
    Kinds of model:
      gaussian  K Gaussians, for rows of numbers
      table     K components for columns of all types: numbers, counts, text, dates, with gaps
      flow      K flows (real NVP): Gaussians that have learnt to bend
      sptn      a sum-product-transform network: very many Gaussians, few parameters

    Without --model it is gaussian if all columns are numbers and no value is missing, else table.
    flow and sptn begin with a Gaussian mixture, and choose their size if none is given. They need
    JAX: pip install 'pickmix[deep]'.

    Without DATA it fits an embedded example: 100,000 rows drawn from a known mixture of 500
    Gaussians in the plane. There flow and sptn have 128 components and make 2,000 steps, unless you
    say otherwise.

    DATA is a file, a folder of Parquet files, a pattern in quotes, or - for standard input. Files
    above 256 MB, folders and patterns are not read into memory at once: gaussian reads them chunk
    by chunk, the other models need memory for all rows. The summary, picture and report then come
    from 100,000 of the rows.

    Ctrl-C ends a fit early and saves the model as it is then. If --out holds an earlier model, that
    one stays and the interrupted one is saved beside it, unless --keep is given. A fit with
    --checkpoint that was killed resumes when the same command is given again, and gives the same
    model as a fit without a break.

    The model remembers the column of --id: score, assign and explain put it before their results
    if their DATA has it.

    \b
    Examples:
      pickmix fit
      pickmix fit rows.csv --components 1000 --covariance diag
      pickmix fit people.csv --id name --exclude phone --kind zip=category
      zcat rows.csv.gz | pickmix fit - --out model
      pickmix fit rows.parquet --columns age,income --out model --max-time 60
      pickmix fit "parts/*.parquet" --components 10000 --cache fast-disk --checkpoint kept
      pickmix fit rows.npy --model flow
      pickmix fit rows.npy --model flow --components 64 --layers 4
      pickmix fit rows.npy --model sptn --children 32,4 --partitions 2 --layers 2
    """
    output = check_out(out, (values["checkpoint"], cache))
    if model == "auto" and (values["schema"] or values["max_levels"]):
        model = "table"
    elif model == "auto" and data is None:
        model = "gaussian"
    parameters = _parameters(model, values)
    if model in DEEP:
        require_jax()
    wants_plots = not no_plot and not output.is_file
    plots = wants_plots and importlib.util.find_spec("matplotlib") is not None
    if wants_plots and not plots:
        click.echo("note: no fit.png without matplotlib: pip install pickmix[plot]", err=True)
    with contextlib.ExitStack() as stack:
        if data is None:
            table = example(EXAMPLE_ROWS, EXAMPLE_COMPONENTS, model == "table")
        else:
            asked = Place(data, columns, key, cache, chunk_size, exclude, id, decimal)
            takes_gaps = model not in DEEP or parameters.get("transforms") is False
            table, found = read_data(asked, model, takes_gaps, stack, quiet)
            if found != model:
                model, parameters = found, _parameters(found, values)
        n_rows, n_columns = table.shape
        if model in CLOSED_FORM:
            parameters.setdefault("n_components", max(1, min(EXAMPLE_COMPONENTS, n_rows // 100)))
        elif data is None:
            _set_example_sizes(model, parameters)
        estimator: Any = KINDS[model].estimator(**parameters, verbose=0 if quiet else 1)
        if isinstance(table.rows, TypedTable):
            plots = False
            schema = find_schema(table, estimator)
            if not quiet:
                click.echo(str(schema))
        if not quiet:
            click.echo(
                f"Fitting {name_parts(estimator)} to {n_rows:,} rows of {n_columns:,} columns by "
                f"{estimator.algorithm}: {table.origin}"
            )
            if model in DEEP:
                click.echo("Compiling (some seconds the first time, then cached) ...", err=True)
        with notes():
            try:
                estimator.fit(table.rows)
            except KeyboardInterrupt:
                # Before the first step there is nothing to keep.
                click.echo("Interrupted before the first step: nothing was saved.", err=True)
                click.get_current_context().exit(INTERRUPTED_EXIT_CODE)
            # A saved model answers questions; its checkpoints may be gone.
            for part in (estimator, getattr(estimator, "mixture_", estimator)):
                part.verbose, part.checkpoint = 0, None
            named = _with_names(estimator, table)
            is_early = estimator.outcome_ == "interrupted"
            place = output.beside() if is_early and output.held_model and not keep else output
            saved = place.save(named)
            if not place.is_file:
                # One that is there shows the model before.
                (place.path / "fit.png").unlink(missing_ok=True)
            rows = table.some()
            log_likelihood, measured_on = measure(estimator, rows, n_rows)
            if plots:
                # A row with a missing value cannot be drawn.
                rows = rows[~np.isnan(rows).any(axis=1)]
                plots = len(rows) > 0
            if plots:
                _draw(
                    named, rows, place.path / "fit.png", log_likelihood, table.true_log_likelihood
                )
            reported = not place.is_file and _leave_report(
                named, table, place.path / "report.html", wanted=not no_report and not is_early
            )
    if not quiet:
        shape, truth = table.shape, table.true_log_likelihood
        show_table(summary(estimator, shape, log_likelihood, measured_on, truth, table.by_pieces))
        saved += ["fit.png"] if plots else []
        saved += ["report.html"] if reported else []
        holds = (
            "the model alone, without trace.csv, fit.png and report.html"
            if place.is_file
            else ", ".join(saved)
        )
        click.echo(f"The {'interrupted ' if is_early else ''}model is in {place.path} ({holds}).")
        if reported:
            click.echo(f"Open {place.path / 'report.html'} in a browser to see what is in it.")
        if plots and rows.shape[0] < n_rows:
            which = f"from all parts of {data}" if table.by_pieces else "those without gaps"
            click.echo(f"fit.png shows {rows.shape[0]:,} of the rows, {which}.")
    if "checkpoint" in parameters and estimator.outcome_ in ("interrupted", "max_time"):
        kept = parameters["checkpoint"]
        click.echo(f"note: The same command resumes from the checkpoint in {kept}.", err=True)
    if place is not output:
        output.explain_place_beside(place)
    if is_early:
        click.get_current_context().exit(INTERRUPTED_EXIT_CODE)


def _parameters(model: str, values: dict[str, Any]) -> dict[str, Any]:
    """Parameters of the estimator; what auto will choose is not known yet, but must take them."""
    kind = "gaussian" if model == "auto" else model
    parameters = given_parameters(click.get_current_context(), kind, values)
    parameters.setdefault("random_state", values["random_state"])
    if "schema" in parameters:
        parameters["schema"] = dict(map(_column_and_kind, parameters["schema"]))
    if "checkpoint_every" in parameters and "checkpoint" not in parameters:
        raise ValueError("--checkpoint-every needs --checkpoint")
    return parameters


def _set_example_sizes(model: str, parameters: dict[str, Any]) -> None:
    """Make a deep fit to the example short, unless the command line says otherwise."""
    parameters.setdefault("max_steps", EXAMPLE_STEPS)
    if model == "flow":
        parameters.setdefault("n_components", EXAMPLE_FLOWS)
        return
    n_layers = parameters.get("n_layers", KINDS[model].estimator().n_layers)
    below = (EXAMPLE_CHILDREN_BELOW,) * (n_layers - 1)
    parameters.setdefault("n_children", (EXAMPLE_FLOWS, *below))


def _column_and_kind(text: str) -> tuple[str, str]:
    # Names may hold the sign, kinds do not.
    name, sign, kind = text.rpartition("=")
    if not sign or kind.strip() not in COLUMN_KINDS:
        raise ValueError(
            f"--kind must be NAME=KIND, with one of {', '.join(COLUMN_KINDS)}, got {text!r}"
        )
    return name.strip(), kind.strip()


def _with_names(model: Any, table: Data) -> Any:
    """Name the columns of a copy as scikit-learn does; score and assign find them by it.

    The model itself has none then: it will be asked about plain arrays.
    """
    named = model
    if not isinstance(table.rows, TypedTable):
        vars(model).pop("feature_names_in_", None)
        named = copy.copy(model)
        if table.names is not None:
            named.feature_names_in_ = np.array(table.names, dtype=object)
    if table.id is not None:
        named.id_column_ = table.id
    return named


def _leave_report(model: Any, table: Data, path: Path, wanted: bool) -> bool:
    """Leave a report beside the model. Whatever may be wrong with it, the model is there."""
    # One that is there speaks of the model before.
    path.unlink(missing_ok=True)
    if not wanted:
        return False
    # Here and not above: fits without a report need none of this.
    from pickmix.reporting.report import leave_report

    try:
        leave_report(model, table.rows, path, names=table.names)
    except (ValueError, TypeError, OSError, ArithmeticError, MemoryError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        click.echo(f"note: no report.html: {first}", err=True)
        return False
    return True


def _draw(
    model: Any, rows: np.ndarray, path: Path, log_likelihood: float, truth: float | None
) -> None:
    # Here and not above: matplotlib is an extra.
    from pickmix.plotting import plot_fit

    references = None
    if truth is not None:
        # The curve comes from a sample of rows; what is compared must come from the same rows.
        references = {
            "true mixture, on all rows": truth,
            "this fit, on all rows": log_likelihood,
        }
    plot_fit(model, rows, path, references=references)
