"""One run, whatever its kind: the function that processes and clusters call."""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable
from typing import Any

from pickmix.experiments.reproduction.fits.recording import Recorder
from pickmix.experiments.reproduction.history import History
from pickmix.experiments.reproduction.runs import Run


class NoData(Exception):
    """A data set was not found: another attempt may find it, so the store does not keep this."""


def perform(run: Run, limit_seconds: float | None = None, threads: int = 1) -> History:
    """Make a run.

    Parameters
    ----------
    run : Run
    limit_seconds : float or None
        Of work.
    threads : int
        That the fit may use.

    Returns
    -------
    History
        Of a fit that raised, one record of NaN and the outcome "failed: ...".

    Raises
    ------
    NoData
    """
    started = time.perf_counter()
    try:
        with warnings.catch_warnings():
            # Of fits that have not converged; the outcome says so.
            warnings.simplefilter("ignore")
            history = _perform_of(run)(run, limit_seconds, threads)
    except FileNotFoundError as error:
        raise NoData(str(error)) from None
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        outcome = f"failed: {type(error).__name__}: {lines[0]}"
        history = Recorder().history(run, {"outcome": outcome})
    facts: Any = history.facts
    facts["wall_seconds"] = time.perf_counter() - started
    facts["threads"] = threads
    facts["limit_seconds"] = float("nan") if limit_seconds is None else limit_seconds
    return history


def _perform_of(run: Run) -> Callable[[Any, float | None, int], History]:
    # Here and not above: Gaussian runs need no JAX.
    module = importlib.import_module(f"pickmix.experiments.reproduction.fits.{run.kind}_run")
    found: Callable[[Any, float | None, int], History] = module.perform
    return found
