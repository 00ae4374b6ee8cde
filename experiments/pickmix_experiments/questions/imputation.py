"""Missing cells of tables: `MixtureImputer`, others here, and nine published methods.

Six tables of the study of Jolicoeur-Martineau et al. (Forest Diffusion, 2024), as there: four
fifths of the rows, 20 % of the cells removed at random but none of the last column, columns scaled
to [0, 1]. `mae` is the mean absolute error of removed cells, of the mixture filled with medians;
`draws` that of draws; `best` that of the nearest of five draws of each row. Others: one nearest
neighbour, chained Bayesian ridge regressions (draws from their posteriors) and chained forests (as
MissForest does). Published values have other splits and gaps: they are rows of their own, with the
rank of the mixture among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestRegressor
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer

from pickmix import MixtureImputer
from pickmix_experiments.evidence import Line, Question, data_folder, timed

SETS = {
    "airfoil": "airfoil_self_noise",
    "blood": "blood_transfusion",
    "climate": "climate_model_crashes",
    "libras": "libras",
    "parkinsons": "parkinsons",
    "wine": "wine_quality_red",
}
N_DRAWS, _MOST_COLUMNS = 5, 40


def cells(quick: bool) -> Iterator[Line]:
    for name in ("blood",) if quick else SETS:
        for seed in range(1 if quick else 3):
            yield {"set": name, "seed": seed}


def measure(set: str, seed: int) -> Iterator[Line]:
    table = pd.read_csv(data_folder() / "imputation" / f"{set}.csv", index_col=0)
    rng = np.random.default_rng(seed)
    table = table.iloc[np.sort(rng.permutation(len(table))[: len(table) * 4 // 5])]
    table = table.loc[:, table.min() < table.max()]
    low, width = table.min().to_numpy(float), (table.max() - table.min()).to_numpy(float)
    hidden = rng.random(table.shape) < 0.2
    hidden[:, -1] = False
    gaps = table.astype("float64").mask(hidden)
    truth, scaled = (((one - low) / width).to_numpy(np.float64) for one in (table, gaps))

    def filled(imputer: Any) -> Callable[[], Any]:
        return lambda: (None, [imputer.fit_transform(scaled)])

    def by_mixture() -> Any:
        # As a frame: columns of zeros and ones are classes.
        imputer = MixtureImputer(strategy="median", random_state=seed).fit(gaps)
        frames = [imputer.transform(gaps), *imputer.sample(gaps, N_DRAWS, random_state=seed)]
        guess, *draws = [(one.to_numpy(np.float64) - low) / width for one in frames]
        return guess, draws

    def by_ridges() -> Any:
        imputers = [IterativeImputer(sample_posterior=True, random_state=s) for s in range(N_DRAWS)]
        return None, [imputer.fit_transform(scaled) for imputer in imputers]

    forest = RandomForestRegressor(50, max_features="sqrt", random_state=seed, n_jobs=1)
    methods = {
        "mixture": by_mixture,
        "nearest": filled(KNNImputer(n_neighbors=1)),
        "ridges": by_ridges,
        "forests": filled(IterativeImputer(forest, max_iter=4, random_state=seed)),
    }
    if table.shape[1] >= _MOST_COLUMNS:
        del methods["forests"]
    published = pd.read_csv(data_folder() / "imputation" / "published.csv")
    published = published[(published.dataset == SETS[set]) & (published.method != "oracle")]
    for method, call in methods.items():
        (guess, draws), seconds = timed(call)
        errors = np.where(hidden, np.abs(np.stack(draws) - truth), 0.0)
        n_hidden = np.count_nonzero(hidden)
        line = {"method": method, "draws": errors.sum() / (n_hidden * len(draws))}
        line["mae"] = line["draws"] if guess is None else np.abs(guess - truth)[hidden].mean()
        line["best"] = errors.sum(axis=2).min(axis=0).sum() / n_hidden
        for value, column in (("mae", "AvgMAE"), ("best", "MinMAE")):
            line[f"rank_{value}"] = 1 + int((published[column].astype(float) < line[value]).sum())
        yield line | seconds
    for _, row in published.iterrows():
        values = {"mae": float(row["AvgMAE"]), "best": float(row["MinMAE"])}
        yield {"method": f"{row['method']} (published)", **values}


VALUES = "mae draws best rank_mae rank_best cpu_seconds"
QUESTION = Question(cells, measure, "set method", VALUES, "imputation/published.csv")
