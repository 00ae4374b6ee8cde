"""What mixtures in closed form share: their family, `fit` and `reduce`."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    DensityMixin,
    TransformerMixin,
)
from sklearn.utils.validation import check_is_fitted

from pickmix.checks import check_integer, check_randomness
from pickmix.closed_form.algorithm import mean_log_base
from pickmix.closed_form.fit import fit_mixture
from pickmix.closed_form.growth import Growth, grow, most_components
from pickmix.closed_form.starts import GivenStart, Start, WarmStart
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows
from pickmix.estimators.compilation import compile_kernels
from pickmix.estimators.fit_rows import FitRows, LargeTable, check_enough_rows
from pickmix.estimators.known_parts import fit_labelled
from pickmix.estimators.mixture_queries import MixtureQueries
from pickmix.estimators.queries import warn_about_outcome
from pickmix.estimators.row_sources import is_large, refuse_noise
from pickmix.estimators.task_callbacks import (
    CallbackSupportMixin,
    with_tasks,
)
from pickmix.estimators.trials import find_parents
from pickmix.families.base import Family
from pickmix.families.layout import Moments
from pickmix.families.low_rank import LowRankGaussian, most_rank
from pickmix.families.registry import Description, Floors, describe_family, make_family
from pickmix.fitting.checkpoint import check_proposal, fingerprint_of, open_checkpoints
from pickmix.fitting.loop import Outcome, Progress
from pickmix.fitting.settings import (
    ClosedFormSettings,
    FitSettings,
    check_callbacks,
    check_settings,
    resolve,
)
from pickmix.inputs.arrays import check_partial_table, refuse_empty_columns
from pickmix.inputs.schema import TableSchema
from pickmix.model.merging import group_components
from pickmix.model.mixture import MixtureModel
from pickmix.threads import use_threads

_SOME_COMPONENTS = 64  # The number that decides whether growth is compiled.
# Parameters of a fit that speak of all columns or components, or of a place on the disk.
NOT_INHERITED = ("weights_init", "means_init", "precisions_init", "fixed_components", "checkpoint")


class ClosedFormMixture(
    ClosedFormSettings,
    MixtureQueries,
    CallbackSupportMixin,  # type: ignore[misc]
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    DensityMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """A mixture of components of a family, fitted in closed form."""

    #: Starts that `init_params` may name, and the parameter that describes the family.
    _init_params: tuple[str, ...] = ("auto", "k-means++", "random_from_data")
    _family_parameter = "family"
    n_components: int | str
    feature_names_in_: np.ndarray
    weights_: np.ndarray
    parameters_: dict[str, np.ndarray]
    column_limits_: np.ndarray
    column_parents_: np.ndarray
    schema_: TableSchema  # Of tables only.
    background_: int | None
    n_rows_seen_: float
    n_steps_: int
    n_component_evaluations_: int
    lower_bound_: float
    #: What scikit-learn's callbacks are told by, during a fit.
    _evaluation_tasks: Sequence[Any] = ()
    _fitted_description: str | list[tuple[str, list[int]]] | None = None
    _effective_counts: np.ndarray
    _passes: float
    _chain: np.ndarray

    def __sklearn_is_fitted__(self) -> bool:
        # A fit that failed has left n_features_in_ behind, which looks fitted to scikit-learn.
        return hasattr(self, "weights_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    # The family.

    def _description(self) -> Description:
        """The family that the parameters ask for."""
        description: Description = getattr(self, self._family_parameter)
        return description

    def _floors(self, n_columns: int) -> float | np.ndarray:
        """`reg_covar` as a number, or as one per column."""
        return float(self.reg_covar)

    def _limits(self) -> np.ndarray:
        """The largest fitted value of each column, as a row (1, D), which gives the levels."""
        return self.column_limits_[None]

    def _make_family(self, rows: np.ndarray, continues: bool = False) -> Family:
        """The family that the parameters ask for, for rows (N, D), or to continue with."""
        # A mixture that continues keeps its levels; others are refused.
        limits = self._limits() if continues else rows
        parents = self._fitted_parents() if continues else None
        floors = self._floors(rows.shape[1])
        return make_family(self._description(), limits, floors, parents, self._low_rank)

    def _low_rank(self, rows: np.ndarray, floors: Floors) -> Family:
        """Low-rank covariances of columns (N, D), to be fitted."""
        D = rows.shape[1]
        rank = most_rank(getattr(self, "rank", "auto"), D, self.n_components)
        axes = getattr(self, "principal_axes_", None)
        return LowRankGaussian(D, floors, rank, self.algorithm == "em", axes)

    def _fitted_low_rank(self, rows: np.ndarray, floors: Floors) -> Family:
        """The same as they were fitted."""
        known = {name.rpartition("_")[2]: values for name, values in self._get_parameters().items()}
        rank, axes = known["loadings"].shape[2], known.get("axes")
        return LowRankGaussian(rows.shape[1], floors, rank, axes=axes)

    def _fitted_family(self) -> Family:
        """The family of the fitted parameters, without regularisation."""
        description = self._fitted_description or self._description()
        known = 0.0, self._fitted_parents(), self._fitted_low_rank
        return make_family(description, self._limits(), *known)

    def _fitted_parents(self) -> np.ndarray | None:
        """The column that each depends on given the component, (D,), if that was looked for."""
        return getattr(self, "column_parents_", None)

    def _with_dependence(self, family: Family, data: FitRows) -> Family:
        """The family with the dependence among categories that the parameters ask for."""
        if getattr(self, "dependence", None) is None:
            return family
        floors = self._floors(data.rows.shape[1])
        most = self.max_components if self.n_components == "auto" else int(self.n_components)
        parents = find_parents(self._description(), family, data, floors, most, self.n_jobs)
        limits = family.limits()[None]
        return make_family(self._description(), limits, floors, parents, self._low_rank)

    def _continues(self, n_columns: int) -> bool:
        """Whether the last fit had the family, components and columns that are asked for now."""
        # Shapes alone do not tell: K variances of D = K columns look like a tied covariance.
        if self._fitted_description != _as_plain(self._description()):
            return False
        looked_for = self._fitted_parents() is not None
        if looked_for != (getattr(self, "dependence", None) is not None):
            return False
        family = self._fitted_family()
        shapes = {name: array.shape for name, array in self._get_parameters().items()}
        same_columns = family.layout.n_columns == n_columns
        number = self.n_components_ if self.n_components == "auto" else int(self.n_components)
        return same_columns and shapes == family.parameter_shapes(number)

    def _get_parameters(self) -> dict[str, np.ndarray]:
        return self.parameters_

    def _set_parameters(self, weights: np.ndarray, parameters: dict[str, np.ndarray]) -> None:
        self.weights_, self.parameters_ = weights, parameters

    def _learn_columns(self, rows: np.ndarray) -> None:
        """Keep facts about the columns of the fitted rows (N, D)."""
        self._fitted_description = _as_plain(self._description())
        self.column_limits_ = np.nanmax(rows, axis=0).astype(np.float64)

    def _learn_parents(self, family: Family) -> None:
        self.__dict__.pop("column_parents_", None)
        if getattr(self, "dependence", None) is not None:
            self.column_parents_ = family.parents()

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

    @property
    def n_components_(self) -> int:
        """Number of components: `n_components`, or what "auto" has chosen."""
        if not hasattr(self, "weights_"):
            raise AttributeError(f"{type(self).__name__} has no n_components_ before it is fitted.")
        return int(self.weights_.shape[0])

    # Fits.

    @with_tasks
    def fit(
        self,
        X: Any,
        y: object = None,
        sample_weight: ArrayLike | None = None,
        *,
        columns: Sequence[str | int] | None = None,
        noise: ArrayLike | None = None,
        labels: ArrayLike | None = None,
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
        labels : array-like of shape (N,), default=None
            Known groups of rows of an array, and -1, NaN or None where none is known. Each
            component then has probabilities of the labels, `label_probabilities_` (K, C) of
            `labels_` (C,), and the likelihood of labels and rows together is maximised: components
            keep groups apart. There may be several components per label, and components without.

        Returns
        -------
        self
        """
        for name in ("labels_", "label_probabilities_"):
            self.__dict__.pop(name, None)
        if labels is None:
            self._fit(X, sample_weight, noise, columns, checkpoint=self.checkpoint)
        else:
            self._check_parameters()
            _refuse("labels", noise=noise, columns=columns, checkpoint=self.checkpoint)
            _refuse("labels", **{name: getattr(self, name, None) for name in NOT_INHERITED})
            fit_labelled(self, X, labels, sample_weight)
        warn_about_outcome(self)
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

    @property
    def _n_features_out(self) -> int:
        return self.model_.n_components

    def transform(self, X: Any, *, top: int | None = None) -> Any:
        """Posterior probabilities of the components, as features of the next step of a pipeline.

        Parameters
        ----------
        X : array-like of shape (N, D), rows that are not in memory, or table
            As in `fit`.
        top : int, default=None
            Keep only so many of the most probable components per row, in a sparse array.

        Returns
        -------
        posteriors : (N, K) array, or sparse array of N * top probabilities
            `get_feature_names_out` names the columns "gaussianmixture0" and so on.

        Examples
        --------
        >>> import numpy as np
        >>> from pickmix import GaussianMixture
        >>> X = np.random.default_rng(0).normal(size=(200, 2))
        >>> mixture = GaussianMixture(8, random_state=0).fit(X)
        >>> mixture.transform(X).shape, mixture.transform(X, top=2).nnz
        ((200, 8), 400)
        """
        check_is_fitted(self)
        if top is None:
            return self.predict_proba(X)
        components, probabilities = self.top_components(X, top)
        starts = np.arange(components.shape[0] + 1) * top
        shape = components.shape[0], self._n_features_out
        shares = csr_array((probabilities.ravel(), components.ravel(), starts), shape=shape)
        shares.sort_indices()
        return shares

    def _fit(
        self,
        X: Any,
        sample_weight: Any,
        noise: Any = None,
        columns: Any = None,
        checkpoint: Any = None,
        *,
        log_units: np.ndarray | None = None,
        **changes: Any,
    ) -> None:
        """Fit from one start or several, and keep the best; `changes` replace parameters.

        With `log_units` (N,), log-likelihoods are those of the table that X encodes.
        """
        self._check_parameters()
        random = check_randomness(self.random_state)
        with contextlib.ExitStack() as stack:
            stack.enter_context(use_threads(self.n_jobs))
            table: LargeTable | None = None
            if columns is not None or (self._takes_sources and is_large(X)):
                refuse_noise(noise)
                table = LargeTable(self, X, sample_weight, columns)
                stack.callback(table.close)
                n_rows, n_columns = table.n_rows, table.n_columns
            else:
                data = FitRows(*check_partial_table(self, X, sample_weight, noise))
                if log_units is not None:
                    # Rows without a value are left out.
                    data.log_units = log_units[~np.isnan(X).all(axis=1)]
                n_rows, n_columns = data.rows.shape
            if not isinstance(self.n_components, str):
                check_enough_rows(n_rows, self.n_components)
            # A fit that continues the last one has one start only, as in scikit-learn.
            warm = bool(self.warm_start) and hasattr(self, "n_steps_")
            warm = warm and self._continues(n_columns)
            # From here scikit-learn draws its starts.
            draws = copy.deepcopy(random)
            seeds = random.randint(2**31 - 1, size=(1 if warm else self.n_init, 2)).tolist()
            checkpoints = None
            if checkpoint is not None:
                facts = fingerprint_of(data.rows) if table is None else table.fingerprint()
                if table is None and data.noise is not None:
                    facts |= {"noise": fingerprint_of(data.noise)}
                if warm:
                    facts |= {"before": fingerprint_of(self.weights_)}
                check_proposal(self.proposal)
                weights = data.weights if table is None else None
                checkpoints = open_checkpoints(self, checkpoint, facts, weights, seeds)
                checkpoints.read()
                seeds = checkpoints.notes["seeds"]
            numbers = [first * 2**31 + second for first, second in seeds]
            if table is None:
                refuse_empty_columns(data.rows)
                # What the columns hold.
                limits = data.rows
                family = self._make_family(limits, warm)
            else:
                data, limits = table.sample(self, seeds[0])
                n_rows = table.n_rows
                if not isinstance(self.n_components, str):
                    check_enough_rows(n_rows, self.n_components)
                try:
                    family = self._make_family(limits, warm)
                except ValueError as error:
                    where = "rows 0 and 1 are the smallest values of all rows and the largest"
                    raise ValueError(f"{error} ({where})") from error
            if not warm:
                family = self._with_dependence(family, data)
            automatic = self.n_components == "auto" and not warm
            most = most_components(family, data.rows.shape[0], self.max_components)
            number = self.n_components
            if isinstance(number, str):
                number = self.n_components_ if warm else min(_SOME_COMPONENTS, most)
            resolving: dict[str, Any] = {
                "start_is_given": warm or self._start_is_given(),
                "n_all_rows": n_rows,
                "is_partial": data.is_partial,
            } | changes
            settings = resolve(self, family, data.rows.shape[0], number, **resolving)
            source = data.source(family, settings.compiled)
            self._warn_about(source)
            compile_seconds = compile_kernels(settings, source)
            start: GivenStart | WarmStart | Start
            growth = Growth.of_records(checkpoints.notes.get("growth")) if checkpoints else None
            if automatic:
                if growth is None:
                    base = mean_log_base(family, source, None)
                    with Progress(int(self.verbose), unit="round", desc="components") as bar:
                        growth = grow(
                            family,
                            source,
                            settings,
                            numbers[0],
                            most,
                            lambda number, score: bar.tell(number, score + base),
                        )
                    if checkpoints is not None:
                        checkpoints.notes["growth"] = growth.trace.tolist()
                    if settings.max_time is not None:
                        left = settings.max_time - growth.seconds
                        resolving["max_time"] = max(1e-9, left)
                settings = resolve(
                    self, family, data.rows.shape[0], growth.n_components, **resolving
                )
                compile_seconds += compile_kernels(settings, source)
                start = growth.start or GivenStart()
            elif warm:
                start = self._warm_start(family, source, settings)
            else:
                start = self._given_start(family, source.center)
            result, outcome = fit_mixture(
                source,
                family,
                settings,
                numbers,
                start=start,
                draws=draws,
                all_rows=None if table is None else table.all_rows,
                callbacks=[*check_callbacks(self.callbacks), *self._evaluation_tasks],
                snapshot=lambda state: self._fitted_copy(state, source, limits),
                checkpoints=checkpoints,
            )
        if not warm:
            self._learn_columns(limits)
            self._learn_parents(family)
        self._set_parameters(result.weights, result.parameters)
        self.background_ = result.background
        self.trace_ = result.trace
        self.outcome_ = str(outcome)
        self.converged_ = outcome == Outcome.CONVERGED
        self.n_steps_ = result.n_steps
        self.n_iter_ = result.n_passes
        self.start_seconds_ = result.start_seconds
        if growth is not None:
            self.start_seconds_ += growth.seconds
            self.growth_ = growth.trace
        elif not warm:
            self.__dict__.pop("growth_", None)
        self.n_start_evaluations_ = result.start_evaluations
        self.n_component_evaluations_ = result.evaluations
        self.lower_bound_ = result.lower_bound
        self.lower_bounds_ = result.trace["log_likelihood"].tolist()
        self.proposal_ = settings.proposal_name
        self._passes = result.passes
        self._effective_counts = result.effective_counts
        self._chain = result.chain
        self.n_rows_seen_ = (float(self.n_rows_seen_) if warm else 0.0) + n_rows
        self.compile_seconds_ = compile_seconds
        # A stream that was under way ends here.
        self.__dict__.pop("_online", None)

    def _check_parameters(self) -> None:
        check_settings(self, self._init_params)

    def _warn_about(self, source: ArrayRows) -> None:
        """Warn of rows that do not suit the parameters."""

    def _start_is_given(self) -> bool:
        """Whether the user chose the start."""
        return bool(self.init_params != "auto")

    def _given_start(self, family: Family, centre: np.ndarray) -> GivenStart:
        """The parameters of the start that the user gave, about a centre (D,)."""
        return GivenStart()

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
        fitted._learn_parents(state.family)
        fitted._set_parameters(state.weights, state.family.parameters(state.model, source.center))
        return fitted

    # Other mixtures.

    def _like(self, columns: np.ndarray, model: MixtureModel) -> Self:
        settings = self.get_params(deep=False)
        settings |= {name: None for name in NOT_INHERITED if name in settings}
        settings["n_components"] = model.n_components
        if np.ndim(settings["reg_covar"]):
            settings["reg_covar"] = np.asarray(settings["reg_covar"])[columns]
        made = type(self)(**settings)
        made._fitted_description = describe_family(model.family)
        made._set_parameters(model.weights, model.parameters)
        made.background_ = model.background
        made._take_columns(self, columns)
        made._learn_parents(model.family)
        return made

    def _take_columns(self, whole: Self, columns: np.ndarray) -> None:
        """Take facts about some columns (d,) of another mixture."""
        setattr(self, self._family_parameter, self._fitted_description)
        self.n_features_in_ = int(columns.shape[0])
        for name in ("feature_names_in_", "column_limits_"):
            if hasattr(whole, name):
                setattr(self, name, getattr(whole, name)[columns])

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
        reduced = self._grouped(self._labels(n_components, "n_components"))
        if X is None:
            return reduced
        check_integer("max_iter", max_iter, 1)
        if not is_large(X):
            # A fit would take other columns, and begin anew.
            self._read(X, None)
        # From where the merges have led, without moving components about. Callbacks watch, and
        # keep, the fit that they were given to.
        reduced.warm_start, reduced.callbacks = True, ()
        reduced._fit(X, sample_weight, noise, max_iter=max_iter, max_steps=None)
        reduced.warm_start, reduced.callbacks = self.warm_start, self.callbacks
        if hasattr(self, "feature_names_in_"):
            reduced.feature_names_in_ = self.feature_names_in_
        # A few passes are what was asked for.
        if reduced.outcome_ != Outcome.MAX_ITER:
            warn_about_outcome(reduced)
        return reduced

    def _grouped(self, labels: np.ndarray) -> Self:
        """The mixture whose component g is made of the components with label g, (K,).

        It has what a fit needs to continue from it, which a marginal or a conditional mixture has
        not, and files may hold anything.
        """
        model = group_components(self.model_, labels)
        reduced = copy.copy(self)
        reduced.n_components = model.n_components
        reduced._set_parameters(model.weights, model.parameters)
        reduced.background_ = model.background
        reduced._merged = None
        known = reduced.__dict__
        # What was given, or is under way, is for as many components as there were.
        known |= dict.fromkeys(known.keys() & set(NOT_INHERITED))
        known.pop("_online", None)
        missing = {"n_steps_": 0, "n_rows_seen_": 0.0, "lower_bound_": -np.inf, "_passes": 0.0}
        for name, value in missing.items():
            known.setdefault(name, value)
        K = labels.shape[0]
        chain = np.asarray(known.get("_chain", ()), dtype=np.int64)
        if chain.ndim != 1 or not chain.size or chain.min() < 0 or chain.max() >= K:
            chain = np.empty(0, dtype=np.int64)
        reduced._chain = labels[chain].astype(np.int32)
        counts = np.asarray(known.get("_effective_counts", ()), dtype=np.float64)
        if counts.shape != (K,):
            reduced._effective_counts = reduced.weights_ * max(reduced.n_rows_seen_, 1000.0)
        else:
            reduced._effective_counts = np.bincount(labels, counts)
        return reduced


def _refuse(parameter: str, **others: Any) -> None:
    """Refuse what cannot be together with a parameter."""
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"{parameter} and {name} cannot be given together.")


def _as_plain(description: Description) -> str | list[tuple[str, list[int]]]:
    """A description in a form that can be compared and saved."""
    if isinstance(description, str):
        return description
    return [(str(name), [int(column) for column in columns]) for name, columns in description]
