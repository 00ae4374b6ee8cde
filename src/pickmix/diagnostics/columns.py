"""Columns of a table as a model sees them: names, values, and the model's law of each."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted, validate_data

from pickmix.data.typed_encoding import level_names
from pickmix.data.typed_schema import LEVEL_KINDS, ColumnSchema
from pickmix.diagnostics.laws import CountLaw, DrawnLaw, Law, LevelLaw, NormalLaw
from pickmix.estimators.questions_columns import find_columns as _find_in
from pickmix.estimators.questions_columns import read_rows
from pickmix.estimators.questions_rows import AskedRows
from pickmix.families.conditioning import CountPart, DiagonalPart, LevelPart
from pickmix.families.conditioning_dense import DensePart

#: Rows that are drawn from a model without a closed form.
N_DRAWS = 20_000


@dataclass(frozen=True)
class Column:
    """One column of rows, in the table's own terms.

    Attributes
    ----------
    name : str
    kind : str
        "number", "count" or "level".
    values : (N,) array
        NaN where nothing was seen. Numbers in the table's units, dates in days since their
        `origin`, levels as codes 0, 1, 2, ...
    law : Law
        What the model says of the column.
    levels : tuple of str
        Names of the codes of a column of levels, else empty.
    step : float or None
        What values are multiples of, if the model knows that they are rounded.
    origin : datetime64 or None
        Of dates.
    """

    name: str
    kind: str
    values: np.ndarray
    law: Law
    levels: tuple[str, ...] = ()
    step: float | None = None
    origin: Any = None


def is_table(model: Any) -> bool:
    """Whether the model was fitted to a table with columns of several kinds."""
    return hasattr(model, "schema_")


def is_closed_form(model: Any) -> bool:
    """Whether the components are of a family in closed form."""
    return is_table(model) or hasattr(model, "_fitted_family")


def _of_table(model: Any) -> list[ColumnSchema]:
    """Columns of a table that are part of the model, in the table's order."""
    return [column for column in model.schema_.columns.values() if column.is_modelled]


def column_names(model: Any, n_columns: int | None = None) -> list[str]:
    """Names of the columns that a model describes, "column 0" and so on if they have none.

    Parameters
    ----------
    model : fitted estimator of pickmix
    n_columns : int, default=None
        D; None is what the model was fitted to.

    Returns
    -------
    names : list of D str
        Of a `TableMixture` those of the columns that are part of the model, in the table's order.

    Examples
    --------
    >>> from pickmix import GaussianMixture
    >>> column_names(GaussianMixture(1).fit([[0.0, 1.0], [1.0, 3.0]]))
    ['column 0', 'column 1']
    """
    if is_table(model):
        return [column.name for column in _of_table(model)]
    names = getattr(model, "feature_names_in_", None)
    if names is not None:
        return [str(name) for name in names]
    return [f"column {d}" for d in range(n_columns or model.n_features_in_)]


def find_columns(model: Any, columns: Any = None, parameter: str = "columns") -> np.ndarray:
    """Numbers of columns among `column_names`, from names or numbers; None is all of them."""
    names = column_names(model)
    if columns is None:
        return np.arange(len(names))
    named = is_table(model) or getattr(model, "feature_names_in_", None) is not None
    known = names if named else None
    asked = SimpleNamespace(feature_names_in_=known, n_features_in_=len(names))
    return _find_in(asked, columns, parameter)


def some_rows(n_rows: int, most: int, seed: int = 0) -> np.ndarray:
    """Sorted numbers of at most so many rows, drawn without replacement; all if there are few.

    Examples
    --------
    >>> some_rows(3, 10)
    array([0, 1, 2])
    >>> some_rows(1000, 4).shape
    (4,)
    """
    if n_rows <= most:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng(seed).choice(n_rows, most, replace=False))


def take_rows(X: Any, numbers: np.ndarray) -> Any:
    """Some rows of a table in memory, as a table of its kind.

    Examples
    --------
    >>> take_rows({"a": [5, 6, 7]}, np.array([0, 2]))
    {'a': array([5, 7])}
    """
    if isinstance(X, Mapping):
        return {name: np.asarray(values)[numbers] for name, values in X.items()}
    if hasattr(X, "iloc"):
        return X.iloc[numbers]
    if hasattr(X, "take") and hasattr(X, "column_names"):
        # A Table of pyarrow.
        return X.take(numbers)
    if hasattr(X, "with_columns"):
        # A DataFrame of polars.
        return X[numbers.tolist()]
    return np.asarray(X)[numbers]


def count_rows(X: Any) -> int:
    """Number of rows of a table in memory."""
    if isinstance(X, str | os.PathLike):
        raise ValueError(f"X must be a table in memory, got the path {str(X)!r}. Read it first.")
    if isinstance(X, Mapping):
        return len(next(iter(X.values()), ()))
    return len(X)


def thin(X: Any, most: int) -> Any:
    """At most so many rows of a table in memory, chosen at random."""
    n_rows = count_rows(X)
    return X if n_rows <= most else take_rows(X, some_rows(n_rows, most))


def read_values(model: Any, X: Any) -> np.ndarray:
    """Rows (N, D) of a table in the order of `column_names`, NaN where nothing was seen.

    Numbers are in the table's units, dates in days since the first one of the fit, levels are
    codes.
    """
    check_is_fitted(model)
    if is_table(model):
        columns = _of_table(model)
        encoded = model._encode(X)[0][:, _places(model)]
        return np.stack(
            [_own_units(column, own) for column, own in zip(columns, encoded.T, strict=True)],
            axis=1,
        )
    model = named_as(model, X)
    if is_closed_form(model):
        return np.asarray(read_rows(model, X), dtype=np.float64)
    rows = validate_data(
        model, X, dtype=np.float64, reset=False, ensure_all_finite="allow-nan", ensure_min_samples=1
    )
    return np.asarray(rows)


def draw_values(model: Any, n_rows: int, seed: int = 0) -> np.ndarray:
    """Rows (n, D) drawn from a model, as `read_values` gives them; the same at each call."""
    if is_table(model):
        rows = model.mixture_.sample(n_rows, np.random.default_rng(seed))[0][:, _places(model)]
        columns = [
            _rounded(column, _own_units(column, own))
            for column, own in zip(_of_table(model), rows.T, strict=True)
        ]
        return np.stack(columns, axis=1)
    if not can_draw(model):
        raise ValueError(
            f"model must be able to draw rows, but its component {model.component!r} has no "
            "`sample`. Add one, or look at a mixture in closed form."
        )
    # A copy: the same rows at each call, and a user's RandomState is left alone.
    return np.asarray(nameless(model).set_params(random_state=seed).sample(n_rows)[0])


def can_draw(model: Any) -> bool:
    """Whether rows can be drawn from a model: a `Mixture` of a user's component may have no way."""
    component = getattr(model, "component", None)
    return component is None or hasattr(component, "sample")


def nameless(model: Any) -> Any:
    """Copy a model without column names: scikit-learn would warn that an array has none."""
    found = copy.copy(model)
    vars(found).pop("feature_names_in_", None)
    return found


def named_as(model: Any, X: Any) -> Any:
    """The model, or a copy without names if the rows have none either."""
    return model if hasattr(X, "columns") or is_table(model) else nameless(model)


def read_columns(model: Any, X: Any, columns: Any = None, most: int | None = None) -> list[Column]:
    """Columns of rows with the model's law of each.

    Parameters
    ----------
    model : fitted estimator of pickmix
    X : table, as the model takes it
    columns : list of names or numbers, default=None
        None is all.
    most : int, default=None
        Look at no more rows than this; None is all of them.
    """
    values = read_values(model, X)
    if most is not None:
        values = values[some_rows(values.shape[0], most)]
    wanted = find_columns(model, columns)
    names = column_names(model, values.shape[1])
    if not is_closed_form(model):
        drawn = draw_values(model, N_DRAWS)
        return [
            Column(names[d], "number", values[:, d], DrawnLaw(drawn[:, d])) for d in wanted.tolist()
        ]
    if is_table(model):
        laws = _laws(model.mixture_)
        schema, places = _of_table(model), _places(model)
        return [_table_column(schema[d], values[:, d], laws[places[d]]) for d in wanted.tolist()]
    laws = _laws(model)
    found = []
    for d in wanted.tolist():
        law = laws[d]
        levels = (
            tuple(map(str, range(law.probabilities.shape[0]))) if isinstance(law, LevelLaw) else ()
        )
        found.append(Column(names[d], law.kind, values[:, d], law, levels, law.step))
    return found


def _places(model: Any) -> np.ndarray:
    """Where the columns of a table stand in encoded rows."""
    place = {column.name: number for number, column in enumerate(model.schema_.modelled)}
    return np.array([place[column.name] for column in _of_table(model)])


def _own_units(column: ColumnSchema, coordinates: np.ndarray) -> np.ndarray:
    """Encoded values in the table's units; dates in days since their origin."""
    if column.kind in LEVEL_KINDS:
        return coordinates
    return np.asarray(coordinates * column.scale + (0 if column.kind == "date" else column.origin))


def _rounded(column: ColumnSchema, values: np.ndarray) -> np.ndarray:
    """Drawn values as multiples of the column's step, if it has one."""
    if not column.step:
        return values
    first = 0 if column.kind == "date" else column.origin
    return np.asarray(first + np.rint((values - first) / column.step) * column.step)


def _table_column(schema: ColumnSchema, values: np.ndarray, law: Law) -> Column:
    if isinstance(law, LevelLaw):
        return Column(schema.name, "level", values, law, code_names(schema))
    if not isinstance(law, NormalLaw):
        return Column(schema.name, law.kind, values, law, step=law.step)
    origin = None
    first = float(schema.origin)
    if schema.kind == "date":
        first = 0.0
        if not schema.form.get("duration"):
            origin = np.datetime64(schema.origin, schema.unit)  # type: ignore[call-overload]
    step = schema.step or None
    own = NormalLaw(law.weights, law.means * schema.scale + first, law.spread * schema.scale, step)
    return Column(schema.name, "number", values, own, step=step, origin=origin)


def code_names(schema: ColumnSchema) -> tuple[str, ...]:
    """What the codes of a column of levels stand for; rare levels share one."""
    n_alike = np.bincount(np.array(schema.codes))
    return tuple(
        str(name) if n == 1 else f"{n:,} rare levels"
        for name, n in zip(level_names(schema), n_alike.tolist(), strict=True)
    )


def _laws(mixture: Any) -> Sequence[Law]:
    """What a mixture in closed form says of each column of its rows."""
    asked = AskedRows(mixture, np.full((1, mixture.n_features_in_), np.nan))
    weights = mixture.weights_ / mixture.weights_.sum()
    laws: list[Law] = [NormalLaw(weights, weights, weights)] * mixture.n_features_in_
    for part in asked.parts:
        for place, column in enumerate(part.columns.tolist()):
            centre = asked.centre[column]
            if isinstance(part, DensePart):
                spread = np.sqrt(part.matrices[:, place, place])
                laws[column] = NormalLaw(weights, part.means[:, place] + centre, spread)
            elif isinstance(part, DiagonalPart):
                spread = np.sqrt(part.variances[:, place])
                laws[column] = NormalLaw(weights, part.means[:, place] + centre, spread)
            elif isinstance(part, CountPart):
                laws[column] = CountLaw(weights, part.rates[:, place])
            elif isinstance(part, LevelPart):
                laws[column] = LevelLaw(weights @ part.tables[place])
    return laws
