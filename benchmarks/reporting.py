"""What benchmarks on tables share: facts of the machine, tables on the screen, lines in a file."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from pickmix_experiments import runner
from pickmix_experiments.evidence import Line, data_folder, text_of
from pickmix_experiments.tables import pipes

__all__ = ["Line", "data_folder"]
RESULTS = Path(__file__).parent / "results"


def parser_for(description: str | None, seeds: int) -> argparse.ArgumentParser:
    """Options that all of these benchmarks have."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes and one seed")
    parser.add_argument("--seeds", type=int, default=seeds, help="0, 1, ..., so many")
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu counts the seconds of all threads, and not those of other processes",
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for a file of lines")
    return parser


def begin(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the options of the command line; the clock is set, and the machine printed."""
    arguments = parser.parse_args()
    set_clock(arguments.clock)
    print_machine()
    return arguments


def machine(*packages: str) -> str:
    """Say what runs, and on what."""
    cores = f"{runner.cpu_count()} cores of {runner.cpu_name()}"
    return f"{runner.versions(packages)}; {cores}; load {os.getloadavg()[0]:.1f}"


def print_machine() -> None:
    print(f"{machine('numpy', 'scipy', 'scikit-learn', 'numba')}; {_clock} clock", flush=True)


_clocks = {"wall": time.perf_counter, "cpu": time.process_time}
_clock = "wall"


def set_clock(name: str) -> None:
    """Let `now` count wall time, or the processor time of this process."""
    global _clock
    _clock = name


def now() -> float:
    """Seconds on the clock that was chosen."""
    return _clocks[_clock]()


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and how many seconds it took."""
    started = now()
    result = call()
    return result, now() - started


def print_table(title: str, lines: Iterable[Line]) -> None:
    """Print lines with the same keys as a table in Markdown."""
    lines = list(lines)
    if lines:
        cells = [[text_of(value) for value in line.values()] for line in lines]
        print(f"\n{title}\n\n{pipes(list(lines[0]), cells, range(len(lines[0])))}\n", flush=True)


def medians(lines: Iterable[Line], by: tuple[str, ...], values: tuple[str, ...]) -> list[Line]:
    """Return medians over all lines that agree in the columns `by`, in the order they came."""
    groups = pd.DataFrame(lines).groupby(list(by), sort=False)[list(values)]
    return groups.median().reset_index().to_dict("records")


def write_lines(folder: Path, name: str, lines: list[Line]) -> None:
    """Write lines to a .csv file, numbers with six digits."""
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(lines).to_csv(folder / name, index=False, float_format="%.6g")
