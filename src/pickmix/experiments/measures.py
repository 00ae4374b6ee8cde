"""What is read off histories: t95, the time to a target, errors and means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from pickmix.experiments.runs import Run
from pickmix.experiments.store import NOT_MADE, History, make_history


def t95_index(values: np.ndarray) -> int:
    """First record with L_t >= L_max - 0.05 |L_max|; -1 if no value is finite.

    Examples
    --------
    >>> t95_index(np.array([-200.0, -104.0, -100.0])), t95_index(np.array([1.0, 94.0, 95.0, 100.0]))
    (1, 2)
    """
    values = np.where(np.isfinite(values), values, -np.inf)
    if values.size == 0 or values.max() == -np.inf:
        return -1
    highest = values.max()
    return int(np.argmax(values >= highest - 0.05 * abs(highest)))


def at(history: History, index: int, name: str) -> float:
    """A record of a series; NaN if the index is -1."""
    return math.nan if index < 0 else float(history.series[name][index])


def at_common_target(one: History, other: History) -> tuple[int, int]:
    """First records at the lower of two final training log-likelihoods; -1 if there is none.

    Near L = 0 a share of |L_max| means nothing, so that t95 breaks; this does not.
    """
    curves = [history.series["log_likelihood"] for history in (one, other)]
    ends = [float(curve[-1]) if len(curve) else math.nan for curve in curves]
    # A minimum with NaN may be either of its arguments.
    target = min(ends) if np.isfinite(ends).all() else math.nan
    first, second = (np.flatnonzero(curve >= target) for curve in curves)
    return int(first[0]) if first.size else -1, int(second[0]) if second.size else -1


def frame_of(runs: Iterable[Run], histories: Mapping[str, History], every: bool = False) -> Any:
    """A pandas frame with a row for each run that was measured and did not fail, each once.

    With `every`, those that failed or are missing have rows, too. Columns are the run's settings,
    its facts, and `run`, `history`, `failed`, `cut`; the last `seconds`, `evaluations`,
    `live_components` and training log-likelihood (`final`); `t95`, `t95_seconds` and
    `t95_evaluations`; and `error`, the distance of t95 from the true mixture.
    """
    import pandas as pd

    rows = []
    for run in dict.fromkeys(runs):
        history = histories.get(run.key) or make_history(run, [], {"outcome": NOT_MADE})
        if history.failed and not every:
            continue
        index = t95_index(history.series["log_likelihood"])
        end = len(history.series["step"]) - 1
        row = {**asdict(run), **history.facts, "run": run, "history": history}
        row |= {"failed": history.failed, "cut": history.cut}
        row |= {n: at(history, end, n) for n in ("seconds", "evaluations", "live_components")}
        row |= {f"t95_{name}": at(history, index, name) for name in ("seconds", "evaluations")}
        row["final"], row["t95"] = (at(history, i, "log_likelihood") for i in (end, index))
        row["error"] = abs(row["t95"] - history.facts["true_log_likelihood"])
        rows.append(row)
    return pd.DataFrame(rows)


def median(values: Any) -> float:
    """Median of the finite values; NaN if there are none."""
    finite = np.asarray(values, dtype=float)
    finite = finite[np.isfinite(finite)]
    return float(np.median(finite)) if finite.size else math.nan


def geometric_mean(values: Iterable[float]) -> float:
    """Geometric mean of the positive, finite values; NaN if there are none."""
    logs = [math.log(value) for value in values if math.isfinite(value) and value > 0.0]
    return math.exp(math.fsum(logs) / len(logs)) if logs else math.nan
