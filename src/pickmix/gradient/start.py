"""Starts for the gradient engine: the paper's, or one that looks at the data."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from pickmix.gradient.compilation import kept_programs
from pickmix.gradient.network import Network, Tables
from pickmix.gradient.precision import precision
from pickmix.selection.randomness import StepRandomness, Stream

# k-means sees at most this many rows per centre, and no more centres than rows allow.
_ROWS_PER_CENTRE = 100
_FEWEST_ROWS = 10
_LLOYD_ITERATIONS = 10
_MOST_CENTRES = 4096
# A cluster's spread leans on the average one as if by this many rows.
_PRIOR_ROWS = 10.0


@dataclass
class Start:
    """Tables, log-weights of the root (s,), and the tree of each row's chain (N, n_slots)."""

    tables: Tables
    log_weights: np.ndarray
    chain: np.ndarray


@lru_cache(maxsize=16)
def _compiled_start(network: Network, dtype: np.dtype) -> Callable:
    return jax.jit(lambda key: network.start(key, dtype))


@lru_cache(maxsize=16)
def _compiled_place(network: Network) -> Callable:
    return jax.jit(network.place)


def random_trees(network: Network, n_rows: int, seed: int) -> np.ndarray:
    """Uniformly drawn trees (n_rows, n_slots)."""
    random = StepRandomness(seed, 0)
    u = random.uniforms(Stream.START, np.arange(n_rows), network.n_slots)
    return np.minimum((u * network.n_children).astype(np.int32), network.n_children - 1)


def choose_start(network: Network, kind: str, rows: np.ndarray, seed: int, dtype: Any) -> Start:
    """Choose start parameters and chains for `rows` (N, D).

    Parameters
    ----------
    network : Network
    kind : {"paper", "data"}
        "paper" draws parameters without looking at the data, and random trees. "data" places the
        root's children at the centres of k-means with the clusters' spreads, and begins each row's
        chain at the nearest; components that cannot be placed fall back to the first.
    rows : (N, D) array
    seed : int
    dtype : dtype
    """
    n_children = network.n_children
    with precision(dtype):
        key, place_key = jax.random.split(jax.random.key(seed % 2**32))
        with kept_programs():
            tables = _compiled_start(network, np.dtype(dtype))(key)
        log_weights = np.full(n_children, -np.log(n_children))
        chain = random_trees(network, rows.shape[0], seed)
        if kind == "paper":
            return Start(tables, log_weights, chain)
        centres, scales = clusters(rows, n_children, seed)
        with kept_programs():
            placed = _compiled_place(network)(tables, centres, scales, place_key)
        if placed is None:
            return Start(tables, log_weights, chain)
    chain[:, 0] = nearest(rows, centres, scales)
    return Start(placed, log_weights, chain)


def clusters(rows: np.ndarray, n_centres: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Centres (n_centres, D) of k-means on a subsample, and spreads (n_centres, D).

    Where there are too few rows for so many clusters, several centres lie about one of them.
    """
    generator = np.random.default_rng([seed, 1])
    n_clusters = max(1, min(n_centres, rows.shape[0] // _FEWEST_ROWS, _MOST_CENTRES))
    most = _ROWS_PER_CENTRE * n_clusters
    if rows.shape[0] > most:
        rows = rows[generator.choice(rows.shape[0], most, replace=False)]
    rows = np.asarray(rows, np.float64)
    with warnings.catch_warnings():
        # Duplicates: fewer distinct rows than clusters are no reason to worry anybody.
        warnings.simplefilter("ignore", ConvergenceWarning)
        means = KMeans(
            n_clusters, n_init=1, max_iter=_LLOYD_ITERATIONS, random_state=seed % 2**32
        ).fit(rows)
    centres = means.cluster_centers_
    labels = means.labels_
    counts = np.bincount(labels, minlength=n_clusters)
    squares = np.zeros_like(centres)
    np.add.at(squares, labels, (rows - centres[labels]) ** 2)
    # Two rows in one place must not make a component of no width.
    pooled = np.maximum(squares.sum(axis=0) / rows.shape[0], 1e-4 * rows.var(axis=0).mean())
    pooled = np.where(pooled > 0.0, pooled, 1.0)
    variances = (squares + _PRIOR_ROWS * pooled) / (counts + _PRIOR_ROWS)[:, None]
    scales = np.sqrt(variances)
    if n_clusters < n_centres:
        share = counts / counts.sum()
        copies = generator.choice(n_clusters, n_centres - n_clusters, p=share)
        jitter = generator.normal(size=(n_centres - n_clusters, rows.shape[1]))
        centres = np.concatenate([centres, centres[copies] + 0.5 * scales[copies] * jitter])
        scales = np.concatenate([scales, scales[copies]])
    return centres, scales


def nearest(rows: np.ndarray, centres: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Most probable centre of each row (N,), as diagonal Gaussians see it."""
    precisions = 1.0 / scales**2
    constant = (centres**2 * precisions).sum(axis=1) + 2.0 * np.log(scales).sum(axis=1)
    labels = np.empty(rows.shape[0], np.int32)
    size = max(1, 10_000_000 // centres.shape[0])
    for start in range(0, rows.shape[0], size):
        block = np.asarray(rows[start : start + size], np.float64)
        distance = block**2 @ precisions.T - 2.0 * block @ (centres * precisions).T + constant
        labels[start : start + size] = distance.argmin(axis=1)
    return labels
