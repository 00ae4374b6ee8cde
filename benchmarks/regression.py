"""Regression by conditioning a mixture on the other columns, against regressors trained for it.

One mixture of all columns answers any such question; here it is asked for one column, on rows that
were not fitted. Measured: the continuous ranked probability score by quantiles, which is twice the
mean pinball loss over the levels 0.05, 0.15, ..., 0.95, in units of the column's standard
deviation (lower is better); `coverage`, the share of rows between the quantiles 0.05 and 0.95 (0.9
is right); seconds to fit and to answer. The mixture's K is the best of several on a fifth of the
training rows, by the same score; seconds are those of all. Rivals: HistGradientBoostingRegressor
with loss="quantile", one model per level, quantiles sorted (its default of 100 trees is few for
smooth functions: see --trees); LinearRegression with Gaussian errors,
categories as columns of zeros and ones.

    PICKMIX_DATA=... python benchmarks/regression.py [--seeds 3] [--sets NAME ...] [--quick]
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
from scipy.stats import norm
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression

from pickmix import GaussianMixture, TableMixture

# Column to predict, and columns that would give it away.
TARGETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "flights": ("arr_delay", ("air_time",)),
    "kin40k": ("x8", ()),
    "cytometry": ("x15", ()),
    "bike": ("x17", ("x4", "x5", "x15", "x16")),
}
LEVELS = np.arange(0.05, 1.0, 0.1)


def pinball(truth: np.ndarray, quantiles: np.ndarray) -> float:
    """Twice the mean pinball loss of quantiles (N, levels): the CRPS as the levels get dense."""
    away = truth[:, None] - quantiles
    return float(2.0 * np.maximum(LEVELS * away, (LEVELS - 1.0) * away).mean())


def load(name: str, n_rows: int, seed: int) -> tuple[pd.DataFrame, str]:
    """A table, and the column to predict."""
    target, dropped = TARGETS[name]
    if name == "flights":
        frame = flights(n_rows, seed).dropna().reset_index(drop=True)
    else:
        frame = pd.DataFrame(numbers(name, n_rows, seed)).rename(columns="x{}".format)
        frame = (frame - frame.mean()) / frame.std()
    return frame.drop(columns=list(dropped)), target


def mixture_quantiles(mixture: Any, frame: pd.DataFrame, target: str) -> np.ndarray:
    """Quantiles (N, levels) of the target given all other columns."""
    asked = frame.copy()
    asked[target] = np.nan
    if isinstance(mixture, TableMixture):
        _, found = mixture.predict_columns(asked, target, quantiles=LEVELS)
    else:
        place = frame.columns.get_loc(target)
        _, found = mixture.predict_columns(asked.to_numpy(), place, quantiles=LEVELS)
    return np.asarray(found, dtype=np.float64).reshape(len(frame), LEVELS.size)


def by_mixture(
    train: pd.DataFrame, test: pd.DataFrame, target: str, candidates: list[int], seed: int
) -> tuple[np.ndarray, Line]:
    """Choose K on a fifth of the training rows, then answer with that mixture."""
    cut = len(train) * 4 // 5
    part, validation = train[:cut], train[cut:]
    truth = validation[target].to_numpy(np.float64)
    categories = any(isinstance(kind, pd.CategoricalDtype) for kind in train.dtypes)
    best, chosen, mixture, fitting = np.inf, 0, None, 0.0
    for n_components in candidates:
        started = now()
        if categories:
            candidate = TableMixture(n_components, random_state=seed).fit(part)
        else:
            candidate = GaussianMixture(n_components, random_state=seed).fit(part.to_numpy())
        value = pinball(truth, mixture_quantiles(candidate, validation, target))
        fitting += now() - started - getattr(candidate, "compile_seconds_", 0.0)
        if value < best:
            best, chosen, mixture = value, n_components, candidate
    started = now()
    quantiles = mixture_quantiles(mixture, test, target)
    asking = now() - started
    return quantiles, {"K": float(chosen), "fit_s": fitting, "ask_s": asking}


def by_boosting(
    train: pd.DataFrame, test: pd.DataFrame, target: str, n_trees: int, seed: int
) -> tuple[np.ndarray, Line]:
    """One model per level."""
    inputs, asked = train.drop(columns=target), test.drop(columns=target)
    columns, fitting, asking = [], 0.0, 0.0
    for level in LEVELS:
        started = now()
        model = HistGradientBoostingRegressor(
            loss="quantile", quantile=level, max_iter=n_trees, random_state=seed
        )
        model.fit(inputs, train[target])
        fitted = now()
        columns.append(model.predict(asked))
        asking += now() - fitted
        fitting += fitted - started
    quantiles = np.sort(np.stack(columns, axis=1), axis=1)
    return quantiles, {"K": np.nan, "fit_s": fitting, "ask_s": asking}


def by_line(train: pd.DataFrame, test: pd.DataFrame, target: str) -> tuple[np.ndarray, Line]:
    """Least squares and the spread of the residuals."""
    both = pd.get_dummies(pd.concat([train, test]).drop(columns=target), dtype=np.float64)
    inputs, asked = both[: len(train)], both[len(train) :]
    started = now()
    model = LinearRegression().fit(inputs, train[target])
    spread = (train[target] - model.predict(inputs)).std()
    fitted = now()
    quantiles = model.predict(asked)[:, None] + spread * norm.ppf(LEVELS)
    asking = now() - fitted
    return quantiles, {"K": np.nan, "fit_s": fitted - started, "ask_s": asking}


def main() -> None:
    """Measure, print and write."""
    parser = parser_for(__doc__, seeds=3)
    parser.add_argument("--sets", nargs="*", default=list(TARGETS))
    parser.add_argument("--rows", type=int, default=25_000, help="a fifth of them to measure on")
    parser.add_argument("--trees", type=int, default=100, help="of each boosting model")
    parser.add_argument("--components", type=int, nargs="+", default=[16, 64, 256])
    arguments = begin(parser)
    seeds = arguments.seeds
    if arguments.quick:
        seeds, arguments.rows, arguments.components = 1, 2_500, [8]
    warnings.simplefilter("ignore", ConvergenceWarning)
    # Rare levels may be among the rows that are not fitted.
    warnings.filterwarnings("ignore", message=".*levels that were not there.*")
    lines: list[Line] = []
    for name in arguments.sets:
        for seed in range(seeds):
            frame, target = load(name, arguments.rows, seed)
            cut = len(frame) * 4 // 5
            train, test = frame[:cut], frame[cut:].reset_index(drop=True)
            truth, unit = test[target].to_numpy(np.float64), float(train[target].std())
            for who, (quantiles, facts) in (
                ("pickmix", by_mixture(train, test, target, arguments.components, seed)),
                ("boosting", by_boosting(train, test, target, arguments.trees, seed)),
                ("linear", by_line(train, test, target)),
            ):
                inside = (truth >= quantiles[:, 0]) & (truth <= quantiles[:, -1])
                found = {"crps": pinball(truth, quantiles) / unit, "coverage": inside.mean()}
                lines.append({"set": name, "seed": seed, "who": who} | found | facts)
                print(name, seed, who, {key: round(found[key], 4) for key in found}, flush=True)
        if not arguments.quick:
            write_lines(arguments.out, "regression.csv", lines)
    print_table(
        f"{arguments.rows} rows at most, a fifth to measure on: medians over {seeds} seeds",
        medians(lines, ("set", "who"), ("crps", "coverage", "K", "fit_s", "ask_s")),
    )


if __name__ == "__main__":
    main()
