"""What FlowMixture, SumProductTransformNetwork and Mixture share: the fit."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, DensityMixin

from pickmix.estimators import validation
from pickmix.estimators.checkpointing import fingerprint_of, open_checkpoints
from pickmix.estimators.deep_inference import DeepInference, require_jax
from pickmix.estimators.deep_parameters import DeepParameters
from pickmix.estimators.deep_plan import make_plan
from pickmix.estimators.deep_rows import read_table, read_watched
from pickmix.fitting.stopping import Outcome

if TYPE_CHECKING:
    from pickmix.estimators.deep_fit import DeepFit, Parameters, Reached
    from pickmix.gradient.network import Network


@dataclass(eq=False, repr=False)
class DeepMixture(DeepParameters, DeepInference, DensityMixin, BaseEstimator):  # type: ignore[misc]
    """Base of the mixtures that are fitted by gradients.

    A row of data selects a component by its Metropolis-Hastings chain, and a step of Adam moves
    the parameters of the selected components only: its cost does not depend on how many there are.

    Attributes
    ----------
    weights_ : (K,) array
        Of the components, or of the root's children.
    tables_ : list of arrays
        Parameters of the components with the highest validation log-likelihood, or the last ones.
    center_, scale_ : (D,) arrays
        What `standardize` shifts and scales by.
    whitening_ : (D, D) array or None
        What it then multiplies rows with.
    outcome_ : str
        How the fit ended: "converged", "max_steps", "max_time", "callback", "interrupted" or
        "non_finite" (a step whose gradient was not finite; the last good model is kept).
    converged_, n_iter_, n_steps_, n_component_evaluations_, proposal_, start_seconds_, \
            compile_seconds_, trace_
        As in GaussianMixture; `trace_` also has the column `validation`.
    lower_bound_ : float
        Last log-likelihood per row in `trace_`.
    best_validation_ : float
        Highest validation log-likelihood, the start's included; NaN without validation rows.
    """

    def _check_family(self) -> int:
        """Check the parameters of the family; return how many children the root has."""
        raise TypeError("Use FlowMixture, SumProductTransformNetwork or Mixture.")

    def _can_whiten(self) -> bool:
        """Whether `standardize="auto"` may mix columns."""
        return False

    def fit(
        self,
        X: Any,
        y: object = None,
        sample_weight: Any = None,
        validation_data: Any = None,
        *,
        columns: Sequence[str | int] | None = None,
    ) -> Self:
        """Fit the mixture.

        Parameters
        ----------
        X : array-like of shape (N, D), or rows from elsewhere
            Beside arrays: a path or pattern of .npy, .parquet or .csv files, a `np.memmap`, a
            pyarrow Table or Dataset, an object with a length and slices, a function that returns
            a fresh iterator of batches, what `pickmix.open_rows` returns. All rows are read into
            memory.
        y : ignored
        sample_weight : array-like of shape (N,), default=None
            Non-negative weights. A zero removes the row.
        validation_data : array-like of shape (V, D), or rows from elsewhere, default=None
            Rows to watch instead of a share of X.
        columns : sequence of str or int, default=None
            Which columns of rows from elsewhere: names, or numbers from 0.

        Returns
        -------
        self
        """
        require_jax()
        from pickmix.estimators.deep_fit import fit_network

        plan = make_plan(self, self._check_family(), self._can_whiten())
        random = validation.check_randomness(self.random_state)
        X, weights = read_table(self, X, sample_weight, columns)
        watched = read_watched(self, validation_data)
        seeds = [int(random.randint(2**31 - 1)) for _ in range(2)]
        network = self._network(X.shape[1])
        former = self._former(network) if self.warm_start else None
        checkpoints = None
        if self.checkpoint is not None:
            rows = fingerprint_of(X)
            if watched is not None:
                rows["validation_data"] = fingerprint_of(watched)
            if former is not None:
                rows["before"] = former.fingerprint()
            checkpoints = open_checkpoints(self, self.checkpoint, rows, weights, seeds)
        if checkpoints is not None:
            noted = checkpoints.read_notes()
            seeds = seeds if noted is None else noted["seeds"]
        seed = seeds[0] * 2**31 + seeds[1]
        fitted = fit_network(
            network, plan, X, weights, watched, seed, former, self._fitted_copy, checkpoints
        )
        self.proposal_ = plan.proposal_name
        self._take(fitted)
        validation.warn_about_outcome(self)
        return self

    def fit_predict(self, X: Any, y: object = None, sample_weight: Any = None) -> np.ndarray:
        """Fit, and return the most probable component of each row, (N,)."""
        return np.asarray(self.fit(X, sample_weight=sample_weight).predict(X))

    def _former(self, network: Network) -> Reached | None:
        """The last fit, if its tables are those of the network."""
        from pickmix.estimators.deep_fit import Parameters, Reached

        if not hasattr(self, "tables_") or self.center_.shape[0] != network.n_features:
            return None
        if tuple(table.shape for table in self.tables_) != network.shapes:
            return None
        parameters = Parameters(self._frame, tuple(self.tables_), self.weights_)
        return Reached(parameters, self._chain, self.n_steps_, self._passes, self._split_seed)

    def _fitted_copy(self, parameters: Parameters) -> Self:
        """A copy of the estimator with parameters of a fit that is under way."""
        fitted = copy.copy(self)
        fitted._set_parameters(parameters)
        return fitted

    def _set_parameters(self, parameters: Parameters) -> None:
        self.tables_ = list(parameters.tables)
        self.weights_ = parameters.weights
        frame = parameters.frame
        self.center_, self.scale_, self.whitening_ = frame.center, frame.scale, frame.whitening

    def _take(self, fitted: DeepFit) -> None:
        """Set the attributes of a fit."""
        reached = fitted.reached
        self._set_parameters(reached.parameters)
        self.trace_ = fitted.trace
        values = fitted.trace["log_likelihood"]
        self.lower_bound_ = float(values[-1]) if values.size else math.nan
        self.best_validation_ = fitted.best_validation
        self.outcome_ = str(fitted.outcome)
        self.converged_ = fitted.outcome == Outcome.CONVERGED
        self.n_steps_ = reached.n_steps
        self.n_iter_ = fitted.n_passes
        self.n_component_evaluations_ = fitted.n_evaluations
        self.start_seconds_ = fitted.start_seconds
        self.compile_seconds_ = fitted.compile_seconds
        self._chain = reached.chain
        self._passes = reached.passes
        self._split_seed = reached.split_seed
