"""The paper's 19 UCI sets: Gaussians, flows and networks as they come, under a common noise floor.

Gaps between the floors of two families look like gains where columns repeat values. So normal noise
of `noise` (in deviations of a column) is added to all rows, those of the test too: then no model
gains by narrow components. Everything chooses its number of components. Protocol "paper"; the same
rows, with and without noise. All fits have the training and the validation rows, and set apart
what they need.
"""

from __future__ import annotations

import time
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np

from pickmix import FlowMixture, GaussianMixture, SumProductTransformNetwork
from pickmix_experiments import uci
from pickmix_experiments.evidence import Line, Question, timed


def cells(quick: bool) -> Iterator[Line]:
    for noise in (0.01,) if quick else (0.01, 0.0):
        for seed in range(1 if quick else 3):
            for name in ("iris",) if quick else uci.NAMES:
                yield {"set": name, "seed": seed, "noise": noise}


def measure(set: str, seed: int, noise: float) -> Iterator[Line]:
    split = uci.load(set, "paper", random_state=seed)
    rng = np.random.default_rng([seed, 29])
    rows, test = (
        part + noise * rng.normal(size=part.shape)
        for part in (np.concatenate([split.train, split.validation]), split.test)
    )
    mixtures: tuple[Any, ...] = (
        GaussianMixture("auto"),
        FlowMixture(),
        SumProductTransformNetwork(),
    )
    from pickmix.gradient import engine

    # Seconds of compilation by the clock of the others.
    clock = types.SimpleNamespace(perf_counter=time.process_time)
    for method, mixture in zip(("gaussians", "flows", "networks"), mixtures, strict=True):
        mixture.random_state = seed
        with mock.patch.object(engine, "time", clock):
            _, seconds = timed(mixture.fit, rows)
        line = {"method": method, "test": float(mixture.score(test))}
        line["cpu_seconds"] = seconds["cpu_seconds"] - mixture.compile_seconds_
        values = (getattr(mixture, f"{name}_validation_", 0.0) for name in ("best", "start"))
        line |= {"K": len(mixture.weights_), "median": median(mixture, test)}
        yield line | {"bent": len({*values}) == 2}


def median(mixture: Any, test: np.ndarray) -> float:
    """Median over rows: one row outside of all components may take thousands from the mean."""
    return float(np.median(mixture.score_samples(test)))


QUESTION = Question(
    cells, measure, "noise set method", "test median K cpu_seconds", "loda/iris/normal.txt"
)
