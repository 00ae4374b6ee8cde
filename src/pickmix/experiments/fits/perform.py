"""One run, whatever its kind: the function that processes and clusters call."""

from __future__ import annotations

import importlib
import math
import time
import warnings
from datetime import UTC, datetime
from typing import Any

import numpy as np

from pickmix.experiments.machine import cpu_name, load_average, versions
from pickmix.experiments.runs import Run
from pickmix.experiments.store import NO_DATA, History, make_history

_RECORDS = 60
_PACKAGES = ("numpy", "numba", "scikit-learn", "jax")


def record_steps(n_steps: int) -> list[int]:
    """Steps at which to measure: evenly spaced on a log axis, the first and the last among them."""
    return sorted({round(step) for step in np.geomspace(1, max(1, n_steps), _RECORDS)})


class Recorder:
    """Collects what one run measures: records on the way, and facts."""

    def __init__(self) -> None:
        self.records: list[dict[str, float]] = []
        self.facts: dict[str, Any] = {}

    def add(self, **values: float) -> None:
        """Append a record, names of `SERIES`."""
        self.records.append(values)

    def know(self, **facts: Any) -> None:
        """Keep facts, names of `FACTS`."""
        self.facts |= facts

    def shift(self, **amounts: float) -> None:
        """Add amounts to all records."""
        for record in self.records:
            record.update({name: record[name] + amount for name, amount in amounts.items()})


def perform(
    run: Run, limit_seconds: float | None = None, threads: int = 1, recorder: Recorder | None = None
) -> History:
    """Make a run, under a limit of work; the recorder may be one that does more than collect.

    The outcome is "failed: ..." of a fit that raised, and "no data: ..." without its files.
    """
    recorder = recorder or Recorder()
    started = time.perf_counter()
    recorder.know(
        limit_seconds=math.nan if limit_seconds is None else limit_seconds,
        threads=threads,
        cpu=cpu_name(),
        load_average=load_average(),
        versions=versions(_PACKAGES),
    )
    # Here and not above: Gaussian runs need no JAX.
    name = "deep" if run.kind == "default" else run.kind
    module = importlib.import_module(f"pickmix.experiments.fits.{name}_run")
    try:
        with warnings.catch_warnings():
            # Of fits that have not converged; the outcome says so.
            warnings.simplefilter("ignore")
            module.perform(run, limit_seconds, threads, recorder)
    except FileNotFoundError as error:
        recorder.know(outcome=f"{NO_DATA}: {error}")
    except Exception as error:
        # An error of a fit is the outcome of its run; the other runs continue.
        lines = str(error).strip().splitlines() or [""]
        recorder.know(outcome=f"failed: {type(error).__name__}: {lines[0]}".removesuffix(": "))
    recorder.know(
        wall_seconds=time.perf_counter() - started,
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return make_history(run, recorder.records, recorder.facts)
