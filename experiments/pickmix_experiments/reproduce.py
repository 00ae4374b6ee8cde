"""`pickmix reproduce`: the paper's figures and tables."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import click
from tqdm import tqdm

from pickmix.cli.console import INTERRUPTED_EXIT_CODE, clear_errors, show_table
from pickmix_experiments import catalogue, uci
from pickmix_experiments.catalogue import EXPERIMENTS, PAPER, QUICK, Experiment, Scale
from pickmix_experiments.runner import cluster_workers, local_workers, make_all
from pickmix_experiments.runs import ALGORITHMS, Run
from pickmix_experiments.store import NO_DATA, History, Store


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(EXPERIMENTS)), metavar="[NAME]...")
@click.option("--list", "show_list", is_flag=True, help="List the names.")
@click.option("--all", "every", is_flag=True, help="All figures and tables.")
@click.option("--quick", is_flag=True, help="A fiftieth of the steps, small grids, one seed.")
@click.option(
    "--budget",
    type=click.FloatRange(min=0.0, min_open=True),
    metavar="SECONDS",
    help="Cut the steps of all runs so that they take about this long on one core, in all.",
)
@click.option(
    "--steps",
    type=click.FloatRange(min=0.0, min_open=True, max=1.0),
    metavar="SHARE",
    help="Cut the steps of all runs to this share of the paper's.",
)
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=0.0, min_open=True),
    metavar="SECONDS",
    help="End a run after so many seconds of work; tables mark runs that were cut.",
)
@click.option(
    "--repetitions",
    type=click.IntRange(min=1),
    metavar="R",
    help="Seeds 0 to R - 1.  [the paper's]",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    type=click.Choice(uci.NAMES),
    metavar="SET",
    help="Data set of the tables; repeat for more.  [all 19]",
)
@click.option("--reduced-grid", is_flag=True, help="Four networks instead of 36 in table-best.")
@click.option(
    "--algorithm",
    "algorithms",
    multiple=True,
    type=click.Choice(ALGORITHMS),
    metavar="NAME",
    help="Make runs of this algorithm only, e.g. MHSAEM-U; repeat for more.  [all]",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="J",
    help="Runs at a time, in processes that share the cores.",
)
@click.option("--cluster", metavar="ADDRESS", help="Make the runs on this Dask cluster.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("pickmix-reproduction"),
    show_default=True,
    metavar="DIR",
    help="Folder for the results. Runs that it already holds are not repeated.",
)
@click.option("--draw-only", is_flag=True, help="Draw the results in the folder; fit nothing.")
@clear_errors
def reproduce(
    names: tuple[str, ...],
    show_list: bool,
    every: bool,
    quick: bool,
    budget: float | None,
    steps: float | None,
    max_seconds: float | None,
    repetitions: int | None,
    sets: tuple[str, ...],
    reduced_grid: bool,
    algorithms: tuple[str, ...],
    jobs: int,
    cluster: str | None,
    out: Path,
    draw_only: bool,
) -> None:
    """Draw figures and tables of the paper behind pickmix again.

    Runs are kept in the folder as they finish, in results.jsonl, a line of JSON for each.
    Ctrl-C or a crash loses only the runs under way; the same command resumes and repeats nothing.
    Figures share runs where those of the paper do. At the paper's scale the figures take about two
    days of one core, table-fixed takes four, and table-best, with thousands of large networks,
    takes years. --quick shows that everything works; --budget, --steps and --max-seconds make it
    shorter.

    \b
    Examples:
      pickmix reproduce --list
      pickmix reproduce figure-2 --repetitions 3 --jobs 2
      pickmix reproduce --all --quick --jobs 2
      pickmix reproduce table-fixed --steps 0.25 --max-seconds 100 --set iris --set wine
      pickmix reproduce figure-2 --repetitions 3 --draw-only
    """
    if show_list:
        show_table((name, f"{e.paper}: {e.title}") for name, e in EXPERIMENTS.items())
        return
    if every == bool(names):
        raise ValueError("expected names or --all; `pickmix reproduce --list` shows the names")
    if (quick, budget is not None, steps is not None).count(True) > 1:
        raise ValueError("--quick, --budget and --steps exclude each other")
    experiments = [e for name, e in EXPERIMENTS.items() if every or name in names]
    scale = QUICK if quick else replace(PAPER, step_factor=steps or 1.0)
    scale = replace(scale, repetitions=repetitions or scale.repetitions, sets=sets or scale.sets)
    scale = replace(scale, reduced_grid=reduced_grid or scale.reduced_grid)
    if budget is not None:
        scale = _within(budget, experiments, scale)
    interrupted = False
    store = Store(out / "results.jsonl")
    if not draw_only:
        runs = _runs_of(experiments, scale)
        if algorithms:
            runs = [run for run in runs if run.algorithm in algorithms]
        out.mkdir(parents=True, exist_ok=True)
        if not os.access(out, os.W_OK):
            raise PermissionError(f"--out: cannot write to {out}")
        interrupted = _make(runs, store, max_seconds, jobs, cluster)
    elif not store.histories():
        raise FileNotFoundError(f"--draw-only: expected results in {out}, found none there")
    _draw(experiments, scale, store, out)
    if interrupted:
        click.echo("Interrupted; the same command resumes from here.", err=True)
        click.get_current_context().exit(INTERRUPTED_EXIT_CODE)


def _runs_of(experiments: list[Experiment], scale: Scale) -> list[Run]:
    return list(dict.fromkeys(run for e in experiments for run in e.runs(scale)))


def _within(budget: float, experiments: list[Experiment], scale: Scale) -> Scale:
    def runs(share: float) -> list[Run]:
        return _runs_of(experiments, replace(scale, step_factor=share))

    share = catalogue.share_within(budget, runs)
    expected = sum(catalogue.seconds(run) for run in runs(share))
    click.echo(
        f"budget: {share:g} of the paper's steps, about {_duration(expected)} on one core"
        + (", which is the least there is" if expected > budget else "")
    )
    return replace(scale, step_factor=share)


def _make(
    runs: list[Run],
    store: Store,
    max_seconds: float | None,
    jobs: int,
    cluster: str | None,
) -> bool:
    """Make what the store does not have; return whether Ctrl-C ended it."""
    missing = [run for run in runs if not store.has(run, max_seconds)]
    weights = {run: catalogue.seconds(run, max_seconds) for run in missing}
    line = f"{len(runs)} runs, {len(runs) - len(missing)} of them there from before"
    if not missing:
        click.echo(line)
        return False
    click.echo(f"{line}; the rest takes about {_duration(sum(weights.values()))} on one core")
    without_data: dict[str, None] = {}
    interrupted = False
    bar = tqdm(
        total=sum(weights.values()),
        bar_format="{percentage:3.0f}% |{bar:20}| {elapsed}, {remaining} left {postfix}",
        file=sys.stderr,
        mininterval=1.0,
        smoothing=0.05,
    )
    done = 0

    def report(run: Run, history: History) -> None:
        nonlocal done
        done += 1
        # Sums of floats in another order: not a hair beyond the end.
        bar.update(min(weights[run], bar.total - bar.n))
        outcome = history.facts["outcome"]
        if outcome.startswith(NO_DATA):
            without_data[outcome] = None
        elif outcome != "interrupted":
            store.add(history)
            bar.set_postfix_str(f"run {done} of {len(missing)}: {_describe(run)}")

    workers = local_workers(jobs) if cluster is None else cluster_workers(cluster)
    try:
        with bar, workers as ready:
            make_all(missing, ready, max_seconds, report)
    except KeyboardInterrupt:
        interrupted = True
    for message in without_data:
        click.echo(message, err=True)
    return interrupted


def _describe(run: Run) -> str:
    settings = run.settings()
    data = settings.get("dataset") or f"D={settings.get('D')} K={settings.get('K')}"
    return f"{run.algorithm} {data} seed {run.seed}"


def _duration(seconds: float) -> str:
    if seconds > 2e5:
        return f"{seconds / 86400:.0f} days"
    return f"{seconds / 3600:.1f} hours" if seconds > 5400 else f"{seconds / 60:.1f} minutes"


def _draw(experiments: list[Experiment], scale: Scale, store: Store, out: Path) -> None:
    """Draw experiments from what the store has of them; fit nothing."""
    # Here and not above: the help needs none of it.
    from pickmix_experiments import deep_tables, drawing, tables

    for experiment in experiments:
        written: list[Path] = []
        runs = experiment.runs(scale)
        histories = {run.key: history for run in runs if (history := store.get(run)) is not None}
        if histories and experiment.draws:
            path, figure = out / f"{experiment.name}.png", experiment.figure(scale)
            if drawing.draw(figure, histories, path) is not None:
                made = tables.figure_tables(figure, histories)
                written = [path, path.with_suffix(".pdf")]
                written += tables.write(made, out, experiment.name)
        elif histories:
            make = getattr(deep_tables, f"{experiment.name.removeprefix('table-')}_tables")
            written = tables.write(make(runs, histories), out, experiment.name)
        names = ", ".join(path.name for path in written)
        line = f"{experiment.name}: wrote {names}" if written else f"{experiment.name}: no runs yet"
        click.echo(line, err=not written)
