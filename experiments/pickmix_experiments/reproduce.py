"""`pickmix reproduce`: the paper's figures and tables."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import click
from tqdm import tqdm

from pickmix.cli.console import INTERRUPTED_EXIT_CODE, clear_errors, show_table
from pickmix_experiments import uci
from pickmix_experiments.catalogue import (
    EXPERIMENTS,
    PAPER,
    QUICK,
    Experiment,
    Scale,
    seconds,
    share_within,
)
from pickmix_experiments.runner import cluster_workers, local_workers, make_all
from pickmix_experiments.runs import ALGORITHMS, Run
from pickmix_experiments.store import NO_DATA, Store

POSITIVE = click.FloatRange(min=0.0, min_open=True)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(EXPERIMENTS)), metavar="[NAME]...")
@click.option("--list", "show_list", is_flag=True, help="List the names.")
@click.option("--all", "every", is_flag=True, help="All figures and tables.")
@click.option("--quick", is_flag=True, help="A fiftieth of the steps, small grids, one seed.")
@click.option(
    "--budget",
    type=POSITIVE,
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
    type=POSITIVE,
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

    def runs_at(share: float) -> list[Run]:
        cut = replace(scale, step_factor=share)
        return list(dict.fromkeys(run for e in experiments for run in e.runs(cut)))

    if budget is not None:
        scale = replace(scale, step_factor=share_within(budget, runs_at))
        minutes = sum(map(seconds, runs_at(scale.step_factor))) / 60.0
        share = f"{scale.step_factor:g} of the paper's steps"
        click.echo(f"budget: {share}, about {minutes:.1f} minutes on one core")
    interrupted = False
    store = Store(out / "results.jsonl")
    if not draw_only:
        runs = runs_at(scale.step_factor)
        if algorithms:
            runs = [run for run in runs if run.algorithm in algorithms]
        out.mkdir(parents=True, exist_ok=True)
        if not os.access(out, os.W_OK):
            raise PermissionError(f"--out: cannot write to {out}")
        interrupted = _make(runs, store, max_seconds, jobs, cluster)
    elif not store.rows:
        raise FileNotFoundError(f"--draw-only: expected results in {out}, found none there")
    for experiment in experiments:
        _draw(experiment, scale, store, out)
    if interrupted:
        click.echo("Interrupted; the same command resumes from here.", err=True)
        click.get_current_context().exit(INTERRUPTED_EXIT_CODE)


def _make(
    runs: list[Run], store: Store, max_seconds: float | None, jobs: int, cluster: str | None
) -> bool:
    """Make what the store does not have; return whether Ctrl-C ended it."""
    missing = [run for run in runs if not store.has(run, max_seconds)]
    click.echo(f"{len(runs)} runs, {len(runs) - len(missing)} of them there from before")
    if not missing:
        return False
    without_data: dict[str, None] = {}
    interrupted = False
    workers = local_workers(jobs) if cluster is None else cluster_workers(cluster)
    try:
        with tqdm(total=len(missing), file=sys.stderr, mininterval=1.0) as bar, workers as ready:
            for row in make_all(missing, *ready, max_seconds):
                if row["outcome"].startswith(NO_DATA):
                    without_data[row["outcome"]] = None
                elif row["outcome"] != "interrupted":
                    store.add(row)
                data = row.get("dataset") or f"D={row['D']} K={row['K']}"
                bar.set_postfix_str(f"{row['algorithm']} {data} seed {row['seed']}")
                bar.update()
    except KeyboardInterrupt:
        interrupted = True
    for message in without_data:
        click.echo(message, err=True)
    return interrupted


def _draw(experiment: Experiment, scale: Scale, store: Store, out: Path) -> None:
    """Draw an experiment from what the store has of it; fit nothing."""
    # Here and not above: the help needs none of it.
    from pickmix_experiments import deep_tables, drawing, tables

    name, written = experiment.name, []
    runs = experiment.runs(scale)
    if experiment.draws:
        path, figure = out / f"{name}.png", experiment.figure(scale)
        if drawing.draw(figure, store.rows, path) is not None:
            written = [path, path.with_suffix(".pdf")]
            written += tables.write(tables.figure_tables(figure, store.rows), out, name)
    elif any(run.key in store.rows for run in runs):
        make = getattr(deep_tables, f"{name.removeprefix('table-')}_tables")
        written = tables.write(make(runs, store.rows), out, name)
    names = ", ".join(path.name for path in written)
    click.echo(f"{name}: wrote {names}" if written else f"{name}: no runs yet", err=not written)
