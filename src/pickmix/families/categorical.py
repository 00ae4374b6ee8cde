"""Categories: independent columns of levels given the component."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, xlogy

from pickmix.families.base import (
    Family,
    LeftOut,
    LeftOutPairs,
    Pairs,
    Parameters,
    Part,
    Prior,
    RandomSource,
    SeenRows,
    check_not_negative,
    describe_wrong_cell,
)
from pickmix.families.distributions import Distribution, Levels
from pickmix.families.layout import (
    SCALE,
    Model,
    Moments,
    halves,
    make_layout,
    moments_of_mass_one,
)

LEAST_PROBABILITY = 1e-100  # No probability is smaller: its logarithm must be finite.
# Pseudo-rows to choose from, and at most in units of the mean component's rows: columns in which
# components do not differ yet would get infinitely many, and could then never part.
_PRIOR_COUNTS = 2.0 ** np.arange(-4.0, 9.0)
_MOST_PRIOR = 1.0
_JUDGED = 200  # Components from which pseudo-rows are estimated.
_POOLINGS_PER_CHOICE = 5
_LEVEL_COUNT = 0.5  # Pseudo-rows per level, so that no level is impossible.
LEAST_LEFT = 0.1  # Rows of a level at least, without a prior, when a row is left out.
SPLIT_TILT = 0.9  # Halves of a split differ by at most this part of each probability.
WIDTH = 0.5  # Square roots of the frequencies of a single row vary by this much (Hellinger).
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
        return describe_wrong_cell(
            rows, sound, columns, lambda q: f"levels, that is whole numbers from 0 to {last[q]}"
        )

    def positions(self, model: Model) -> np.ndarray:
        return np.asarray(np.exp(0.5 * model.tables))

    def row_positions(self, rows: np.ndarray) -> np.ndarray:
        positions = np.zeros((rows.shape[0], self.layout.n_levels))
        levels = rows.astype(np.int64) + self.layout.offsets[:-1]
        np.put_along_axis(positions, levels, 1.0, axis=1)
        return positions

    def scales(self, prior: Prior) -> np.ndarray:
        return np.full(self.layout.n_levels, WIDTH)

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
        compiled: bool,
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
        model.tables[good] = np.log(np.maximum(shares, LEAST_PROBABILITY))
        return np.asarray(failures)

    def left_out_falls(self, model: Model, prior: Prior, pairs: LeftOutPairs) -> np.ndarray:
        assert isinstance(prior, CategoricalPrior)
        components, _, rows, which, weights, counts = pairs
        falls = np.zeros(components.shape[0])
        for q, first in enumerate(self.layout.offsets[:-1].tolist()):
            levels = rows[which, q]
            seen = np.flatnonzero(~np.isnan(levels))
            places = first + levels[seen].astype(np.int64)
            logs, weight = model.tables[components[seen], places], weights[seen]
            # Rows of the component and of the prior, all of them and of this level.
            total = counts[seen] + prior.counts[q]
            here = np.exp(logs) * total
            least = np.maximum(prior.counts[q] * prior.frequencies[places], LEAST_LEFT)
            here = np.maximum(here - weight, np.minimum(least, here))
            falls[seen] += logs - np.log(here / np.maximum(total - weight, here))
        return falls

    def split(
        self, model: Model, moments: Moments, prior: Prior, uniforms: np.ndarray
    ) -> tuple[Moments, Moments]:
        shares = moments.counts
        tilt = np.where(uniforms < 0.5, -1.0, 1.0)
        starts = self.layout.offsets[:-1]
        # Halves stay distributions, with the whole as their mean.
        tilt -= np.repeat(np.add.reduceat(shares * tilt, starts, axis=1), self.n_levels, axis=1)
        largest = np.maximum.reduceat(np.abs(tilt), starts, axis=1)
        tilt *= SPLIT_TILT / np.repeat(np.maximum(largest, 1e-3), self.n_levels, axis=1)
        return halves(moments, counts=shares * tilt)

    def negative_entropy(self, moments: Moments, shared: np.ndarray) -> np.ndarray:
        return np.asarray(xlogy(moments.counts, moments.counts).sum(axis=1))

    def parameters(self, model: Model, centre: np.ndarray) -> dict[str, np.ndarray]:
        return {"probabilities": np.exp(model.tables)}

    def moments_of(self, parameters: Parameters, centre: np.ndarray) -> Moments:
        return moments_of_mass_one(counts=np.array(parameters["probabilities"], dtype=np.float64))

    def limits(self) -> np.ndarray:
        return np.array(self.n_levels, dtype=np.float64) - 1.0

    def check_parameters(self, parameters: Parameters, prefix: str = "") -> None:
        name = "probabilities"
        check_sums(f"{prefix}{name}", parameters[name], self.layout.offsets[:-1])

    def n_parameters(self, n_components: int) -> int:
        return n_components * (self.layout.n_levels - len(self.n_levels))

    def parts(self, parameters: Parameters, centre: np.ndarray) -> list[Part]:
        columns = np.arange(len(self.n_levels))
        return [LevelPart(columns, parameters["probabilities"], self.layout.offsets)]


def check_sums(name: str, probabilities: np.ndarray, starts: np.ndarray) -> None:
    """Raise unless probabilities (K, n) are distributions, which begin at `starts`."""
    check_not_negative(name, probabilities)
    sums = np.add.reduceat(probabilities, starts, axis=1)
    errors = np.abs(sums - 1.0)
    if errors.max(initial=0.0) > _SUM_TOLERANCE:
        worst = float(sums.flat[errors.argmax()])
        raise ValueError(f"{name} must sum to 1 for each column, got a sum of {worst!r}.")


class LevelPart(Part):
    """Levels of categories; probabilities[:, offsets[j]:offsets[j + 1]] are column j's."""

    kind = "level"

    def __init__(self, columns: np.ndarray, probabilities: np.ndarray, offsets: np.ndarray) -> None:
        self.columns = columns
        self._user_tables = np.split(probabilities, offsets[1:-1], axis=1)
        #: A (K, n) array per column.
        self.tables = [
            np.maximum(table / table.sum(axis=1, keepdims=True), LEAST_PROBABILITY)
            for table in self._user_tables
        ]
        shape = probabilities.shape[0], columns.shape[0]
        self.means = self.variances = np.broadcast_to(np.nan, shape)

    def typical(self) -> np.ndarray:
        best = [table.argmax(axis=1) for table in self._user_tables]
        return np.stack(best, axis=1).astype(np.float64)

    def marginal(self, targets: np.ndarray) -> dict[str, np.ndarray]:
        tables = [self._user_tables[target] for target in targets]
        return {"probabilities": np.concatenate(tables, axis=1)}

    def modes(self, pairs: Pairs, targets: np.ndarray) -> np.ndarray:
        best = [self.tables[target].argmax(axis=1)[pairs.components] for target in targets]
        return np.stack(best, axis=1).astype(np.float64)

    def draw(self, pairs: Pairs, targets: np.ndarray, random: RandomSource) -> np.ndarray:
        components = pairs.components
        drawn = np.empty((components.shape[0], targets.shape[0]))
        for m, target in enumerate(targets):
            cumulative = np.cumsum(self.tables[target], axis=1)
            marks = random.uniform(size=components.shape[0]) * cumulative[components, -1]
            drawn[:, m] = (marks[:, None] >= cumulative[components, :-1]).sum(axis=1)
        return drawn

    def leave_out(self, rows: SeenRows) -> LeftOut:
        seen = np.flatnonzero(rows.seen[0])
        n_components = self.tables[0].shape[0]
        log_densities = np.empty((n_components, rows.values.shape[0], seen.shape[0]))
        for m, column in enumerate(seen.tolist()):
            levels = rows.values[:, column].astype(np.int64)
            log_densities[:, :, m] = np.log(self.tables[column])[:, levels]
        nothing = np.full((n_components, 1, seen.shape[0]), np.nan)
        return LeftOut(log_densities, nothing, nothing)

    def distribution(self, column: int, weights: np.ndarray) -> Distribution:
        return Levels(weights @ self.tables[column])

    def coordinate_means(self) -> np.ndarray:
        return np.concatenate(self.tables, axis=1)

    def coordinate_variances(self) -> np.ndarray:
        means = self.coordinate_means()
        return np.asarray(means * (1.0 - means))

    def covariances_along(self, components: np.ndarray, basis: np.ndarray) -> np.ndarray:
        # diag(p) - p p' for the levels of each column.
        covariances = np.zeros((components.shape[0], basis.shape[1], basis.shape[1]))
        first = 0
        for table in self.tables:
            shares, axes = table[components], basis[first : first + table.shape[1]]
            along = shares @ axes
            covariances += (axes.T * shares[:, None, :]) @ axes
            covariances -= along[:, :, None] * along[:, None, :]
            first += table.shape[1]
        return covariances

    def log_volumes(self, rows: np.ndarray, spread: np.ndarray) -> np.ndarray:
        volumes = np.zeros(self.tables[0].shape[0])
        for table, column in zip(self.tables, rows.T, strict=True):
            levels = column[~np.isnan(column)].astype(np.int64)
            shares = np.bincount(levels, minlength=table.shape[1]) / max(1, levels.size)
            volumes += entropy(table) - entropy(shares[None])
        return volumes

    def squared_distances(self, rows: np.ndarray, component: np.ndarray) -> np.ndarray:
        distances = np.zeros(rows.shape[0])
        for table, column in zip(self.tables, rows.T, strict=True):
            seen = np.flatnonzero(~np.isnan(column))
            logs = np.log(table)[component[seen]]
            observed = logs[np.arange(seen.size), column[seen].astype(np.int64)]
            distances[seen] += 2.0 * (logs.max(axis=1) - observed)
        return distances

    def positions(self) -> np.ndarray:
        return np.asarray(2.0 * np.sqrt(self.coordinate_means()))

    def bhattacharyya(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        roots = [np.sqrt(table) for table in self.tables]
        overlaps = [np.einsum("pl,pl->p", root[first], root[second]) for root in roots]
        return np.asarray(-np.log(overlaps).sum(axis=0))

    @staticmethod
    def baseline(values: np.ndarray) -> float:
        counts = np.bincount(values.astype(np.int64))
        counts = counts[counts > 0]
        return float((counts * np.log(counts / values.shape[0])).sum())


def entropy(shares: np.ndarray) -> np.ndarray:
    """Entropies (n,) of distributions (n, L)."""
    logs = np.log(np.where(shares > 0.0, shares, 1.0))
    return np.asarray(-(shares * logs).sum(axis=1))
