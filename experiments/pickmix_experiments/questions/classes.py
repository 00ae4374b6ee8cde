"""Classes from all, 10 % and 1 % of the labels: `MixtureClassifier`, regression and boosting.

Half of the rows for testing, at most 4,000 in each half; at least two labels per class. Others see
labelled rows only. Accuracy and log-loss of test rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from pickmix import MixtureClassifier
from pickmix_experiments.evidence import Line, Question, data_folder, timed

SETS = {
    "adult": "synthetic/adult-train.csv",
    "magic": "synthetic/magic-train.csv",
    "blood": "imputation/blood.csv",
    "climate": "imputation/climate.csv",
    "digits": "",
}


def cells(quick: bool) -> Iterator[Line]:
    for name in ("blood",) if quick else SETS:
        for labels in (1.0, 0.1) if quick else (1.0, 0.1, 0.01):
            for seed in range(1 if quick else 3):
                yield {"set": name, "labels": labels, "seed": seed}


def _read(name: str) -> tuple[pd.DataFrame, np.ndarray]:
    if name == "digits":
        digits = load_digits(as_frame=True)
        return digits.data.loc[:, digits.data.std() > 0.0], digits.target.to_numpy()
    index = 0 if SETS[name].startswith("imputation") else None
    frame = pd.read_csv(data_folder() / SETS[name], index_col=index)
    frame.columns = frame.columns.astype(str)
    return frame.iloc[:, :-1], np.unique(frame.iloc[:, -1].to_numpy(), return_inverse=True)[1]


def measure(set: str, labels: float, seed: int) -> Iterator[Line]:
    X, y = _read(set)
    order, half = np.random.default_rng(seed).permutation(len(y)), min(len(y) // 2, 4000)
    train, test = order[:half], order[half : 2 * half]
    known = np.arange(half) < max(2, int(labels * half))
    for level in np.unique(y):
        known[np.flatnonzero(y[train] == level)[:2]] = True
    encoded = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), make_column_selector(dtype_exclude="number")),
        (StandardScaler(), make_column_selector(dtype_include="number")),
        sparse_threshold=0.0,
    )
    methods: dict[str, Any] = {
        "mixture": MixtureClassifier(random_state=seed),
        "logistic": make_pipeline(encoded, LogisticRegression(max_iter=1000)),
        "boosting": make_pipeline(encoded, HistGradientBoostingClassifier(random_state=seed)),
    }
    for method, model in methods.items():
        rows, its_labels = train[known], y[train[known]]
        if method == "mixture":
            rows, its_labels = train, np.where(known, y[train], -1)
        _, seconds = timed(model.fit, X.iloc[rows], its_labels)
        shares = np.clip(model.predict_proba(X.iloc[test]), 1e-6, 1.0)
        shares /= shares.sum(axis=1, keepdims=True)
        accuracy = float(np.mean(model.classes_[shares.argmax(axis=1)] == y[test]))
        line = {"method": method, "accuracy": accuracy, "log_loss": log_loss(y[test], shares)}
        yield line | seconds


NEEDS = "imputation/blood.csv synthetic/adult-train.csv"
QUESTION = Question(cells, measure, "set labels method", "accuracy log_loss cpu_seconds", NEEDS)
