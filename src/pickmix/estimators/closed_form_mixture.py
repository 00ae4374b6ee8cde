"""What mixtures in closed form share: parameters, `fit` and `reduce`."""

from __future__ import annotations

import abc
import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, DensityMixin

from pickmix.closed_form.fit import FitResult, fit_mixture
from pickmix.closed_form.starts import GivenStart, WarmStart
from pickmix.closed_form.state import MixtureState
from pickmix.data.partial_rows import make_rows
from pickmix.data.rows import ArrayRows
from pickmix.estimators import validation
from pickmix.estimators.compilation import compile_kernels
from pickmix.estimators.large import LargeTable
from pickmix.estimators.mixture_queries import MixtureQueries
from pickmix.estimators.row_sources import is_large
from pickmix.families.base import Family
from pickmix.families.layout import Moments
from pickmix.fitting.checkpoint import (
    Checkpoints,
    check_proposal,
    fingerprint_of,
    open_checkpoints,
)
from pickmix.fitting.settings import (
    ClosedFormSettings,
    FitSettings,
    check_callbacks,
    check_settings,
    resolve,
)
from pickmix.fitting.stopping import Outcome
from pickmix.inputs.arrays import check_partial_table, refuse_empty_columns
from pickmix.model.merging import group_components
from pickmix.model.mixture import MixtureModel, make_backend
from pickmix.threads import Threads, resolve_n_jobs

# Parameters of a fit that speak of all columns or components, or of a place on the disk.
NOT_INHERITED = ("weights_init", "means_init", "precisions_init", "checkpoint")


@contextlib.contextmanager
def _about_extremes() -> Iterator[None]:
    """Name the rows in an error about the extremes of a table."""
    try:
        yield
    except ValueError as error:
        where = "rows 0 and 1 are the smallest values of all rows and the largest"
        raise ValueError(f"{error} ({where})") from error


class ClosedFormMixture(
    ClosedFormSettings,
    MixtureQueries,
    DensityMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """A mixture of components of a family, fitted in closed form."""

    #: Starts that `init_params` may name.
    _init_params: tuple[str, ...] = ("auto", "k-means++", "random_from_data", "paper")
    n_components: int
    feature_names_in_: np.ndarray
    weights_: np.ndarray
    background_: int | None
    n_rows_seen_: float
    n_steps_: int
    n_component_evaluations_: int
    lower_bound_: float
    _effective_counts: np.ndarray
    _chain: np.ndarray

    def __sklearn_is_fitted__(self) -> bool:
        # A fit that failed has left n_features_in_ behind, which looks fitted to scikit-learn.
        return hasattr(self, "weights_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    # What an estimator says of its family.

    @abc.abstractmethod
    def _make_family(self, rows: np.ndarray, continues: bool = False) -> Family:
        """The family that the parameters ask for, for rows (N, D), or to continue with."""

    @abc.abstractmethod
    def _continues(self, n_columns: int) -> bool:
        """Whether the last fit had the family, components and columns that are asked for now."""

    @abc.abstractmethod
    def _fitted_family(self) -> Family:
        """The family of the fitted parameters, without regularisation."""

    @abc.abstractmethod
    def _get_parameters(self) -> dict[str, np.ndarray]:
        """The fitted parameters of the family."""

    def _given_start(self, family: Family, centre: np.ndarray) -> GivenStart:
        """The parameters of the start that the user gave, about a centre (D,)."""
        return GivenStart()

    @abc.abstractmethod
    def _set_parameters(self, weights: np.ndarray, parameters: dict[str, np.ndarray]) -> None:
        """Keep the parameters of a mixture as attributes."""

    @property
    def model_(self) -> MixtureModel:
        """The fitted mixture as a value, with array-level queries."""
        return MixtureModel(
            self._fitted_family(),
            self.weights_,
            self._get_parameters(),
            getattr(self, "background_", None),
            float(getattr(self, "n_rows_seen_", 0.0)),
            self.n_jobs,
        )

    def fit(
        self,
        X: Any,
        y: object = None,
        sample_weight: ArrayLike | None = None,
        *,
        columns: Sequence[str | int] | None = None,
        noise: ArrayLike | None = None,
    ) -> Self:
        """Fit the mixture.

        Parameters
        ----------
        X : array-like of shape (N, D), float32 or float64, or rows that are not in memory
            NaN is a missing value. Nothing is filled in: the fit maximises the likelihood of the
            observed values. Rows with missing values only are left out.

            Instead of an array: a path or pattern of .npy, .parquet or .csv files, a `np.memmap`, a
            pyarrow Table or Dataset, an object with a length and slices, a function that returns
            a fresh iterator of batches, the result of `pickmix.open_rows`, a Dask array or
            dataframe. Then a sample of the rows is read into memory, and a mixture is fitted to it;
            `max_steps` and `step_size` apply to this fit. Passes over all rows follow, chunk by
            chunk, until `tol` is reached or `max_iter` passes are made. Data no larger than the
            sample are read whole.
        y : ignored
        sample_weight : array-like of shape (N,), default=None
            Non-negative weights. A zero removes the row.
        columns : sequence of str or int, default=None
            Columns to use, if X is not an array or a data frame: names, or numbers from 0.
        noise : array-like of shape (N, D) or (N, D, D), default=None
            Variances, or covariances, of known noise in the rows of an array. The mixture then
            describes the rows without noise (extreme deconvolution). For Gaussians only.

        Returns
        -------
        self
        """
        self._fit(
            X,
            sample_weight,
            self.max_iter,
            self.max_steps,
            columns,
            checkpoint=self.checkpoint,
            noise=noise,
        )
        validation.warn_about_outcome(self)
        return self

    def fit_predict(
        self,
        X: Any,
        y: object = None,
        sample_weight: ArrayLike | None = None,
        *,
        noise: ArrayLike | None = None,
    ) -> np.ndarray:
        """Fit, and return the most probable component of each row, (N,)."""
        return self.fit(X, sample_weight=sample_weight, noise=noise).predict(X, noise=noise)

    def _fit(
        self,
        X: Any,
        sample_weight: Any,
        max_iter: Any,
        max_steps: Any,
        columns: Any = None,
        checkpoint: Any = None,
        noise: Any = None,
    ) -> None:
        """Fit from one start or several, and keep the best."""
        self._check_parameters()
        random = validation.check_randomness(self.random_state)
        threads = Threads(resolve_n_jobs(self.n_jobs))
        table: LargeTable | None = None
        weights: np.ndarray | None = None
        try:
            if columns is not None or (self._takes_sources and is_large(X)):
                if noise is not None:
                    raise ValueError("noise needs rows in memory: read X into an array first.")
                table = LargeTable(self, X, sample_weight, columns, threads)
                n_rows, n_columns = table.n_heavy, table.n_columns
            else:
                rows, weights, noise = check_partial_table(self, X, sample_weight, noise)
                n_rows, n_columns = rows.shape
            validation.check_enough_rows(n_rows, self.n_components)
            # A fit that continues the last one has one start only, as in scikit-learn.
            warm = bool(self.warm_start) and hasattr(self, "n_steps_")
            warm = warm and self._continues(n_columns)
            # From here scikit-learn draws its starts.
            draws = copy.deepcopy(random)
            seeds = random.randint(2**31 - 1, size=(1 if warm else self.n_init, 2)).tolist()
            checkpoints: Checkpoints | None = None
            if checkpoint is not None:
                facts = fingerprint_of(rows) if table is None else table.fingerprint()
                if noise is not None:
                    facts |= {"noise": fingerprint_of(noise)}
                if warm:
                    facts |= {"before": fingerprint_of(self.weights_)}
                check_proposal(self.proposal)
                checkpoints = open_checkpoints(self, checkpoint, facts, weights, seeds)
                checkpoints.read()
                seeds = checkpoints.notes["seeds"]
            if table is None:
                refuse_empty_columns(rows)
            else:
                rows, weights = table.look(self, seeds[0])
                n_rows = table.n_heavy
                validation.check_enough_rows(n_rows, self.n_components)
            # What the columns hold, in a few rows.
            limits = rows if table is None else table.extremes()
            with contextlib.nullcontext() if table is None else _about_extremes():
                family = self._make_family(limits, warm)
            settings = resolve(
                self,
                family,
                rows.shape[0],
                start_is_given=warm or self._start_is_given(),
                n_all_rows=n_rows,
                is_partial=noise is not None or bool(np.isnan(rows).any()),
                max_iter=max_iter,
                max_steps=max_steps,
            )
            source = self._make_source(
                family, rows, weights, settings.compiled, table=table, noise=noise
            )
            self._warn_about(source)
            compile_seconds = compile_kernels(settings, source)
            result, outcome = fit_mixture(
                source,
                family,
                settings,
                make_backend(settings.compiled, threads),
                [first * 2**31 + second for first, second in seeds],
                start=self._warm_start(family, source, settings)
                if warm
                else self._given_start(family, source.center),
                draws=draws,
                all_rows=None if table is None or table.is_whole else table.all_rows(),
                callbacks=check_callbacks(self.callbacks),
                snapshot=lambda state: self._fitted_copy(state, source, limits),
                checkpoints=checkpoints,
            )
        finally:
            threads.close()
            if table is not None:
                table.close()
        seen = float(self.n_rows_seen_) if warm else 0.0
        if not warm:
            self._learn_columns(limits)
        self._keep(result, outcome, settings)
        self.n_rows_seen_ = seen + n_rows
        self.compile_seconds_ = compile_seconds
        # A stream that was under way ends here.
        self.__dict__.pop("_online", None)

    def _learn_columns(self, rows: np.ndarray) -> None:
        """Keep facts about the columns of the fitted rows (N, D)."""

    def _warn_about(self, source: ArrayRows) -> None:
        """Warn of rows that do not suit the parameters."""

    def _keep(self, result: FitResult, outcome: Outcome, settings: FitSettings) -> None:
        """Keep the result of a fit as attributes."""
        self._set_parameters(result.weights, result.parameters)
        self.background_ = result.background
        self.trace_ = result.trace
        self.outcome_ = str(outcome)
        self.converged_ = outcome == Outcome.CONVERGED
        self.n_steps_ = result.n_steps
        self.n_iter_ = result.n_passes
        self.start_seconds_ = result.start_seconds
        self.n_start_evaluations_ = result.start_evaluations
        self.n_component_evaluations_ = result.evaluations
        self.lower_bound_ = result.lower_bound
        self.lower_bounds_ = result.trace["log_likelihood"].tolist()
        self.proposal_ = settings.proposal_name
        self._passes = result.passes
        self._effective_counts = result.effective_counts
        self._chain = result.chain

    def _make_source(
        self,
        family: Family,
        rows: np.ndarray,
        weights: np.ndarray | None,
        compiled: bool,
        centre: np.ndarray | None = None,
        table: LargeTable | None = None,
        noise: np.ndarray | None = None,
    ) -> ArrayRows:
        """Rows as the engine sees them, checked; about their mean unless a centre is given.

        With a `table`, they are a sample of it.
        """
        if noise is not None and not family.takes_noise:
            raise ValueError(f"noise is for Gaussian components, got family {family.name!r}.")
        problem = family.check(rows)
        if problem is not None:
            raise ValueError(f"X: {problem}.")
        order = family.column_order
        if order is not None:
            rows = rows[:, order]
        if table is not None and not table.is_whole:
            sample = table.sample_source(rows, weights, family, compiled)
            validation.check_spread(sample)
            return sample
        # Sums of huge values may overflow; the check of the spread then says so by name.
        with np.errstate(over="ignore", invalid="ignore"):
            source = make_rows(rows, weights, centre, noise)
            if centre is None:
                source.center = family.centre(source.center)
        validation.check_spread(source)
        return source

    def _warm_start(self, family: Family, source: ArrayRows, settings: FitSettings) -> WarmStart:
        return WarmStart(
            self._fitted_moments(family, source.center),
            self._chain,
            self.n_steps_,
            self._passes,
            self.lower_bound_,
            self.background_ if settings.background else None,
        )

    def _fitted_moments(self, family: Family, centre: np.ndarray) -> Moments:
        """Moments of the fitted mixture, in coordinates about a centre (D,)."""
        moments = family.moments_of(self._get_parameters(), centre)
        counts = np.maximum(self._effective_counts, 1e-300)
        return moments._replace(
            mass=self.weights_.copy(), squares=np.square(self.weights_) / counts
        )

    def _fitted_copy(self, state: MixtureState, source: ArrayRows, rows: np.ndarray) -> Self:
        """A copy of this estimator with the parameters of a state that learns from rows (N, D)."""
        fitted = copy.copy(self)
        fitted._learn_columns(rows)
        fitted._set_parameters(state.weights, state.family.parameters(state.model, source.center))
        return fitted

    def _start_is_given(self) -> bool:
        """Whether the user chose the start."""
        return bool(self.init_params != "auto")

    def _like(self, columns: np.ndarray, model: MixtureModel) -> Self:
        settings = self.get_params(deep=False)
        settings |= {name: None for name in NOT_INHERITED if name in settings}
        settings["n_components"] = model.n_components
        if np.ndim(settings["reg_covar"]):
            settings["reg_covar"] = np.asarray(settings["reg_covar"])[columns]
        made = type(self)(**settings)
        made._set_model(self, columns, model)
        made.background_ = model.background
        return made

    @abc.abstractmethod
    def _set_model(self, whole: Self, columns: np.ndarray, model: MixtureModel) -> None:
        """Keep a model of some columns of another mixture as attributes."""

    def reduce(
        self,
        n_components: int,
        X: Any = None,
        *,
        sample_weight: ArrayLike | None = None,
        noise: ArrayLike | None = None,
        max_iter: int = 5,
    ) -> Self:
        """A smaller mixture: components are merged until `n_components` are left.

        Parameters
        ----------
        n_components : int
            At most the number of components of this mixture.
        X : array-like of shape (N, D) or table, default=None
            Rows to fit the smaller mixture to, beginning with the merged components, as in `fit`.
            Without them it is the merged mixture. Kinds, levels and scales of a table stay.
        sample_weight : array-like of shape (N,), default=None
            Non-negative weights of the rows.
        noise : array-like of shape (N, D) or (N, D, D), default=None
            Variances or covariances of the noise of the rows, as in `fit`.
        max_iter : int, default=5
            Most passes over X.

        Returns
        -------
        mixture : fitted mixture of the same class
            Components are numbered by falling weight. Without X, `trace_` and other facts about a
            fit are those of the fit that was reduced.

        Examples
        --------
        >>> import numpy as np
        >>> from pickmix import GaussianMixture
        >>> rng = np.random.default_rng(0)
        >>> X = np.concatenate([rng.normal(-4, 1, (500, 2)), rng.normal(4, 1, (500, 2))])
        >>> mixture = GaussianMixture(8, random_state=0).fit(X)
        >>> np.sort(mixture.reduce(2).means_[:, 0]).round(0)
        array([-4.,  4.])
        """
        labels = self.merge_tree().labels(self._check_level("n_components", n_components))
        reduced = self._grouped(labels)
        if X is not None:
            validation.check_integer("max_iter", max_iter, 1)
            if not is_large(X):
                # A fit would take other columns, and begin anew.
                self._read(X, None)
            # From where the merges have led, without moving components about. Callbacks watch,
            # and keep, the fit that they were given to.
            reduced.warm_start, reduced.callbacks = True, ()
            reduced._fit(X, sample_weight, max_iter, None, noise=noise)
            reduced.warm_start, reduced.callbacks = self.warm_start, self.callbacks
            if hasattr(self, "feature_names_in_"):
                reduced.feature_names_in_ = self.feature_names_in_
            # A few passes are what was asked for.
            if reduced.outcome_ != Outcome.MAX_ITER:
                validation.warn_about_outcome(reduced)
        return reduced

    def _grouped(self, labels: np.ndarray) -> Self:
        """The mixture whose component g is made of the components with label g."""
        model = group_components(self.model_, labels)
        reduced = copy.copy(self)
        reduced.n_components = model.n_components
        reduced._set_parameters(model.weights, model.parameters)
        if hasattr(self, "background_"):
            reduced.background_ = model.background
        reduced._merged = None
        # What was given, or is under way, is for as many components as there were.
        for name in NOT_INHERITED:
            if hasattr(reduced, name):
                setattr(reduced, name, None)
        reduced.__dict__.pop("_online", None)
        reduced._prepare_to_continue(labels)
        return reduced

    def _prepare_to_continue(self, labels: np.ndarray) -> None:
        """Give a mixture that was reduced by labels (K,) what a fit needs to continue from it."""
        K = labels.shape[0]
        known = self.__dict__
        # A marginal or a conditional mixture has not been fitted, and files may hold anything.
        known.setdefault("n_steps_", 0)
        known.setdefault("n_rows_seen_", 0.0)
        known.setdefault("lower_bound_", -np.inf)
        known.setdefault("_passes", 0.0)
        known.setdefault("background_", None)
        chain = np.asarray(known.get("_chain", ()), dtype=np.int64)
        if chain.ndim != 1 or not chain.size or chain.min() < 0 or chain.max() >= K:
            chain = np.empty(0, dtype=np.int64)
        self._chain = labels[chain].astype(np.int32)
        counts = np.asarray(known.get("_effective_counts", ()), dtype=np.float64)
        if counts.shape != (K,):
            self._effective_counts = self.weights_ * max(self.n_rows_seen_, 1000.0)
        else:
            self._effective_counts = np.bincount(labels, counts)

    def _check_parameters(self) -> None:
        check_settings(self, self._init_params)
