"""Rows drawn from a mixture of a table against real rows that it has not seen.

Half of a table is fitted, as many rows are drawn, and compared with the other half:

- `column`: Kolmogorov-Smirnov distance (numbers) or total-variation distance (categories), the mean
  over columns;
- `pair`: total-variation distance of the joint table of two columns, numbers cut at real deciles,
  the mean over all pairs;
- `correlation`: mean absolute difference of rank correlations, over pairs of numbers;
- `auc`: how well HistGradientBoostingClassifier tells real from drawn, in cross-validation; 0.5 is
  not at all, 1 is always.

Lower is better everywhere. The line `real rows` compares the fitted half itself with the other: no
method can be expected to do better. The mixture is a TableMixture whose K has the highest
likelihood on a fifth of the fitted rows. The rival is one Gaussian copula (`copula.py`). Rows with
holes are left out. Seeds are halves and starts.

    PICKMIX_DATA=... python benchmarks/synthetic_rows.py [--seeds 3] [--sets NAME ...] [--quick]
"""

from __future__ import annotations

import warnings
from itertools import combinations

import numpy as np
import pandas as pd
from copula import GaussianCopula
from open_tables import flights, numbers, penguins
from reporting import (
    Line,
    begin,
    medians,
    now,
    parser_for,
    print_table,
    write_lines,
)
from scipy.stats import ks_2samp, spearmanr
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from threadpoolctl import threadpool_limits

from pickmix import TableMixture

SETS = ("penguins", "flights", "magic-telescope", "cytometry")
MEASURES = ("column", "pair", "correlation", "auc", "K", "fit_s", "draw_s")
N_BINS = 10


def load(name: str, n_rows: int, seed: int) -> pd.DataFrame:
    """A table without holes, in random order."""
    if name == "flights":
        frame = flights(n_rows, seed)
    elif name == "penguins":
        frame = penguins().sample(frac=1.0, random_state=seed)
    else:
        frame = pd.DataFrame(numbers(name, n_rows, seed)).rename(columns="x{}".format)
    return frame.dropna().reset_index(drop=True)


def codes(frame: pd.DataFrame, real: pd.DataFrame) -> np.ndarray:
    """Levels of categories, and tenths of numbers, cut at the real rows' deciles."""
    columns = []
    for name in real.columns:
        if isinstance(real[name].dtype, pd.CategoricalDtype):
            levels = pd.Categorical(frame[name], categories=real[name].cat.categories)
            columns.append(levels.codes.astype(np.int64))
        else:
            known = real[name].to_numpy(np.float64)
            borders = np.unique(np.quantile(known, np.arange(1, N_BINS) / N_BINS))
            columns.append(np.searchsorted(borders, frame[name].to_numpy(np.float64)))
    return np.stack(columns, axis=1)


def total_variation(first: np.ndarray, second: np.ndarray) -> float:
    """Half the absolute difference of two tables of frequencies of non-negative integers."""
    size = int(max(first.max(), second.max())) + 1
    shares = [np.bincount(part, minlength=size) / part.size for part in (first, second)]
    return float(0.5 * np.abs(shares[0] - shares[1]).sum())


def tell_apart(real: pd.DataFrame, drawn: pd.DataFrame, seed: int) -> float:
    """Area under the ROC curve of a classifier in five folds; below 0.5 it is luck."""
    both = pd.concat([real, drawn[real.columns]], ignore_index=True)
    wide = np.empty(both.shape)
    categorical = []
    for place, name in enumerate(real.columns):
        is_category = isinstance(real[name].dtype, pd.CategoricalDtype)
        categorical.append(is_category)
        if is_category:
            levels = pd.Categorical(both[name], categories=real[name].cat.categories)
            wide[:, place] = levels.codes
        else:
            wide[:, place] = both[name].to_numpy(np.float64)
    which = np.repeat([0, 1], [len(real), len(drawn)])
    model = HistGradientBoostingClassifier(categorical_features=categorical, random_state=seed)
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    # Its threads wait for each other where other processes run, many times as long as one takes.
    with threadpool_limits(1, "openmp"):
        chances = cross_val_predict(model, wide, which, cv=folds, method="predict_proba")[:, 1]
    return float(roc_auc_score(which, chances))


def compare(real: pd.DataFrame, drawn: pd.DataFrame, seed: int) -> Line:
    """Distances between real and drawn rows."""
    numeric = [c for c in real.columns if not isinstance(real[c].dtype, pd.CategoricalDtype)]
    ours, theirs = codes(drawn, real), codes(real, real)
    columns, pairs = [], []
    for place, name in enumerate(real.columns):
        if name in numeric:
            found = ks_2samp(real[name].astype("float64"), drawn[name].astype("float64"))
            columns.append(float(found.statistic))
        else:
            columns.append(total_variation(theirs[:, place], ours[:, place]))
    for a, b in combinations(range(ours.shape[1]), 2):
        width = int(max(ours[:, b].max(), theirs[:, b].max())) + 1
        pairs.append(total_variation(*(part[:, a] * width + part[:, b] for part in (theirs, ours))))
    # One matrix each; two columns would give a number.
    matrices = [
        np.asarray(spearmanr(part[numeric].to_numpy(np.float64)).statistic)
        for part in (real, drawn)
    ]
    upper = np.triu_indices(len(numeric), 1)
    away = np.abs(matrices[0] - matrices[1])
    return {
        "column": float(np.mean(columns)),
        "pair": float(np.mean(pairs)),
        "correlation": float(away[upper].mean()),
        "auc": tell_apart(real, drawn, seed),
    }


def draw_mixture(
    train: pd.DataFrame, n_rows: int, candidates: list[int], seed: int
) -> tuple[pd.DataFrame, Line]:
    """Rows of the mixture whose K explains a fifth of the rows best."""
    cut = len(train) * 4 // 5
    best, chosen, mixture, fitting = -np.inf, 0, None, 0.0
    for n_components in candidates:
        if 4 * n_components > cut:
            break
        started = now()
        candidate = TableMixture(n_components, random_state=seed).fit(train[:cut])
        value = float(np.mean(candidate.score_samples(train[cut:])))
        fitting += now() - started - getattr(candidate, "compile_seconds_", 0.0)
        if value > best:
            best, chosen, mixture = value, n_components, candidate
    assert mixture is not None
    started = now()
    drawn = mixture.sample(n_rows, random_state=seed)
    if isinstance(drawn, tuple):
        drawn = drawn[0]
    asking = now() - started
    return drawn, {"K": float(chosen), "fit_s": fitting, "draw_s": asking}


def draw_copula(train: pd.DataFrame, n_rows: int, seed: int) -> tuple[pd.DataFrame, Line]:
    """Rows of the rival."""
    started = now()
    copula = GaussianCopula().fit(train, seed)
    fitted = now()
    drawn = copula.sample(n_rows, seed + 1)
    facts = {"K": np.nan, "fit_s": fitted - started, "draw_s": now() - fitted}
    return drawn, facts


def main() -> None:
    """Measure, print and write."""
    parser = parser_for(__doc__, seeds=3)
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--rows", type=int, default=20_000, help="half of them are fitted")
    parser.add_argument("--components", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64, 128])
    arguments = begin(parser)
    seeds = arguments.seeds
    if arguments.quick:
        seeds, arguments.rows, arguments.components = 1, 2_000, [8]
    warnings.simplefilter("ignore", ConvergenceWarning)
    # Rare levels may be among the rows that are not fitted.
    warnings.filterwarnings("ignore", message=".*levels that were not there.*")
    lines: list[Line] = []
    for name in arguments.sets:
        for seed in range(seeds):
            frame = load(name, arguments.rows, seed)
            half = len(frame) // 2
            train, real = frame[:half], frame[half:].reset_index(drop=True)
            nothing = {"K": np.nan, "fit_s": np.nan, "draw_s": np.nan}
            for who, (drawn, facts) in (
                ("pickmix", draw_mixture(train, half, arguments.components, seed)),
                ("copula", draw_copula(train, half, seed)),
                ("real rows", (train, nothing)),
            ):
                found = compare(real, drawn, seed) | facts
                lines.append({"set": name, "seed": seed, "who": who} | found)
                print(name, seed, who, {key: round(found[key], 3) for key in found}, flush=True)
        if not arguments.quick:
            write_lines(arguments.out, "synthetic_rows.csv", lines)
    print_table(
        f"Drawn against real rows, {arguments.rows} rows at most: medians over {seeds} seeds",
        medians(lines, ("set", "who"), MEASURES),
    )


if __name__ == "__main__":
    main()
