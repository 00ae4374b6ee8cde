"""The record of a fit: one row per evaluation of the log-likelihood."""

from __future__ import annotations

import numpy as np

TRACE_DTYPE = np.dtype(
    [
        ("step", np.int64),
        ("epoch", np.float64),
        ("seconds", np.float64),
        ("evaluations", np.int64),
        ("log_likelihood", np.float64),
        ("validation", np.float64),
        ("acceptance", np.float64),
        ("live_components", np.int64),
    ]
)


class Trace:
    """Collects records; `table()` gives them as a structured array.

    Columns: step, epoch (passes over the data), seconds (work only: no evaluation, callback or
    progress bar), evaluations (of a component on a row), log_likelihood (mean per row), validation
    (the same on rows that are not learnt from, NaN without them), acceptance (mean acceptance
    probability since the last record), live_components.
    """

    def __init__(self, table: np.ndarray | None = None) -> None:
        self._records: list[tuple[float, ...]] = [] if table is None else table.tolist()

    def add(self, **values: float) -> None:
        self._records.append(tuple(values[name] for name in TRACE_DTYPE.names or ()))

    def __len__(self) -> int:
        return len(self._records)

    def table(self) -> np.ndarray:
        return np.array(self._records, dtype=TRACE_DTYPE)
