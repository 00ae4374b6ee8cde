"""Fits to rows with missing cells, against filling the cells first.

Rows of rotated ellipsoids in 8 columns, separated or overlapping; cells are removed completely at
random, at least one stays in each row. `held_out` is the mean log-density of 20,000 complete new
rows, `truth` that of the mixture that made them; seconds are those of filling and fitting.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, SimpleImputer

from pickmix import GaussianMixture
from pickmix.data.rotated import generate
from pickmix_experiments.evidence import Line, Question, timed

WIDTHS = {"separated": 0.09, "overlapping": 0.2}


def remove(rows: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    gone = rng.random(rows.shape) < share
    empty = np.flatnonzero(gone.all(axis=1))
    gone[empty, rng.integers(rows.shape[1], size=empty.size)] = False
    return np.where(gone, np.nan, rows)


def cells(quick: bool) -> Iterator[Line]:
    sizes = {"K": 60, "n_rows": 6_000} if quick else {"K": 300, "n_rows": 60_000}
    for setting in WIDTHS:
        for missing in (0.3,) if quick else (0.1, 0.3, 0.5):
            for seed in range(1 if quick else 3):
                yield {"setting": setting, "missing": missing, "seed": seed, **sizes}


def measure(setting: str, missing: float, seed: int, K: int, n_rows: int) -> Iterator[Line]:
    rng = np.random.default_rng(seed)
    truth = generate(K, 8, WIDTHS[setting], random_state=rng)
    complete, new = (truth.sample(n, rng)[0] for n in (n_rows, 20_000))
    rows = remove(complete, missing, rng)
    fillers: dict[str, Any] = {
        "complete rows": None,
        "fit with gaps": None,
        "means filled in": SimpleImputer(),
        "IterativeImputer": IterativeImputer(random_state=seed),
    }

    def fit(X: np.ndarray, filler: Any) -> GaussianMixture:
        X = X if filler is None else filler.fit_transform(X)
        return GaussianMixture(K, random_state=seed).fit(X)

    for method, filler in fillers.items():
        X = complete if method == "complete rows" else rows
        mixture, seconds = timed(fit, X, filler)
        passes = mixture.trace_[-1]
        line = {"method": method, "held_out": mixture.score(new), **seconds}
        line |= {"pass_seconds": float(passes["seconds"] / passes["epoch"])}
        yield line | {"truth": float(truth.score_samples(new).mean())}


QUESTION = Question(
    cells, measure, "setting missing method", "held_out truth seconds cpu_seconds pass_seconds"
)
