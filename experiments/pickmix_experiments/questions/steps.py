"""Seconds of a step of MHSAEM-U: against an EM iteration of scikit-learn, and against K.

`paper`: steps in the time of an iteration at the paper's setting (D, K, N, omega, B, M) = (10, 100,
10k, 0.1, 200, 2), with BLAS as it is and with one thread; medians of pairs in alternation. `K`: the
same step for other K, from rows as start.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sklearn.mixture import GaussianMixture as Baseline
from threadpoolctl import threadpool_limits

from pickmix import GaussianMixture
from pickmix.data import mixsim
from pickmix_experiments.evidence import Line, Question, timed

D, B, M = 10, 200, 2


def iteration_seconds(X: np.ndarray, K: int) -> float:
    """Seconds of an EM iteration, by the difference of a long and a short run."""

    def run(n_iterations: int) -> float:
        model = Baseline(
            K, max_iter=n_iterations, tol=0.0, init_params="random_from_data", random_state=0
        )
        return float(timed(model.fit, X)[1]["seconds"])

    return (run(11) - run(1)) / 10


def step_seconds(X: np.ndarray, K: int, n_steps: int, start: str) -> float:
    """Seconds of work per step in the second half of a fit."""
    settings: Line = {"proposal": "uniform", "batch_size": B, "n_samples": M, "step_size": "paper"}
    settings |= {"evaluate_every": [n_steps // 2, n_steps], "max_steps": n_steps, "tol": 0.0}
    mixture = GaussianMixture(K, init_params=start, random_state=0, **settings).fit(X)
    first, last = mixture.trace_[-2:]
    return float((last["seconds"] - first["seconds"]) / (last["step"] - first["step"]))


def cells(quick: bool) -> Iterator[Line]:
    sizes = {"rounds": 1, "n_steps": 100} if quick else {"rounds": 5, "n_steps": 2000}
    yield {"case": "paper", "K": 100, **sizes}
    for K in (100, 1000) if quick else (100, 1000, 10_000, 100_000):
        yield {"case": "K", "K": K, **sizes}


def measure(case: str, K: int, rounds: int, n_steps: int) -> Iterator[Line]:
    if case == "K":
        rng = np.random.default_rng(0)
        means = rng.random((K, D))
        labels = rng.integers(0, K, max(200_000, 2 * K))
        # Components are as wide as their distance to the next ones, whatever K.
        X = means[labels] + 0.3 * K ** (-1.0 / D) * rng.normal(size=(len(labels), D))
        times = [step_seconds(X, K, n_steps, "random_from_data") for _ in range(rounds)]
        yield {"method": "step", "step_seconds": float(np.median(times))}
        return
    X, _ = mixsim.generate(K, D, 0.1, random_state=0).sample(10_000, random_state=0)
    step_seconds(X, K, n_steps, "paper")
    for threads in (None, 1):
        with threadpool_limits(threads, user_api="blas"):
            pairs = [
                (iteration_seconds(X, K), step_seconds(X, K, n_steps, "paper"))
                for _ in range(rounds)
            ]
        iteration, step = np.median(pairs, axis=0)
        line: Line = {"method": "BLAS, one thread" if threads else "BLAS"}
        line |= {"iteration_seconds": float(iteration), "step_seconds": float(step)}
        yield line | {"ratio": float(np.median([a / b for a, b in pairs]))}


QUESTION = Question(cells, measure, "case K method", "iteration_seconds step_seconds ratio")
