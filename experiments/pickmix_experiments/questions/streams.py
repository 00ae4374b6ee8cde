"""Streams by `partial_fit`, a distribution that changes, and approximate queries.

`stream`: batches of 50,000 rows of 300 overlapping ellipsoids in 8 columns, beside a batch fit to a
tenth of the rows and the mixture itself. `change`: a constant step of 0.2 while the rows change to
those of another mixture. `queries`: errors and relative time of few candidates, against all.
`value` is a mean log-density of new rows but for queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pickmix import GaussianMixture
from pickmix.data import rotated
from pickmix_experiments.evidence import Line, Question, timed
from pickmix_experiments.questions.trees import mixture_of
from pickmix_experiments.runner import peak_bytes

D, K, BATCH, STEP = 8, 300, 50_000, 0.2


def cells(quick: bool) -> Iterator[Line]:
    yield {"case": "stream", "batches": 6 if quick else 200}
    yield {"case": "change", "batches": 4 if quick else 30}
    for n_components in () if quick else (300, 3000):
        yield {"case": "queries", "batches": 0, "K": n_components}


def measure(case: str, batches: int, K: int = K) -> Iterator[Line]:
    if case == "queries":
        yield from _queries(K)
        return
    truth, changed = (rotated.generate(K, D, 0.2, random_state=seed) for seed in (0, 7))
    new, new_changed = (part.sample(20_000, random_state=1)[0] for part in (truth, changed))
    step_size: Any = STEP if case == "change" else "auto"
    mixture = GaussianMixture(K, random_state=0, step_size=step_size)
    spent = {"seconds": 0.0, "cpu_seconds": 0.0}
    for batch in range(batches):
        X, _ = truth.sample(BATCH, random_state=1000 + batch)
        _, seconds = timed(mixture.partial_fit, X)
        spent = {key: spent[key] + seconds[key] for key in spent}
        if case == "stream" and batch + 1 in (1, 5, 10, 50, batches):
            line = {"method": f"stream, {batch + 1} batches", "value": mixture.score(new)}
            yield line | spent | {"megabytes": peak_bytes() / 1e6}
    if case == "stream":
        X, _ = truth.sample(batches * BATCH // 10, random_state=5)
        fit, seconds = timed(GaussianMixture(K, random_state=0).fit, X)
        yield {"method": "batch fit to a tenth", "value": fit.score(new), **seconds}
        yield {"method": "true mixture", "value": float(truth.score_samples(new).mean())}
        return
    yield {"method": "before the change", "value": mixture.score(new)}
    yield {"method": "the other rows", "value": mixture.score(new_changed)}
    for batch in range(batches):
        mixture.partial_fit(changed.sample(BATCH, random_state=2000 + batch)[0])
        if batch + 1 in (1, 5, 10, batches):
            yield {"method": f"{batch + 1} batches after", "value": mixture.score(new_changed)}
    value = float(changed.score_samples(new_changed).mean())
    yield {"method": "true mixture after", "value": value}


def _queries(K: int) -> Iterator[Line]:
    mixture = mixture_of(K, 0.2 if K == 300 else 0.12)
    rows = mixture.sample(20_000)[0]

    def ask(n: int | None) -> tuple[np.ndarray, np.ndarray]:
        return mixture.score_samples(rows, n_candidates=n), mixture.predict(rows, n_candidates=n)

    (exact, best), all_seconds = timed(ask, None)
    for n in (64, 128, 256, 512):
        (bound, found), seconds = timed(ask, n)
        yield {
            "method": f"{n} candidates",
            "error": float(np.mean(exact - bound)),
            "equal": float(np.mean(found == best)),
            "time_ratio": seconds["seconds"] / all_seconds["seconds"],
        }


QUESTION = Question(
    cells, measure, "case K method", "value seconds megabytes error equal time_ratio"
)
