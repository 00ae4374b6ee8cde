"""Compile before the clock starts: work time must not measure Numba's compiler."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from sklearn.base import clone

from pickmix.data.rows import ArrayRows
from pickmix.estimators.plan import resolve_proposal
from pickmix.selection.proposals import Proposal
from pickmix.threads import Threads

_compiled: set[tuple] = set()


def compile_kernels(estimator: Any, source: ArrayRows) -> float:
    """Run one step of the same kind on a few made-up rows; return the seconds it took.

    Does nothing the second time. From Numba's disk cache it takes a fraction of a second.
    """
    proposal: Any = "auto"
    if estimator.algorithm == "mhsaem":
        proposal = resolve_proposal(estimator.proposal, estimator.n_components)
    if isinstance(proposal, Proposal):
        # A user's proposal has seen no rows yet, and should not see made-up ones.
        proposal = "uniform"
    layout = "F" if source.data.flags.f_contiguous else "C"
    kind = (estimator.covariance_type, estimator.algorithm, proposal, source.data.dtype, layout)
    if kind in _compiled:
        return 0.0
    started = time.perf_counter()
    rows = np.random.default_rng(0).normal(size=(8, source.n_features))
    small = clone(estimator).set_params(
        n_components=2,
        proposal=proposal,
        n_samples=2,
        batch_size=4,
        step_size=0.5,
        annealing=None,
        max_steps=2,
        max_time=None,
        reg_covar=1.0,
        init_params="paper",
        weights_init=None,
        means_init=None,
        precisions_init=None,
        warm_start=False,
        verbose=0,
        callbacks=(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = np.asarray(rows, dtype=source.data.dtype, order=layout)  # type: ignore[call-overload]
        small._fit_once(ArrayRows(data), 0, Threads())
    _compiled.add(kind)
    return time.perf_counter() - started
