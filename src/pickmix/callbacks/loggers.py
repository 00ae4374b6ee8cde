"""Log fits to MLflow and to TensorBoard."""

from __future__ import annotations

import math
import os
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pickmix.callbacks.control import Callback
from pickmix.fitting.loop import FitInfo
from pickmix.optional import require

#: Fields of an evaluation that are logged, where they are numbers.
METRICS = (
    "log_likelihood",
    "validation",
    "acceptance",
    "live_components",
    "epoch",
    "seconds",
    "evaluations",
)
# Parameters that say nothing about the model.
_NOT_LOGGED = ("callbacks", "verbose")


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
        _require("mlflow", "mlflow", self)

    def __call__(self, info: FitInfo) -> None:
        """Log an evaluation."""
        import mlflow

        run = (mlflow.active_run() or mlflow.start_run()).info.run_id
        if run != self._run:
            self._run, self._start = run, 0
            if self.parameters:
                logged = _parameters(info).items()
                mlflow.log_params({f"{self.prefix}{name}": value for name, value in logged})
        self._start += self._begins(info) or self._start == 0
        start = f"start_{self._start}/" if self._start > 1 else ""
        values = {f"{self.prefix}{start}{name}": value for name, value in _metrics(info).items()}
        mlflow.log_metrics(values, step=info.step)


@dataclass(eq=False)
class TensorBoardCallback(Callback):
    """Write each evaluation for TensorBoard, and the estimator's parameters with the first.

    Look at it with ``tensorboard --logdir FOLDER``. Names are those of `trace_`. Steps of a second
    start (`n_init`) begin again, so each further start is a run of its own, in a folder `start_2`
    and so on. Needs the extra `tensorboard`, which writes the files; TensorBoard itself may be
    elsewhere.

    Parameters
    ----------
    folder : path
        Give each fit a folder of its own.
    flush_seconds : float, default=5
        Values are on disk after so long at the latest, and when the callback is closed.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from pickmix import GaussianMixture
    >>> from pickmix.callbacks import TensorBoardCallback
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     board = TensorBoardCallback(folder)
    ...     _ = GaussianMixture(2, random_state=0, callbacks=board).fit(X)
    ...     board.close()
    """

    folder: str | os.PathLike[str]
    flush_seconds: float = 5.0
    _start: int = field(default=0, init=False, repr=False)
    _writer: Any = field(default=None, init=False, repr=False)
    _closing: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        _require("tensorboardX", "tensorboard", self)

    def __call__(self, info: FitInfo) -> None:
        """Write an evaluation."""
        if self._begins(info):
            self.close()
            self._start += 1
        if self._writer is None:
            self._writer = self._open()
            listed = "\n".join(f"    {name} = {v}" for name, v in _parameters(info).items())
            self._writer.add_text("parameters", listed, info.step)
        for name, value in _metrics(info).items():
            self._writer.add_scalar(name, value, info.step)

    def close(self) -> None:
        """Write what is left, and close the file. A fit that follows opens another one."""
        if self._closing is not None:
            self._closing()
        self._writer = self._closing = None

    def _open(self) -> Any:
        from tensorboardX import SummaryWriter

        folder = Path(self.folder)
        if self._start > 1:
            folder = folder / f"start_{self._start}"
        writer = SummaryWriter(str(folder), flush_secs=self.flush_seconds)
        # Callbacks are not told that a fit has ended: the file is closed with the callback, or with
        # Python.
        self._closing = weakref.finalize(self, writer.close)
        return writer


def _require(module: str, extra: str, callback: Callback) -> None:
    name = type(callback).__name__
    require(module, f"{name} needs {module}: pip install 'pickmix[{extra}]'")


def _metrics(info: FitInfo) -> dict[str, float]:
    values = {name: float(getattr(info, name)) for name in METRICS}
    return {name: value for name, value in values.items() if not math.isnan(value)}


def _parameters(info: FitInfo) -> dict[str, str]:
    """Class and parameters of the estimator that is being fitted, as short texts."""
    estimator = info.estimator()
    parameters = estimator.get_params(deep=False).items()
    shown = {name: str(value)[:250] for name, value in parameters if name not in _NOT_LOGGED}
    return {"estimator": type(estimator).__name__, **shown}
