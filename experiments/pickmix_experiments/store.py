"""Measurements of runs: the file that keeps them, and the frame that tables and pictures read.

The store is a file of JSON lines, one per run, that `pandas.read_json(path, lines=True)` reads: the
run's settings and seed, what was measured once, facts of the machine, and a `trace`, lists by name.
A line is appended when a run has finished, in one write: a killed process leaves whole runs or
nothing. A compressed file of the same name with .gz is read, too.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pickmix_experiments.runs import SETTINGS, Run

# One value per measurement. `seconds` is work: no evaluation and no compilation. `evaluations`
# counts component evaluations per training row so far. `validation` is of rows that are not fitted.
SERIES = (
    *("step", "seconds", "evaluations", "log_likelihood", "validation", "acceptance"),
    *("bias", "bias_by_chance", "live_components"),
)
# One value per run. `test` is the mean log-likelihood of test rows, under the parameters with the
# best validation value if there are validation rows.
TEXTS = ("outcome", "cpu", "versions", "finished_at")
NUMBERS = (
    *("limit_seconds", "true_log_likelihood", "true_validation", "true_test", "train", "test"),
    *("best_validation", "n_rows", "n_features", "n_components", "start_seconds"),
    *("compile_seconds", "work_seconds", "wall_seconds", "peak_megabytes", "threads"),
    "load_average",
)
# How a run can end that neither a time limit nor an error has ended.
COMPLETE = ("max_steps", "converged", "max_iter")
# Outcomes that a later attempt can change without any change in the software.
NOT_INSTALLED, NO_DATA, NOT_MADE = "not installed", "no data", "not made"
NOT_TRIED = (NOT_INSTALLED, NO_DATA, NOT_MADE)
# Significant digits of a trace: differences of log-likelihoods of -100 are shown to 0.001.
_DIGITS = 8

# What the store has of one run, as in its line.
Row = dict[str, Any]
Rows = Mapping[Any, Row]


def make_row(run: Run, records: Iterable[Mapping[str, float]], facts: Mapping[str, Any]) -> Row:
    """Make the line of a run from records (names of `SERIES`) and facts; both may lack names."""
    rows = list(records)
    row = {"spec": run.spec, **run.settings(), "seed": run.seed}
    row |= {name: fact for name, fact in facts.items() if fact != "" and fact == fact}
    trace = {name: [_rounded(one.get(name)) for one in rows] for name in SERIES}
    row["trace"] = {n: values for n, values in trace.items() if any(v is not None for v in values)}
    return row


def _rounded(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded


class Store:
    """Rows of runs, by key, in a file of JSON lines, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}
        compressed = path.with_name(f"{path.name}.gz")
        for file, read in ((compressed, gzip.decompress), (path, bytes)):
            for line in read(file.read_bytes()).splitlines() if file.exists() else ():
                # What a killed process left is no JSON.
                with contextlib.suppress(json.JSONDecodeError, UnicodeDecodeError):
                    row = json.loads(line)
                    # Lines of other versions are not read, and their runs are made again.
                    if "trace" in row:
                        self.rows[f"{row['spec']}-{row['seed']}"] = row

    def has(self, run: Run, limit_seconds: float | None = None) -> bool:
        """Return whether nothing would be gained by making a run under this limit.

        A run that a limit cut is made again if it may now take longer; one that failed is not, as
        it would fail again.
        """
        row = self.rows.get(run.key)
        if row is None or row["outcome"].startswith(NOT_TRIED):
            return False
        before = row.get("limit_seconds")
        if row["outcome"] != "max_time" or before is None:
            return True
        return limit_seconds is not None and limit_seconds <= before

    def add(self, row: Row) -> None:
        """Keep a row; it replaces an earlier one of the same run."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            # The line break before it ends what a killed process may have left.
            file.write(f"\n{json.dumps(row, separators=(',', ':'), default=float)}\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows[f"{row['spec']}-{row['seed']}"] = row


def frame_of(rows: Rows, runs: Iterable[Run] | None = None, every: bool = False) -> pd.DataFrame:
    """Return a frame with a row for each run that was measured and did not fail, each once.

    Without `runs`, those are all that have rows. With `every`, failed and missing runs are in it,
    too. Columns are settings, facts, `trace` (arrays by name), `failed` and `cut` (the run did not
    come to its end, most often for its time limit); the last `seconds`, `evaluations`,
    `live_components` and training log-likelihood (`final`); `t95`, `t95_seconds` and
    `t95_evaluations`; and `error`, the distance of t95 from the true mixture.
    """
    if runs is None:
        chosen = list(rows.values())
    else:
        missing = {"outcome": NOT_MADE}
        chosen = [rows.get(r.key) or make_row(r, [], missing) for r in dict.fromkeys(runs)]
    frame = pd.DataFrame(chosen, columns=[*SETTINGS, *TEXTS, *NUMBERS, "trace"])
    frame = frame.assign(**{name: frame[name].astype(float) for name in NUMBERS})
    frame = frame.assign(**{n: frame[n].astype(object).where(frame[n].notna(), "") for n in TEXTS})
    frame["failed"] = frame["outcome"].str.startswith(("failed", *NOT_TRIED)).astype(bool)
    frame["cut"] = ~frame["outcome"].isin(COMPLETE)
    if not every:
        frame = frame[~frame["failed"]]
    traces = [_arrays(trace) for trace in frame["trace"]]
    t95 = [t95_index(trace["log_likelihood"]) for trace in traces]
    derived: dict[str, Any] = {"trace": traces, "t95_index": t95}
    ends = {n: n for n in ("seconds", "evaluations", "live_components")}
    for column, name in (ends | {"final": "log_likelihood"}).items():
        derived[column] = [trace[name][-1] for trace in traces]
    for column, name in (("t95", "log_likelihood"), *((f"t95_{n}", n) for n in list(ends)[:2])):
        derived[column] = [at(trace, i, name) for trace, i in zip(traces, t95, strict=True)]
    frame = frame.assign(**derived)
    return frame.assign(error=(frame["t95"] - frame["true_log_likelihood"]).abs())


def _arrays(trace: Mapping[str, list[float]]) -> dict[str, np.ndarray]:
    """Return arrays (P,) of all names of `SERIES`, P >= 1; what was not measured is NaN."""
    n_records = max([1, *map(len, trace.values())])
    empty = [math.nan] * n_records
    return {name: np.array(trace.get(name, empty), dtype=float) for name in SERIES}


def at(trace: Mapping[str, np.ndarray], index: int, name: str) -> float:
    """Return a record of a trace; NaN if the index is -1."""
    return math.nan if index < 0 else float(trace[name][index])


def t95_index(values: np.ndarray) -> int:
    """Return the first record with L_t >= L_max - 0.05 |L_max|; -1 if no value is finite.

    Examples
    --------
    >>> t95_index(np.array([-200.0, -104.0, -100.0])), t95_index(np.array([1.0, 94.0, 95.0, 100.0]))
    (1, 2)
    """
    values = np.where(np.isfinite(values), values, -np.inf)
    highest = values.max(initial=-np.inf)
    if highest == -np.inf:
        return -1
    return int(np.argmax(values >= highest - 0.05 * abs(highest)))


def median(values: Any) -> float:
    """Return the median of the finite values; NaN if there are none."""
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values)]
    return float(np.median(values)) if values.size else math.nan
