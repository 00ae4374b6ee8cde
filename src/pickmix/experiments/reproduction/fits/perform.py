"""One run, whatever its kind: the function that processes and clusters call."""

from __future__ import annotations

import time
import warnings
from typing import Any

from pickmix.experiments.reproduction.fits.recording import Recorder
from pickmix.experiments.reproduction.history import History
from pickmix.experiments.reproduction.runs import ConvergenceRun, DeepRun, GaussianRun, Run


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


def _perform_of(run: Run) -> Any:
    # Here and not above: Gaussian runs need no JAX.
    if isinstance(run, GaussianRun):
        from pickmix.experiments.reproduction.fits import gaussian_run

        return gaussian_run.perform
    if isinstance(run, ConvergenceRun):
        from pickmix.experiments.reproduction.fits import convergence_run

        return convergence_run.perform
    assert isinstance(run, DeepRun)
    from pickmix.experiments.reproduction.fits import deep_run

    return deep_run.perform
