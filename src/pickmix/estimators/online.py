"""`partial_fit`: a Gaussian mixture that follows a stream of batches."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if

from pickmix.closed_form.mixture import PRIOR_COUNT, GaussianMixtureState, SingularCovarianceError
from pickmix.closed_form.stream import OnlineMixture
from pickmix.closed_form.structures import STRUCTURES
from pickmix.data.rows import ArrayRows
from pickmix.estimators import validation
from pickmix.estimators.plan import partition_settings, relocates
from pickmix.estimators.starts import without_reg
from pickmix.selection.partitions import RandomPartition
from pickmix.selection.schedules import resolve_step_size
from pickmix.threads import Threads, resolve_n_jobs

# Passes over the first batch.
_FIRST_PASSES = 40


def _keeps_no_rows(estimator: Any) -> bool:
    """Whether the settings are those of a fit without state per row; an error says what is not."""
    try:
        settings = partition_settings(estimator.algorithm, estimator.proposal)
    except ValueError:
        # A proposal that is none at all is for partial_fit to tell.
        return True
    if settings is None:
        raise AttributeError(
            "partial_fit works with algorithm='mhsaem' and proposal='partition' or 'auto', "
            f"got algorithm={estimator.algorithm!r} and proposal={estimator.proposal!r}, which "
            "keep something for every row."
        )
    return True


class OnlineFitting:
    """Adds `partial_fit` to an estimator that has `fit` and keeps its parameters as attributes."""

    _online: OnlineMixture | None = None

    @available_if(_keeps_no_rows)
    def partial_fit(self: Any, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Learn from one batch of an unlimited stream; nothing is kept of its rows.

        The first batch must have at least `n_components` rows, better a hundred times as many: the
        mixture is started and fitted on it. Every later batch, of any size, updates it with the
        step size of its turn: with `step_size="auto"` batches count less and less, so that the
        parameters converge, and with a constant one the past is forgotten at that rate, so that
        they follow a distribution that drifts. Components that are hardly needed are moved, as in
        `fit`, when a batch has at least 40 rows per component.

        Goes on from whatever was there: a `partial_fit`, a `fit` or a loaded model. A `fit` starts
        anew, or goes on from here with `warm_start=True`.

        Parameters
        ----------
        X : array-like of shape (B, D), float32 or float64
        y : ignored
        sample_weight : array-like of shape (B,), default=None

        Returns
        -------
        self
        """
        self._check_parameters()
        settings = partition_settings(self.algorithm, self.proposal)
        assert settings is not None
        if not self.__sklearn_is_fitted__():
            return self._begin_stream(X, sample_weight)
        X, weights = validation.check_table(self, X, sample_weight, reset=False)
        self._check_same_mixture()
        online = self._online
        if online is None or self._online_for != (settings, self.reg_covar, self.n_jobs):
            online = self._resume(settings)
        source = ArrayRows(X, weights, center=online.center)
        validation.check_spread(source)
        gamma = None
        if not (isinstance(self.step_size, str) and self.step_size == "auto"):
            gamma = resolve_step_size(self.step_size, 1)(online.n_batches + 1)
        bound, refused = online.learn(source, gamma, relocates(self, settings, warm=False))
        if refused:
            warnings.warn(str(SingularCovarianceError(self.reg_covar, refused)), stacklevel=2)
        self._set_parameters(online.state, source)
        self.n_rows_seen_ = online.n_seen
        self.n_steps_ += 1
        self.n_component_evaluations_ += online.evaluations
        online.evaluations = 0
        self.lower_bound_ = bound
        self._effective_counts = online.state.effective_counts()
        # No chain is kept: a warm fit lets its rows start at the nearest means.
        self._chain = np.empty(0, dtype=np.int32)
        return self

    def _begin_stream(self: Any, X: Any, sample_weight: Any) -> Any:
        """Fit the first batch, for a few passes."""
        passes, steps = self.max_iter, self.max_steps
        try:
            self.max_iter, self.max_steps = min(passes, _FIRST_PASSES), None
            with warnings.catch_warnings():
                # More batches will come: that the first was not enough is no news.
                warnings.simplefilter("ignore", ConvergenceWarning)
                self.fit(X, sample_weight=sample_weight)
        finally:
            self.max_iter, self.max_steps = passes, steps
        return self

    def _check_same_mixture(self: Any) -> None:
        n_components = self.means_.shape[0]
        fitted = (n_components, self._fitted_structure)
        if fitted != (self.n_components, self.covariance_type):
            raise ValueError(
                "partial_fit goes on with the components that are there, n_components="
                f"{n_components} and covariance_type={self._fitted_structure!r}, got "
                f"{self.n_components!r} and {self.covariance_type!r}. Use fit to start anew."
            )

    def _resume(self: Any, settings: RandomPartition) -> OnlineMixture:
        """An online mixture with the fitted parameters."""
        n_components, n_features = self.means_.shape
        structure = STRUCTURES[self.covariance_type](n_features)
        center = self.weights_ @ self.means_
        packed = without_reg(structure, structure.pack(self.covariances_), self)
        n_seen = float(self.n_rows_seen_)
        state = GaussianMixtureState(
            structure,
            self.weights_,
            self.means_ - center,
            packed,
            self.reg_covar,
            weight_floor=1e-4 / n_components,
            effective_counts=self._effective_counts,
            least_count=n_features + 1.0,
            threads=Threads(resolve_n_jobs(self.n_jobs)),
            prior_count=PRIOR_COUNT,
            n_rows=n_seen,
        )
        seed = int(validation.check_randomness(self.random_state).randint(2**31 - 1))
        self._online = OnlineMixture(state, settings, center, seed, n_seen, self.n_steps_)
        self._online_for = (settings, self.reg_covar, self.n_jobs)
        return self._online

    def __getstate__(self):
        # Threads and caches stay behind; the fitted parameters say the same.
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if not name.startswith("_online")}
