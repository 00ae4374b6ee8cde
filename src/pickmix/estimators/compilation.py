"""Compile before the clock starts: work time must not measure Numba's compiler."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np

from pickmix.closed_form.seeding import compile_seeding
from pickmix.data.rows import ArrayRows
from pickmix.estimators.plan import resolve_proposal
from pickmix.selection.partitions import RandomPartition, draw_partition
from pickmix.selection.proposals import Proposal
from pickmix.selection.randomness import StepRandomness
from pickmix.threads import Threads

_compiled: set[tuple] = set()


def compile_kernels(estimator: Any, source: ArrayRows) -> float:
    """Run one step of the same kind on a few made-up rows; return the seconds it took.

    Does nothing the second time. From Numba's disk cache it takes a fraction of a second.
    """
    proposal: Any = "auto"
    if estimator.algorithm == "mhsaem":
        proposal = resolve_proposal(estimator.proposal)
    if isinstance(proposal, RandomPartition):
        proposal = "partition"
    if isinstance(proposal, Proposal):
        # A user's proposal has seen no rows yet, and should not see made-up ones.
        proposal = "uniform"
    layout = "F" if source.data.flags.f_contiguous else "C"
    from_rows = estimator.means_init is not None or estimator.init_params != "paper"
    kind = (
        estimator.covariance_type,
        estimator.algorithm,
        proposal,
        estimator.reuse_log_joint,
        estimator.init_params if from_rows else "paper",
        source.data.dtype,
        layout,
    )
    if kind in _compiled:
        return 0.0
    started = time.perf_counter()
    rows = np.random.default_rng(0).normal(size=(8, source.n_features))
    # Two passes: the second visit of a row may take another path than the first.
    small = type(estimator)(
        # Three are the fewest that relocation works on.
        n_components=3,
        covariance_type=estimator.covariance_type,
        algorithm=estimator.algorithm,
        proposal=proposal,
        reuse_log_joint=estimator.reuse_log_joint,
        # Relocation takes all rows, or many.
        batch_size="auto" if proposal == "partition" else 4,
        step_size=0.5,
        max_steps=4,
        reg_covar=1.0,
        init_params=estimator.init_params if from_rows else "paper",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = np.asarray(rows, dtype=source.data.dtype, order=layout)  # type: ignore[call-overload]
        small._fit_once(ArrayRows(data), 0, Threads())
        if proposal == "partition":
            compile_seeding(ArrayRows(data))
            # Enough blocks that a tree of them is grown in parts, as with many components.
            means = np.zeros((256, source.n_features))
            draw_partition(means, 1, 0.5, StepRandomness(0, 1), Threads(), np.ones(means.shape[1]))
    _compiled.add(kind)
    return time.perf_counter() - started
