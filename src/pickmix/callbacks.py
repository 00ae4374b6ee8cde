"""Ready-made callbacks: stop early, save the model on the way, log to MLflow or TensorBoard.

Every estimator takes `callbacks`, a callable or a list of them. Each is called with a
`pickmix.fitting.loop.FitInfo` after each evaluation, and a true return value ends the fit. A
function of your own works just as well as the classes here.
"""

from __future__ import annotations

import inspect
import math
import os
import time
import weakref
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from pickmix.checks import check_choice, check_integer, check_number, require
from pickmix.estimators.persistence import save
from pickmix.fitting.loop import FitInfo

__all__ = ["CheckpointCallback", "EarlyStopping", "MLflowCallback", "TensorBoardCallback"]

# Fields of an evaluation that are logged, where they are numbers.
_METRICS = ["log_likelihood", "validation", "acceptance", "live_components"]
_METRICS += ["epoch", "seconds", "evaluations"]
# Parameters that say nothing about the model.
_NOT_LOGGED = ("callbacks", "verbose")


@dataclass(eq=False)
class Callback:
    """A callback with settings (fields of `__init__`) and a state.

    Copies and pickles have the settings and a new state: `sklearn.clone` copies callbacks, and each
    clone is fitted separately.
    """

    _step: float = field(default=math.inf, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init}

    def __setstate__(self, settings: dict[str, Any]) -> None:
        # Through __init__, which checks the settings and makes a new state.
        type(self).__init__(self, **settings)

    def _begins(self, info: FitInfo) -> bool:
        """Whether this evaluation is the first of a fit, or of another start of it.

        Step numbers rise within a start, and start again with the next one. A warm start goes on.
        """
        begins = info.step <= self._step
        self._step = info.step
        return begins


@dataclass(eq=False)
class EarlyStopping(Callback):
    """End a fit when held-out rows no longer get more probable.

    The fit ends, with `outcome_` "callback", when `patience` evaluations in a row have not brought
    the mean log-likelihood per row `min_delta` above the best one before. What is kept is the
    model as it then stands; deep mixtures keep the best one on their own validation rows. With
    `n_init` starts, each start is ended on its own.

    Parameters
    ----------
    on : "validation" or rows, default="validation"
        "validation" is for deep mixtures, which set some rows apart (`validation_fraction`, or
        `validation_data` of `fit`). Rows are whatever the estimator's `score` takes: an array of
        shape (V, D), or a table for `TableMixture`. They are scored at every evaluation.
    patience : int, default=10
        Evaluations.
    min_delta : float, default=1e-3
        Nats per row.

    Examples
    --------
    >>> import numpy as np
    >>> from pickmix import GaussianMixture
    >>> from pickmix.callbacks import EarlyStopping
    >>> X = np.random.default_rng(0).normal(size=(400, 2))
    >>> stop = EarlyStopping(on=X[300:], patience=3)
    >>> mixture = GaussianMixture(10, algorithm="em", tol=0.0, random_state=0, callbacks=stop)
    >>> mixture.fit(X[:300]).outcome_
    'callback'
    """

    on: Any = field(default="validation", repr=False)
    patience: int = 10
    min_delta: float = 1e-3
    _best: float = field(default=-math.inf, init=False, repr=False)
    _waited: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        _check_rows(self.on, "validation")
        check_integer("patience", self.patience, 1)
        check_number("min_delta", self.min_delta, 0.0)

    def __call__(self, info: FitInfo) -> bool:
        """Read an evaluation; True ends the fit."""
        if self._begins(info):
            self._best, self._waited = -math.inf, 0
        score = _score(info, self.on)
        if math.isnan(score):
            raise ValueError(
                "EarlyStopping(on='validation') needs a fit with validation rows, and this one has "
                "none. Give it rows: EarlyStopping(on=X_validation)."
            )
        if score > self._best + self.min_delta or self._best == -math.inf:
            self._best, self._waited = score, 0
            return False
        self._waited += 1
        if self._waited < self.patience:
            return False
        # A warm start that follows waits as long again.
        self._waited = 0
        return True


@dataclass(eq=False)
class CheckpointCallback(Callback):
    """Save the model as it stands, every so many evaluations or seconds.

    What is saved is a model to use: `pickmix.load` gives it back, with all methods. A save
    replaces the one before in one go, so there is a whole model at any time. To go on with a fit
    that was killed, use the estimators' `checkpoint=` instead: it keeps all that a fit needs, and
    ends with the same bits.

    Parameters
    ----------
    path : path
        A folder, or a file that ends in .npz, as in `pickmix.save`.
    keep : {"last", "best"}, default="last"
        "best" saves only what is better than what it has saved before, over all starts.
    on : "validation", "log_likelihood", rows or None, default=None
        What "best" looks at: the fit's validation rows, its own log-likelihood, or rows that the
        estimator's `score` takes. None takes validation rows where the fit has them.
    evaluations : int, default=1
        Look at every so many evaluations.
    seconds : float, default=0
        Wait at least so long after a save.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import pickmix
    >>> from pickmix.callbacks import CheckpointCallback
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saving = CheckpointCallback(f"{folder}/best.npz", keep="best")
    ...     _ = pickmix.GaussianMixture(2, random_state=0, callbacks=saving).fit(X)
    ...     pickmix.load(saving.path).score_samples(X).shape
    (200,)
    """

    path: str | os.PathLike[str]
    keep: str = "last"
    on: Any = field(default=None, repr=False)
    evaluations: int = 1
    seconds: float = 0.0
    _best: float = field(default=-math.inf, init=False, repr=False)
    _seen: int = field(default=0, init=False, repr=False)
    _saved: float = field(default=-math.inf, init=False, repr=False)

    def __post_init__(self) -> None:
        check_choice("keep", self.keep, ("last", "best"))
        if self.on is not None:
            _check_rows(self.on, "validation", "log_likelihood")
        check_integer("evaluations", self.evaluations, 1)
        check_number("seconds", self.seconds, 0.0)

    def __call__(self, info: FitInfo) -> None:
        """Read an evaluation, and save the model if a save is due."""
        self._seen += 1
        if self._seen % self.evaluations or time.monotonic() - self._saved < self.seconds:
            return
        if self.keep == "best":
            score = self._score(info)
            if score <= self._best:
                return
            self._best = score
        model = info.estimator()
        # A model on disk has no callbacks; `save` would warn that it leaves them out.
        model.callbacks = ()
        save(model, self.path)
        self._saved = time.monotonic()

    def _score(self, info: FitInfo) -> float:
        if self.on is None:
            return info.log_likelihood if math.isnan(info.validation) else info.validation
        score = _score(info, self.on)
        if math.isnan(score):
            raise ValueError(
                "CheckpointCallback(on='validation') needs a fit with validation rows, and this "
                "one has none. Give it rows, on=X_validation, or on='log_likelihood'."
            )
        return score


def _score(info: FitInfo, on: Any) -> float:
    """Mean log-likelihood per row: a field of the evaluation, or that of rows."""
    return float(getattr(info, on) if isinstance(on, str) else info.estimator().score(on))


def _check_rows(value: Any, *names: str) -> None:
    """Raise unless `on` is one of these names, or may be rows."""
    if isinstance(value, str) and value in names:
        return
    plain = value is None or isinstance(value, str | bytes | bool | int | float)
    if plain or inspect.isroutine(value):
        listed = " or ".join(map(repr, names))
        raise ValueError(f"on must be {listed}, or rows to score, got {value!r}.")


@dataclass(eq=False)
class _Logger(Callback):
    """What callbacks that log share: the package they need, starts, metrics and parameters."""

    _package: ClassVar[str]
    _extra: ClassVar[str]
    _start: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        what = f"{type(self).__name__} needs {self._package}"
        require(self._package, f"{what}: pip install 'pickmix[{self._extra}]'")

    @staticmethod
    def _metrics(info: FitInfo) -> dict[str, float]:
        values = {name: float(getattr(info, name)) for name in _METRICS}
        return {name: value for name, value in values.items() if not math.isnan(value)}

    @staticmethod
    def _parameters(info: FitInfo) -> dict[str, str]:
        """Class and parameters of the estimator that is being fitted, as short texts."""
        estimator = info.estimator()
        parameters = estimator.get_params(deep=False).items()
        shown = {name: str(value)[:250] for name, value in parameters if name not in _NOT_LOGGED}
        return {"estimator": type(estimator).__name__, **shown}


@dataclass(eq=False)
class MLflowCallback(_Logger):
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
    _package, _extra = "mlflow", "mlflow"
    _run: str = field(default="", init=False, repr=False)

    def __call__(self, info: FitInfo) -> None:
        """Log an evaluation."""
        import mlflow

        run = (mlflow.active_run() or mlflow.start_run()).info.run_id
        if run != self._run:
            self._run, self._start = run, 0
            if self.parameters:
                logged = self._parameters(info).items()
                mlflow.log_params({f"{self.prefix}{name}": value for name, value in logged})
        self._start += self._begins(info) or self._start == 0
        start = f"start_{self._start}/" if self._start > 1 else ""
        values = self._metrics(info).items()
        mlflow.log_metrics({f"{self.prefix}{start}{n}": v for n, v in values}, step=info.step)


@dataclass(eq=False)
class TensorBoardCallback(_Logger):
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
    _package, _extra = "tensorboardX", "tensorboard"
    _writer: Any = field(default=None, init=False, repr=False)
    _closing: Any = field(default=None, init=False, repr=False)

    def __call__(self, info: FitInfo) -> None:
        """Write an evaluation."""
        if self._begins(info):
            self.close()
            self._start += 1
        if self._writer is None:
            from tensorboardX import SummaryWriter

            folder = Path(self.folder)
            if self._start > 1:
                folder = folder / f"start_{self._start}"
            self._writer = SummaryWriter(str(folder), flush_secs=self.flush_seconds)
            # Callbacks are not told that a fit has ended: the file is closed with the callback, or
            # with Python.
            self._closing = weakref.finalize(self, self._writer.close)
            listed = "\n".join(f"    {name} = {v}" for name, v in self._parameters(info).items())
            self._writer.add_text("parameters", listed, info.step)
        for name, value in self._metrics(info).items():
            self._writer.add_scalar(name, value, info.step)

    def close(self) -> None:
        """Write what is left, and close the file. A fit that follows opens another one."""
        if self._closing is not None:
            self._closing()
        self._writer = self._closing = None
