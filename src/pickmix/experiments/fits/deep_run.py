"""Deep mixtures on UCI sets: with the paper's settings, and estimators as they come."""

from __future__ import annotations

from typing import Any

from pickmix.data import uci
from pickmix.estimators.flow_mixture import FlowMixture
from pickmix.estimators.gaussian_mixture import GaussianMixture
from pickmix.estimators.sum_product_transform_network import SumProductTransformNetwork
from pickmix.experiments import runs
from pickmix.experiments.fits.perform import Recorder, record_steps
from pickmix.experiments.runs import DeepRun, DefaultRun
from pickmix.experiments.store import SERIES

DeepEstimator = FlowMixture | SumProductTransformNetwork

_ALGORITHMS: dict[str, dict[str, Any]] = {
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
_DEFAULTS: dict[str, Any] = {runs.FLOWS: FlowMixture, runs.NETWORKS: SumProductTransformNetwork}
# Numbers of Gaussians to choose from, as long as there are twice as many training rows.
COMPONENTS = (1, 2, 4, 8, 16, 32, 64, 128)


def make_estimator(run: DeepRun, **parameters: Any) -> DeepEstimator:
    """The estimator of a run: Adam, all steps made, from the start that the run names."""
    settings: dict[str, Any] = {
        **_ALGORITHMS[run.algorithm],
        **{"n_samples": run.M, "batch_size": run.B, "max_steps": run.T, "patience": None},
        **{"evaluate_every": record_steps(run.T), "random_state": run.seed},
        **(_PAPER | _FAMILIES[run.model] if run.start == "paper" else {"init_params": run.start}),
        **parameters,
    }
    if run.model == "flow":
        return FlowMixture(run.K, **settings)
    return SumProductTransformNetwork(run.s, run.b, run.l, **settings)


def perform(
    run: DeepRun | DefaultRun, limit_seconds: float | None, threads: int, recorder: Recorder
) -> None:
    """Fit to the training part, watch the validation part, test.

    The seconds of estimators as they come are start and work, without compilation.
    """
    split = uci.load(run.dataset, run.protocol, random_state=run.seed)
    recorder.know(n_rows=split.train.shape[0], n_features=split.train.shape[1])
    if isinstance(run, DeepRun):
        _fit_and_test(make_estimator(run, max_time=limit_seconds), split, recorder)
    elif run.algorithm == runs.GAUSSIANS:
        _fit_gaussians(split, run.seed, threads, recorder)
    else:
        mixture = _DEFAULTS[run.algorithm](random_state=run.seed, max_time=limit_seconds)
        _fit_and_test(mixture, split, recorder)
        recorder.shift(seconds=mixture.start_seconds_)


def _fit_and_test(mixture: DeepEstimator, split: uci.Split, recorder: Recorder) -> None:
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
        train, validation, test = (
            float(mixture.score(rows)) for rows in (split.train, split.validation, split.test)
        )
        measured = {"step": mixture.n_steps_, "seconds": seconds, "live_components": n_components}
        recorder.add(**measured, log_likelihood=train, validation=validation)
        if validation > best:
            best = validation
            recorder.know(outcome=mixture.outcome_, n_components=n_components)
            recorder.know(best_validation=validation, test=test)
    recorder.know(start_seconds=start_seconds, compile_seconds=compile_seconds)
