"""Queries that every mixture answers by its log-densities and posteriors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import _check_sample_weight

from pickmix.estimators.notebook import NotebookCard
from pickmix.fitting.stopping import Outcome
from pickmix.inputs.errors import warn_caller


class DensityQueries(NotebookCard):
    """Queries of an estimator that has `score_samples`, `top_components` and `_n_parameters`."""

    score_samples: Callable[[ArrayLike], np.ndarray]
    top_components: Callable[[ArrayLike, int], tuple[np.ndarray, np.ndarray]]
    _n_parameters: Callable[[], int]

    def score(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Mean log-density per row, weighted by `sample_weight` if given."""
        return weighted_mean(self.score_samples(X), sample_weight)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Most probable component of each row, (N,)."""
        return np.asarray(self.top_components(X, 1)[0][:, 0].astype(np.int64))

    def bic(self, X: ArrayLike) -> float:
        """Bayesian information criterion on X; lower is better."""
        scores = np.asarray(self.score_samples(X))
        return -2.0 * float(scores.sum()) + self._n_parameters() * float(np.log(scores.shape[0]))

    def aic(self, X: ArrayLike) -> float:
        """Akaike information criterion on X; lower is better."""
        return -2.0 * float(self.score_samples(X).sum()) + 2.0 * self._n_parameters()


def weighted_mean(scores: np.ndarray, sample_weight: ArrayLike | None) -> float:
    """Mean of scores (N,), weighted if weights are given."""
    if sample_weight is None:
        return float(scores.mean())
    weights = _check_sample_weight(
        sample_weight, scores, dtype=np.float64, ensure_non_negative=True
    )
    if not weights.any():
        raise ValueError("sample_weight must hold a positive weight, got only zeros.")
    return float(weights @ scores / weights.sum())


def warn_about_outcome(mixture: Any) -> None:
    outcome, category = mixture.outcome_, ConvergenceWarning
    if outcome == Outcome.MAX_ITER and mixture.annealing is None and mixture.tol > 0.0:
        message = (
            f"The log-likelihood still rose by more than tol={mixture.tol!r} after "
            f"max_iter={mixture.max_iter} passes. Increase max_iter or tol."
        )
        values = mixture.trace_["log_likelihood"][-2:]
        if values.size < 2 or values[1] - values[0] <= mixture.tol:
            message = (
                f"max_iter={mixture.max_iter} passes were too few to see whether the "
                "log-likelihood has settled. Increase max_iter."
            )
    elif outcome == Outcome.SINGULAR:
        message = (
            "The fit ended early: a component's covariance became singular, and its last good "
            f"value was kept. Increase reg_covar (now {mixture.reg_covar!r}) or decrease "
            f"n_components (now {mixture.n_components_})."
        )
    elif outcome == Outcome.NON_FINITE:
        message = "The fit ended early: the log-likelihood was not finite. Rescale X."
    elif outcome == Outcome.INTERRUPTED:
        category = UserWarning
        message = f"The fit was interrupted after {mixture.n_steps_} steps; the model is usable."
    else:
        return
    warn_caller(message, category)
