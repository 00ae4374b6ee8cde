"""How many rows `MixtureDetector` flags, of rows where that is known.

Rows of ten overlapping groups in five columns. `planted`: 5 % of the rows of the fit are uniform
over twice the range of the columns; `clean` and `novelty` are fits without them, by default and
with novelty=True. `flagged` is the share of the rows of the fit that contamination=0.05 flags,
`hits` that of planted ones, `alarms` that of 20,000 new clean rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pickmix import MixtureDetector
from pickmix.data.mixsim import generate
from pickmix_experiments.evidence import Line, Question, timed

D, SHARE = 5, 0.05


def cells(quick: bool) -> Iterator[Line]:
    for n_rows in (200,) if quick else (200, 1000, 10_000):
        for seed in range(1 if quick else 5):
            yield {"n_rows": n_rows, "seed": seed}


def measure(n_rows: int, seed: int) -> Iterator[Line]:
    mixture, rng = generate(10, D, 0.05, random_state=seed), np.random.default_rng(seed)
    clean, new = (mixture.sample(n, random_state=rng)[0] for n in (n_rows, 20_000))
    n_planted = round(SHARE * n_rows)
    low, high = clean.min(axis=0), clean.max(axis=0)
    planted = rng.uniform(1.5 * low - 0.5 * high, 1.5 * high - 0.5 * low, (n_planted, D))
    contaminated = np.concatenate([planted, clean[n_planted:]])
    for method, rows in (("planted", contaminated), ("clean", clean), ("novelty", clean)):
        detector = MixtureDetector(SHARE, random_state=seed, novelty=method == "novelty")
        _, seconds = timed(detector.fit, rows)
        line = {"method": method, "flagged": float(detector.labels_.mean())}
        line |= {"alarms": float(np.mean(detector.predict(new) == -1)), **seconds}
        if method == "planted":
            line["hits"] = float(detector.labels_[:n_planted].mean())
        yield line


QUESTION = Question(cells, measure, "method n_rows", "flagged hits alarms cpu_seconds")
