"""How many components? The path over K from one fit with too many, against fits with the right K.

Known: generated mixtures and BIRCH1; 2 K components are fitted, the path over the merge tree
chooses a number on validation rows, and reduced mixtures are compared on test rows with a fit that
knows K.
`merged` is the mixture as merges made it, `refitted` after at most five passes over training rows.
Real tables: 256 components are reduced to the chosen number, and compared with the best of fits
with 8, 16, ..., 256 on the same validation rows. Training, validation and test rows: 60, 20, 20 %.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pickmix import GaussianMixture, path
from pickmix.data import rotated
from pickmix_experiments.datasets import standardised
from pickmix_experiments.evidence import Line, Question, data_folder, timed

TABLES = "shuttle cytometry bike mammography skin tamielectric uk-accidents kin40k"
_MOST_ROWS = 30_000


def cells(quick: bool) -> Iterator[Line]:
    for case, K in (("separate", 50), ("overlapping", 50), ("separate", 300), ("overlapping", 300)):
        if not quick or K == 50:
            yield {"case": case, "K": K, "rows_each": 100 if quick else 333, "seed": 0}
    for case in ("uk-accidents",) if quick else ("birch1", *TABLES.split()):
        K = 100 if case == "birch1" else 128
        yield {"case": case, "K": K, "rows_each": 20 if quick else 0, "seed": 0}


def _read(case: str, K: int, rows_each: int, seed: int) -> np.ndarray:
    if case in ("separate", "overlapping"):
        truth = rotated.generate(K, 8, 0.09 if case == "separate" else 0.2, random_state=seed)
        return np.asarray(truth.sample(rows_each * K, random_state=seed + 1)[0])
    rng = np.random.default_rng(seed)
    if case == "birch1":
        return rng.permutation(np.loadtxt(data_folder() / "birch" / "birch1.txt")) / 1e5
    with np.load(data_folder() / "tables" / f"{case}.npz") as file:
        rows = file["X"][rng.permutation(len(file["X"]))[: K * rows_each or _MOST_ROWS]]
    rows = rows[:, rows.std(axis=0) > 1e-9]
    return standardised(rows, rows).train


def measure(case: str, K: int, rows_each: int, seed: int) -> Iterator[Line]:
    rows = np.random.default_rng(seed).permutation(_read(case, K, rows_each, seed))
    train, validation, test = np.split(rows, [int(0.6 * len(rows)), int(0.8 * len(rows))])

    def fit(K: int) -> GaussianMixture:
        return GaussianMixture(K, random_state=seed).fit(train)

    mixture, seconds = timed(fit, 2 * K)
    (chosen, refitted), following = timed(
        lambda: (
            (number := path(mixture, validation, train).choose()),
            mixture.reduce(number, train),
        )
    )
    line = {"method": "path", "chosen": chosen, "test": refitted.score(test)}
    yield line | {"seconds": seconds["seconds"] + following["seconds"]}
    if case in TABLES.split():
        numbers = [K for K in (8, 16, 32, 64, 128, 256) if len(train) >= 20 * K]
        fits, seconds = timed(lambda: [fit(K) for K in numbers])
        best = max(fits, key=lambda mixture: mixture.score(validation))
        line = {"method": "best of six fits", "chosen": best.n_components}
        yield line | {"test": best.score(test), **seconds}
        return
    yield {"method": "merged to the true K", "test": mixture.reduce(K).score(test)}
    refitted, seconds = timed(mixture.reduce, K, train)
    yield {"method": "refitted with the true K", "test": refitted.score(test), **seconds}
    right, seconds = timed(fit, K)
    yield {"method": "fit with the true K", "test": right.score(test), **seconds}


QUESTION = Question(cells, measure, "case K method", "chosen test seconds", "tables/shuttle.npz")
