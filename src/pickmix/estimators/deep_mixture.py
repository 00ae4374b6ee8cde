"""The mixtures that are fitted by gradients: their fit, and their queries."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils.validation import check_is_fitted

from pickmix import checks
from pickmix.checks import require
from pickmix.estimators.mixture_queries import ConditionalQueries
from pickmix.estimators.queries import DensityQueries, warn_about_outcome
from pickmix.estimators.row_sources import (
    by_chunks,
    is_large,
    learn_by_chunks,
    learn_names,
    open_fitted,
    open_for,
    read_all,
)
from pickmix.families.gaussian import DiagonalGaussian
from pickmix.fitting.checkpoint import fingerprint_of, open_checkpoints
from pickmix.fitting.loop import Outcome
from pickmix.gradient.settings import DeepParameters, Settings, check_parameters, resolve
from pickmix.inputs.arrays import (
    check_partial_table,
    read_numbers,
    refuse_empty_columns,
    warn_about_unseen,
    without_weightless,
)
from pickmix.inputs.open_rows import is_dask
from pickmix.inputs.sources import RowSource, refuse_bad
from pickmix.model.columns import Columns
from pickmix.model.frame import Frame

if TYPE_CHECKING:
    from pickmix.estimators.deep_fit import DeepFit
    from pickmix.fitting.checkpoint import Checkpoints
    from pickmix.gradient.engine import Moments
    from pickmix.gradient.network import Network
    from pickmix.model.deep import DeepModel
    from pickmix.model.rows import QueryRows


def require_jax() -> None:
    """Refuse to work without JAX, and say how to install it."""
    require("jax", "Deep mixtures need JAX: pip install 'pickmix[deep]'")


class _Fitted(ConditionalQueries, DensityQueries):
    """What fits set. Apart from the dataclass, in which annotations are parameters."""

    weights_: np.ndarray
    tables_: list[np.ndarray]
    center_: np.ndarray
    scale_: np.ndarray
    whitening_: np.ndarray | None
    n_steps_: int
    # Columns of the fit that a marginal mixture is about.
    _kept: np.ndarray | None = None
    # What a fit that continues needs: the tree of each row, passes made, the seed that chose the
    # validation rows, and Adam's moments of a stream.
    _chain: np.ndarray
    _passes: float = 0.0
    _split_seed: int = 0
    _moments: Moments | None = None


@dataclass(eq=False, repr=False)
class DeepMixture(DeepParameters, _Fitted, DensityMixin, BaseEstimator):  # type: ignore[misc]
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

    def _network(self, n_features: int, n_children: int | None = None) -> Network:
        """Make the network over D columns; by default with as many children as were fitted."""
        raise TypeError("Use FlowMixture, SumProductTransformNetwork or Mixture.")

    def _takes_missing(self) -> bool:
        """Whether rows may have missing values (NaN), which are then integrated out."""
        return False

    def _partial_network(self, network: Network) -> Network:
        """Make the same network for rows with missing values."""
        raise TypeError("Use SumProductTransformNetwork with transforms=False.")

    def _n_children(self, given: int | None) -> int:
        """Children of the root: the given number, or that of the fitted ones."""
        return int(self.weights_.shape[0] if given is None else given)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self._takes_missing()
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        # A fit that failed has left n_features_in_ behind, which looks fitted to scikit-learn.
        return hasattr(self, "tables_")

    # -- fit ------------------------------------------------------------------------------

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
        n_children = self._check()
        random = checks.check_randomness(self.random_state)
        X, weights = _read_table(self, X, sample_weight, columns)
        name, validation_rows = "validation_data", None
        if is_large(validation_data):
            validation_rows, _ = _read(
                self, name, validation_data, open_fitted, self, validation_data
            )
        elif validation_data is not None:
            validation_rows = _check_seen(self, validation_data, name)
        seeds = [int(random.randint(2**31 - 1)) for _ in range(2)]
        former = self._former(X.shape[1], n_children) if self.warm_start else None
        n_rows_seen = 0.0 if former is None else float(getattr(self, "n_rows_seen_", 0.0))
        n_rows_seen += X.shape[0] + (0 if validation_rows is None else validation_rows.shape[0])
        checkpoints = None
        if self.checkpoint is not None:
            rows = fingerprint_of(X)
            if validation_rows is not None:
                rows["validation_data"] = fingerprint_of(validation_rows)
            if former is not None:
                rows["before"] = former.fingerprint()
            checkpoints = open_checkpoints(self, self.checkpoint, rows, weights, seeds)
            checkpoints.read()
            seeds = checkpoints.notes["seeds"]
        seed = seeds[0] * 2**31 + seeds[1]
        self._train(n_children, X, weights, validation_rows, seed, former, checkpoints=checkpoints)
        self.n_rows_seen_ = n_rows_seen
        warn_about_outcome(self)
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
            _refuse_dask("X", X)
            learn_by_chunks(self, X, sample_weight, hasattr(self, "tables_"))
            return self
        n_children = self._check()
        if isinstance(self.learning_rate, str):
            raise ValueError(
                "learning_rate must be a number or a callable for partial_fit: a stream has no "
                f"end, and {self.learning_rate!r} falls to zero at max_steps."
            )
        begun = hasattr(self, "tables_")
        rows, weights = _read_batch(self, X, sample_weight, reset=not begun)
        if rows.shape[0] == 0:
            return self
        former, evaluations, n_before = None, 0, 0.0
        if begun:
            former, seed = self._continued(rows.shape[1], n_children), self._split_seed
            evaluations = self.n_component_evaluations_
            n_before = float(getattr(self, "n_rows_seen_", 0.0))
        else:
            random = checks.check_randomness(self.random_state)
            first, second = (int(random.randint(2**31 - 1)) for _ in range(2))
            seed = first * 2**31 + second
        n_seen = n_before + rows.shape[0]
        self._train(n_children, rows, weights, None, seed, former, n_seen)
        self.n_component_evaluations_ += evaluations
        self.n_rows_seen_ = n_before if self.outcome_ == Outcome.NON_FINITE else n_seen
        warn_about_outcome(self)
        return self

    def fit_predict(self, X: Any, y: object = None, sample_weight: Any = None) -> np.ndarray:
        """Fit, and return the most probable component of each row, (N,)."""
        return np.asarray(self.fit(X, sample_weight=sample_weight).predict(X))

    def _check(self) -> int | None:
        """Check all parameters; return how many children the root has, if given."""
        n_children = self._check_family()
        check_parameters(self)
        return n_children

    def _train(
        self,
        n_children: int | None,
        X: np.ndarray,
        weights: np.ndarray | None,
        validation_rows: np.ndarray | None,
        seed: int,
        former: DeepFit | None,
        n_seen: float | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        """Fit to checked rows, or to a batch of a stream that has had `n_seen` rows so far."""
        from pickmix.estimators.deep_fit import DeepTraining, split_rows

        given = [table for table in (X, validation_rows) if table is not None]
        has_missing = any(np.isnan(table).any() for table in given)

        def make_network(number: int) -> Network:
            network = self._network(X.shape[1], number)
            return self._partial_network(network) if has_missing else network

        is_stream = n_seen is not None
        split_seed, first_step = seed, 1
        if former is not None and not is_stream:
            # A fit that continues must not learn from rows that were for validation before.
            split_seed, first_step = former.split_seed, former.n_steps + 1
        all_rows = None
        if validation_rows is None and not is_stream:
            share = self.validation_fraction or 0.0
            all_rows = X, weights
            X, weights, validation_rows = split_rows(X, weights, share, split_seed)
        network = make_network(n_children or 1)
        settings = resolve(self, network, n_children, X.shape[0], seed, first_step, n_seen)
        training = DeepTraining(
            make_network,
            settings,
            X,
            weights,
            validation_rows,
            seed,
            split_seed,
            former,
            self._fitted_copy,
            is_stream,
            all_rows,
        )
        self._take(training.fit(checkpoints), settings)

    def _continued(self, n_features: int, n_children: int | None) -> DeepFit:
        """The last fit, which must have the tables of the network that the parameters describe."""
        former = self._former(n_features, n_children)
        if former is None:
            network = self._network(n_features, n_children)
            n_fitted = sum(table.size for table in self.tables_)
            n_described = sum(n_rows * width for n_rows, width in network.shapes)
            raise ValueError(
                "partial_fit continues with the fitted model, which has "
                f"{self.weights_.shape[0]} components and {n_fitted:,} numbers in its tables, but "
                f"the parameters ask for {network.n_children} components and {n_described:,} "
                "numbers. Use fit to start again."
            )
        return former

    def _former(self, n_features: int, n_children: int | None) -> DeepFit | None:
        """The last fit, if it has the tables of the network that the parameters describe."""
        from pickmix.estimators.deep_fit import DeepFit

        n_fitted = self.center_.shape[0] if hasattr(self, "tables_") else 0
        if n_fitted != n_features or self._kept is not None:
            return None
        network = self._network(n_features, n_children)
        if tuple(table.shape for table in self.tables_) != network.shapes:
            return None
        return DeepFit(
            self._frame,
            tuple(self.tables_),
            self.weights_,
            self._chain,
            self.n_steps_,
            self._passes,
            self._split_seed,
            self._moments,
        )

    def _fitted_copy(self, fit: DeepFit) -> Self:
        """Copy the estimator, with the parameters of a running fit."""
        fitted = copy.copy(self)
        fitted._take_parameters(fit)
        return fitted

    def _take_parameters(self, fit: DeepFit) -> None:
        self._kept = None
        self.tables_ = list(fit.tables)
        self.weights_ = fit.weights
        self.center_, self.scale_ = fit.frame.center, fit.frame.scale
        self.whitening_ = fit.frame.whitening

    def _take(self, fit: DeepFit, settings: Settings) -> None:
        """Set the attributes of a fit."""
        self._take_parameters(fit)
        self.proposal_ = settings.proposal_name
        self.trace_ = fit.trace
        values = fit.trace["log_likelihood"]
        self.lower_bound_ = float(values[-1]) if values.size else math.nan
        self.best_validation_ = fit.best_validation
        self.start_validation_ = fit.start_validation
        self.outcome_ = str(fit.outcome)
        self.converged_ = fit.outcome == Outcome.CONVERGED
        self.n_steps_ = fit.n_steps
        self.n_iter_ = fit.n_passes
        self.n_component_evaluations_ = fit.n_evaluations
        self.start_seconds_ = fit.start_seconds
        self.compile_seconds_ = fit.compile_seconds
        self._chain, self._passes = fit.chain, fit.passes
        self._split_seed, self._moments = fit.split_seed, fit.moments

    # -- queries --------------------------------------------------------------------------

    @property
    def _frame(self) -> Frame:
        return Frame(self.center_, self.scale_, self.whitening_)

    @property
    def model_(self) -> DeepModel:
        """The fitted mixture as a value, with array-level queries."""
        require_jax()
        check_is_fitted(self)
        from pickmix.model.deep import DeepModel

        network = self._network(self.center_.shape[0])
        tables = tuple(self.tables_)
        # A file may hold arrays of another model.
        shapes, expected = [np.shape(table) for table in tables], [*network.shapes]
        if shapes != expected or self.scale_.shape != self.center_.shape:
            raise ValueError(
                f"tables_ must have the shapes {expected}, for {self.center_.shape[0]} columns, "
                f"got {shapes}."
            )
        for_missing = self._partial_network if self._takes_missing() else None
        fitted = network, tables, self.weights_, self._frame, self.dtype
        return DeepModel(*fitted, for_missing, self._kept)

    @property
    def _columns(self) -> Columns:
        check_is_fitted(self)
        return Columns(self, DiagonalGaussian(int(self.n_features_in_)))

    def _like(self, columns: np.ndarray, model: DeepModel) -> Self:
        some = copy.copy(self)
        some._kept, some.n_features_in_ = model.columns, int(columns.shape[0])
        if hasattr(self, "feature_names_in_"):
            some.feature_names_in_ = self.feature_names_in_[columns]
        return some

    def _random(self, random_state: Any) -> np.random.RandomState:
        seed = self.random_state if random_state is None else random_state
        return checks.check_randomness(seed)

    def _query_rows(
        self, terms: Columns, rows: np.ndarray, noise: Any, numbers: np.ndarray | None = None
    ) -> QueryRows:
        if noise is not None:
            raise ValueError("noise must be None for deep mixtures; GaussianMixture takes it.")
        return self.model_.query_rows(rows, numbers)

    def effective_draws(self, X: Any) -> np.ndarray:
        """How many independent draws the answers about rows with missing values are worth, (N,).

        Infinite where answers are exact: of complete rows, and where all components are Gaussians,
        as in most networks, and flows that have not left their start. Else missing cells are drawn
        from Gaussians that are like the components, and draws are weighed. A log-density is then
        off by about one over the root of this number, a mean by as many standard deviations.
        """
        return self._query_rows(self._columns, self._read(X), None).effective_draws()

    def _read(self, X: Any) -> np.ndarray:
        require_jax()
        check_is_fitted(self)
        return read_numbers(self, X)

    @by_chunks
    def score_samples(self, X: Any) -> np.ndarray:
        """Log-density of each row, (N,), or of what was observed of it; see `effective_draws`."""
        return self.model_.score_samples(self._read(X))

    @by_chunks
    def predict_proba(self, X: Any) -> np.ndarray:
        """Posterior probabilities of all components, (N, K)."""
        return self.model_.predict_proba(self._read(X))

    @by_chunks
    def top_components(self, X: Any, m: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """The m most probable components of each row and their posterior probabilities.

        Parameters
        ----------
        X : array-like of shape (N, D)
        m : int, default=1
            At most the number of components.

        Returns
        -------
        components : (N, m) int array
            Most probable first.
        probabilities : (N, m) array
            Exact posterior probabilities, so a row sums to at most one.
        """
        check_is_fitted(self)
        n_components = self.weights_.shape[0]
        if checks.check_integer("m", m, 1) > n_components:
            raise ValueError(f"m must be at most n_components={n_components}, got {m!r}.")
        return self.model_.top_components(self._read(X), m)


# -- rows, which deep fits need in memory ---------------------------------------------------


def _read_table(
    estimator: Any, X: Any, sample_weight: Any, columns: Any
) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows to fit (N, D) and their weights (N,), without those of weight zero.

    The estimator learns the columns. `columns` are chosen of rows that do not come as an array.
    NaN stands for a missing value, for estimators that take them.
    """
    if columns is None and not is_large(X):
        return _check(estimator, X, sample_weight)
    rows, source = _read(estimator, "X", X, open_for, X, columns)
    rows, weights = _check(estimator, rows, sample_weight)
    learn_names(estimator, source.n_columns, source.names)
    return rows, weights


def _read_batch(
    estimator: Any, X: Any, sample_weight: Any, reset: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows (B, D) of a batch of a stream, and their weights; none if nothing was seen of them."""
    if reset:
        return _check(estimator, X, sample_weight)
    rows = read_numbers(estimator, X)
    if estimator._takes_missing() and np.isnan(rows).all():
        warn_about_unseen(rows.shape[0])
        return rows[:0], None
    return _check(estimator, X, sample_weight, reset=False)


def _check_seen(estimator: Any, X: Any, parameter: str) -> np.ndarray:
    """Rows (N, D) with the columns that an estimator has learnt, with NaN if it takes them."""
    rows = read_numbers(estimator, X)
    if not estimator._takes_missing():
        refuse_missing(estimator, rows, parameter)
    return rows


def _check(
    estimator: Any, X: Any, sample_weight: Any, reset: bool = True
) -> tuple[np.ndarray, np.ndarray | None]:
    if estimator._takes_missing():
        rows, weights, _ = check_partial_table(estimator, X, sample_weight, None, reset)
        if reset:
            refuse_empty_columns(rows)
        return rows, weights
    rows = read_numbers(estimator, X, reset)
    refuse_missing(estimator, rows, "X")
    return without_weightless(rows, sample_weight, None)[:2]


def refuse_missing(estimator: Any, rows: np.ndarray, parameter: str) -> None:
    """Refuse rows with missing values, and say what takes them."""
    missing = np.isnan(rows)
    if missing.any():
        row, column = np.argwhere(missing)[0].tolist()
        raise ValueError(
            f"{parameter} must hold no missing values for this {type(estimator).__name__}, got "
            f"NaN in row {row}, column {column}. GaussianMixture, TableMixture and "
            "SumProductTransformNetwork with transforms=False (not whitened) take them. Steps of "
            "other deep fits need complete rows: fill them by GaussianMixture's impute(X, 'draw')."
        )


def _refuse_dask(parameter: str, data: Any) -> None:
    """Refuse rows that are on a cluster."""
    if is_dask(data):
        raise TypeError(
            f"{parameter} must not be a Dask collection: deep fits need their rows in memory. If "
            f"they fit there, pass {parameter}.compute(); GaussianMixture takes them as they are."
        )


def _read(
    estimator: Any, parameter: str, data: Any, opener: Callable[..., RowSource], *args: Any
) -> tuple[np.ndarray, RowSource]:
    """All rows of data that are not in memory, without infinite values, and their source."""
    _refuse_dask(parameter, data)
    source = opener(*args)
    try:
        rows = read_all(source, "deep fits need their rows in memory")
        refuse_bad(source, 0, rows, parameter, allow_nan=estimator._takes_missing())
    finally:
        # A source that the user has opened is the user's to close.
        if source is not data:
            source.close()
    return rows, source
