"""Draws of rows that meet conditions on several columns, exactly.

Given a component, columns fall into groups that are independent of each other. In each group, the
column whose condition is rarest under the component is drawn within its condition, by inversion;
the component is chosen by the product of these probabilities. All other columns follow given these,
and rows that do not meet the other conditions are drawn again: none, if no two conditions are on
columns of one group.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pickmix.families.base import Pairs, Part, RandomSource, SeenRows
from pickmix.inputs.conditions import Allowed
from pickmix.inputs.errors import InputError
from pickmix.model.columns import Columns
from pickmix.model.rows import Posterior, QueryRows

# Conditions below this probability are refused: components that matter to them may be left out.
_RAREST = 1e-8
# Draws for one row at most, and draws of a round at least.
_MOST_DRAWS, _FEWEST_IN_ROUND = 20_000, 2_000
_FAR = 40.0  # Standard deviations beyond which a component has no values.
_ROUNDING = 8.0 * np.finfo(np.float64).eps


class Event(NamedTuple):
    """A condition on a column of the model: on its level, its number, or the atom that it is."""

    column: int
    part: Part
    target: int
    #: (L,) The share of each level that is allowed; of a column with atoms, of none and of each.
    shares: np.ndarray | None
    intervals: np.ndarray  # (m, 2) About the centre; of numbers.
    atoms: tuple[int, Part, int] | None = None  # The column of atoms, its part, and where in it.

    @property
    def touches(self) -> set[int]:
        """What two events have in common that are not independent given the component."""
        columns = [(self.column, self.part), *([] if self.atoms is None else [self.atoms[:2]])]
        return {
            column if part.tables and not part.levels_depend else ~id(part)
            for column, part in columns
        }

    def _within(self, pairs: Pairs) -> np.ndarray:
        return self.part.within(pairs.of(self.part.columns), self.target, *self.intervals.T)[0]

    def probabilities(self, pairs: Pairs) -> np.ndarray:
        """Probabilities (P, m) of the intervals, or (P, L) of the levels, that are allowed."""
        if self.shares is None:
            return self._within(pairs)
        _, part, target = self.atoms or (self.column, self.part, self.target)
        levels = part.level_shares(pairs.of(part.columns), target) * self.shares
        if self.atoms is not None:
            levels[:, 0] *= self._within(pairs).sum(axis=1)
        return np.asarray(levels)

    def draw(self, pairs: Pairs, random: RandomSource) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Columns, the pairs (p,) that get a value there, and these values about the centre."""
        every, drawn = np.arange(pairs.which.shape[0]), []
        if self.shares is not None:
            levels = _choose(self.probabilities(pairs), random)
            place = self.column if self.atoms is None else self.atoms[0]
            drawn.append((place, every, levels.astype(np.float64)))
            every = every[:0] if self.atoms is None else np.flatnonzero(levels == 0)
        if every.size:
            some = Pairs(pairs.rows, pairs.which[every], pairs.components[every])
            ends = self.intervals[_choose(self._within(some), random)].T[:, :, None]
            inverse = self.part.within(some.of(self.part.columns), self.target, *ends)[1]
            values = inverse(np.asarray(random.uniform(size=(every.size, 1))))
            drawn.append((self.column, every, values[:, 0]))
        return drawn

    def holds(self, rows: np.ndarray, random: RandomSource) -> np.ndarray:
        """Whether rows (n, D) of the model, about the centre, meet the condition."""
        met = _inside(self.intervals, rows[:, self.column]) > 0.0
        if self.shares is not None:
            levels = rows[:, self.column if self.atoms is None else self.atoms[0]].astype(np.int64)
            # Of levels that share a code, some may be allowed.
            allowed = random.uniform(size=rows.shape[0]) < self.shares[levels]
            met = allowed if self.atoms is None else allowed & (met | (levels > 0))
        return np.asarray(met)


def _choose(weights: np.ndarray, random: RandomSource) -> np.ndarray:
    """Numbers (P,) drawn by weights (P, L)."""
    sums = np.cumsum(weights, axis=1)
    marks = random.uniform(size=weights.shape[0]) * sums[:, -1]
    return np.asarray((marks[:, None] >= sums[:, :-1]).sum(axis=1))


def _inside(intervals: np.ndarray, values: np.ndarray) -> np.ndarray:
    low, high = intervals.T[:, :, None]
    return np.asarray(((values >= low) & (values <= high)).any(axis=0).astype(np.float64))


def make_events(query: QueryRows, allowed: Mapping[int, Allowed], terms: Columns) -> list[Event]:
    """Conditions of the model from those on natural columns, by number."""
    if allowed and not query.takes_events:
        raise ValueError(
            "where must be None for deep components that bend: their draws are weighted ones. Draw "
            "more rows, and keep those that meet the conditions."
        )
    events = []
    for column, (intervals, shares) in allowed.items():
        name, atoms = terms.all_labels[column], None
        problem = "must be about a column without values"
        if not np.isnan(query.natural[:, column]).all():
            raise InputError(problem, parameter="where", column=name)
        ((part, (target,), _),) = query.parts_of(np.array([column]))
        if part.tables and shares is None:
            codes = np.arange(part.tables[target].shape[1])
            levels = query.map_of(column).levels if query.has_map(column) else codes
            shares = _inside(intervals, levels)
        elif not part.tables:
            natural = intervals
            intervals = _latent_intervals(query, part, int(target), column, natural, terms)
            place = query.atom_part(column)
            if place is not None and query.maps is not None:
                atoms = (query.maps.indicators[column], *place)
                at_atoms = _inside(natural, query.map_of(column).atoms)
                shares = np.append(float(intervals.size > 0), at_atoms)
        if not (intervals.size if shares is None else shares.any()):
            problem = "must be a condition that a value meets"
            raise InputError(problem, parameter="where", column=name)
        events.append(Event(column, part, int(target), shares, intervals, atoms))
    return events


def _latent_intervals(
    query: QueryRows, part: Part, target: int, column: int, intervals: np.ndarray, terms: Columns
) -> np.ndarray:
    """Intervals (n, 2) about the centre of what the model draws for values within intervals.

    Values are a monotone function of the model's numbers, by maps and rounding, so ends are found
    by bisection, to the last bit.
    """
    edges = intervals.T.ravel()
    is_upper = np.arange(edges.shape[0]) >= intervals.shape[0]

    def beyond(latent: np.ndarray) -> np.ndarray:
        if query.has_map(column):
            each = query.map_of(column)
            latent = each.rounded(each.backward(latent))
        values = terms.rounded(column, latent)
        return np.where(is_upper, values > edges, values >= edges)

    away = _FAR * np.sqrt(part.variances[:, target])
    centre, means = query.centre[column], part.means[:, target]
    low = np.full(edges.shape, centre + (means - away).min())
    high = np.full(edges.shape, centre + (means + away).max())
    below, above = beyond(low), ~beyond(high)
    while ((low < (middle := 0.5 * (low + high))) & (middle < high)).any():
        is_beyond = beyond(middle)
        low, high = np.where(is_beyond, low, middle), np.where(is_beyond, middle, high)
    # The first that is high enough, and the last that is low enough; less what sums with a centre
    # may be rounded by.
    slack = _ROUNDING * np.maximum(np.abs(high), np.abs(centre)) * (centre != 0.0)
    found = np.where(is_upper, low - slack, high + slack) - centre
    found = np.where(below, -np.inf, np.where(above, np.inf, found)).reshape(2, -1).T
    return found[(found[:, 0] <= found[:, 1]) & (found[:, 0] < np.inf) & (found[:, 1] > -np.inf)]


def draw_where(
    query: QueryRows,
    columns: np.ndarray,
    n_draws: int,
    random: RandomSource,
    events: Sequence[Event],
) -> np.ndarray:
    """Draws (n, n_draws, d) of columns of the model, given the rows and the events."""
    n, natural = query.natural.shape[0], query.natural
    if n > 1 and query.noise is None and np.array_equal(natural[1:], natural[:-1], equal_nan=True):
        # One row, with more draws of it.
        alone = query.with_rows(natural[:1], None)
        return draw_where(alone, columns, n * n_draws, random, events).reshape(n, n_draws, -1)
    groups: list[list[int]] = []
    for number, event in enumerate(events):
        near = [g for g in groups if any(event.touches & events[j].touches for j in g)]
        groups = [g for g in groups if g not in near] + [[number, *itertools.chain(*near)]]
    drawn = np.empty((n, n_draws, columns.shape[0]))
    for block in query.posteriors(max(event.intervals.shape[0] for event in events) + len(events)):
        shares = np.stack([event.probabilities(block.pairs).sum(axis=1) for event in events])
        # (G, P) The rarest event of each group, as its number among all.
        rarest = np.stack([np.array(group)[shares[group].argmin(axis=0)] for group in groups])
        weights = block.weights * np.take_along_axis(shares, rarest, axis=0).prod(axis=0)
        totals = np.add.reduceat(weights, block.starts)
        if totals.min() < _RAREST:
            raise ValueError(
                f"Conditions must have a probability of {_RAREST:g} or more under the mixture, got "
                f"{totals.min():.2g} at most."
            )
        tilted = block._replace(weights=weights / totals[block.pairs.which])
        found = np.empty((block.numbers.shape[0] * n_draws, columns.shape[0]))
        lacking, n_tried = np.arange(found.shape[0]), 0
        while lacking.size:
            times = max(1, _FEWEST_IN_ROUND // lacking.size) if n_tried else 1
            places = np.repeat(lacking, times)
            rows, met = _attempt(query, tilted, places // n_draws, events, rarest, random)
            kept, first = np.unique(places[met], return_index=True)
            found[kept] = rows[met][first][:, columns]
            lacking, n_tried = np.setdiff1d(lacking, kept), n_tried + times
            if lacking.size and n_tried >= _MOST_DRAWS:
                raise ValueError(
                    "Conditions must be met by one row in a thousand or so that meets the rarest "
                    f"one, got none among {n_tried:,} draws ({lacking.size:,} of "
                    f"{found.shape[0]:,} rows)."
                )
        drawn[block.numbers] = found.reshape(-1, n_draws, columns.shape[0])
    return drawn


def _attempt(
    query: QueryRows,
    block: Posterior,
    which: np.ndarray,
    events: Sequence[Event],
    rarest: np.ndarray,
    random: RandomSource,
) -> tuple[np.ndarray, np.ndarray]:
    """A draw (S, D) given each of these rows (S,) of a block, and whether it meets all events."""
    picked = block.choose_pairs(which, np.asarray(random.uniform(size=which.shape[0])))
    rows, components = block.pairs.rows, block.pairs.components[picked]
    values, seen = rows.values[which], rows.seen[which]
    drawn_first = [(rarest[:, picked] == number).any(axis=0) for number in range(len(events))]
    for event, flags in zip(events, drawn_first, strict=True):
        some = np.flatnonzero(flags)
        for column, among, cells in event.draw(Pairs(rows, which[some], components[some]), random):
            values[some[among], column], seen[some[among], column] = cells, True
    patterns = np.unique(np.packbits(seen, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    noise = None if rows.noise is None else rows.noise[which]
    pairs = Pairs(SeenRows(values, seen, patterns, noise), np.arange(which.shape[0]), components)
    drawn = np.empty_like(values)
    for part in query.parts:
        own = np.arange(part.columns.shape[0])
        drawn[:, part.columns] = part.draw(pairs.of(part.columns), own, random)
    drawn = np.where(seen, values, drawn)
    met = np.ones(which.shape[0], dtype=np.bool_)
    for event, flags in zip(events, drawn_first, strict=True):
        met &= flags | event.holds(drawn, random)
    return drawn + query.centre, met
