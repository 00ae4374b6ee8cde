"""Mixtures for a question: some cells of a row, given its others.

What suits the question (how many components, how smooth, on which scale) is found on rows that were
left out; the answer is given by the mean of the mixtures that were judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri
from sklearn.base import BaseEstimator

from pickmix.checks import RandomSeed, check_choice, check_integer, check_randomness
from pickmix.estimators.family_fit import fit_family
from pickmix.estimators.family_mixture import FamilyMixture
from pickmix.estimators.fit_rows import FitRows
from pickmix.families.registry import make_family
from pickmix.inputs.arrays import read_numbers
from pickmix.inputs.encoding import encode
from pickmix.inputs.frames import read_typed
from pickmix.inputs.inference import infer_schema
from pickmix.inputs.schema import LEVEL_KINDS, TableSchema
from pickmix.model.columns import is_frame
from pickmix.model.mixture import MixtureModel
from pickmix.model.rows import QueryRows

_CANDIDATES = (1, 4, 16, 48, 128)
_ROWS_PER_COMPONENT = 8
# Added to variances, in units of those of the columns; shares of the overall levels.
_WIDTHS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)
_ASKED_WIDTHS = (0.0, 0.001, 0.003, 0.01, 0.03)
_FLOOR = 0.02  # Share of the marginal distribution when left-out rows are judged.
_MOST_FOLDED = 20_000  # Rows; of more, one part is left out once.
_MOST_JUDGED = 5_000
_KNOTS = 64
_LITTLE = 0.01  # Nats of a row that chance may give.
_SEARCHED = 2  # Folds that choose K.
HIDDEN = 0.2  # Share of the cells that are hidden to judge an imputer.
TAIL_SHARE, TAIL_WIDTH = 0.02, 0.1  # Of what is spread wider in y by a regressor, and how much.

Judge = Callable[[MixtureModel], float]


@dataclass(frozen=True)
class Question:
    """Rows (N, D) with NaN for gaps, and cells (N, D) of them that are asked for.

    `n_levels` (D,) is 0 for numbers. Asked cells count only where they are seen.
    """

    rows: np.ndarray
    asked: np.ndarray
    n_levels: np.ndarray
    covariance_type: str
    n_jobs: int | None
    #: The least width of each column (D,), where values are rounded.
    least: np.ndarray

    def widths(self, wanted: np.ndarray) -> np.ndarray:
        return np.asarray(np.maximum(wanted, self.least))

    @property
    def description(self) -> list[tuple[str, list[int]]]:
        numbers = np.flatnonzero(self.n_levels == 0).tolist()
        levels = np.flatnonzero(self.n_levels).tolist()
        groups = [(self.covariance_type, numbers), ("categorical", levels)]
        return [(name, columns) for name, columns in groups if columns]

    @property
    def n_classes(self) -> int:
        """The number of classes where only the last column, a class, is predicted; else 1."""
        return 1 if self.asked[:, :-1].any() else max(1, int(self.n_levels[-1]))

    @property
    def limits(self) -> np.ndarray:
        """The largest value of each column, as families take them."""
        limits: np.ndarray = np.maximum(self.n_levels - 1.0, 0.0)
        return limits

    def fit(self, chosen: np.ndarray, n_components: int, seed: int) -> MixtureModel:
        rows = self.rows[chosen & ~np.isnan(self.rows).all(axis=1)]
        family = make_family(self.description, self.limits[None], 1e-6)
        result = fit_family(family, FitRows(rows, None), n_components, seed, n_jobs=self.n_jobs)
        family = make_family(self.description, self.limits[None], 0.0)
        return MixtureModel(family, result.weights, result.parameters, n_jobs=self.n_jobs)

    def content(self, model: MixtureModel) -> dict[str, Any]:
        """A mixture as arrays and lists, for `TableReader.mixture_`."""
        return {
            "family": self.description,
            "limits": self.limits,
            "weights": model.weights,
            "parameters": model.parameters,
        }

    def judge(self, chosen: np.ndarray) -> Judge:
        """What gives the mean log-density of asked cells of rows, given the others."""
        rows = self.rows[chosen]
        asked = self.asked[chosen] & ~np.isnan(rows)
        given, alone = np.where(asked, np.nan, rows), np.where(asked, rows, np.nan)

        def score(model: MixtureModel) -> float:
            joint, condition, marginal = (
                QueryRows(model, values).log_densities() for values in (rows, given, alone)
            )
            # Bounded below, so that single rows do not decide.
            bounded = np.logaddexp(np.log1p(-_FLOOR) + joint - condition, np.log(_FLOOR) + marginal)
            return float(bounded.mean())

        return score


@dataclass(frozen=True)
class Answer:
    """Mixtures that left out a part of the rows each, and how much to smooth them."""

    fits: list[MixtureModel]
    widths: np.ndarray  # (D,)
    score: float  # Mean log-density of left-out cells, bounded below.

    @property
    def n_components(self) -> int:
        return self.fits[0].n_components

    def model(self) -> MixtureModel:
        return union([smooth(model, self.widths) for model in self.fits])


def smooth(model: MixtureModel, widths: np.ndarray) -> MixtureModel:
    """A mixture with widths (D,) added to variances, or as shares of the overall levels."""
    parameters = {}
    weights = model.weights / model.weights.sum()
    groups = model.family.column_groups()
    assert groups is not None
    for number, (family, columns) in enumerate(groups):
        width = widths[columns]
        for name in family.parameter_shapes(1):
            full = f"{family.name}{number}_{name}"
            values = model.parameters[full]
            if name == "covariances":
                values = values + (np.diag(width) if family.name == "full" else width)
            elif name == "probabilities":
                share = np.repeat(width, np.diff(family.layout.offsets))
                values = (1.0 - share) * values + share * (weights @ values)
            parameters[full] = values
    return replace(model, parameters=parameters)


def union(models: Sequence[MixtureModel], shares: Sequence[float] | None = None) -> MixtureModel:
    """The mixture of mixtures of one family."""
    parts = shares or [1.0 / len(models)] * len(models)
    weights = [s * m.weights / m.weights.sum() for m, s in zip(models, parts, strict=True)]
    names = models[0].parameters
    return replace(
        models[0],
        weights=np.concatenate(weights),
        parameters={n: np.concatenate([m.parameters[n] for m in models]) for n in names},
        background=None,
    )


def answer(
    question: Question, n_components: int | str, n_folds: int, random: np.random.RandomState
) -> Answer:
    """Choose K and widths by left-out rows, and give the union of the fits that were judged."""
    asked = (question.asked & ~np.isnan(question.rows)).any(axis=1)
    n_asked = int(np.count_nonzero(asked))
    folds = np.full(asked.shape[0], -1)
    n_folds = min(n_folds, n_asked)
    if n_asked > _MOST_FOLDED:
        n_folds = 1
        folds[random.permutation(np.flatnonzero(asked))[:_MOST_JUDGED]] = 0
    else:
        folds[asked] = random.permutation(n_asked) % n_folds
    fewest = asked.shape[0] - int(np.bincount(folds[folds >= 0]).max())
    if n_components == "auto":
        most = max(1, fewest // _ROWS_PER_COMPONENT)
        candidates = [K for K in sorted({*_CANDIDATES, question.n_classes}) if most >= K]
    else:
        candidates = [int(n_components)]
        if candidates[0] > fewest:
            raise ValueError(
                f"n_components must be at most {fewest}, the rows of a fit (n_samples="
                f"{asked.shape[0]}, of which some are left out), got {n_components}."
            )
    seeds = random.randint(2**31 - 1, size=n_folds).tolist()
    judges = [question.judge(folds == fold) for fold in range(n_folds)]

    def fit(K: int, some: range) -> list[MixtureModel]:
        return [question.fit(folds != fold, K, seeds[fold]) for fold in some]

    best, n_worse = None, 0
    few = range(min(_SEARCHED, n_folds))
    for K in candidates:
        found = _smoothed(question, fit(K, few), judges[: few.stop])
        if best is None or found.score > best.score:
            best, n_worse = found, 0
        else:
            n_worse += 1
        if n_worse == 2:
            break
    assert best is not None
    rest = range(few.stop, n_folds)
    if not rest:
        return best
    return _smoothed(question, [*best.fits, *fit(best.n_components, rest)], judges)


def _smoothed(question: Question, fits: list[MixtureModel], judges: list[Judge]) -> Answer:
    """The best widths of fits: of given columns, then of those that are asked for."""
    targets = question.asked.any(axis=0)

    def score(width: float, asked_width: float) -> float:
        widths = question.widths(np.where(targets, asked_width, width))
        smoothed = [smooth(model, widths) for model in fits]
        return float(np.mean([judge(m) for judge, m in zip(judges, smoothed, strict=True)]))

    def largest(scores: dict[tuple[float, float], float]) -> tuple[float, float]:
        """The least smoothing of those that are nearly as good as the best."""
        return min(pair for pair, value in scores.items() if value > max(scores.values()) - _LITTLE)

    if targets.all():
        scores = {(h, h): score(h, h) for h in _WIDTHS}
    else:
        scores = {(h, 0.0): score(h, 0.0) for h in _WIDTHS}
        width, _ = largest(scores)
        scores = {(width, h): score(width, h) for h in _ASKED_WIDTHS}
    width, asked_width = chosen = largest(scores)
    return Answer(fits, question.widths(np.where(targets, asked_width, width)), scores[chosen])


# Normal scores


def learn_scores(values: np.ndarray) -> np.ndarray:
    """Knots (2, J) of a monotone map of values (N,) with NaN to a standard normal distribution.

    >>> learn_scores(np.array([1.0, 2.0, 100.0])).round(2)
    array([[  1.  ,   2.  , 100.  ],
           [ -1.22,   0.  ,   1.22]])
    """
    seen = np.sort(values[~np.isnan(values)])
    if not seen.size:
        return np.zeros((2, 1))
    knots = np.unique(seen)
    if knots.size > _KNOTS:
        # Even in scores, so that tails are not cut short.
        shares = ndtr(np.linspace(-4.0, 4.0, _KNOTS - 2))
        inner = np.quantile(seen, shares, method="nearest")
        knots = np.unique(np.concatenate([seen[:1], inner, seen[-1:]]))
    middle = np.searchsorted(seen, knots, "left") + np.searchsorted(seen, knots, "right")
    scores = ndtri(middle / (2.0 * seen.size))
    spread = float(np.interp(seen, knots, scores).std())
    return np.stack([knots, scores / (spread or 1.0)])


def to_scores(knots: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(values), np.nan, np.interp(values, *knots))


def from_scores(knots: np.ndarray, scores: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(scores), np.nan, np.interp(scores, knots[1], knots[0]))


def mean_of_scores(knots: np.ndarray, means: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Means (P,) of values whose scores are Gaussian.

    The map is a sum of hinges at the knots t: E max(Z - t, 0) = s (d Phi(d) + phi(d)) with
    d = (m - t) / s.
    """
    values, places = knots
    if values.size == 1:
        return np.full(means.shape, values[0])
    slopes = np.diff(values) / np.diff(places)
    turns = np.diff(np.concatenate([[0.0], slopes, [0.0]]))
    spread = np.sqrt(np.maximum(variances, 1e-300))[:, None]
    d = (means[:, None] - places) / spread
    density = np.exp(-0.5 * np.square(d)) / np.sqrt(2.0 * np.pi)
    return np.asarray(values[0] + (spread * (d * ndtr(d) + density)) @ turns)


# Rows


@dataclass(eq=False, repr=False)
class _Settings(BaseEstimator):  # type: ignore[misc]
    n_components: int | str = "auto"
    _: KW_ONLY
    covariance_type: str = "full"
    schema: Mapping[str, str] | None = None
    n_folds: int = 5
    random_state: RandomSeed = None
    n_jobs: int | None = None


class TableReader(_Settings):
    """Reads arrays of numbers, or tables by their schema, as rows of scores and codes."""

    schema_: TableSchema | None
    n_features_in_: int
    #: Knots of each column (2, J); none for levels.
    scores_: list[np.ndarray]
    fitted_: dict[str, Any]
    left_out_score_: float
    n_components_: int

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "fitted_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    @property
    def mixture_(self) -> FamilyMixture:
        """The mixture of rows of scores and codes."""
        if not hasattr(self, "fitted_"):
            raise AttributeError(f"{type(self).__name__} has no mixture_ before it is fitted.")
        content = self.fitted_
        mixture = FamilyMixture(
            content["family"],
            content["weights"].shape[0],
            random_state=self.random_state,
            n_jobs=self.n_jobs,
        )
        mixture._fitted_description = content["family"]
        mixture.column_limits_ = content["limits"]
        mixture.n_features_in_ = content["limits"].shape[0]
        mixture._set_parameters(content["weights"], content["parameters"])
        mixture.background_ = None
        return mixture

    def _check(self) -> np.random.RandomState:
        if self.n_components != "auto":
            if isinstance(self.n_components, str):
                raise ValueError(
                    f'n_components must be an integer or "auto", got {self.n_components!r}.'
                )
            check_integer("n_components", self.n_components, 1)
        check_choice("covariance_type", self.covariance_type, ("full", "diag"))
        check_integer("n_folds", self.n_folds, 2)
        return check_randomness(self.random_state)

    def _learn(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Rows (N, d) of scores and codes, and the levels of each column (d,), 0 for numbers."""
        self.schema_ = None
        if is_table(X):
            table = read_typed(X)
            self.schema_ = infer_schema(table, self.schema)
            self.n_features_in_ = len(table.columns)
            self.feature_names_in_ = np.array(list(table.columns), dtype=object)
            rows, _ = encode(self.schema_, table)
            n_levels = np.array(
                [max(c.codes) + 1 if c.kind in LEVEL_KINDS else 0 for c in self.schema_.modelled]
            )
        else:
            if self.schema is not None:
                raise ValueError(f"schema is for tables, got an array and {self.schema!r}.")
            rows = read_numbers(self, X, reset=True).astype(np.float64)
            n_levels = np.zeros(rows.shape[1], dtype=np.int64)
        if rows.shape[0] < 2:
            raise ValueError(f"X must hold at least two rows, got n_samples={rows.shape[0]}.")
        self.scores_ = [
            np.zeros((2, 0)) if n else learn_scores(rows[:, column])
            for column, n in enumerate(n_levels)
        ]
        return self._scored(rows), n_levels

    def _scored(self, rows: np.ndarray) -> np.ndarray:
        """Rows (N, d) with numbers as scores."""
        out = rows.copy()
        for column, knots in enumerate(self.scores_):
            if knots.size:
                out[:, column] = to_scores(knots, rows[:, column])
        return out

    def _rows(self, X: Any) -> np.ndarray:
        """Rows (N, d) of what a fitted estimator is asked."""
        if self.schema_ is None:
            return self._scored(read_numbers(self, X).astype(np.float64))
        return self._scored(encode(self.schema_, read_typed(X))[0])


def is_table(X: Any) -> bool:
    """Whether X has columns with names, and perhaps of several kinds."""
    if isinstance(X, dict) or hasattr(X, "column_names"):
        return True
    return is_frame(X) and all(isinstance(name, str) for name in X.columns)
