"""Small mixtures, each of a part of the rows, that score rows which they have not seen.

Whether a row belongs to a part follows from its values alone, by a hash. So it is known of any row
which mixtures have seen it, also later and in streams, and equal rows are left out together.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pickmix.estimators.family_fit import fit_family
from pickmix.estimators.family_mixture import FamilyMixture
from pickmix.estimators.fit_rows import FitRows
from pickmix.families.registry import Description, make_family
from pickmix.model.mixture import MixtureModel
from pickmix.model.scales import ScaledMixture, scale_names

# Chosen on sets of ADBench, most of all on those of up to 7,000 rows: see docs/howto/anomalies.md.
_LEAST_SHARE, _LARGEST_SHARE = 0.25, 0.5  # Of the rows, that each mixture is fitted to,
_PREFERRED_ROWS = 256  # as many as these if that is between the two,
MOST_ROWS = 4000  # and never more than these.
_ROWS_PER_COMPONENT = 15
_MOST_COMPONENTS = 32
_MOST_NUMBERS = 200_000  # In the parameters of a mixture.
_MAX_ITER = 10  # Passes of a fit. More find a better density and not more anomalies.
_N_BY_COLUMN = 2  # Mixtures that single columns are scored by.
_ROWS_AT_ONCE = 50_000
# Rows equal to more than a thousandth of all others count as separate ones.
_LEAST_COPIES, _COPIES_SHARE = 8, 1000
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass
class PartMixtures:
    """B mixtures of one family and number of components, and what parts they were fitted to."""

    family: Description
    floors: Any  # Added to variances: a number, or one per column.
    limits: np.ndarray  # (D,) The largest value of each column, which gives the levels.
    share: float  # Of the rows that are in each part.
    #: For each mixture arrays and numbers, as `FamilyMixture` names them.
    fits: list[dict[str, Any]]
    n_jobs: int | None = None

    LEFT_OUT: ClassVar = "of mixtures that were fitted without the row"
    ALL: ClassVar = "of all mixtures"

    @classmethod
    def fit(
        cls,
        rows: np.ndarray,
        family: Description,
        floors: Any,
        limits: np.ndarray,
        n_components: int | str,
        seeds: list[int],
        n_jobs: int | None,
    ) -> PartMixtures:
        """Fit a mixture for each seed to its part of the rows (N, D)."""
        rows = rows[~np.isnan(rows).all(axis=1)]
        N, D = rows.shape
        share = float(np.clip(_PREFERRED_ROWS / N, _LEAST_SHARE, _LARGEST_SHARE))
        share = min(share, MOST_ROWS / N)
        most = max(1, min(_MOST_COMPONENTS, 2 * _MOST_NUMBERS // (D * (D + 1))))
        K = max(1, min(most, int(N * share) // _ROWS_PER_COMPONENT))
        if n_components != "auto":
            K = min(int(n_components), max(1, int(N * share) // 4))
        marks, made = _marks(rows), make_family(family, limits[None], floors)
        fits = []
        for number, seed in enumerate(seeds):
            members = _members_with_values(rows, _is_member(marks, number, share))
            part = FitRows(rows[members], None)
            result = fit_family(made, part, K, seed, max_iter=_MAX_ITER, n_jobs=n_jobs)
            fits.append(
                {
                    "weights_": result.weights,
                    "parameters_": result.parameters,
                    "_effective_counts": result.effective_counts,
                    "n_rows_seen_": float(part.rows.shape[0]),
                    "n_steps_": result.n_steps,
                }
            )
        return cls(family, floors, limits, share, fits, n_jobs)

    def learn(self, rows: np.ndarray) -> PartMixtures:
        """The mixtures after one more batch (N, D) of a stream."""
        marks, fits = _marks(rows), []
        for number, fit in enumerate(self.fits):
            batch = rows[_is_member(marks, number, self.share) & ~np.isnan(rows).all(axis=1)]
            if batch.shape[0]:
                options = {"reg_covar": self.floors, "random_state": 0, "n_jobs": self.n_jobs}
                mixture = FamilyMixture(self.family, self.n_components, **options)
                mixture._learn_columns(self.limits[None])
                mixture.n_features_in_ = batch.shape[1]
                mixture.__dict__.update(fit, background_=None, n_component_evaluations_=0)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    mixture.partial_fit(batch)
                fit = {name: getattr(mixture, name) for name in fit}
            fits.append(fit)
        return PartMixtures(self.family, self.floors, self.limits, self.share, fits, self.n_jobs)

    @property
    def n_components(self) -> int:
        return int(self.fits[0]["weights_"].shape[0])

    @property
    def scales(self) -> list[str]:
        return scale_names(self.n_components)

    def models(self) -> list[MixtureModel]:
        family = make_family(self.family, self.limits[None], 0.0)
        return [
            MixtureModel(family, fit["weights_"], fit["parameters_"], n_jobs=self.n_jobs)
            for fit in self.fits
        ]

    @functools.cached_property
    def scaled(self) -> list[ScaledMixture]:
        """The mixtures at all scales."""
        models = enumerate(self.models())
        return [ScaledMixture(model, number < _N_BY_COLUMN) for number, model in models]

    def outside(self, rows: np.ndarray) -> np.ndarray:
        """Which mixtures were fitted without which rows, (B, N); all where none was."""
        marks = _marks(rows, copies=False)
        members = np.stack([_is_member(marks, b, self.share) for b in range(len(self.fits))])
        return np.asarray(~members | members.all(axis=0))

    def log_densities(self, rows: np.ndarray, *kinds: str) -> list[np.ndarray]:
        """Log-densities (S, N) at all scales, of each kind: LEFT_OUT, ALL.

        Those left out are means of logarithms, those of all mixtures are of their mean density.
        Single columns, the last scale, are scored by the first mixtures either way.
        """
        blocks = [
            self._log_densities(rows[first : first + _ROWS_AT_ONCE], kinds)
            for first in range(0, rows.shape[0], _ROWS_AT_ONCE)
        ]
        return [np.concatenate(parts, axis=1) for parts in zip(*blocks, strict=True)]

    def _log_densities(self, rows: np.ndarray, kinds: tuple[str, ...]) -> list[np.ndarray]:
        shape, outside = (len(self.scales) - 1, rows.shape[0]), self.outside(rows)
        sums = {self.LEFT_OUT: np.zeros(shape), self.ALL: np.full(shape, -np.inf)}
        by_column = np.zeros(rows.shape[0])
        for number, mixture in enumerate(self.scaled):
            if number < _N_BY_COLUMN:
                by_column += mixture.column_log_densities(rows).sum(axis=0) / _N_BY_COLUMN
            left_out = np.flatnonzero(outside[number])
            if self.ALL in kinds:
                scores = mixture.log_densities(rows)
                np.logaddexp(sums[self.ALL], scores, out=sums[self.ALL])
                sums[self.LEFT_OUT][:, left_out] += scores[:, left_out]
            elif left_out.size:
                sums[self.LEFT_OUT][:, left_out] += mixture.log_densities(rows[left_out])
        sums[self.LEFT_OUT] /= outside.sum(axis=0)
        sums[self.ALL] -= np.log(len(self.fits))
        return [np.concatenate([sums[kind], by_column[None]]) for kind in kinds]


def _marks(rows: np.ndarray, copies: bool = True) -> np.ndarray:
    """A pseudo-random number (N,) of each row, the same for equal rows.

    With `copies`, those beyond the first few have other ones: a row that is equal to many is not
    left out with all of them.
    """
    # Equal numbers, and gaps, have equal bits.
    cells = np.where(np.isnan(rows), np.nan, rows + 0.0).view(np.uint64)
    marks = np.zeros(rows.shape[0], dtype=np.uint64)
    for column in range(rows.shape[1]):
        marks = _mixed((marks + _GOLDEN) ^ cells[:, column])
    if not copies:
        return marks
    order = np.argsort(marks, kind="stable")
    starts = np.flatnonzero(np.diff(marks[order], prepend=~marks[order[:1]]))
    numbers = np.arange(marks.shape[0])
    numbers[order] = numbers - np.repeat(starts, np.diff(starts, append=marks.shape[0]))
    together = max(_LEAST_COPIES, rows.shape[0] // _COPIES_SHARE)
    group = (numbers // together).astype(np.uint64)
    return np.where(group > 0, _mixed(marks + group * _GOLDEN), marks)


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(numbers ^ (numbers >> np.uint64(31)))


def _is_member(marks: np.ndarray, number: int, share: float) -> np.ndarray:
    """Whether rows (N,) are in the part of a mixture."""
    mixed = _mixed(marks + np.uint64((number + 1) * 0xD1342543DE82EF95 % 2**64))
    return (mixed >> np.uint64(11)) < np.uint64(share * 2**53)


def _members_with_values(rows: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Members (N,) of a part, and more where it is too small, or has a column without values."""
    if np.count_nonzero(members) < 4:
        return np.ones_like(members)
    for column in np.flatnonzero(np.isnan(rows[members]).all(axis=0)):
        members[np.flatnonzero(~np.isnan(rows[:, column]))[:_ROWS_PER_COMPONENT]] = True
    return members
