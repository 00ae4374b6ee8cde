"""`partial_fit`: a mixture that follows a stream of batches."""

from __future__ import annotations

import contextlib
import types
import warnings
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning

from pickmix.checks import check_randomness
from pickmix.closed_form.algorithm import mean_log_base
from pickmix.closed_form.fit import OnlineMixture
from pickmix.closed_form.state import MixtureState, SingularCovarianceError
from pickmix.estimators.closed_form_mixture import ClosedFormMixture
from pickmix.estimators.compilation import ensure_compiled
from pickmix.estimators.fit_rows import FitRows
from pickmix.estimators.row_sources import is_large, learn_by_chunks, refuse_noise
from pickmix.families.base import Family
from pickmix.fitting.settings import WEIGHT_FLOOR, partition_settings
from pickmix.inputs.arrays import check_partial_table, read_numbers, warn_about_unseen
from pickmix.kernels import choose, needs_compiled
from pickmix.selection.partitions import RandomPartition
from pickmix.selection.schedules import resolve_step_size
from pickmix.threads import use_threads

_FIRST_PASSES = 40  # Passes over the first batch.


class _IfRowsAreNotKept:
    """A method that exists unless fits keep something for every row; the error says why not."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method, self.__doc__ = method, method.__doc__

    def __get__(self, estimator: Any, owner: type | None = None) -> Any:
        if estimator is None:
            return self._method
        # The method itself raises for an invalid proposal.
        with contextlib.suppress(ValueError):
            if partition_settings(estimator.algorithm, estimator.proposal) is None:
                raise AttributeError(
                    "partial_fit works with algorithm='mhsaem' and proposal='partition' or 'auto', "
                    f"got algorithm={estimator.algorithm!r} and proposal={estimator.proposal!r}, "
                    "which keep something for every row."
                )
        return types.MethodType(self._method, estimator)


class OnlineFitting(ClosedFormMixture):
    """Adds `partial_fit` to a mixture of arrays."""

    _online: OnlineMixture | None = None
    _online_for: tuple[Any, ...] = ()

    @_IfRowsAreNotKept
    def partial_fit(
        self,
        X: Any,
        y: object = None,
        sample_weight: ArrayLike | None = None,
        *,
        noise: ArrayLike | None = None,
    ) -> Self:
        """Learn from one batch of an unlimited stream; its rows are not kept.

        The first batch must have at least `n_components` rows, better a hundred times as many: the
        mixture is started and fitted on it. Every later batch, of any size, updates the mixture.
        With `step_size="auto"` later batches count less and less, so that the parameters converge.
        With a constant step size the past is forgotten at that rate, so that they follow a
        distribution that drifts. Components that are hardly needed are moved, as in `fit`, when a
        batch has at least 40 rows per component.

        `partial_fit` continues from an earlier `partial_fit`, a `fit` or a loaded model. `fit`
        starts again, or continues from here with `warm_start=True`.

        Parameters
        ----------
        X : array-like of shape (B, D), float32 or float64, or rows that are not in memory
            NaN is a missing value. Each chunk of a file or of a source (see `fit`) is a batch.
        y : ignored
        sample_weight : array-like of shape (B,), default=None
        noise : array-like of shape (B, D) or (B, D, D), default=None
            Variances or covariances of the rows' noise, as in `fit`.

        Returns
        -------
        self
        """
        if getattr(self, "fixed_components", None) is not None:
            raise ValueError("partial_fit moves all components: fixed_components must be None.")
        if is_large(X):
            refuse_noise(noise)
            learn_by_chunks(self, X, sample_weight, hasattr(self, "weights_"))
            return self
        self._check_parameters()
        settings = partition_settings(self.algorithm, self.proposal)
        assert settings is not None
        if not hasattr(self, "weights_"):
            with warnings.catch_warnings():
                # More batches will come: that the first was not enough is no news.
                warnings.simplefilter("ignore", ConvergenceWarning)
                most = min(self.max_iter, _FIRST_PASSES)
                self._fit(X, sample_weight, noise, max_iter=most, max_steps=None)
            return self
        rows = read_numbers(self, X)
        if np.isnan(rows).all():
            warn_about_unseen(len(rows))
            return self
        data = FitRows(*check_partial_table(self, X, sample_weight, noise, reset=False))
        K, n_columns = self.weights_.shape[0], data.rows.shape[1]
        if not self._continues(n_columns):
            name = self._family_parameter
            raise ValueError(
                f"partial_fit continues with the fitted components, n_components={K} and "
                f"{name}={self._fitted_description!r}, got {self.n_components!r} and "
                f"{getattr(self, name)!r}. Use fit to start again."
            )
        family = self._make_family(data.rows, continues=True)
        partial = data.is_partial
        compiled = needs_compiled(family.layout, data.rows.shape[0], K, partial)
        key = (settings, np.asarray(self.reg_covar).tobytes(), compiled)
        if self._online is None or self._online_for != key:
            self._online, self._online_for = self._resume(settings, family, compiled), key
        online = self._online
        source = data.source(family, compiled, online.center)
        if compiled and partial:
            ensure_compiled("partial")
        gamma = None
        if not (isinstance(self.step_size, str) and self.step_size == "auto"):
            gamma = resolve_step_size(self.step_size, 1)(online.n_batches + 1)
        moves = settings.relocate
        if moves == "auto":
            moves = not self._start_is_given()
        with use_threads(self.n_jobs):
            bound, refused = online.learn(source, gamma, bool(moves))
        if refused:
            error = SingularCovarianceError(family.reg_covar, refused)
            warnings.warn(str(error), stacklevel=2)
        state = online.state
        self._set_parameters(state.weights, state.family.parameters(state.model, online.center))
        self.n_rows_seen_ = online.n_seen
        self.n_steps_ += 1
        self.n_component_evaluations_ += online.evaluations
        online.evaluations = 0
        self.lower_bound_ = bound + mean_log_base(family, source, None)
        self._effective_counts = state.effective_counts()
        # No chain is kept: a warm fit lets its rows start at the nearest means.
        self._chain = np.empty(0, dtype=np.int32)
        return self

    def _resume(self, settings: RandomPartition, family: Family, compiled: bool) -> OnlineMixture:
        """An online mixture with the fitted parameters."""
        if compiled:
            ensure_compiled("partition")
        center = self.model_.centre()
        moments = self._fitted_moments(family, center)
        n_seen = float(self.n_rows_seen_)
        prior = family.make_prior(moments, "pooled", n_seen)
        prior.resume()
        if self.background_ is not None:
            # It stays as broad as it is.
            prior.resume_background(self.background_, moments)
        floor = WEIGHT_FLOOR / self.weights_.shape[0]
        state = MixtureState(family, moments, choose(compiled), prior, floor).require_sound()
        seed = int(check_randomness(self.random_state).randint(2**31 - 1))
        return OnlineMixture(state, settings, center, seed, n_seen, self.n_steps_)

    def __getstate__(self) -> Any:
        # Caches are not pickled; the fitted parameters suffice.
        parent: Any = super()
        state = parent.__getstate__()
        return {name: value for name, value in state.items() if not name.startswith("_online")}
