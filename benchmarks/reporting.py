"""What benchmarks on tables share: facts of the machine, tables on the screen, lines in a file."""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from pickmix_experiments import runner

Line = dict[str, Any]
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


def machine(*packages: str) -> str:
    """Say what runs, and on what."""
    cores = f"{runner.cpu_count()} cores of {runner.cpu_name()}"
    return f"{runner.versions(packages)}; {cores}; load {os.getloadavg()[0]:.1f}"


def print_machine() -> None:
    print(f"{machine('numpy', 'scipy', 'scikit-learn', 'numba')}; {_clock} clock", flush=True)


_clocks: dict[str, Callable[[], float]] = {
    "wall": time.perf_counter,
    "cpu": time.process_time,
}
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
    """Lines with the same keys, as a table in Markdown."""
    lines = list(lines)
    if not lines:
        return
    cells = [list(lines[0])] + [[_text(value) for value in line.values()] for line in lines]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    print(f"\n{title}\n")
    for number, row in enumerate(cells):
        padded = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        print("| " + " | ".join(padded) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    print(flush=True)


def _text(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return "-" if np.isnan(value) else f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    return str(value)


def medians(lines: Iterable[Line], by: tuple[str, ...], values: tuple[str, ...]) -> list[Line]:
    """Medians over all lines that agree in the columns `by`, in the order they came."""
    groups: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        groups.setdefault(tuple(line[name] for name in by), []).append(line)
    return [
        dict(zip(by, key, strict=True))
        | {name: float(np.median([line[name] for line in group])) for name in values}
        for key, group in groups.items()
    ]


def write_lines(folder: Path, name: str, lines: list[Line]) -> None:
    """Write lines to a .csv file, numbers with six digits."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        for line in lines:
            writer.writerow(
                {
                    key: f"{value:.6g}" if isinstance(value, float | np.floating) else value
                    for key, value in line.items()
                }
            )


def data_folder() -> Path:
    """The folder that the environment variable PICKMIX_DATA names."""
    folder = os.environ.get("PICKMIX_DATA")
    if not folder:
        raise SystemExit("PICKMIX_DATA must name the folder that holds tables/NAME.npz")
    return Path(folder)
