"""What one run measured, as figures and tables see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pickmix.experiments.reproduction.runs import Run

# One value per evaluation. `seconds` is work: no evaluation, no compilation, no start.
# `evaluations` counts component evaluations per training row so far.
SERIES = (
    "step",
    "seconds",
    "evaluations",
    "log_likelihood",
    "validation",
    "acceptance",
    "bias",
    "bias_by_chance",
    "live_components",
)
# One value per run.
FACTS = (
    "outcome",
    "limit_seconds",
    "true_log_likelihood",
    "test",
    "best_validation",
    "n_rows",
    "n_features",
    "start_seconds",
    "compile_seconds",
    "wall_seconds",
    "threads",
    "cpu",
    "load_average",
    "versions",
    "finished_at",
)
TEXTS = ("outcome", "cpu", "versions", "finished_at")
# How a run can end that was not broken off by a time limit or an error.
COMPLETE = ("max_steps", "converged", "max_iter")


@dataclass(frozen=True, eq=False)
class History:
    """One run's record.

    Attributes
    ----------
    run : Run
    series : dict of str to (P,) float arrays
        The names of `SERIES`, by rising step; NaN where nothing was measured.
    facts : dict
        The names of `FACTS`; NaN where not known. `test` is the mean log-likelihood per test row of
        the parameters with the best validation value.
    """

    run: Run
    series: Mapping[str, np.ndarray]
    facts: Mapping[str, float | str]

    @property
    def failed(self) -> bool:
        """Whether there is nothing to draw."""
        return str(self.facts["outcome"]).startswith("failed")
