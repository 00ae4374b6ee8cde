"""What `pickmix fit` leaves and says: the place of its results, and the summary of a fit."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from pickmix.cli.data import STANDARD
from pickmix.estimators.flow_mixture import FlowMixture
from pickmix.estimators.gaussian_mixture import GaussianMixture
from pickmix.estimators.persistence import ARRAYS_FILE, DESCRIPTION_FILE, holds_model, save
from pickmix.estimators.table_mixture import TableMixture
from pickmix.fitting.loop import TRACE_DTYPE
from pickmix.inputs.files import write_table

# Names that a message lists.
_SHOWN_NAMES = 3
# Scoring every row costs rows x components; beyond this some rows must do.
MOST_EVALUATIONS = 10**9
# A flow or a tree costs about so many Gaussians.
_COST_OF_DEPTH = 20


@dataclass(frozen=True)
class FitOutput:
    """A place for the results of a fit: a folder, or one .npz file for the model alone."""

    path: Path
    #: Whether an earlier model was there before the fit.
    held_model: bool

    @property
    def is_file(self) -> bool:
        return _is_file_name(self.path)

    def save(self, model: Any) -> list[str]:
        """Save a fitted model, and its trace if there is a folder; return the names of files."""
        save(model, self.path)
        if self.is_file:
            return [self.path.name]
        for name in ("fit.png", "report.html"):
            # Those that are there show the model before.
            (self.path / name).unlink(missing_ok=True)
        trace = {name: model.trace_[name] for name in TRACE_DTYPE.names or ()}
        write_table(self.path / "trace.csv", trace)
        return [DESCRIPTION_FILE, ARRAYS_FILE, "trace.csv"]

    def beside(self) -> FitOutput:
        """A free place beside this one, for an interrupted model."""
        # From the absolute path, as "." has no name.
        path = self.path.absolute() if self.path.name in ("", "..") else self.path
        suffix = path.suffix if self.is_file else ""
        ends = itertools.chain(["-interrupted"], map("-interrupted-{}".format, itertools.count(2)))
        places = (path.with_name(f"{path.name.removesuffix(suffix)}{end}{suffix}") for end in ends)
        return FitOutput(next(place for place in places if not place.exists()), held_model=False)

    def tell(self, written: list[str], is_early: bool) -> None:
        holds = ", ".join(written)
        if self.is_file:
            holds = "the model alone, without trace.csv, fit.png and report.html"
        click.echo(f"The {'interrupted ' if is_early else ''}model is in {self.path} ({holds}).")
        if "report.html" in written:
            click.echo(f"Open {self.path / 'report.html'} in a browser to see what is in it.")

    def explain_place_beside(self, place: FitOutput) -> None:
        flag = "" if self.is_file else "-r "
        click.echo(
            f"note: {self.path} holds an earlier model, which was kept. The interrupted model is "
            f"in {place.path}; to use it instead: rm {flag}{self.path} && mv "
            f"{place.path} {self.path}. With --keep, interrupted fits replace the earlier model.",
            err=True,
        )


def _is_file_name(path: Path) -> bool:
    return path.suffix == ".npz"


def check_out(out: Path, others: Iterable[Path | str | None] = ()) -> FitOutput:
    """Refuse a place that cannot be written to, or that holds something else, before the fit.

    It may hold `others`: folders of the same command, for checkpoints and converted rows.
    """
    if out == STANDARD:
        raise ValueError("--out must be a folder or a file name ending in .npz, got -")
    if out.exists() and _is_file_name(out) != out.is_file():
        expected = "a file" if _is_file_name(out) else "a folder or a name ending in .npz"
        kind = "a folder" if out.is_dir() else "a file"
        raise ValueError(f"--out {out}: expected {expected}, found {kind}")
    held_model = out.exists() and holds_model(out)
    if out.exists() and not held_model:
        _refuse_foreign(out, [Path(folder).absolute() for folder in others if folder is not None])
    _try_writing(out)
    return FitOutput(out, held_model)


def _refuse_foreign(out: Path, others: list[Path]) -> None:
    """Refuse files that no fit has made; hidden ones may be there."""
    if out.is_file():
        raise ValueError(
            f"--out {out}: found a file that is not a saved model; it is not replaced. Choose "
            "another name, or remove the file"
        )
    names = sorted(
        entry.name
        for entry in out.absolute().iterdir()
        if not entry.name.startswith(".")
        and not any(entry in (folder, *folder.parents) for folder in others)
    )
    if names and out.absolute() not in others:
        more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
        raise ValueError(
            f"--out {out}: expected a new folder, an empty one or one with an earlier model, found "
            f"{', '.join(names[:_SHOWN_NAMES])}{more} in it. Choose another name, such as "
            f"{out / 'model'}"
        )


def _try_writing(out: Path) -> None:
    folder = out.absolute().parent if _is_file_name(out) else out.absolute()
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    if not existing.is_dir():
        raise NotADirectoryError(f"--out {out}: expected a folder, but {existing} is a file")
    try:
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".pickmix-"):
            pass
    except OSError as error:
        raise PermissionError(
            f"--out {out}: cannot write to {existing} ({error.strerror})"
        ) from error


def name_parts(model: Any) -> str:
    if isinstance(model, GaussianMixture | TableMixture):
        if isinstance(model.n_components, str):
            return f"{model.covariance_type} components, their number by left-out rows,"
        return f"{model.n_components:,} {model.covariance_type} components"
    layers = f"{model.n_layers:,} layer{'s' * (model.n_layers != 1)}"
    if isinstance(model, FlowMixture):
        # How many there will be, "auto" chooses later.
        number = "" if isinstance(model.n_components, str) else f"{model.n_components:,} "
        return f"{number}flows of {layers}"
    parts = f"{model.n_partitions:,} part{'s' * (model.n_partitions != 1)} per product"
    if isinstance(model.n_children, str):
        return f"a network of {layers}, {parts}"
    numbers = np.atleast_1d(model.n_children).tolist()
    children = f"{' and '.join(map('{:,}'.format, numbers))} child{'ren' * (numbers != [1])}"
    return f"a network of {layers}, {children} per sum and {parts}"


def measure(model: Any, rows: Any, n_all: int) -> tuple[float, str]:
    """Log-likelihood per row, on all rows if there is time, and the name of the rows used.

    `rows` are those of all `n_all` rows that are in memory.
    """
    n_rows = len(rows)
    if isinstance(model, GaussianMixture | TableMixture):
        per_row = model.n_components_
    else:
        n_parts = model.n_components_ if isinstance(model, FlowMixture) else model.n_paths_
        per_row = _COST_OF_DEPTH * int(n_parts)
    affordable = max(1000, MOST_EVALUATIONS // per_row)
    if isinstance(model, GaussianMixture) and n_rows * per_row > MOST_EVALUATIONS:
        return model.lower_bound_, "a sample of rows"
    if n_rows <= affordable or isinstance(model, GaussianMixture):
        return model.score(rows), "all rows" if n_rows == n_all else f"{n_rows:,} of the rows"
    # The fit's last measurement is not of the parameters that it kept.
    chosen = np.sort(np.random.default_rng(0).choice(n_rows, affordable, replace=False))
    return model.score(rows.take(chosen, axis=0)), f"{affordable:,} of the rows"


def summary(
    model: Any,
    shape: tuple[int, int],
    log_likelihood: float,
    measured_on: str,
    truth: float | None,
    in_chunks: bool = False,
) -> list[tuple[str, str]]:
    """Names and values of the summary of a fit to rows of a shape (N, D)."""
    n_rows, n_columns = shape
    deep = not isinstance(model, GaussianMixture | TableMixture)
    # A slice, as a fit interrupted twice has no record at all; its sums are then zero.
    last = model.trace_[-1:]
    passes, acceptance = float(last["epoch"].sum()), float(last["acceptance"].sum())
    evaluations = 0.0 if deep or not passes else model.n_component_evaluations_ / n_rows / passes
    lines = {
        "rows": f"{n_rows:,}",
        "columns": f"{n_columns:,}",
        **_parts(model, int(last["live_components"].sum())),
        "log-likelihood per row": f"{log_likelihood:.4f}  ({measured_on})",
        "the true mixture's": truth is not None and f"{truth:.4f}",
        "validation log-likelihood": deep and _number(model.best_validation_, 4),
        "that of the start": deep and _number(model.start_validation_, 4),
        # It is 1 where nothing can be refused, and says nothing there.
        "acceptance": acceptance != 1.0 and _number(acceptance, 3),
        "passes": f"{passes:.1f}",
        "steps": f"{model.n_steps_:,}",
        # In chunks, a pass may be one over a sample.
        "components per row and pass": not deep and not in_chunks and f"{evaluations:.1f}",
        "seconds of work": f"{float(last['seconds'].sum()):.2f}",
        "seconds of the start": deep and f"{model.start_seconds_:.2f}",
        "seconds of compilation": deep and f"{model.compile_seconds_:.2f}",
        "outcome": model.outcome_,
    }
    return [(name, value) for name, value in lines.items() if value]


def _parts(model: Any, n_live: int) -> dict[str, str]:
    if isinstance(model, GaussianMixture | TableMixture):
        return {"components": f"{model.n_components_:,}", "live components": f"{n_live:,}"}
    layers = f"{model.n_layers:,}"
    if isinstance(model, FlowMixture):
        components = f"{model.n_components_:,}"
        return {"components": components, "live components": f"{n_live:,}", "layers": layers}
    # Networks have more trees than floats can count.
    n_trees = model.n_trees_
    return {
        "children by layer": ", ".join(map("{:,}".format, model.n_children_)),
        "live children of the root": f"{n_live:,}",
        "partitions": f"{model.n_partitions:,}",
        "layers": layers,
        "trees": f"{n_trees:,}" if n_trees < 10**12 else f"about 10^{math.log10(n_trees):.0f}",
    }


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
