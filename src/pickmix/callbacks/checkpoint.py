"""Save the model on the way."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field
from typing import Any

from pickmix.callbacks.base import Callback, check_rows, score_of
from pickmix.estimators.persistence import save
from pickmix.estimators.validation import check_choice, check_integer, check_number
from pickmix.fitting.loop import FitInfo


@dataclass(eq=False)
class CheckpointCallback(Callback):
    """Save the model as it stands, every so many evaluations or seconds.

    What is saved is a model to use: `pickmix.load` gives it back, and it can be asked anything. A
    save replaces the one before in one go, so there is a whole model at any time. To go on with a
    fit that was killed, use the estimators' own `checkpoint=` instead: it keeps all that a fit
    needs, and ends with the same bits.

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
            check_rows("on", self.on, ("validation", "log_likelihood"))
        check_integer("evaluations", self.evaluations, 1)
        check_number("seconds", self.seconds, 0.0)

    def __call__(self, info: FitInfo) -> None:
        """Take in an evaluation, and save if it is time to."""
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
        score = score_of(info, self.on)
        if math.isnan(score):
            raise ValueError(
                "CheckpointCallback(on='validation') needs a fit with validation rows, and this "
                "one has none. Give it rows, on=X_validation, or on='log_likelihood'."
            )
        return score
