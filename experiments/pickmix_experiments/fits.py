"""Fits of the reproduction: Gaussian mixtures on MixSim rows, deep mixtures on UCI sets."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

import pickmix
from pickmix import GaussianMixture
from pickmix.data import mixsim
from pickmix.selection.partitions import SearchSet
from pickmix.selection.schedules import TwoPhaseStep
from pickmix_experiments import runs, uci
from pickmix_experiments.runner import Recorder, record_steps
from pickmix_experiments.runs import ConvergenceRun, DeepRun, DefaultRun, GaussianRun
from pickmix_experiments.store import SERIES

# The likelihood is measured on all rows, unless that takes more multiplications than this.
_MEASURE_WORK = 2e9
_PROPOSALS = {runs.MHSAEM_U: "uniform", runs.MHSAEM_O: "optimal", runs.MHSAEM_P: "partition"}
_PROPOSALS |= {runs.MHSAEM_T: "table", runs.MHSAEM_TF: "table-forgetting"}
_DEEP: dict[str, dict[str, Any]] = {
    runs.SGD: {"algorithm": "sgd"},
    runs.MHSAEM_U: {"algorithm": "mhsaem", "proposal": "uniform"},
    runs.MHSAEM_P: {"algorithm": "mhsaem", "proposal": "partition"},
}
# The paper's start, rate and families. Rows come standardised, as its protocol has it.
_PAPER: dict[str, Any] = {"init_params": "paper", "standardize": False, "noise": 0.0}
_PAPER |= {"learning_rate": 1e-3}
_FAMILIES: dict[str, dict[str, Any]] = {
    "flow": {"linear": False, "n_layers": 2, "hidden": 10},
    "sptn": {"transforms": "rotations"},
}
# Numbers of Gaussians to choose from, as long as there are twice as many training rows.
COMPONENTS = (1, 2, 4, 8, 16, 32, 64, 128)


@lru_cache(maxsize=4)
def _make_data(D: int, K: int, N: int, omega: float) -> tuple[np.ndarray, np.ndarray]:
    truth = mixsim.generate(K, D, omega, random_state=0)
    X, _ = truth.sample(N, random_state=0)
    return X, truth.score_samples(X)


def rows_of(run: GaussianRun | ConvergenceRun) -> tuple[np.ndarray, np.ndarray]:
    """Return rows (N, D) and their true log-densities (N,): one data set per (D, K, N, omega).

    Seeds are for the fits alone: the paper's repetitions differ by their initial conditions.
    """
    return _make_data(run.D, run.K, run.N, run.omega)


def make_gaussian(run: GaussianRun, **parameters: Any) -> GaussianMixture:
    """Make the estimator of a run: the paper's start and schedules, or all defaults for ours."""
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


def perform_gaussian(
    run: GaussianRun, limit_seconds: float | None, threads: int, recorder: Recorder
) -> None:
    """Fit, and measure the exact training log-likelihood on the way."""
    X, true_scores = rows_of(run)
    n_measured = int(min(run.N, max(100, _MEASURE_WORK / (run.K * run.D**2))))

    def record(info: Any) -> None:
        recorder.add(
            step=info.step,
            seconds=info.seconds,
            evaluations=info.evaluations / run.N,
            log_likelihood=info.estimator().score(X[:n_measured]),
            acceptance=info.acceptance,
            live_components=info.live_components,
        )

    mixture = make_gaussian(run, max_time=limit_seconds, n_jobs=threads, callbacks=[record])
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


def make_deep(run: DeepRun, **parameters: Any) -> Any:
    """Make the estimator of a run: Adam, all steps made, from the start that the run names."""
    settings: dict[str, Any] = {
        **_DEEP[run.algorithm],
        **{"n_samples": run.M, "batch_size": run.B, "max_steps": run.T, "patience": None},
        **{"evaluate_every": record_steps(run.T), "random_state": run.seed},
        **(_PAPER | _FAMILIES[run.model] if run.start == "paper" else {"init_params": run.start}),
        **parameters,
    }
    if run.model == "flow":
        return pickmix.FlowMixture(run.K, **settings)
    return pickmix.SumProductTransformNetwork(run.s, run.b, run.l, **settings)


def perform_deep(
    run: DeepRun, limit_seconds: float | None, threads: int, recorder: Recorder
) -> None:
    """Fit with the paper's settings to the training part, watch the validation part, test."""
    _fit_and_test(make_deep(run, max_time=limit_seconds), _load(run, recorder), recorder)


def perform_default(
    run: DefaultRun, limit_seconds: float | None, threads: int, recorder: Recorder
) -> None:
    """Fit an estimator with all defaults; seconds are start and work, without compilation."""
    split = _load(run, recorder)
    if run.algorithm == runs.GAUSSIANS:
        _fit_gaussians(split, run.seed, threads, recorder)
    else:
        name = "FlowMixture" if run.algorithm == runs.FLOWS else "SumProductTransformNetwork"
        mixture = getattr(pickmix, name)(random_state=run.seed, max_time=limit_seconds)
        _fit_and_test(mixture, split, recorder)
        recorder.shift(seconds=mixture.start_seconds_)


def _load(run: DeepRun | DefaultRun, recorder: Recorder) -> uci.Split:
    split = uci.load(run.dataset, run.protocol, random_state=run.seed)
    recorder.know(n_rows=split.train.shape[0], n_features=split.train.shape[1])
    return split


def _fit_and_test(mixture: Any, split: uci.Split, recorder: Recorder) -> None:
    """Fit; test the parameters with the best validation value."""
    mixture.fit(split.train, validation_data=split.validation)
    names = [name for name in mixture.trace_.dtype.names or () if name in SERIES]
    for record in mixture.trace_:
        values = {name: float(record[name]) for name in names}
        recorder.add(**{**values, "evaluations": values["evaluations"] / split.train.shape[0]})
    recorder.know(
        outcome=mixture.outcome_,
        test=float(mixture.score(split.test)),
        best_validation=mixture.best_validation_,
        n_components=len(mixture.weights_),
        start_seconds=mixture.start_seconds_,
        compile_seconds=mixture.compile_seconds_,
    )


def _fit_gaussians(split: uci.Split, seed: int, threads: int, recorder: Recorder) -> None:
    """Fit every number of components; a record for each, the facts of the best by validation."""
    seconds = start_seconds = compile_seconds = 0.0
    best = -float("inf")
    for n_components in COMPONENTS:
        if 2 * n_components > split.train.shape[0]:
            break
        mixture = GaussianMixture(n_components, random_state=seed, n_jobs=threads)
        mixture.fit(split.train)
        seconds += mixture.start_seconds_ + float(mixture.trace_["seconds"][-1:].sum())
        start_seconds += mixture.start_seconds_
        compile_seconds += mixture.compile_seconds_
        parts = (split.train, split.validation, split.test)
        train, validation, test = (float(mixture.score(rows)) for rows in parts)
        measured = {"step": mixture.n_steps_, "seconds": seconds, "live_components": n_components}
        recorder.add(**measured, log_likelihood=train, validation=validation)
        if validation > best:
            best = validation
            recorder.know(outcome=mixture.outcome_, n_components=n_components)
            recorder.know(best_validation=validation, test=test)
    recorder.know(start_seconds=start_seconds, compile_seconds=compile_seconds)
