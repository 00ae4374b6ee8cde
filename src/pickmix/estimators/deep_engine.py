"""Engines for deep fits, as a plan describes them. Needs JAX."""

from __future__ import annotations

import os
from typing import TypeVar

import numpy as np

from pickmix.data.rows import Batches
from pickmix.estimators.deep_frame import Frame
from pickmix.estimators.deep_plan import DeepPlan
from pickmix.gradient.engine import GradientEngine, Schedules
from pickmix.gradient.network import Network
from pickmix.gradient.partitions import Partitions
from pickmix.gradient.proposals import TreeProposal
from pickmix.gradient.start import Start
from pickmix.gradient.state import Options

# Evaluations of components that a measurement of the log-likelihood may cost, and its least rows.
_PROBE_EVALUATIONS = 100_000
_FEWEST_PROBED = 100
# The same for validation rows: evaluations, and the fewest and the most rows.
_WATCHED_EVALUATIONS = 500_000
_WATCHED = (200, 2000)

Kind = TypeVar("Kind", bound=GradientEngine)


def make_engine(
    kind: type[Kind],
    network: Network,
    plan: DeepPlan,
    start: Start,
    rows: np.ndarray,
    weights: np.ndarray | None,
    watched: np.ndarray | None,
    batches: Batches,
    schedules: Schedules,
    seed: int,
    frame: Frame,
) -> Kind:
    """An engine of a kind for rows (N, D) and watched rows in a frame."""
    n_rows = rows.shape[0]
    proposal = None
    if plan.proposal is not None:
        sizes = (n_rows, network.n_choices, plan.n_samples)
        proposal = TreeProposal(plan.proposal, *sizes, seed, plan.dtype)
    partitions = None
    if plan.partition is not None:
        partitions = Partitions(network, plan.partition, batches, seed)
    log_volume: float | np.ndarray = frame.log_volume()
    if np.isnan(rows).any() or (watched is not None and np.isnan(watched).any()):
        log_volume = frame.log_volume_by_column()
    probe, watched = _choose_probe(n_rows, watched, network.n_evaluated_by_all)
    return kind(
        network,
        start,
        _options(plan, proposal),
        rows,
        weights,
        proposal,
        batches,
        schedules,
        seed,
        probe,
        watched,
        plan.dtype,
        log_volume=log_volume,
        partitions=partitions,
    )


def _options(plan: DeepPlan, proposal: TreeProposal | None) -> Options:
    propose_again = None
    if proposal is not None and not proposal.proposal.independent and plan.n_samples > 1:
        propose_again = proposal.propose_again
    return Options(
        plan.step,
        plan.n_samples,
        row_adam=plan.row_adam,
        closed_form_weights=plan.closed_form_weights,
        reuse_log_joint=plan.reuse_log_joint,
        gradient_clip=plan.gradient_clip,
        propose_again=propose_again,
        noise=plan.noise,
    )


def make_schedules(plan: DeepPlan, steps_per_pass: int, first_step: int) -> Schedules:
    """Learning rate, gamma and beta. Schedules with an end count the steps of this fit."""
    rate, annealing = plan.rate, plan.annealing
    return Schedules(
        lambda step: rate(step - first_step + 1),
        plan.step_size(steps_per_pass),
        None if annealing is None else lambda step: annealing(step - first_step + 1),
    )


def _choose_probe(
    n_rows: int, watched: np.ndarray | None, evaluations_per_row: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows on which the training log-likelihood is measured, and validation rows to watch.

    As many as can be afforded, the same in every fit.
    """
    affordable = max(_FEWEST_PROBED, _PROBE_EVALUATIONS // evaluations_per_row)
    generator = np.random.Generator(np.random.Philox(key=0))
    probe = np.sort(generator.choice(n_rows, min(n_rows, affordable), replace=False))
    most = int(np.clip(_WATCHED_EVALUATIONS // evaluations_per_row, *_WATCHED))
    if watched is not None:
        # One order for all fits: those that watch fewer rows watch the first ones of others.
        order = np.random.Generator(np.random.Philox(key=1)).permutation(watched.shape[0])
        watched = watched[order[:most]]
    return probe, watched


def check_memory(network: Network, dtype: np.dtype) -> None:
    """Refuse a model that cannot fit into memory before it is built."""
    # Parameters, two moments, the first parameters and the best so far.
    needed = 5 * sum(rows * width for rows, width in network.shapes) * dtype.itemsize
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > there:
            raise MemoryError(
                f"The model needs {needed / 1e9:.3g} GB for its {network.n_parameters:,} "
                f"parameters and their moments; this machine has {there / 1e9:.3g} GB. Take fewer "
                "components, children or layers."
            )
