"""`pickmix bench`: other libraries and algorithms, measured in the same way."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from pickmix.cli.console import INTERRUPTED_EXIT_CODE, clear_errors, show_table
from pickmix.experiments import apart
from pickmix.experiments.catalogue import Figure, Panel
from pickmix.experiments.real_tables import COMPONENTS, TABLES, choose
from pickmix.experiments.rivals import RIVALS, Rival
from pickmix.experiments.runs import BenchRun
from pickmix.experiments.settings import SETTINGS, Setting
from pickmix.experiments.store import NOT_INSTALLED, Store, make_history

QUICK_SETTINGS = ("small",)
QUICK_RIVALS = ("sklearn-kmeans-one-thread", "pickmix", "em", "tsaem")
# The matrices of real tables are small: scikit-learn is faster with one thread in BLAS.
TABLE_RIVALS = ("sklearn-kmeans-one-thread", "pickmix", "em")
# Small ones that everybody has.
QUICK_TABLES = ("sklearn-iris", "sklearn-wine", "sklearn-diabetes")
QUICK_COMPONENTS = COMPONENTS[:1]

Deliver = Callable[[Store], None]
Command = Callable[..., Any]
Thing = TypeVar("Thing")


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


def _shared_options(*, rivals: str, quick: str, listed: str) -> Callable[[Command], Command]:
    """Options of all benches; the texts say what differs."""
    options = [
        click.option(
            "--rival",
            "rivals",
            multiple=True,
            type=click.Choice(list(RIVALS)),
            metavar="NAME",
            help=f"Library or algorithm that fits; repeat for more. [{rivals}]",
        ),
        click.option(
            "--seeds",
            type=click.IntRange(min=1),
            default=3,
            show_default=True,
            help="Fits of each rival to the same rows, with seeds 0, 1, ...",
        ),
        click.option(
            "--max-seconds",
            type=click.FloatRange(min=0.0, min_open=True),
            default=3600.0,
            show_default=True,
            metavar="S",
            help="A fit that takes longer is ended, and counts as timed out.",
        ),
        click.option(
            "--out",
            type=click.Path(file_okay=False, path_type=Path),
            default=Path("pickmix-bench"),
            show_default=True,
            metavar="DIR",
            help="Folder for the results. Runs that it already holds are not repeated.",
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
@click.option(
    "--setting",
    "settings",
    multiple=True,
    type=click.Choice(list(SETTINGS)),
    metavar="NAME",
    help="Data; repeat for more. [all]",
)
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
    gets gaussian.csv, a line per measurement, and from it gaussian.md (medians over seeds) and
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
        click.echo("Settings:")
        show_table((setting.name, setting.summary) for setting in SETTINGS.values())
        _list_rivals()
        names = ", ".join(setting.name for setting in SETTINGS.values() if not setting.dense)
        dense = ", ".join(rival.name for rival in RIVALS.values() if rival.dense)
        click.echo(f"Too large for rivals that evaluate every component ({dense}): {names}")
        return
    chosen_settings = _named(SETTINGS, settings or (QUICK_SETTINGS if quick else SETTINGS))
    chosen_rivals = _named(RIVALS, rivals or (QUICK_RIVALS if quick else RIVALS))
    path = out / "gaussian.csv"
    if draw_only:
        _deliver_gaussian(_earlier_store(path))
        return
    runs = _plan(chosen_settings, chosen_rivals, _n_seeds(seeds, quick))
    if not runs:
        raise ValueError(
            "--rival: the settings are too large for rivals that evaluate every component"
        )
    _carry_out(runs, path, max_seconds, _deliver_gaussian)


@bench.command()
@click.option(
    "--table",
    "tables",
    multiple=True,
    type=click.Choice(list(TABLES)),
    metavar="NAME",
    help="Table; repeat for more. [all]",
)
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

    The folder gets tables.csv, a line per measurement, and from it tables.md (a summary, and
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
        click.echo("Tables:")
        show_table((table.name, table.summary) for table in TABLES.values())
        _list_rivals()
        return
    chosen_tables = _named(TABLES, tables or (QUICK_TABLES if quick else TABLES))
    chosen_rivals = _named(RIVALS, rivals or TABLE_RIVALS)
    path = out / "tables.csv"
    if draw_only:
        _deliver_tables({}, _earlier_store(path))
        return
    choice = choose(chosen_tables, components or (QUICK_COMPONENTS if quick else COMPONENTS))
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
    runs = _plan(choice.settings, chosen_rivals, _n_seeds(seeds, quick))
    _carry_out(runs, path, max_seconds, functools.partial(_deliver_tables, choice.missing))


def _named(known: Mapping[str, Thing], names: Collection[str]) -> list[Thing]:
    """Things by name, in the order of those that are known, each once."""
    return [thing for name, thing in known.items() if name in names]


def _list_rivals() -> None:
    click.echo("Rivals:")
    show_table(
        (rival.name, rival.summary + ("" if rival.installed else " (not installed)"))
        for rival in RIVALS.values()
    )


def _n_seeds(seeds: int, quick: bool) -> int:
    """Seeds as asked for; one if it is to be quick and nobody asked."""
    source = click.get_current_context().get_parameter_source("seeds")
    return 1 if quick and source == ParameterSource.DEFAULT else seeds


def _plan(settings: list[Setting], rivals: list[Rival], n_seeds: int) -> list[BenchRun]:
    """All runs, in order: a setting after the other, and in it a seed after the other.

    Rivals that evaluate every component are left out where a setting is too large for them.
    """
    # Seeds outside rivals: a machine that gets slower on the way slows all rivals equally.
    return [
        BenchRun(rival.name, 0, seed, setting=setting.name)
        for setting in settings
        for seed in range(n_seeds)
        for rival in rivals
        if setting.dense or not rival.dense
    ]


def _earlier_store(path: Path) -> Store:
    _require_pandas()
    if not path.is_file():
        raise FileNotFoundError(f"--draw-only: expected results in {path}, found nothing there")
    return Store(path)


def _require_pandas() -> None:
    if importlib.util.find_spec("pandas") is None:
        raise ImportError("bench needs pandas: pip install 'pickmix[bench]'")


def _carry_out(runs: list[BenchRun], path: Path, max_seconds: float, deliver: Deliver) -> None:
    """Make the runs that the file lacks, and deliver what there is, even after Ctrl-C."""
    _require_pandas()
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
            there = store.has(run)
            if not there:
                _make(run, store, max_seconds)
            _report(f"[{number}/{len(runs)}]", run, store, there)
    except KeyboardInterrupt:
        interrupted = True
    store.compact()
    if store.histories():
        deliver(store)
    if interrupted:
        click.echo("Interrupted; the same command resumes from here.", err=True)
        click.get_current_context().exit(INTERRUPTED_EXIT_CODE)


def _make(run: BenchRun, store: Store, max_seconds: float) -> None:
    """Make a run in a process of its own; one that fails is a result like any other."""
    rival = RIVALS[run.algorithm]
    if rival.installed:
        store.add(apart.perform_apart(run, max_seconds))
    else:
        store.add(make_history(run, [], {"outcome": f"{NOT_INSTALLED}: {rival.needs}"}))


def _report(place: str, run: BenchRun, store: Store, there: bool) -> None:
    history = store.get(run)
    assert history is not None
    line = f"{place} {run.setting}, {run.algorithm}, seed {run.seed}: {history.facts['outcome']}"
    if not math.isnan(history.facts["test"]):
        seconds = history.series["seconds"][-1]
        line += f", {history.facts['test']:.4f} held out in {seconds:.2f} s"
    click.echo(line + (" (from before)" if there else ""))


def _deliver_gaussian(store: Store) -> None:
    """Write page and pictures of all there is, beside the results."""
    # Here and not above: pandas and matplotlib are extras.
    from pickmix.experiments.drawing.figures import draw
    from pickmix.experiments.tables.bench import ends_of, gaussian_page, ordered

    out, ends, histories = store.path.parent, ends_of(store), store.histories()
    drawn = []
    if _can_draw():
        for setting in ordered(ends["setting"], SETTINGS):
            figure = bench_figure(setting, [h.run for h in histories.values()])
            if draw(figure, histories, out / f"gaussian-{setting}.png", pdf=False) is not None:
                drawn.append(setting)
    _write_page(out / "gaussian.md", gaussian_page(ends, drawn), len(drawn))


def bench_figure(setting: str, runs: list[Any]) -> Figure:
    """Held-out log-likelihood of one setting, the ends marked."""
    order = list(RIVALS)
    some = [run for run in runs if run.setting == setting]
    some.sort(key=lambda run: order.index(run.algorithm) if run.algorithm in order else len(order))
    return Figure(setting, (Panel("", "validation", tuple(some), "ends"),), (50.0, 50.0))


def _deliver_tables(missing: Mapping[str, str], store: Store) -> None:
    """Write page and picture of all there is, beside the results."""
    from pickmix.experiments.drawing.gains import draw_gains
    from pickmix.experiments.tables.bench import Cases, ends_of, tables_page

    out, ends = store.path.parent, ends_of(store)
    drawn = _can_draw() and draw_gains(Cases(ends), out / "tables.png") is not None
    page = tables_page(ends, missing=missing, picture=drawn)
    _write_page(out / "tables.md", page, int(drawn))


def _can_draw() -> bool:
    there = importlib.util.find_spec("matplotlib") is not None
    if not there:
        click.echo("note: no pictures without matplotlib: pip install pickmix[plot]", err=True)
    return there


def _write_page(path: Path, text: str, n_pictures: int) -> None:
    path.write_text(text, encoding="utf-8")
    pictures = f" and {n_pictures} picture{'' if n_pictures == 1 else 's'}" if n_pictures else ""
    click.echo(f"wrote {path}{pictures}")
