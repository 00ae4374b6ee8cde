"""Mixtures of tables with numbers, categories, counts, dates and missing values."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from pickmix.checks import RandomSeed, check_choice, check_integer, check_number
from pickmix.estimators.closed_form_mixture import ClosedFormMixture
from pickmix.estimators.column_choice import choose_levels, choose_scores
from pickmix.estimators.family_mixture import FamilyMixture, check_dependence
from pickmix.estimators.gaussian_mixture import GaussianMixture
from pickmix.estimators.low_rank_covariances import LOW_RANK, check_low_rank
from pickmix.estimators.table_columns import TableColumns
from pickmix.estimators.trials import choose_covariances
from pickmix.families.gaussian import GAUSSIANS
from pickmix.inputs.columns import TypedTable
from pickmix.inputs.encoding import encode
from pickmix.inputs.frames import read_typed
from pickmix.inputs.inference import check_words, infer_schema
from pickmix.inputs.maps import maps_of, spread_ties
from pickmix.inputs.schema import GAUSSIAN_KINDS, LEVEL_KINDS, TableSchema
from pickmix.model.conditional import impute_rows
from pickmix.model.events import make_events
from pickmix.model.rows import QueryRows

# Of fits that choose the axes of low-rank covariances.
_OF_TRIALS = ("n_components", "covariance_type", "rank", "axes", "algorithm", "n_jobs")
# Covariances of columns with a much smaller step have no Cholesky factor.
_LEAST_FLOOR = 1e-12


@dataclass(eq=False, repr=False)
class TableMixture(ClosedFormMixture):
    """Mixture model of a table with columns of several kinds, and with missing values.

    The kind of each column is found from its values, see `schema_`; `schema` overrides it:

    =========  ===================================================================================
    kind       columns, and how they are modelled
    =========  ===================================================================================
    number     Numbers without a common decimal step: Gaussian, after `column_transform`.
    integer    Whole numbers, or numbers rounded to a decimal step such as 0.1 or 25: Gaussian, with
               about the variance of rounding, step^2 / 12, at least. Ties then do not make the
               density unbounded.
    ordinal    Numbers with few values: probabilities. Answers are numbers: means, quantiles.
    periodic   Numbers that begin anew after a period, such as hours, days of the week, months and
               whole degrees; never found, but given as "periodic" or "periodic 24". As "ordinal",
               with circular means and fills; the last value is next to the first.
    count      Whole numbers that look like counts, of tables with at most 1000 rows or without
               `column_transform`: Poisson. The smallest is 0, the mean at most 10, and they spread
               and lean to the right at least as Poisson counts do. All other whole numbers are
               "integer".
    boolean    True and false, or 1 and 0: probabilities.
    category   Text, categorical types: probabilities. Rare levels beyond `max_levels` share one
               probability per component, divided among them as in the whole table.
    date       Dates, times, durations, text of ISO dates: Gaussian, in days, rounded like integers.
    constant   One value in all rows: not part of the model, and put back in samples.
    skip       Not part of the model, and not in samples. Text that looks like an identifier is
               refused with a message that says so; skip it.
    =========  ===================================================================================

    All numbers, integers and dates are one group with covariances of `covariance_type`. Given the
    component, this group, every count, and the levels (of categories, booleans, ordinals and atoms)
    are independent of each other; levels may depend on those of one other column each, see
    `dependence`. Units do not matter; densities are
    in the units of the table (days, for dates), and probabilities where values have some.

    Missing values are NaN, None, NaT, pandas.NA, empty text, and in CSV files also NA, null and the
    like. Nothing is filled in for a fit or a score: both use the observed values only.

    In later tables, columns are found by name. Columns that the fit did not have are ignored.
    Absent columns count as missing in all rows, with a warning; so do cells with a level that the
    fit has not seen. A value of another kind, such as text among numbers, is an error that names
    column, row and value. Dates with a time zone are computed in UTC.

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        K, the number of components. With "auto" a mixture grows: components are split and merged as
        long as rows that are left out of their components are explained better, and of the
        mixtures on the way the smallest is taken that is not worse than the best by more than a
        standard error. The fit begins with it. `n_components_` is the number, `growth_` says why.
    max_components : int, default=None
        Most components that "auto" may choose. None is half as many as there are rows, and 10^8
        parameters.
    schema : dict, default=None
        Kinds of columns that were found wrongly: ``{"zip": "category", "note": "skip"}``. If a kind
        of numbers or "date" is given here, text that is no number or date counts as missing, with a
        warning. Without a given kind, such text among numbers is an error if it is rare.
    exclude : sequence of str, default=()
        Columns to leave out, as "skip" in `schema`.
    max_levels : int, default=1000
        Most levels of a category with probabilities of their own.
    missing_values : sequence of str, default=()
        Words that mean a missing value, besides the usual ones: ``["?", "unknown", "-999"]``. They
        hold for texts and for numbers, in the fitted table and in later ones.
    gap_levels : sequence of str, default=()
        Categories of text in which a missing cell is an answer, such as no second phone: it is one
        more level. Draws have such gaps, and `impute` keeps them.
    column_transform : {"auto", None}, default="auto"
        With "auto", a column of numbers with at most 50 values, each in 30 rows or more on average
        and half of them in 5, is "ordinal"; in tables of 2,000 rows and more, short fits find
        whether this is better for a rounded one with 20 to 150. In others, values that very many
        rows share (1 % or more, and five times as many as values near them) are *atoms* with
        probabilities of their own, and the rest is mapped to a standard normal distribution by a
        monotone function, of which densities have the derivative, unless short fits find numbers as
        they are better. Where left-out rows gain (2,000 rows and more), the function is then one
        that gives the columns of a short fit the distribution of the table's. Draws keep to the
        range of the fitted table, and where values repeat to the values in it. None takes numbers
        as they are.
    dependence : {"tree", None}, default="tree"
        Dependence among levels inside components. With "tree", columns of levels (categories,
        booleans, ordinals, and which atom a number is) are joined where a mixture of few components
        explains a pair badly, in a tree that is common to all components: a column has
        probabilities given the level of another, its parent. Components with few rows of a pair of
        levels share the interaction of all. `dependence_` names the parents. In the fit, columns
        that a missing cell separates count as independent; queries are exact. With None all are
        independent given the component.
    covariance_type : {"full", "tied", "diag", "spherical", "low_rank"}, default="full"
        Covariances of numbers, integers and dates. "low_rank" is for a hundred such columns and
        more, or few rows per component.
    rank, axes
        As in `GaussianMixture`, for "low_rank". A column with atoms has gaps where these are, so
        that "auto" is "columns".
    reg_covar : float, default=1e-6
        Added to variances, in units of the columns' variances. With `column_transform=None`,
        columns with a step have the variance of rounding instead.
    algorithm, proposal, n_samples, reuse_log_joint, batch_size, step_size, annealing, max_iter, \
    max_steps, max_time, tol, evaluate_every, n_init, init_params, random_state, n_jobs, \
    warm_start, verbose, callbacks, checkpoint, checkpoint_every
        As in `FamilyMixture`. With `warm_start`, kinds, levels and scales stay too.

    Attributes
    ----------
    schema_ : TableSchema
        Kinds, levels and scales of the columns; prints as a table.
    mixture_ : FamilyMixture
        The mixture of encoded rows: columns in the order of their names, numbers as normal scores
        or in units of their spread, levels as codes; then, for each column with atoms, the number
        of the atom, or 0. Where an atom is, the number itself counts as missing.
    dependence_ : dict
        The parent of each column that depends on another given the component.
    principal_axes_ : array
        Axes of low-rank covariances, where they are not those of columns, in the order of the
        numbers in `mixture_`.
    weights_, parameters_, converged_, outcome_, n_iter_, n_steps_, trace_
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

    n_components: int | str = "auto"
    _: KW_ONLY
    schema: Mapping[str, str] | None = None
    exclude: Sequence[str] = ()
    max_levels: int = 1000
    missing_values: Sequence[str] = ()
    gap_levels: Sequence[str] = ()
    column_transform: str | None = "auto"
    dependence: str | None = "tree"
    covariance_type: str = "full"
    rank: int | str = "auto"
    axes: str = "auto"

    _takes_sources = False

    def fit(self, X: Any, y: object = None, sample_weight: ArrayLike | None = None) -> Self:  # type: ignore[override]
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
        return super().fit(X, sample_weight=sample_weight)

    def fit_predict(  # type: ignore[override]
        self, X: Any, y: object = None, sample_weight: ArrayLike | None = None
    ) -> np.ndarray:
        """Fit, and return the most probable component of each row, (N,)."""
        return self.fit(X, sample_weight=sample_weight).predict(X)

    def _fit(self, X: Any, sample_weight: Any, *args: Any, **options: Any) -> None:
        if self.covariance_type == "auto":
            raise ValueError(
                'covariance_type="auto" is for GaussianMixture, which takes numbers only. For '
                'tables of many columns use "low_rank" or "diag".'
            )
        check_choice("covariance_type", self.covariance_type, (*GAUSSIANS, LOW_RANK))
        check_low_rank(self)
        check_number("reg_covar", self.reg_covar, 0.0)
        check_integer("max_levels", self.max_levels, 2)
        if self.column_transform is not None:
            check_choice("column_transform", self.column_transform, ("auto",))
        check_dependence(self.dependence)
        table, weights = read_typed(X), sample_weight
        if sample_weight is not None:
            values = np.asarray(sample_weight)
            # Rows without weight must not shape the schema. The fit refuses other shapes and types.
            sound = values.shape == (table.n_rows,) and values.dtype.kind in "biuf"
            if sound and 0 < np.count_nonzero(values) < table.n_rows:
                table, weights = table.take(np.flatnonzero(values)), values[values != 0]
        # Attributes stay as they are until the fit of the copy has ended.
        fitted = copy.copy(self)
        if not (self.warm_start and hasattr(self, "schema_")):
            if self.schema is not None and not isinstance(self.schema, Mapping):
                raise ValueError(f"schema must be a dict of names and kinds, got {self.schema!r}.")
            if isinstance(self.exclude, str) or not isinstance(self.exclude, Sequence):
                raise ValueError(f"exclude must be a list of names, got {self.exclude!r}.")
            schema = self._infer_schema(table, self.exclude)
            if self.column_transform is not None:
                schema = choose_levels(
                    schema,
                    table,
                    lambda kinds: self._infer_schema(table, self.exclude, kinds),
                    self._describe_columns,
                    self.dependence,
                    self.n_jobs,
                )
            fitted.schema_ = schema
        rows, log_units = encode(fitted.schema_, table)
        if fitted.schema_ is not getattr(self, "schema_", None):
            fitted.schema_ = choose_scores(fitted.schema_, rows, self.covariance_type, self.n_jobs)
        maps = maps_of(fitted.schema_)
        if maps is not None:
            rows, log_slopes = maps.forward(spread_ties(fitted.schema_, rows))
            log_units = log_units + log_slopes
        if fitted.schema_ is not getattr(self, "schema_", None):
            fitted._choose_axes(rows, weights)
        options |= {"log_units": log_units.sum(axis=1)}
        ClosedFormMixture._fit(fitted, rows, weights, *args, **options)
        self.__dict__.pop("principal_axes_", None)
        self.__dict__.update(fitted.__dict__)

    def _choose_axes(self, rows: np.ndarray, weights: Any) -> None:
        """Set `principal_axes_` for low-rank covariances of the numbers, if these suit them."""
        self.__dict__.pop("principal_axes_", None)
        name, columns = self._description()[0]
        if name != LOW_RANK:
            return
        gaps = np.isnan(rows[:, columns]).any(axis=0)
        if self.axes == "principal" and gaps.any():
            column = self.schema_.modelled[columns[int(gaps.argmax())]].name
            raise ValueError(
                'axes="principal" is for numbers without missing values and atoms, got some in '
                f'column {column!r}. Use axes="columns", or leave the column out.'
            )
        trial = GaussianMixture(**{name: getattr(self, name) for name in _OF_TRIALS})
        choose_covariances(trial, rows[:, columns], weights, None)
        if hasattr(trial, "principal_axes_"):
            self.principal_axes_ = trial.principal_axes_

    def _infer_schema(
        self, table: TypedTable, exclude: Sequence[str], kinds: Mapping[str, str] | None = None
    ) -> TableSchema:
        words = check_words("missing_values", self.missing_values)
        levels = check_words("gap_levels", self.gap_levels)
        mapped = self.column_transform is not None
        given = {**(kinds or {}), **(self.schema or {})}
        return infer_schema(table, given, exclude, self.max_levels, mapped, words, levels)

    def _description(self) -> list[tuple[str, list[int]]]:
        return self._describe_columns(self.schema_)

    def _describe_columns(self, schema: TableSchema) -> list[tuple[str, list[int]]]:
        groups = (
            (self.covariance_type, GAUSSIAN_KINDS),
            ("categorical", (*LEVEL_KINDS, "ordinal")),
            ("poisson", ("count",)),
        )
        columns = list(enumerate(schema.modelled))
        places = {family: [d for d, c in columns if c.kind in kinds] for family, kinds in groups}
        maps = maps_of(schema)
        if maps is not None:
            places["categorical"] += range(maps.n_natural, maps.n_latent)
        return [(family, numbers) for family, numbers in places.items() if numbers]

    def _floors(self, n_columns: int) -> np.ndarray:
        floors = np.full(self._n_model_columns, float(self.reg_covar))
        for d, column in enumerate(self.schema_.modelled):
            if column.step is not None and not column.knots and column.kind != "ordinal":
                # The variance of rounding.
                floors[d] = max((column.step / column.scale) ** 2 / 12.0, _LEAST_FLOOR)
        return floors

    @property
    def _n_model_columns(self) -> int:
        maps = maps_of(self.schema_)
        return len(self.schema_.modelled) if maps is None else maps.n_latent

    def _learn_columns(self, rows: np.ndarray) -> None:
        super()._learn_columns(rows)
        self._learn_names()

    def _learn_names(self) -> None:
        self.feature_names_in_ = np.array(list(self.schema_.columns), dtype=object)
        self.n_features_in_ = len(self.schema_)

    def _take_columns(self, whole: Self, columns: np.ndarray) -> None:
        self.column_limits_ = whole.column_limits_[whole._columns.in_model_order(columns)]
        names = whole._columns.labels(columns)
        kinds = {name: kind for name, kind in (whole.schema or {}).items() if name in names}
        self.schema, self.exclude = kinds or None, ()
        self.schema_ = TableSchema([whole.schema_[name] for name in names], whole.schema_.origin)
        self._learn_names()

    @property
    def mixture_(self) -> FamilyMixture:
        """The mixture of encoded rows."""
        if not hasattr(self, "weights_"):
            raise AttributeError(f"{type(self).__name__} has no mixture_ before it is fitted.")
        shared = FamilyMixture().get_params(deep=False).keys() & self.get_params(deep=False).keys()
        settings = {name: getattr(self, name) for name in shared}
        mixture = FamilyMixture(
            **settings | {"family": self._fitted_description, "reg_covar": self._floors(0)}
        )
        kept = {n: v for n, v in vars(self).items() if n.endswith("_") or n.startswith("_")}
        mixture.__dict__.update(kept)
        del mixture.schema_, mixture.feature_names_in_
        mixture.n_features_in_ = self._n_model_columns
        return mixture

    @property
    def dependence_(self) -> dict[str, str]:
        """The parent of each column that depends on another given the component."""
        check_is_fitted(self)
        names, maps = [column.name for column in self.schema_.modelled], maps_of(self.schema_)
        if maps is not None:
            behind = sorted(maps.indicators, key=lambda column: maps.indicators[column])
            names += [names[column] for column in behind]
        parents = self._fitted_parents()
        pairs = [] if parents is None else list(enumerate(parents.tolist()))
        return {names[column]: names[parent] for column, parent in pairs if parent >= 0}

    @property
    def _columns(self) -> TableColumns:
        check_is_fitted(self)
        return TableColumns(self.schema_)

    def _read(self, X: Any, noise: Any) -> tuple[np.ndarray, Any, np.ndarray]:
        columns = self._columns
        rows, log_units = columns.read(X)
        if columns.maps is not None:
            rows, log_slopes = columns.maps.forward(rows)
            log_units = log_units + log_slopes
        return rows, noise, log_units.sum(axis=1)

    def sample(
        self,
        n_samples: int = 1,
        random_state: RandomSeed = None,
        *,
        given: Mapping[str, Any] | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> Any:
        """Draw rows, as a table of the kind that was fitted: column order, types, levels.

        Columns of kind "skip" are left out. For a Parquet file the result is a pyarrow Table, for a
        CSV file a dict of arrays. Draws of integers and dates are rounded to their step, and keep
        to the range of the fitted table unless `column_transform` is None.

        Parameters
        ----------
        n_samples : int, default=1
        random_state : int, RandomState, Generator or None, default=None
            None means that of the estimator.
        given : dict, default=None
            Values of some columns, one or n_samples for each. The result has these values; the
            other columns are drawn given them.
        where : dict, default=None
            Conditions on other columns, ``{"rain": "> 0", "wind": "in [2, 5]", "sky": "in {clear,
            fog}"}``: as in `sample_conditional`. They are about values of the table, so that of a
            rounded column ``"> 0"`` excludes what is rounded to 0.

        Examples
        --------
        >>> import numpy as np
        >>> from pickmix import TableMixture
        >>> table = {"sex": ["f", "m"] * 50, "height": np.repeat([[160, 180]], 50, axis=0).ravel()}
        >>> mixture = TableMixture(2, random_state=0).fit(table)
        >>> mixture.sample(2, random_state=0, given={"sex": "m"})["sex"]
        array(['m', 'm'], dtype=object)
        >>> mixture.sample(2, random_state=0, where={"height": "> 170"})["sex"]
        array(['m', 'm'], dtype=object)
        """
        check_is_fitted(self)
        check_integer("n_samples", n_samples, 1)
        random = self._random(random_state)
        columns, allowed = self._columns.narrowed(where)

        def draw(rows: np.ndarray | None) -> np.ndarray:
            if rows is None and allowed:
                rows = np.full((n_samples, columns.n_columns), np.nan)
            if rows is None:
                # They come grouped by component.
                drawn = self.model_.sample(n_samples, random)[0]
                drawn = np.asarray(drawn[random.permutation(n_samples)])
                return drawn if columns.maps is None else columns.maps.backward(drawn)
            query = QueryRows(self.model_, rows, maps=columns.maps)
            events = make_events(query, allowed, columns)
            return np.asarray(impute_rows(query, "draw", 1, random, events)[0])

        return columns.sample(given or {}, n_samples, random, draw)

    def predict_levels(self, X: Any, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities of the levels of a category or boolean, given the other columns.

        Parameters
        ----------
        X : table
            The column itself may be missing, and is ignored.
        column : str

        Returns
        -------
        levels : (L,) array
        probabilities : (N, L) array
        """
        terms = self._columns
        targets = terms.find([column])
        rows = terms.read_without(X, targets)
        levels, probabilities = self._conditionals(terms, rows, targets).probabilities(column)
        return levels, probabilities
