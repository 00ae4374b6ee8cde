"""Mixtures of tables with numbers, categories, counts, dates and missing values."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils.validation import check_is_fitted

from pickmix.data.typed_encoding import encode
from pickmix.data.typed_inference import infer_schema
from pickmix.data.typed_readers import read_typed
from pickmix.data.typed_schema import GAUSSIAN_KINDS, LEVEL_KINDS, TableSchema
from pickmix.data.typed_tables import TypedTable
from pickmix.estimators.family_mixture import FamilyMixture
from pickmix.estimators.queries import DensityQueries
from pickmix.estimators.shown_estimators import shown_another
from pickmix.estimators.table_merging import TableMerging
from pickmix.estimators.table_questions import TableQuestions
from pickmix.estimators.validation import (
    RandomSeed,
    check_choice,
    check_integer,
    check_number,
    warn_about_outcome,
)
from pickmix.families.gaussian import GAUSSIANS
from pickmix.fitting.loop import FitInfo
from pickmix.selection.proposals import Proposal
from pickmix.selection.settings import RandomPartition, SearchSet

# Parameters that say what the table holds, and not how the mixture is fitted.
_OF_TABLES = ("schema", "exclude", "max_levels", "covariance_type")


class TableMixture(TableMerging, TableQuestions, DensityQueries, DensityMixin, BaseEstimator):  # type: ignore[misc]
    """Mixture model of a table with columns of several kinds, and with missing values.

    The kind of each column is found from its values, see `schema_`; `schema` overrides it:

    =========  ===================================================================================
    kind       columns, and how they are modelled
    =========  ===================================================================================
    number     Numbers without a common decimal step: Gaussian.
    integer    Whole numbers, or numbers rounded to a decimal step such as 0.1 or 25: Gaussian, with
               at least the variance of rounding, step^2 / 12. Ties then do not make the density
               unbounded.
    count      Whole numbers that look like counts: Poisson. The smallest is 0, the mean at most
               10, and they spread and lean to the right at least as Poisson counts do. All other
               whole numbers are "integer".
    boolean    True and false, or 1 and 0: probabilities.
    category   Text, categorical types: probabilities. Rare levels beyond `max_levels` share one
               probability per component, divided among them as in the whole table.
    date       Dates, times, durations, text of ISO dates: Gaussian, in days, rounded like integers.
    constant   One value in all rows: not part of the model, and put back in samples.
    skip       Not part of the model, and not in samples. Text that looks like an identifier is
               refused with a message that says so; skip it.
    =========  ===================================================================================

    All numbers, integers and dates are one group with covariances of `covariance_type`; given the
    component, this group and all other columns are independent. Numbers are divided by their
    standard deviation inside, so units do not matter; densities are in the units of the table
    (days, for dates). Skewed columns are not transformed: take logarithms before the fit if they
    help.

    Missing values are NaN, None, NaT, pandas.NA, empty text, and in CSV files also NA, null and the
    like. Nothing is filled in for a fit or a score: both use the observed values only.

    In later tables, columns are found by name. Columns that the fit did not have are ignored.
    Absent columns count as missing in all rows, with a warning; so do cells with a level that the
    fit has not seen. A value of another kind, such as text among numbers, is an error that names
    column, row and value. Dates with a time zone are computed in UTC.

    Parameters
    ----------
    n_components : int, default=1
        K, the number of components.
    schema : dict, default=None
        Kinds of columns that were found wrongly: ``{"zip": "category", "note": "skip"}``. If a kind
        of numbers or "date" is given here, text that is no number or date counts as missing, with a
        warning. Without a given kind, such text among numbers is an error if it is rare.
    exclude : sequence of str, default=()
        Columns to leave out, as "skip" in `schema`.
    max_levels : int, default=1000
        Most levels of a category with probabilities of their own.
    covariance_type : {"full", "tied", "diag", "spherical"}, default="full"
        Covariances of numbers, integers and dates.
    reg_covar : float, default=1e-6
        Added to variances, in units of the columns' variances.
    algorithm, proposal, n_samples, reuse_log_joint, batch_size, step_size, annealing, max_iter, \
    max_steps, max_time, tol, evaluate_every, n_init, init_params, random_state, n_jobs, \
    warm_start, verbose, callbacks, checkpoint, checkpoint_every
        As in `FamilyMixture`. With `warm_start`, kinds, levels and scales stay too.

    Attributes
    ----------
    schema_ : TableSchema
        Kinds, levels and scales of the columns; prints as a table.
    mixture_ : FamilyMixture
        The mixture of encoded rows: columns in the order of their names, numbers in units of their
        standard deviation, levels as codes.
    weights_, converged_, outcome_, n_iter_, n_steps_, trace_
        As in `mixture_`. Log-likelihoods in the trace are those of encoded rows.
    n_features_in_ : int
    feature_names_in_ : array of str
        Columns of the fitted table.

    Examples
    --------
    >>> import numpy as np
    >>> from pickmix import TableMixture
    >>> rng = np.random.default_rng(0)
    >>> smokes = rng.random(400) < 0.5
    >>> table = {
    ...     "age": rng.integers(18, 90, 400),
    ...     "breath": np.where(smokes, 3.0, 5.0) + rng.normal(0.0, 0.3, 400),
    ...     "smokes": smokes,
    ... }
    >>> table["breath"][:5] = np.nan
    >>> mixture = TableMixture(2, random_state=0).fit(table)
    >>> mixture.schema_.kinds
    {'age': 'integer', 'breath': 'number', 'smokes': 'boolean'}
    >>> mixture.predict_columns({"breath": [3.1, 5.2], "age": [30, 30]}, "smokes")
    array([ True, False])
    >>> round(mixture.impute({"age": [40], "breath": [None], "smokes": [True]})["breath"][0])
    3
    """

    schema_: TableSchema
    mixture_: FamilyMixture

    def __init__(
        self,
        n_components: int = 1,
        *,
        schema: Mapping[str, str] | None = None,
        exclude: Sequence[str] = (),
        max_levels: int = 1000,
        covariance_type: str = "full",
        algorithm: str = "mhsaem",
        proposal: str | RandomPartition | Proposal | SearchSet = "auto",
        n_samples: int | str = "auto",
        reuse_log_joint: bool = False,
        batch_size: int | str = "auto",
        step_size: float | str | Callable[[int], float] = "auto",
        annealing: str | Callable[[int], float] | None = None,
        max_iter: int = 100,
        max_steps: int | None = None,
        max_time: float | None = None,
        tol: float = 1e-3,
        evaluate_every: int | str | Sequence[int] = "auto",
        reg_covar: float = 1e-6,
        n_init: int = 1,
        init_params: str = "auto",
        random_state: RandomSeed = None,
        n_jobs: int | None = None,
        warm_start: bool = False,
        verbose: int = 0,
        callbacks: Callable[[FitInfo], Any] | Sequence[Callable[[FitInfo], Any]] = (),
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 300.0,
    ) -> None:
        self.n_components = n_components
        self.schema = schema
        self.exclude = exclude
        self.max_levels = max_levels
        self.covariance_type = covariance_type
        self.algorithm = algorithm
        self.proposal = proposal
        self.n_samples = n_samples
        self.reuse_log_joint = reuse_log_joint
        self.batch_size = batch_size
        self.step_size = step_size
        self.annealing = annealing
        self.max_iter = max_iter
        self.max_steps = max_steps
        self.max_time = max_time
        self.tol = tol
        self.evaluate_every = evaluate_every
        self.reg_covar = reg_covar
        self.n_init = n_init
        self.init_params = init_params
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.warm_start = warm_start
        self.verbose = verbose
        self.callbacks = callbacks
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every

    def fit(self, X: Any, y: object = None, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the mixture to a table.

        Parameters
        ----------
        X : DataFrame of pandas or polars, Table of pyarrow, dict of arrays, or path
            A path ends in .csv, .tsv or .txt (perhaps with .gz), or .parquet; it is read whole. For
            text, the delimiter, the decimal mark and the header are found; without a header,
            columns are called column_0, column_1, ...
        y : ignored
        sample_weight : array-like of shape (N,), default=None
            Non-negative weights. A zero removes the row, before kinds and levels are found.

        Returns
        -------
        self
        """
        check_choice("covariance_type", self.covariance_type, tuple(GAUSSIANS))
        check_number("reg_covar", self.reg_covar, 0.0)
        check_integer("max_levels", self.max_levels, 2)
        table, sample_weight = _with_weight(read_typed(X), sample_weight)
        goes_on = bool(self.warm_start) and hasattr(self, "mixture_")
        schema = self.schema_ if goes_on else self._infer_schema(table)
        rows, _ = encode(schema, table)
        settings = self.get_params(deep=False)
        for name in _OF_TABLES:
            del settings[name]
        settings["family"] = describe_family(schema, self.covariance_type)
        settings["reg_covar"] = floors_of(schema, float(self.reg_covar))
        mixture = self.mixture_ if goes_on else FamilyMixture()
        mixture.set_params(**settings)
        mixture.callbacks = shown_another(
            self.callbacks, lambda encoded: self._fitted_copy(schema, table, encoded)
        )
        try:
            # Not its `fit`, which would warn in its own name.
            mixture._fit(
                rows, sample_weight, self.max_iter, self.max_steps, checkpoint=self.checkpoint
            )
        finally:
            mixture.callbacks = self.callbacks
        self._take(schema, table, mixture)
        warn_about_outcome(self)
        return self

    def _take(self, schema: TableSchema, table: TypedTable, mixture: FamilyMixture) -> None:
        self.schema_ = schema
        self.mixture_ = mixture
        self.feature_names_in_ = np.array(list(table.columns), dtype=object)
        self.n_features_in_ = len(table.columns)

    def _fitted_copy(
        self, schema: TableSchema, table: TypedTable, mixture: FamilyMixture
    ) -> TableMixture:
        """A copy of this estimator with the current parameters."""
        fitted = copy.copy(self)
        fitted._take(schema, table, mixture)
        return fitted

    def fit_predict(
        self, X: Any, y: object = None, sample_weight: ArrayLike | None = None
    ) -> np.ndarray:
        """Fit, and return the most probable component of each row, (N,)."""
        return self.fit(X, sample_weight=sample_weight).predict(X)

    def _infer_schema(self, table: Any) -> TableSchema:
        kinds, exclude = self.schema, self.exclude
        if kinds is not None and not isinstance(kinds, Mapping):
            raise ValueError(f"schema must be a dict of names and kinds, got {kinds!r}.")
        if isinstance(exclude, str) or not isinstance(exclude, Sequence):
            raise ValueError(f"exclude must be a list of names, got {exclude!r}.")
        return infer_schema(table, kinds, exclude, self.max_levels)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "mixture_")

    def _check_fitted(self) -> None:
        """Refuse fitted attributes that make no mixture; they may come from a file."""
        self.mixture_._check_fitted()

    def _fitted(self, name: str) -> Any:
        # An AttributeError, so that hasattr() says whether there was a fit.
        if "mixture_" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no {name} before it is fitted.")
        return getattr(self.mixture_, name)

    @property
    def weights_(self) -> np.ndarray:
        """Weights of the components, (K,)."""
        weights: np.ndarray = self._fitted("weights_")
        return weights

    @property
    def converged_(self) -> bool:
        """Whether the fit reached `tol`."""
        return bool(self._fitted("converged_"))

    @property
    def outcome_(self) -> str:
        """How the fit ended."""
        return str(self._fitted("outcome_"))

    @property
    def n_iter_(self) -> float:
        """Passes over the rows."""
        passes: float = self._fitted("n_iter_")
        return passes

    @property
    def n_steps_(self) -> int:
        """Steps of the fit."""
        return int(self._fitted("n_steps_"))

    @property
    def trace_(self) -> Any:
        """The course of the fit, of encoded rows."""
        return self._fitted("trace_")

    def _n_parameters(self) -> int:
        return self.mixture_._n_parameters()

    def score_samples(
        self, X: Any, *, n_candidates: int | None = None, exact_below: float | None = None
    ) -> np.ndarray:
        """Log-density of the observed cells of each row, (N,), in the units of the table.

        Densities of numbers are per unit, those of dates per day; categories and counts have
        probabilities. Rows with missing cells have the density of fewer columns, so their scores
        are not on the same scale as those of complete rows.

        Parameters
        ----------
        X : table
            As in `fit`.
        n_candidates : int, default=None
            Evaluate about this many components per row, as in `FamilyMixture.score_samples`.
        exact_below : float, default=None
            Rows with a bound below this get their exact log-density.
        """
        rows, log_units = self._encode(X)
        units = log_units.sum(axis=1)
        scores = np.asarray(self.mixture_.score_samples(rows, n_candidates=n_candidates) + units)
        if exact_below is not None and n_candidates is not None:
            # Units differ from row to row where there are gaps, so the mixture cannot do this.
            low = np.flatnonzero(scores < exact_below)
            if low.size:
                scores[low] = self.mixture_.score_samples(rows[low]) + units[low]
        return scores

    def top_components(self, X: Any, m: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """The m most probable components of each row (N, m), and their probabilities (N, m)."""
        found: tuple[np.ndarray, np.ndarray] = self.mixture_.top_components(self._encode(X)[0], m)
        return found

    def _encode(self, X: Any, absent: Sequence[str] = ()) -> tuple[np.ndarray, np.ndarray]:
        check_is_fitted(self)
        return encode(self.schema_, read_typed(X), absent)


def _with_weight(
    table: TypedTable, sample_weight: ArrayLike | None
) -> tuple[TypedTable, ArrayLike | None]:
    """The rows with a weight; others must not shape the schema."""
    if sample_weight is None:
        return table, None
    weights = np.asarray(sample_weight)
    if weights.shape != (table.n_rows,) or weights.dtype.kind not in "biuf":
        # The fit says what is wrong with them.
        return table, sample_weight
    kept = np.flatnonzero(weights != 0)
    if kept.size in (0, table.n_rows):
        return table, sample_weight
    return table.take(kept), weights[kept]


def describe_family(schema: TableSchema, covariance_type: str) -> list[tuple[str, list[int]]]:
    """The groups of a `FamilyMixture` for encoded rows."""
    groups = (
        (covariance_type, GAUSSIAN_KINDS),
        ("categorical", LEVEL_KINDS),
        ("poisson", ("count",)),
    )
    found = [
        (family, [place for place, c in enumerate(schema.modelled) if c.kind in kinds])
        for family, kinds in groups
    ]
    return [(family, places) for family, places in found if places]


def floors_of(schema: TableSchema, reg_covar: float) -> np.ndarray:
    """Floors of the variances of encoded columns (D,): `reg_covar`, plus that of rounding."""
    steps = [0.0 if c.step is None else c.step / c.scale for c in schema.modelled]
    return np.asarray(reg_covar + np.square(steps) / 12.0)
