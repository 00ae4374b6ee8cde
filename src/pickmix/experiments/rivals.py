"""Rivals: ways to fit a Gaussian mixture with full covariances, behind one signature."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.estimators.gaussian_mixture import GaussianMixture
from pickmix.experiments import other_libraries
from pickmix.experiments.scoring import Fitted, GaussianParameters, Record

FitFunction = Callable[[np.ndarray, int, int, Record], Fitted]


@dataclass(frozen=True)
class Rival:
    """One rival: `fit` takes rows (N, D), K, a seed and `record`, which it may call on the way.

    If it is `dense`, it evaluates every component on every row, and is left out where K is very
    large. It may need a module. Versions of its packages are part of a result.
    """

    name: str
    summary: str
    fit: FitFunction
    dense: bool = True
    needs: str | None = None
    packages: tuple[str, ...] = ()

    @property
    def installed(self) -> bool:
        """Whether the modules it needs are installed."""
        return self.needs is None or importlib.util.find_spec(self.needs) is not None


def _parameters(model: Any) -> GaussianParameters:
    return GaussianParameters(model.weights_, model.means_, model.covariances_)


def _ours(name: str, summary: str, *, dense: bool = False, **parameters: Any) -> Rival:
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

    return Rival(name, f"{summary}, ours" if parameters else summary, fit, dense, None, ("numba",))


def _sklearn(start: str, summary: str, n_blas_threads: int | None = None) -> Rival:
    """scikit-learn's mixture, at its defaults but for the start and the threads of BLAS."""

    def fit(X: np.ndarray, n_components: int, seed: int, record: Record) -> Fitted:
        from sklearn.mixture import GaussianMixture as SklearnMixture
        from threadpoolctl import threadpool_limits

        model = SklearnMixture(n_components, init_params=start, random_state=seed)
        with threadpool_limits(n_blas_threads, user_api="blas"):
            model.fit(X)
        # An E-step per iteration, and one for the labels at the end.
        evaluations = (model.n_iter_ + 1) * n_components * X.shape[0]
        outcome = "converged" if model.converged_ else "max_iter"
        return Fitted(_parameters(model), outcome, evaluations=evaluations)

    return Rival(f"sklearn-{start}" + ("-one-thread" if n_blas_threads else ""), summary, fit)


_FORGETS = "table-forgetting"
_FAISS = "k-means by Faiss, then a Gaussian for each cluster"
_GMMX = "EM in JAX, float32, from scikit-learn's k-means"
_TORCH = "EM in PyTorch, float32, from scikit-learn's k-means"
_ALL = (
    _sklearn("kmeans", "scikit-learn, all defaults: EM from k-means"),
    _sklearn("k-means++", "scikit-learn, EM from a k-means++ seeding"),
    # Products with D x D matrices are too small to share: BLAS is often faster alone.
    _sklearn("kmeans", "sklearn-kmeans with one thread in BLAS", n_blas_threads=1),
    _sklearn("k-means++", "sklearn-k-means++ with one thread in BLAS", n_blas_threads=1),
    _ours("pickmix", "this library, all defaults"),
    _ours("em", "exact EM", dense=True, algorithm="em"),
    _ours("saem", "minibatch EM", dense=True, algorithm="saem"),
    _ours("ssaem", "minibatch EM, best M kept", dense=True, algorithm="ssaem"),
    _ours("tsaem", "truncated EM with search sets, M = 3", algorithm="tsaem", n_samples=3),
    _ours("mcsaem", "M draws from exact posteriors", dense=True, algorithm="mcsaem"),
    _ours("mhsaem-uniform", "the paper's chain, uniform proposal", proposal="uniform"),
    _ours(
        f"mhsaem-{_FORGETS}", "the paper's chain, a table per row that forgets", proposal=_FORGETS
    ),
    # All distances, but those come from one matrix product and no density is evaluated.
    Rival("faiss-kmeans", _FAISS, other_libraries.fit_faiss, False, "faiss", ("faiss-cpu",)),
    Rival("gmmx", _GMMX, other_libraries.fit_gmmx, True, "gmmx", ("gmmx", "jax")),
    Rival(
        "pomegranate",
        _TORCH,
        other_libraries.fit_pomegranate,
        needs="pomegranate",
        packages=("pomegranate", "torch"),
    ),
)
RIVALS: dict[str, Rival] = {rival.name: rival for rival in _ALL}
# The bench's yardstick: the start with the higher held-out log-likelihood, and of its two ways to
# use threads the faster.
YARDSTICKS = tuple((f"sklearn-{s}", f"sklearn-{s}-one-thread") for s in ("kmeans", "k-means++"))
