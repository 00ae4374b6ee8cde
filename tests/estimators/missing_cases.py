"""Rows with gaps, and fits of them, for tests of missing values and noise."""

import warnings

import numpy as np
from scipy import stats
from sklearn.exceptions import ConvergenceWarning


def correlated_rows(n_rows=400, seed=0):
    root = np.array([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [-0.5, 0.3, 0.9]])
    return np.random.default_rng(seed).normal(size=(n_rows, 3)) @ root.T + [1.0, 2.0, 3.0]


def with_gaps(rows, share=0.3, seed=1):
    """Rows with a share of the cells missing; no row is empty."""
    gone = np.random.default_rng(seed).random(rows.shape) < share
    gone[gone.all(axis=1), 0] = False
    return np.where(gone, np.nan, rows)


def clusters(n_rows=600, seed=0):
    rng = np.random.default_rng(seed)
    centres = np.array([[0.0, 0.0, 0.0], [8.0, 0.0, 4.0], [0.0, 8.0, -4.0], [8.0, 8.0, 8.0]])
    return centres[rng.integers(4, size=n_rows)] + rng.normal(size=(n_rows, 3))


def mixed_rows(n_rows=400, seed=0):
    rng = np.random.default_rng(seed)
    kind = rng.integers(2, size=n_rows)
    rates, level = np.array([[2.0, 9.0], [12.0, 1.0]])[kind], np.where(kind, 2, 0)
    numbers = rng.normal(size=(n_rows, 2)) + 4.0 * kind[:, None]
    levels = (level + rng.integers(2, size=n_rows)) % 3
    return np.column_stack([rng.poisson(rates), levels, numbers])


def quiet_fit(mixture, rows, **options):
    """Fit without being told that more steps would be better."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return mixture.fit(rows, **options)


def observed_log_likelihood(rows, mean, covariance, noise=None):
    """Of one Gaussian, by scipy, what was seen of each row."""
    total = 0.0
    for i, row in enumerate(rows):
        seen = ~np.isnan(row)
        matrix = covariance if noise is None else covariance + noise[i]
        normal = stats.multivariate_normal(mean[seen], matrix[np.ix_(seen, seen)])
        total += normal.logpdf(row[seen])
    return total
