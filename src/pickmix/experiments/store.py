"""What runs measured, and the store: one table, a row per measurement, whole runs only.

A run that has finished is appended to a journal, one line of JSON in one write, so that a killed
process leaves whole runs or nothing. `compact` moves the journal into the table, a Parquet or CSV
file. Its rows repeat what is known of their run, the settings as one column of JSON, so that any
tool can read it alone.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pickmix.data.files import replacing
from pickmix.experiments.runs import Run, run_of

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
FACTS = TEXTS + NUMBERS
# How a run can end that was not broken off by a time limit or an error.
COMPLETE = ("max_steps", "converged", "max_iter")
# Outcomes that a later attempt can change without any change in the software.
NOT_INSTALLED, NO_DATA, NOT_MADE = "not installed", "no data", "not made"
NOT_TRIED = (NOT_INSTALLED, NO_DATA, NOT_MADE)


@dataclass(frozen=True, eq=False)
class History:
    """One run's record: arrays (P,) by the names of `SERIES`, values by those of `FACTS`.

    What was not measured is NaN, what is not known NaN or "".
    """

    run: Run
    series: dict[str, np.ndarray]
    facts: dict[str, Any]

    @property
    def failed(self) -> bool:
        """Whether there is nothing to draw."""
        return str(self.facts["outcome"]).startswith(("failed", *NOT_TRIED))

    @property
    def cut(self) -> bool:
        """Whether the run was cut, most often by its time limit."""
        return self.facts["outcome"] not in COMPLETE


def make_history(
    run: Run, records: Iterable[Mapping[str, float]], facts: Mapping[str, Any]
) -> History:
    """A history from records and facts that may lack names; at least one record is made."""
    rows = list(records) or [{}]
    series = {name: np.array([row.get(name, np.nan) for row in rows], float) for name in SERIES}
    return _history(run, series, facts)


def _history(run: Run, series: dict[str, np.ndarray], facts: Mapping[str, Any]) -> History:
    texts = {name: facts.get(name) for name in TEXTS}
    # Empty texts come back from CSV files as NaN.
    known: dict[str, Any] = {n: text if isinstance(text, str) else "" for n, text in texts.items()}
    for name in NUMBERS:
        value = facts.get(name)
        known[name] = math.nan if value is None else float(value)
    return History(run, series, known)


class Store:
    """Histories of runs in a .parquet or .csv file, which need not exist yet.

    Until `compact`, a journal stands beside it, with the suffix .jsonl.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._journal = path.with_suffix(".jsonl")
        self._histories: dict[str, History] = {}
        self._read()

    def _read(self) -> None:
        for read, file in ((_read_table, self.path), (_read_journal, self._journal)):
            if file.exists():
                self._histories |= {history.run.key: history for history in read(file)}

    def get(self, run: Run) -> History | None:
        """The history of a run, if it is there."""
        return self._histories.get(run.key)

    def histories(self) -> dict[str, History]:
        """All histories by the keys of their runs."""
        return dict(self._histories)

    def has(self, run: Run, limit_seconds: float | None = None) -> bool:
        """Whether nothing would be gained by making a run under this limit.

        A run that a limit cut is made again if it may now take longer; one that failed is not,
        as it would fail again.
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
        line = {
            "settings": json.dumps(run.settings()),
            "seed": run.seed,
            "series": {name: values.tolist() for name, values in history.series.items()},
            "facts": history.facts,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._journal, "a", encoding="utf-8") as file:
            # The line break before it ends what a killed process may have left.
            file.write(f"\n{json.dumps(line)}\n")
            file.flush()
            os.fsync(file.fileno())
        self._histories[run.key] = history

    def compact(self) -> None:
        """Move the journal into the table; if killed on the way, every run is in one of them."""
        if not self._journal.exists():
            return
        import pandas as pd

        # Another process may have added to either.
        self._read()
        frames = {}
        for history in self._histories.values():
            run, settings = history.run, json.dumps(history.run.settings())
            same = {"spec": run.spec, "settings": settings, "seed": run.seed}
            frames[settings, run.seed] = pd.DataFrame({**same, **history.series, **history.facts})
        # Alike rows beside each other: small files, and the same file whoever finished first.
        table = pd.concat([frames[place] for place in sorted(frames)], ignore_index=True)
        with replacing(self.path) as temporary:
            if self.path.suffix == ".csv":
                table.to_csv(temporary, index=False)
            else:
                table.to_parquet(temporary, index=False, compression="zstd")
        self._journal.unlink()


def _read_table(path: Path) -> Iterator[History]:
    import pandas as pd

    if path.suffix == ".csv":
        texts = dict.fromkeys(("settings", *TEXTS), str)
        table = pd.read_csv(path, dtype=texts, keep_default_na=False, na_values=[""])
    else:
        table = pd.read_parquet(path)
    missing = [name for name in ("settings", "seed", *SERIES) if name not in table]
    if missing:
        message = f"expected the columns settings, seed, ...; {missing[0]} is missing"
        raise ValueError(f"{path}: {message}")
    for (settings, seed), rows in table.groupby(["settings", "seed"], sort=False):
        run = run_of(settings, int(seed))
        if run is not None:
            series = {name: rows[name].to_numpy(dtype=float) for name in SERIES}
            yield _history(run, series, rows.iloc[0])


def _read_journal(path: Path) -> Iterator[History]:
    for line in path.read_text("utf-8").splitlines():
        # What a killed process left is no JSON.
        with contextlib.suppress(json.JSONDecodeError):
            found = json.loads(line)
            run = run_of(found["settings"], found["seed"])
            if run is not None:
                series = {name: np.array(found["series"][name], float) for name in SERIES}
                yield _history(run, series, found["facts"])
