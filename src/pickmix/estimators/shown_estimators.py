"""Callbacks of an estimator that fits another one inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pickmix.estimators.validation import check_callbacks
from pickmix.fitting.loop import FitInfo


def shown_another(callbacks: Any, turn: Callable[[Any], Any]) -> list[Callable[[FitInfo], object]]:
    """Callbacks for the inner estimator that show the outer one.

    Parameters
    ----------
    callbacks : callable or list of callables
        As the outer estimator has them.
    turn : callable
        From the inner estimator as it stands to the outer one.
    """
    return [_shown_another(callback, turn) for callback in check_callbacks(callbacks)]


def _shown_another(
    callback: Callable[[FitInfo], object], turn: Callable[[Any], Any]
) -> Callable[[FitInfo], object]:
    def call(info: FitInfo) -> object:
        return callback(replace(info, estimator=lambda: turn(info.estimator())))

    return call
