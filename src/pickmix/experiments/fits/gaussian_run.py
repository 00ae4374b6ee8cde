"""Gaussian mixtures on MixSim data: the paper's Table 1 and ours."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from pickmix.data import mixsim
from pickmix.estimators.gaussian_mixture import GaussianMixture
from pickmix.experiments import runs
from pickmix.experiments.fits.perform import Recorder, record_steps
from pickmix.experiments.runs import ConvergenceRun, GaussianRun
from pickmix.fitting.loop import FitInfo
from pickmix.selection.schedules import TwoPhaseStep
from pickmix.selection.settings import SearchSet

# The likelihood is measured on all rows, unless that takes more multiplications than this.
_MEASURE_WORK = 2e9
_PROPOSALS = {runs.MHSAEM_U: "uniform", runs.MHSAEM_O: "optimal", runs.MHSAEM_P: "partition"}
_PROPOSALS |= {runs.MHSAEM_T: "table", runs.MHSAEM_TF: "table-forgetting"}


@lru_cache(maxsize=4)
def _make_data(D: int, K: int, N: int, omega: float) -> tuple[np.ndarray, np.ndarray]:
    truth = mixsim.generate(K, D, omega, random_state=0)
    X, _ = truth.sample(N, random_state=0)
    return X, truth.score_samples(X)


def rows_of(run: GaussianRun | ConvergenceRun) -> tuple[np.ndarray, np.ndarray]:
    """Rows (N, D) and their log-densities under the truth (N,): one data set per (D, K, N, omega).

    Seeds are for the fits alone: the paper's repetitions differ by their initial conditions.
    """
    return _make_data(run.D, run.K, run.N, run.omega)


def make_estimator(run: GaussianRun, **parameters: Any) -> GaussianMixture:
    """The estimator of a run: the paper's start and schedules, or all defaults for ours."""
    if run.algorithm == runs.PICKMIX:
        return GaussianMixture(run.K, random_state=run.seed, **parameters)
    settings: dict[str, Any] = {"algorithm": run.algorithm.lower(), "max_steps": run.T}
    if run.algorithm in _PROPOSALS:
        settings |= {"algorithm": "mhsaem", "proposal": _PROPOSALS[run.algorithm]}
    elif run.algorithm == runs.TSAEM:
        assert run.M is not None
        # As many neighbours as components held, found among all pairs, as the paper has it.
        settings["proposal"] = SearchSet(n_neighbours=run.M, n_explore=0, all_pairs=True)
    if run.M is not None:
        settings["n_samples"] = run.M
    if run.B is not None:
        step_size = TwoPhaseStep(run.first_steps, run.step_size)
        settings |= {"batch_size": run.B, "step_size": step_size}
    settings |= {"init_params": "paper", "annealing": "anti" if run.annealing else None}
    settings |= {"evaluate_every": record_steps(run.T), "random_state": run.seed}
    return GaussianMixture(run.K, **settings, **parameters)


def perform(
    run: GaussianRun, limit_seconds: float | None, threads: int, recorder: Recorder
) -> None:
    """Fit, and measure the exact training log-likelihood on the way."""
    X, true_scores = rows_of(run)
    n_measured = int(min(run.N, max(100, _MEASURE_WORK / (run.K * run.D**2))))

    def record(info: FitInfo) -> None:
        recorder.add(
            step=info.step,
            seconds=info.seconds,
            evaluations=info.evaluations / run.N,
            log_likelihood=info.estimator().score(X[:n_measured]),
            acceptance=info.acceptance,
            live_components=info.live_components,
        )

    mixture = make_estimator(run, max_time=limit_seconds, n_jobs=threads, callbacks=[record])
    mixture.fit(X)
    if run.algorithm == runs.PICKMIX:
        # Its start is part of the work; the paper's looks at no rows.
        start_evaluations = mixture.n_start_evaluations_ / run.N
        recorder.shift(seconds=mixture.start_seconds_, evaluations=start_evaluations)
    recorder.know(
        outcome=mixture.outcome_,
        true_log_likelihood=float(true_scores[:n_measured].mean()),
        n_rows=run.N,
        n_features=run.D,
        start_seconds=mixture.start_seconds_,
        compile_seconds=mixture.compile_seconds_,
    )
