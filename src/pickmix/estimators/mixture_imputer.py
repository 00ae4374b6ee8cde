"""Gaps filled from the joint distribution of all columns, as a transformer of scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from pickmix.checks import RandomSeed, check_choice, check_flag, check_generator, check_integer
from pickmix.estimators.answering import (
    HIDDEN,
    Question,
    TableReader,
    answer,
    from_scores,
    mean_of_scores,
)
from pickmix.estimators.table_columns import TableColumns
from pickmix.inputs.arrays import read_numbers
from pickmix.inputs.frames import read_typed
from pickmix.model.conditional import impute_rows
from pickmix.model.rows import Posterior, QueryRows

STRATEGIES = ("mean", "median", "mode", "draw")


@dataclass(eq=False, repr=False)
class MixtureImputer(OneToOneFeatureMixin, TransformerMixin, TableReader):  # type: ignore[misc]
    """Fill missing cells given what the row shows, by a mixture of all columns.

    Numbers are mapped to normal scores, and a mixture is fitted to the observed cells; nothing is
    filled in for the fit. K and smoothing are those with the best log-density of hidden cells of
    left-out rows; the answer is that of the mean of the mixtures of all folds.

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        K of each mixture; "auto" tries 1, 4, 16, 48 and 128.
    strategy : {"mean", "median", "mode", "draw"}, default="mean"
        What cells are filled with: the conditional mean of numbers, their median (the guess with
        the smallest absolute error), the mode within the most probable component, or a draw from
        the joint conditional distribution. Of categories: the most probable level, or a draw.
    add_indicator : bool, default=False
        Append a column of zeros and ones for each column that had gaps in the fit.
    covariance_type, schema, n_folds, random_state, n_jobs
        As in `MixtureRegressor`.

    Attributes
    ----------
    mixture_ : FamilyMixture
        The mixture of scores and codes.
    n_components_ : int
        The chosen K.
    left_out_score_ : float
        Mean log-density of hidden cells of a row, as scores.
    n_features_in_ : int
    feature_names_in_ : array of str
        If X was a table.

    Examples
    --------
    >>> import numpy as np
    >>> from pickmix import MixtureImputer
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=300)
    >>> X = np.column_stack([x, 3.0 * x + 0.1 * rng.normal(size=300)])
    >>> X[:30, 1] = np.nan
    >>> imputer = MixtureImputer(2, n_folds=2, random_state=0).fit(X)
    >>> imputer.transform([[1.0, np.nan], [np.nan, -3.0]]).round(0)
    array([[ 1.,  3.],
           [-1., -3.]])
    """

    _: KW_ONLY
    strategy: str = "mean"
    add_indicator: bool = False

    def fit(self, X: Any, y: object = None) -> Self:
        """Fit the mixture to the observed cells.

        Parameters
        ----------
        X : array-like of shape (N, D), data frame or dict of arrays
            NaN is missing. Tables may have categories, dates and counts, as in `TableMixture`.
        y : ignored
        """
        check_choice("strategy", self.strategy, STRATEGIES)
        check_flag("add_indicator", self.add_indicator)
        random = self._check()
        rows, levels = self._learn(X)
        seen = ~np.isnan(rows)
        # Other cells of the row must tell something.
        order = np.where(seen, random.random_sample(rows.shape), 2.0)
        asked = seen & ((order < HIDDEN) | (order == order.min(axis=1, keepdims=True)))
        asked[(seen & ~asked).sum(axis=1) == 0] = False
        if not asked.any():
            asked = seen
        least = np.zeros(rows.shape[1])
        question = Question(rows, asked, levels, self.covariance_type, self.n_jobs, least)
        found = answer(question, self.n_components, self.n_folds, random)
        self.n_components_, self.left_out_score_ = found.n_components, found.score
        self.with_gaps_ = np.flatnonzero(self._gaps(X).any(axis=0))
        self.fitted_ = question.content(found.model())
        return self

    def transform(self, X: Any) -> Any:
        """The same rows without gaps; cells that were observed keep their values.

        Parameters
        ----------
        X : array-like of shape (N, D), data frame or dict of arrays

        Returns
        -------
        filled : array, or table of the same kind
            Tables keep their types: integers and dates are rounded to their step.
        """
        random = check_generator(self.random_state) if self.strategy == "draw" else None
        return self._filled(X, self.strategy, 1, random)[0]

    def sample(self, X: Any, n_draws: int = 5, random_state: RandomSeed = None) -> list[Any]:
        """Several filled tables, with gaps drawn given what each row shows: multiple imputation.

        Parameters
        ----------
        X : array-like of shape (N, D), data frame or dict of arrays
        n_draws : int, default=5
        random_state : int, RandomState, Generator or None, default=None
            None means that of the estimator.

        Returns
        -------
        tables : list of n_draws arrays or tables, as `transform` gives them
        """
        check_integer("n_draws", n_draws, 1)
        seed = self.random_state if random_state is None else random_state
        return self._filled(X, "draw", n_draws, check_generator(seed))

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns of `transform`: those of X, and of indicators."""
        names = super().get_feature_names_out(input_features)
        if not self.add_indicator:
            return np.asarray(names)
        gaps = [f"missingindicator_{names[column]}" for column in self.with_gaps_]
        return np.asarray(np.concatenate([names, np.array(gaps, dtype=object)]))

    def _gaps(self, X: Any) -> np.ndarray:
        """Which cells of X are missing, (N, D); all of a column that X lacks."""
        if self.schema_ is None:
            return np.asarray(np.isnan(read_numbers(self, X)))
        table = read_typed(X)
        absent = np.ones(table.n_rows, dtype=np.bool_)
        found = [table.columns.get(name) for name in self.feature_names_in_]
        return np.stack([absent if c is None else c.missing for c in found], axis=1)

    def _filled(self, X: Any, strategy: str, n_draws: int, random: Any) -> list[Any]:
        check_is_fitted(self)
        level_weights: dict[int, np.ndarray] = {}
        fill: Callable[[np.ndarray, Any], Any]
        if self.schema_ is None:
            given = read_numbers(self, X)
            rows, fill = given.astype(np.float64), lambda complete, _: complete.astype(given.dtype)
        else:
            terms = TableColumns(self.schema_)
            rows, fill = terms.filling(X)
            level_weights = terms.level_weights
        filled = np.repeat(rows[None], n_draws, axis=0)
        with_gaps = np.flatnonzero(np.isnan(rows).any(axis=1))
        if with_gaps.size:
            model, scored = self.mixture_.model_, self._scored(rows[with_gaps])
            query = QueryRows(model, scored, None, level_weights)
            made = self._made(query, strategy, n_draws, random)
            filled[:, with_gaps] = np.where(query.seen, rows[with_gaps], made)
        tables = [fill(complete, random) for complete in filled]
        if not self.add_indicator:
            return tables
        gaps = self._gaps(X)[:, self.with_gaps_].astype(np.float64)
        names = self.get_feature_names_out()[self.n_features_in_ :]
        return [_with_columns(table, names, gaps) for table in tables]

    def _made(self, query: QueryRows, strategy: str, n_draws: int, random: Any) -> np.ndarray:
        """Rows (n_draws, n, D) to take cells from."""
        is_number = [column for column, knots in enumerate(self.scores_) if knots.size]
        kind = strategy if strategy in ("mode", "draw") else "mean"
        made = impute_rows(query, kind, n_draws, random)
        if strategy == "mean":
            columns = np.array([c for c in is_number if not query.seen[:, c].all()], dtype=np.int64)
            made[0][:, columns] = self._means(query, columns)
            return made
        if strategy == "median":
            columns = np.array([c for c in is_number if not query.seen[:, c].all()], dtype=np.int64)
            made[0][:, columns] = _medians(query, columns)
        for column in is_number:
            made[:, :, column] = from_scores(self.scores_[column], made[:, :, column])
        return made

    def _means(self, query: QueryRows, columns: np.ndarray) -> np.ndarray:
        """Conditional means (n, d) of values, not of scores."""
        means = np.empty((query.rows.shape[0], columns.shape[0]))
        for block, m, number, inner, variances in _number_moments(query, columns):
            values = mean_of_scores(self.scores_[number], inner + query.centre[number], variances)
            means[block.numbers, m] = block.average(values)
        return means


def _medians(query: QueryRows, columns: np.ndarray) -> np.ndarray:
    """Conditional medians (n, d) of scores."""
    medians = np.empty((query.rows.shape[0], columns.shape[0]))
    for block, m, number, inner, variances in _number_moments(query, columns):
        (part, *_), *_ = query.parts_of(columns[[m]])
        found = part.quantiles(block.weights, inner, variances, block.starts, 0.5)
        medians[block.numbers, m] = query.centre[number] + found
    return medians


def _number_moments(
    query: QueryRows, columns: np.ndarray
) -> Iterator[tuple[Posterior, int, int, np.ndarray, np.ndarray]]:
    """Yield blocks of rows, columns among those asked for, and moments (P,) of pairs."""
    if not columns.size:
        return
    for block in query.posteriors(columns.shape[0]):
        for part, targets, among in query.parts_of(columns):
            means, variances = part.moments(block.pairs.of(part.columns), targets)
            for m, column in enumerate(among.tolist()):
                yield block, column, int(columns[column]), means[:, m], variances[:, m]


def _with_columns(table: Any, names: np.ndarray, values: np.ndarray) -> Any:
    """A table with more columns (N, d) of numbers."""
    if isinstance(table, np.ndarray):
        return np.concatenate([table, values.astype(table.dtype)], axis=1)
    columns = dict(zip(names.tolist(), values.T, strict=True))
    if isinstance(table, dict):
        return table | columns
    if hasattr(table, "append_column"):
        for name, column in columns.items():
            table = table.append_column(name, [column])
        return table
    if hasattr(table, "assign"):
        return table.assign(**columns)
    return table.with_columns(**columns)
