"""One fit of a bench, in a process of its own so that its peak memory means something.

    python -m pickmix.experiments.one_run SETTING RIVAL SEED OUT [MAX_SECONDS]

It writes rows of `results.COLUMNS` as lines of JSON; what a killed process has measured stays.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pickmix.experiments.fitted import Fitted, record_nothing
from pickmix.experiments.machine import cpu_count, load_average, versions
from pickmix.experiments.meter import Meter
from pickmix.experiments.real_tables import parse_setting
from pickmix.experiments.results import CURVE, END, FACTS, NO_DATA, Row
from pickmix.experiments.rivals import RIVALS, Rival
from pickmix.experiments.scoring import GaussianParameters
from pickmix.experiments.settings import HELD_OUT_ROWS, SETTINGS, BenchData, Setting

# Curves are measured on so many of the held-out rows, and only when the time has grown by this
# factor since the last point: time is drawn on a log axis.
CURVE_ROWS = 5_000
CURVE_SPACING = 1.1
# Of the small fit before the clock starts: more components than the default evaluates densely.
WARM_UP_COMPONENTS, WARM_UP_ROWS_EACH = 70, 20


def perform(
    setting: Setting,
    rival: Rival,
    seed: int,
    emit: Callable[[Row], None],
    max_seconds: float | None = None,
) -> None:
    """Make the data, warm up, fit and measure; `emit` gets rows, the last of kind "end"."""
    facts: Row = {"cpu_count": cpu_count(), "load_average": load_average()}
    try:
        data = setting.make(seed)
    except OSError as error:
        emit({"kind": END, "outcome": f"{NO_DATA}: {error}", **facts})
        return
    n_rows, n_features = data.train.shape
    facts.update(n_rows=n_rows, n_features=n_features, n_components=data.n_components)
    warm_up_seconds = _warm_up(rival, data)
    # Imported by now, so that what is installed is what runs.
    facts.update(versions=versions(("numpy", "scikit-learn", *rival.packages)), **_truth(data))

    meter = Meter(max_seconds)
    some = data.held_out[:CURVE_ROWS]
    last = 0.0

    def record(evaluations: int, parameters: Callable[[], GaussianParameters]) -> None:
        nonlocal last
        with meter.paused():
            if meter.seconds < CURVE_SPACING * last:
                return
            last = meter.seconds
            snapshot = parameters()
            row = {
                "kind": CURVE,
                "seconds": meter.seconds,
                "evaluations_per_row": evaluations / n_rows,
                "held_out_some": float(snapshot.score_samples(some).mean()),
                "live_components": snapshot.live_components(n_rows),
            }
            emit({**row, **facts})

    # If the process is killed, this is what is known of the run.
    emit({"kind": FACTS, **facts})
    meter.start()
    try:
        try:
            fitted = rival.fit(data.train, data.n_components, seed, record)
        finally:
            meter.stop()
        row = _end_row(fitted, data)
    except Exception as error:
        # Whatever another library raises is this run's outcome; the bench goes on.
        emit({"kind": END, "outcome": f"failed: {_first_line(error)}", **facts})
        return
    row["seconds"] = meter.seconds - fitted.compile_seconds
    row["compile_seconds"] = warm_up_seconds + fitted.compile_seconds
    row["peak_megabytes"] = meter.peak_megabytes
    emit({**row, **facts})


def _end_row(fitted: Fitted, data: BenchData) -> Row:
    n_rows = data.train.shape[0]
    scores = fitted.score_samples(data.held_out)
    return {
        "kind": END,
        "outcome": fitted.outcome,
        "work_seconds": fitted.work_seconds,
        "evaluations_per_row": None if fitted.evaluations is None else fitted.evaluations / n_rows,
        "held_out": float(scores.mean()),
        "held_out_some": float(scores[:CURVE_ROWS].mean()),
        "train": float(fitted.score_samples(data.train[:HELD_OUT_ROWS]).mean()),
        "live_components": fitted.parameters.live_components(n_rows),
    }


def _truth(data: BenchData) -> Row:
    if data.true_log_density is None:
        return {}
    return {
        "true_held_out": float(data.true_log_density.mean()),
        "true_held_out_some": float(data.true_log_density[:CURVE_ROWS].mean()),
    }


def _warm_up(rival: Rival, data: BenchData) -> float:
    """Import and compile by a small fit of the same kind; return the seconds it took."""
    n_components = min(data.n_components, WARM_UP_COMPONENTS)
    rows = data.train[: WARM_UP_ROWS_EACH * n_components]
    started = time.perf_counter()
    # If it fails for want of rows, the fit itself may not; and if that fails, it says so.
    with contextlib.suppress(Exception):
        rival.fit(rows, n_components, 0, record_nothing).score_samples(rows)
    return time.perf_counter() - started


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _leave_with_parent() -> None:
    """End this process when standard input closes: the one that started it is gone."""

    def wait() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _offer_to_be_killed() -> None:
    # A rival that wants more memory than there is must not cost another process its life.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def main(arguments: list[str]) -> None:
    """Run as a process of its own."""
    setting, rival, seed, out, *limit = arguments
    _leave_with_parent()
    _offer_to_be_killed()
    with open(out, "a", encoding="utf-8") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")

        def emit(row: Row) -> None:
            file.write(json.dumps(row, default=_plain) + "\n")
            file.flush()

        max_seconds = float(limit[0]) if limit else None
        perform(_find_setting(setting), RIVALS[rival], int(seed), emit, max_seconds)


def _find_setting(name: str) -> Setting:
    """A setting of either bench by its name."""
    return SETTINGS[name] if name in SETTINGS else parse_setting(name)


def _plain(value: Any) -> Any:
    """NumPy's scalars as JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"expected a number or a string, got {type(value).__name__}")


if __name__ == "__main__":
    main(sys.argv[1:])
