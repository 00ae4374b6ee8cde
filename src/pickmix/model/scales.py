"""How unusual rows are at several scales of one mixture.

A scale is a number of components, left by merging, and a width by which all of them are widened.
Few or wide components see rows far from the bulk, many or narrow ones rows between groups. One
more scale takes every column by itself. A log-density becomes a tail probability among rows that
the mixture has not seen, so that scales can be compared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pickmix.checks import refuse_overflow
from pickmix.families.layout import Layout, Moments, merge_groups
from pickmix.model.conditional import conditional_moments
from pickmix.model.merging import (
    LevelSums,
    Merges,
    group_components,
    merge_model,
    score_levels,
    with_moments,
)
from pickmix.model.mixture import MixtureModel
from pickmix.model.rows import QueryRows, log_sum_exp

WIDTHS = (0.01, 0.1, 1.0)  # Variances added to those of components, in units of all rows'.
_LEVELS = (1, 4, 16)  # Numbers of components that are left, beside all of them.
_COLUMN_WIDTH = 0.1  # Of the scale of single columns.
_MOST_AXES = 256  # Columns up to which axes of components pay.
_NUMBERS = 500_000  # In arrays of rows, nodes and columns.
_TAIL = 0.1  # Share of the rows that the exponential tail is fitted to.
_KNOTS = 91  # Quantiles that stand for the distribution above it.
_LEAST_EXCESS = 0.05  # Of the tail, in units of the distance from there to the median.


def scale_names(n_components: int) -> list[str]:
    """What the scales of a mixture are, in the order of `ScaledMixture.log_densities`."""
    names = [
        f"{level} component{'s' if level > 1 else ''}, widened by {width:g}"
        for level in levels_of(n_components).tolist()
        for width in WIDTHS
    ]
    return [*names, "each column by itself"]


def levels_of(n_components: int) -> np.ndarray:
    """Numbers of components (G,) at which rows are scored, rising."""
    return np.array([*(k for k in _LEVELS if k < n_components), n_components], dtype=np.int64)


def widen(layout: Layout, moments: Moments, whole: Moments, width: float) -> Moments:
    """Moments of components convolved with noise of `width` times the variances of `whole`.

    Shares of levels, and rates, are mixed with those of `whole` by width / (1 + width).
    """
    scatter, mean = moments.scatter.copy(), moments.mean.copy()
    rows, columns = layout.pairs()
    scatter[:, rows == columns] += width * whole.scatter[0, rows == columns]
    share = width / (1.0 + width)
    has_no_product = layout.first > np.arange(layout.n_coordinates)
    mean[:, has_no_product] += share * (whole.mean[0] - mean)[:, has_no_product]
    counts = (1.0 - share) * moments.counts + share * whole.counts[0]
    return moments._replace(scatter=scatter, mean=mean, counts=counts)


class ScaledMixture:
    """A mixture of K components at all of its scales."""

    def __init__(self, model: MixtureModel, by_column: bool) -> None:
        self.model = model
        self.levels = levels_of(model.n_components)
        self._merges = merge_model(model)
        self._axes = _Axes(model, self._merges, self.levels) if _Axes.suit(model) else None
        self._columns: list[tuple[MixtureModel, Moments]] = []
        for column in range(model.n_columns if by_column else 0):
            marginal = model.marginal(np.array([column]))
            moments = marginal.moments(marginal.centre())
            self._columns.append((marginal, _widened(marginal, moments, _COLUMN_WIDTH)))

    def log_densities(self, rows: np.ndarray) -> np.ndarray:
        """Log-densities (G * W, N), level by level; expected ones where cells are missing."""
        return self._over_gaps(self._log_densities, rows)

    def column_log_densities(self, rows: np.ndarray) -> np.ndarray:
        """Log-densities (D, N) of single cells, by the mixtures of their columns."""
        return self._over_gaps(self._column_log_densities, rows)

    def _over_gaps(self, query: Callable[[np.ndarray], np.ndarray], rows: np.ndarray) -> np.ndarray:
        """Answers (..., N) to a query of complete rows, as means over two ways to fill gaps.

        Both are a standard deviation away from what is expected there given the other cells. So a
        quadratic function has its expected value, and gaps are neither usual nor unusual.
        """
        missing = np.isnan(rows)
        with_gaps = np.flatnonzero(missing.any(axis=1))
        if not with_gaps.size:
            return query(rows)
        partial = rows[with_gaps]
        targets = np.flatnonzero(missing.any(axis=0))
        conditional = QueryRows(self.model, partial)
        means, deviations = conditional_moments(conditional, targets)
        is_number = conditional.kinds()[targets] == "number"
        is_count = conditional.kinds()[targets] == "count"
        deviations = np.where(is_number | is_count, deviations, 0.0)
        complete = np.repeat(rows[None], 2, axis=0)
        for side, sign in zip(complete, (-1.0, 1.0), strict=True):
            values = means + sign * deviations
            values = np.where(is_count, np.maximum(np.rint(values), 0.0), values)
            side[with_gaps[:, None], targets] = np.where(
                missing[np.ix_(with_gaps, targets)], values, partial[:, targets]
            )
        answers = query(complete[0])
        answers[..., with_gaps] += query(complete[1][with_gaps])
        answers[..., with_gaps] *= 0.5
        return answers

    @functools.cached_property
    def _by_width(self) -> list[Merges]:
        return [
            replace(self._merges, moments=_widened(self.model, self._merges.moments, width))
            for width in WIDTHS
        ]

    def _log_densities(self, rows: np.ndarray) -> np.ndarray:
        if self._axes is not None:
            return self._axes.log_densities(rows)
        scores = [
            np.concatenate(list(score_levels(self.model, merges, rows, self.levels)), axis=1)
            for merges in self._by_width
        ]
        return np.stack(scores, axis=1).reshape(-1, rows.shape[0])

    def _column_log_densities(self, rows: np.ndarray) -> np.ndarray:
        scores = np.empty(rows.shape[::-1])
        for column, (model, moments) in enumerate(self._columns):
            blocks = model.log_joint_blocks(rows[:, [column]], moments=moments)
            scores[column] = np.concatenate(
                [log_sum_exp(log_joint) + log_base for log_joint, log_base, _ in blocks]
            )
        return scores

    def at(self, scale: int) -> MixtureModel:
        """The mixture at a scale; at that of single columns, all components, widened as they."""
        level, width = divmod(scale, len(WIDTHS))
        if level == self.levels.shape[0]:
            level, width = level - 1, WIDTHS.index(_COLUMN_WIDTH)
        model = group_components(self.model, self._merges.tree().labels(int(self.levels[level])))
        centre = model.centre()
        return with_moments(model, _widened(model, model.moments(centre), WIDTHS[width]), centre)


class _Axes:
    """Nodes of a merge tree of Gaussians by their principal axes, which all widths share.

    In units in which all rows have variances of 1, a covariance with variances v along its axes has
    v + h along the same axes when it is widened by h. So one product of rows and axes serves all.
    """

    def __init__(self, model: MixtureModel, merges: Merges, levels: np.ndarray) -> None:
        self._sums = LevelSums(merges.children, levels)
        moments = Moments(*(part[self._sums.nodes] for part in merges.moments))
        i, j = model.family.layout.pairs()
        whole = _whole(model, merges.moments).scatter[0, i == j]
        self._scale = np.sqrt(whole)
        covariances = np.empty((moments.mass.shape[0], whole.shape[0], whole.shape[0]))
        scatter = moments.scatter / (self._scale[i] * self._scale[j])
        covariances[:, i, j] = covariances[:, j, i] = scatter
        variances, self._axes = np.linalg.eigh(covariances)
        # (M, W, D), for all widths.
        widened = np.maximum(variances, 0.0)[:, None] + np.array(WIDTHS)[:, None]
        self._precisions = 1.0 / widened
        self._centre, means = model.centre(), (moments.mean / self._scale)[:, None]
        self._means = means @ self._axes
        volumes = np.log(2.0 * np.pi * widened).sum(axis=2) + np.log(whole).sum()
        self._constants = np.log(moments.mass)[:, None] - 0.5 * volumes

    @staticmethod
    def suit(model: MixtureModel) -> bool:
        """Whether components are Gaussians with covariances of their own, of some columns."""
        layout = model.family.layout
        is_full = not layout.first.any() and layout.n_levels == 0 and layout.kernels is None
        return is_full and not model.family.has_shared_parts and layout.n_columns <= _MOST_AXES

    def log_densities(self, rows: np.ndarray) -> np.ndarray:
        """Log-densities (G, W, N) as (G * W, N)."""
        M, D = self._means.shape[0], rows.shape[1]
        n_levels = self._sums.n_levels
        out = np.empty((n_levels, len(WIDTHS), rows.shape[0]))
        n_rows = max(16, _NUMBERS // (M * D))
        for first in range(0, rows.shape[0], n_rows):
            block = slice(first, first + n_rows)
            away = ((rows[block] - self._centre) / self._scale) @ self._axes
            away -= self._means
            with np.errstate(over="ignore"):
                squares = np.square(away, out=away).transpose(0, 2, 1)
                log_joint = self._constants[:, :, None] - 0.5 * (self._precisions @ squares)
            for width in range(len(WIDTHS)):
                scores = self._sums(log_joint[:, width])
                refuse_overflow(scores)
                out[:, width, block] = scores
        return out.reshape(-1, rows.shape[0])


def _widened(model: MixtureModel, moments: Moments, width: float) -> Moments:
    """Moments of a mixture, or of its merges, widened by the variances of the whole."""
    return widen(model.family.layout, moments, _whole(model, moments), width)


def _whole(model: MixtureModel, moments: Moments) -> Moments:
    components = Moments(*(part[: model.n_components] for part in moments))
    labels = np.zeros(model.n_components, dtype=np.int64)
    return merge_groups(model.family.layout, components, labels)


@dataclass(frozen=True)
class Tails:
    """Tail probabilities among reference scores: of their quantiles, and exponential below."""

    knots: np.ndarray  # (S, Q) Quantiles of each of S scores, at `_probabilities`.
    excess: np.ndarray  # (S,) Mean distance below the first of them.
    share: float = _TAIL  # Of the scores, below the first.

    @classmethod
    def of(cls, scores: np.ndarray, share: float = _TAIL) -> Tails:
        """The tails of reference scores (S, N)."""
        knots = np.quantile(scores, _probabilities(share), axis=1).T
        below = np.maximum(knots[:, :1] - scores, 0.0)
        excess = below.sum(axis=1) / np.maximum(np.count_nonzero(below, axis=1), 1)
        least = _LEAST_EXCESS * (np.median(scores, axis=1) - knots[:, 0])
        return cls(knots, np.maximum(excess, np.maximum(least, 1e-9)), share)

    def surprise(self, scores: np.ndarray) -> np.ndarray:
        """-log P(reference score <= score), for scores (S, N)."""
        logs = -np.log(_probabilities(self.share))
        found = np.stack([np.interp(s, k, logs) for s, k in zip(scores, self.knots, strict=True)])
        first = self.knots[:, :1]
        return np.asarray(found + np.maximum(first - scores, 0.0) / self.excess[:, None])


def _probabilities(share: float) -> np.ndarray:
    """Probabilities (Q,) of the quantiles that are kept, dense where they are small."""
    return np.asarray(np.geomspace(share, 1.0, _KNOTS))
