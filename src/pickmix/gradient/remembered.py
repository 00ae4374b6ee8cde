"""Parameters that a fit keeps, and when they are better than others by more than chance."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Remembered(NamedTuple):
    """Parameters of some moment: tables, log-weights (s,) and scores (V,) of validation rows."""

    tables: tuple[np.ndarray, ...]
    log_weights: np.ndarray
    scores: np.ndarray | None


def rises(scores: np.ndarray | None, before: np.ndarray | None) -> bool:
    """Whether the mean of scores (V,) is above that of others by more than chance.

    By one standard error of the differences, row by row: few rows say little.

    Examples
    --------
    >>> before = np.zeros(4)
    >>> rises(np.array([1.0, 1.1, 0.9, 1.0]), before), rises(np.array([4.0, -1, -1, -1]), before)
    (True, False)
    """
    if scores is None or before is None or scores.shape != before.shape:
        return False
    if not np.isfinite(before).all():
        return True
    differences = scores - before
    if differences.shape[0] < 2:
        return bool(differences.mean() > 0.0)
    error = differences.std(ddof=1) / np.sqrt(differences.shape[0])
    return bool(differences.mean() > error)
