"""Gaussian mixtures of a few components for a few whitened rows: hundreds of them in seconds."""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from pickmix.gradient.gaussian_start import Gaussians

# A share of the rows that decides whether a mixture is better than N(0, I).
_HELD_OUT = 5
# A component needs this many rows for each of its columns and one more. EM sees at most so many.
_ROWS_PER_COLUMN = 4
_MOST_ROWS = 1000
# Covariances lean on the identity by some rows, and so do weights on equal ones by a row each.
_PRIOR_ROWS = 3.0
_SMALLEST_VARIANCE = 1e-3
_MOST_ITERATIONS = 50
_TOLERANCE = 1e-3


def better_mixture(
    rows: np.ndarray, most: int, generator: np.random.Generator, form: str = "full"
) -> Gaussians | None:
    """A mixture that explains rows better than N(0, I) does, if there is one.

    Mixtures are fitted to four fifths of the rows. The fifth that is left out chooses among them
    and N(0, I): a mixture must gain more there than the standard error of its gain. It then sees
    all rows.

    Parameters
    ----------
    rows : (N, D) array
        They have about zero means and unit variances.
    most : int
        Components, at most. Few rows allow fewer.
    generator : Generator
    form : {"full", "diag"}
        Covariances.

    Returns
    -------
    mixture : Gaussians or None

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> rows = 0.3 * rng.normal(size=(400, 2)) + rng.choice([-1.0, 1.0], size=(400, 1))
    >>> better_mixture(rows, 2, rng).means.round().tolist()
    [[-1.0, -1.0], [1.0, 1.0]]
    >>> better_mixture(rng.normal(size=(400, 2)), 4, rng)
    """
    n_rows = min(rows.shape[0], _MOST_ROWS * most)
    size = min(most, n_rows // (_ROWS_PER_COLUMN * (rows.shape[1] + 1)))
    if size < 2:
        return None
    seen = np.asarray(rows[generator.permutation(rows.shape[0])[:n_rows]], np.float64)
    held_out, kept = np.split(seen, [n_rows // _HELD_OUT])
    base = -0.5 * (held_out**2 + np.log(2.0 * np.pi)).sum(axis=1)
    best, best_gain = None, 0.0
    while size > 1:
        found = _maximise(kept, _begin(kept, size, generator, form), form)
        gains = logsumexp(found.log_joint(held_out), axis=1) - base
        error = gains.std() / np.sqrt(held_out.shape[0])
        if gains.mean() > max(best_gain, error):
            best, best_gain = found, gains.mean()
        size //= 2
    return None if best is None else _maximise(seen, best, form)


def _begin(rows: np.ndarray, size: int, generator: np.random.Generator, form: str) -> Gaussians:
    """Gaussians of the rows nearest to centres that lie apart (k-means++)."""
    centres = rows[generator.integers(rows.shape[0], size=1)]
    nearest = np.square(rows - centres).sum(axis=1)
    for _ in range(1, size):
        # With fewer places than centres, any row will do.
        shares = nearest + 1e-12
        drawn = generator.choice(rows.shape[0], p=shares / shares.sum())
        centres = np.vstack([centres, rows[drawn]])
        nearest = np.minimum(nearest, np.square(rows - rows[drawn]).sum(axis=1))
    distances = np.square(rows[:, None] - centres).sum(axis=2)
    shares = np.equal(distances.argmin(axis=1)[:, None], np.arange(size)).astype(np.float64)
    return _gaussians(rows, shares, form)


def _maximise(rows: np.ndarray, mixture: Gaussians, form: str) -> Gaussians:
    """EM, until a row gains next to nothing."""
    last = -np.inf
    for _ in range(_MOST_ITERATIONS):
        scores = mixture.log_joint(rows)
        totals = logsumexp(scores, axis=1)
        if totals.mean() - last < _TOLERANCE:
            break
        last = totals.mean()
        mixture = _gaussians(rows, np.exp(scores - totals[:, None]), form)
    return mixture


def _gaussians(rows: np.ndarray, shares: np.ndarray, form: str) -> Gaussians:
    """The Gaussians of rows (N, D) that belong to them by shares (N, m)."""
    n_rows, n_features = rows.shape
    counts = shares.sum(axis=0)
    means = (shares.T @ rows) / np.maximum(counts, 1e-12)[:, None]
    away = rows - means[:, None]
    scatter = (shares.T[:, :, None] * away).swapaxes(1, 2) @ away
    identity = np.eye(n_features)
    covariances = (scatter + _PRIOR_ROWS * identity) / (counts + _PRIOR_ROWS)[:, None, None]
    covariances += _SMALLEST_VARIANCE * identity
    if form == "diag":
        covariances *= identity
    weights = (counts + 1.0) / (n_rows + counts.shape[0])
    return Gaussians(weights, means, np.tril(np.linalg.inv(np.linalg.cholesky(covariances))))
