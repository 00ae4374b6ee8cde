"""Methods of the benches in one registry: ways to fit a Gaussian mixture behind one signature.

Faiss, GMMX and pomegranate need the extra `bench`, and are imported where they are used. GMMX and
pomegranate start from one run of scikit-learn's k-means, as scikit-learn's own mixture does. (With
hundreds of components pomegranate's own start has clusters that are empty or flat, and the fit
fails.) Their stopping rule is set to scikit-learn's, too: 100 iterations, or less than 1e-3 per row
gained.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pickmix import GaussianMixture
from pickmix_experiments import datasets
from pickmix_experiments.datasets import HELD_OUT_ROWS, GaussianParameters
from pickmix_experiments.runner import Meter, Recorder, versions
from pickmix_experiments.runs import BenchRun

MAX_ITERATIONS, TOLERANCE, REGULARISATION = 100, 1e-3, 1e-6
# So many rows with the covariance of all clusters are added to each cluster.
SHRINKAGE_ROWS = 1.0
# Curves are measured on so many of the held-out rows, and only when the time has grown by this
# factor since the last point: time is drawn on a log axis.
CURVE_ROWS, CURVE_SPACING = 5_000, 1.1
# Of the small fit before the clock starts: more components than the default evaluates densely.
WARM_UP_COMPONENTS, WARM_UP_ROWS_EACH = 70, 20

# Called with the evaluations of a component on a row so far, and a function that returns the
# parameters. The harness decides whether to measure; its clock stops meanwhile.
Record = Callable[[float, Callable[[], GaussianParameters]], None]


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted mixture, and how the fit ended."""

    parameters: GaussianParameters
    #: "converged", "max_iter" or another name.
    outcome: str
    #: Of a component on a row, without the start's, where that has a meaning.
    evaluations: float = math.nan
    compile_seconds: float = 0.0
    #: By the library's own clock, where it has one.
    work_seconds: float = math.nan


@dataclass(frozen=True)
class Method:
    name: str
    summary: str
    #: Takes rows (N, D), K, a seed and `record`, which it may call on the way.
    fit: Callable[[np.ndarray, int, int, Record], Fitted]
    #: Evaluates every component on every row, and is left out where K is very large.
    dense: bool = True
    #: A module.
    needs: str | None = None
    #: Their versions are part of a result.
    packages: tuple[str, ...] = ()

    @property
    def installed(self) -> bool:
        return self.needs is None or importlib.util.find_spec(self.needs) is not None


def _parameters(model: Any) -> GaussianParameters:
    return GaussianParameters(model.weights_, model.means_, model.covariances_)


def _ours(name: str, summary: str, *, dense: bool = False, **parameters: Any) -> Method:
    """Return `pickmix.GaussianMixture` with these parameters, the rest at their defaults."""

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

    summary += ", ours" if parameters else ""
    return Method(name, summary, fit, dense, packages=("numba",))


def _sklearn(start: str, summary: str, n_blas_threads: int | None = None) -> Method:
    """Return scikit-learn's mixture, at its defaults but for the start and the threads of BLAS."""

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

    return Method(f"sklearn-{start}" + ("-one-thread" if n_blas_threads else ""), summary, fit)


def fit_faiss(X: np.ndarray, n_components: int, seed: int, record: Record) -> Fitted:
    """Fit k-means at Faiss's defaults, then weights and covariances of the clusters."""
    import faiss

    rows = np.ascontiguousarray(X, dtype=np.float32)
    kmeans = faiss.Kmeans(X.shape[1], n_components, seed=seed)
    kmeans.train(rows)
    return Fitted(gaussians_of_clusters(X, kmeans.assign(rows)[1], kmeans.centroids), "max_iter")


def gaussians_of_clusters(
    X: np.ndarray, labels: np.ndarray, centroids: np.ndarray
) -> GaussianParameters:
    """Turn clusters into a mixture: rows X (N, D), labels (N,).

    Centroids (K, D) are means of clusters without rows; the others have that of their rows.
    Covariances are shrunk towards the mean covariance of all clusters, which counts as one row,
    plus 1e-6 on the diagonal: clusters of few rows would else be singular.
    """
    means = np.array(centroids, dtype=np.float64)
    K, D = means.shape
    counts = np.bincount(labels, minlength=K)
    parts = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
    scatter = np.zeros((K, D, D))
    for k in np.flatnonzero(counts):
        rows = X[parts[k]].astype(np.float64)
        means[k] = rows.mean(axis=0)
        rows -= means[k]
        scatter[k] = rows.T @ rows
    pooled = scatter.sum(axis=0) / X.shape[0]
    covariances = (scatter + SHRINKAGE_ROWS * pooled) / (counts + SHRINKAGE_ROWS)[:, None, None]
    return GaussianParameters(counts / X.shape[0], means, covariances + REGULARISATION * np.eye(D))


def _after(n_steps: int, X: np.ndarray, parameters: GaussianParameters, **more: float) -> Fitted:
    """Describe a fit by EM that made so many steps."""
    outcome = "converged" if n_steps < MAX_ITERATIONS else "max_iter"
    evaluations = n_steps * len(parameters.weights) * X.shape[0]
    return Fitted(parameters, outcome, evaluations=evaluations, **more)


def fit_gmmx(X: np.ndarray, n_components: int, seed: int, record: Record) -> Fitted:
    """Fit by EM in JAX, which computes in float32 only and holds arrays of N x K x D."""
    import jax.numpy as jnp
    from gmmx import EMFitter, GaussianMixtureModelJax

    rows = jnp.asarray(X, dtype=jnp.float32)
    fitter = EMFitter(max_iter=MAX_ITERATIONS, tol=TOLERANCE, reg_covar=REGULARISATION)
    start = partial(
        GaussianMixtureModelJax.from_k_means, rows, n_components, reg_covar=REGULARISATION, n_init=1
    )
    # JAX compiles for these sizes. Done before the work it can be timed apart; the start's part
    # is compiled by making one, from a k-means of one iteration.
    started = time.perf_counter()
    compiled: Any = EMFitter.fit.lower(fitter, rows, start(init="random", max_iter=1)).compile()
    compile_seconds = time.perf_counter() - started
    result = compiled(fitter, rows, start(random_state=seed))
    arrays = result.gmm.weights_numpy, result.gmm.means_numpy, result.gmm.covariances.values_numpy
    n_steps = int(result.n_iter)
    return _after(n_steps, X, GaussianParameters(*arrays), compile_seconds=compile_seconds)


def fit_pomegranate(X: np.ndarray, n_components: int, seed: int, record: Record) -> Fitted:
    """Fit by EM in PyTorch, float32. Its covariances are not regularised, so that it may fail."""
    import torch
    from pomegranate.distributions import Normal
    from pomegranate.gmm import GeneralMixtureModel
    from sklearn.cluster import KMeans

    class CountingMixture(GeneralMixtureModel):  # type: ignore[misc]
        """Counts E-steps, which pomegranate does not report."""

        n_steps = 0

        def summarize(self, *args: Any, **kwargs: Any) -> Any:
            self.n_steps += 1
            return super().summarize(*args, **kwargs)

    kmeans = KMeans(n_components, n_init=1, random_state=seed).fit(X)
    start = gaussians_of_clusters(X, kmeans.labels_, kmeans.cluster_centers_)
    weights, means, covariances = (
        values.astype(np.float32) for values in (start.weights, start.means, start.covariances)
    )
    pairs = zip(means, covariances, strict=True)
    components = [Normal(*pair, covariance_type="full") for pair in pairs]
    # The tolerance is of the sum over rows.
    stopping = {"max_iter": MAX_ITERATIONS, "tol": TOLERANCE * X.shape[0]}
    model = CountingMixture(components, priors=weights, **stopping)
    with torch.no_grad():
        model.fit(torch.as_tensor(X, dtype=torch.float32))
    arrays = ([getattr(c, n).numpy(force=True) for c in components] for n in ("means", "covs"))
    parameters = GaussianParameters(model.priors.numpy(force=True), *map(np.stack, arrays))
    return _after(model.n_steps, X, parameters)


_FORGETS, _K_MEANS = "table-forgetting", "float32, from scikit-learn's k-means"
_FAISS = "k-means by Faiss, then a Gaussian for each cluster"
_TORCH = ("pomegranate", "torch")
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
    Method("faiss-kmeans", _FAISS, fit_faiss, False, "faiss", ("faiss-cpu",)),
    Method("gmmx", f"EM in JAX, {_K_MEANS}", fit_gmmx, True, "gmmx", ("gmmx", "jax")),
    Method("pomegranate", f"EM in PyTorch, {_K_MEANS}", fit_pomegranate, True, *_TORCH[:1], _TORCH),
)
METHODS: dict[str, Method] = {method.name: method for method in _ALL}
# What others are compared with: the start with the higher held-out log-likelihood, and of its two
# ways to use threads the faster.
SKLEARN_PAIRS = tuple((f"sklearn-{s}", f"sklearn-{s}-one-thread") for s in ("kmeans", "k-means++"))


def perform_bench(
    run: BenchRun, limit_seconds: float | None, threads: int, recorder: Recorder
) -> None:
    """Make the data, warm up, fit and measure; the last record is the end of a fit that had one."""
    method = METHODS[run.algorithm]
    dataset, K = datasets.find(run.setting)
    train, held_out, truth = dataset.make(run.seed)
    n_rows, n_features = train.shape
    recorder.know(n_rows=n_rows, n_features=n_features, n_components=K)
    if truth is not None:
        recorder.know(true_test=float(truth.mean()))
        recorder.know(true_validation=float(truth[:CURVE_ROWS].mean()))
    warm_up_seconds = _warm_up(method, train, K)
    # Imported by now, so that what is installed is what runs.
    recorder.know(versions=versions(("numpy", "scikit-learn", *method.packages)))
    meter = Meter(limit_seconds)
    last = 0.0

    def add(seconds: float, evaluations: float, parameters: GaussianParameters) -> None:
        recorder.add(
            seconds=seconds,
            evaluations=evaluations / n_rows,
            validation=float(parameters.score_samples(held_out[:CURVE_ROWS]).mean()),
            live_components=parameters.live_components(n_rows),
        )

    def record(evaluations: float, parameters: Callable[[], GaussianParameters]) -> None:
        nonlocal last
        with meter.paused():
            if meter.seconds >= CURVE_SPACING * last:
                last = meter.seconds
                add(last, evaluations, parameters())

    meter.start()
    try:
        fitted = method.fit(train, K, run.seed, record)
    finally:
        meter.stop()
    add(meter.seconds - fitted.compile_seconds, fitted.evaluations, fitted.parameters)
    recorder.know(
        outcome=fitted.outcome,
        test=float(fitted.parameters.score_samples(held_out).mean()),
        train=float(fitted.parameters.score_samples(train[:HELD_OUT_ROWS]).mean()),
        compile_seconds=warm_up_seconds + fitted.compile_seconds,
        work_seconds=fitted.work_seconds,
        peak_megabytes=meter.peak_megabytes,
    )


def _warm_up(method: Method, train: np.ndarray, K: int) -> float:
    """Import and compile by a small fit of the same kind; return the seconds it took."""
    K = min(K, WARM_UP_COMPONENTS)
    rows = train[: WARM_UP_ROWS_EACH * K]
    started = time.perf_counter()
    # If it fails for want of rows, the fit itself may not; and if that fails, it says so.
    with contextlib.suppress(Exception):
        method.fit(rows, K, 0, lambda *_: None).parameters.score_samples(rows)
    return time.perf_counter() - started
