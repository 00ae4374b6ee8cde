"""A target given all other columns: its density, its quantiles, and the error of its mean.

`density`: `MixtureRegressor` on UCI tables with the splits of Gal and Ghahramani (2016): mean
log-density of test targets and root mean squared error; published values are on the page.
`quantiles`: a mixture of all columns, asked for one, on tables of numbers: the continuous ranked
probability score by the quantiles 0.05, 0.15, ..., 0.95 in standard deviations of the target (lower
is better), `coverage` of the central 90 %. K is the best of several on a fifth of the training
rows, by the same score. Beside it, one HistGradientBoostingRegressor for each quantile, and least
squares with Gaussian errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from scipy.stats import norm
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression

from pickmix import GaussianMixture, MixtureRegressor
from pickmix_experiments.evidence import Line, Question, data_folder, timed

SETS = ("energy", "concrete", "kin8nm", "power-plant", "wine-quality-red")
# The column to predict, and columns that would give it away.
TARGETS = {"kin40k": (8, []), "cytometry": (15, []), "bike": (17, [4, 5, 15, 16])}
LEVELS = np.arange(0.05, 1.0, 0.1)


def cells(quick: bool) -> Iterator[Line]:
    for name in SETS[:1] if quick else SETS:
        for seed in range(1 if quick else 5):
            yield {"case": "density", "set": name, "seed": seed, "n_rows": 0}
    for name in ("bike",) if quick else TARGETS:
        for seed in range(1 if quick else 3):
            yield {
                "case": "quantiles",
                "set": name,
                "seed": seed,
                "n_rows": 1500 if quick else 25_000,
            }


def measure(case: str, set: str, seed: int, n_rows: int) -> Iterator[Line]:
    if case == "quantiles":
        yield from _quantiles(set, seed, n_rows)
        return
    with np.load(data_folder() / "uci-regression" / f"{set}.npz") as file:
        data, features, target = file["data"], file["features"].astype(int), int(file["target"])
        train, test = file[f"train_{seed}"].astype(int), file[f"test_{seed}"].astype(int)
    X, y = data[:, features], data[:, target]
    model, seconds = timed(lambda: MixtureRegressor(random_state=seed).fit(X[train], y[train]))
    rmse = float(np.sqrt(np.mean(np.square(model.predict(X[test]) - y[test]))))
    line = {"method": "mixture", "log_density": float(model.log_density(X[test], y[test]).mean())}
    yield line | {"rmse": rmse, "K": model.n_components_, **seconds}


def pinball(truth: np.ndarray, quantiles: np.ndarray) -> float:
    """Return twice the mean pinball loss of quantiles (N, levels)."""
    away = truth[:, None] - quantiles
    return float(2.0 * np.maximum(LEVELS * away, (LEVELS - 1.0) * away).mean())


def _quantiles(name: str, seed: int, n_rows: int) -> Iterator[Line]:
    with np.load(data_folder() / "tables" / f"{name}.npz") as file:
        rows = file["X"][np.random.default_rng(seed).permutation(len(file["X"]))[:n_rows]]
    target, dropped = TARGETS[name]
    rows = (rows - rows.mean(axis=0)) / np.maximum(rows.std(axis=0), 1e-12)
    order = [d for d in range(rows.shape[1]) if d not in (*dropped, target)]
    rows = rows[:, [*order, target]].astype(np.float64)
    train, test = np.split(rows, [len(rows) * 4 // 5])
    X, y, asked, truth = train[:, :-1], train[:, -1], test[:, :-1], test[:, -1]

    def answer(mixture: GaussianMixture, part: np.ndarray) -> np.ndarray:
        part = np.column_stack([part[:, :-1], np.full(len(part), np.nan)])
        found = mixture.predict_columns(part, part.shape[1] - 1, quantiles=LEVELS)[1]
        return np.asarray(found, dtype=np.float64).reshape(len(part), LEVELS.size)

    def by_mixture() -> np.ndarray:
        part, validation = np.split(train, [len(train) * 4 // 5])
        numbers = [K for K in (16, 64, 256) if len(part) >= 20 * K]
        fits = [GaussianMixture(K, random_state=seed).fit(part) for K in numbers]
        losses = [pinball(validation[:, -1], answer(fit, validation)) for fit in fits]
        return answer(fits[int(np.argmin(losses))], test)

    def by_boosting() -> np.ndarray:
        models = (
            HistGradientBoostingRegressor(loss="quantile", quantile=level, random_state=seed)
            for level in LEVELS
        )
        return np.sort(np.stack([m.fit(X, y).predict(asked) for m in models], axis=1), axis=1)

    def by_line() -> np.ndarray:
        model = LinearRegression().fit(X, y)
        spread = float((y - model.predict(X)).std())
        return np.asarray(model.predict(asked)[:, None] + spread * norm.ppf(LEVELS))

    methods: dict[str, Callable[[], np.ndarray]] = {"mixture": by_mixture}
    methods |= {"boosting, 100 trees": by_boosting, "linear": by_line}
    for method, call in methods.items():
        quantiles, seconds = timed(call)
        inside = (truth >= quantiles[:, 0]) & (truth <= quantiles[:, -1])
        line = {"method": method, "crps": pinball(truth, quantiles) / float(y.std())}
        yield line | {"coverage": float(inside.mean()), **seconds}


VALUES = "log_density rmse K crps coverage cpu_seconds"
NEEDS = "uci-regression/energy.npz tables/bike.npz"
QUESTION = Question(cells, measure, "case set method", VALUES, NEEDS)
