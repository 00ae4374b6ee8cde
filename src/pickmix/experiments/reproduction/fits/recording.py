"""Rows that a run measures, and when."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime

import numpy as np

from pickmix.experiments.machine import cpu_name, load_average, versions
from pickmix.experiments.reproduction.history import FACTS, SERIES, TEXTS, History
from pickmix.experiments.reproduction.runs import Run

_RECORDS = 60
_PACKAGES = ("numpy", "numba", "scikit-learn", "jax")


def record_steps(n_steps: int, n_records: int = _RECORDS) -> list[int]:
    """Steps at which to measure: evenly spaced on a log axis, the first and the last among them.

    Examples
    --------
    >>> record_steps(1000, 4)
    [1, 10, 100, 1000]
    """
    return sorted({round(step) for step in np.geomspace(1, max(1, n_steps), n_records)})


class Recorder:
    """Collects the series of one run."""

    def __init__(self) -> None:
        self._records: list[dict[str, float]] = []

    def add(self, **values: float) -> None:
        """Append a record; what is not given is NaN."""
        self._records.append(values)

    def history(self, run: Run, facts: Mapping[str, float | str]) -> History:
        """All records with the run's facts, machine and versions."""
        records = self._records or [{}]
        series = {
            name: np.array([record.get(name, math.nan) for record in records], dtype=np.float64)
            for name in SERIES
        }
        known = {**machine(), **facts}
        missing = {name: "" if name in TEXTS else math.nan for name in FACTS}
        return History(run, series, {name: known.get(name, missing[name]) for name in FACTS})


def machine() -> dict[str, float | str]:
    """Facts of here and now."""
    return {
        "cpu": cpu_name(),
        "load_average": load_average(),
        "versions": versions(_PACKAGES),
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
