"""Marginals and conditionals of components, exact, for rows of which some cells are seen.

Given the component, a family's columns fall into independent parts, which condition pairs of a row
and a component: moments of its unseen cells, and draws of them.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln

from pickmix.families.conditioning_quantiles import normal_quantiles, poisson_quantiles
from pickmix.families.distributions import CountMixture, Distribution, Levels, NormalMixture

RandomSource = np.random.Generator | np.random.RandomState


class SeenRows(NamedTuple):
    """Rows of which some cells are seen."""

    values: np.ndarray  # (R, D) About the parts' centres; anything where nothing is seen.
    seen: np.ndarray  # (R, D)
    patterns: np.ndarray  # (R,) Rows of one number have seen the same cells.
    noise: np.ndarray | None = None  # (R, D, D) Covariances, for `DensePart`.

    def of(self, columns: np.ndarray) -> SeenRows:
        """The rows restricted to these columns."""
        noise = None if self.noise is None else self.noise[:, columns[:, None], columns]
        return SeenRows(self.values[:, columns], self.seen[:, columns], self.patterns, noise)


class LeftOut(NamedTuple):
    """Conditionals of each cell given the row's other cells, under every component."""

    log_densities: np.ndarray  # (K, R, s) log p_k(x_j | x_-j).
    means: np.ndarray  # (K, R, s) About the centres. Those of levels are NaN.
    variances: np.ndarray  # (K, 1, s)


class Part(abc.ABC):
    """Columns that depend on each other, given the component, and on no others."""

    kind: str  # "number", "count" or "level".
    columns: np.ndarray  # (d,) In the user's rows.
    label: str = ""  # Prefix of the names of its parameters.
    tables: Sequence[Any] = ()  # Probabilities (K, L) of the levels of each column.
    has_kernel: bool = False  # Whether `leave_out_of` explains any rows by a compiled kernel.

    @abc.abstractmethod
    def typical(self) -> np.ndarray:
        """Mean or best level (K, d) of each component, in the user's units."""

    @abc.abstractmethod
    def marginal(self, places: np.ndarray) -> dict[str, np.ndarray]:
        """Parameters over some of the part's columns, numbered 0 to d - 1."""

    def conditional(self, rows: SeenRows, places: np.ndarray) -> dict[str, np.ndarray]:
        """Parameters over some unseen columns given the seen cells of a single row."""
        return self.marginal(places)

    @abc.abstractmethod
    def moments(
        self, rows: SeenRows, which: np.ndarray, components: np.ndarray, places: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances (P, m) of columns, about the centre, given the row's seen cells.

        `which` (P,) and `components` (P,) are the pairs of row and component.
        """

    def covariances(
        self, rows: SeenRows, which: np.ndarray, components: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        """Covariances (P, m, m) of columns within the components of pairs."""
        _, variances = self.moments(rows, which, components, places)
        return variances[:, :, None] * np.eye(places.shape[0])

    @abc.abstractmethod
    def modes(
        self, rows: SeenRows, which: np.ndarray, components: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        """Modes (P, m) of columns within the components of pairs, about the centre."""

    @abc.abstractmethod
    def draw(
        self,
        rows: SeenRows,
        which: np.ndarray,
        components: np.ndarray,
        places: np.ndarray,
        random: RandomSource,
    ) -> np.ndarray:
        """One draw of columns (P, m) for each pair, about the centre."""

    @abc.abstractmethod
    def leave_out(self, rows: SeenRows) -> LeftOut:
        """Each seen cell given the row's other seen cells. All rows have one pattern."""

    def quantiles(
        self,
        weights: np.ndarray,
        means: np.ndarray,
        variances: np.ndarray,
        starts: np.ndarray,
        share: float,
    ) -> np.ndarray:
        """Quantiles (R,) of mixtures of one column, about the centre.

        The components of mixture r are the pairs from starts[r] on, with weights (P,), and the
        means and variances (P,) that `moments` returned.
        """
        return normal_quantiles(weights, means, np.sqrt(variances), starts, share)

    def with_noise(self) -> Part:
        """The same columns as a part that accepts correlated noise."""
        return self

    # What components look like. These describe a part by means and variances of its columns, as if
    # they were normal and independent; parts that know better override them.

    def variances_of(self) -> np.ndarray:
        """Variances (K, d) of the columns in each component."""
        d, components = self.columns.shape[0], np.arange(self.typical().shape[0])
        unseen = SeenRows(np.zeros((1, d)), np.zeros((1, d), dtype=bool), np.zeros(1, np.int64))
        return self.moments(unseen, np.zeros_like(components), components, np.arange(d))[1]

    def distribution(self, place: int, weights: np.ndarray) -> Distribution:
        """The distribution of one column in a mixture with weights (K,)."""
        deviations = np.sqrt(self.variances_of()[:, place])
        return NormalMixture(weights, self.typical()[:, place], deviations)

    def n_levels(self) -> list[int]:
        """The number of levels of each column, 0 if it holds numbers.

        A column of numbers has one coordinate in the methods below, a column of levels one for each
        level: 1 for the level that a row has, 0 for all others.
        """
        return [table.shape[1] for table in self.tables] or [0] * self.columns.shape[0]

    def coordinate_means(self) -> np.ndarray:
        """Means (K, c) of the coordinates: of numbers, or probabilities of levels."""
        return self.typical()

    def coordinate_variances(self) -> np.ndarray:
        """Variances (K, c) of the coordinates."""
        return self.variances_of()

    def covariances_along(self, components: np.ndarray, basis: np.ndarray) -> np.ndarray:
        """Covariances (n, m, m) of components along the columns of a basis (c, m)."""
        return np.asarray((basis.T * self.variances_of()[components][:, None, :]) @ basis)

    def log_volumes(self, rows: np.ndarray, spread: np.ndarray) -> np.ndarray:
        """How much smaller components (K,) are than all rows (N, d) with this spread (d,), in nats.

        Half the log-determinant of the covariance in units of the spread; of levels, the entropy in
        the component less that among the rows. Both are differences of entropies, so they add up.
        """
        return np.asarray((0.5 * np.log(self.variances_of()) - np.log(spread)).sum(axis=1))

    def squared_distances(self, rows: np.ndarray, component: np.ndarray) -> np.ndarray:
        """Squares (N,) of distances of rows (N, d) from a component each, in its deviations.

        Missing cells (NaN) count for nothing.
        """
        variances = np.maximum(self.variances_of()[component], 1e-300)
        away = np.nan_to_num(rows - self.typical()[component])
        return np.asarray((np.square(away) / variances).sum(axis=1))

    def positions(self) -> np.ndarray:
        """Points (K, m) whose distances are about those of components with typical widths."""
        return np.asarray(self.typical() / np.sqrt(np.median(self.variances_of(), axis=0)))

    def bhattacharyya(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """-log of the integral of sqrt(p q), (P,), for pairs of components (P,)."""
        means, variances = self.typical(), self.variances_of()
        middle = 0.5 * (variances[first] + variances[second])
        logs = np.log(variances)
        away = 0.125 * np.square(means[first] - means[second]) / middle
        return np.asarray(
            (away + 0.5 * np.log(middle) - 0.25 * (logs[first] + logs[second])).sum(axis=1)
        )

    @staticmethod
    def baseline(values: np.ndarray) -> float:
        """Log-density of values (n,), in all, under one distribution fitted to them."""
        mean = float(values.mean())
        # One value over and over fits a normal distribution of any narrowness; this one is narrow.
        variance = max(float(values.var()), 1e-12 * max(1.0, mean**2))
        return -0.5 * len(values) * (math.log(2.0 * math.pi * variance) + 1.0)


class DiagonalPart(Part):
    """Gaussian columns that are independent given the component.

    means, variances (K, d); `covariances` are the variances in the user's shape, (K, d) or (K,).
    """

    kind = "number"

    def __init__(
        self,
        columns: np.ndarray,
        means: np.ndarray,
        variances: np.ndarray,
        centre: np.ndarray,
        covariances: np.ndarray,
    ) -> None:
        self.columns = columns
        self._own_means, self._own_covariances = means, covariances
        self.means, self.variances = means - centre, variances

    def typical(self) -> np.ndarray:
        return self._own_means

    def marginal(self, places: np.ndarray) -> dict[str, np.ndarray]:
        own = self._own_covariances
        return {
            "means": self._own_means[:, places],
            "covariances": own.copy() if own.ndim == 1 else own[:, places],
        }

    def moments(
        self, rows: SeenRows, which: np.ndarray, components: np.ndarray, places: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        pairs = components[:, None], places
        return self.means[pairs], self.variances[pairs]

    def modes(
        self, rows: SeenRows, which: np.ndarray, components: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        return np.asarray(self.means[components[:, None], places])

    def draw(
        self,
        rows: SeenRows,
        which: np.ndarray,
        components: np.ndarray,
        places: np.ndarray,
        random: RandomSource,
    ) -> np.ndarray:
        means, variances = self.moments(rows, which, components, places)
        return np.asarray(means + np.sqrt(variances) * random.standard_normal(means.shape))

    def leave_out(self, rows: SeenRows) -> LeftOut:
        seen = np.flatnonzero(rows.seen[0])
        means, variances = self.means[:, None, seen], self.variances[:, None, seen]
        squares = np.square(rows.values[:, seen] - means) / variances
        return LeftOut(-0.5 * (squares + np.log(2.0 * np.pi * variances)), means, variances)

    def with_noise(self) -> Part:
        # Here, as dense parts are made of what this module defines.
        from pickmix.families.conditioning_dense import DensePart

        d = self.columns.shape[0]
        matrices = self.variances[:, :, None] * np.eye(d)
        return DensePart(self.columns, self.means, matrices, np.zeros(d))


class CountPart(Part):
    """Poisson counts of rates (K, d), at least `least`."""

    kind = "count"

    def __init__(self, columns: np.ndarray, rates: np.ndarray, least: float) -> None:
        self.columns = columns
        self._own = rates
        self.rates = np.maximum(rates, least)

    def typical(self) -> np.ndarray:
        return self._own

    def marginal(self, places: np.ndarray) -> dict[str, np.ndarray]:
        return {"rates": self._own[:, places]}

    def moments(
        self, rows: SeenRows, which: np.ndarray, components: np.ndarray, places: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        rates = self.rates[components[:, None], places]
        return rates, rates

    def modes(
        self, rows: SeenRows, which: np.ndarray, components: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        return np.asarray(np.floor(self.rates[components[:, None], places]))

    def draw(
        self,
        rows: SeenRows,
        which: np.ndarray,
        components: np.ndarray,
        places: np.ndarray,
        random: RandomSource,
    ) -> np.ndarray:
        drawn = random.poisson(self.rates[components[:, None], places])
        return np.asarray(drawn, dtype=np.float64)

    def leave_out(self, rows: SeenRows) -> LeftOut:
        seen = np.flatnonzero(rows.seen[0])
        rates, counts = self.rates[:, None, seen], rows.values[:, seen]
        log_densities = counts * np.log(rates) - rates - gammaln(counts + 1.0)
        return LeftOut(log_densities, rates, rates)

    def quantiles(
        self,
        weights: np.ndarray,
        means: np.ndarray,
        variances: np.ndarray,
        starts: np.ndarray,
        share: float,
    ) -> np.ndarray:
        return poisson_quantiles(weights, means, starts, share)

    def distribution(self, place: int, weights: np.ndarray) -> Distribution:
        return CountMixture(weights, self.rates[:, place])

    def positions(self) -> np.ndarray:
        return np.asarray(2.0 * np.sqrt(self.rates))

    def bhattacharyya(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        roots = np.sqrt(self.rates)
        return np.asarray(0.5 * np.square(roots[first] - roots[second]).sum(axis=1))

    @staticmethod
    def baseline(values: np.ndarray) -> float:
        rate = max(float(values.mean()), 1e-300)
        return float((values * math.log(rate) - rate - gammaln(values + 1.0)).sum())


class LevelPart(Part):
    """Levels of categories; probabilities[:, offsets[j]:offsets[j + 1]] are column j's."""

    kind = "level"

    def __init__(
        self, columns: np.ndarray, probabilities: np.ndarray, offsets: np.ndarray, least: float
    ) -> None:
        self.columns = columns
        self._own = np.split(probabilities, offsets[1:-1], axis=1)
        #: A (K, n) array per column.
        self.tables = [
            np.maximum(table / table.sum(axis=1, keepdims=True), least) for table in self._own
        ]

    def typical(self) -> np.ndarray:
        return np.stack([table.argmax(axis=1) for table in self._own], axis=1).astype(np.float64)

    def marginal(self, places: np.ndarray) -> dict[str, np.ndarray]:
        return {"probabilities": np.concatenate([self._own[place] for place in places], axis=1)}

    def moments(
        self, rows: SeenRows, which: np.ndarray, components: np.ndarray, places: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        nothing = np.full((components.shape[0], places.shape[0]), np.nan)
        return nothing, nothing

    def modes(
        self, rows: SeenRows, which: np.ndarray, components: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        best = [self.tables[place].argmax(axis=1)[components] for place in places]
        return np.stack(best, axis=1).astype(np.float64)

    def draw(
        self,
        rows: SeenRows,
        which: np.ndarray,
        components: np.ndarray,
        places: np.ndarray,
        random: RandomSource,
    ) -> np.ndarray:
        drawn = np.empty((components.shape[0], places.shape[0]))
        for m, place in enumerate(places):
            cumulative = np.cumsum(self.tables[place], axis=1)
            marks = random.uniform(size=components.shape[0]) * cumulative[components, -1]
            drawn[:, m] = (marks[:, None] >= cumulative[components, :-1]).sum(axis=1)
        return drawn

    def leave_out(self, rows: SeenRows) -> LeftOut:
        seen = np.flatnonzero(rows.seen[0])
        n_components = self.tables[0].shape[0]
        log_densities = np.empty((n_components, rows.values.shape[0], seen.shape[0]))
        for m, place in enumerate(seen.tolist()):
            levels = rows.values[:, place].astype(np.int64)
            log_densities[:, :, m] = np.log(self.tables[place])[:, levels]
        nothing = np.full((n_components, 1, seen.shape[0]), np.nan)
        return LeftOut(log_densities, nothing, nothing)

    def distribution(self, place: int, weights: np.ndarray) -> Distribution:
        return Levels(weights @ self.tables[place])

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
            volumes += _entropy(table) - _entropy(shares[None])
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


def _entropy(shares: np.ndarray) -> np.ndarray:
    logs = np.log(np.where(shares > 0.0, shares, 1.0))
    return np.asarray(-(shares * logs).sum(axis=1))
