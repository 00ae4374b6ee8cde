"""Exact answers of mixtures in closed form: some columns given others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from pickmix.estimators.conditional_mixtures import ConditionalMixtures, check_quantiles
from pickmix.estimators.questions_columns import (
    fill_frame,
    find_columns,
    is_frame,
    is_single,
    labels_of,
    read_given,
    read_others,
    read_rows,
)
from pickmix.estimators.questions_explain import Explanation, explain_rows
from pickmix.estimators.questions_noise import read_noise
from pickmix.estimators.questions_rows import AskedRows
from pickmix.estimators.validation import (
    RandomSeed,
    check_choice,
    check_flag,
    check_integer,
)

# Parameters of a fit that speak of all columns, or of a place on the disk.
NOT_INHERITED = ("weights_init", "means_init", "precisions_init", "checkpoint")


class Questions:
    """Marginals, conditionals, regression, imputation and explanations.

    Columns are given by name if the mixture was fitted to a data frame, else by number. Cells that
    are NaN are missing: answers are then given the other cells. Data frames of pandas and polars
    work wherever arrays do.
    """

    weights_: np.ndarray
    n_features_in_: int

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
        check_is_fitted(self)
        targets = find_columns(self, columns)
        asked = AskedRows(self, np.full((1, self.n_features_in_), np.nan))
        parameters = [part.marginal(places) for part, places, _ in asked.parts_of(targets)]
        return self._over_columns(targets, self.weights_.copy(), parameters)

    def conditional(
        self, given: Any, columns: Any = None, *, noise: ArrayLike | None = None
    ) -> ConditionalMixtures:
        """The mixtures of some columns given values of others, one for each row of values.

        Parameters
        ----------
        given : dict, data frame, or array-like of shape (n, D)
            ``{column: value or n values}``; a frame with the given columns; or rows in which NaN
            marks values that are not given. A column of NaN only is not given.
        columns : str, int or list of them, default=None
            Columns to ask for. None means every column that is not given.
        noise : array-like of shape (n, D) or (n, D, D), default=None
            As in `impute`.

        Returns
        -------
        mixtures : ConditionalMixtures
            With `weights`, `mean`, `std`, `covariance`, `quantile`, `mode`, `score_samples` and
            `sample`; ``mixtures[i]`` is a fitted mixture of this class.

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
        check_is_fitted(self)
        rows, is_given = read_given(self, given)
        if columns is None:
            targets = np.flatnonzero(~is_given)
            if not targets.size:
                raise ValueError("given must leave a column to ask for, got values of all of them.")
        else:
            targets = find_columns(self, columns)
            both = targets[is_given[targets]]
            if both.size:
                named = ", ".join(labels_of(self)[column] for column in both)
                raise ValueError(f"columns must not be given as well, got both for {named}.")
        asked = AskedRows(self, rows, read_noise(self, noise, rows))
        return ConditionalMixtures(self, asked, targets)

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
        X : array-like or data frame
            Either all D columns, of which those to predict are ignored, or only the others, in
            their order. Columns of a frame are found by name. NaN marks missing cells.
        columns : str, int or list of them
            Columns to predict.
        return_std : bool, default=False
            Return standard deviations as well.
        quantiles : float or list of floats, default=None
            Return these quantiles as well.

        Returns
        -------
        mean : (N, d) array, or (N,) if `columns` is a single name or number
            For a category: the most probable level. See `ConditionalMixtures.probabilities`.
        std : (N, d) or (N,) array, if `return_std`
            For a category: NaN.
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
        check_is_fitted(self)
        check_flag("return_std", return_std)
        wanted = None if quantiles is None else check_quantiles(quantiles)
        targets = find_columns(self, columns)
        asked = AskedRows(self, read_others(self, X, targets))
        mixtures = ConditionalMixtures(self, asked, targets)
        answers = list(mixtures.describe(return_std)[: 2 if return_std else 1])
        if wanted is not None:
            answers.append(mixtures.quantile(wanted))
        if is_single(columns):
            answers = [answer[:, 0] for answer in answers]
        return answers[0] if len(answers) == 1 else tuple(answers)

    def impute(
        self,
        X: Any,
        strategy: str = "mean",
        *,
        n_draws: int = 1,
        random_state: RandomSeed = None,
        noise: ArrayLike | None = None,
    ) -> Any:
        """Fill in the cells that are NaN; all others keep their values, to the last bit.

        Parameters
        ----------
        X : array-like of shape (N, D), or data frame
            A row may have missing cells only: it is then filled from the whole mixture.
        strategy : {"mean", "mode", "draw"}, default="mean"
            "mean": the conditional mean of numbers and counts, the most probable level of
            categories. It is the best guess of each cell, but filled rows then vary too little.
            "mode": the conditional mode within the component that is most probable given the
            observed cells, so that the filled cells of a row fit together. "draw": a draw from the
            joint conditional distribution of all missing cells; statistics of several filled tables
            vary as they should (multiple imputation).
        n_draws : int, default=1
            Filled tables to make, with "draw".
        random_state : int, RandomState, Generator or None, default=None
            For "draw". None means that of the mixture.
        noise : array-like of shape (N, D) or (N, D, D), default=None
            Variances or covariances of known Gaussian noise on the rows, for a `GaussianMixture`.
            Cells are filled with values without noise, given the noisy observed ones. Observed
            cells keep their values, including the noise.

        Returns
        -------
        filled : (N, D) array, or (n_draws, N, D) if n_draws > 1
            float32 if X is. For a data frame: a frame of the same kind, or a list of n_draws.
            Filled columns of a frame are floats, even of whole numbers: `TableMixture` keeps types.

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
        return self._impute(X, strategy, n_draws, random_state, noise)

    def _impute(
        self,
        X: Any,
        strategy: str,
        n_draws: int,
        random_state: RandomSeed,
        noise: ArrayLike | None = None,
        level_weights: Mapping[int, np.ndarray] | None = None,
    ) -> Any:
        """As `impute`; `level_weights` is as in `AskedRows`."""
        check_is_fitted(self)
        check_choice("strategy", strategy, ("mean", "mode", "draw"))
        check_integer("n_draws", n_draws, 1)
        if n_draws > 1 and strategy != "draw":
            raise ValueError(f'n_draws must be 1 unless strategy="draw", got {n_draws!r}.')
        rows = read_rows(self, X)
        missing = np.isnan(rows)
        with_holes = np.flatnonzero(missing.any(axis=1))
        targets = np.flatnonzero(missing.any(axis=0))
        filled = np.repeat(rows[None], n_draws, axis=0)
        covariances = read_noise(self, noise, rows)
        if with_holes.size:
            some = None if covariances is None else covariances[with_holes]
            asked = AskedRows(self, rows[with_holes], some, level_weights)
            mixtures = ConditionalMixtures(self, asked, targets)
            if strategy == "draw":
                found = mixtures.sample(n_draws, random_state).transpose(1, 0, 2)
            else:
                found = (mixtures.mean() if strategy == "mean" else mixtures.mode())[None]
            holes, places = np.nonzero(missing[with_holes][:, targets])
            filled[:, with_holes[holes], targets[places]] = found[:, holes, places]
        if is_frame(X):
            frames = [fill_frame(X, table, missing) for table in filled]
            return frames[0] if n_draws == 1 else frames
        return filled[0] if n_draws == 1 else filled

    def sample_conditional(self, X: Any, random_state: RandomSeed = None) -> Any:
        """Fill in the cells that are NaN by one draw each: `impute` with "draw".

        Parameters
        ----------
        X : array-like of shape (N, D), or data frame
        random_state : int, RandomState, Generator or None, default=None

        Returns
        -------
        filled : (N, D) array, or data frame

        Examples
        --------
        >>> import numpy as np
        >>> from pickmix import FamilyMixture
        >>> levels = np.array([[0, 0], [1, 1]] * 100)
        >>> mixture = FamilyMixture("categorical", 2, random_state=0).fit(levels)
        >>> mixture.sample_conditional([[np.nan, 0.0], [1.0, np.nan]], random_state=0)
        array([[0., 0.],
               [1., 1.]])
        """
        return self.impute(X, "draw", random_state=random_state)

    def explain(
        self, X: Any, top: int | None = None, *, noise: ArrayLike | None = None
    ) -> Explanation:
        """Which cells make a row unusual: each cell given all others of its row.

        Parameters
        ----------
        X : array-like of shape (N, D), or data frame
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
        (array([-1.,  3.]), array([1, 0]))
        """
        return self._explain(X, top, noise)

    def _explain(
        self,
        X: Any,
        top: int | None = None,
        noise: ArrayLike | None = None,
        level_weights: Mapping[int, np.ndarray] | None = None,
    ) -> Explanation:
        """As `explain`; `level_weights` is as in `AskedRows`."""
        check_is_fitted(self)
        if top is not None:
            check_integer("top", top, 1)
        rows = read_rows(self, X).astype(np.float64)
        asked = AskedRows(self, rows, read_noise(self, noise, rows), level_weights)
        return explain_rows(asked, labels_of(self), top)

    def _over_columns(
        self, columns: np.ndarray, weights: np.ndarray, parameters: list[dict[str, np.ndarray]]
    ) -> Self:
        """A mixture like this one over some of its columns, with the parameters of its parts."""
        mine: Any = self
        settings = mine.get_params(deep=False)
        settings |= {name: None for name in NOT_INHERITED if name in settings}
        settings["n_components"] = int(weights.shape[0])
        if np.ndim(settings["reg_covar"]):
            settings["reg_covar"] = np.asarray(settings["reg_covar"])[columns]
        made = type(mine)(**settings)
        if hasattr(mine, "_fitted_description"):
            description = _restrict(mine._fitted_description, columns)
            made.family = made._fitted_description = description
            made.column_limits_ = mine.column_limits_[columns]
            if not isinstance(description, str):
                parameters = [
                    {
                        f"{group}{number}_{name}": values
                        for number, ((group, _), own) in enumerate(
                            zip(description, parameters, strict=True)
                        )
                        for name, values in own.items()
                    }
                ]
        else:
            made.covariance_type = mine._fitted_family().name
        made._set_parameters(weights, parameters[0])
        made.n_features_in_ = int(columns.shape[0])
        if hasattr(mine, "feature_names_in_"):
            made.feature_names_in_ = mine.feature_names_in_[columns]
        made.background_ = getattr(mine, "background_", None)
        result: Self = made
        return result


def _restrict(description: Any, columns: np.ndarray) -> Any:
    """The description of a family that is left with some columns, in a new order.

    >>> _restrict([("full", [0, 2]), ("poisson", [1]), ("categorical", [3])], np.array([3, 2]))
    [('full', [1]), ('categorical', [0])]
    """
    if isinstance(description, str):
        return description
    numbers = columns.tolist()
    restricted = [
        (name, [place for place, column in enumerate(numbers) if column in own])
        for name, own in description
    ]
    return [(name, own) for name, own in restricted if own]
