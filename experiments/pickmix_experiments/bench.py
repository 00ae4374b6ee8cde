"""`pickmix bench`: other libraries and algorithms, measured in the same way."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from pickmix.cli.console import INTERRUPTED_EXIT_CODE, clear_errors, show_table
from pickmix_experiments.anomalies import anomalies
from pickmix_experiments.datasets import COMPONENTS, SETTINGS, TABLES, choose, find
from pickmix_experiments.evidence import every
from pickmix_experiments.methods import METHODS
from pickmix_experiments.runner import Worker
from pickmix_experiments.runs import BenchRun
from pickmix_experiments.store import NOT_INSTALLED, Row, Store, make_row

QUICK_SETTINGS = ("small",)
QUICK_RIVALS = ("sklearn-kmeans-one-thread", "pickmix", "em", "tsaem")
# The matrices of real tables are small: scikit-learn is faster with one thread in BLAS.
TABLE_RIVALS = ("sklearn-kmeans-one-thread", "pickmix", "em")
# Small ones that come with scikit-learn.
QUICK_TABLES = ("sklearn-iris", "sklearn-wine", "sklearn-diabetes")

Command = Callable[..., Any]


@click.group()
def bench() -> None:
    """Compare pickmix with other libraries and algorithms on this machine.

    They are called rivals here. Every rival gets the same rows and the same number of components,
    and is measured in the same way: the log-likelihood of rows that it has not seen, wall time
    including its start, component evaluations, and peak memory in a process of its own.

    \b
    Benches:
      gaussian  mixtures of Gaussians with full covariances, mostly on drawn rows
      tables    the same mixtures on real tables
      anomalies the detector of unusual rows, beside published ones
      all       these and all other questions of the page of benchmarks

    \b
    Examples:
      pickmix bench gaussian --quick             about a minute
      pickmix bench gaussian --list              settings and rivals
      pickmix bench gaussian --setting mixsim --rival em --rival sklearn-kmeans
      pickmix bench tables --quick               about a minute
      pickmix bench tables --table skin --components 32 --out results
    """


bench.add_command(anomalies)
bench.add_command(every, "all")


def _several(name: str, to: str, names: Collection[str], about: str) -> Callable[..., Any]:
    kind = click.Choice(list(names))
    return click.option(name, to, multiple=True, type=kind, metavar="NAME", help=about)


def _shared_options(*, rivals: str, quick: str, listed: str) -> Callable[[Command], Command]:
    """Add the options of all benches; the texts say what differs."""
    about = f"Library or algorithm that fits; repeat for more. [{rivals}]"
    seeds = "Fits of each rival to the same rows, with seeds 0, 1, ..."
    limit = "A fit that takes longer is ended, and counts as timed out."
    out = "Folder for the results. Runs that it already holds are not repeated."
    folder: Any = click.Path(file_okay=False, path_type=Path)
    positive = click.FloatRange(min=0.0, min_open=True)
    shown: dict[str, Any] = {"show_default": True}
    options = [
        _several("--rival", "rivals", METHODS, about),
        click.option("--seeds", type=click.IntRange(min=1), default=3, help=seeds, **shown),
        click.option(
            "--max-seconds", type=positive, default=3600.0, metavar="S", help=limit, **shown
        ),
        click.option(
            "--out", type=folder, default=Path("pickmix-bench"), metavar="DIR", help=out, **shown
        ),
        click.option("--quick", is_flag=True, help=quick),
        click.option(
            "--draw-only", is_flag=True, help="Draw the results in the folder; fit nothing."
        ),
        click.option("--list", "show_list", is_flag=True, help=f"List {listed} and rivals."),
    ]

    def add(command: Command) -> Command:
        return functools.reduce(lambda inner, option: option(inner), reversed(options), command)

    return add


@bench.command()
@_several("--setting", "settings", SETTINGS, "Data; repeat for more. [all]")
@_shared_options(rivals="all", quick="One small setting, few rivals, one seed.", listed="settings")
@clear_errors
def gaussian(settings: tuple[str, ...], show_list: bool, **options: Any) -> None:
    """Compare ways to fit a mixture of Gaussians with full covariances.

    Every setting, rival and seed is a run in a process of its own, one after the other. The folder
    gets gaussian.jsonl, a line of JSON per run, and from it gaussian.md (medians over seeds) and
    gaussian-SETTING.png. All settings with all rivals take hours. After Ctrl-C, the same command
    resumes where it stopped and repeats nothing. A rival whose library is missing is listed as not
    installed: pip install 'pickmix[bench]'.

    \b
    Examples:
      pickmix bench gaussian --quick
      pickmix bench gaussian --setting k300-separated --max-seconds 600 --out results
      pickmix bench gaussian --draw-only --out results
    """
    if show_list:
        _list("Settings", SETTINGS)
        names = ", ".join(name for name, setting in SETTINGS.items() if not setting.dense)
        dense = ", ".join(name for name, method in METHODS.items() if method.dense)
        click.echo(f"Too large for rivals that evaluate every component ({dense}): {names}")
        return
    quick = options["quick"]
    chosen = _ordered(SETTINGS, settings or (QUICK_SETTINGS if quick else SETTINGS))
    _carry_out("gaussian", lambda: chosen, QUICK_RIVALS if quick else METHODS, **options)


@bench.command()
@_several("--table", "tables", TABLES, "Table; repeat for more. [all]")
@click.option(
    "--components",
    multiple=True,
    type=click.IntRange(min=1),
    metavar="K",
    help=f"Number of components; repeat for more. [{', '.join(map(str, COMPONENTS))}]",
)
@_shared_options(
    rivals=", ".join(TABLE_RIVALS),
    quick="Three small tables of scikit-learn's, K = 8, one seed.",
    listed="tables",
)
@clear_errors
def tables(
    tables: tuple[str, ...], components: tuple[int, ...], show_list: bool, **options: Any
) -> None:
    """Compare ways to fit a mixture of Gaussians to real tables.

    The tables are files tables/NAME.npz in the folder that the environment variable PICKMIX_DATA
    names, the UCI sets of the paper, and sets that come with scikit-learn. A table that cannot be
    read is listed as missing, and the others are measured. A K is left out where a table has fewer
    than 4 K rows to fit. A seed is another start on the same rows.

    The folder gets tables.jsonl, a line of JSON per run, and from it tables.md (a summary, and
    medians over seeds). All tables take hours. After Ctrl-C, the same command resumes where it
    stopped and repeats nothing.

    \b
    Examples:
      pickmix bench tables --quick
      pickmix bench tables --table skin --table wine --components 8 --out results
      pickmix bench tables --seeds 1 --max-seconds 600 --out results
      pickmix bench tables --draw-only --out results
    """
    if show_list:
        _list("Tables", TABLES)
        return
    quick, missing = options["quick"], {}
    chosen = _ordered(TABLES, tables or (QUICK_TABLES if quick else TABLES))

    def settings() -> list[str]:
        choice = choose(chosen, components or (COMPONENTS[:1] if quick else COMPONENTS))
        missing.update(choice.missing)
        for name, reason in choice.missing.items():
            click.echo(f"missing: {name}: {reason}")
        if choice.too_few_rows:
            left_out = "; ".join(
                f"{name} K = {', '.join(map(str, too_many))}"
                for name, too_many in choice.too_few_rows.items()
            )
            click.echo(f"left out, with fewer than 4 K rows to fit: {left_out}")
        if not choice.settings:
            raise ValueError(
                "--table: expected a table that is there and has 4 K rows to fit, got none"
            )
        return choice.settings

    _carry_out("tables", settings, TABLE_RIVALS, missing=missing, **options)


def _ordered(known: Iterable[str], names: Collection[str]) -> list[str]:
    """Return names in the order of those that are known, each once."""
    return [name for name in known if name in names]


def _list(title: str, known: Mapping[str, Any]) -> None:
    click.echo(f"{title}:")
    show_table((value.name, value.summary) for value in known.values())
    click.echo("Rivals:")
    missing = {name: "" if m.installed else " (not installed)" for name, m in METHODS.items()}
    show_table((name, m.summary + missing[name]) for name, m in METHODS.items())


def _carry_out(
    name: str,
    settings: Callable[[], list[str]],
    default_rivals: Collection[str],
    *,
    rivals: tuple[str, ...],
    seeds: int,
    max_seconds: float,
    out: Path,
    quick: bool,
    draw_only: bool,
    missing: Mapping[str, str] | None = None,
) -> None:
    """Make the runs that the file lacks, and write pages of all results, even after Ctrl-C."""
    path = out / f"{name}.jsonl"
    if draw_only:
        store = Store(path)
        if not store.rows:
            raise FileNotFoundError(f"--draw-only: expected results in {path}, found nothing there")
        _write_page(store, missing)
        return
    if os.name != "posix":
        raise OSError(f"fits are timed by a POSIX timer, and there is none on {os.name!r}")
    source = click.get_current_context().get_parameter_source("seeds")
    if quick and source == ParameterSource.DEFAULT:
        seeds = 1
    # Seeds outside methods: a machine that gets slower on the way slows all of them equally.
    runs = [
        BenchRun(method, 0, seed, setting=setting)
        for setting in settings()
        for seed in range(seeds)
        for method in _ordered(METHODS, rivals or default_rivals)
        if find(setting)[0].dense or not METHODS[method].dense
    ]
    if not runs:
        raise ValueError(
            "--rival: the settings are too large for rivals that evaluate every component"
        )
    out.mkdir(parents=True, exist_ok=True)
    if not os.access(out, os.W_OK):
        raise PermissionError(f"--out: cannot write to {out}")
    store = Store(path)
    click.echo(f"{len(runs)} runs, results in {out}")
    interrupted = False
    try:
        for number, run in enumerate(runs, start=1):
            known = store.has(run)
            if not known:
                store.add(make(run, max_seconds))
            row = store.rows[run.key]
            line = f"[{number}/{len(runs)}] {run.setting}, {run.algorithm}, seed {run.seed}: "
            line += row["outcome"]
            if "test" in row:
                line += f", {row['test']:.4f} held out in {row['trace']['seconds'][-1]:.2f} s"
            click.echo(line + (" (from before)" if known else ""))
    except KeyboardInterrupt:
        interrupted = True
    if store.rows:
        _write_page(store, missing)
    if interrupted:
        click.echo("Interrupted; the same command resumes from here.", err=True)
        click.get_current_context().exit(INTERRUPTED_EXIT_CODE)


def make(run: BenchRun, max_seconds: float) -> Row:
    """Make a run in a process of its own; one that fails is a result like any other."""
    method = METHODS[run.algorithm]
    if not method.installed:
        return make_row(run, [], {"outcome": f"{NOT_INSTALLED}: {method.needs}"})
    with Worker() as worker:
        return worker.perform(run, max_seconds)


def _write_page(store: Store, missing: Mapping[str, str] | None) -> None:
    # Here and not above: the help needs no pictures.
    from pickmix_experiments import bench_pages

    cases = bench_pages.Cases(store.rows)
    is_gaussian, page = store.path.stem == "gaussian", store.path.with_suffix(".md")
    title = "Gaussian mixtures" if is_gaussian else "Real tables"
    drawn = bench_pages.draw_settings(cases, store.path.parent) if is_gaussian else []
    page.write_text(bench_pages.page(title, cases, missing, drawn), encoding="utf-8")
    n = len(drawn)
    click.echo(f"wrote {page}" + (f" and {n} picture{'' if n == 1 else 's'}" if n else ""))
