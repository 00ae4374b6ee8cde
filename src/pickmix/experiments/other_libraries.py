"""Rivals that need the extra `bench`: Faiss, GMMX and pomegranate.

Each is imported where it is used. GMMX and pomegranate start from one run of scikit-learn's
k-means, as scikit-learn's own mixture does. (With hundreds of components pomegranate's own start
has clusters that are empty or flat, and the fit fails.) Their stopping rule is set to
scikit-learn's, too: 100 iterations, or less than 1e-3 per row gained.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np

from pickmix.experiments.scoring import Fitted, GaussianParameters, Record

MAX_ITERATIONS = 100
TOLERANCE = 1e-3
REGULARISATION = 1e-6
# So many rows with the covariance of all clusters are added to each cluster.
SHRINKAGE_ROWS = 1.0


def fit_faiss(X: np.ndarray, n_components: int, seed: int, record: Record) -> Fitted:
    """k-means at Faiss's defaults, then weights and covariances of the clusters."""
    import faiss

    rows = np.ascontiguousarray(X, dtype=np.float32)
    kmeans = faiss.Kmeans(X.shape[1], n_components, seed=seed)
    kmeans.train(rows)
    return Fitted(gaussians_of_clusters(X, kmeans.assign(rows)[1], kmeans.centroids), "max_iter")


def gaussians_of_clusters(
    X: np.ndarray, labels: np.ndarray, centroids: np.ndarray
) -> GaussianParameters:
    """Turn clusters into a mixture.

    X is (N, D), labels (N,). Centroids (K, D) are means of clusters without rows; the others have
    that of their rows. Covariances are shrunk towards the mean covariance of all clusters, which
    counts as one row, plus 1e-6 on the diagonal: clusters of few rows would else be singular.
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
    """A fit by EM that made so many steps."""
    outcome = "converged" if n_steps < MAX_ITERATIONS else "max_iter"
    evaluations = n_steps * len(parameters.weights) * X.shape[0]
    return Fitted(parameters, outcome, evaluations=evaluations, **more)


def fit_gmmx(X: np.ndarray, n_components: int, seed: int, record: Record) -> Fitted:
    """EM in JAX. It computes in float32 only and holds arrays of N x K x D."""
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
    found = result.gmm.weights_numpy, result.gmm.means_numpy, result.gmm.covariances.values_numpy
    n_steps = int(result.n_iter)
    return _after(n_steps, X, GaussianParameters(*found), compile_seconds=compile_seconds)


def fit_pomegranate(X: np.ndarray, n_components: int, seed: int, record: Record) -> Fitted:
    """EM in PyTorch, float32. Its covariances are not regularised, so that it may well fail."""
    import torch
    from pomegranate.distributions import Normal
    from pomegranate.gmm import GeneralMixtureModel
    from sklearn.cluster import KMeans

    class CountingMixture(GeneralMixtureModel):  # type: ignore[misc]
        """Counts E-steps, which pomegranate does not report."""

        n_steps = 0

        def summarize(self, *args: Any, **kwargs: Any) -> Any:
            """Make one E-step."""
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
    found = ([getattr(c, name).numpy(force=True) for c in components] for name in ("means", "covs"))
    parameters = GaussianParameters(model.priors.numpy(force=True), *map(np.stack, found))
    return _after(model.n_steps, X, parameters)
