"""What callbacks share: copies without a past, starts that are told apart, and what is logged."""

from __future__ import annotations

import importlib.util
import inspect
import math
from dataclasses import dataclass, field, fields
from typing import Any

from pickmix.fitting.loop import FitInfo

#: What is logged of an evaluation, where it is a number.
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
class Callback:
    """A callback with settings and a past.

    Copies and pickles have the settings and no past: `sklearn.clone` copies callbacks, and each
    clone is fitted on its own.
    """

    _step: float = field(default=math.inf, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {
            setting.name: getattr(self, setting.name) for setting in fields(self) if setting.init
        }

    def __setstate__(self, settings: dict[str, Any]) -> None:
        # Through __init__, so that settings are checked and the past is empty.
        type(self).__init__(self, **settings)

    def _begins(self, info: FitInfo) -> bool:
        """Whether this evaluation is the first of a fit, or of another start of it.

        Step numbers rise within a start, and start again with the next one. A warm start goes on.
        """
        begins = info.step <= self._step
        self._step = info.step
        return begins


def score_of(info: FitInfo, on: Any) -> float:
    """Mean log-likelihood per row: the fit's own, or that of rows."""
    if isinstance(on, str):
        return float(getattr(info, on))
    return float(info.estimator().score(on))


def metrics_of(info: FitInfo) -> dict[str, float]:
    """Numbers of an evaluation by name, without those that are not there."""
    values = {name: float(getattr(info, name)) for name in METRICS}
    return {name: value for name, value in values.items() if not math.isnan(value)}


def parameters_of(info: FitInfo) -> dict[str, str]:
    """Class and parameters of the estimator that is being fitted, as short texts."""
    estimator = info.estimator()
    parameters = {
        name: str(value)[:250]
        for name, value in estimator.get_params(deep=False).items()
        if name not in _NOT_LOGGED
    }
    return {"estimator": type(estimator).__name__, **parameters}


def require(module: str, extra: str, who: str) -> None:
    """Say how to get a package, if it is not there."""
    if importlib.util.find_spec(module) is None:
        raise ImportError(f"{who} needs {module}: pip install 'pickmix[{extra}]'")


def check_rows(name: str, value: Any, names: tuple[str, ...]) -> None:
    """Refuse what is neither one of some names nor rows."""
    if isinstance(value, str) and value in names:
        return
    if (
        value is None
        or isinstance(value, str | bytes | bool | int | float)
        or inspect.isroutine(value)
    ):
        listed = " or ".join(map(repr, names))
        raise ValueError(f"{name} must be {listed}, or rows to score, got {value!r}.")
