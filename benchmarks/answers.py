"""Gaps, numbers and classes: MixtureImputer, MixtureRegressor, MixtureClassifier and others.

`impute`: six tables of the study of Jolicoeur-Martineau et al. (Forest Diffusion, 2024), as there:
four fifths of the rows, 20 % of the cells removed at random but none of the last column, columns
scaled to [0, 1]. `mae` is the mean absolute error of removed cells, of the mixture filled with
medians; `draws` that of draws; `best` that of the nearest of five draws of each row. Others run
here on the same gaps: one nearest neighbour, chained Bayesian ridge regressions (draws from their
posteriors) and chained forests (as missForest does). Published values of nine methods have other
splits and gaps; ranks put our values among them.

`regress`: five UCI tables with the splits of Gal and Ghahramani (2016): mean log-density of test
targets, and root mean squared error.

`classify`: five tables, half of the rows for testing (at most 4,000 for each half); accuracy and
log-loss, beside logistic regression and HistGradientBoosting, with all, 10 % and 1 % of the labels
(at least two per class).

    PICKMIX_DATA=... python benchmarks/answers.py TASK [--seeds 3] [--sets NAME ...]
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
from reporting import Line, begin, data_folder, now, parser_for, print_table, write_lines
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestRegressor
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from pickmix import MixtureClassifier, MixtureImputer, MixtureRegressor

IMPUTED = {
    "airfoil": "airfoil_self_noise",
    "blood": "blood_transfusion",
    "climate": "climate_model_crashes",
    "libras": "libras",
    "parkinsons": "parkinsons",
    "wine": "wine_quality_red",
}
REGRESSED = ("concrete", "energy", "kin8nm", "power-plant", "wine-quality-red")
CLASSIFIED = ("adult", "magic", "blood", "climate", "digits")
N_DRAWS, MOST_ROWS = 5, 4000


def numbers(frame: pd.DataFrame, low: np.ndarray, width: np.ndarray) -> np.ndarray:
    return (frame.to_numpy(np.float64) - low) / width


def impute(name: str, seed: int) -> list[Line]:
    table = pd.read_csv(data_folder() / "imputation" / f"{name}.csv", index_col=0)
    rng = np.random.default_rng(seed)
    table = table.iloc[np.sort(rng.permutation(len(table))[: len(table) * 4 // 5])]
    values = table.to_numpy(np.float64)
    low, width = values.min(axis=0), np.ptp(values, axis=0)
    kept = width > 0.0
    table, low, width = table.loc[:, kept], low[kept], width[kept]
    hidden = rng.random(table.shape) < 0.2
    hidden[:, -1] = False
    holes = table.astype("float64").mask(hidden)
    scaled, truth = numbers(holes, low, width), numbers(table, low, width)

    def line(method: str, tables: list[np.ndarray], started: float, guess: Any = None) -> Line:
        errors = np.where(hidden, np.abs(np.stack(tables) - truth), 0.0)
        n_hidden = np.count_nonzero(hidden)
        draws = errors.sum() / (n_hidden * len(tables))
        mae = draws if guess is None else np.abs(guess - truth)[hidden].mean()
        best = errors.sum(axis=2).min(axis=0).sum() / n_hidden
        line = {"set": name, "seed": seed, "method": method, "mae": mae, "draws": draws}
        return line | {"best": best, "seconds": now() - started}

    started = now()
    # As a frame: columns of zeros and ones are classes.
    imputer = MixtureImputer(strategy="median", random_state=seed).fit(holes)
    guess = numbers(imputer.transform(holes), low, width)
    draws = imputer.sample(holes, N_DRAWS, random_state=seed)
    draws = [numbers(drawn, low, width) for drawn in draws]
    lines = [line("mixture", draws, started, guess)]
    started = now()
    lines.append(line("nearest", [KNNImputer(n_neighbors=1).fit_transform(scaled)], started))
    started = now()
    chained = [
        IterativeImputer(sample_posterior=True, random_state=s).fit_transform(scaled)
        for s in range(N_DRAWS)
    ]
    lines.append(line("ridges", chained, started))
    if table.shape[1] < 40:
        started = now()
        forest = RandomForestRegressor(50, max_features="sqrt", random_state=seed, n_jobs=1)
        filled = IterativeImputer(forest, max_iter=4, random_state=seed).fit_transform(scaled)
        lines.append(line("forests", [filled], started))
    return lines


def ranks(lines: list[Line]) -> list[Line]:
    """Mean ranks of nine published methods and the mixture."""
    published = pd.read_csv(data_folder() / "imputation" / "published.csv")
    published = published[published.method != "oracle"]
    ours = pd.DataFrame(lines).query("method == 'mixture'").groupby("set")[["mae", "best"]].mean()
    rows = []
    for name, values in ours.iterrows():
        part = published[published.dataset == IMPUTED[str(name)]].set_index("method")
        for column, value in (("AvgMAE", values["mae"]), ("MinMAE", values["best"])):
            all_values = part[column].astype(float)
            all_values["mixture"] = value
            rows.append(all_values.rank().rename(column))
    found = pd.DataFrame(rows).groupby(level=0).mean().T
    return found.reset_index(names="method").to_dict("records")


def regress(name: str, seed: int) -> list[Line]:
    with np.load(data_folder() / "uci-regression" / f"{name}.npz") as file:
        data, features, target = file["data"], file["features"].astype(int), int(file["target"])
        train, test = file[f"train_{seed}"].astype(int), file[f"test_{seed}"].astype(int)
    X, y = data[:, features], data[:, target]
    started = now()
    model = MixtureRegressor(random_state=seed).fit(X[train], y[train])
    seconds = now() - started
    rmse = np.sqrt(np.mean(np.square(model.predict(X[test]) - y[test])))
    density = model.log_density(X[test], y[test]).mean()
    return [
        {"set": name, "seed": seed, "log_density": density, "rmse": rmse}
        | {"K": model.n_components_, "seconds": seconds}
    ]


def classes(name: str) -> tuple[pd.DataFrame, np.ndarray]:
    if name == "digits":
        digits = load_digits(as_frame=True)
        return digits.data.loc[:, digits.data.std() > 0.0], digits.target.to_numpy()
    place = (
        f"synthetic/{name}-train.csv" if name in ("adult", "magic") else f"imputation/{name}.csv"
    )
    frame = pd.read_csv(data_folder() / place)
    if not place.startswith("synthetic"):
        frame = frame.iloc[:, 1:]
    frame.columns = frame.columns.astype(str)
    return frame.iloc[:, :-1], np.unique(frame.iloc[:, -1].to_numpy(), return_inverse=True)[1]


def classify(name: str, seed: int) -> list[Line]:
    X, y = classes(name)
    order = np.random.default_rng(seed).permutation(len(y))
    half = min(len(y) // 2, MOST_ROWS)
    train, test = order[:half], order[half : 2 * half]
    X_train, X_test, y_test = X.iloc[train], X.iloc[test], y[test]
    encoded = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), make_column_selector(dtype_exclude="number")),
        (StandardScaler(), make_column_selector(dtype_include="number")),
        sparse_threshold=0.0,
    )
    lines = []
    for share in (1.0, 0.1, 0.01):
        labels = y[train].copy()
        known = np.zeros(half, dtype=bool)
        known[: max(2, int(share * half))] = True
        for level in np.unique(y):
            known[np.flatnonzero(labels == level)[:2]] = True
        labels[~known] = -1
        methods: dict[str, Any] = {
            "mixture": MixtureClassifier(random_state=seed),
            "logistic": make_pipeline(encoded, LogisticRegression(max_iter=1000)),
            "boosting": make_pipeline(encoded, HistGradientBoostingClassifier(random_state=seed)),
        }
        for method, model in methods.items():
            started = now()
            if method == "mixture":
                model.fit(X_train, labels)
            else:
                model.fit(X_train[known], labels[known])
            seconds = now() - started
            shares = np.clip(model.predict_proba(X_test), 1e-6, 1.0)
            shares /= shares.sum(axis=1, keepdims=True)
            accuracy = np.mean(model.classes_[shares.argmax(axis=1)] == y_test)
            line = {"set": name, "seed": seed, "labels": share, "method": method}
            line |= {"accuracy": accuracy, "log_loss": log_loss(y_test, shares)}
            lines.append(line | {"seconds": seconds})
    return lines


def main() -> None:
    parser = parser_for(__doc__, seeds=3)
    parser.add_argument("task", choices=("impute", "regress", "classify"))
    parser.add_argument("--sets", nargs="+", help="only these tables")
    arguments = begin(parser)
    warnings.simplefilter("ignore")
    run, sets, by = {
        "impute": (impute, tuple(IMPUTED), ["set", "method"]),
        "regress": (regress, REGRESSED, ["set"]),
        "classify": (classify, CLASSIFIED, ["set", "labels", "method"]),
    }[arguments.task]
    lines: list[Line] = []
    for name in arguments.sets or sets:
        for seed in range(1 if arguments.quick else arguments.seeds):
            lines += run(name, seed)
            write_lines(arguments.out, f"answers_{arguments.task}.csv", lines)
        part = pd.DataFrame([line for line in lines if line["set"] == name])
        means = part.drop(columns="seed").groupby(by, sort=False).mean().reset_index()
        print_table(name, means.to_dict("records"))
    if arguments.task == "impute":
        print_table("Mean ranks among published methods", ranks(lines))


if __name__ == "__main__":
    main()
