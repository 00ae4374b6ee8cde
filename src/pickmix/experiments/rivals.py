"""Rivals: ways to fit a Gaussian mixture with full covariances, behind one signature."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.estimators.gaussian_mixture import GaussianMixture
from pickmix.experiments import other_libraries
from pickmix.experiments.fitted import Fitted, Record
from pickmix.experiments.scoring import GaussianParameters

FitFunction = Callable[[np.ndarray, int, int, Record], Fitted]


@dataclass(frozen=True)
class Rival:
    """One contender.

    Attributes
    ----------
    name : str
    summary : str
    fit : callable
        (X (N, D), K, seed, record) -> `Fitted`. It may call `record` on the way.
    dense : bool
        Evaluates every component on every row. Where K is very large it does not take part.
    needs : str or None
        The module that must be there.
    packages : tuple of str
        Packages whose versions belong to a result, beyond numpy, scikit-learn and pickmix.
    """

    name: str
    summary: str
    fit: FitFunction
    dense: bool
    needs: str | None = None
    packages: tuple[str, ...] = ()

    @property
    def installed(self) -> bool:
        """Whether what it needs is there."""
        return self.needs is None or importlib.util.find_spec(self.needs) is not None


def _fit_ours(**parameters: Any) -> FitFunction:
    """`pickmix.GaussianMixture` with some parameters, the rest at their defaults."""

    def fit(X: np.ndarray, n_components: int, seed: int, record: Record) -> Fitted:
        def watch(info: Any) -> None:
            record(info.evaluations, lambda: _parameters(info.estimator()))

        model = GaussianMixture(n_components, random_state=seed, callbacks=watch, **parameters)
        model.fit(X)
        return Fitted(
            _parameters(model),
            model.outcome_,
            evaluations=model.n_component_evaluations_,
            compile_seconds=model.compile_seconds_,
            work_seconds=model.start_seconds_ + float(model.trace_["seconds"][-1:].sum()),
        )

    return fit


def _fit_sklearn(init_params: str, n_blas_threads: int | None = None) -> FitFunction:
    """scikit-learn's mixture, at its defaults but for the start and the threads of BLAS."""

    def fit(X: np.ndarray, n_components: int, seed: int, record: Record) -> Fitted:
        from sklearn.mixture import GaussianMixture as SklearnMixture
        from threadpoolctl import threadpool_limits

        model = SklearnMixture(n_components, init_params=init_params, random_state=seed)
        with threadpool_limits(n_blas_threads, user_api="blas"):
            model.fit(X)
        # An E-step per iteration, and one for the labels at the end.
        evaluations = (model.n_iter_ + 1) * n_components * X.shape[0]
        outcome = "converged" if model.converged_ else "max_iter"
        return Fitted(_parameters(model), outcome, evaluations=evaluations)

    return fit


def _parameters(model: Any) -> GaussianParameters:
    return GaussianParameters(model.weights_, model.means_, model.covariances_)


def _ours(name: str, summary: str, *, dense: bool, **parameters: Any) -> Rival:
    return Rival(name, summary, _fit_ours(**parameters), dense, packages=("numba",))


def _sklearn(start: str, summary: str, n_blas_threads: int | None = None) -> Rival:
    name = f"sklearn-{start}" + ("" if n_blas_threads is None else "-one-thread")
    return Rival(name, summary, _fit_sklearn(start, n_blas_threads), dense=True)


_ALL = (
    _sklearn("kmeans", "scikit-learn, all defaults: EM from k-means"),
    _sklearn("k-means++", "scikit-learn, EM from a k-means++ seeding"),
    # Products with D x D matrices are too small to share: BLAS is often faster alone.
    _sklearn("kmeans", "sklearn-kmeans with one thread in BLAS", n_blas_threads=1),
    _sklearn("k-means++", "sklearn-k-means++ with one thread in BLAS", n_blas_threads=1),
    _ours("pickmix", "this library, all defaults", dense=False),
    _ours("em", "exact EM, ours", dense=True, algorithm="em"),
    _ours("saem", "minibatch EM, ours", dense=True, algorithm="saem"),
    _ours("ssaem", "minibatch EM, best M kept, ours", dense=True, algorithm="ssaem"),
    _ours(
        "tsaem",
        "truncated EM with search sets, M = 3, ours",
        dense=False,
        algorithm="tsaem",
        n_samples=3,
    ),
    _ours("mcsaem", "M draws from exact posteriors, ours", dense=True, algorithm="mcsaem"),
    _ours(
        "mhsaem-uniform",
        "the paper's chain, uniform proposal, ours",
        dense=False,
        algorithm="mhsaem",
        proposal="uniform",
    ),
    _ours(
        "mhsaem-table-forgetting",
        "the paper's chain, a table per row that forgets, ours",
        dense=False,
        algorithm="mhsaem",
        proposal="table-forgetting",
    ),
    Rival(
        "faiss-kmeans",
        "k-means by Faiss, then a Gaussian for each cluster",
        other_libraries.fit_faiss,
        # All distances, but those come from one matrix product and no density is evaluated.
        dense=False,
        needs="faiss",
        packages=("faiss-cpu",),
    ),
    Rival(
        "gmmx",
        "EM in JAX, float32, from scikit-learn's k-means",
        other_libraries.fit_gmmx,
        dense=True,
        needs="gmmx",
        packages=("gmmx", "jax"),
    ),
    Rival(
        "pomegranate",
        "EM in PyTorch, float32, from scikit-learn's k-means",
        other_libraries.fit_pomegranate,
        dense=True,
        needs="pomegranate",
        packages=("pomegranate", "torch"),
    ),
)
RIVALS: dict[str, Rival] = {rival.name: rival for rival in _ALL}
# The bench's yardstick: the start with the higher held-out log-likelihood, and of its two ways to
# use threads the faster.
YARDSTICKS = (
    ("sklearn-kmeans", "sklearn-kmeans-one-thread"),
    ("sklearn-k-means++", "sklearn-k-means++-one-thread"),
)


def find_rivals(names: Iterable[str]) -> list[Rival]:
    """Rivals by name, in the order of `RIVALS`.

    Examples
    --------
    >>> [rival.dense for rival in find_rivals(["em", "pickmix"])]
    [False, True]
    >>> find_rivals(["sklearn"])
    Traceback (most recent call last):
    ValueError: rival must be one of sklearn-kmeans, ..., pomegranate; got 'sklearn'
    """
    names = list(names)
    for name in names:
        if name not in RIVALS:
            raise ValueError(f"rival must be one of {', '.join(RIVALS)}; got {name!r}")
    return [rival for rival in RIVALS.values() if rival.name in names]
