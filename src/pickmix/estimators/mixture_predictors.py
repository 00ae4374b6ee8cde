"""Regression and classification by mixtures of inputs and target: distributions, not points."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from pickmix.checks import RandomSeed, check_flag, check_integer
from pickmix.estimators.answering import (
    TAIL_SHARE,
    TAIL_WIDTH,
    Question,
    TableReader,
    answer,
    smooth,
    union,
)
from pickmix.inputs.kinds import find_step
from pickmix.model.conditional import check_quantiles
from pickmix.model.mixture import MixtureModel


class _Predictor(TableReader):
    """What regression and classification share: the last column of the rows is the target."""

    def _fit_target(
        self,
        read: tuple[np.ndarray, np.ndarray],
        target: np.ndarray,
        n_levels: int = 0,
        floor: float = 0.0,
    ) -> tuple[Question, MixtureModel]:
        """The mixture of what was read and a target (N,), with NaN where it is missing."""
        random = self._check()
        rows, levels = read
        check_consistent_length(rows, target)
        if np.count_nonzero(~np.isnan(target)) < 2:
            raise ValueError("y must hold at least two known values; n_samples=1 is not enough.")
        rows = np.column_stack([rows, target])
        asked = np.zeros(rows.shape, dtype=np.bool_)
        asked[:, -1] = True
        least = np.zeros(rows.shape[1])
        least[-1] = floor
        question = Question(
            rows, asked, np.append(levels, n_levels), self.covariance_type, self.n_jobs, least
        )
        found = answer(question, self.n_components, self.n_folds, random)
        self.n_components_, self.left_out_score_ = found.n_components, found.score
        return question, found.model()

    def _asked(self, X: Any) -> np.ndarray:
        """Rows (N, d + 1) with a missing target."""
        check_is_fitted(self)
        rows = self._rows(X)
        return np.column_stack([rows, np.full(rows.shape[0], np.nan)])


class MixtureRegressor(RegressorMixin, _Predictor):  # type: ignore[misc]
    """Regression that gives the whole distribution of y: mean, spread, quantiles, density, draws.

    A mixture of all columns, x and y together, is fitted; p(y | x) is exact under it. Numbers of x
    are first mapped to normal scores, which p(y | x) does not notice. K and how much x and y are
    smoothed are those with the best log-density of y on left-out rows; the answer is that of the
    mean of the mixtures of all folds. Two hundredths of each component are spread wider in y, so
    that single surprises stay finite. Where y is rounded to a step, its variance given x is at
    least step^2 / 12: densities of repeated values have no bound otherwise.

    Missing values in X are allowed, in a fit and later: they are left out, not filled in. So are
    missing values in y, as NaN: such rows tell about x only.

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        K of each mixture; "auto" tries 1, 4, 16, 48 and 128.
    covariance_type : {"full", "diag"}, default="full"
    schema : dict, default=None
        Kinds of columns of tables that were found wrongly, as in `TableMixture`.
    n_folds : int, default=5
        Parts of the rows; each is left out by one fit. Of more than 20,000 rows, 5,000 are left out
        once, and there is one fit.
    random_state : int, RandomState, Generator or None, default=None
    n_jobs : int or None, default=None
        Most threads.

    Attributes
    ----------
    mixture_ : FamilyMixture
        The mixture of scores of x and of y in units of its standard deviation.
    n_components_ : int
        The chosen K.
    left_out_score_ : float
        Mean log-density of left-out y, in units of its standard deviation.
    n_features_in_ : int
    feature_names_in_ : array of str
        If X was a table.

    Examples
    --------
    >>> import numpy as np
    >>> from pickmix import MixtureRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2.0, 2.0, (400, 1))
    >>> y = np.abs(X[:, 0]) + 0.1 * rng.normal(size=400)
    >>> model = MixtureRegressor(8, n_folds=2, random_state=0).fit(X, y)
    >>> mean, std = model.predict([[-1.0], [1.5]], return_std=True)
    >>> mean.round(1), std.round(1)
    (array([1. , 1.5]), array([0.1, 0.1]))
    """

    def fit(self, X: Any, y: ArrayLike) -> Self:
        """Fit the regressor.

        Parameters
        ----------
        X : array-like of shape (N, d), data frame or dict of arrays
            NaN is missing. Tables may have categories, dates and counts, as in `TableMixture`.
        y : array-like of shape (N,)
            NaN is missing.
        """
        read = self._learn(X)
        target = _numbers(self, y)
        self.target_location_ = float(np.nanmean(target))
        self.target_scale_ = float(np.nanstd(target)) or 1.0
        scaled = (target - self.target_location_) / self.target_scale_
        step = find_step(target[~np.isnan(target)])
        # The variance of rounding.
        floor = 0.0 if step is None else (step.size / self.target_scale_) ** 2 / 12.0
        question, model = self._fit_target(read, scaled, floor=floor)
        # The same weights given x, and more spread of y.
        tail = np.zeros(question.rows.shape[1])
        tail[-1] = TAIL_WIDTH
        model = union([model, smooth(model, tail)], [1.0 - TAIL_SHARE, TAIL_SHARE])
        self.fitted_ = question.content(model)
        return self

    def predict(
        self, X: Any, *, return_std: bool = False, quantiles: float | ArrayLike | None = None
    ) -> Any:
        """Expected y of each row, given its observed values.

        Parameters
        ----------
        X : array-like of shape (N, d), data frame or dict of arrays
        return_std : bool, default=False
            Return standard deviations as well.
        quantiles : float or list of floats, default=None
            Return these quantiles as well.

        Returns
        -------
        mean : (N,) array
        std : (N,) array, if `return_std`
        quantiles : (N, q) array, if `quantiles` is given
        """
        check_flag("return_std", return_std)
        wanted = None if quantiles is None else check_quantiles(quantiles)
        rows = self._asked(X)
        target = rows.shape[1] - 1
        mean, std, *more = self.mixture_.predict_columns(
            rows, target, return_std=True, quantiles=wanted
        )
        answers = [mean * self.target_scale_ + self.target_location_]
        answers += [std * self.target_scale_] if return_std else []
        answers += [values * self.target_scale_ + self.target_location_ for values in more]
        return answers[0] if len(answers) == 1 else tuple(answers)

    def log_density(self, X: Any, y: ArrayLike) -> np.ndarray:
        """log p(y | x) of each row, (N,), in the units of y.

        Parameters
        ----------
        X : array-like of shape (N, d), data frame or dict of arrays
        y : array-like of shape (N,)
        """
        rows = self._asked(X)
        target = _numbers(self, y)
        check_consistent_length(rows, target)
        scaled = (target - self.target_location_) / self.target_scale_
        mixtures = self.mixture_.conditional(rows, rows.shape[1] - 1)
        return np.asarray(mixtures.score_samples(scaled[:, None]) - np.log(self.target_scale_))

    def sample(self, X: Any, n_draws: int = 1, random_state: RandomSeed = None) -> np.ndarray:
        """Draws of y given each row, (N, n_draws).

        Parameters
        ----------
        X : array-like of shape (N, d), data frame or dict of arrays
        n_draws : int, default=1
        random_state : int, RandomState, Generator or None, default=None
            None means that of the estimator.
        """
        check_integer("n_draws", n_draws, 1)
        rows = self._asked(X)
        mixtures = self.mixture_.conditional(rows, rows.shape[1] - 1)
        drawn = mixtures.sample(n_draws, random_state)[:, :, 0]
        return np.asarray(drawn * self.target_scale_ + self.target_location_)


@dataclass(eq=False, repr=False)
class MixtureClassifier(ClassifierMixin, _Predictor):  # type: ignore[misc]
    """Classification by a mixture of inputs and class, also where only some rows have a label.

    The class is one more column of a mixture of all columns, with probabilities per component; a
    missing label is a missing cell, so that rows without labels tell where rows are. Numbers are
    mapped to normal scores; K and smoothing are those with the best log-probability of labels that
    were left out; the answer is that of the mean of the mixtures of all folds.

    Missing values in X are allowed, in a fit and later: they are left out, not filled in.

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        K of each mixture; "auto" tries 1, 4, 16, 48 and 128, and the number of classes.
    missing_label : int, str or None, default=-1
        This label means that none is known, as NaN and None do; unless it and another one are all
        that there are: then both are classes. None: only NaN and None.
    covariance_type, schema, n_folds, random_state, n_jobs
        As in `MixtureRegressor`.

    Attributes
    ----------
    classes_ : (C,) array
    mixture_ : FamilyMixture
        The mixture of scores of x and of the class, as a number from 0.
    n_components_, left_out_score_, n_features_in_, feature_names_in_
        As in `MixtureRegressor`; the score is of left-out labels.

    Examples
    --------
    >>> import numpy as np
    >>> from pickmix import MixtureClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(-3, 1, (100, 2)), rng.normal(3, 1, (100, 2))])
    >>> y = np.repeat([0, 1], 100)
    >>> y[5:195] = -1
    >>> model = MixtureClassifier(2, n_folds=2, random_state=0).fit(X, y)
    >>> model.predict([[-3.0, -3.0], [3.0, np.nan]])
    array([0, 1])
    """

    _: KW_ONLY
    missing_label: Any = -1

    def fit(self, X: Any, y: ArrayLike) -> Self:
        """Fit the classifier.

        Parameters
        ----------
        X : array-like of shape (N, d), data frame or dict of arrays
            NaN is missing. Tables may have categories, dates and counts, as in `TableMixture`.
        y : array-like of shape (N,)
            Classes; `missing_label`, NaN or None where none is known.
        """
        read = self._learn(X)
        labels = _given(self, y)
        known = np.array([value is not None and value == value for value in labels.tolist()])
        if self.missing_label is not None:
            others = known & (labels != self.missing_label)
            if np.unique(labels[others]).size > 1:
                known = others
        if not known.any():
            raise ValueError("y must hold labels, got only missing ones.")
        check_classification_targets(_plain(labels[known]))
        self.classes_, codes = np.unique(_plain(labels[known]), return_inverse=True)
        if self.classes_.size < 2:
            raise ValueError(f"y must hold at least two classes, got one class: {self.classes_}.")
        target = np.full(labels.shape[0], np.nan)
        target[known] = codes
        question, model = self._fit_target(read, target, self.classes_.size)
        self.fitted_ = question.content(model)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, (N, C), given the observed values of each row."""
        rows = self._asked(X)
        target = rows.shape[1] - 1
        return np.asarray(self.mixture_.conditional(rows, target).probabilities(target))

    def predict(self, X: Any) -> np.ndarray:
        """Most probable class of each row, (N,)."""
        shares = self.predict_proba(X)
        return np.asarray(self.classes_[shares.argmax(axis=1)])


def _given(estimator: Any, y: Any) -> np.ndarray:
    if y is None:
        name = type(estimator).__name__
        raise ValueError(f"This {name} estimator requires y to be passed, but the target y is None")
    labels = np.asarray(column_or_1d(np.asarray(y), warn=True))
    if labels.dtype.kind == "f" and np.isinf(labels).any():
        raise ValueError("Input y contains infinity: expected finite values, or NaN if missing.")
    return labels


def _numbers(estimator: Any, y: Any) -> np.ndarray:
    target = _given(estimator, y).astype(np.float64)
    if np.isnan(target).all():
        raise ValueError("y must hold numbers, got only missing ones.")
    return target


def _plain(labels: np.ndarray) -> np.ndarray:
    """Labels in a type that tells what they are, if they were objects beside missing ones."""
    return np.array(labels.tolist()) if labels.dtype == object else labels
