"""Partial rows in NumPy: what to read first, and what the compiled sweep must equal.

A row is seen as x = R v + e: v the complete row, R drops missing cells, and e is noise of known
covariance E (possibly none). A missing cell is one of infinite noise, so both are one case:

- *Select on what was seen.* log p(x | k) = log N(x; R m, T) with T = R S R' + E.
- *Then complete.* Given component k, v has the mean m + S R' T^-1 (x - R m) and the covariance
  C = S - S R' T^-1 R S. Statistics add (1, v, v v' + C). C keeps variances from shrinking.

Missing counts and levels are not evaluated, and completed by their component's expectation. Rows
have C coordinates and Q levels, NaN where missing; then, where rows have noise, its C variances, or
its C (C + 1) / 2 covariances, the lower triangles row by row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pickmix.families.layout import Layout, Model, log_weights
from pickmix.kernels.statistics import Sums, stack

LOG_2PI = float(np.log(2.0 * np.pi))


def noise_matrices(layout: Layout, rows: np.ndarray) -> np.ndarray:
    """Covariances (R, C, C) of the noise of rows; zeros where a cell is missing."""
    C, n = layout.n_coordinates, rows.shape[1] - layout.n_columns
    noise = np.zeros((rows.shape[0], C, C))
    if n == C:
        noise[:, np.arange(C), np.arange(C)] = rows[:, layout.n_columns :]
    elif n:
        i, j = np.tril_indices(C)
        noise[:, i, j] = noise[:, j, i] = rows[:, layout.n_columns :]
    seen = ~np.isnan(rows[:, :C])
    return np.where(seen[:, :, None] & seen[:, None, :], noise, 0.0)


def roots_of(layout: Layout, model: Model, members: np.ndarray) -> np.ndarray:
    """Cholesky factors (G, C, C) of covariances; zeros where columns are no Gaussian's."""
    C = layout.n_coordinates
    factors = np.zeros_like(members) if model.factor.shape[0] == 1 else members
    i, j = layout.pairs()
    matrices = np.zeros((members.shape[0], C, C))
    matrices[:, np.arange(C), np.arange(C)] = 1.0
    matrices[:, i, j] = model.factor[factors]
    return np.where(is_gaussian(layout)[:, None], np.linalg.inv(matrices), 0.0)


def is_gaussian(layout: Layout) -> np.ndarray:
    """Whether each coordinate is a Gaussian's, (C,); the others are counts."""
    return np.asarray(layout.first <= np.arange(layout.n_coordinates))


class Conditions(NamedTuple):
    """Rows conditioned on components."""

    log_joint: np.ndarray  # (G, R)
    #: (G, R) Squared distances of what was seen of a row, in units of the component's width
    #: there.
    squares: np.ndarray
    completed: np.ndarray  # (G, R, C) Means of complete coordinates about locations.
    kinds: np.ndarray  # (R,) Rows with the same cells missing and the same noise are of one kind.
    rest: np.ndarray  # (G, U, C, C) Covariances of complete coordinates, for rows of a kind.


def condition(layout: Layout, model: Model, members: np.ndarray, rows: np.ndarray) -> Conditions:
    """Evaluate components `members` (G,) on what was seen of rows (R, D), and complete these."""
    C, G = layout.n_coordinates, members.shape[0]
    values, bent = rows[:, :C], is_gaussian(layout)
    seen = ~np.isnan(values)
    noisy = rows.shape[1] > layout.n_columns
    if noisy:
        masks, kinds = seen & bent, np.arange(rows.shape[0])
    else:
        masks, kinds = np.unique(seen & bent, axis=0, return_inverse=True)
        kinds = kinds.reshape(-1)
    roots = roots_of(layout, model, members)
    covariances = (roots @ roots.transpose(0, 2, 1))[:, None]
    both = masks[:, :, None] & masks[:, None, :]
    # A cell that was not seen has a row and column of the unit matrix, and a distance of 0.
    total = np.where(both, covariances, 0.0) + np.eye(C) * ~masks[:, None, :]
    if noisy:
        total = total + noise_matrices(layout, rows)
    root = np.linalg.cholesky(total)
    inverse = np.linalg.inv(root)
    gain = (covariances * masks[:, None, :]) @ (inverse.transpose(0, 1, 3, 2) @ inverse)
    rest = covariances - gain @ (covariances * masks[:, None, :]).transpose(0, 1, 3, 2)
    away = np.where(seen, values - model.location[members][:, None, :], 0.0)
    straight = away
    away = np.where(bent, away, 0.0)
    white = (inverse[:, kinds] @ away[:, :, :, None])[..., 0]
    completed = (gain[:, kinds] @ away[:, :, :, None])[..., 0]
    if not noisy:
        # What was seen without noise is known.
        completed = np.where(masks[kinds], away, completed)
        rest = np.where(masks[:, :, None] | masks[:, None, :], 0.0, rest)
    squares = np.square(white).sum(axis=2)
    log_roots = np.log(np.diagonal(root, axis1=2, axis2=3)).sum(axis=2)
    normaliser = -log_roots - 0.5 * LOG_2PI * masks.sum(axis=1)
    log_joint = log_weights(model, members)[:, None] + normaliser[:, kinds] - 0.5 * squares
    if model.linear.shape[0]:
        slopes = model.linear[members]
        counted = seen & ~bent
        log_joint = log_joint + (counted @ model.constants[members].T).T
        log_joint = log_joint + np.einsum("grc,gc->gr", straight * counted, slopes)
        completed = completed + np.where(~bent, straight, 0.0)
    for column, offset in zip(rows[:, C : layout.n_columns].T, layout.offsets, strict=False):
        known = ~np.isnan(column)
        level = np.where(known, column, 0.0).astype(np.int64) + offset
        log_joint = log_joint + np.where(known, model.tables[members][:, level], 0.0)
    return Conditions(log_joint.reshape(G, -1), squares, completed, kinds, rest)


def partial_sums(
    layout: Layout,
    model: Model,
    members: np.ndarray,
    rows: np.ndarray,
    weights: np.ndarray,
    rest_weights: np.ndarray | None = None,
) -> Sums:
    """Sums of completed rows (R, D), under weights (G, R); others for covariances, if given."""
    G, C = members.shape[0], layout.n_coordinates
    with np.errstate(over="ignore", invalid="ignore"):
        found = condition(layout, model, members, rows)
    mass, squares = weights.sum(axis=1), np.square(weights).sum(axis=1)
    shares = weights / np.where(mass > 0.0, mass, 1.0)[:, None]
    shift = np.einsum("gr,grc->gc", shares, found.completed)
    mean = np.where(mass[:, None] > 0.0, model.location[members] + shift, 0.0)
    away = found.completed - shift[:, None, :]
    # Masses of rows of each kind bring the covariances of what was not seen.
    rest_weights = weights if rest_weights is None else rest_weights
    masses = np.stack([np.bincount(found.kinds, w, found.rest.shape[1]) for w in rest_weights])
    spread = (weights[:, :, None] * away).transpose(0, 2, 1) @ away
    spread = spread + np.einsum("gu,guij->gij", masses, found.rest)
    i, j = layout.pairs()
    counts = np.zeros((G, layout.n_levels))
    for q, column in enumerate(rows[:, C : layout.n_columns].T):
        known = ~np.isnan(column)
        begin, end = layout.offsets[q], layout.offsets[q + 1]
        level = column[known].astype(np.int64)
        for g in range(G):
            counts[g, begin:end] = np.bincount(level, weights[g, known], end - begin)
        expected = np.exp(model.tables[members, begin:end])
        counts[:, begin:end] += weights[:, ~known].sum(axis=1)[:, None] * expected
    return mass, squares, mean, spread[:, i, j], counts


def condition_pairs(
    layout: Layout, model: Model, rows: np.ndarray, candidates: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Log-joints and squared distances (B, W) of partial rows and candidates (None: all K)."""
    if candidates is None:
        every = np.arange(model.location.shape[0])
        candidates = np.broadcast_to(every, (rows.shape[0], every.shape[0]))
    joint = np.full(candidates.shape, -np.inf)
    squares = np.zeros(candidates.shape)
    for k in np.unique(candidates[candidates >= 0]).tolist():
        row, place = np.nonzero(candidates == k)
        with np.errstate(over="ignore", invalid="ignore"):
            found = condition(layout, model, np.array([k]), rows[row])
        joint[row, place], squares[row, place] = found.log_joint[0], found.squares[0]
    return joint, squares


def partial_pair_sums(
    layout: Layout,
    model: Model,
    rows: np.ndarray,
    weights: np.ndarray,
    components: np.ndarray,
    pair_weights: np.ndarray,
) -> tuple[np.ndarray, Sums]:
    """Components (U,) of pairs (row i, components[i, j]), and sums of their completed rows."""
    members = np.unique(components[components >= 0])
    parts = []
    for k in members.tolist():
        row, place = np.nonzero(components == k)
        w = (pair_weights[row, place] * weights[row])[None]
        parts.append(partial_sums(layout, model, np.array([k]), rows[row], w))
    return members, stack(parts)
