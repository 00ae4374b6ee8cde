"""A fitted mixture as inspection sees it: its model, its columns, and rows in their coordinates."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from pickmix.checks import refuse_overflow
from pickmix.families.base import Part
from pickmix.families.distributions import Distribution, Draws
from pickmix.families.gaussian_parts import DiagonalPart
from pickmix.inputs.maps import ColumnMap, ColumnMaps
from pickmix.kernels.statistics import log_sum_exp
from pickmix.model.columns import ColumnTerms, find_columns
from pickmix.model.explanation import Explanation
from pickmix.model.mapped import MappedDistribution
from pickmix.model.mixture import MixtureModel
from pickmix.model.rows import QueryRows

#: Rows that are drawn from a model without a closed form.
N_DRAWS = 20_000
# Least standard deviation of deep components, as a share of the columns' spread.
_LEAST_SCALE = 1e-3


@dataclass(frozen=True)
class Rows:
    """Rows that a view has read."""

    #: (N, D), as the estimator's columns read them; NaN is missing.
    values: np.ndarray
    #: (N,), what log-densities gain by the units of a table.
    log_units: np.ndarray
    #: (N,), their numbers in the data, which have `n_data` rows.
    numbers: np.ndarray
    n_data: int
    #: The table that they were read from; None of arrays.
    table: Any = None

    def __len__(self) -> int:
        return int(self.values.shape[0])

    @property
    def source(self) -> Any:
        """What the estimator reads these rows from."""
        return self.values if self.table is None else self.table

    def take(self, which: np.ndarray) -> Rows:
        table = None if self.table is None else self.table.take(which)
        values, log_units, numbers = self.values[which], self.log_units[which], self.numbers[which]
        return Rows(values, log_units, numbers, self.n_data, table)


@dataclass(frozen=True)
class RowScores:
    """Rows with their log-densities and components."""

    #: (N, D) of the model.
    rows: np.ndarray
    #: The most probable component (N,) of each row.
    component: np.ndarray
    #: (N,), in the units of the table, and what of it is due to them.
    log_density: np.ndarray
    log_units: np.ndarray


class View:
    """The model of a fitted estimator, and its columns in the order and terms of the user.

    `names` replace the estimator's names of columns.
    """

    def __init__(self, estimator: Any, names: Sequence[str] | None = None) -> None:
        check_is_fitted(estimator)
        self.estimator = estimator
        self.model: Any = estimator.model_
        #: Whether components are of a family in closed form.
        self.is_closed_form = isinstance(self.model, MixtureModel)
        self._reader: Any = estimator._columns
        self.weights = np.asarray(self.model.weights / self.model.weights.sum())
        self.n_components = int(self.weights.shape[0])
        self.parts: list[Part] = self.model.parts()[0]
        self.maps: ColumnMaps | None = self._reader.maps
        self.level_weights: dict[int, np.ndarray] = self._reader.level_weights
        self.columns: list[ColumnTerms] = self._reader.terms()
        known = {
            place: (part.kind, n_levels)
            for part in self.parts
            for place, n_levels in zip(part.columns.tolist(), part.n_levels(), strict=True)
        }
        for d, column in enumerate(self.columns):
            kind, n_levels = known.get(column.place, ("number", 0))
            # Levels without names have their numbers.
            levels = column.levels or tuple(map(str, range(n_levels)))
            if self._map_of(column) is not None:
                levels = ()
            name = column.name if names is None else names[d]
            kind = column.kind or kind
            self.columns[d] = replace(column, name=name, kind=kind, levels=levels)

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def find(self, columns: Any) -> np.ndarray:
        """Numbers of columns, in the user's order, from names or numbers; None is all."""
        if columns is None:
            return np.arange(len(self.columns))
        named = getattr(self.estimator, "feature_names_in_", None) is not None
        return find_columns(self.names if named else None, len(self.columns), columns, "columns")

    # Rows.

    def read(self, X: Any, most: int | None = None) -> Rows:
        """Rows in the model's coordinates, at most so many, chosen at random."""
        most = most or sys.maxsize
        if isinstance(X, Rows):
            return X if len(X) <= most else X.take(sample_rows(len(X), most))
        with self.unnamed(X):
            values, log_units, numbers, n_data, table = self._reader.read_some(
                X, lambda n_rows: sample_rows(n_rows, most)
            )
        units = np.zeros(values.shape[0]) if log_units is None else log_units.sum(axis=1)
        if self.maps is not None:
            units = units + self.maps.forward(values)[1].sum(axis=1)
        return Rows(np.asarray(values, dtype=np.float64), units, numbers, n_data, table)

    def model_rows(self, values: np.ndarray) -> np.ndarray:
        """Rows of the model from `Rows.values`."""
        return values if self.maps is None else self.maps.forward(values)[0]

    def centres(self, rows: np.ndarray) -> np.ndarray:
        """Complete rows of the model in the user's units and order; levels are codes."""
        return self.values(rows if self.maps is None else self.maps.backward(rows))

    def _map_of(self, column: ColumnTerms) -> ColumnMap | None:
        return None if self.maps is None else self.maps[column.place]

    def values(self, rows: np.ndarray) -> np.ndarray:
        """`Rows.values` in the user's units and order; levels are codes."""
        return np.stack([column.values(rows[:, column.place]) for column in self.columns], axis=1)

    def cells(self, rows: Rows) -> list[list[Any]]:
        """Columns of rows as plain objects, as the user wrote them; None is missing."""
        if rows.table is not None:
            cells: list[list[Any]] = self._reader.cells(rows.table)
            return cells
        columns = self.values(rows.values).T.tolist()
        return [[None if value != value else value for value in column] for column in columns]

    def score(self, rows: Rows) -> RowScores:
        """Log-densities and most probable components, in one pass over the components."""
        if not self.is_closed_form:
            with self.unnamed():
                component = self.model.top_components(rows.values, 1)[0][:, 0]
            log_density = self.log_densities(rows.values)
        else:
            components, densities, values = [], [], self.model_rows(rows.values)
            for log_joint, log_base, backend in self.model.log_joint_blocks(values):
                likelihood = log_sum_exp(log_joint)
                refuse_overflow(likelihood)
                components.append(backend.top_components(log_joint.T, None, 1.0, 1)[0][:, 0])
                densities.append(likelihood + log_base)
            component = np.concatenate(components)
            log_density = np.concatenate(densities) + rows.log_units
        values = self.model_rows(rows.values)
        return RowScores(values, component.astype(np.int64), log_density, rows.log_units)

    def log_densities(self, values: np.ndarray) -> np.ndarray:
        """Log-densities (N,) of `Rows.values`, in their coordinates."""
        with self.unnamed():
            scores = np.asarray(self.model.score_samples(self.model_rows(values)))
        return scores if self.maps is None else scores + self.maps.forward(values)[1].sum(axis=1)

    def explain(self, rows: Rows, top: int | None = None) -> Explanation:
        """Explain rows, of a mixture in closed form."""
        with self.unnamed(rows.source):
            explanation: Explanation = self.estimator.explain(rows.source, top=top)
        return explanation

    @contextlib.contextmanager
    def unnamed(self, X: Any = None) -> Iterator[None]:
        """Silence scikit-learn, which warns that an array has no names of columns."""
        with warnings.catch_warnings():
            if not hasattr(X, "columns"):
                warnings.filterwarnings("ignore", "X does not have valid feature names")
            yield

    # The model.

    @property
    def can_draw(self) -> bool:
        """Whether rows can be drawn: a `Mixture` of a user's component may have no `sample`."""
        component = getattr(self.estimator, "component", self.estimator)
        return self.is_closed_form or hasattr(component, "sample")

    def draw(self, n_rows: int) -> np.ndarray:
        """Rows (n, D) drawn from the model; the same at each call."""
        if not self.can_draw:
            raise ValueError(
                f"model must be able to draw rows, but its component {self.estimator.component!r} "
                "has no `sample`. Add one, or look at a mixture in closed form."
            )
        drawn = np.asarray(self.model.sample(n_rows, np.random.RandomState(0))[0])
        return drawn if self.maps is None else self.maps.backward(drawn)

    @functools.cached_property
    def distributions(self) -> list[Distribution]:
        """The distribution of each column in the user's units, exact or by draws."""
        if not self.is_closed_form:
            return [Draws(column) for column in self.draw(N_DRAWS).T]
        by_place = {
            column: part.distribution(place, self.weights)
            for part in self.parts
            for place, column in enumerate(part.columns.tolist())
        }
        return [
            by_place[c.place].in_units(c.scale, c.offset, c.step)
            if self._map_of(c) is None
            else self._mapped_distribution(c, by_place[c.place])
            for c in self.columns
        ]

    def _mapped_distribution(self, column: ColumnTerms, scores: Distribution) -> Distribution:
        query = QueryRows(self.model, np.full((1, len(self.columns)), np.nan), maps=self.maps)
        each, atoms = query.map_of(column.place), query.atom_part(column.place)
        masses = np.zeros(0)
        ((part, (target,), _),) = query.parts_of(np.array([column.place]))
        if each.levels.size:
            masses = self.weights @ part.tables[target]
            masses /= masses.sum()
        elif atoms is not None:
            table = atoms[0].tables[atoms[1]]
            table = table / table.sum(axis=1, keepdims=True)
            masses = self.weights @ table[:, 1:]
            shares = self.weights * table[:, 0]
            scores = part.distribution(target, shares / shares.sum())
        units = column.scale, column.offset, column.step
        return MappedDistribution(scores, each, masses, *units)

    def model_terms(self) -> dict[int, ColumnTerms]:
        """How columns of the model read, by their places: few values and atoms are levels."""
        terms = {column.place: column for column in self.columns}
        for column in self.columns:
            each = self._map_of(column)
            if self.maps is None or each is None:
                continue
            names = tuple(f"{v:.6g}" for v in column.values(np.append(each.levels, each.atoms)))
            if each.levels.size:
                terms[column.place] = replace(column, levels=names)
                continue
            terms[column.place] = replace(column, back=each.backward)
            if column.place in self.maps.indicators:
                if column.start is not None:
                    names = tuple(column.dates(column.values(each.atoms)))
                place = self.maps.indicators[column.place]
                terms[place] = replace(column, place=place, levels=("another value", *names))
        return terms

    def parts_from(self, scores: RowScores) -> tuple[list[Part], np.ndarray]:
        """What describes the components, and flags (K,) of those of which anything is known.

        Components of a deep mixture have no moments in closed form. They are described by means and
        variances of the rows whose most probable component they are.
        """
        if self.is_closed_form:
            return self.parts, np.ones(self.n_components, dtype=bool)
        rows, component = scores.rows, scores.component
        seen = ~np.isnan(rows)
        counts, sums, squares = (np.zeros((self.n_components, rows.shape[1])) for _ in range(3))
        np.add.at(counts, component, seen)
        np.add.at(sums, component, np.where(seen, rows, 0.0))
        divisor = np.maximum(counts, 1.0)
        means = sums / divisor
        np.add.at(squares, component, np.where(seen, np.square(rows - means[component]), 0.0))
        variances = np.maximum(squares / divisor, np.square(_LEAST_SCALE * spread_of(rows)))
        columns, centre = np.arange(rows.shape[1]), np.zeros(rows.shape[1])
        part = DiagonalPart(columns, means, variances, centre, variances)
        return [part], np.asarray(counts.any(axis=1))


def view_of(model: Any) -> View:
    """The view of an estimator; a view is returned as it is."""
    return model if isinstance(model, View) else View(model)


def spread_of(rows: np.ndarray) -> np.ndarray:
    """Standard deviations (D,) of columns without their missing cells; 1 where nothing varies."""
    seen = ~np.isnan(rows)
    counts = np.maximum(seen.sum(axis=0), 1)
    means = np.where(seen, rows, 0.0).sum(axis=0) / counts
    squares = np.where(seen, np.square(rows - means), 0.0).sum(axis=0) / counts
    return np.where(squares > 0.0, np.sqrt(squares), 1.0)


def sample_rows(n_rows: int, most: int, seed: int = 0) -> np.ndarray:
    """Sorted numbers of at most so many rows, drawn without replacement; all if there are few."""
    if n_rows <= most:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng(seed).choice(n_rows, most, replace=False))
