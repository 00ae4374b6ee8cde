"""Seconds and memory of the merge tree of K full Gaussians in 8 columns.

Means are uniform in the unit cube. SciPy's linkage of the means (Ward), which needs all pairs, is
measured up to 20,000 components. Memory is the rise of the peak of the process.
"""

from __future__ import annotations

from collections.abc import Iterator

from scipy.cluster.hierarchy import linkage

from pickmix import GaussianMixture
from pickmix.data import rotated
from pickmix_experiments.evidence import Line, Question, timed
from pickmix_experiments.runner import peak_bytes


def mixture_of(K: int, width: float = 0.2) -> GaussianMixture:
    """Make a known mixture as if it had been fitted."""
    truth = rotated.generate(K, 8, width, random_state=0)
    mixture = GaussianMixture(K, random_state=0)
    mixture.weights_, mixture.means_ = truth.weights, truth.means
    mixture.covariances_, mixture.n_features_in_ = truth.covariances, 8
    return mixture


def cells(quick: bool) -> Iterator[Line]:
    for K in (1000,) if quick else (1000, 10_000, 100_000):
        yield {"K": K}


def measure(K: int) -> Iterator[Line]:
    mixture = mixture_of(K)
    mixture_of(1000).merge_tree()
    calls: Line = {"merge_tree": mixture.merge_tree}
    calls["scipy"] = lambda: linkage(mixture.means_, "ward")
    for method, call in calls.items():
        if method == "merge_tree" or K <= 20_000:
            before = peak_bytes()
            _, seconds = timed(call)
            yield {"method": method, **seconds, "megabytes": (peak_bytes() - before) / 1e6}


QUESTION = Question(cells, measure, "K method", "seconds cpu_seconds megabytes")
