"""Rivals that need the extra `bench`: Faiss, GMMX and pomegranate.

Each is imported where it is used. GMMX and pomegranate start from one run of scikit-learn's
k-means, as scikit-learn's own mixture does. (With hundreds of components pomegranate's own start
has clusters that are empty or flat, and the fit fails.) Their stopping rule is set to
scikit-learn's, too: 100 iterations, or less than 1e-3 per row gained.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from pickmix.experiments.fitted import Fitted, Record
from pickmix.experiments.scoring import GaussianParameters

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
    labels = kmeans.assign(rows)[1]
    return Fitted(gaussians_of_clusters(X, labels, kmeans.centroids), "max_iter")


def gaussians_of_clusters(
    X: np.ndarray, labels: np.ndarray, centroids: np.ndarray
) -> GaussianParameters:
    """Turn clusters into a mixture.

    Covariances are shrunk towards the mean covariance of all clusters, which counts as one row,
    plus 1e-6 on the diagonal: clusters of a few rows would otherwise be singular.

    Parameters
    ----------
    X : (N, D) array
    labels : (N,) array of int
    centroids : (K, D) array
        Means of clusters without rows; the others have that of their rows.
    """
    means = np.array(centroids, dtype=np.float64)
    K, D = means.shape
    counts = np.bincount(labels, minlength=K)
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(counts)
    scatter = np.zeros((K, D, D))
    for k in np.flatnonzero(counts):
        rows = X[order[ends[k] - counts[k] : ends[k]]].astype(np.float64)
        means[k] = rows.mean(axis=0)
        rows -= means[k]
        scatter[k] = rows.T @ rows
    pooled = scatter.sum(axis=0) / X.shape[0]
    covariances = (scatter + SHRINKAGE_ROWS * pooled) / (counts + SHRINKAGE_ROWS)[:, None, None]
    return GaussianParameters(counts / X.shape[0], means, covariances + REGULARISATION * np.eye(D))


def fit_gmmx(X: np.ndarray, n_components: int, seed: int, record: Record) -> Fitted:
    """EM in JAX. It knows float32 only and holds arrays of N x K x D."""
    import jax.numpy as jnp
    from gmmx import EMFitter, GaussianMixtureModelJax

    rows = jnp.asarray(X, dtype=jnp.float32)
    fitter = EMFitter(max_iter=MAX_ITERATIONS, tol=TOLERANCE, reg_covar=REGULARISATION)
    # JAX compiles for these sizes. Done ahead of the work it can be told apart; the start's part
    # is compiled by making one, from a k-means of one iteration.
    started = time.perf_counter()
    start = GaussianMixtureModelJax.from_k_means(
        rows, n_components, reg_covar=REGULARISATION, n_init=1, init="random", max_iter=1
    )
    compiled: Any = EMFitter.fit.lower(fitter, rows, start).compile()
    compile_seconds = time.perf_counter() - started
    start = GaussianMixtureModelJax.from_k_means(
        rows, n_components, reg_covar=REGULARISATION, n_init=1, random_state=seed
    )
    result = compiled(fitter, rows, start)
    n_iterations = int(result.n_iter)
    return Fitted(
        GaussianParameters(
            result.gmm.weights_numpy,
            result.gmm.means_numpy,
            result.gmm.covariances.values_numpy,
        ),
        "converged" if n_iterations < MAX_ITERATIONS else "max_iter",
        evaluations=n_iterations * n_components * X.shape[0],
        compile_seconds=compile_seconds,
    )


def fit_pomegranate(X: np.ndarray, n_components: int, seed: int, record: Record) -> Fitted:
    """EM in PyTorch, float32. Its covariances are not regularised, so that it may well fail."""
    import torch
    from pomegranate.distributions import Normal
    from pomegranate.gmm import GeneralMixtureModel
    from sklearn.cluster import KMeans

    class CountingMixture(GeneralMixtureModel):  # type: ignore[misc]
        """Counts E-steps, which pomegranate does not tell."""

        n_steps = 0

        def summarize(self, *args: Any, **kwargs: Any) -> Any:
            """Make one E-step."""
            self.n_steps += 1
            return super().summarize(*args, **kwargs)

    kmeans = KMeans(n_components, n_init=1, random_state=seed).fit(X)
    start = gaussians_of_clusters(X, kmeans.labels_, kmeans.cluster_centers_)
    components = [
        Normal(mean.astype(np.float32), covariance.astype(np.float32), covariance_type="full")
        for mean, covariance in zip(start.means, start.covariances, strict=True)
    ]
    model = CountingMixture(
        components,
        priors=start.weights.astype(np.float32),
        max_iter=MAX_ITERATIONS,
        # Of the sum over rows.
        tol=TOLERANCE * X.shape[0],
    )
    with torch.no_grad():
        model.fit(torch.as_tensor(X, dtype=torch.float32))
    return Fitted(
        GaussianParameters(
            model.priors.numpy(force=True),
            np.stack([component.means.numpy(force=True) for component in components]),
            np.stack([component.covs.numpy(force=True) for component in components]),
        ),
        "converged" if model.n_steps < MAX_ITERATIONS else "max_iter",
        evaluations=model.n_steps * n_components * X.shape[0],
    )
