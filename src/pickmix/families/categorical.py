"""Categories: independent columns of levels given the component."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, xlogy

from pickmix.families.base import Family, Parameters, Prior, RandomSource, check_not_negative
from pickmix.families.conditioning import LevelPart, Part
from pickmix.families.layout import SCALE, Model, Moments, make_layout
from pickmix.threads import Threads

_LEAST_PROBABILITY = 1e-100  # No probability is smaller: its logarithm must be finite.
# Pseudo-rows to choose from, and at most in units of the mean component's rows: columns in which
# components do not differ yet would get infinitely many, and could then never part.
_PRIOR_COUNTS = 2.0 ** np.arange(-4.0, 9.0)
_MOST_PRIOR = 1.0
_JUDGED = 200  # Components from which pseudo-rows are estimated.
_POOLINGS_PER_CHOICE = 5
_LEVEL_COUNT = 0.5  # Pseudo-rows per level, so that no level is impossible.
_SPLIT_TILT = 0.9  # Halves of a split differ by at most this part of each probability.
_WIDTH = 0.5  # Square roots of the frequencies of a single row vary by this much (Hellinger).
_SUM_TOLERANCE = 1e-6  # Sums of probabilities differ from 1 by rounding only.


@dataclass
class CategoricalPrior(Prior):
    """Dirichlet priors of each column, proportional to its overall frequencies."""

    n_rows: float  # Rows behind all statistics together.
    offsets: np.ndarray  # (Q + 1,) The levels of column q are offsets[q]..offsets[q + 1] of L.
    frequencies: np.ndarray  # (L,) Overall frequencies of the levels.
    #: (Q,) Pseudo-rows with these frequencies, added to every component, by empirical Bayes; 0
    #: where there is no prior.
    counts: np.ndarray
    _n_poolings: int = 0

    def pool(self, moments: Moments, masses: np.ndarray) -> None:
        if not self.counts.any():
            return
        rows = np.maximum(masses * self.n_rows, 0.0)
        seen = rows @ moments.counts + _LEVEL_COUNT
        totals = np.add.reduceat(seen, self.offsets[:-1])
        self.frequencies = seen / np.repeat(totals, np.diff(self.offsets))
        if self._n_poolings % _POOLINGS_PER_CHOICE == 0:
            n = rows.shape[0]
            some = np.linspace(0, n - 1, min(_JUDGED, n)).astype(np.int64)
            wished = self._most_probable(rows[some], moments.counts[some])
            self.counts = np.minimum(wished, _MOST_PRIOR * max(float(rows.mean()), 1e-3))
        self._n_poolings += 1

    def _most_probable(self, rows: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """Pseudo-rows (Q,) under which shares (M, L) of `rows` (M,) rows are most probable."""
        counts = rows[:, None] * shares
        evidence = np.empty((_PRIOR_COUNTS.shape[0], self.counts.shape[0]))
        for number, candidate in enumerate(_PRIOR_COUNTS.tolist()):
            # The Dirichlet-multinomial distribution, but for what does not depend on the prior.
            pseudo = candidate * self.frequencies
            levels = (gammaln(counts + pseudo) - gammaln(pseudo)).sum(axis=0)
            whole = (gammaln(rows + candidate) - gammaln(candidate)).sum()
            evidence[number] = np.add.reduceat(levels, self.offsets[:-1]) - whole
        return np.asarray(_PRIOR_COUNTS[evidence.argmax(axis=0)])


_MOST_LEVELS = 100_000  # With more levels a column is an identifier, not a category.


class Categorical(Family):
    """Levels 0, 1, ... with probabilities per component and column; n_levels (Q,) per column.

    >>> family = Categorical([2, 3])
    >>> print(family.check(np.array([[1.0, 2.0], [0.0, 3.0]])))
    column 1 must hold levels, that is whole numbers from 0 to 2, but row 1 holds 3.0
    """

    name = "categorical"

    def __init__(self, n_levels: Sequence[int]) -> None:
        self.n_levels = tuple(int(n) for n in n_levels)
        self.layout = make_layout([], self.n_levels)

    @classmethod
    def of_rows(cls, rows: np.ndarray) -> Categorical:
        """The family whose levels are those of the rows (N, Q): 0 up to the largest.

        >>> Categorical.of_rows(np.array([[0, 4], [1, 2]])).n_levels
        (2, 5)
        """
        largest = np.nanmax(rows, axis=0, initial=0.0, where=np.isfinite(rows))
        if largest.max() >= _MOST_LEVELS:
            column = int(largest.argmax())
            raise ValueError(
                f"family: column {column} of the categorical ones must have levels below "
                f"{_MOST_LEVELS:,}, got {largest[column]:g}. Number the levels 0, 1, 2, ..."
            )
        return cls((np.maximum(largest, 0.0).astype(np.int64) + 1).tolist())

    def centre(self, mean: np.ndarray) -> np.ndarray:
        return np.zeros_like(mean)

    def check(self, rows: np.ndarray, columns: Sequence[int] | None = None) -> str | None:
        last = np.array(self.n_levels) - 1
        sound = (rows >= 0.0) & (rows <= last) & (rows == np.floor(rows))
        wrong = ~(sound | np.isnan(rows))
        if not wrong.any():
            return None
        row, column = np.argwhere(wrong)[0].tolist()
        return (
            f"column {column if columns is None else columns[column]} must hold levels, that is "
            f"whole numbers from 0 to {last[column]}, but row {row} holds "
            f"{float(rows[row, column])!r}"
        )

    def places(self, model: Model) -> np.ndarray:
        return np.asarray(np.exp(0.5 * model.tables))

    def row_places(self, rows: np.ndarray) -> np.ndarray:
        places = np.zeros((rows.shape[0], self.layout.n_levels))
        levels = rows.astype(np.int64) + self.layout.offsets[:-1]
        np.put_along_axis(places, levels, 1.0, axis=1)
        return places

    def widths(self, prior: Prior) -> np.ndarray:
        return np.full(self.layout.n_levels, _WIDTH)

    def make_prior(self, moments: Moments, shrinkage: str, n_rows: float) -> CategoricalPrior:
        counts = np.full(len(self.n_levels), 0.0 if shrinkage == "none" else 1.0)
        frequencies = np.zeros(self.layout.n_levels)
        prior = CategoricalPrior(float(n_rows), self.layout.offsets, frequencies, counts)
        prior.pool(moments, moments.mass / moments.mass.sum())
        return prior

    def maximise(
        self,
        moments: Moments,
        members: np.ndarray,
        prior: Prior,
        model: Model,
        threads: Threads | None,
    ) -> np.ndarray:
        assert isinstance(prior, CategoricalPrior)
        shares = moments.counts[members]
        if prior.counts.any():
            rows = (moments.mass[members] * (model.decay[SCALE] * prior.n_rows))[:, None]
            pseudo = np.repeat(prior.counts, self.n_levels)
            shares = shares + pseudo / (rows + pseudo) * (prior.frequencies - shares)
        totals = np.add.reduceat(shares, self.layout.offsets[:-1], axis=1)
        failures = ~((totals > 0.0) & (totals < np.inf)).all(axis=1)
        good = members[~failures]
        # Sums of shares are 1 but for rounding, which may be that of float32.
        shares = shares[~failures] / np.repeat(totals[~failures], self.n_levels, axis=1)
        model.tables[good] = np.log(np.maximum(shares, _LEAST_PROBABILITY))
        return np.asarray(failures)

    def split(
        self, model: Model, moments: Moments, prior: Prior, uniforms: np.ndarray
    ) -> tuple[Moments, Moments]:
        shares = moments.counts
        tilt = np.where(uniforms < 0.5, -1.0, 1.0)
        starts = self.layout.offsets[:-1]
        # Halves stay distributions, with the whole as their mean.
        tilt -= np.repeat(np.add.reduceat(shares * tilt, starts, axis=1), self.n_levels, axis=1)
        largest = np.maximum.reduceat(np.abs(tilt), starts, axis=1)
        tilt *= _SPLIT_TILT / np.repeat(np.maximum(largest, 1e-3), self.n_levels, axis=1)
        halved = moments._replace(mass=0.5 * moments.mass, squares=0.5 * moments.squares)
        return (
            halved._replace(counts=shares * (1.0 + tilt)),
            halved._replace(counts=shares * (1.0 - tilt)),
        )

    def negative_entropy(self, moments: Moments, shared: np.ndarray) -> np.ndarray:
        return np.asarray(xlogy(moments.counts, moments.counts).sum(axis=1))

    def parameters(self, model: Model, centre: np.ndarray) -> dict[str, np.ndarray]:
        return {"probabilities": np.exp(model.tables)}

    def moments_of(self, parameters: Parameters, centre: np.ndarray) -> Moments:
        shares = np.array(parameters["probabilities"], dtype=np.float64)
        n = shares.shape[0]
        return Moments(np.ones(n), np.ones(n), np.zeros((n, 0)), np.zeros((n, 0)), shares)

    def limits(self) -> np.ndarray:
        return np.array(self.n_levels, dtype=np.float64) - 1.0

    def parameter_shapes(self, n_components: int) -> dict[str, tuple[int, ...]]:
        return {"probabilities": (n_components, int(self.layout.offsets[-1]))}

    def check_parameters(self, parameters: Parameters, prefix: str = "") -> None:
        name, probabilities = f"{prefix}probabilities", parameters["probabilities"]
        check_not_negative(name, probabilities)
        sums = np.add.reduceat(probabilities, self.layout.offsets[:-1], axis=1)
        errors = np.abs(sums - 1.0)
        if errors.max() > _SUM_TOLERANCE:
            worst = float(sums.flat[errors.argmax()])
            raise ValueError(f"{name} must sum to 1 for each column, got a sum of {worst!r}.")

    def n_parameters(self, n_components: int) -> int:
        return n_components * (self.layout.n_levels - len(self.n_levels))

    def sample(
        self, parameters: Parameters, component: int, n: int, random: RandomSource
    ) -> np.ndarray:
        rows = np.empty((n, len(self.n_levels)))
        columns = np.split(parameters["probabilities"][component], self.layout.offsets[1:-1])
        for q, probabilities in enumerate(columns):
            cumulative = np.cumsum(probabilities)
            drawn = np.searchsorted(
                cumulative, random.uniform(size=n) * cumulative[-1], side="right"
            )
            rows[:, q] = np.minimum(drawn, self.n_levels[q] - 1)
        return rows

    def parts(self, parameters: Parameters, centre: np.ndarray) -> list[Part]:
        columns, offsets = np.arange(len(self.n_levels)), self.layout.offsets
        return [LevelPart(columns, parameters["probabilities"], offsets, _LEAST_PROBABILITY)]
