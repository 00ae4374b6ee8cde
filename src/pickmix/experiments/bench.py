"""The runner: every (setting, rival, seed) in a process of its own, one after the other."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from pickmix.experiments.results import END, FACTS, NOT_INSTALLED, Results, Row, Run
from pickmix.experiments.rivals import RIVALS, Rival
from pickmix.experiments.settings import Setting

# (number from 1, number of runs, run, its last row, whether it was there before)
Report = Callable[[int, int, Run, Row, bool], None]


def plan(settings: Iterable[Setting], rivals: Iterable[Rival], n_seeds: int) -> list[Run]:
    """All runs, in order: a setting after the other, and in it a seed after the other.

    Rivals that evaluate every component are left out where a setting is too large for them.

    Examples
    --------
    >>> from pickmix.experiments.rivals import find_rivals
    >>> from pickmix.experiments.settings import find_settings
    >>> rivals = find_rivals(["em", "pickmix"])
    >>> [run.rival for run in plan(find_settings(["mixsim", "k10000"]), rivals, 1)]
    ['pickmix', 'em', 'pickmix']
    """
    if n_seeds < 1:
        raise ValueError(f"n_seeds must be an integer >= 1; got {n_seeds!r}")
    rivals = list(rivals)
    # Seeds outside rivals: a machine that gets slower on the way slows all rivals alike.
    return [
        Run(setting.name, rival.name, seed)
        for setting in settings
        for seed in range(n_seeds)
        for rival in rivals
        if setting.dense or not rival.dense
    ]


def run_all(runs: list[Run], results: Results, max_seconds: float | None, report: Report) -> None:
    """Make the runs that the results do not hold yet; a run that fails is a row like any other."""
    for number, run in enumerate(runs, start=1):
        there = results.finished(run)
        if not there:
            results.add(run, _rows_of(run, max_seconds))
        (end,) = (row for row in results.of(run.setting, run.rival, END) if row["seed"] == run.seed)
        report(number, len(runs), run, end, there)


def _rows_of(run: Run, max_seconds: float | None) -> list[Row]:
    rival = RIVALS[run.rival]
    if not rival.installed:
        return [{"kind": END, "outcome": f"{NOT_INSTALLED}: {rival.needs}"}]
    return run_apart(run, max_seconds)


def run_apart(run: Run, max_seconds: float | None = None) -> list[Row]:
    """Make one run in a process of its own and return its rows, the last of kind "end"."""
    with tempfile.TemporaryDirectory() as folder:
        out, errors = Path(folder, "rows.jsonl"), Path(folder, "errors.txt")
        with open(errors, "wb") as error_file:
            process = subprocess.Popen(
                _command(run, out, max_seconds),
                # Kept open: the process ends when it closes, so that none is left behind.
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=error_file,
                # Ctrl-C is for the bench. Our fits would end early with a result of their own.
                start_new_session=True,
            )
            try:
                code = process.wait()
            finally:
                process.kill()
                process.communicate()
        said = [json.loads(line) for line in _whole_lines(out)]
        rows = [row for row in said if row["kind"] != FACTS]
        if not rows or rows[-1]["kind"] != END:
            outcome = _outcome(code, max_seconds, errors.read_text("utf-8", errors="replace"))
            facts: Row = next((row for row in said if row["kind"] == FACTS), {})
            rows.append({**facts, "kind": END, "outcome": outcome})
        return rows


def _command(run: Run, out: Path, max_seconds: float | None) -> list[str]:
    arguments = [run.setting, run.rival, str(run.seed), str(out)]
    if max_seconds is not None:
        arguments.append(str(max_seconds))
    return [sys.executable, "-m", "pickmix.experiments.one_run", *arguments]


def _whole_lines(path: Path) -> list[str]:
    """Lines of a file whose last one may have been cut short."""
    if not path.exists():
        return []
    return [line for line in path.read_text("utf-8").splitlines(True) if line.endswith("\n")]


def _outcome(code: int, max_seconds: float | None, errors: str) -> str:
    """Name how a process ended that did not say so itself."""
    if code < 0:
        if max_seconds is not None and -code == getattr(signal, "SIGALRM", 0):
            return f"timed out after {max_seconds:g} s"
        name = signal.Signals(-code).name
        # The kernel ends what takes more memory than there is this way.
        return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    lines = errors.strip().splitlines()
    return f"failed: {lines[-1]}" if lines else f"failed: exit code {code}"
