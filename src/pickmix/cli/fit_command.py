"""`pickmix fit`."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from pickmix.cli.console import INTERRUPTED_EXIT_CODE, clear_errors, notes, show_table
from pickmix.cli.fit_options import FLOW_COMPONENTS, fit_options
from pickmix.cli.models import DEEP, KINDS, SectionedCommand, given_parameters
from pickmix.cli.reading import Place, open_place, read_finite, sample_rows
from pickmix.cli.summary import measure, name_parts, summary
from pickmix.data.files import write_table
from pickmix.data.mixsim import generate
from pickmix.data.sources import RowSource
from pickmix.estimators.deep_inference import require_jax
from pickmix.estimators.persistence import save
from pickmix.experiments.scoring import GaussianParameters
from pickmix.fitting.trace import TRACE_DTYPE

EXAMPLE_ROWS, EXAMPLE_COMPONENTS = 100_000, 500
# Some seconds: enough to see what a deep model makes of the example.
EXAMPLE_STEPS = 2000


@dataclass
class Data:
    """What is fitted: rows, where they come from, and the truth if it is known."""

    rows: np.ndarray | RowSource
    origin: str
    names: list[str] | None = None
    true_log_likelihood: float | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows and columns."""
        if isinstance(self.rows, RowSource):
            return self.rows.n_rows, self.rows.n_columns
        n_rows, n_columns = self.rows.shape
        return n_rows, n_columns

    @property
    def by_pieces(self) -> bool:
        """Whether the rows stay where they are."""
        return isinstance(self.rows, RowSource)

    def some(self) -> np.ndarray:
        """All rows, or some that stand for them."""
        return sample_rows(self.rows) if isinstance(self.rows, RowSource) else self.rows


@click.command(cls=SectionedCommand)
@click.argument("data", required=False, type=click.Path(path_type=Path))
@fit_options
@clear_errors
def fit(
    data: Path | None,
    model: str,
    columns: list[str] | None,
    key: str | None,
    cache: Path | None,
    chunk_size: int | None,
    out: Path,
    quiet: bool,
    no_plot: bool,
    **values: Any,
) -> None:
    """Fit a mixture to the rows of DATA, and save it.

    \b
    Three kinds of model:
      gaussian  K Gaussians
      flow      K real NVP flows, components that bend
      sptn      a sum-product-transform network: very many Gaussians, few parameters

    flow and sptn need JAX: pip install 'pickmix[deep]'.

    Without DATA it fits an embedded example, 100,000 rows drawn from a known mixture of 500
    Gaussians in the plane; flow and sptn then make 2,000 steps, unless --max-steps says otherwise.
    Ctrl-C ends a fit early and saves what it has.

    DATA is a file, a folder of Parquet files, or a pattern in quotes. Files above 256 MB, folders
    and patterns are not read into memory: gaussian reads them chunk by chunk, flow and sptn need
    the rows themselves to fit there. What is said of the fit then comes from 100,000 of the rows.

    With --checkpoint, a fit that was killed goes on when the same command is given again, and ends
    with the same model as one that was not.

    \b
    Examples:
      pickmix fit
      pickmix fit rows.csv --components 1000 --covariance diag
      pickmix fit rows.parquet --columns age,income --out model --max-time 60
      pickmix fit "parts/*.parquet" --components 10000 --cache fast-disk --checkpoint kept
      pickmix fit rows.npy --model flow --components 64 --layers 4
      pickmix fit rows.npy --model sptn --children 8 --partitions 2 --layers 3
    """
    _check_out(out)
    parameters = given_parameters(click.get_current_context(), model, values)
    parameters.setdefault("random_state", values["random_state"])
    if parameters.pop("no_transforms", False):
        parameters["transforms"] = False
    if "checkpoint_every" in parameters and "checkpoint" not in parameters:
        raise ValueError("--checkpoint-every needs --checkpoint")
    if model in DEEP:
        require_jax()
    plots = not no_plot and importlib.util.find_spec("matplotlib") is not None
    if not no_plot and not plots:
        click.echo("note: no fit.png without matplotlib: pip install pickmix[plot]", err=True)
    with contextlib.ExitStack() as stack:
        if data is None:
            table = _example()
        else:
            table = _read(Place(data, columns, key, cache, chunk_size), stack, quiet)
        n_rows, n_columns = table.shape
        if model == "gaussian":
            parameters.setdefault("n_components", max(1, min(EXAMPLE_COMPONENTS, n_rows // 100)))
        elif data is None:
            parameters.setdefault("max_steps", EXAMPLE_STEPS)
        if model == "flow":
            parameters.setdefault("n_components", FLOW_COMPONENTS)
        estimator: Any = KINDS[model].estimator(**parameters, verbose=0 if quiet else 1)
        if not quiet:
            click.echo(
                f"Fitting {name_parts(estimator)} to {n_rows:,} rows of {n_columns:,} columns by "
                f"{estimator.algorithm}: {table.origin}"
            )
            if model in DEEP:
                click.echo("Compiling (some seconds the first time, then cached) ...", err=True)
        with notes():
            estimator.fit(table.rows)
            # A saved model is to be asked, not to go on from checkpoints that may be gone.
            estimator.verbose, estimator.checkpoint = 0, None
            named = _with_names(estimator, table.names)
            _save(named, out)
            rows = table.some()
            log_likelihood, measured_on = measure(estimator, rows, n_rows)
            if plots:
                _draw(named, rows, out / "fit.png", log_likelihood, table.true_log_likelihood)
    if not quiet:
        shape, truth = table.shape, table.true_log_likelihood
        show_table(summary(estimator, shape, log_likelihood, measured_on, truth, table.by_pieces))
        saved = ["model.json", "arrays.npz", "trace.csv"] + (["fit.png"] if plots else [])
        early = "interrupted " if estimator.outcome_ == "interrupted" else ""
        click.echo(f"The {early}model is in {out} ({', '.join(saved)}).")
        if plots and rows.shape[0] < n_rows:
            click.echo(f"fit.png shows {rows.shape[0]:,} of the rows, from all parts of {data}.")
    if "checkpoint" in parameters and estimator.outcome_ in ("interrupted", "max_time"):
        kept = parameters["checkpoint"]
        click.echo(f"note: The same command goes on from the checkpoint in {kept}.", err=True)
    if estimator.outcome_ == "interrupted":
        click.get_current_context().exit(INTERRUPTED_EXIT_CODE)


def _example() -> Data:
    """Make rows of a known mixture, with component sizes that leave a picture readable."""
    mixture = generate(EXAMPLE_COMPONENTS, 2, max_overlap=0.75, random_state=0)
    rows, _ = mixture.sample(EXAMPLE_ROWS, random_state=0)
    # The estimator's kernels give the mixture's own scores several times faster.
    truth = GaussianParameters(mixture.weights, mixture.means, mixture.covariances)
    log_likelihood = float(truth.score_samples(rows).mean())
    return Data(rows, "the embedded example", true_log_likelihood=log_likelihood)


def _read(place: Place, stack: contextlib.ExitStack, quiet: bool) -> Data:
    if place.is_small:
        rows, names = read_finite(place)
        return Data(rows, str(place.data), names)
    if not quiet:
        click.echo(f"Opening {place.data} ...", err=True)
    source = stack.enter_context(open_place(place))
    return Data(source, str(place.data), source.names)


def _check_out(out: Path) -> None:
    """Refuse a folder that cannot be written to before the work, not after it."""
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise PermissionError(f"{out}: cannot write to {existing}")


def _with_names(model: Any, names: list[str] | None) -> Any:
    """Name the columns of a copy as scikit-learn does; score and assign find them by it.

    The model itself has none then: it will be asked about plain arrays.
    """
    vars(model).pop("feature_names_in_", None)
    named = copy.copy(model)
    if names is not None:
        named.feature_names_in_ = np.array(names, dtype=object)
    return named


def _save(model: Any, out: Path) -> None:
    save(model, out)
    write_table(out / "trace.csv", {name: model.trace_[name] for name in TRACE_DTYPE.names or ()})


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
