"""Checkpoints of the fit of an estimator: which call they belong to, and how it resumes."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from sklearn.base import BaseEstimator

from pickmix.closed_form.engine import ClosedFormEngine
from pickmix.estimators.closed_form_fit import Fitted, Stage
from pickmix.estimators.validation import check_number
from pickmix.fitting.checkpoint import Checkpoints, say_resumed
from pickmix.selection.proposals import Proposal

_FEW_ITEMS = 100  # Longer sequences are known by a checksum.
# Parameters that change how a fit is made, but not its result.
_FREE = ("n_jobs", "verbose", "callbacks", "checkpoint", "checkpoint_every", "max_time")


def check_checkpoint(folder: Any, every: Any) -> None:
    if folder is not None and not isinstance(folder, str | os.PathLike):
        raise ValueError(f"checkpoint must be None or the path of a folder, got {folder!r}.")
    check_number("checkpoint_every", every, 0.0)


def open_checkpoints(
    estimator: Any, folder: Any, rows: dict[str, Any], weights: np.ndarray | None, seeds: Any
) -> Checkpoints:
    """The checkpoints of an estimator's fit to rows with this fingerprint, in a folder.

    Seeds are noted, for a `random_state` that could not be drawn from again.
    """
    from pickmix import __version__

    call = {
        "estimator": type(estimator).__name__,
        "parameters": _describe_parameters(estimator),
        "rows": rows,
        "sample_weight": describe(weights),
        "pickmix": __version__,
    }
    notes = {"seeds": seeds, "numpy": np.__version__, "numba": numba.__version__}
    return Checkpoints(folder, float(estimator.checkpoint_every), call, notes)


def _describe_parameters(estimator: BaseEstimator) -> dict[str, Any]:
    parameters = estimator.get_params(deep=False)
    return {name: describe(value) for name, value in parameters.items() if name not in _FREE}


def describe(value: Any, depth: int = 4) -> Any:
    """A value as JSON for comparison, nested objects to `depth` levels."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.integer | np.floating | np.bool_):
        return value.item()
    if isinstance(value, list | tuple) and len(value) <= _FEW_ITEMS:
        return [describe(item, depth - 1) for item in value]
    if isinstance(value, list | tuple):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        checksum = zlib.crc32(np.ascontiguousarray(value).data)
        return f"array of shape {value.shape} and type {value.dtype}, checksum {checksum:08x}"
    if isinstance(value, dict):
        return {str(key): describe(item, depth - 1) for key, item in value.items()}
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    # Settings, schedules and components are what they hold; what a proposal holds, it has learnt.
    held = {} if isinstance(value, Proposal) else getattr(value, "__dict__", {})
    return {name: describe(held, depth - 1)} if held and depth > 0 else name


def fingerprint_of(rows: np.ndarray) -> dict[str, Any]:
    return {"array": describe(rows)}


@dataclass
class Progressed:
    """Progress of the fits of an estimator."""

    start: int = 0  # Number of the start that is under way.
    stage: Stage | None = None  # Its stage; None if it has not begun.
    passing: bool = False  # Whether it has come to passes over all rows.
    best: Fitted | None = None  # Of the starts before it.
    best_start: int = 0
    best_engine: ClosedFormEngine | None = None  # If passes over all rows follow.
    work: float = 0.0  # Seconds that these took.
    draws: dict[str, Any] | None = None  # State of the generator that draws starts.


class FitSaver:
    """Saves the stages of a fit with the results before them."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        here: Mapping[str, Any],
        progressed: Progressed,
        draws: np.random.RandomState,
    ) -> None:
        self.checkpoints = checkpoints
        self.here = here
        self.progressed = progressed
        self.draws = draws

    def due(self) -> bool:
        return self.checkpoints.due()

    def save(self, stage: Stage) -> None:
        self.progressed.stage = stage
        self.progressed.draws = self.draws.get_state(legacy=False)
        self.checkpoints.write(self.progressed, self.here)
        self.progressed.stage = None

    def resume(self, classes: tuple[type, ...]) -> Progressed | None:
        """The progress of this call's fit, if it was begun before."""
        found: Progressed | None = self.checkpoints.read(self.here, classes)
        if found is not None:
            self.progressed = found
            assert found.draws is not None
            self.draws.set_state(found.draws)
            if found.stage is not None:
                moment = found.stage.moment
                ended = f", where it had ended ({moment.outcome})" if moment.outcome else ""
                say_resumed(self.checkpoints.folder, f"step {moment.step}{ended}")
        return found
