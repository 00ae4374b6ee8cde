"""The prior of low-rank covariances: how far noise variances and directions are shrunk."""

from __future__ import annotations

import bisect
import copy
from dataclasses import dataclass

import numpy as np

from pickmix.families.base import Prior
from pickmix.families.layout import Moments
from pickmix.families.low_rank_layout import LowRankLayout, eigenvalues, shrunk
from pickmix.families.shrinkage import background_reach, shrunk_variances, typical_variances

LEAST_FREEDOM = 0.5  # Degrees of freedom at least.
_LEAST_NOISE = 1e-4  # Of a column's variance in a component.
#: Pseudo-rows to choose from. Fewer than the first let a few rows cost everything.
_PSEUDO_ROWS = (0.125, 0.5, 2.0, 8.0, 24.0, 64.0)
_NO_NOISE = 1e-12  # Relative to the largest pooled noise: none.
_TIED = 1e3  # A column varies if its pooled noise is so many times its floor.
_FEW_TIES = 0.01  # Of variances.


@dataclass
class LowRankPrior(Prior):
    """Pooled noise variances, and how far those of components are shrunk towards them."""

    n_rows: float
    noise: np.ndarray  # (D,) Pooled.
    pseudo_rows: float  # Of all noise variances; negative without any shrinkage.
    judges: bool  # Whether pseudo-rows are chosen by rows that are left out.
    reach: np.ndarray  # (D,) Standard deviations of a background of outlying rows.
    layout: LowRankLayout
    floors: np.ndarray  # (D,) Added to noise variances.
    log_variances: np.ndarray  # (D,) Typical logarithms of noise variances with their floors.
    freedoms: np.ndarray  # (D,) Their pseudo-rows.
    has_ties: bool = False  # Whether columns are constant in some components and not in others.
    #: Whether a component has none of these. New rows that differ in them are for it, or for the
    #: background.
    has_broad: bool = True
    in_logarithms: bool = False  # Whether noise is shrunk to typical logarithms.
    background: int = -1

    @property
    def shrinks(self) -> bool:
        return self.pseudo_rows >= 0.0

    def choices(self) -> list[LowRankPrior]:
        if not self.judges:
            return []
        # The present choice and those next to it; later estimates may move on.
        here = min(bisect.bisect_left(_PSEUDO_ROWS, self.pseudo_rows), len(_PSEUDO_ROWS) - 1)
        made = []
        for value in _PSEUDO_ROWS[max(here - 1, 0) : here + 2]:
            made.append(copy.copy(self))
            made[-1].pseudo_rows, made[-1].in_logarithms = value, False
        if self.has_ties and not self.wants_background:
            # A mean of variances is far above those of columns that hardly vary.
            made.append(copy.copy(self))
            made[-1].in_logarithms = True
        return made

    @property
    def wants_background(self) -> bool:
        return self.has_ties and self.background < 0 and not self.has_broad

    def allow_background(self, extent: np.ndarray) -> None:
        self.reach = background_reach(extent)

    def resume_background(self, component: int, moments: Moments) -> None:
        self.background = component
        self.reach = np.sqrt(moments.scatter[component, : self.layout.n_coordinates])

    def take(self, components: np.ndarray) -> LowRankPrior:
        other = copy.copy(self)
        places = np.flatnonzero(components == self.background)
        other.background = int(places[0]) if places.shape[0] else -1
        return other

    def pool(self, moments: Moments, masses: np.ndarray) -> None:
        if not self.shrinks:
            return
        counts = masses * self.n_rows
        pooled_ones = np.flatnonzero(counts > 1.0)
        pooled_ones = pooled_ones[pooled_ones != self.background]
        noise, freedom = (
            np.empty((pooled_ones.shape[0], len(self.noise))),
            counts[pooled_ones] - 1.0,
        )
        if not freedom.sum() > 0.0:
            return
        for some in self.layout.pieces(pooled_ones.shape[0]):
            members = pooled_ones[some]
            noise[some] = self.estimate(moments.scatter[members], counts[members])[0]
        self.noise = freedom @ noise / freedom.sum()
        is_tied = (noise < self.floors) & (self.noise > _TIED * self.floors)
        self.has_ties = bool(is_tied.mean() > _FEW_TIES)
        self.has_broad = not is_tied.any(axis=1).all()
        if self.has_ties:
            self.log_variances, self.freedoms = typical_variances(
                np.log(noise + self.floors), freedom, self.log_variances
            )

    def estimate(
        self, scatter: np.ndarray, counts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Noise (n, D), shrunk d (n, w) and lambda (n, w) of components with moments (n, P)."""
        layout = self.layout
        total, _, directions = layout.split(scatter)
        raw = eigenvalues(layout, scatter)
        if not self.shrinks:
            d = np.where(raw > 0.0, np.maximum(raw - 1.0, 0.0), 0.0)
        else:
            stretch = 1.0 + 1.0 / np.maximum(counts - 1.0, LEAST_FREEDOM)[:, None]
            total = stretch * total
            # A column that is constant in a component adds no noise to its directions.
            n_columns = (total / np.maximum(total + self.floors, 1e-280)).sum(axis=1)
            d = shrunk(stretch * raw, (n_columns / np.maximum(counts, 1.0))[:, None])
        ratios = d / np.where(raw > 0.0, raw, 1.0)
        explained = (np.square(layout.used(directions)) @ ratios[:, :, None])[:, :, 0]
        least = _LEAST_NOISE if self.shrinks else 1e-10
        noise: np.ndarray = np.maximum(total - explained, least * total + 1e-280)
        return noise, d, raw

    def shrunk_noise(self, noise: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Noise variances (n, D) in use of components of so many rows."""
        if not self.shrinks:
            return np.asarray(noise + self.floors)
        freedom = np.maximum(counts - 1.0, 0.0)[:, None]
        if self.in_logarithms:
            logs = np.log(noise + self.floors)
            used = shrunk_variances(logs, freedom, self.log_variances, self.freedoms)
            return np.asarray(np.maximum(used, self.floors))
        # The size of a component relative to the pooled noise, by columns that vary, shrunk to 1 by
        # two pseudo-rows.
        known = np.maximum(self.noise, 1e-280)
        varies = known >= _NO_NOISE * known.max()
        sizes = (noise[:, varies] / known[varies]).mean(axis=1, keepdims=True)
        target = (freedom * sizes + 2.0) / (freedom + 2.0) * known
        used = (freedom * noise + self.pseudo_rows * target) / (freedom + self.pseudo_rows)
        return np.asarray(used + self.floors)
