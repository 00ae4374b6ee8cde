"""Marginals and conditionals of components, exact, for rows of which some cells are seen.

Given the component, a family's columns fall into independent parts. A part answers for pairs of a
row and a component: what its unseen cells are expected to be, and draws of them.
"""

from __future__ import annotations

import abc
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

RandomSource = np.random.Generator | np.random.RandomState


class SeenRows(NamedTuple):
    """Rows of which some cells are seen.

    Attributes
    ----------
    values : (R, D) array
        In coordinates about the parts' centres; anything where nothing is seen.
    seen : (R, D) bool array
    patterns : (R,) int array
        Rows of one number have seen the same cells.
    noise : (R, D, D) array or None
        Covariances of Gaussian noise on the values, for `DensePart`.
    """

    values: np.ndarray
    seen: np.ndarray
    patterns: np.ndarray
    noise: np.ndarray | None = None

    def of(self, columns: np.ndarray) -> SeenRows:
        """The same rows with some of the columns."""
        noise = None if self.noise is None else self.noise[:, columns[:, None], columns]
        return SeenRows(self.values[:, columns], self.seen[:, columns], self.patterns, noise)


class LeftOut(NamedTuple):
    """What every component says of each cell given the row's other cells.

    Attributes
    ----------
    log_densities : (K, R, s) array
        log p_k(x_j | x_-j).
    means : (K, R, s) array, or (K, 1, s)
        About the centres. Those of levels are NaN.
    variances : (K, 1, s) array
    """

    log_densities: np.ndarray
    means: np.ndarray
    variances: np.ndarray


class Part(abc.ABC):
    """Columns that depend on each other, given the component, and on no others.

    Attributes
    ----------
    columns : (d,) int array
        In the user's rows.
    label : str
        What the names of its parameters begin with.
    """

    #: "number", "count" or "level".
    kind: str
    columns: np.ndarray
    label: str = ""

    @abc.abstractmethod
    def marginal(self, places: np.ndarray) -> dict[str, np.ndarray]:
        """Parameters over some of the part's columns, which are numbered 0 to d - 1."""

    def conditional(self, rows: SeenRows, places: np.ndarray) -> dict[str, np.ndarray]:
        """Parameters over some unseen columns given what a single row has seen."""
        return self.marginal(places)

    @abc.abstractmethod
    def moments(
        self, rows: SeenRows, which: np.ndarray, components: np.ndarray, places: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances (P, m) of columns, about the centre, for pairs of row and component.

        They are given what the row has seen. `which` (P,) and `components` (P,) are the pairs.
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


class DiagonalPart(Part):
    """Gaussian columns that are independent given the component.

    Parameters
    ----------
    columns : (d,) int array
    means : (K, d) array
    variances : (K, d) array
    centre : (d,) array
    covariances : array
        The variances in the user's shape: (K, d) or (K,).
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

    def marginal(self, places: np.ndarray) -> dict[str, np.ndarray]:
        """Means and variances of the columns; a variance for all columns stays."""
        own = self._own_covariances
        return {
            "means": self._own_means[:, places],
            "covariances": own.copy() if own.ndim == 1 else own[:, places],
        }

    def moments(
        self, rows: SeenRows, which: np.ndarray, components: np.ndarray, places: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Those of the components."""
        pairs = components[:, None], places
        return self.means[pairs], self.variances[pairs]

    def modes(
        self, rows: SeenRows, which: np.ndarray, components: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        """The means."""
        return np.asarray(self.means[components[:, None], places])

    def draw(
        self,
        rows: SeenRows,
        which: np.ndarray,
        components: np.ndarray,
        places: np.ndarray,
        random: RandomSource,
    ) -> np.ndarray:
        """Normal draws."""
        means, variances = self.moments(rows, which, components, places)
        return np.asarray(means + np.sqrt(variances) * random.standard_normal(means.shape))

    def leave_out(self, rows: SeenRows) -> LeftOut:
        """Other cells say nothing."""
        seen = np.flatnonzero(rows.seen[0])
        means, variances = self.means[:, None, seen], self.variances[:, None, seen]
        squares = np.square(rows.values[:, seen] - means) / variances
        return LeftOut(-0.5 * (squares + np.log(2.0 * np.pi * variances)), means, variances)


class CountPart(Part):
    """Poisson counts.

    Parameters
    ----------
    columns : (d,) int array
    rates : (K, d) array
    least : float
        Smaller rates are taken for this one.
    """

    kind = "count"

    def __init__(self, columns: np.ndarray, rates: np.ndarray, least: float) -> None:
        self.columns = columns
        self._own = rates
        self.rates = np.maximum(rates, least)

    def marginal(self, places: np.ndarray) -> dict[str, np.ndarray]:
        """Rates of the columns."""
        return {"rates": self._own[:, places]}

    def moments(
        self, rows: SeenRows, which: np.ndarray, components: np.ndarray, places: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Both are the rates."""
        rates = self.rates[components[:, None], places]
        return rates, rates

    def modes(
        self, rows: SeenRows, which: np.ndarray, components: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        """The largest counts that do not exceed the rates."""
        return np.asarray(np.floor(self.rates[components[:, None], places]))

    def draw(
        self,
        rows: SeenRows,
        which: np.ndarray,
        components: np.ndarray,
        places: np.ndarray,
        random: RandomSource,
    ) -> np.ndarray:
        """Poisson draws."""
        drawn = random.poisson(self.rates[components[:, None], places])
        return np.asarray(drawn, dtype=np.float64)

    def leave_out(self, rows: SeenRows) -> LeftOut:
        """Other cells say nothing."""
        seen = np.flatnonzero(rows.seen[0])
        rates, counts = self.rates[:, None, seen], rows.values[:, seen]
        log_densities = counts * np.log(rates) - rates - gammaln(counts + 1.0)
        return LeftOut(log_densities, rates, rates)


class LevelPart(Part):
    """Levels of categories.

    Parameters
    ----------
    columns : (d,) int array
    probabilities : (K, L) array
        Of the levels of all columns, one column after another.
    offsets : (d + 1,) int array
        Where the levels of each column stand.
    least : float
        Smaller probabilities are taken for this one.
    """

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

    def marginal(self, places: np.ndarray) -> dict[str, np.ndarray]:
        """Probabilities of the columns' levels."""
        return {"probabilities": np.concatenate([self._own[place] for place in places], axis=1)}

    def moments(
        self, rows: SeenRows, which: np.ndarray, components: np.ndarray, places: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """NaN: levels are names."""
        nothing = np.full((components.shape[0], places.shape[0]), np.nan)
        return nothing, nothing

    def modes(
        self, rows: SeenRows, which: np.ndarray, components: np.ndarray, places: np.ndarray
    ) -> np.ndarray:
        """The most probable levels."""
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
        """Draws of levels."""
        drawn = np.empty((components.shape[0], places.shape[0]))
        for m, place in enumerate(places):
            cumulative = np.cumsum(self.tables[place], axis=1)
            marks = random.uniform(size=components.shape[0]) * cumulative[components, -1]
            drawn[:, m] = (marks[:, None] >= cumulative[components, :-1]).sum(axis=1)
        return drawn

    def leave_out(self, rows: SeenRows) -> LeftOut:
        """Other cells say nothing."""
        seen = np.flatnonzero(rows.seen[0])
        n_components = self.tables[0].shape[0]
        log_densities = np.empty((n_components, rows.values.shape[0], seen.shape[0]))
        for m, place in enumerate(seen):
            levels = rows.values[:, place].astype(np.int64)
            log_densities[:, :, m] = np.log(self.tables[place])[:, levels]
        nothing = np.full((n_components, 1, seen.shape[0]), np.nan)
        return LeftOut(log_densities, nothing, nothing)
