"""A rival of a bench: warmed up, fitted under a meter, measured on held-out rows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from pickmix.experiments.fits.perform import Recorder
from pickmix.experiments.machine import versions
from pickmix.experiments.meter import Meter
from pickmix.experiments.real_tables import TABLES, parse_name, setting_of
from pickmix.experiments.rivals import RIVALS, Rival
from pickmix.experiments.runs import BenchRun
from pickmix.experiments.scoring import GaussianParameters, record_nothing
from pickmix.experiments.settings import HELD_OUT_ROWS, SETTINGS, BenchData, Setting

# Curves are measured on so many of the held-out rows, and only when the time has grown by this
# factor since the last point: time is drawn on a log axis.
CURVE_ROWS = 5_000
CURVE_SPACING = 1.1
# Of the small fit before the clock starts: more components than the default evaluates densely.
WARM_UP_COMPONENTS, WARM_UP_ROWS_EACH = 70, 20


def find_setting(name: str) -> Setting:
    """A setting of either bench by its name; `KeyError` if there is none."""
    if name in SETTINGS:
        return SETTINGS[name]
    table, K = parse_name(name) or (name, 0)
    return setting_of(TABLES[table if K else ""], K)


def perform(run: BenchRun, limit_seconds: float | None, threads: int, recorder: Recorder) -> None:
    """Make the data, warm up, fit and measure; the last record is the end of a fit that had one."""
    rival = RIVALS[run.algorithm]
    data = find_setting(run.setting).make(run.seed)
    n_rows, n_features = data.train.shape
    recorder.know(n_rows=n_rows, n_features=n_features, n_components=data.n_components)
    if (truth := data.true_log_density) is not None:
        recorder.know(true_test=truth.mean(), true_validation=truth[:CURVE_ROWS].mean())
    warm_up_seconds = _warm_up(rival, data)
    # Imported by now, so that what is installed is what runs.
    recorder.know(versions=versions(("numpy", "scikit-learn", *rival.packages)))
    meter = Meter(limit_seconds)
    last = 0.0

    def add(seconds: float, evaluations: float, found: GaussianParameters) -> None:
        recorder.add(
            seconds=seconds,
            evaluations=evaluations / n_rows,
            validation=float(found.score_samples(data.held_out[:CURVE_ROWS]).mean()),
            live_components=found.live_components(n_rows),
        )

    def record(evaluations: int, parameters: Callable[[], GaussianParameters]) -> None:
        nonlocal last
        with meter.paused():
            if meter.seconds >= CURVE_SPACING * last:
                last = meter.seconds
                add(last, evaluations, parameters())

    meter.start()
    try:
        fitted = rival.fit(data.train, data.n_components, run.seed, record)
    finally:
        meter.stop()
    add(meter.seconds - fitted.compile_seconds, fitted.evaluations, fitted.parameters)
    recorder.know(
        outcome=fitted.outcome,
        test=float(fitted.score_samples(data.held_out).mean()),
        train=float(fitted.score_samples(data.train[:HELD_OUT_ROWS]).mean()),
        compile_seconds=warm_up_seconds + fitted.compile_seconds,
        work_seconds=fitted.work_seconds,
        peak_megabytes=meter.peak_megabytes,
    )


def _warm_up(rival: Rival, data: BenchData) -> float:
    """Import and compile by a small fit of the same kind; return the seconds it took."""
    n_components = min(data.n_components, WARM_UP_COMPONENTS)
    rows = data.train[: WARM_UP_ROWS_EACH * n_components]
    started = time.perf_counter()
    # If it fails for want of rows, the fit itself may not; and if that fails, it says so.
    with contextlib.suppress(Exception):
        rival.fit(rows, n_components, 0, record_nothing).score_samples(rows)
    return time.perf_counter() - started
