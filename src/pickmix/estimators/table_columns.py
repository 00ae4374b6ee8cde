"""The columns of a table of several kinds, as queries of a mixture name and read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pickmix.families.base import RandomSource
from pickmix.inputs.columns import TypedColumn, TypedTable
from pickmix.inputs.conditions import Allowed, Condition, parse_conditions
from pickmix.inputs.encoding import (
    decode,
    decode_column,
    encode,
    encode_column,
    filled_column,
    level_names,
    level_places,
    level_weights,
    levels_of,
)
from pickmix.inputs.errors import InputError, listed, shown
from pickmix.inputs.frames import open_table, read_typed, replace_columns, write_typed, zone_of
from pickmix.inputs.kinds import as_fitted, as_numbers, as_times, from_start, settled
from pickmix.inputs.maps import maps_of
from pickmix.inputs.schema import LEVEL_KINDS, UNITS, ColumnSchema, TableSchema
from pickmix.inputs.text import text_column
from pickmix.model.columns import Columns, ColumnTerms
from pickmix.model.explanation import Explanation, rank_columns


class TableColumns(Columns):
    """Columns of a schema: found by name, in the units and with the levels of the table.

    Rows that are read have the columns of `schema.modelled`; `maps` makes the model's of them.
    """

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.maps = maps_of(schema)
        self.n_columns = len(schema.modelled)
        self.all_labels = [column.name for column in schema.modelled]
        weights = {place: level_weights(column) for place, column in enumerate(schema.modelled)}
        self.level_weights = {place: w for place, w in weights.items() if w is not None}

    # Which columns.

    def _schemas(self, columns: np.ndarray) -> list[ColumnSchema]:
        return [self.schema.modelled[column] for column in columns]

    def in_model_order(self, columns: np.ndarray) -> np.ndarray:
        return np.sort(columns) if self.maps is None else self.maps.latent(np.sort(columns))

    def find(self, columns: Any) -> np.ndarray:
        names = [columns] if isinstance(columns, str) else list(columns)
        for name in names:
            if name not in self.all_labels:
                listed = ", ".join(map(repr, self.all_labels))
                raise ValueError(
                    f"columns must be part of the model, that is {listed}, got {name!r}."
                )
        if not names or len(set(names)) < len(names):
            raise ValueError(f"columns must hold at least one name, each once, got {names!r}.")
        return np.array([self.all_labels.index(name) for name in names], dtype=np.int64)

    def free(self, is_given: np.ndarray) -> np.ndarray:
        place = {name: number for number, name in enumerate(self.all_labels)}
        order = [place[name] for name in self.schema.columns if name in place]
        return np.array([number for number in order if not is_given[number]], dtype=np.int64)

    def named(self, columns: np.ndarray) -> str:
        return ", ".join(map(repr, self.labels(columns)))

    def terms(self) -> list[ColumnTerms]:
        order = self.free(np.zeros(self.n_columns, dtype=np.bool_))
        return [
            _terms(column, place)
            for column, place in zip(self._schemas(order), order.tolist(), strict=True)
        ]

    # Rows in.

    def read(self, X: Any, parameter: str = "X") -> tuple[np.ndarray, np.ndarray]:
        return encode(self.schema, read_typed(X))

    def read_some(
        self, X: Any, choose: Callable[[int], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, int, TypedTable]:
        table = read_typed(X)
        numbers = choose(table.n_rows)
        chosen = table.take(numbers)
        return *encode(self.schema, chosen), numbers, table.n_rows, chosen

    def cells(self, table: TypedTable) -> list[list[Any]]:
        rows = range(table.n_rows)
        return [
            [table.columns[column.name].value(row) for row in rows]
            if column.name in table.columns
            else [None] * table.n_rows
            for column in self.terms()
        ]

    def read_noise(self, noise: Any, rows: np.ndarray) -> None:
        if noise is not None:
            raise ValueError("noise is for a mixture of Gaussians, got a table.")

    def read_given(self, given: Any) -> np.ndarray:
        if isinstance(given, Mapping):
            n_rows = _n_given(given)
            table = _given_rows(self.schema, given, 1 if n_rows is None else n_rows)
        else:
            table = read_typed(given)
        if table is None:
            return np.full((1, self.n_columns), np.nan)
        if not any(name in table.columns for name in self.all_labels):
            return np.full((table.n_rows, self.n_columns), np.nan)
        return _encode_given(self.schema, table)

    def narrowed(self, where: Any) -> tuple[TableColumns, dict[int, Allowed]]:
        allowed, columns = {}, dict(self.schema.columns)
        for name, condition in parse_conditions(where).items():
            (number,), schema = self.find([name]), columns[name]
            try:
                if schema.kind in LEVEL_KINDS:
                    allowed[int(number)], columns[name] = _narrowed_levels(schema, condition)
                else:
                    read = partial(_read_values, schema)
                    allowed[int(number)] = Allowed(condition.intervals(read))
            except InputError as error:
                raise error.replaced(parameter="where", row=None) from error
        return TableColumns(TableSchema([*columns.values()], self.schema.origin)), allowed

    def rounded(self, column: int, values: np.ndarray) -> np.ndarray:
        schema = self.schema.modelled[column]
        return from_start(schema, decode_column(schema, values).values) / schema.scale

    def read_without(self, X: Any, targets: np.ndarray) -> np.ndarray:
        names = self.labels(targets)
        table = read_typed(X)
        others = {name: c for name, c in table.columns.items() if name not in names}
        if not any(name in others for name in self.all_labels):
            # Nothing is given: every row has the distribution of the whole.
            return np.full((table.n_rows, self.n_columns), np.nan)
        return encode(self.schema, TypedTable(others, table.n_rows, table.origin), names)[0]

    def read_targets(self, Y: Any, columns: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        names = self.labels(columns)
        if isinstance(Y, Mapping) and all(map(_is_single, Y.values())):
            plain = {name: v[()] if isinstance(v, np.ndarray) else v for name, v in Y.items()}
            Y = {name: [value] for name, value in plain.items()}
        table = read_typed(Y)
        lacking = [name for name in names if name not in table.columns]
        if lacking or table.n_rows not in (1, n):
            raise ValueError(
                f"Y must have {n} row(s), or one, and the columns {', '.join(names)}, got "
                f"{table.n_rows} row(s) of {', '.join(table.columns)}."
            )
        chosen = {name: table.columns[name] for name in names}
        rows, log_units = encode(
            self.schema, TypedTable(chosen, table.n_rows, table.origin), self.all_labels
        )
        return rows[:, columns], log_units.sum(axis=1)

    # Answers out.

    def values(self, values: np.ndarray, columns: np.ndarray) -> dict[str, np.ndarray]:
        return {
            schema.name: _plain_values(schema, values[:, place])
            for place, schema in enumerate(self._schemas(columns))
        }

    def spreads(self, spreads: np.ndarray, columns: np.ndarray) -> dict[str, np.ndarray]:
        return {
            schema.name: spreads[:, place] * schema.scale
            for place, schema in enumerate(self._schemas(columns))
        }

    def scales(self, columns: np.ndarray) -> np.ndarray:
        return np.array([schema.scale for schema in self._schemas(columns)])

    def draws(self, values: np.ndarray, columns: np.ndarray, random: RandomSource) -> Any:
        rows = np.zeros((values.shape[0] * values.shape[1], self.n_columns))
        rows[:, columns] = values.reshape(rows.shape[0], -1)
        return write_typed(decode(self.schema, rows, self.labels(columns), random))

    def single(self, answer: dict[str, np.ndarray], columns: Any) -> Any:
        return answer[columns] if isinstance(columns, str) else answer

    def probabilities(
        self, column: Any, columns: np.ndarray, shares: Callable[[int], np.ndarray | None]
    ) -> tuple[np.ndarray, np.ndarray]:
        names = self.labels(columns)
        if column not in names:
            raise ValueError(f"column must be one of {', '.join(names)}, got {column!r}.")
        number = int(columns[names.index(column)])
        schema = self.schema.modelled[number]
        if schema.atoms:
            # The first stands for all other values.
            by_atom = shares(number)
            assert by_atom is not None
            return _plain_values(schema, np.array(schema.atoms) / schema.scale), by_atom[:, 1:]
        by_code = shares(number)
        if by_code is None:
            raise ValueError(
                "column must be a category, a boolean, or a number with few or frequent values, "
                f"got the {schema.kind} {column!r}."
            )
        probabilities = by_code[:, list(schema.codes)] * np.array(schema.shares)
        levels = np.array(schema.levels)
        if schema.kind == "ordinal" and schema.whole:
            levels = levels.astype(np.int64)
        return levels, np.asarray(probabilities)

    def refuse_levels(self, query: str, kinds: np.ndarray, columns: np.ndarray) -> None:
        levels = [c.name for c in self._schemas(columns) if c.kind in LEVEL_KINDS]
        if levels:
            raise ValueError(
                f"{query} is for numbers, counts and dates, got {', '.join(map(repr, levels))}. "
                "Ask for probabilities of their levels instead."
            )

    def explaining(self, X: Any) -> tuple[np.ndarray, np.ndarray, Callable[..., Explanation]]:
        table = read_typed(X)
        rows, log_units = encode(self.schema, table)

        def in_terms(explanation: Explanation, top: int | None) -> Explanation:
            return self._explain(explanation, table, log_units, top)

        return rows, log_units, in_terms

    def _explain(
        self, explanation: Explanation, table: TypedTable, log_units: np.ndarray, top: int | None
    ) -> Explanation:
        """An explanation in the units of the table and the order of its columns."""
        order = self.free(np.zeros(self.n_columns, dtype=np.bool_))
        columns = self._schemas(order)
        shape = explanation.values.shape
        values, expected = (np.full(shape, None, dtype=object) for _ in range(2))
        spread = explanation.spread[:, order].copy()
        log_conditional = (explanation.log_conditional + log_units)[:, order]
        for number, column in enumerate(columns):
            seen = ~np.isnan(explanation.values[:, order[number]])
            if column.name in table.columns:
                values[seen, number] = _cells(column, table.columns[column.name], seen)
            expected[seen, number] = _expected(column, explanation.expected[seen, order[number]])
            if column.kind not in LEVEL_KINDS:
                spread[:, number] *= column.scale
        surprise = explanation.surprise[:, order]
        return Explanation(
            values,
            explanation.log_density + log_units.sum(axis=1),
            log_conditional,
            expected,
            spread,
            rank_columns(surprise, top),
            tuple(column.kind for column in columns),
            tuple(column.name for column in columns),
            surprise,
            explanation.groups[:, order],
            explanation.scales,
        )

    def texts(self, values: np.ndarray, most: int) -> list[list[str]]:
        values = values if self.maps is None else self.maps.backward(values)
        table = decode(self.schema, values, self.all_labels[:most])
        columns = [table.columns[name] for name in self.all_labels[:most]]
        cells = [[column.value(row) for column in columns] for row in range(values.shape[0])]
        return [[f"{v:.4g}" if isinstance(v, float) else str(v) for v in row] for row in cells]

    def filling(
        self, X: Any, absent: Sequence[str] = ()
    ) -> tuple[np.ndarray, Callable[[np.ndarray, Any], Any]]:
        """As of arrays; the table need not have the columns `absent`."""
        original, table = open_table(X)
        rows, _ = encode(self.schema, table, absent)
        same_origin = table.origin == self.schema.origin
        place = {name: number for number, name in enumerate(self.all_labels)}
        with_gaps = [
            name
            for name, column in table.columns.items()
            if name in self.schema.columns
            and self.schema[name].kind != "skip"
            and not self.schema[name].has_gap_level
            and settled(self.schema[name], column).missing.any()
        ]

        def fill(complete: np.ndarray, random: RandomSource | None) -> Any:
            zeros = np.zeros(complete.shape[0])
            columns = {
                name: filled_column(
                    self.schema[name],
                    table.columns[name],
                    complete[:, place[name]] if name in place else zeros,
                    random,
                    same_origin,
                )
                for name in with_gaps
            }
            return replace_columns(original, table.origin, columns)

        return rows, fill

    def sample(
        self,
        given: Mapping[str, Any],
        n_samples: int,
        random: RandomSource,
        draw: Callable[[np.ndarray | None], np.ndarray],
    ) -> Any:
        """A table of drawn rows; `draw` makes them, or fills rows (n_samples, D) with NaN."""
        n_rows = 1 if _n_given(given) is None else n_samples
        table = _given_rows(self.schema, given, n_rows)
        if table is None:
            return write_typed(decode(self.schema, draw(None), random=random))
        rows = _encode_given(self.schema, table)
        is_given = ~np.isnan(rows).all(axis=0)
        rows = np.repeat(rows, n_samples // rows.shape[0], axis=0)
        if np.isnan(rows).any():
            rows = draw(rows)
        drawn = decode(self.schema, rows, random=random)
        columns = dict(drawn.columns)
        for name in self.labels(np.flatnonzero(is_given)):
            columns[name] = _as_given(self.schema[name], table.columns[name], columns[name])
        return write_typed(TypedTable(columns, n_samples, drawn.origin))


def _terms(schema: ColumnSchema, place: int) -> ColumnTerms:
    if schema.kind in LEVEL_KINDS:
        # Rare levels share a code.
        n_alike = np.bincount(np.array(schema.codes)).tolist()
        names = zip(level_names(schema), n_alike, strict=True)
        levels = tuple(str(name) if n == 1 else f"{n:,} rare levels" for name, n in names)
        return ColumnTerms(schema.name, place, schema.kind, levels=levels)
    start, offset = None, float(schema.origin)
    if schema.kind == "date":
        offset = 0.0
        if not schema.form.get("duration"):
            start = np.datetime64(schema.origin, schema.unit)  # type: ignore[call-overload]
    step = schema.step or None
    return ColumnTerms(schema.name, place, schema.kind, schema.scale, offset, step, start=start)


def _plain_values(schema: ColumnSchema, values: np.ndarray) -> np.ndarray:
    """Coordinates as values of the table; numbers are not rounded."""
    if schema.kind in ("number", "integer", "ordinal", "count"):
        return np.asarray(values * schema.scale + schema.origin)
    column = decode_column(schema, values.ravel())
    plain = column.values if column.levels is None else column.levels[column.values]
    return np.asarray(plain).reshape(values.shape)


def _cells(schema: ColumnSchema, column: TypedColumn, seen: np.ndarray) -> list[Any]:
    """Seen values of a column as plain objects; dates as text."""
    column = as_fitted(schema, column)
    values = column.values[seen]
    if column.storage == "time" and schema.kind == "date":
        values = values.astype(f"{values.dtype.kind}8[{schema.unit}]")
    if schema.has_gap_level and column.levels is not None:
        levels, values = [*column.levels, None], np.where(column.missing[seen], -1, values)
        return [levels[value] for value in values.tolist()]
    if column.levels is not None:
        return list(column.levels[values])
    return [str(value) for value in values] if column.storage == "time" else values.tolist()


def _expected(column: ColumnSchema, coordinates: np.ndarray) -> list[Any]:
    """Expected values as plain objects; numbers are not rounded."""
    if column.kind in LEVEL_KINDS:
        names = level_names(column)
        return [names[code] for code in coordinates.astype(np.int64).tolist()]
    if column.kind == "date":
        return [str(value) for value in decode_column(column, coordinates).values]
    plain: list[Any] = (coordinates * column.scale + column.origin).tolist()
    return plain


# Given values: an unknown level or a value of another kind is a mistake here, and not a gap.


def _is_single(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 0
    return isinstance(value, str) or not hasattr(value, "__len__")


def _n_given(given: Mapping[str, Any]) -> int | None:
    """Return how many values are given for a column; None if there is one for each."""
    return next((len(value) for value in given.values() if not _is_single(value)), None)


def _wrong(column: str, problem: str, value: Any = None, remedy: str = "") -> InputError:
    return InputError(problem, parameter="given", column=column, value=value, remedy=remedy)


def _given_rows(schema: TableSchema, given: Mapping[str, Any], n_rows: int) -> TypedTable | None:
    """Make a table of `n_rows` rows out of single values, or of n values, by column.

    None if only the values of constant columns are given, which say nothing.
    """
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in schema.columns or schema[name].kind == "skip":
            names = listed(column.name for column in schema.modelled)
            raise ValueError(f"given names {shown(name)}, expected columns of the model: {names}.")
        values[name] = value
        if _is_single(value):
            value = value[()] if isinstance(value, np.ndarray) else value
            values[name] = [value] * n_rows
            if read_typed({name: [value]}).columns[name].missing[0]:
                remedy = "Leave the column out if nothing is known of it."
                raise _wrong(name, f"must be a value, got {shown(value)}", remedy=remedy)
        if len(values[name]) != n_rows:
            raise _wrong(name, f"must be one value or {n_rows}", len(values[name]))
    if not values:
        return None
    table = read_typed(values)
    for name in values:
        if schema[name].kind == "constant":
            _check_constant_given(schema[name], table.columns.pop(name))
    return table if table.columns else None


def _check_constant_given(schema: ColumnSchema, column: TypedColumn) -> None:
    if column.missing.all():
        return
    if schema.storage == "time":
        times = as_times(schema.name, column)
        other = times.values != decode_column(schema, np.zeros(1)).values[0]
    else:
        other = level_places(schema, column)[0] < 0
    problem = f"must be {shown(schema.levels[0])}, the only value in the fit"
    _refuse(schema, column, other & ~column.missing, problem)


def _refuse(schema: ColumnSchema, given: TypedColumn, wrong: np.ndarray, problem: str) -> None:
    if wrong.any():
        raise _wrong(schema.name, problem, given.value(int(wrong.argmax())))


def _read_values(schema: ColumnSchema, values: Sequence[Any]) -> np.ndarray:
    """Return coordinates (n,) of values in a condition, or places of levels."""
    column = read_typed({schema.name: values}).columns[schema.name]
    if all(isinstance(value, str) for value in values):
        column = as_fitted(schema, text_column(values))
    if column.missing.any():
        raise _wrong(schema.name, "must hold values", list(values))
    if schema.kind != "ordinal":
        _check_given(schema, column)
    if schema.kind == "category":
        return level_places(schema, column)[0]
    if schema.kind == "boolean":
        return encode_column(schema, column)[0]
    read = as_times if schema.kind == "date" else as_numbers
    return from_start(schema, read(schema.name, column).values) / schema.scale


def _narrowed_levels(schema: ColumnSchema, condition: Condition) -> tuple[Allowed, ColumnSchema]:
    """Return the share of each code that is allowed, and a schema that decodes to such levels."""
    if not condition.values:
        raise _wrong(schema.name, f'must be a set of levels, such as "in {{{schema.levels[0]}}}"')
    places = _read_values(schema, condition.values)
    shares = np.where(np.isin(np.arange(len(schema.levels)), places), schema.shares, 0.0)
    by_code = np.bincount(schema.codes, shares)
    kept = np.where(by_code[list(schema.codes)] > 0.0, shares, schema.shares)
    return Allowed(np.zeros((0, 2)), by_code), replace(schema, shares=tuple(kept.tolist()))


def _encode_given(schema: TableSchema, table: TypedTable) -> np.ndarray:
    """Return rows (n, D) of given values, NaN where nothing is given."""
    for column in schema.modelled:
        if column.name in table.columns:
            _check_given(column, table.columns[column.name])
    return encode(schema, table, [column.name for column in schema.modelled])[0]


def _check_given(schema: ColumnSchema, column: TypedColumn) -> None:
    if schema.kind == "category":
        unseen = level_places(schema, column)[1]
        if unseen:
            problem = "must be a level that the fit has seen"
            raise _wrong(schema.name, problem, min(unseen, key=str))
        return
    if schema.kind == "boolean" and column.storage == "number":
        wrong = (column.values != 0) & (column.values != 1) & ~column.missing
        _refuse(schema, column, wrong, "must be true or false, or 1 or 0")
    if schema.lenient:
        column = replace(column, missing=column.missing & settled(schema, column).missing)
        schema = replace(schema, lenient=False)
    try:
        encode_column(schema, column)
    except InputError as error:
        row = None if column.missing.shape[0] == 1 else error.row
        raise error.replaced(parameter="given", row=row) from error
    zone = zone_of(schema.form)
    if schema.kind == "date" and zone and not column.missing.all():
        times = as_times(schema.name, column)
        if "text_zone" not in schema.form and zone_of(times.form) is None:
            problem = f"must have a time zone, as the column has ({zone})"
            remedy = "A Z after a time in text stands for UTC."
            raise _wrong(schema.name, problem, column.value(column.first), remedy)


def _as_given(schema: ColumnSchema, given: TypedColumn, drawn: TypedColumn) -> TypedColumn:
    """Put the given values into a drawn column, to the last digit, each for as many rows."""
    n_rows, n_drawn = given.missing.shape[0], drawn.missing.shape[0]
    given = given.take(np.repeat(np.arange(n_rows), n_drawn // n_rows))
    known = ~given.missing
    if not known.any() or schema.kind == "boolean":
        return drawn
    values = drawn.values.copy()
    if schema.kind == "category":
        values[known] = levels_of(schema, level_places(schema, given)[0][known])[0]
    elif schema.kind == "date":
        times = as_times(schema.name, given).values
        whole = times.astype(values.dtype)
        problem = f"must be a time of whole {UNITS[schema.unit]}"
        _refuse(schema, given, known & (whole != times), problem)
        values[known] = whole[known]
    else:
        numbers = as_numbers(schema.name, given).values
        if schema.whole:
            problem = "must be a whole number, as all values in the fit are"
            _refuse(schema, given, known & (numbers != np.rint(numbers)), problem)
        values = values.astype(np.promote_types(values.dtype, numbers.dtype))
        if schema.whole and values.dtype.kind == "f":
            values = drawn.values.astype(np.int64)
        values[known] = numbers[known]
    return replace(drawn, values=values)
