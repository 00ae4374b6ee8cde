"""Drawn rows of three tables by the measures of published studies of synthetic tables.

Tables and splits are `synthetic/NAME-{train,test}.csv` in the folder that PICKMIX_DATA names;
results of twelve methods are in `published.txt` there. `TableMixture` is fitted to training rows
as it comes, and with parts of it switched off, and as many rows are drawn. Measured:

- `c2st`: classifier two-sample test, the mean over three folds of 1 - (2 AUC - 1). 1 is "not told
  apart". XGBoost with its defaults, as in the studies, or scikit-learn's gradient boosting where
  XGBoost is not installed; text is one column of 0 and 1 for each level.
- `c2st_test`: the same against test rows, where copies of training rows do not help.
- `shape`, `trend`: 1 less the distances of single columns and of pairs (Kolmogorov-Smirnov, total
  variation, half the difference of correlations; numbers in ten bins of the real range).
- `downstream`: a boosted model fitted to drawn rows, judged on test rows: the area under the curve,
  of beijing the root mean square error of log pm2.5.
- `near`: per cent of drawn rows nearer to a training row than the nearest 2 % of test rows; 2 is as
  it should be, far more are copies.
- seconds of the fit and of the draws, and the memory of the whole process in MB, a peak.

    PICKMIX_DATA=... python benchmarks/drawn_tables.py [--seeds 5] [--sets NAME ...] [--quick]
"""

from __future__ import annotations

import resource
import warnings
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from reporting import (
    Line,
    begin,
    data_folder,
    medians,
    now,
    parser_for,
    print_table,
    write_lines,
)
from scipy.stats import ks_2samp
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

from pickmix import TableMixture

try:
    from xgboost import XGBClassifier
except ImportError:
    XGBClassifier = None

# What is predicted, and columns of numbers that the studies take for categories.
TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "adult": ("income", ()),
    "beijing": ("pm2.5", ("year", "month", "day", "hour")),
    "magic": ("class", ()),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "dependence=None": {"dependence": None},
    "column_transform=None": {"column_transform": None},
    "n_components=1000": {"n_components": 1000},
    # Columns of adult that would be levels.
    "without levels": {
        "schema": dict.fromkeys(
            ("age", "capital.gain", "capital.loss", "hours.per.week"), "integer"
        )
    },
}
MEASURES = ("c2st", "c2st_test", "shape", "trend", "downstream", "near")
FACTS = ("K", "fit_s", "draw_s", "memory")
N_BINS, N_NEAR = 10, 1000


def is_text(values: pd.Series) -> bool:
    return not pd.api.types.is_numeric_dtype(values)


def wide(frame: pd.DataFrame, levels: dict[str, list[str]]) -> np.ndarray:
    """Numbers, and a column of 0 and 1 for each level of text."""
    columns = []
    for name in frame.columns:
        if name in levels:
            text = frame[name].astype(str).to_numpy()
            columns += [(text == level).astype(float) for level in levels[name]]
        else:
            columns.append(frame[name].to_numpy(np.float64))
    return np.column_stack(columns)


def told_apart(real: np.ndarray, drawn: np.ndarray, seed: int) -> float:
    rows, labels = np.concatenate([real, drawn]), np.repeat([1, 0], [len(real), len(drawn)])
    areas = []
    for fitted, judged in StratifiedKFold(3, shuffle=True, random_state=seed).split(rows, labels):
        if XGBClassifier is None:
            model = HistGradientBoostingClassifier(
                learning_rate=0.3, max_depth=6, max_leaf_nodes=None, early_stopping=False
            )
        else:
            model = XGBClassifier(random_state=0, n_jobs=1)
        model.fit(rows[fitted], labels[fitted])
        area = float(roc_auc_score(labels[judged], model.predict_proba(rows[judged])[:, 1]))
        areas.append(max(area, 0.5))
    return 2.0 - 2.0 * float(np.mean(areas))


def variation(first: pd.Series, second: pd.Series) -> float:
    """Half the absolute difference of the shares of values."""
    shares = [values.value_counts(normalize=True) for values in (first, second)]
    return 0.5 * float(shares[0].subtract(shares[1], fill_value=0.0).abs().sum())


def distances(real: pd.DataFrame, drawn: pd.DataFrame, numbers: list[str]) -> tuple[float, float]:
    """Mean distance of columns, and of pairs."""
    columns, binned = [], {}
    for name in real.columns:
        both = real[name], drawn[name]
        if name in numbers:
            columns.append(float(ks_2samp(*both).statistic))
            edges = np.histogram_bin_edges(real[name].astype(float), N_BINS)[1:-1]
            codes = [np.searchsorted(edges, one.to_numpy(float), side="right") for one in both]
            binned[name] = [pd.Series(code).astype(str) for code in codes]
        else:
            binned[name] = [one.astype(str).reset_index(drop=True) for one in both]
            columns.append(variation(*binned[name]))
    pairs = []
    for a, b in combinations(real.columns, 2):
        if a in numbers and b in numbers:
            of_rows = [float(part[a].corr(part[b])) for part in (real, drawn)]
            pairs.append(0.5 * abs(of_rows[0] - of_rows[1]))
        else:
            pairs.append(variation(*(binned[a][n] + "\n" + binned[b][n] for n in (0, 1))))
    return float(np.mean(columns)), float(np.nanmean(pairs))


def predicted(
    drawn: pd.DataFrame, test: pd.DataFrame, target: str, levels: dict[str, list[str]]
) -> float:
    """How well a model of drawn rows predicts test rows."""
    inner = {name: values for name, values in levels.items() if name != target}
    rows = [wide(part.drop(columns=target), inner) for part in (drawn, test)]
    settings: dict[str, Any] = {"max_depth": 5, "early_stopping": False, "random_state": 0}
    if target not in levels:
        logs = [np.log(np.clip(part[target].to_numpy(float), 1.0, None)) for part in (drawn, test)]
        regressor = HistGradientBoostingRegressor(**settings).fit(rows[0], logs[0])
        return float(np.sqrt(np.mean((regressor.predict(rows[1]) - logs[1]) ** 2)))
    last = levels[target][-1]
    is_last = [part[target].astype(str) == last for part in (drawn, test)]
    classifier = HistGradientBoostingClassifier(**settings).fit(rows[0], is_last[0])
    return float(roc_auc_score(is_last[1], classifier.predict_proba(rows[1])[:, 1]))


def near(parts: list[np.ndarray], is_level: np.ndarray, seed: int) -> float:
    """Per cent of drawn rows that are near to training rows; numbers in their deviations."""
    train, test, drawn = (part / np.where(is_level, 1.0, parts[0].std(axis=0)) for part in parts)
    # Two columns of 0 and 1 differ where a level does: 2, as in the studies.
    search = NearestNeighbors(n_neighbors=1, metric="manhattan", algorithm="brute").fit(train)
    rng = np.random.default_rng(seed)
    ways = [
        search.kneighbors(rows[rng.permutation(len(rows))[:N_NEAR]])[0] for rows in (test, drawn)
    ]
    return 100.0 * float((ways[1] < np.quantile(ways[0], 0.02)).mean())


def measure(
    train: pd.DataFrame, test: pd.DataFrame, drawn: pd.DataFrame, name: str, seed: int
) -> Line:
    target, categories = TABLES[name]
    levels = {c: sorted(set(train[c].astype(str))) for c in train.columns if is_text(train[c])}
    numbers = [c for c in train.columns if c not in levels and c not in categories]
    rows = [wide(part, levels) for part in (train, test, drawn)]
    is_level = np.concatenate(
        [np.full(len(levels.get(c, [c])), c in levels) for c in train.columns]
    )
    n = min(len(test), len(drawn))
    column, pair = distances(train, drawn, numbers)
    return {
        "c2st": told_apart(rows[0], rows[2], seed),
        "c2st_test": told_apart(rows[1][:n], rows[2][:n], seed),
        "shape": 1.0 - column,
        "trend": 1.0 - pair,
        "downstream": predicted(drawn, test, target, levels),
        "near": near(rows, is_level, seed),
    }


def main() -> None:
    """Measure, print and write."""
    parser = parser_for(__doc__, seeds=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--sets", nargs="*", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--variants", nargs="*", choices=list(VARIANTS), default=["default"])
    parser.add_argument("--name", default="drawn_tables.csv", help="of the file of lines")
    arguments = begin(parser)
    # Gaps of the tables are words, and levels of test rows may be new.
    warnings.simplefilter("ignore")
    print("xgboost" if XGBClassifier else "scikit-learn's gradient boosting", flush=True)
    lines: list[Line] = []
    for name in arguments.sets:
        folder = data_folder() / "synthetic"
        train, test = (pd.read_csv(folder / f"{name}-{part}.csv") for part in ("train", "test"))
        if arguments.quick:
            train, test = train[:2000], test[:1000]
        for variant in arguments.variants:
            first, n_seeds = arguments.first_seed, 1 if arguments.quick else arguments.seeds
            for seed in range(first, first + n_seeds):
                options = {"random_state": seed} | VARIANTS[variant]
                started = now()
                mixture = TableMixture(**options).fit(train)
                fitted = now()
                drawn = mixture.sample(len(train), random_state=seed + 1)[list(train.columns)]
                facts = {
                    "K": float(mixture.n_components_),
                    "fit_s": fitted - started - mixture.compile_seconds_,
                    "draw_s": now() - fitted,
                    "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0,
                }
                with threadpool_limits(1, "openmp"):
                    line = measure(train, test, drawn, name, seed) | facts
                lines.append({"set": name, "variant": variant, "seed": seed} | line)
                print(name, variant, seed, {key: round(line[key], 3) for key in line}, flush=True)
                if not arguments.quick:
                    write_lines(arguments.out, arguments.name, lines)
    print_table(
        "Drawn against real rows: medians over seeds",
        medians(lines, ("set", "variant"), MEASURES + FACTS),
    )


if __name__ == "__main__":
    main()
