"""Histories with made-up numbers."""

import numpy as np

from pickmix.experiments.reproduction.history import FACTS, SERIES, TEXTS, History


def history(run, outcome="max_steps", values=(-3.0, -2.0, -1.0), **facts):
    """A history whose log-likelihood has these values, a second and a step apart."""
    n = len(values)
    series = {name: np.arange(1.0, n + 1.0) for name in SERIES}
    series["log_likelihood"] = np.array(values, dtype=float)
    known = {name: "" if name in TEXTS else 0.5 for name in FACTS}
    known.update(outcome=outcome, limit_seconds=float("nan"), **facts)
    return History(run, series, known)
