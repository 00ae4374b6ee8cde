"""A small Gaussian mixture by gradients, with the error of each recorded step's gradient."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from pickmix.data.rows import Batches
from pickmix.experiments import runs
from pickmix.experiments.fits.gaussian_run import rows_of
from pickmix.experiments.fits.gradient_bias import FullGaussian, gradient_error
from pickmix.experiments.fits.perform import Recorder, record_steps
from pickmix.experiments.runs import ConvergenceRun
from pickmix.gradient.components import ComponentMixture
from pickmix.gradient.engine import GradientEngine, Schedules
from pickmix.gradient.partitions import Partitions
from pickmix.gradient.precision import precision
from pickmix.gradient.proposals import TreeProposal
from pickmix.gradient.start import choose_start
from pickmix.gradient.state import Options
from pickmix.selection.proposals import TableForgettingProposal, TableProposal, UniformProposal
from pickmix.selection.schedules import ConstantRate, ConstantStep
from pickmix.selection.settings import RandomPartition

_DTYPE = np.dtype(np.float64)
_BLOCK_SIZE = 4
_TABLES: dict[str, Any] = {
    runs.MHSAEM_U: UniformProposal,
    runs.MHSAEM_T: TableProposal,
    runs.MHSAEM_TF: TableForgettingProposal,
}
_STEPS = {runs.MHSAEM_O: "mcsaem", runs.MHSAEM_P: "partition"}


def make_engine(run: ConvergenceRun) -> GradientEngine:
    """The engine of a run: the paper's start, Adam with a constant rate, no annealing."""
    X, _ = rows_of(run)
    network = ComponentMixture(FullGaussian(), run.K, run.D)
    start = choose_start(network, None, X, run.seed, _DTYPE)
    weights = np.random.default_rng(run.seed).uniform(size=run.K)
    start = replace(start, log_weights=np.log(weights / weights.sum()))
    batches = Batches(run.N, run.B, run.seed)
    algorithm = _STEPS.get(run.algorithm, "mhsaem")
    proposal = partitions = None
    if run.algorithm in _TABLES:
        sizes = (run.N, network.n_choices, 1)
        proposal = TreeProposal(_TABLES[run.algorithm](), *sizes, run.seed, _DTYPE)
    if algorithm == "partition":
        settings = RandomPartition(block_size=_BLOCK_SIZE)
        partitions = Partitions(network, settings, batches, run.seed)
    return GradientEngine(
        network,
        start,
        Options(algorithm),
        X,
        None,
        proposal,
        batches,
        Schedules(ConstantRate(run.step_size), ConstantStep(run.step_size), None),
        run.seed,
        np.arange(run.N),
        None,
        _DTYPE,
        partitions=partitions,
    )


def perform(
    run: ConvergenceRun, limit_seconds: float | None, threads: int, recorder: Recorder
) -> None:
    """Make the steps one record after the other; the clock runs only while steps are made."""
    X, true_scores = rows_of(run)
    engine = make_engine(run)
    recorder.know(
        outcome="max_steps",
        true_log_likelihood=float(true_scores.mean()),
        n_rows=run.N,
        n_features=run.D,
        compile_seconds=engine.compile(),
    )
    work, step, seen_rows, seen_acceptance = 0.0, 0, 0, 0.0
    for target in record_steps(run.T):
        started = time.perf_counter()
        while step < target - 1:
            step += engine.advance(step + 1, target - 1 - step)
        work += time.perf_counter() - started
        # The step's gradient belongs to the parameters before it, its draws to those after it.
        before: Any = engine.parameters()
        weights_before = engine.log_weights()
        started = time.perf_counter()
        step += engine.advance(target, 1)
        work += time.perf_counter() - started
        batch = engine.batches.rows(target)
        network: Any = engine.network
        with precision(_DTYPE):
            chosen = engine.chain()[batch, 0]
            error = gradient_error(network, before, weights_before, X[batch], chosen)
        counters = engine.counters
        recorder.add(
            step=step,
            seconds=work,
            evaluations=counters.evaluations / run.N,
            log_likelihood=engine.log_likelihood(),
            acceptance=(counters.acceptance_sum - seen_acceptance) / (counters.rows - seen_rows),
            bias=error.squared_norm,
            bias_by_chance=error.by_chance,
            live_components=engine.live_components(),
        )
        seen_rows, seen_acceptance = counters.rows, counters.acceptance_sum
        if counters.refused:
            recorder.know(outcome=engine.refusal)
            return
        if limit_seconds is not None and work >= limit_seconds:
            recorder.know(outcome="max_time")
            return
