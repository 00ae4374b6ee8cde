"""`pickmix bench all`: one bench for all questions, each a file of `questions/`.

A question lists its cells (settings with a seed), and measures one of them at a time: a row for
each method. Rows go to OUT/NAME.jsonl with versions, machine, load, commit, seconds and memory; a
cell whose rows are in the file is not measured again.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
import pandas as pd

from pickmix.cli.console import INTERRUPTED_EXIT_CODE, clear_errors, show_table
from pickmix_experiments import runner
from pickmix_experiments.tables import pipes

Line = dict[str, Any]
Result = TypeVar("Result")
_PACKAGES = ("numpy", "scipy", "scikit-learn", "numba")
# What questions measure, in the order in which they are drawn.
QUESTIONS = {
    "tables": "density of real tables: default, exact EM, scikit-learn",
    "uci": "density of the paper's UCI sets, K chosen on validation rows",
    "small-tables": "seconds and density of tables of a few hundred rows",
    "automatic-number": "the number of components that 'auto' chooses",
    "path": "how many components, from one fit with too many",
    "gaussian": "generated mixtures of 80 to 10,000 components, other libraries",
    "parts": "what parts of a default fit bring",
    "proposals": "ways to select components, at equal evaluations",
    "steps": "seconds of a step of the paper's algorithm",
    "visits": "seconds of a visit against K",
    "million": "a million components",
    "trees": "merge trees of up to 100,000 components",
    "files": "rows on disk, more than memory holds",
    "cluster": "worker processes of a Dask cluster, against threads",
    "streams": "batches by partial_fit, changes, approximate queries",
    "first-fit": "the first fit, with compilation",
    "products": "compiled products in registers, against plain loops",
    "uniform-gap": "why uniform proposals end below EM in the paper's figure 2",
    "gaps": "rows with missing cells, against filling them first",
    "noise": "rows with known noise, against extreme deconvolution",
    "anomalies": "unusual rows of ADBench, beside 26 published detectors",
    "thresholds": "how many rows the detector flags",
    "imputation": "missing cells of tables, beside published methods",
    "regression": "a target given all other columns, against boosting and published values",
    "classes": "classes from few labels, against boosting and logistic regression",
    "drawn-tables": "synthetic tables, beside published methods",
    "synthetic-rows": "synthetic rows, against a Gaussian copula",
    "binary-tables": "binary tables, beside published circuits",
    "conditional-density": "targets given other columns, by a mixture of tables as they come",
    "mixed-table": "seconds and memory of a large mixed table",
    "low-rank": "wide rows: low-rank covariances",
    "deep-uci": "flows and networks on the paper's UCI sets, under a common noise floor",
    "deep": "flows against Gaussians at equal seconds",
    "deep-speed": "seconds of a step of deep mixtures",
}


@dataclass(frozen=True)
class Question:
    """What is measured, on which settings, and what the printed table shows."""

    #: Settings of measurements, all of them or a few small ones (`quick`). Values are plain.
    cells: Callable[[bool], Iterable[Line]]
    #: Takes a cell as keywords; gives a row for each method.
    measure: Callable[..., Iterable[Line]]
    #: Columns of the printed table: settings, and values.
    by: str
    values: str
    #: Files in the folder that PICKMIX_DATA names.
    needs: str = ""

    @property
    def missing(self) -> str:
        """Why the question cannot be asked here; nothing if it can."""
        folder, needs = os.environ.get("PICKMIX_DATA"), self.needs.split()
        if needs and not folder:
            return f"PICKMIX_DATA is not set; it must name a folder with {', '.join(needs)}"
        gone = [name for name in needs if not Path(folder or "", name).exists()]
        return f"not in the folder that PICKMIX_DATA names: {', '.join(gone)}" if gone else ""


def load(name: str) -> Question:
    """Import a question: a module of its name, or a line of `questions.scripts`."""
    place = "pickmix_experiments.questions"
    scripts = importlib.import_module(f"{place}.scripts").SCRIPTS
    if name in scripts:
        found = scripts[name]
    else:
        found = importlib.import_module(f"{place}.{name.replace('-', '_')}").QUESTION
    assert isinstance(found, Question)
    return found


def timed(call: Callable[..., Result], *arguments: Any) -> tuple[Result, Line]:
    """Return what a call returns, its wall seconds and those of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    result = call(*arguments)
    seconds = {"seconds": time.perf_counter() - wall}
    return result, seconds | {"cpu_seconds": time.process_time() - processor}


def data_folder() -> Path:
    """Return the folder that PICKMIX_DATA names; questions say what they need in it."""
    if not (folder := os.environ.get("PICKMIX_DATA")):
        raise FileNotFoundError("PICKMIX_DATA must name the folder with the data")
    return Path(folder)


def facts() -> Line:
    """Return versions, machine, load and commit."""
    place = Path(__file__).parent
    commit = ""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        command = ["git", "-C", str(place), "describe", "--always", "--dirty"]
        commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return {
        "versions": runner.versions(_PACKAGES),
        "commit": commit,
        "cpu": runner.cpu_name(),
        "cores": runner.cpu_count(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan"),
    }


def begin() -> None:
    """Begin a process: Ctrl-C is for the parent, and kernels are there before a clock starts."""
    from pickmix import GaussianMixture

    if hasattr(os, "setsid"):
        os.setsid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        GaussianMixture(300, max_iter=1).fit(np.random.default_rng(0).normal(size=(20_000, 4)))


def end() -> None:
    """End the processes, and programs that they run."""
    for child in multiprocessing.active_children():
        if child.pid is not None:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
        child.kill()


def perform(name: str, cell: Line, out: Path) -> list[Line]:
    """Measure a cell in this process; an error is a row with an outcome."""
    question, known = load(name), facts()
    os.environ["PICKMIX_BENCH_OUT"] = str(out)
    try:
        with warnings.catch_warnings():
            # Of fits that have not converged, and of rare levels.
            warnings.simplefilter("ignore")
            lines, seconds = timed(list, question.measure(**cell))
    except Exception as error:
        text = (str(error).strip().splitlines() or [""])[0]
        lines, seconds = [{"outcome": f"failed: {type(error).__name__}: {text}"}], {}
    known |= {f"cell_{key}": value for key, value in seconds.items()}
    known |= {"peak_megabytes": runner.peak_bytes() / 1e6}
    known |= {"finished_at": datetime.now(UTC).isoformat(timespec="seconds")}
    return [{"question": name} | cell | {"outcome": "done"} | line | known for line in lines]


def read(path: Path) -> list[Line]:
    """Read rows; what a killed process left of a line is no row."""
    lines = []
    for text in path.read_text("utf-8").splitlines() if path.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            lines.append(json.loads(text))
    return lines


def process(n: int = 1, most: int | None = None) -> ProcessPoolExecutor:
    """Start processes, new ones after so many cells."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(n, context, begin, max_tasks_per_child=most)


def ask(name: str, out: Path, quick: bool = False, shared: Executor | None = None) -> list[Line]:
    """Measure the cells that the file of a question lacks; return the rows of all its cells.

    Each cell is measured in a process of its own, so that memory of one does not count for the
    next; or in one that is shared.
    """
    question, path = load(name), out / f"{name}.jsonl"
    cells, lines = list(question.cells(quick)), read(path)

    def rows_of(cell: Line) -> list[Line]:
        same = (line for line in lines if all(line.get(key) == cell[key] for key in cell))
        return [line for line in same if line["outcome"] == "done"]

    lacking = [cell for cell in cells if not rows_of(cell)]
    if lacking:
        out.mkdir(parents=True, exist_ok=True)
        pool = shared or process(most=1)
        try:
            for cell in lacking:
                made = pool.submit(perform, name, cell, out).result()
                with path.open("a", encoding="utf-8") as file:
                    # One write, so that a killed process leaves all rows of a cell or none. The
                    # first line break ends what an earlier one may have left.
                    text = "\n".join(json.dumps(line, default=float) for line in made)
                    file.write(f"\n{text}\n")
                lines += made
                for line in made[:1]:
                    if line["outcome"] != "done":
                        click.echo(f"{name} {cell}: {line['outcome']}", err=True)
        finally:
            if pool is not shared:
                pool.shutdown(cancel_futures=True)
    return [line for cell in cells for line in rows_of(cell)]


def table(name: str, lines: list[Line]) -> str:
    """Return the table of a question: means over seeds, or what a script printed."""
    question = load(name)
    if not lines:
        return "no rows: it failed, or is measured at full size only"
    if "output" in lines[0]:
        return "\n\n".join(line["output"] for line in lines)
    frame = pd.DataFrame(lines)
    values = [key for key in question.values.split() if key in frame]
    by = [key for key in question.by.split() if key in frame]
    groups = frame.groupby(by, sort=False, dropna=False)
    found = groups[values].mean().reset_index()
    cells = [[text_of(value) for value in row] for row in found.itertuples(index=False)]
    return pipes(list(found.columns), cells, range(found.shape[1] - len(values)))


def text_of(value: Any) -> str:
    if not isinstance(value, float | np.floating):
        return str(value)
    number = float(value)
    return "-" if np.isnan(number) else f"{number:.4g}" if abs(number) < 1e4 else f"{number:,.0f}"


@click.command()
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(QUESTIONS)),
    metavar="NAME",
    help="Question; repeat for more. [all]",
)
@click.option("--quick", is_flag=True, help="Few and small settings: minutes, not days.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("pickmix-bench"),
    metavar="DIR",
    show_default=True,
    help="Folder for the results. Settings that it already holds are not measured again.",
)
@click.option("--list", "show_list", is_flag=True, help="List questions, and what is missing.")
@clear_errors
def every(only: tuple[str, ...], quick: bool, out: Path, show_list: bool) -> None:
    """Measure what the page of benchmarks shows, one question after the other.

    Each question has a file DIR/NAME.jsonl, a line of JSON for each setting, seed and method, with
    versions, machine, load and commit. Questions whose data are missing are left out, and named.
    After Ctrl-C, the same command resumes where it stopped.

    \b
    Examples:
      pickmix bench all --list
      pickmix bench all --quick
      pickmix bench all --only gaps --only noise --out results
    """
    names = [name for name in QUESTIONS if not only or name in only]
    missing = {name: load(name).missing for name in names}
    if show_list:
        show_table((name, QUESTIONS[name] + (missing[name] and " (left out)")) for name in names)
    asked = [name for name in names if not missing[name] and not show_list]
    # Small runs share processes, two at a time: their seconds mean little. Others are alone.
    # Threads of OpenMP in both would wait for each other, a hundred times as long as they work.
    if quick:
        os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    shared = process(2) if quick and asked else None
    with ThreadPoolExecutor(2 if quick else 1) as threads:
        futures = {name: threads.submit(ask, name, out, quick, shared) for name in asked}
        for name, future in futures.items():
            try:
                lines = future.result()
            except BrokenProcessPool:
                lines = []
                click.echo(f"{name}: the process ended (out of memory?)", err=True)
            except KeyboardInterrupt:
                threads.shutdown(wait=False, cancel_futures=True)
                end()
                click.echo("Interrupted; the same command resumes from here.", err=True)
                click.get_current_context().exit(INTERRUPTED_EXIT_CODE)
            click.echo(f"\n## {name}: {QUESTIONS[name]}\n\n{table(name, lines)}\n")
    if shared:
        shared.shutdown()
    for name in names:
        if missing[name]:
            click.echo(f"left out: {name}: {missing[name]}")
