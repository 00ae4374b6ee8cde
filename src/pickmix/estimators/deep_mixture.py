"""The fit, which FlowMixture, SumProductTransformNetwork and Mixture share."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, DensityMixin

from pickmix.estimators import validation
from pickmix.estimators.checkpointing import fingerprint_of, open_checkpoints
from pickmix.estimators.deep_inference import DeepInference, require_jax
from pickmix.estimators.deep_parameters import DeepParameters
from pickmix.estimators.deep_plan import make_plan
from pickmix.estimators.deep_rows import read_batch, read_table, read_watched, refuse_dask
from pickmix.estimators.row_sources import is_large, learn_by_chunks
from pickmix.fitting.stopping import Outcome

if TYPE_CHECKING:
    from pickmix.estimators.deep_results import DeepFit, Parameters, Reached
    from pickmix.gradient.network import Network


@dataclass(eq=False, repr=False)
class DeepMixture(DeepParameters, DeepInference, DensityMixin, BaseEstimator):  # type: ignore[misc]
    """Base of the mixtures that are fitted by gradients.

    Each row selects a component by its Metropolis-Hastings chain, and a step of Adam moves the
    parameters of the selected components only. So the cost of a step does not depend on K.

    Attributes
    ----------
    weights_ : (K,) array
        Weights of the components, or of the children of the root.
    tables_ : list of arrays
        Parameters of the components with the highest validation log-likelihood, or the last ones.
    center_, scale_ : (D,) arrays
        Shift and scale of `standardize`.
    whitening_ : (D, D) array or None
        Matrix of `standardize="whiten"`, which multiplies the shifted and scaled rows.
    outcome_ : str
        How the fit ended: "converged", "max_steps", "max_time", "callback", "interrupted" or
        "non_finite" (a step whose gradient was not finite; the last good model is kept).
    converged_, n_iter_, n_steps_, n_component_evaluations_, proposal_, start_seconds_, \
            compile_seconds_, trace_
        As in GaussianMixture; `trace_` also has the column `validation`.
    lower_bound_ : float
        Last log-likelihood per row in `trace_`.
    best_validation_ : float
        Highest validation log-likelihood, including that of the start; NaN without validation rows.
    start_validation_ : float
        Validation log-likelihood of the start; with `init_params="gaussian"`, of the Gaussian
        mixture.
    n_rows_seen_ : float
        Rows that all fits and batches so far have used, for learning or validation.
    """

    def _check_family(self) -> int | None:
        """Check the parameters of the family; return how many children the root has, if given."""
        raise TypeError("Use FlowMixture, SumProductTransformNetwork or Mixture.")

    def _can_whiten(self) -> bool:
        """Whether `standardize="auto"` may mix columns."""
        return False

    def _gaussian_form(self) -> str:
        """Covariances of the Gaussians that the family can begin with."""
        return "full"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self._takes_missing()
        return tags

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
            a fresh iterator of batches, or the result of `pickmix.open_rows`. All rows are read
            into memory. `SumProductTransformNetwork(transforms=False)` takes NaN for missing
            values: the likelihood of a row is that of its observed values, and nothing is filled
            in.
        y : ignored
        sample_weight : array-like of shape (N,), default=None
            Non-negative weights. A zero removes the row.
        validation_data : array-like of shape (V, D), or rows from elsewhere, default=None
            Rows for validation, instead of a share of X.
        columns : sequence of str or int, default=None
            Columns to use, if X is not an array or a data frame: names, or numbers from 0.

        Returns
        -------
        self
        """
        require_jax()
        from pickmix.estimators.deep_fit import fit_network

        n_children = self._check_family()
        plan = make_plan(self, n_children, self._can_whiten(), self._gaussian_form())
        random = validation.check_randomness(self.random_state)
        X, weights = read_table(self, X, sample_weight, columns)
        watched = read_watched(self, validation_data)
        seeds = [int(random.randint(2**31 - 1)) for _ in range(2)]
        n_features = X.shape[1]
        former = self._former(n_features, n_children) if self.warm_start else None
        former_rows = float(getattr(self, "n_rows_seen_", 0.0))
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
            self._network_maker(n_children, X, watched),
            plan,
            X,
            weights,
            watched,
            seed,
            former,
            self._fitted_copy,
            checkpoints,
        )
        self.proposal_ = plan.proposal_name
        self._take(fitted)
        n_watched = 0 if validation_data is None or watched is None else watched.shape[0]
        n_before = 0.0 if former is None else former_rows
        self.n_rows_seen_ = n_before + X.shape[0] + n_watched
        validation.warn_about_outcome(self)
        return self

    def partial_fit(self, X: Any, y: object = None, sample_weight: Any = None) -> Self:
        """Learn from one batch of an unlimited stream; its rows are not kept.

        The first batch begins as `fit` does: it decides how rows are transformed (`standardize`),
        the number of components if that is "auto", and the start. It should have many rows. Each
        batch, the first one too, is passed over ten times, `batch_size` rows per step. New rows
        start with components drawn from their exact posterior. Adam's moments and the number of
        steps continue. There are no validation rows, and no early stopping.

        `partial_fit` continues from an earlier `partial_fit`, a `fit` or a loaded model. `fit`
        starts again, or continues from here with `warm_start=True`. `checkpoint` is for `fit` only;
        `pickmix.save` keeps all that a stream needs to continue.

        Parameters
        ----------
        X : array-like of shape (B, D), or rows from elsewhere
            Each chunk of a file or of a source (see `fit`) is a batch. Networks without transforms
            take NaN for missing values.
        y : ignored
        sample_weight : array-like of shape (B,), default=None

        Returns
        -------
        self

        Notes
        -----
        Schedules count the steps of all batches and of earlier fits. `trace_`, `outcome_` and
        `n_iter_` describe the last batch; `max_time` and `callbacks` end it early. A batch with a
        step that is not finite ("non_finite") leaves the model unchanged.
        """
        require_jax()
        if is_large(X):
            refuse_dask("X", X)
            learn_by_chunks(self, X, sample_weight, hasattr(self, "tables_"))
            return self
        from pickmix.estimators.deep_online import learn_batch

        n_children = self._check_family()
        plan = make_plan(self, n_children, self._can_whiten(), self._gaussian_form())
        if isinstance(self.learning_rate, str):
            raise ValueError(
                "learning_rate must be a number or a callable for partial_fit: a stream has no "
                f"end, and {self.learning_rate!r} falls to zero at max_steps."
            )
        begun = hasattr(self, "tables_")
        rows, weights = read_batch(self, X, sample_weight, reset=not begun)
        if rows.shape[0] == 0:
            return self
        former = None
        if begun:
            former, seed = self._going_on(rows.shape[1], n_children), self._split_seed
        else:
            random = validation.check_randomness(self.random_state)
            first, second = (int(random.randint(2**31 - 1)) for _ in range(2))
            seed = first * 2**31 + second
        n_before = float(getattr(self, "n_rows_seen_", 0.0)) if begun else 0.0
        n_seen = n_before + rows.shape[0]
        fitted = learn_batch(
            self._network_maker(n_children, rows),
            plan,
            rows,
            weights,
            seed,
            former,
            n_seen,
            self._fitted_copy,
        )
        evaluations = self.n_component_evaluations_ if begun else 0
        self.proposal_ = plan.proposal_name
        self._take(fitted)
        self.n_component_evaluations_ += evaluations
        self.n_rows_seen_ = n_before if fitted.outcome == Outcome.NON_FINITE else n_seen
        validation.warn_about_outcome(self)
        return self

    def _network_maker(
        self, n_children: int | None, *tables: np.ndarray | None
    ) -> Callable[[int | None], Network]:
        """From a number of children, or None for the one asked for, to a network for tables."""
        given = [table for table in tables if table is not None]
        partial = any(np.isnan(table).any() for table in given)

        def make(chosen: int | None) -> Network:
            network = self._network(given[0].shape[1], chosen or n_children)
            return self._partial_network(network) if partial else network

        return make

    def _going_on(self, n_features: int, n_children: int | None) -> Reached:
        """The last fit, which must have the tables of the network that is asked for."""
        former = self._former(n_features, n_children)
        if former is None:
            asked = self._network(n_features, n_children)
            n_there = sum(table.size for table in self.tables_)
            n_asked = sum(n_rows * width for n_rows, width in asked.shapes)
            raise ValueError(
                "partial_fit continues with the fitted model, which has "
                f"{self.weights_.shape[0]} components and {n_there:,} numbers in its tables, but "
                f"the parameters ask for {asked.n_children} components and {n_asked:,} numbers. "
                "Use fit to start again."
            )
        return former

    def fit_predict(self, X: Any, y: object = None, sample_weight: Any = None) -> np.ndarray:
        """Fit, and return the most probable component of each row, (N,)."""
        return np.asarray(self.fit(X, sample_weight=sample_weight).predict(X))

    def _former(self, n_features: int, n_children: int | None) -> Reached | None:
        """The last fit, if its tables are those of the network that is asked for."""
        from pickmix.estimators.deep_results import Parameters, Reached

        if not hasattr(self, "tables_") or self.center_.shape[0] != n_features:
            return None
        network = self._network(n_features, n_children)
        if tuple(table.shape for table in self.tables_) != network.shapes:
            return None
        parameters = Parameters(self._frame, tuple(self.tables_), self.weights_)
        return Reached(
            parameters,
            self._chain,
            self.n_steps_,
            self._passes,
            self._split_seed,
            self._moments,
        )

    def _fitted_copy(self, parameters: Parameters) -> Self:
        """A copy of the estimator with the parameters of a running fit."""
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
        self.start_validation_ = fitted.start_validation
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
        self._moments = reached.moments
