"""Questions that are programs: benches with commands of their own, and scripts of `benchmarks/`.

A row has what the program printed. Its files go to a folder beside the rows.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pickmix_experiments.evidence import Line, Question

FOLDER = Path(__file__).parents[3] / "benchmarks"
# Of what a program without tables prints.
_LAST_LINES = 25


def run(command: str) -> Iterator[Line]:
    """Run a command in a process."""
    # Small runs and those at full size have folders of their own: both resume.
    out = Path(os.environ["PICKMIX_BENCH_OUT"]).resolve() / re.sub(r"\W+", "-", command)
    out.mkdir(parents=True, exist_ok=True)
    data = os.environ.get("PICKMIX_DATA", "")
    program, *words = [word.format(data=data) for word in command.split()]
    # These two write a file, and low_rank.py looks at the variable.
    is_file = program in ("small_tables.py", "automatic_number.py")
    if program != "low_rank.py":
        words += ["--out", str(out / "lines.jsonl" if is_file else out)]
    if program == "pickmix":
        words = ["-m", "pickmix", *words]
    elif not (FOLDER / program).is_file():
        raise FileNotFoundError(f"expected {program} in {FOLDER}: it comes with a clone of pickmix")
    else:
        words = [str(FOLDER / program), *words]
    environment = os.environ | {"PICKMIX_BENCH_OUT": str(out)}
    done = subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    tables = [line for line in done.stdout.splitlines() if line.startswith("|")]
    shown = "\n".join(tables or done.stdout.strip().splitlines()[-_LAST_LINES:])
    # A table ends where the next one has its line of dashes.
    shown = re.sub(r"(?<=\|)\n(?=\|[^\n]*\n\| ?-)", "\n\n", shown)
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    yield {"output": shown, "program_megabytes": memory}


def _script(quick: str, needs: str = "", *full: str) -> Question:
    def cells(is_quick: bool) -> list[Line]:
        return [{"command": command} for command in ((quick,) if is_quick else commands) if command]

    commands = full or (quick.split()[0],)
    return Question(cells, run, "command", "", needs)


# A small run, files that it needs, and runs at full size, if these are not the script alone.
SCRIPTS = {
    "tables": _script("pickmix bench tables --quick", "", "pickmix bench tables --max-seconds 600"),
    "gaussian": _script("pickmix bench gaussian --quick", "", "pickmix bench gaussian"),
    "anomalies": _script(
        "pickmix bench anomalies --seeds 1 --set 45_wine --set 6_cardio",
        "adbench/published-semi.csv",
        "pickmix bench anomalies",
    ),
    "small-tables": _script("small_tables.py --quick"),
    "automatic-number": _script(
        "automatic_number.py --only generated-5", "tables/shuttle.npz loda/iris/normal.txt"
    ),
    "proposals": _script("proposals.py --quick"),
    "visits": _script(
        "visit_cost.py --quick", "", "visit_cost.py", "visit_cost.py --parts --clock cpu"
    ),
    "million": _script("million.py --components 1000 --rows 20000 --groups 20"),
    "drawn-tables": _script("drawn_tables.py --quick --sets magic", "synthetic/magic-train.csv"),
    "synthetic-rows": _script("synthetic_rows.py --quick --sets penguins"),
    "binary-tables": _script("binary_tables.py --quick", "debd/nltcs.npz"),
    "conditional-density": _script(
        "conditional_density.py --quick --sets energy", "uci-regression/energy.npz"
    ),
    "mixed-table": _script("mixed_table.py --quick"),
    "low-rank": _script(
        "low_rank.py digits",
        "",
        *(f"low_rank.py {part}" for part in ("visits", "digits", "gaps", "generated")),
        "low_rank.py embeddings {data}/wide/embeddings512.npz",
    ),
    "deep": _script(
        "deep_tables.py --quick", "loda/iris/normal.txt", "deep_tables.py", "deep_partition.py"
    ),
    # Compiles for minutes.
    "deep-speed": _script("", "", "deep_speed.py --clock cpu"),
}
