"""Shrinkage of a covariance towards a target, chosen by its rows, each left out once.

For a component of n rows with residuals r about their mean, S their covariance (divisor n), a
target T and a weight lambda, the covariance in use is

    G = (1 - lambda) n / (n - 1) S + lambda T.

Without one row of weight w it is G - b w r r', b = (1 - lambda) n / (n - 1)^2, and the mean moves
away from that row by the factor n / (n - w). With d = r' G^-1 r the log-density of the row under
the component estimated from the others is, up to a constant,

    -1/2 [ log|G| + log(1 - b w d) + (n / (n - w))^2 d / (1 - b w d) ]

(after Hoffbeck and Landgrebe 1996, and Theiler 2012). Its sum over the rows is maximised over
lambda. S and T have a common eigenbasis, so that all lambdas cost little more than one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_MOST_LEVERAGE = 0.98  # A row that makes up this much of a covariance, or more, has all of it.
_WHOLE = 1.0 - 1e-9  # Leverage of a row without which there is no covariance.
_LEAST_REST = 0.05  # Effective rows that a component keeps at least when one is left out.
FEWEST_ROWS = 0.5  # With fewer effective rows there is no component.
_NOTHING = 1e4  # Decrease of its log-density then.
_FIRMNESS = 1e-10  # Added to targets, whose variances are about one.
_BLOCK = 256  # Matrices decomposed at a time.
_PARTIAL_NUMBERS = 2_000_000  # Numbers in matrices of partial rows.
_LEAST_COUNT = 2.5  # Effective rows of a component at least, of which little was seen.


class Witnesses(NamedTuple):
    """Rows of some components, about their means."""

    components: np.ndarray  # (M,)
    residuals: np.ndarray  # (M, m, C) NaN where a value is missing.
    #: (M, m) How much of a row belongs to the component, in units of a mean row; 0 where there is
    #: none.
    weights: np.ndarray
    noise: np.ndarray | None = None  # (M, m, C, C) Covariances.


def without_row(
    distances: np.ndarray,
    weights: np.ndarray,
    counts: np.ndarray,
    own: np.ndarray,
    most: float = _MOST_LEVERAGE,
) -> np.ndarray:
    """Decrease of the log-density of a row when its component is estimated without it.

    distances d = r' G^-1 r, weights w of the rows in the component, its effective rows n, and the
    share 1 - lambda of the sample covariance; all broadcast. No row has more leverage than `most`.

    >>> float(without_row(np.array(0.0), np.array(1.0), np.array(1e9), np.array(1.0))) < 1e-8
    True
    """
    rest = np.maximum(counts - weights, _LEAST_REST)
    moved = np.square(counts / rest)
    shares = own * counts / np.square(np.maximum(counts - 1.0, _LEAST_REST)) * weights
    leverage = np.minimum(shares * distances, most)
    fall = 0.5 * (np.log1p(-leverage) + distances * (moved / (1.0 - leverage) - 1.0))
    # Without its only row a component is not there.
    return np.asarray(np.where(counts - weights > FEWEST_ROWS, fall, _NOTHING))


def leave_one_out_scores(
    covariances: np.ndarray,
    targets: np.ndarray,
    counts: np.ndarray,
    residuals: np.ndarray,
    weights: np.ndarray,
    leanings: np.ndarray,
    kept: float = 0.0,
    noise: np.ndarray | None = None,
) -> np.ndarray:
    """Mean log-density (M, L) of left-out rows, for each shrinkage, up to a constant.

    covariances (M, D, D) are n / (n - 1) S, targets (M, D, D) have variances of about one, counts
    (M,) are n > 1, residuals (M, m, D) have weights (M, m), 0 for padding; noise is (M, m, D, D).
    `kept` is the effect of a row on a target made of the same rows, relative to that on their
    covariance.
    """
    if noise is not None or np.isnan(residuals).any():
        return _partial_scores(
            covariances, targets, counts, residuals, weights, leanings, kept, noise
        )
    scores = np.empty(leanings.shape)
    for start in range(0, covariances.shape[0], _BLOCK):
        part = slice(start, start + _BLOCK)
        # A little more on the diagonal, as correlations that all share may be singular.
        firm = targets[part] + _FIRMNESS * np.eye(targets.shape[1])
        whitener = np.linalg.inv(np.linalg.cholesky(firm))
        white = whitener @ covariances[part] @ whitener.transpose(0, 2, 1)
        eigenvalues, vectors = np.linalg.eigh(white)
        axes = whitener.transpose(0, 2, 1) @ vectors
        squares = np.square(residuals[part] @ axes)
        # Variances (M, L, D) along the common axes.
        own = 1.0 - leanings[part][:, None, :]
        spread = own.transpose(0, 2, 1) * np.maximum(eigenvalues, 0.0)[:, None, :]
        spread = np.maximum(spread + leanings[part][:, :, None], 1e-14)
        distances = squares @ (1.0 / spread).transpose(0, 2, 1)
        w, n = weights[part][:, :, None], counts[part][:, None, None]
        falls = without_row(distances, w, n, own + (1.0 - own) * kept, _WHOLE)
        densities = -0.5 * (np.log(spread).sum(axis=2)[:, None, :] + distances) - falls
        # A row without which there is no covariance rules the choice out.
        densities[own * n / np.square(n - 1.0) * w * distances >= _WHOLE] = -_NOTHING
        scores[part] = np.einsum("kml,km->kl", densities, weights[part])
    return np.asarray(scores / np.maximum(weights.sum(axis=1), 1e-300)[:, None])


def told_shares(
    covariances: np.ndarray,
    residuals: np.ndarray,
    weights: np.ndarray,
    noise: np.ndarray | None,
) -> np.ndarray:
    """Observed information (M,) of rows (M, m, D) on a covariance, relative to complete rows.

    It is the share of pairs of columns that were seen, less for values with wide noise.
    """
    told = (~np.isnan(residuals)).astype(np.float64)
    if noise is not None:
        own = np.diagonal(covariances, axis1=1, axis2=2)[:, None, :]
        told *= own / (own + np.diagonal(noise, axis1=2, axis2=3))
    pairs = np.square(told.sum(axis=2))
    total = np.maximum(weights.sum(axis=1) * residuals.shape[2] ** 2, 1e-300)
    return np.asarray((pairs * weights).sum(axis=1) / total)


def _partial_scores(
    covariances: np.ndarray,
    targets: np.ndarray,
    counts: np.ndarray,
    residuals: np.ndarray,
    weights: np.ndarray,
    leanings: np.ndarray,
    kept: float,
    noise: np.ndarray | None,
) -> np.ndarray:
    """`leave_one_out_scores` by seen cells of rows: NaN is missing, and values have noise.

    Rows completed by a component's expectation would speak for the component as it is.
    """
    scores = np.empty(leanings.shape)
    D = covariances.shape[1]
    n_together = max(1, _PARTIAL_NUMBERS // max(1, residuals.shape[1] * D * D))
    for start in range(0, covariances.shape[0], n_together):
        part = slice(start, start + n_together)
        seen = ~np.isnan(residuals[part])
        both = seen[:, :, :, None] & seen[:, :, None, :]
        # A value that was not seen has a row and column of the unit matrix, and no distance.
        rest = np.eye(D) * ~seen[:, :, None, :]
        if noise is not None:
            rest = rest + np.where(both, noise[part], 0.0)
        away = np.where(seen, residuals[part], 0.0)[..., None]
        w = weights[part]
        firm = targets[part] + _FIRMNESS * np.eye(D)
        own_noise = None if noise is None else noise[part]
        told = told_shares(firm, residuals[part], w, own_noise)
        n = np.maximum(counts[part] * told, _LEAST_COUNT)[:, None]
        for choice in range(leanings.shape[1]):
            if choice and np.array_equal(leanings[part, choice], leanings[part, choice - 1]):
                scores[part, choice] = scores[part, choice - 1]
                continue
            leaning = leanings[part, choice][:, None]
            mixed = covariances[part] + leaning[:, :, None] * (firm - covariances[part])
            # A covariance of few rows may be singular.
            mixed = mixed + 1e-12 * np.eye(D)
            roots = np.linalg.cholesky(np.where(both, mixed[:, None], 0.0) + rest)
            distances = np.square(np.linalg.solve(roots, away)[..., 0]).sum(axis=2)
            sizes = 2.0 * np.log(np.diagonal(roots, axis1=2, axis2=3)).sum(axis=2)
            own = 1.0 - leaning
            falls = without_row(distances, w, n, own + (1.0 - own) * kept, _WHOLE)
            densities = -0.5 * (sizes + distances) - falls
            whole = own * n / np.square(n - 1.0) * w * distances >= _WHOLE
            densities[whole] = -_NOTHING
            scores[part, choice] = (densities * w).sum(axis=1)
    return np.asarray(scores / np.maximum(weights.sum(axis=1), 1e-300)[:, None])
