"""End a fit when it no longer gets better on rows that it does not learn from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from pickmix.callbacks.base import Callback, check_rows, score_of
from pickmix.estimators.validation import check_integer, check_number
from pickmix.fitting.loop import FitInfo


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
        check_rows("on", self.on, ("validation",))
        check_integer("patience", self.patience, 1)
        check_number("min_delta", self.min_delta, 0.0)

    def __call__(self, info: FitInfo) -> bool:
        """Take in an evaluation; True ends the fit."""
        if self._begins(info):
            self._best, self._waited = -math.inf, 0
        score = score_of(info, self.on)
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
        # A warm start that follows is given its own patience.
        self._waited = 0
        return True
