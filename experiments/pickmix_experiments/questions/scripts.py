"""Questions that are programs: benches with commands of their own, and scripts of `benchmarks/`.

A row has what the program printed. Files go to a folder beside the rows.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pickmix_experiments.evidence import Line, Question

FOLDER = Path(__file__).parents[3] / "benchmarks"
# Of what a program without tables prints.
_LAST_LINES = 25


def run(command: str) -> Iterator[Line]:
    """Run a command in a process; `{out}` in it is the folder for its files."""
    out = Path(os.environ["PICKMIX_BENCH_OUT"]).resolve() / "scripts"
    out.mkdir(parents=True, exist_ok=True)
    # Paths may have blanks, so that parts are filled in and not the whole.
    data = os.environ.get("PICKMIX_DATA", "")
    program, *words = [
        word.format(out=out, data=data) if "{" in word else word for word in shlex.split(command)
    ]
    if program == "pickmix":
        words = ["-m", "pickmix", *words]
    elif not (FOLDER / program).is_file():
        raise FileNotFoundError(f"expected {program} in {FOLDER}: it comes with a clone of pickmix")
    else:
        words = [str(FOLDER / program), *words]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    tables = [line for line in done.stdout.splitlines() if line.startswith("|")]
    shown = "\n".join(tables or done.stdout.strip().splitlines()[-_LAST_LINES:])
    # A table ends where the next one has its line of dashes.
    shown = re.sub(r"(?<=\|)\n(?=\|[^\n]*\n\| ?-)", "\n\n", shown)
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    yield {"output": shown, "program_megabytes": memory}


def _cells(quick_commands: list[str], commands: list[str], quick: bool) -> list[Line]:
    return [{"command": command} for command in (quick_commands if quick else commands)]


def script(quick: list[str], full: list[str], *needs: str) -> Question:
    return Question(
        partial(_cells, quick, full), lambda command: run(command), ("command",), (), needs
    )


_TABLES, _UCI = "tables/shuttle.npz", "loda/iris/normal.txt"
SCRIPTS = {
    "tables": script(
        ["pickmix bench tables --quick --out {out}"],
        ["pickmix bench tables --seeds 3 --max-seconds 600 --out {out}"],
    ),
    "gaussian": script(
        ["pickmix bench gaussian --quick --out {out}"],
        ["pickmix bench gaussian --max-seconds 1800 --out {out}"],
    ),
    "anomalies": script(
        ["pickmix bench anomalies --seeds 1 --set 45_wine --set 6_cardio --out {out}/quick"],
        ["pickmix bench anomalies --out {out}"],
        "adbench/published-semi.csv",
    ),
    "small-tables": script(
        ["small_tables.py --quick --out {out}/small_tables_quick.jsonl"],
        ["small_tables.py --out {out}/small_tables.jsonl"],
    ),
    "automatic-number": script(
        ["automatic_number.py --only generated-5 --out {out}/automatic_number_quick.jsonl"],
        ["automatic_number.py --out {out}/automatic_number.jsonl"],
        _TABLES,
        _UCI,
    ),
    "proposals": script(["proposals.py --quick --out {out}"], ["proposals.py --out {out}"]),
    "visits": script(
        ["visit_cost.py --quick --out {out}"],
        ["visit_cost.py --out {out}", "visit_cost.py --parts --clock cpu --out {out}"],
    ),
    "million": script(
        ["million.py --components 1000 --rows 20000 --groups 20 --out {out}"],
        ["million.py --out {out}"],
    ),
    "drawn-tables": script(
        ["drawn_tables.py --quick --sets magic --out {out}"],
        ["drawn_tables.py --out {out}"],
        "synthetic/magic-train.csv",
    ),
    "synthetic-rows": script(
        ["synthetic_rows.py --quick --sets penguins --out {out}"],
        ["synthetic_rows.py --out {out}"],
    ),
    "binary-tables": script(
        ["binary_tables.py --quick --out {out}"],
        ["binary_tables.py --out {out}"],
        "debd/nltcs.npz",
    ),
    "conditional-density": script(
        ["conditional_density.py --quick --sets energy --out {out}"],
        ["conditional_density.py --out {out}"],
        "uci-regression/energy.npz",
    ),
    "mixed-table": script(["mixed_table.py --quick --out {out}"], ["mixed_table.py --out {out}"]),
    "low-rank": script(
        ["low_rank.py digits"],
        [
            "low_rank.py visits",
            "low_rank.py digits",
            "low_rank.py gaps",
            "low_rank.py embeddings {data}/wide/embeddings512.npz",
            "low_rank.py generated",
        ],
    ),
    "deep": script(
        ["deep_tables.py --quick --out {out}"],
        ["deep_tables.py --out {out}", "deep_partition.py --out {out}"],
        _UCI,
    ),
    "deep-speed": script(
        ["deep_speed.py --rounds 1 --seconds 0.02 --clock cpu --out {out}"],
        ["deep_speed.py --clock cpu --out {out}"],
    ),
}
