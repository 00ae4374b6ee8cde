"""`pickmix bench`: other libraries and algorithms, measured in the same way."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from pickmix.cli.console import INTERRUPTED_EXIT_CODE, clear_errors, show_table
from pickmix_experiments.baselines import BASELINES, Baseline
from pickmix_experiments.bench_data import COMPONENTS, SETTINGS, TABLES, Setting, choose
from pickmix_experiments.catalogue import Figure, Panel
from pickmix_experiments.runner import Worker
from pickmix_experiments.runs import BenchRun
from pickmix_experiments.store import NOT_INSTALLED, History, Store, make_history

QUICK_SETTINGS = ("small",)
QUICK_RIVALS = ("sklearn-kmeans-one-thread", "pickmix", "em", "tsaem")
# The matrices of real tables are small: scikit-learn is faster with one thread in BLAS.
TABLE_RIVALS = ("sklearn-kmeans-one-thread", "pickmix", "em")
# Small ones that come with scikit-learn.
QUICK_TABLES = ("sklearn-iris", "sklearn-wine", "sklearn-diabetes")

Command = Callable[..., Any]
Named = TypeVar("Named")


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

    \b
    Examples:
      pickmix bench gaussian --quick             about a minute
      pickmix bench gaussian --list              settings and rivals
      pickmix bench gaussian --setting mixsim --rival em --rival sklearn-kmeans
      pickmix bench tables --quick               about a minute
      pickmix bench tables --table skin --components 32 --out results
    """


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
        _several("--rival", "rivals", BASELINES, about),
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
def gaussian(
    settings: tuple[str, ...],
    rivals: tuple[str, ...],
    seeds: int,
    max_seconds: float,
    out: Path,
    quick: bool,
    draw_only: bool,
    show_list: bool,
) -> None:
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
        names = ", ".join(setting.name for setting in SETTINGS.values() if not setting.dense)
        dense = ", ".join(baseline.name for baseline in BASELINES.values() if baseline.dense)
        click.echo(f"Too large for rivals that evaluate every component ({dense}): {names}")
        return
    chosen = _named(SETTINGS, settings or (QUICK_SETTINGS if quick else SETTINGS))
    baselines = _named(BASELINES, rivals or (QUICK_RIVALS if quick else BASELINES))
    path = out / "gaussian.jsonl"
    if draw_only:
        write_gaussian(_earlier_store(path))
        return
    runs = _plan(chosen, baselines, _n_seeds(seeds, quick))
    if not runs:
        raise ValueError(
            "--rival: the settings are too large for rivals that evaluate every component"
        )
    _carry_out(runs, path, max_seconds, write_gaussian)


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
    tables: tuple[str, ...],
    components: tuple[int, ...],
    rivals: tuple[str, ...],
    seeds: int,
    max_seconds: float,
    out: Path,
    quick: bool,
    draw_only: bool,
    show_list: bool,
) -> None:
    """Compare ways to fit a mixture of Gaussians to real tables.

    The tables are files tables/NAME.npz in the folder that the environment variable PICKMIX_DATA
    names, the UCI sets of the paper, and sets that come with scikit-learn. A table that cannot be
    read is listed as missing, and the others are measured. A K is left out where a table has fewer
    than 4 K rows to fit. A seed is another start on the same rows.

    The folder gets tables.jsonl, a line of JSON per run, and from it tables.md (a summary, and
    medians over seeds) and tables.png. All tables take hours. After Ctrl-C, the same command
    resumes where it stopped and repeats nothing.

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
    chosen = _named(TABLES, tables or (QUICK_TABLES if quick else TABLES))
    baselines = _named(BASELINES, rivals or TABLE_RIVALS)
    path = out / "tables.jsonl"
    if draw_only:
        write_tables({}, _earlier_store(path))
        return
    choice = choose(chosen, components or (COMPONENTS[:1] if quick else COMPONENTS))
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
    runs = _plan(choice.settings, baselines, _n_seeds(seeds, quick))
    _carry_out(runs, path, max_seconds, functools.partial(write_tables, choice.missing))


def _named(known: Mapping[str, Named], names: Collection[str]) -> list[Named]:
    """Return values by name, in the order of those that are known, each once."""
    return [value for name, value in known.items() if name in names]


def _list(title: str, known: Mapping[str, Any]) -> None:
    click.echo(f"{title}:")
    show_table((value.name, value.summary) for value in known.values())
    click.echo("Rivals:")
    missing = {name: "" if b.installed else " (not installed)" for name, b in BASELINES.items()}
    show_table((name, b.summary + missing[name]) for name, b in BASELINES.items())


def _n_seeds(seeds: int, quick: bool) -> int:
    """Return the number of seeds; one with --quick and without --seeds."""
    source = click.get_current_context().get_parameter_source("seeds")
    return 1 if quick and source == ParameterSource.DEFAULT else seeds


def _plan(settings: list[Setting], baselines: list[Baseline], n_seeds: int) -> list[BenchRun]:
    """Return all runs, in order: a setting after the other, and in it a seed after the other."""
    # Seeds outside baselines: a machine that gets slower on the way slows all of them equally.
    return [
        BenchRun(baseline.name, 0, seed, setting=setting.name)
        for setting in settings
        for seed in range(n_seeds)
        for baseline in baselines
        if setting.dense or not baseline.dense
    ]


def _earlier_store(path: Path) -> Store:
    store = Store(path)
    if not store.histories():
        raise FileNotFoundError(f"--draw-only: expected results in {path}, found nothing there")
    return store


def _carry_out(
    runs: list[BenchRun], path: Path, max_seconds: float, write: Callable[[Store], None]
) -> None:
    """Make the runs that the file lacks, and write pages of all results, even after Ctrl-C."""
    if os.name != "posix":
        raise OSError(f"fits are timed by a POSIX timer, and there is none on {os.name!r}")
    out = path.parent
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
            _report(f"[{number}/{len(runs)}]", store.histories()[run.key], known)
    except KeyboardInterrupt:
        interrupted = True
    if store.histories():
        write(store)
    if interrupted:
        click.echo("Interrupted; the same command resumes from here.", err=True)
        click.get_current_context().exit(INTERRUPTED_EXIT_CODE)


def make(run: BenchRun, max_seconds: float) -> History:
    """Make a run in a process of its own; one that fails is a result like any other."""
    baseline = BASELINES[run.algorithm]
    if not baseline.installed:
        return make_history(run, [], {"outcome": f"{NOT_INSTALLED}: {baseline.needs}"})
    with Worker() as worker:
        return worker.perform(run, max_seconds)


def _report(place: str, history: History, known: bool) -> None:
    run: Any = history.run
    line = f"{place} {run.setting}, {run.algorithm}, seed {run.seed}: {history.facts['outcome']}"
    if not math.isnan(history.facts["test"]):
        seconds = history.series["seconds"][-1]
        line += f", {history.facts['test']:.4f} held out in {seconds:.2f} s"
    click.echo(line + (" (from before)" if known else ""))


def write_gaussian(store: Store) -> None:
    from pickmix_experiments.bench_pages import ends_of, gaussian_page, ordered
    from pickmix_experiments.drawing import draw

    out, ends, histories = store.path.parent, ends_of(store), store.histories()
    drawn = []
    for setting in ordered(ends["setting"], SETTINGS):
        figure = bench_figure(setting, [h.run for h in histories.values()])
        if draw(figure, histories, out / f"gaussian-{setting}.png", pdf=False) is not None:
            drawn.append(setting)
    _write_page(out / "gaussian.md", gaussian_page(ends, drawn), len(drawn))


def bench_figure(setting: str, runs: list[Any]) -> Figure:
    """Describe the held-out log-likelihood of one setting, the ends marked."""
    order = list(BASELINES)
    of_setting = [run for run in runs if run.setting == setting]
    of_setting.sort(key=lambda r: order.index(r.algorithm) if r.algorithm in order else len(order))
    return Figure(setting, (Panel("", "validation", tuple(of_setting), "ends"),), (50.0, 50.0))


def write_tables(missing: Mapping[str, str], store: Store) -> None:
    from pickmix_experiments.bench_pages import Cases, draw_gains, ends_of, tables_page

    out, ends = store.path.parent, ends_of(store)
    drawn = draw_gains(Cases(ends), out / "tables.png") is not None
    page = tables_page(ends, missing=missing, picture=drawn)
    _write_page(out / "tables.md", page, int(drawn))


def _write_page(path: Path, text: str, n_pictures: int) -> None:
    path.write_text(text, encoding="utf-8")
    pictures = f" and {n_pictures} picture{'' if n_pictures == 1 else 's'}" if n_pictures else ""
    click.echo(f"wrote {path}{pictures}")
