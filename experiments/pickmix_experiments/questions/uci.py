"""The paper's 19 UCI sets with K chosen on validation rows: pickmix and scikit-learn.

K is 1, 2, 4, ..., 128, as long as each component has two training rows; all else is default. Each
mixture is the one with the highest validation likelihood; `test` is its mean log-density of test
rows, seconds are those of all fits. Protocol "paper"; seeds are splits and starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sklearn.mixture import GaussianMixture as Baseline

from pickmix import GaussianMixture
from pickmix_experiments import uci
from pickmix_experiments.evidence import Line, Question, timed


def cells(quick: bool) -> Iterator[Line]:
    for name in ("iris", "wine", "ecoli") if quick else uci.NAMES:
        for seed in range(1 if quick else 3):
            yield {"set": name, "seed": seed}


def measure(set: str, seed: int) -> Iterator[Line]:
    split = uci.load(set, "paper", random_state=seed)
    numbers = [2**power for power in range(8) if 2 ** (power + 1) <= len(split.train)]

    def fit(kind: Any) -> Any:
        fits = [kind(K, random_state=seed).fit(split.train) for K in numbers]
        return max(fits, key=lambda mixture: mixture.score(split.validation))

    for method, kind in (("pickmix", GaussianMixture), ("scikit-learn", Baseline)):
        mixture, seconds = timed(fit, kind)
        line = {"method": method, "K": mixture.n_components}
        yield line | {"test": float(mixture.score(split.test)), **seconds}


QUESTION = Question(
    cells, measure, "set method", "test K seconds cpu_seconds", "loda/iris/normal.txt"
)
