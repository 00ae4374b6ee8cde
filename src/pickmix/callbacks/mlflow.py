"""Log fits to MLflow."""

from __future__ import annotations

from dataclasses import dataclass, field

from pickmix.callbacks.base import Callback, metrics_of, parameters_of, require
from pickmix.fitting.loop import FitInfo


@dataclass(eq=False)
class MLflowCallback(Callback):
    """Log each evaluation to MLflow, and the estimator's parameters with the first.

    Metrics go to the active run, under the step's number. Without an active run MLflow starts one,
    as for all of its own calls; `mlflow.end_run()` ends it. Names are those of `trace_`. Steps of a
    second start (`n_init`) begin again, so its metrics are called `start_2/log_likelihood` and so
    on. Needs the extra `mlflow`.

    Parameters
    ----------
    prefix : str, default=""
        Put before all names, to log several fits to one run.
    parameters : bool, default=True
        Whether parameters are logged too.

    Examples
    --------
    >>> import mlflow  # doctest: +SKIP
    >>> from pickmix.callbacks import MLflowCallback
    >>> with mlflow.start_run():  # doctest: +SKIP
    ...     GaussianMixture(3, callbacks=MLflowCallback()).fit(X)
    """

    prefix: str = ""
    parameters: bool = True
    _run: str = field(default="", init=False, repr=False)
    _start: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        require("mlflow", "mlflow", type(self).__name__)

    def __call__(self, info: FitInfo) -> None:
        """Log an evaluation."""
        import mlflow

        run = (mlflow.active_run() or mlflow.start_run()).info.run_id
        if run != self._run:
            self._run, self._start = run, 0
            if self.parameters:
                logged = parameters_of(info).items()
                mlflow.log_params({f"{self.prefix}{name}": value for name, value in logged})
        self._start += self._begins(info) or self._start == 0
        start = f"start_{self._start}/" if self._start > 1 else ""
        values = metrics_of(info).items()
        mlflow.log_metrics(
            {f"{self.prefix}{start}{name}": value for name, value in values}, step=info.step
        )
