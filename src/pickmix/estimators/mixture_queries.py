"""What a fitted mixture can be asked, of arrays and of tables alike.

Queries read what the user passed through the estimator's `_columns`, ask the fitted `model_`, and
return the answer in the user's terms.
"""

from __future__ import annotations

import abc
import contextlib
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from pickmix.checks import (
    RandomSeed,
    check_choice,
    check_flag,
    check_generator,
    check_integer,
)
from pickmix.estimators.queries import DensityQueries, weighted_mean
from pickmix.estimators.row_sources import by_chunks, read_fitted
from pickmix.families.base import RandomSource
from pickmix.inputs.arrays import check_noise, read_numbers
from pickmix.inputs.conditions import Allowed
from pickmix.inputs.open_rows import is_dask, is_source
from pickmix.model.columns import Columns
from pickmix.model.conditional import ConditionalMixtures, check_quantiles, impute_rows
from pickmix.model.events import make_events
from pickmix.model.explanation import Explanation, explain_rows
from pickmix.model.merging import Merges, MergeTree, merge_model, score_levels
from pickmix.model.mixture import MixtureModel
from pickmix.model.rows import QueryRows


class ConditionalQueries(abc.ABC):
    """Queries of an estimator whose `model_` has conditional distributions.

    Columns are given by name if the mixture was fitted to a frame or a table, else by number. Cells
    that are NaN, and missing cells of tables, are left out of densities and conditions.
    """

    random_state: Any

    @property
    @abc.abstractmethod
    def model_(self) -> Any:
        """The fitted mixture as a value, with array-level queries."""

    @property
    @abc.abstractmethod
    def _columns(self) -> Columns:
        """How users name the model's columns, and read and write their values; of fitted ones."""

    @abc.abstractmethod
    def _like(self, columns: np.ndarray, model: Any) -> Self:
        """A fitted mixture of this class with another model, of some of the columns."""

    @abc.abstractmethod
    def _query_rows(
        self, terms: Columns, rows: np.ndarray, noise: Any, numbers: np.ndarray | None = None
    ) -> QueryRows:
        """Rows (n, D) of a query, and their numbers in messages."""

    def _random(self, random_state: Any) -> RandomSource:
        return check_generator(self.random_state if random_state is None else random_state)

    def sample(self, n_samples: int = 1, random_state: RandomSeed = None) -> Any:
        """Draw rows from the fitted mixture.

        Parameters
        ----------
        n_samples : int, default=1
        random_state : int, RandomState, Generator or None, default=None
            None means that of the estimator.

        Returns
        -------
        X : (n_samples, D) array
            Grouped by component.
        y : (n_samples,) array
            Components.
        """
        check_is_fitted(self)
        check_integer("n_samples", n_samples, 1)
        return self.model_.sample(n_samples, self._random(random_state))

    def _n_parameters(self) -> int:
        return int(self.model_.n_parameters)

    # Some columns given others.

    def marginal(self, columns: Any) -> Self:
        """The mixture of some of the columns.

        Parameters
        ----------
        columns : str, int or list of them
            In the order of the new mixture.

        Returns
        -------
        mixture : fitted mixture of the same class
            Its density is the integral of the density of this mixture over all other columns.

        Examples
        --------
        >>> import numpy as np
        >>> from pickmix import GaussianMixture
        >>> X = np.random.default_rng(0).normal(size=(200, 3))
        >>> mixture = GaussianMixture(2, random_state=0).fit(X)
        >>> mixture.marginal([2, 0]).means_.shape
        (2, 2)
        """
        terms = self._columns
        targets = terms.find(columns)
        return self._like(targets, self.model_.marginal(terms.in_model_order(targets)))

    def conditional(
        self, given: Any, columns: Any = None, *, noise: ArrayLike | None = None
    ) -> ConditionalMixtures:
        """The mixtures of some columns given values of others, one for each row of values.

        Parameters
        ----------
        given : dict, data frame, table, or array-like of shape (n, D)
            ``{column: value or n values}``; a frame or table with the given columns; or rows in
            which NaN marks values that are not given. A column of NaN only is not given.
        columns : str, int or list of them, default=None
            Columns to ask for. None means every column that is not given.
        noise : array-like of shape (n, D) or (n, D, D), default=None
            As in `impute`.

        Returns
        -------
        mixtures : ConditionalMixtures
            With `weights`, `mean`, `std`, `covariance`, `quantile`, `mode`, `probabilities`,
            `score_samples` and `sample`; ``mixtures[i]`` is a fitted mixture of this class.

        Examples
        --------
        >>> import numpy as np
        >>> from pickmix import GaussianMixture
        >>> rng = np.random.default_rng(0)
        >>> X = np.concatenate([rng.normal(-4, 1, (500, 2)), rng.normal(4, 1, (500, 2))])
        >>> mixture = GaussianMixture(2, random_state=0).fit(X)
        >>> mixture.conditional({0: [-4.0, 4.0]}).mean().round(0).ravel()
        array([-4.,  4.])
        """
        terms = self._columns
        rows = terms.read_given(given)
        is_given = ~np.isnan(rows).all(axis=0)
        if columns is None:
            targets = terms.free(is_given)
            if not targets.size:
                raise ValueError("given must leave a column to ask for, got values of all of them.")
        else:
            targets = terms.find(columns)
            both = targets[is_given[targets]]
            if both.size:
                raise ValueError(
                    f"columns must not be given as well, got both for {terms.named(both)}."
                )
        return self._conditionals(terms, rows, targets, terms.read_noise(noise, rows))

    def _conditionals(
        self, terms: Columns, rows: np.ndarray, targets: np.ndarray, noise: Any = None
    ) -> ConditionalMixtures:
        query = self._query_rows(terms, rows, noise)
        return ConditionalMixtures(query, targets, terms, self._like, self._random)

    def predict_columns(
        self,
        X: Any,
        columns: Any,
        *,
        return_std: bool = False,
        quantiles: float | ArrayLike | None = None,
    ) -> Any:
        """Regression: expected values of some columns, given the others.

        Parameters
        ----------
        X : array-like, data frame or table
            Either all D columns, of which those to predict are ignored, or only the others, in
            their order. Columns of a frame or table are found by name. NaN marks missing cells.
        columns : str, int or list of them
            Columns to predict.
        return_std : bool, default=False
            Return standard deviations as well.
        quantiles : float or list of floats, default=None
            Return these quantiles as well. Not for categories.

        Returns
        -------
        mean : (N, d) array, or (N,) if `columns` is a single name or number
            For a category: the most probable level. See `ConditionalMixtures.probabilities`. Of a
            table: a dict of (N,) arrays, or one of them; dates are rounded to their step.
        std : (N, d) or (N,) array, if `return_std`
            For a category: NaN. Of dates: in days.
        quantiles : (N, d, q) or (N, q) array, if `quantiles` is given

        Examples
        --------
        >>> import numpy as np
        >>> from pickmix import GaussianMixture
        >>> rng = np.random.default_rng(0)
        >>> x = rng.uniform(-2.0, 2.0, 5000)
        >>> X = np.column_stack([x, np.abs(x) + 0.1 * rng.normal(size=5000)])
        >>> mixture = GaussianMixture(8, random_state=0).fit(X)
        >>> mean, std = mixture.predict_columns([[-1.0], [1.5]], 1, return_std=True)
        >>> mean.round(1), std.round(1)
        (array([1. , 1.5]), array([0.1, 0.1]))
        """
        terms = self._columns
        check_flag("return_std", return_std)
        wanted = None if quantiles is None else check_quantiles(quantiles)
        targets = terms.find(columns)
        mixtures = self._conditionals(terms, terms.read_without(X, targets), targets)
        answers = list(mixtures.describe(return_std)[: 2 if return_std else 1])
        if wanted is not None:
            answers.append(mixtures.quantile(wanted))
        plain = [terms.single(answer, columns) for answer in answers]
        return plain[0] if len(plain) == 1 else tuple(plain)

    def impute(
        self,
        X: Any,
        strategy: str = "mean",
        *,
        n_draws: int = 1,
        random_state: RandomSeed = None,
        noise: ArrayLike | None = None,
    ) -> Any:
        """Fill in the missing cells; all others keep their values, to the last bit.

        Parameters
        ----------
        X : array-like of shape (N, D), data frame or table
            NaN marks missing cells. A row may have missing cells only: it is then filled from the
            whole mixture.
        strategy : {"mean", "mode", "draw"}, default="mean"
            "mean": the conditional mean of numbers and counts, the most probable level of
            categories: the best guess of each cell, but filled rows vary too little. "mode": the
            conditional mode within the most probable component, so that the filled cells of a row
            fit together. "draw": a draw from the joint conditional distribution; statistics of
            several filled tables vary as they should (multiple imputation).
        n_draws : int, default=1
            Filled tables to make, with "draw".
        random_state : int, RandomState, Generator or None, default=None
            For "draw". None means that of the mixture.
        noise : array-like of shape (N, D) or (N, D, D), default=None
            Variances or covariances of known noise on the rows, of Gaussians. Cells are filled
            with values without noise; observed cells keep theirs, including the noise.

        Returns
        -------
        filled : (N, D) array, or (n_draws, N, D) if n_draws > 1
            float32 if X is. For a data frame: a frame of the same kind, or a list of n_draws, in
            which filled columns are floats. `TableMixture` keeps types: it rounds integers and
            dates to their step and counts to whole numbers, leaves columns alone that it skips or
            does not know, and gives back a table of the same kind (a Parquet file gives a pyarrow
            Table, a CSV file a dict of arrays).

        Examples
        --------
        >>> import numpy as np
        >>> from pickmix import GaussianMixture
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=500)
        >>> X = np.column_stack([x, 3.0 * x + 0.1 * rng.normal(size=500)])
        >>> mixture = GaussianMixture(1, random_state=0).fit(X)
        >>> mixture.impute([[1.0, np.nan], [np.nan, -6.0]]).round(1)
        array([[ 1.,  3.],
               [-2., -6.]])
        """
        terms = self._columns
        return self._impute(terms, *terms.filling(X), strategy, n_draws, random_state, noise)

    def _impute(
        self,
        terms: Columns,
        rows: np.ndarray,
        fill: Any,
        strategy: str,
        n_draws: int,
        random_state: RandomSeed,
        noise: ArrayLike | None = None,
        allowed: Mapping[int, Allowed] | None = None,
    ) -> Any:
        """As `impute`, of rows (N, D) and what makes an answer of filled ones."""
        check_choice("strategy", strategy, ("mean", "mode", "draw"))
        check_integer("n_draws", n_draws, 1)
        if n_draws > 1 and strategy != "draw":
            raise ValueError(f'n_draws must be 1 unless strategy="draw", got {n_draws!r}.')
        random = self._random(random_state) if strategy == "draw" else None
        covariances = terms.read_noise(noise, rows)
        filled = np.repeat(rows[None], n_draws, axis=0)
        with_gaps = np.flatnonzero(np.isnan(rows).any(axis=1))
        if with_gaps.size:
            part = None if covariances is None else covariances[with_gaps]
            query = self._query_rows(terms, rows[with_gaps], part, with_gaps)
            events = make_events(query, allowed or {}, terms)
            filled[:, with_gaps] = impute_rows(query, strategy, n_draws, random, events)
        answers = [fill(complete, random) for complete in filled]
        if n_draws == 1:
            return answers[0]
        return np.stack(answers) if isinstance(answers[0], np.ndarray) else answers

    def sample_conditional(
        self, X: Any, random_state: RandomSeed = None, *, where: Mapping[Any, Any] | None = None
    ) -> Any:
        """Fill in the missing cells by one draw each: `impute` with "draw".

        Parameters
        ----------
        X : array-like of shape (N, D), data frame or table
        random_state : int, RandomState, Generator or None, default=None
        where : dict, default=None
            Conditions that draws meet, on columns without values in X: ``{column: condition}``. A
            condition is a text, ``"> 0"``, ``">= 0"``, ``"< 5"``, ``"<= 5"``, ``"= 0"``, ``"in (0,
            5]"`` or ``"in {red, blue}"``, or a list of values. Draws are exact. No row is drawn
            twice if given a component the columns with conditions are independent of each other;
            else one condition is met at once and the others by drawing again, and conditions that
            less than one row in a thousand then meets are refused.

        Returns
        -------
        filled : (N, D) array, data frame or table

        Examples
        --------
        >>> import numpy as np
        >>> from pickmix import FamilyMixture
        >>> levels = np.array([[0, 0], [1, 1]] * 100)
        >>> mixture = FamilyMixture("categorical", 2, random_state=0).fit(levels)
        >>> mixture.sample_conditional([[np.nan, 0.0], [1.0, np.nan]], random_state=0)
        array([[0., 0.],
               [1., 1.]])

        >>> mixture.sample_conditional([[np.nan, np.nan]], random_state=0, where={0: "> 0"})
        array([[1., 1.]])
        """
        terms, allowed = self._columns.narrowed(where)
        filling = terms.filling(X)
        return self._impute(terms, *filling, "draw", 1, random_state, allowed=allowed)


class MixtureQueries(ConditionalQueries, DensityQueries):
    """Queries of an estimator whose fit is a `MixtureModel`."""

    n_features_in_: int
    #: Whether X may be a file, a source of rows or a Dask collection, and not only a table.
    _takes_sources = True
    #: The merges of the fitted components, and what identifies these components.
    _merged: tuple[int, Merges] | None = None

    @property
    @abc.abstractmethod
    def model_(self) -> MixtureModel:
        """The fitted mixture as a value, with array-level queries."""

    @property
    def _columns(self) -> Columns:
        """How users name the model's columns, and read and write their values; of fitted ones."""
        check_is_fitted(self)
        return Columns(self, self.model_.family)

    def _query_rows(
        self, terms: Columns, rows: np.ndarray, noise: Any, numbers: np.ndarray | None = None
    ) -> QueryRows:
        return QueryRows(self.model_, rows, noise, terms.level_weights, terms.maps)

    def _read(self, X: Any, noise: Any) -> tuple[np.ndarray, Any, np.ndarray | float]:
        """Rows of the model, their noise, and what log-densities gain by units, (N,)."""
        check_is_fitted(self)
        rows = read_numbers(self, X)
        return rows, check_noise(noise, rows), 0.0

    # Densities and components.

    @by_chunks
    def score_samples(
        self,
        X: Any,
        *,
        n_candidates: int | None = None,
        exact_below: float | None = None,
        noise: ArrayLike | None = None,
    ) -> np.ndarray:
        """Log-density of each row, (N,).

        With `n_candidates` it is a lower bound: tight if a search found the components that matter,
        and perhaps hundreds of nats too low for rows far from all components. To compare scores
        with a threshold of exact log-densities, give it as `exact_below`: a score is then below it
        exactly where the log-density is.

        Parameters
        ----------
        X : array-like of shape (N, D), rows that are not in memory, or table
            As in `fit`. Files and sources are read chunk by chunk; a Dask collection gives a lazy
            answer. If values are missing, it is the log-density of the observed ones; 0 if there
            are none. Densities of tables are in their units: of numbers per unit, of dates per day;
            categories and counts have probabilities.
        n_candidates : int, default=None
            Components to evaluate per row, about; None means all.
        exact_below : float, default=None
            Rows with a bound below this are evaluated again, over all components.
        noise : array-like of shape (N, D) or (N, D, D), default=None
            Variances or covariances of the noise of the rows, as in `fit`.
        """
        if n_candidates is not None:
            check_integer("n_candidates", n_candidates, 1)
        rows, variances, units = self._read(X, noise)
        below = None if exact_below is None else exact_below - units
        return np.asarray(self.model_.score_samples(rows, variances, n_candidates, below) + units)

    def score(
        self,
        X: Any,
        y: object = None,
        sample_weight: ArrayLike | None = None,
        *,
        noise: ArrayLike | None = None,
    ) -> float:
        """Mean log-density per row, weighted by `sample_weight` if given; see `score_samples`."""
        return weighted_mean(self.score_samples(X, noise=noise), sample_weight)

    @by_chunks
    def predict(
        self,
        X: Any,
        *,
        level: int | None = None,
        n_candidates: int | None = None,
        noise: ArrayLike | None = None,
    ) -> np.ndarray:
        """Most probable component of each row, (N,), given its observed values.

        Parameters
        ----------
        X : array-like of shape (N, D), rows that are not in memory, or table
            As in `fit`.
        level : int, default=None
            Merge components until this many clusters are left, and return the one whose components
            are most probable together. Clusters are numbered by falling weight, as in
            `MergeTree.labels`. A background that explains rows stays one up to the last merge.
        n_candidates : int, default=None
            Evaluate about that many components per row, which a search finds, instead of all.
        noise : array-like of shape (N, D) or (N, D, D), default=None
            Variances or covariances of the noise of the rows, as in `fit`.
        """
        if n_candidates is not None:
            check_integer("n_candidates", n_candidates, 1)
        labels = None if level is None else self._labels(level)
        rows, variances, _ = self._read(X, noise)
        return self.model_.predict(rows, variances, n_candidates, labels)

    @by_chunks
    def predict_proba(
        self, X: Any, *, level: int | None = None, noise: ArrayLike | None = None
    ) -> np.ndarray:
        """Posterior probabilities of all components, (N, K). Large: see `top_components`.

        With `level`, those of the clusters that are left when components are merged until there
        are so many: (N, level), see `predict`.
        """
        labels = None if level is None else self._labels(level)
        rows, variances, _ = self._read(X, noise)
        return self.model_.predict_proba(rows, variances, labels)

    @by_chunks
    def top_components(
        self, X: Any, m: int = 1, *, noise: ArrayLike | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The m most probable components of each row and their posterior probabilities.

        Parameters
        ----------
        X : array-like of shape (N, D), rows that are not in memory, or table
        m : int, default=1
            At most the number of components.
        noise : array-like of shape (N, D) or (N, D, D), default=None
            Variances or covariances of the noise of the rows, as in `fit`.

        Returns
        -------
        components : (N, m) int array
            Most probable first.
        probabilities : (N, m) array
            Exact posterior probabilities, so a row sums to at most one.
        """
        check_is_fitted(self)
        n_components = self.model_.n_components
        if check_integer("m", m, 1) > n_components:
            raise ValueError(f"m must be at most n_components={n_components}, got {m!r}.")
        rows, variances, _ = self._read(X, noise)
        return self.model_.top_components(rows, m, variances)

    def explain(
        self, X: Any, top: int | None = None, *, noise: ArrayLike | None = None
    ) -> Explanation:
        """Which cells make a row unusual: each cell, or pair of cells, given the others of its row.

        The most surprising come first. Cells after a notable one are compared with the row without
        it, and two that are extreme together are named together: see `Explanation.surprise` and
        `groups`.

        Parameters
        ----------
        X : array-like of shape (N, D), data frame or table
            NaN marks missing cells, which are not explained.
        top : int, default=None
            Rank this many columns of each row; None means all.
        noise : array-like of shape (N, D) or (N, D, D), default=None
            As in `impute`. Rows are then explained one by one.

        Returns
        -------
        explanation : Explanation
            With log_density (N,), log_conditional (N, D): ``log p(x_j | x_-j)``, expected (N, D),
            spread (N, D) and ranked (N, top); ``print(explanation.table(i))`` shows row i.

        Examples
        --------
        >>> import numpy as np
        >>> from pickmix import GaussianMixture
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=500)
        >>> X = np.column_stack([x, 3.0 * x + 0.1 * rng.normal(size=500), rng.normal(size=500)])
        >>> mixture = GaussianMixture(1, random_state=0).fit(X)
        >>> explanation = mixture.explain([[1.0, -3.0, 0.0]], top=2)
        >>> explanation.expected[0, :2].round(1), explanation.ranked[0]
        (array([-1. , -0.1]), array([0, 1]))
        """
        terms = self._columns
        if top is not None:
            check_integer("top", top, 1)
        rows, units, in_terms = terms.explaining(X)
        rows = rows.astype(np.float64)
        covariances = terms.read_noise(noise, rows)
        query = self._query_rows(terms, rows, covariances)
        explanation: Explanation = in_terms(explain_rows(query, terms.all_labels, top, units), top)
        return explanation

    # Fewer components.

    def merge_tree(self) -> MergeTree:
        """The tree of merges from all components to one, the cheapest merge first.

        Two components are merged into one with their common weight, mean and covariance (for other
        families: expected features). Only neighbours are compared: the work grows as K log K. A
        background is merged last. Numbers of tables are in units of their standard deviation.

        Returns
        -------
        tree : MergeTree
            With `linkage` for `scipy.cluster.hierarchy`, `costs`, and `labels(n_clusters)`.

        References
        ----------
        A. R. Runnalls: Kullback-Leibler approach to Gaussian mixture reduction, IEEE Transactions
        on Aerospace and Electronic Systems, 2007.

        Examples
        --------
        >>> import numpy as np
        >>> from pickmix import GaussianMixture
        >>> X = np.random.default_rng(0).normal(size=(500, 2))
        >>> tree = GaussianMixture(8, random_state=0).fit(X).merge_tree()
        >>> tree.linkage.shape, tree.labels(3).shape
        ((7, 4), (8,))
        """
        return self._merges().tree()

    def _merges(self) -> Merges:
        check_is_fitted(self)
        model = self.model_
        fingerprint = -1 if model.background is None else model.background
        for array in (np.float64(model.n_rows), model.weights, *model.parameters.values()):
            fingerprint = zlib.crc32(np.ascontiguousarray(array).data, fingerprint & 0xFFFFFFFF)
        if self._merged is None or self._merged[0] != fingerprint:
            self._merged = fingerprint, merge_model(model)
        return self._merged[1]

    def __getstate__(self) -> Any:
        # The merges can be found again, and take more room than the mixture.
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_merged"}

    def _labels(self, level: Any, parameter: str = "level") -> np.ndarray:
        """Clusters (K,) of the components when `level` are left."""
        check_is_fitted(self)
        K = self.model_.n_components
        if check_integer(parameter, level, 1) > K:
            raise ValueError(
                f"{parameter} must be at most {K}, the number of components of this mixture, got "
                f"{level!r}."
            )
        return self.merge_tree().labels(level)

    def _score_levels(self, X: Any, levels: np.ndarray) -> Iterator[np.ndarray]:
        """Yield log-densities (G, R) of the rows of X when `levels` (G,) components are left."""
        if self._takes_sources and is_dask(X):
            raise TypeError("X must be rows in memory or in files, got a Dask collection.")
        if self._takes_sources and is_source(X):
            with contextlib.closing(read_fitted(self, X)) as chunks:
                for rows in chunks:
                    yield from score_levels(self.model_, self._merges(), rows, levels)
            return
        rows, _, units = self._read(X, None)
        units, first = np.broadcast_to(units, rows.shape[:1]), 0
        for scores in score_levels(self.model_, self._merges(), rows, levels):
            last = first + scores.shape[1]
            yield scores + units[first:last]
            first = last
