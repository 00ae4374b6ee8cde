"""`pickmix fit` and `pickmix compile`."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import time
import warnings
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import click
import numpy as np

from pickmix.cli.console import INTERRUPTED_EXIT_CODE, clear_errors, first_line, notes, show_table
from pickmix.cli.data import DataFiles, first_gap, kinds_of, open_data, option_wording
from pickmix.cli.fit_options import (
    CLOSED_FORM,
    DEEP,
    KINDS,
    OF_TABLES,
    SectionedCommand,
    fit_options,
    given_parameters,
)
from pickmix.cli.fit_output import check_out, measure, name_parts, summary
from pickmix.data.mixsim import generate
from pickmix.estimators import compilation
from pickmix.estimators.deep_mixture import require_jax
from pickmix.estimators.gaussian_mixture import GaussianMixture
from pickmix.inputs.columns import TypedTable
from pickmix.inputs.errors import InputError
from pickmix.inputs.files import column_numbers, find_files
from pickmix.inputs.frames import read_typed
from pickmix.inputs.sources import RowSource
from pickmix.inputs.text import TEXT, table_suffix, text_layout

EXAMPLE_ROWS, EXAMPLE_COMPONENTS = 100_000, 500
# Some seconds: enough to see what a deep model makes of the example. To choose the number of
# components would take longer than the fit, and find this one.
EXAMPLE_STEPS, EXAMPLE_FLOWS, EXAMPLE_CHILDREN_BELOW = 2000, 128, 4
# Rows that stand for all of them in pictures and measurements, and how many lie together.
SAMPLED_ROWS, BLOCK_ROWS = 100_000, 1000


@click.command(cls=SectionedCommand)
@click.argument("data", required=False, type=click.Path(path_type=Path, allow_dash=True))
@fit_options
@clear_errors
def fit(
    data: Path | None,
    model: str,
    hold_out: float | None,
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
      flow      K flows (real NVP): Gaussians, mapped to bent shapes
      sptn      a sum-product-transform network: very many Gaussians, few parameters

    Without --model it is gaussian if all columns are numbers, none of them whole numbers only, and
    no value is missing, else table.
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

    --hold-out 0.2 fits four fifths of the rows. The summary has the log-likelihood of the others,
    which is what to expect of new rows, and the report looks at them.

    The model remembers the column of --id: score, assign and explain put it before their results
    if their DATA has it.

    \b
    Examples:
      pickmix fit
      pickmix fit rows.csv --components 1000 --covariance diag
      pickmix fit people.csv --id name --exclude phone --kind zip=category
      pickmix fit people.csv --hold-out 0.2
      zcat rows.csv.gz | pickmix fit - --out model
      pickmix fit rows.parquet --columns age,income --out model --max-time 60
      pickmix fit "parts/*.parquet" --components 10000 --cache fast-disk --checkpoint kept
      pickmix fit rows.npy --model flow
      pickmix fit rows.npy --model flow --components 64 --layers 4
      pickmix fit rows.npy --model sptn --children 32,4 --partitions 2 --layers 2
    """
    output = check_out(out, (values["checkpoint"], values["cache"]))
    options = {field.name: values.pop(field.name) for field in fields(DataFiles)[2:]}
    if model == "auto" and any(values[name] for name in OF_TABLES):
        model = "table"
    elif model == "auto" and data is None:
        model = "gaussian"
    parameters = _parameters(model, values)
    if model in DEEP:
        require_jax()
    plots = not no_plot and not output.is_file
    if plots and importlib.util.find_spec("matplotlib") is None:
        click.echo("note: no fit.png without matplotlib: pip install pickmix[plot]", err=True)
        plots = False
    with contextlib.ExitStack() as stack:
        if data is None:
            rows = example(EXAMPLE_ROWS, EXAMPLE_COMPONENTS, model == "table")
        else:
            files = stack.enter_context(open_data(data, **options))
            takes_gaps = model not in DEEP or parameters.get("transforms") is False
            rows = _read(files, model, takes_gaps, stack, quiet)
            if model == "auto":
                model = "table" if rows.is_table else "gaussian"
                parameters = _parameters(model, values)
        if hold_out is not None:
            rows.hold_out(hold_out, int(values["random_state"]))
        estimator = _prepare(model, parameters, rows, data is None, quiet)
        with notes():
            try:
                estimator.fit(rows.content)
            except KeyboardInterrupt:
                # Before the first step there is nothing to keep.
                click.echo("Interrupted before the first step: nothing was saved.", err=True)
                click.get_current_context().exit(INTERRUPTED_EXIT_CODE)
            # A saved model answers queries; its checkpoints may be gone.
            estimator.verbose, estimator.checkpoint = 0, None
            is_early = estimator.outcome_ == "interrupted"
            place = output.beside() if is_early and output.held_model and not keep else output
            named = _with_names(estimator, rows)
            written = place.save(named)
            sample = rows.sample()
            measured = measure(estimator, sample, rows.shape[0])
            if rows.held_out is not None:
                held_out_score = float(estimator.score(rows.held_out))
            n_drawn = _draw(named, rows, sample, measured[0], place.path) if plots else 0
            reports = not (no_report or is_early or place.is_file)
            has_report = reports and _leave_report(named, rows, place.path / "report.html")
    written += ["fit.png"] * (n_drawn > 0) + ["report.html"] * has_report
    if not quiet:
        lines = summary(estimator, rows.shape, *measured, rows.truth, rows.in_chunks)
        if rows.held_out is not None:
            n_held = len(rows.held_out)
            lines.append(("held out, per row", f"{held_out_score:.4f}  ({n_held:,} rows)"))
        changed = [
            name for name, kind in rows.kinds.items() if estimator.schema_.kinds[name] != kind
        ]
        if changed:
            lines.append(("columns taken as levels", ", ".join(changed)))
        show_table(lines)
        place.tell(written, is_early)
        if 0 < n_drawn < rows.shape[0]:
            which = f"from all parts of {data}" if rows.in_chunks else "those without gaps"
            click.echo(f"fit.png shows {n_drawn:,} of the rows, {which}.")
    if "checkpoint" in parameters and estimator.outcome_ in ("interrupted", "max_time"):
        folder = parameters["checkpoint"]
        click.echo(f"note: The same command resumes from the checkpoint in {folder}.", err=True)
    if place is not output:
        output.explain_place_beside(place)
    if is_early:
        click.get_current_context().exit(INTERRUPTED_EXIT_CODE)


# Rows


@dataclass
class FitRows:
    content: np.ndarray | RowSource | TypedTable
    #: What messages call it.
    name: str
    #: Of the columns, if they have any.
    names: list[str] | None = None
    #: The column that names the rows.
    id: str | None = None
    #: What that column holds.
    ids: list[Any] | None = None
    #: Log-likelihood per row of the true mixture, if that is known.
    truth: float | None = None
    #: Rows that are kept out of the fit, and their numbers in the data.
    held_out: np.ndarray | TypedTable | None = None
    held_out_numbers: np.ndarray | None = None
    #: Kinds of the columns of a table before the fit, as they were shown.
    kinds: dict[str, str] = field(default_factory=dict)

    @property
    def is_table(self) -> bool:
        return isinstance(self.content, TypedTable)

    @property
    def in_chunks(self) -> bool:
        return isinstance(self.content, RowSource)

    @property
    def shape(self) -> tuple[int, int]:
        if isinstance(self.content, RowSource):
            return self.content.n_rows, self.content.n_columns
        columns = self.content.columns if isinstance(self.content, TypedTable) else self.content.T
        return len(self.content), len(columns)

    def hold_out(self, share: float, seed: int) -> None:
        """Keep a share of the rows out of the fit."""
        if isinstance(self.content, RowSource):
            raise ValueError(
                f"{self.name}: --hold-out needs rows in memory, got data that are read piece by "
                "piece; keep some files apart, and give them to `pickmix report --held-out`"
            )
        n_rows = len(self.content)
        n_held = min(max(1, round(share * n_rows)), n_rows - 1)
        order = np.random.default_rng(seed).permutation(n_rows)
        self.held_out_numbers = np.sort(order[:n_held])
        self.held_out = self.content.take(self.held_out_numbers, axis=0)
        self.content = self.content.take(np.sort(order[n_held:]), axis=0)

    def sample(self) -> Any:
        """All rows in memory; of a source some that stand for all, if there are many."""
        if not isinstance(self.content, RowSource):
            return self.content
        n_rows = self.content.n_rows
        if n_rows <= SAMPLED_ROWS:
            return self.content.read(0, n_rows)
        n_blocks = -(-SAMPLED_ROWS // BLOCK_ROWS)
        size = SAMPLED_ROWS // n_blocks
        starts = np.linspace(0, n_rows - size, n_blocks).astype(np.int64).tolist()
        return np.concatenate([self.content.read(start, start + size) for start in starts])


def example(n_rows: int, n_components: int, as_table: bool) -> FitRows:
    """Make rows of a known mixture, with component sizes that leave a picture readable."""
    mixture = generate(n_components, 2, max_overlap=0.75, random_state=0)
    rows, _ = mixture.sample(n_rows, random_state=0)
    # The estimator's kernels score rows under the truth several times faster than NumPy.
    truth = GaussianMixture(n_components)
    truth.weights_, truth.means_ = mixture.weights, mixture.means
    truth.covariances_, truth.n_features_in_ = mixture.covariances, 2
    log_likelihood = float(truth.score_samples(rows).mean())
    content = read_typed({"x": rows[:, 0], "y": rows[:, 1]}) if as_table else rows
    return FitRows(content, "the embedded example", truth=log_likelihood)


def _read(
    files: DataFiles, model: str, takes_gaps: bool, stack: contextlib.ExitStack, quiet: bool
) -> FitRows:
    """Read numbers for models of numbers; a table if auto finds anything else."""
    id = files.id_column and files.id_column[1]
    rows = None if model == "table" else _read_numbers(files, model, takes_gaps, stack, quiet)
    if rows is None:
        table = files.read_table()
        names = [table.names[number] for number in files.chosen_numbers()]
        rows = FitRows(table.typed(names), files.name, names)
    rows.id = id
    if id is not None and not rows.in_chunks:
        rows.ids = list(files.read_ids())
    return rows


def _read_numbers(
    files: DataFiles, model: str, takes_gaps: bool, stack: contextlib.ExitStack, quiet: bool
) -> FitRows | None:
    """Rows of numbers; None if there is something else and the model may be chosen."""
    columns = files.chosen()
    if model == "auto" and _begins_with_words(files, columns):
        return None
    other = ", or use --model table, which takes text, dates and missing values"
    if model in DEEP:
        other += " (`pickmix impute` with it fills in missing values)"
    try:
        if not files.is_small:
            if not quiet:
                click.echo(f"Opening {files.name} ...", err=True)
            source = stack.enter_context(files.open_rows(columns))
            return FitRows(source, files.name, source.names)
        rows, names = files.read_rows(columns)
    except InputError as error:
        if error.expected != "numbers":
            raise
        if model == "auto":
            return None
        raise error.replaced(remedy=error.remedy + other) from error
    gap = first_gap(rows, names)
    if model == "auto" and (gap is not None or _has_whole_numbers(rows)):
        return None
    if gap is not None and not takes_gaps:
        plain = ", use --transforms none" if model == "sptn" else ""
        raise ValueError(
            f"{files.name}: {gap}; --model {model} needs complete rows: leave the column out with "
            f"--exclude{plain}{other}"
        )
    return FitRows(rows, files.name, names)


def _has_whole_numbers(rows: np.ndarray) -> bool:
    """Whether a column of rows holds whole numbers only, which draws should hold, too."""
    whole = (rows == np.round(rows)).all(axis=0)
    return bool(len(rows) > 1 and whole.any())


def _begins_with_words(files: DataFiles, columns: list[Any] | None) -> bool:
    """Whether the first rows of a text hold words in the chosen columns: a quick look."""
    # A file that does not exist is refused when it is read.
    path = files.path if files.is_small else find_files(str(files.path))[0]
    if table_suffix(path) not in TEXT or not path.is_file() or not path.stat().st_size:
        return False
    layout = text_layout(path, files.decimal)
    if columns is None:
        return bool(layout.words)
    chosen = column_numbers(path, columns, layout.names, layout.n_columns)
    return not layout.words.isdisjoint(chosen)


# Before and after the fit


def _parameters(model: str, values: dict[str, Any]) -> dict[str, Any]:
    """Parameters of the estimator; what auto will choose is not known yet, but must take them."""
    kind = "gaussian" if model == "auto" else model
    parameters = given_parameters(click.get_current_context(), kind, values)
    parameters.setdefault("random_state", values["random_state"])
    if "schema" in parameters:
        parameters["schema"] = kinds_of(parameters["schema"])
    return parameters


def _prepare(
    model: str, parameters: dict[str, Any], rows: FitRows, is_example: bool, quiet: bool
) -> Any:
    """Make the estimator, and say what it will fit."""
    n_rows, n_columns = rows.shape
    if model in CLOSED_FORM:
        parameters.setdefault("n_components", EXAMPLE_COMPONENTS if is_example else "auto")
    elif is_example:
        # A short fit, unless the command line says otherwise.
        parameters.setdefault("max_steps", EXAMPLE_STEPS)
        n_layers = parameters.get("n_layers", KINDS[model].defaults["n_layers"])
        below = (EXAMPLE_CHILDREN_BELOW,) * (n_layers - 1)
        if model == "flow":
            parameters.setdefault("n_components", EXAMPLE_FLOWS)
        else:
            parameters.setdefault("n_children", (EXAMPLE_FLOWS, *below))
    estimator: Any = KINDS[model].estimator(**parameters, verbose=0 if quiet else 1)
    if isinstance(rows.content, TypedTable):
        names = list(rows.content.columns)
        if estimator.schema:
            column_numbers(rows.name, list(estimator.schema), names, len(names), "--kind")
        with option_wording(rows.name), warnings.catch_warnings():
            # The fit warns of the same.
            warnings.simplefilter("ignore")
            schema = estimator._infer_schema(rows.content, ())
        rows.kinds = schema.kinds
        if not quiet:
            click.echo(str(schema))
    if not quiet:
        click.echo(
            f"Fitting {name_parts(estimator)} to {n_rows:,} rows of {n_columns:,} columns by "
            f"{estimator.algorithm}: {rows.name}"
        )
        if model in DEEP:
            click.echo("Compiling (some seconds the first time, then cached) ...", err=True)
    return estimator


def _with_names(estimator: Any, rows: FitRows) -> Any:
    """Name the columns of a copy as scikit-learn does; score and assign find them by it.

    The model itself has none then: it will be asked about plain arrays.
    """
    named = estimator
    if not rows.is_table:
        vars(estimator).pop("feature_names_in_", None)
        named = copy.copy(estimator)
        if rows.names is not None:
            named.feature_names_in_ = np.array(rows.names, dtype=object)
    if rows.id is not None:
        named.id_column_ = rows.id
    return named


def _draw(model: Any, rows: FitRows, sample: Any, log_likelihood: float, folder: Path) -> int:
    """Draw fit.png; return the number of rows in it. There are no pictures of tables."""
    if rows.is_table:
        return 0
    # A row with a missing value cannot be drawn.
    complete = sample[~np.isnan(sample).any(axis=1)]
    if len(complete):
        # Here and not above: matplotlib is an extra.
        from pickmix.plotting import plot_fit

        references = None
        if rows.truth is not None:
            # The curve comes from a sample of rows; what is compared must come from the same rows.
            references = {
                "true mixture, on all rows": rows.truth,
                "this fit, on all rows": log_likelihood,
            }
        plot_fit(model, complete, folder / "fit.png", references=references)
    return len(complete)


def _leave_report(model: Any, rows: FitRows, path: Path) -> bool:
    """Leave a report beside the model. Whatever may be wrong with it, the model is there."""
    # Here and not above: fits without a report need none of this.
    from pickmix.inspection.report import affordable_rows, make_page, subject_of
    from pickmix.inspection.view import View

    looked_at, fitted, ids, numbers = rows.content, None, rows.ids, rows.held_out_numbers
    if rows.held_out is not None and numbers is not None:
        looked_at, fitted = rows.held_out, rows.content
        ids = ids and [ids[number] for number in numbers.tolist()]
    try:
        view = View(model, None if rows.is_table else rows.names)
        named = ids, rows.id or "id"
        most = affordable_rows(model)
        subject = subject_of(view, looked_at, most, *named, numbers=numbers, fitted=fitted)
        make_page(subject, path, title=None, held_out=fitted is not None, n_unusual=10)
    except (ValueError, TypeError, OSError, ArithmeticError, MemoryError) as error:
        click.echo(f"note: no report.html: {first_line(error)}", err=True)
        return False
    return True


@click.command("compile")
@click.option(
    "--only",
    type=click.Choice(sorted(compilation.KINDS)),
    multiple=True,
    help="Fits to compile for. All by default; `partition` is the default fit.",
)
@clear_errors
def compile_all(only: tuple[str, ...]) -> None:
    """Compile the kernels before the first fit, and keep them on disk.

    Fits of small tables run in NumPy and compile nothing. The first fit of a large table compiles
    kernels, which takes half a minute, once per machine. This command does it in advance: in the
    image of a container, or in a cached step of CI. NUMBA_CACHE_DIR chooses where kernels are kept.

    \b
    Examples:
      pickmix compile
      pickmix compile --only partition
    """
    started = time.perf_counter()
    compilation.compile_all(only or tuple(compilation.KINDS))
    seconds = time.perf_counter() - started
    click.echo(f"Compiled in {seconds:.1f} s. Kept in {compilation.cache_folder()}.")
