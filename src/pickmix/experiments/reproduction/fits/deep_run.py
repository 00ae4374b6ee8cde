"""Sum-product-transform networks and mixtures of real NVP flows on UCI sets."""

from __future__ import annotations

from typing import Any

from pickmix.data import uci
from pickmix.estimators.flow_mixture import FlowMixture
from pickmix.estimators.sum_product_transform_network import SumProductTransformNetwork
from pickmix.experiments.reproduction import runs
from pickmix.experiments.reproduction.fits.recording import Recorder, record_steps
from pickmix.experiments.reproduction.history import History
from pickmix.experiments.reproduction.runs import DeepRun
from pickmix.fitting.loop import FitInfo

_ALGORITHMS: dict[str, dict[str, Any]] = {
    runs.SGD: {"algorithm": "sgd"},
    runs.MHSAEM_U: {"algorithm": "mhsaem", "proposal": "uniform"},
    runs.MHSAEM_P: {"algorithm": "mhsaem", "proposal": "partition"},
}


def make_estimator(run: DeepRun, **parameters: Any) -> FlowMixture | SumProductTransformNetwork:
    """The estimator of a run: the paper's start, Adam, all steps made."""
    settings: dict[str, Any] = {
        **_ALGORITHMS[run.algorithm],
        "n_samples": run.M,
        "batch_size": run.B,
        "max_steps": run.T,
        "init_params": "paper",
        # Rows come standardised, as the protocol has it.
        "standardize": False,
        "patience": None,
        "evaluate_every": record_steps(run.T),
        "random_state": run.seed,
        **parameters,
    }
    if run.model == "flow":
        return FlowMixture(run.K, **settings)
    return SumProductTransformNetwork(run.s, run.b, run.l, **settings)


def perform(run: DeepRun, limit_seconds: float | None, threads: int) -> History:
    """Fit to the training part; test the parameters with the best validation value."""
    split = uci.load(run.dataset, run.protocol, random_state=run.seed)
    n_rows, n_features = split.train.shape
    recorder = Recorder()

    def record(info: FitInfo) -> None:
        recorder.add(
            step=info.step,
            seconds=info.seconds,
            evaluations=info.evaluations / n_rows,
            log_likelihood=info.log_likelihood,
            validation=info.validation,
            acceptance=info.acceptance,
            live_components=info.live_components,
        )

    mixture = make_estimator(run, max_time=limit_seconds, callbacks=[record])
    mixture.fit(split.train, validation_data=split.validation)
    return recorder.history(
        run,
        {
            "outcome": mixture.outcome_,
            "test": float(mixture.score(split.test)),
            "best_validation": mixture.best_validation_,
            "n_rows": n_rows,
            "n_features": n_features,
            "start_seconds": mixture.start_seconds_,
            "compile_seconds": mixture.compile_seconds_,
        },
    )
