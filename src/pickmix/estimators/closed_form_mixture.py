"""What mixtures in closed form share: parameters, `fit` and `reduce`."""

from __future__ import annotations

import abc
import contextlib
import copy
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, DensityMixin

from pickmix.closed_form.starts import Start, Starter
from pickmix.closed_form.state import MixtureState
from pickmix.data.partial_rows import make_rows
from pickmix.data.rows import ArrayRows
from pickmix.estimators import validation
from pickmix.estimators.checkpointing import check_checkpoint, fingerprint_of, open_checkpoints
from pickmix.estimators.closed_form_fit import Before, Fitted
from pickmix.estimators.closed_form_fits import Fits
from pickmix.estimators.compilation import compile_kernels
from pickmix.estimators.large import LargeTable
from pickmix.estimators.mixture_queries import MixtureQueries
from pickmix.estimators.plan import (
    ALGORITHMS,
    Plan,
    resolve_batch_size,
    resolve_n_samples,
    resolve_plan,
    resolve_proposal,
)
from pickmix.estimators.row_sources import is_large
from pickmix.estimators.validation import RandomSeed
from pickmix.families.base import Family
from pickmix.families.layout import Moments
from pickmix.fitting.loop import FitInfo
from pickmix.fitting.stopping import Outcome
from pickmix.inputs.arrays import check_partial_table, refuse_empty_columns
from pickmix.model.merging import group_components
from pickmix.model.mixture import MixtureModel, make_backend
from pickmix.selection.proposals import Proposal
from pickmix.selection.schedules import resolve_annealing, resolve_step_size
from pickmix.selection.settings import RandomPartition, SearchSet
from pickmix.sweep.contract import needs_compiled
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


@dataclass(eq=False, repr=False)
class ClosedFormParameters:
    """The parameters that mixtures in closed form share; see `GaussianMixture`."""

    _: KW_ONLY
    algorithm: str = "mhsaem"
    proposal: str | RandomPartition | Proposal | SearchSet = "auto"
    n_samples: int | str = "auto"
    reuse_log_joint: bool = False
    batch_size: int | str = "auto"
    step_size: float | str | Callable[[int], float] = "auto"
    annealing: str | Callable[[int], float] | None = None
    max_iter: int = 100
    max_steps: int | None = None
    max_time: float | None = None
    tol: float = 1e-3
    evaluate_every: int | str | Sequence[int] = "auto"
    reg_covar: Any = 1e-6
    n_init: int = 1
    init_params: str = "auto"
    random_state: RandomSeed = None
    n_jobs: int | None = None
    warm_start: bool = False
    verbose: int = 0
    callbacks: Callable[[FitInfo], Any] | Sequence[Callable[[FitInfo], Any]] = ()
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: float = 300.0


class ClosedFormMixture(
    ClosedFormParameters,
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
    def _make_family(self, rows: np.ndarray, goes_on: bool = False) -> Family:
        """The family that the parameters ask for, for rows (N, D), or to continue with."""

    @abc.abstractmethod
    def _goes_on(self, n_columns: int) -> bool:
        """Whether the last fit had the family, components and columns that are asked for now."""

    @abc.abstractmethod
    def _fitted_family(self) -> Family:
        """The family of the fitted parameters, without regularisation."""

    @abc.abstractmethod
    def _get_parameters(self) -> dict[str, np.ndarray]:
        """The fitted parameters of the family."""

    @abc.abstractmethod
    def _choose_start(self, starter: Starter, plan: Plan) -> Start:
        """The start that the parameters ask for, if the fit does not continue the last one."""

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
        try:
            table: LargeTable | None = None
            weights: np.ndarray | None = None
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
            warm = warm and self._goes_on(n_columns)
            # From here scikit-learn draws its starts.
            start_random = copy.deepcopy(random)
            seeds = random.randint(2**31 - 1, size=(1 if warm else self.n_init, 2)).tolist()
            checkpoints = None
            if checkpoint is not None:
                there = fingerprint_of(rows) if table is None else table.fingerprint()
                if noise is not None:
                    there |= {"noise": fingerprint_of(noise)}
                before_that = {"before": fingerprint_of(self.weights_)} if warm else {}
                checkpoints = open_checkpoints(
                    self, checkpoint, there | before_that, weights, seeds
                )
                seeds = (checkpoints.read_notes() or {"seeds": seeds})["seeds"]
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
            settings = copy.copy(self)
            settings.max_iter, settings.max_steps = max_iter, max_steps
            given = warm or self._start_is_given()
            plan = resolve_plan(settings, family, rows.shape[0], given)
            partial = noise is not None or bool(np.isnan(rows).any())
            if table is not None or partial:
                # Passes over all rows are the larger part.
                compiled = needs_compiled(family.layout, n_rows, self.n_components, partial)
                plan = replace(plan, compiled=compiled)
            source = self._make_source(
                family, rows, weights, plan.compiled, table=table, noise=noise
            )
            self._warn_about(source)
            compile_seconds = compile_kernels(plan, source)
            before = Before()
            if warm:
                background = self.background_ if plan.background else None
                before = Before(self.n_steps_, self._passes, self.lower_bound_, background, True)
            fits = Fits(
                plan=plan,
                source=source,
                seeds=[first * 2**31 + second for first, second in seeds],
                backend=make_backend(plan.compiled, threads),
                table=None if table is None or table.is_whole else table,
                choose_start=lambda starter, draws: self._start(starter, plan, warm, draws),
                before=before,
                max_time=self.max_time,
                verbose=int(self.verbose),
                callbacks=validation.check_callbacks(self.callbacks),
                make_estimator=lambda state: self._fitted_copy(state, source, limits),
            )
            best, outcome = fits.run(start_random, checkpoints, self._own_classes())
        finally:
            threads.close()
            if table is not None:
                table.close()
        seen = float(self.n_rows_seen_) if warm else 0.0
        if not warm:
            self._learn_columns(limits)
        self._take(best, outcome, plan)
        self.n_rows_seen_ = seen + n_rows
        self.compile_seconds_ = compile_seconds
        # A stream that was under way ends here.
        self.__dict__.pop("_online", None)

    def _own_classes(self) -> tuple[type, ...]:
        """Classes of the user whose objects a checkpoint may hold."""
        return (type(self.proposal),) if isinstance(self.proposal, Proposal) else ()

    def _learn_columns(self, rows: np.ndarray) -> None:
        """Keep facts about the columns of the fitted rows (N, D)."""

    def _warn_about(self, source: ArrayRows) -> None:
        """Warn of rows that do not suit the parameters."""

    def _take(self, fitted: Fitted, outcome: Outcome, plan: Plan) -> None:
        """Keep the result of a fit as attributes."""
        self._set_parameters(fitted.weights, fitted.parameters)
        self.background_ = fitted.background
        self.trace_ = fitted.trace
        self.outcome_ = str(outcome)
        self.converged_ = outcome == Outcome.CONVERGED
        self.n_steps_ = fitted.n_steps
        self.n_iter_ = fitted.n_passes
        self.start_seconds_ = fitted.start_seconds
        self.n_start_evaluations_ = fitted.start_evaluations
        self.n_component_evaluations_ = fitted.evaluations
        self.lower_bound_ = fitted.lower_bound
        self.lower_bounds_ = fitted.trace["log_likelihood"].tolist()
        self.proposal_ = plan.proposal_name
        self._passes = fitted.passes
        self._effective_counts = fitted.effective_counts
        self._chain = fitted.chain

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
            source = make_rows(rows, weights, centre, compiled, noise)
            if centre is None:
                source.center = family.centre(source.center)
        validation.check_spread(source)
        return source

    def _start(
        self, starter: Starter, plan: Plan, warm: bool, random: np.random.RandomState
    ) -> Start:
        """Where a fit begins; `random` makes scikit-learn's draws, one start after another."""
        if not warm:
            return self._choose_start(starter, plan)
        moments = self._fitted_moments(plan.family, starter.source.center)
        chain = self._chain.copy()
        K = plan.n_components
        # Kernels trust these indices, wherever they come from.
        if chain.shape[0] != plan.n_rows or chain.min() < 0 or chain.max() >= K:
            chain = starter.chain_near(moments)
        return Start(moments, chain)

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
        check = validation
        check.check_integer("n_components", self.n_components, 1)
        check.check_choice("algorithm", self.algorithm, ALGORITHMS)
        check.check_choice("init_params", self.init_params, self._init_params)
        if self.algorithm != "tsaem" or not isinstance(self.proposal, SearchSet):
            resolve_proposal(self.proposal)
        resolve_n_samples(self.n_samples, self.algorithm, self.proposal)
        check.check_flag("reuse_log_joint", self.reuse_log_joint)
        # EM ignores batch_size, but a mistake in it is refused all the same.
        resolve_batch_size(self.batch_size, "mhsaem", 1, self.n_components, None)
        check.check_integer("max_iter", self.max_iter, 0)
        check.check_integer("n_init", self.n_init, 1)
        if self.max_steps is not None:
            check.check_integer("max_steps", self.max_steps, 1)
        if self.max_time is not None:
            check.check_number("max_time", self.max_time, 0.0, strict=True)
        check.check_n_jobs(self.n_jobs)
        check.check_flag("warm_start", self.warm_start)
        if not isinstance(self.verbose, bool):
            check.check_integer("verbose", self.verbose, 0)
        check.check_number("tol", self.tol, 0.0)
        check.resolve_evaluate_every(self.evaluate_every, 1)
        check.check_callbacks(self.callbacks)
        check_checkpoint(self.checkpoint, self.checkpoint_every)
        resolve_step_size(self.step_size, 2)
        resolve_annealing(self.annealing, 2)
