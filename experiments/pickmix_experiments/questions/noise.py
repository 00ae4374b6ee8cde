"""Rows with known noise, each its own: against ignoring it, and against exact EM.

Rotated ellipsoids in 6 columns, each cell with Gaussian noise of its own standard deviation, 0.5 to
1.5 times the width of the components. `held_out` is the mean log-density of new rows without noise
at the end, `best` the best on the way. EM is extreme deconvolution (Bovy, Hogg and Roweis 2011), in
NumPy (`deconvolution.py`), from k-means, until its likelihood per row rises by less than 1e-4 or
time is up. Clocks stop while values are measured; seconds are those of the processor. `to_common`
is when a fit came to what both it and EM reach, less 0.01.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from pickmix import GaussianMixture
from pickmix.data.rotated import generate
from pickmix_experiments import deconvolution
from pickmix_experiments.datasets import GaussianParameters
from pickmix_experiments.evidence import Line, Question

_WIDTH, _SOME = 0.1, 5_000
Curve = list[tuple[float, float]]


def cells(quick: bool) -> Iterator[Line]:
    sizes = (20, 3_000, 3.0) if quick else (200, 40_000, 300.0)
    for seed in range(1 if quick else 3):
        yield {"seed": seed} | dict(zip(("K", "n_rows", "most_seconds"), sizes, strict=True))


def _fit(X: np.ndarray, noise: np.ndarray | None, K: int, seed: int, new: np.ndarray) -> Any:
    """Return a fitted mixture's parameters, its curve over time, and its number of passes."""
    curve: Curve = []
    measuring, started = 0.0, time.process_time()

    def watch(info: Any) -> None:
        nonlocal measuring
        begun = time.process_time()
        curve.append((begun - started - measuring, info.estimator().score(new[:_SOME])))
        measuring += time.process_time() - begun

    mixture = GaussianMixture(K, random_state=seed, callbacks=watch).fit(X, noise=noise)
    curve.append((time.process_time() - started - measuring, mixture.score(new[:_SOME])))
    parameters = mixture.weights_, mixture.means_, mixture.covariances_
    return parameters, curve, float(mixture.trace_[-1]["epoch"])


def _deconvolve(
    X: np.ndarray, noise: np.ndarray, K: int, seed: int, new: np.ndarray, most_seconds: float
) -> Any:
    curve: Curve = []
    last: list[deconvolution.Parameters] = []

    def watch(model: deconvolution.Parameters, seconds: float) -> None:
        last[:] = [model]
        curve.append((seconds, GaussianParameters(*model).score_samples(new[:_SOME]).mean()))

    n_iterations = deconvolution.fit(X, noise, K, seed, most_seconds, watch)
    return last[0], curve, float(n_iterations)


def measure(seed: int, K: int, n_rows: int, most_seconds: float) -> Iterator[Line]:
    rng = np.random.default_rng(seed)
    truth = generate(K, 6, _WIDTH, random_state=rng)
    clean, new = (truth.sample(n, rng)[0] for n in (n_rows, 20_000))
    deviations = _WIDTH * rng.uniform(0.5, 1.5, clean.shape)
    X, noise = clean + deviations * rng.standard_normal(clean.shape), np.square(deviations)
    # The first fit with noise loads kernels.
    GaussianMixture(K, max_iter=1, random_state=seed).fit(X, noise=noise)
    fits = {
        "fit(X, noise=)": _fit(X, noise, K, seed, new),
        "exact EM": _deconvolve(X, noise, K, seed, new, most_seconds),
        "fit(X), noise ignored": _fit(X, None, K, seed, new),
        "rows without noise": _fit(clean, None, K, seed, new),
    }
    highest = {method: max(value for _, value in fit[1]) for method, fit in fits.items()}
    for method, (parameters, curve, passes) in fits.items():
        level = min(highest[method], highest["exact EM"]) - 0.01
        yield {
            "method": method,
            "held_out": float(GaussianParameters(*parameters).score_samples(new).mean()),
            "truth": float(truth.score_samples(new).mean()),
            "best": highest[method],
            "cpu_seconds": curve[-1][0],
            "pass_seconds": curve[-1][0] / passes,
            "to_common": next(seconds for seconds, value in curve if value >= level),
        }


QUESTION = Question(
    cells, measure, "method", "held_out truth best cpu_seconds pass_seconds to_common"
)
