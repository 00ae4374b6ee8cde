"""Why MHSAEM-U ends below EM in figure 2: more steps, or no shrinkage to the pooled covariance?

The covariance of a component with fewer than D + 1 effective rows is shrunk to the one that
components have in common. MHSAEM-U at the paper's setting is fitted with five times the steps,
without that shrinkage, and with both changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

from pickmix.families.gaussian import FullGaussian
from pickmix_experiments.evidence import Line, Question
from pickmix_experiments.runner import perform
from pickmix_experiments.runs import MHSAEM_U, GaussianRun

_make_prior = FullGaussian.make_prior


def _without_shrinkage(family: Any, moments: Any, shrinkage: Any, n_rows: float) -> Any:
    return _make_prior(family, moments, "none", n_rows)


def cells(quick: bool) -> Iterator[Line]:
    for steps, shrinkage, annealing in ((100, 1, 1), (20, 0, 1), (20, 0, 0), (100, 0, 1)):
        for seed in range(1 if quick else 2):
            cell = {"shrinkage": bool(shrinkage), "annealing": bool(annealing), "seed": seed}
            yield {"steps": steps * (10 if quick else 1000), **cell}


def measure(steps: int, shrinkage: bool, annealing: bool, seed: int) -> Iterator[Line]:
    run = GaussianRun(MHSAEM_U, steps, seed, annealing=annealing)
    make_prior = _make_prior if shrinkage else _without_shrinkage
    with mock.patch.object(FullGaussian, "make_prior", make_prior):
        row = perform(run)
    end, truth = row["trace"]["log_likelihood"][-1], row["true_log_likelihood"]
    yield {"log_likelihood": end, "truth": truth, "seconds": row["wall_seconds"]}


QUESTION = Question(cells, measure, "steps shrinkage annealing", "log_likelihood truth seconds")
