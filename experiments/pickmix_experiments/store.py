"""Measurements of runs: histories, the store that keeps them, and what is read off them.

The store is a file of JSON lines, one per run, that `pandas.read_json(path, lines=True)` reads: the
run's settings and seed, its facts, and its series as lists. A line is appended when a run has
finished, in one write: a killed process leaves whole runs or nothing.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pickmix_experiments.runs import Run, run_of

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


@dataclass(frozen=True, eq=False)
class History:
    """The record of one run. Values that were not measured are NaN or ""."""

    run: Run
    #: Arrays (P,) by the names of `SERIES`.
    series: dict[str, np.ndarray]
    #: Values by the names of `TEXTS` and `NUMBERS`.
    facts: dict[str, Any]

    @property
    def failed(self) -> bool:
        """True if there is nothing to draw."""
        return str(self.facts["outcome"]).startswith(("failed", *NOT_TRIED))

    @property
    def cut(self) -> bool:
        """True if the run did not come to its end, most often for its time limit."""
        return self.facts["outcome"] not in COMPLETE

    def at(self, index: int, name: str) -> float:
        """Return a record of a series; NaN if the index is -1."""
        return math.nan if index < 0 else float(self.series[name][index])


def make_history(
    run: Run, records: Iterable[Mapping[str, float]], facts: Mapping[str, Any]
) -> History:
    """Make a history from records and facts that may lack names, with at least one record."""
    rows = list(records) or [{}]
    return _history(run, {n: [row.get(n) for row in rows] for n in SERIES} | dict(facts))


def _history(run: Run, values: Mapping[str, Any]) -> History:
    n_records = max(len(values.get(name, ())) for name in SERIES)
    empty = [math.nan] * n_records
    series = {name: np.array(values.get(name, empty), dtype=float) for name in SERIES}
    texts = {name: values.get(name) for name in TEXTS}
    # Empty texts come back from CSV files as NaN.
    facts: dict[str, Any] = {n: text if isinstance(text, str) else "" for n, text in texts.items()}
    numbers = {name: values.get(name) for name in NUMBERS}
    facts |= {name: math.nan if n is None else float(n) for name, n in numbers.items()}
    return History(run, series, facts)


class Store:
    """Histories of runs in a file of JSON lines, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._histories: dict[str, History] = {}
        for read, suffix in ((_read_table, ".parquet"), (_read_table, ".csv"), (_read, ".jsonl")):
            if (file := path.with_suffix(suffix)).exists():
                self._histories |= {history.run.key: history for history in read(file)}

    def get(self, run: Run) -> History | None:
        return self._histories.get(run.key)

    def histories(self) -> dict[str, History]:
        return dict(self._histories)

    def has(self, run: Run, limit_seconds: float | None = None) -> bool:
        """Return whether nothing would be gained by making a run under this limit.

        A run that a limit cut is made again if it may now take longer; one that failed is not, as
        it would fail again.
        """
        history = self.get(run)
        if history is None or history.facts["outcome"].startswith(NOT_TRIED):
            return False
        before = history.facts["limit_seconds"]
        if history.facts["outcome"] != "max_time" or math.isnan(before):
            return True
        return limit_seconds is not None and limit_seconds <= before

    def add(self, history: History) -> None:
        """Keep a history; it replaces an earlier one of the same run."""
        run = history.run
        line = {"spec": run.spec, "settings": json.dumps(run.settings()), "seed": run.seed}
        line |= {
            name: fact for name, fact in history.facts.items() if fact != "" and pd.notna(fact)
        }
        for name, values in history.series.items():
            if not np.isnan(values).all():
                line[name] = [None if math.isnan(value) else value for value in values.tolist()]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            # The line break before it ends what a killed process may have left.
            file.write(f"\n{json.dumps(line, separators=(',', ':'))}\n")
            file.flush()
            os.fsync(file.fileno())
        self._histories[run.key] = history


def _read(path: Path) -> Iterator[History]:
    for line in path.read_text("utf-8").splitlines():
        # What a killed process left is no JSON.
        with contextlib.suppress(json.JSONDecodeError):
            values = json.loads(line)
            # Version 0.2 had measurements one level down.
            values |= values.pop("series", {}) | values.pop("facts", {})
            if run := run_of(values["settings"], values["seed"]):
                yield _history(run, values)


def _read_table(path: Path) -> Iterator[History]:
    """Read a file of version 0.2, with a row for each measurement."""
    if path.suffix == ".parquet":
        table = pd.read_parquet(path)
    else:
        table = pd.read_csv(path, keep_default_na=False, na_values=[""])
    missing = [name for name in ("settings", "seed", *SERIES) if name not in table]
    if missing:
        message = f"expected the columns settings, seed, ...; {missing[0]} is missing"
        raise ValueError(f"{path}: {message}")
    for (settings, seed), rows in table.groupby(["settings", "seed"], sort=False):
        if run := run_of(settings, int(seed)):
            yield _history(run, {**rows.iloc[0], **{name: rows[name] for name in SERIES}})


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


def at_common_target(one: History, other: History) -> list[int]:
    """Return the first records at the lower of two final training log-likelihoods, -1 if none.

    Near L = 0 a share of |L_max| means nothing, so that t95 breaks; this does not.
    """
    curves = [history.series["log_likelihood"] for history in (one, other)]
    # NaN if one of the ends is.
    target = np.min([curve[-1] for curve in curves])
    reached = [np.flatnonzero(curve >= target) for curve in curves if np.isfinite(target)]
    return [int(indices[0]) if indices.size else -1 for indices in reached] or [-1, -1]


def frame_of(
    runs: Iterable[Run], histories: Mapping[str, History], every: bool = False
) -> pd.DataFrame:
    """Return a frame with a row for each run that was measured and did not fail, each once.

    With `every`, those that failed or are missing have rows, too. Columns are the run's settings,
    its facts, and `run`, `history`, `failed`, `cut`; the last `seconds`, `evaluations`,
    `live_components` and training log-likelihood (`final`); `t95`, `t95_seconds` and
    `t95_evaluations`; and `error`, the distance of t95 from the true mixture.
    """
    rows = []
    for run in dict.fromkeys(runs):
        history = histories.get(run.key) or make_history(run, [], {"outcome": NOT_MADE})
        if history.failed and not every:
            continue
        index, end = t95_index(history.series["log_likelihood"]), len(history.series["step"]) - 1
        row = {**asdict(run), **history.facts, "run": run, "history": history}
        row |= {"failed": history.failed, "cut": history.cut}
        row |= {n: history.at(end, n) for n in ("seconds", "evaluations", "live_components")}
        row |= {f"t95_{name}": history.at(index, name) for name in ("seconds", "evaluations")}
        row["final"], row["t95"] = (history.at(i, "log_likelihood") for i in (end, index))
        row["error"] = abs(row["t95"] - history.facts["true_log_likelihood"])
        rows.append(row)
    return pd.DataFrame(rows)


def median(values: Any) -> float:
    """Return the median of the finite values; NaN if there are none."""
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values)]
    return float(np.median(values)) if values.size else math.nan


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean of the positive, finite values; NaN if there are none."""
    logs = [math.log(value) for value in values if math.isfinite(value) and value > 0.0]
    return math.exp(math.fsum(logs) / len(logs)) if logs else math.nan
