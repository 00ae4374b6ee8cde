"""Extreme deconvolution by exact EM in NumPy: the peer of the question `noise`.

Bovy, Hogg and Roweis (2011): row n is v_n + e_n with v_n from a Gaussian mixture and e_n from
N(0, S_n), S_n known. The E-step needs N(x_n; m_k, V_k + S_n) for all pairs of rows and components,
each pair with a covariance of its own. The published code factorises pair by pair. Here a
factorisation runs over many pairs at once, entry by entry, which is several times as fast as
`numpy.linalg` on stacked small matrices; chunks of rows run on threads; and second moments are
computed for pairs with a responsibility of more than 1e-9 only.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from time import process_time

import numpy as np
from scipy.special import logsumexp
from sklearn.cluster import KMeans

from pickmix_experiments.runner import cpu_count

Parameters = tuple[np.ndarray, np.ndarray, np.ndarray]
Score = Callable[[Parameters, float], None]
# So many pairs of a row and a component at a time: what stays in the cache.
_PAIRS = 20_000
_NEGLIGIBLE, _TOLERANCE = 1e-9, 1e-4


def factors(matrices: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    """Lower Cholesky factors of many matrices, given and returned entry by entry (i >= j).

    The diagonal of the result holds inverses of the factors' diagonals.
    """
    D = len(matrices)
    lower: list[list[np.ndarray]] = [[np.empty(0)] * D for _ in range(D)]
    for j in range(D):
        rest = matrices[j][j].copy()
        for k in range(j):
            rest -= lower[j][k] * lower[j][k]
        lower[j][j] = 1.0 / np.sqrt(rest)
        for i in range(j + 1, D):
            rest = matrices[i][j].copy()
            for k in range(j):
                rest -= lower[i][k] * lower[j][k]
            rest *= lower[j][j]
            lower[i][j] = rest
    return lower


def away(lower: list[list[np.ndarray]], difference: list[np.ndarray]) -> list[np.ndarray]:
    """L^-1 d for many factors L and differences d."""
    solved: list[np.ndarray] = []
    for i, value in enumerate(difference):
        rest = value.copy()
        for k in range(i):
            rest -= lower[i][k] * solved[k]
        rest *= lower[i][i]
        solved.append(rest)
    return solved


def inverse_factors(lower: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    """The lower triangular L^-1 of many factors L."""
    D = len(lower)
    inverse: list[list[np.ndarray]] = [[np.empty(0)] * D for _ in range(D)]
    for j in range(D):
        inverse[j][j] = lower[j][j]
        for i in range(j + 1, D):
            rest = lower[i][j] * inverse[j][j]
            for k in range(j + 1, i):
                rest += lower[i][k] * inverse[k][j]
            inverse[i][j] = -rest * lower[i][i]
    return inverse


def _factorise(
    rows: np.ndarray, noise: np.ndarray, now: Parameters
) -> tuple[np.ndarray, list[list[np.ndarray]], list[np.ndarray]]:
    """Log-joints (K, N), factors L of T = V + S, and L^-1 (x - m)."""
    weights, means, covariances = now
    D = means.shape[1]
    # Component by row, rows last: noise varies along rows, covariances along components.
    T = [
        [
            covariances[:, i, j, None] + (noise[None, :, i] if i == j else np.zeros((1, len(rows))))
            for j in range(i + 1)
        ]
        for i in range(D)
    ]
    lower = factors(T)
    solved = away(lower, [rows[None, :, i] - means[:, i, None] for i in range(D)])
    log_joint = -0.5 * sum(part * part for part in solved)
    log_joint += np.log(reduce(np.multiply, [lower[i][i] for i in range(D)]))
    log_joint += np.log(weights)[:, None] - 0.5 * D * np.log(2.0 * np.pi)
    return log_joint, lower, solved


def log_density(rows: np.ndarray, noise: np.ndarray, now: Parameters) -> np.ndarray:
    """Log-density (N,) of rows with noise."""
    step = max(_PAIRS // now[0].size, 1)
    parts = (slice(begin, begin + step) for begin in range(0, rows.shape[0], step))
    joints = (_factorise(rows[part], noise[part], now)[0] for part in parts)
    return np.concatenate([logsumexp(joint, axis=0) for joint in joints])


def _chunk_sums(rows: np.ndarray, noise: np.ndarray, now: Parameters) -> list[np.ndarray]:
    """Sums over a chunk: log-likelihood, q, q u, q u u' and q T^-1 with T = V + S, T u = x - m."""
    K, D = now[1].shape
    log_joint, lower, solved = _factorise(rows, noise, now)
    total = logsumexp(log_joint, axis=0)
    shares = np.exp(log_joint - total)
    component, row = np.nonzero(shares > _NEGLIGIBLE)
    q = shares[component, row]
    few = [[lower[i][j][component, row] for j in range(i + 1)] for i in range(D)]
    inverse = inverse_factors(few)
    z = [part[component, row] for part in solved]
    # u = L^-T z, and T^-1 = L^-T L^-1.
    u = [sum(inverse[k][i] * z[k] for k in range(i, D)) for i in range(D)]

    def per_component(values: np.ndarray) -> np.ndarray:
        return np.bincount(component, values, K)

    first = np.stack([per_component(q * u[i]) for i in range(D)], axis=1)
    second, precision = np.empty((K, D, D)), np.empty((K, D, D))
    for i in range(D):
        for j in range(i + 1):
            entry = sum(inverse[k][i] * inverse[k][j] for k in range(i, D))
            second[:, i, j] = second[:, j, i] = per_component(q * u[i] * u[j])
            precision[:, i, j] = precision[:, j, i] = per_component(q * entry)
    return [np.asarray(total.sum()), shares.sum(axis=1), first, second, precision]


def iterate(
    rows: np.ndarray, noise: np.ndarray, now: Parameters, pool: ThreadPoolExecutor
) -> tuple[Parameters, float]:
    """One iteration of EM: new parameters, and the mean log-likelihood of the old ones."""
    step = max(_PAIRS // now[0].size, 1)
    chunks = [slice(begin, begin + step) for begin in range(0, rows.shape[0], step)]

    def sums_of(some: list[slice]) -> list[np.ndarray]:
        parts = (_chunk_sums(rows[chunk], noise[chunk], now) for chunk in some)
        return reduce(lambda a, b: [x + y for x, y in zip(a, b, strict=True)], parts)

    lots = [lot.tolist() for lot in np.array_split(np.array(chunks, dtype=object), 16)]
    parts = list(pool.map(sums_of, [lot for lot in lots if lot]))
    total, mass, first, second, precision = (sum(part) for part in zip(*parts, strict=True))
    _, means, V = now
    mass = np.maximum(mass, 1e-12)
    shift = np.einsum("kij,kj->ki", V, first) / mass[:, None]
    # Mean of (b - m)(b - m)' + B about the new mean; b - m = V u, B = V - V T^-1 V.
    inner = second - precision
    scatter = V + V @ (inner / mass[:, None, None]) @ V - shift[:, :, None] * shift[:, None, :]
    scatter += 1e-6 * np.eye(means.shape[1])
    return (mass / mass.sum(), means + shift, scatter), float(total) / rows.shape[0]


def start(rows: np.ndarray, noise: np.ndarray, n_components: int, seed: int) -> Parameters:
    """k-means, then moments of the clusters less the noise, at least a tenth of what is there."""
    labels = KMeans(n_components, n_init=1, random_state=seed).fit_predict(rows)
    D = rows.shape[1]
    weights = np.bincount(labels, minlength=n_components) / rows.shape[0]
    means, covariances = np.empty((n_components, D)), np.empty((n_components, D, D))
    for k in range(n_components):
        mine = rows[labels == k]
        means[k] = mine.mean(axis=0)
        covariance = np.cov(mine.T, bias=True).reshape(D, D) if len(mine) > 1 else np.zeros((D, D))
        values, vectors = np.linalg.eigh(covariance - np.diag(noise[labels == k].mean(axis=0)))
        least = 0.1 * np.trace(covariance) / D + 1e-6
        covariances[k] = (vectors * np.maximum(values, least)) @ vectors.T
    return np.maximum(weights, 1e-12), means, covariances


def fit(
    rows: np.ndarray, noise: np.ndarray, K: int, seed: int, most_seconds: float, score: Score
) -> int:
    """EM until the likelihood per row rises by less than 1e-4 or processor time is up.

    `score` is called with parameters and seconds after the start and each iteration; the clock
    stops meanwhile. Returns the number of iterations.
    """
    began = process_time()
    now = start(rows, noise, K, seed)
    seconds, before, n_iterations = process_time() - began, -np.inf, 0
    score(now, seconds)
    with ThreadPoolExecutor(cpu_count()) as pool:
        while seconds < most_seconds:
            began = process_time()
            now, likelihood = iterate(rows, noise, now, pool)
            seconds += process_time() - began
            n_iterations += 1
            score(now, seconds)
            if likelihood - before < _TOLERANCE:
                break
            before = likelihood
    return n_iterations
