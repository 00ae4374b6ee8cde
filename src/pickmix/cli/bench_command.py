"""`pickmix bench`: rivals in one harness."""

from __future__ import annotations

import importlib.util
import math
import os
from pathlib import Path

import click
from click.core import ParameterSource

from pickmix.cli.console import INTERRUPTED_EXIT_CODE, clear_errors, show_table
from pickmix.experiments.bench import plan, run_all
from pickmix.experiments.results import Results, Row, Run
from pickmix.experiments.rivals import RIVALS, find_rivals
from pickmix.experiments.settings import SETTINGS, find_settings
from pickmix.experiments.tables import markdown, settings_of

QUICK_SETTINGS = ("small",)
QUICK_RIVALS = ("sklearn-kmeans-one-thread", "pickmix", "em", "tsaem")


@click.group()
def bench() -> None:
    """Compare pickmix with its rivals on this machine.

    Every rival gets the same rows and the same number of components, and is measured alike: the
    log-likelihood of rows it has not seen, wall time with its start, component evaluations, and
    peak memory in a process of its own.

    \b
    Benches:
      gaussian  mixtures of Gaussians with full covariances

    \b
    Examples:
      pickmix bench gaussian --quick             about a minute
      pickmix bench gaussian --list              settings and rivals
      pickmix bench gaussian --setting mixsim --rival em --rival sklearn-kmeans
    """


@bench.command()
@click.option(
    "--setting", "settings", multiple=True, metavar="NAME", help="Data; repeat for more. [all]"
)
@click.option(
    "--rival", "rivals", multiple=True, metavar="NAME", help="Who fits; repeat for more. [all]"
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Runs of each rival and setting, with seeds 0, 1, ...",
)
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=0.0, min_open=True),
    default=3600.0,
    show_default=True,
    metavar="S",
    help="A fit that takes longer is ended, and counts as timed out.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("pickmix-bench"),
    show_default=True,
    metavar="DIR",
    help="Folder for the results; one with results of before is gone on with.",
)
@click.option("--quick", is_flag=True, help="One small setting, few rivals, one seed.")
@click.option("--draw-only", is_flag=True, help="Draw what is in the folder; fit nothing.")
@click.option("--list", "show_list", is_flag=True, help="List settings and rivals.")
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
    gaussian-SETTING.png. All settings with all rivals take hours. Ctrl-C stops; the same command
    then goes on where it stopped and repeats nothing. A rival whose library is missing is listed as
    not installed: pip install 'pickmix[bench]'.

    \b
    Examples:
      pickmix bench gaussian --quick
      pickmix bench gaussian --setting k300-separated --max-seconds 600 --out results
      pickmix bench gaussian --draw-only --out results
    """
    if show_list:
        _show_list()
        return
    one_seed = click.get_current_context().get_parameter_source("seeds") == ParameterSource.DEFAULT
    chosen_settings = find_settings(settings or (QUICK_SETTINGS if quick else SETTINGS))
    chosen_rivals = find_rivals(rivals or (QUICK_RIVALS if quick else RIVALS))
    path = out / "gaussian.csv"
    if draw_only:
        if not path.is_file():
            raise FileNotFoundError(f"--draw-only: expected results in {path}, found nothing there")
        _deliver(Results(path), out)
        return
    runs = plan(chosen_settings, chosen_rivals, 1 if quick and one_seed else seeds)
    if not runs:
        raise ValueError("--rival: the settings are too large for rivals that evaluate everything")
    if os.name != "posix":
        raise OSError(f"fits are timed by a POSIX timer, and there is none on {os.name!r}")
    out.mkdir(parents=True, exist_ok=True)
    if not os.access(out, os.W_OK):
        raise PermissionError(f"--out: cannot write to {out}")
    results = Results(path)
    click.echo(f"{len(runs)} runs, results in {out}")
    interrupted = False
    try:
        run_all(runs, results, max_seconds, _report)
    except KeyboardInterrupt:
        interrupted = True
    if results.rows:
        _deliver(results, out)
    if interrupted:
        click.echo("Interrupted; the same command goes on from here.", err=True)
        click.get_current_context().exit(INTERRUPTED_EXIT_CODE)


def _show_list() -> None:
    click.echo("Settings:")
    show_table((setting.name, setting.summary) for setting in SETTINGS.values())
    click.echo("Rivals:")
    show_table(
        (rival.name, rival.summary + ("" if rival.installed else " (not installed)"))
        for rival in RIVALS.values()
    )
    names = ", ".join(setting.name for setting in SETTINGS.values() if not setting.dense)
    dense = ", ".join(rival.name for rival in RIVALS.values() if rival.dense)
    click.echo(f"Too large for rivals that evaluate every component ({dense}): {names}")


def _report(number: int, total: int, run: Run, end: Row, there: bool) -> None:
    line = f"[{number}/{total}] {run.setting}, {run.rival}, seed {run.seed}: {end['outcome']}"
    if not math.isnan(end["held_out"]):
        line += f", {end['held_out']:.4f} held out in {end['seconds']:.2f} s"
    click.echo(line + (" (from before)" if there else ""))


def _deliver(results: Results, out: Path) -> None:
    """Write page and pictures of all there is."""
    drawn = []
    if importlib.util.find_spec("matplotlib") is None:
        click.echo("note: no pictures without matplotlib: pip install pickmix[plot]", err=True)
    else:
        # Here and not above: matplotlib is an extra.
        from pickmix.experiments.curves import draw

        for setting in settings_of(results):
            if draw(results, setting, out / f"gaussian-{setting}.png") is not None:
                drawn.append(setting)
    page = out / "gaussian.md"
    page.write_text(markdown(results, pictures=drawn), encoding="utf-8")
    pictures = f" and {len(drawn)} picture{'' if len(drawn) == 1 else 's'}" if drawn else ""
    click.echo(f"wrote {page}{pictures}")
