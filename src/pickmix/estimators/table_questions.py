"""Questions that a mixture of a table answers in terms of the table: levels, dates, own units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from pickmix.data.typed_checks import as_numbers, as_times
from pickmix.data.typed_encoding import decode, decode_column, encode, given_rows
from pickmix.data.typed_readers import open_table, read_typed
from pickmix.data.typed_schema import GAUSSIAN_KINDS, ColumnSchema, TableSchema
from pickmix.data.typed_tables import TypedColumn, TypedTable
from pickmix.data.typed_writers import replace_columns, write_typed
from pickmix.estimators.table_explanation import TableExplanation, explain_table
from pickmix.estimators.validation import RandomSeed, check_flag, check_generator, check_integer


class TableQuestions:
    """Samples, imputation, regression and explanations of a fitted `TableMixture`."""

    schema_: TableSchema
    mixture_: Any
    random_state: Any

    def sample(
        self,
        n_samples: int = 1,
        random_state: RandomSeed = None,
        *,
        given: Mapping[str, Any] | None = None,
    ) -> Any:
        """Draw rows, as a table of the kind that was fitted: column order, types, levels.

        Columns that are "skip" are not in it. A Parquet file counts as a pyarrow Table, a CSV file
        as a dict of arrays. Draws of integers and dates are rounded to their step; they may lie
        beyond the range of the table that was fitted.

        Parameters
        ----------
        n_samples : int, default=1
        random_state : int, RandomState, Generator or None, default=None
            None takes the estimator's own.
        given : dict, default=None
            Values of some columns, each one value or n_samples of them. The others are drawn from
            their distribution given these.

        Examples
        --------
        >>> import numpy as np
        >>> from pickmix import TableMixture
        >>> table = {"sex": ["f", "m"] * 50, "height": np.repeat([[160, 180]], 50, axis=0).ravel()}
        >>> mixture = TableMixture(2, random_state=0).fit(table)
        >>> mixture.sample(2, random_state=0, given={"sex": "m"})["sex"]
        array(['m', 'm'], dtype=object)
        """
        check_is_fitted(self)
        check_integer("n_samples", n_samples, 1)
        random = check_generator(self.random_state if random_state is None else random_state)
        if not given:
            rows = self.mixture_.sample(n_samples, random)[0]
            # They come grouped by component.
            rows = rows[random.permutation(n_samples)]
            return write_typed(decode(self.schema_, rows, random=random))
        several = any(not isinstance(v, str) and hasattr(v, "__len__") for v in given.values())
        seen = given_rows(self.schema_, given, n_samples if several else 1)
        rows = self._encode_given(seen)
        free = np.flatnonzero(np.isnan(rows).all(axis=0))
        rows = np.repeat(rows, n_samples // rows.shape[0], axis=0)
        if np.isnan(rows).any():
            rows = self.mixture_.impute(rows, "draw", random_state=random)
        drawn = decode(self.schema_, rows, random=random)
        columns = dict(drawn.columns)
        names = [column.name for column in self.schema_.modelled]
        for place, name in enumerate(names):
            if place not in free:
                columns[name] = _as_given(self.schema_[name], seen.columns[name], columns[name])
        return write_typed(TypedTable(columns, n_samples, drawn.origin))

    def _encode_given(self, table: TypedTable) -> np.ndarray:
        """Rows of given values; an unknown level is a mistake here."""
        absent = [column.name for column in self.schema_.modelled]
        unknown = []
        for column in self.schema_.modelled:
            if column.kind == "category" and column.name in table.columns:
                levels = table.columns[column.name]
                values = {
                    str(levels.value(row)) for row in np.flatnonzero(~levels.missing).tolist()
                }
                unknown += [
                    f"given[{column.name!r}] must be a level that the fit has seen, got {value!r}."
                    for value in sorted(values - {str(level) for level in column.levels})
                ]
        if unknown:
            raise ValueError(unknown[0])
        return encode(self.schema_, table, absent)[0]

    def impute(
        self,
        X: Any,
        strategy: str = "mean",
        *,
        n_draws: int = 1,
        random_state: RandomSeed = None,
    ) -> Any:
        """Fill in missing cells, in the types of the table; all others stay as they are.

        Integers and dates are rounded to their step, counts to whole numbers; categories get a
        level. Columns that are "skip", or that the fit did not have, are not touched; a column
        that was constant in the fit gets its value.

        Parameters
        ----------
        X : table
            As in `fit`.
        strategy : {"mean", "mode", "draw"}, default="mean"
            As in `FamilyMixture.impute`: means and most probable levels; what suits the most
            probable component; or draws.
        n_draws : int, default=1
            Filled tables to make, with "draw".
        random_state : int, RandomState, Generator or None, default=None
            For "draw". None takes the estimator's own.

        Returns
        -------
        filled : table of the same kind, or list of n_draws tables
            A Parquet file gives a pyarrow Table, a CSV file a dict of arrays.
        """
        check_is_fitted(self)
        original, table = open_table(X)
        rows, _ = encode(self.schema_, table)
        own = self.random_state if random_state is None else random_state
        random = check_generator(own) if strategy == "draw" else None
        filled = self.mixture_.impute(rows, strategy, n_draws=n_draws, random_state=random)
        made = []
        for complete in filled if n_draws > 1 else [filled]:
            columns = {
                name: _filled(self.schema_[name], table.columns[name], values, random)
                for name, values in self._with_gaps(table, complete)
            }
            made.append(replace_columns(original, table.origin, columns))
        return made if n_draws > 1 else made[0]

    def _with_gaps(self, table: TypedTable, rows: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """Columns that have gaps and can be filled, with their coordinates."""
        place = {column.name: number for number, column in enumerate(self.schema_.modelled)}
        found = []
        for name, column in table.columns.items():
            known = name in self.schema_.columns and self.schema_[name].kind != "skip"
            if known and column.missing.any():
                own = rows[:, place[name]] if name in place else np.zeros(rows.shape[0])
                found.append((name, own))
        return found

    def sample_conditional(self, X: Any, random_state: RandomSeed = None) -> Any:
        """Fill in missing cells by one draw each: `impute` with "draw"."""
        return self.impute(X, "draw", random_state=random_state)

    def predict_columns(
        self,
        X: Any,
        columns: str | Sequence[str],
        *,
        return_std: bool = False,
        quantiles: float | ArrayLike | None = None,
    ) -> Any:
        """What to expect in some columns, given the others.

        Parameters
        ----------
        X : table
            The columns to predict need not be there, and are not looked at.
        columns : str or list of str
            What to predict.
        return_std : bool, default=False
            Return standard deviations as well.
        quantiles : float or list of floats, default=None
            Return these quantiles as well.

        Returns
        -------
        mean : (N,) array, or a dict of them if `columns` is a list
            Means of numbers, integers and counts, not rounded; of dates, rounded to their step;
            the most probable level of categories and booleans.
        std : the same, if `return_std`
            Dates in days. NaN for levels.
        quantiles : (N, q) array or a dict of them, if `quantiles` is given
            Not for levels.
        """
        check_is_fitted(self)
        check_flag("return_std", return_std)
        names = [columns] if isinstance(columns, str) else list(columns)
        targets = self._places(names)
        rows = self._rows_without(X, targets)
        asked: dict[str, Any] = {"return_std": return_std, "quantiles": quantiles}
        answers = self.mixture_.predict_columns(rows, targets, **asked)
        answers = list(answers) if isinstance(answers, tuple) else [answers]
        found: list[dict[str, Any]] = []
        for number, answer in enumerate(answers):
            is_std = return_std and number == 1
            of_columns = {}
            for among, name in enumerate(names):
                values = answer[:, among]
                schema = self.schema_[name]
                of_columns[name] = values * schema.scale if is_std else _plain(schema, values)
            found.append(of_columns)
        plain = [answer[columns] for answer in found] if isinstance(columns, str) else found
        return plain[0] if len(plain) == 1 else tuple(plain)

    def predict_levels(self, X: Any, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities of the levels of a category or boolean, given the other columns.

        Parameters
        ----------
        X : table
            The column itself need not be there, and is not looked at.
        column : str

        Returns
        -------
        levels : (L,) array
        probabilities : (N, L) array
        """
        check_is_fitted(self)
        targets = self._places([column])
        schema = self.schema_[column]
        if not schema.codes:
            raise ValueError(
                f"column must be a category or boolean, got the {schema.kind} {column!r}."
            )
        mixtures = self.mixture_.conditional(self._rows_without(X, targets), targets)
        shares = mixtures.probabilities(targets[0])
        probabilities = shares[:, list(schema.codes)] * np.array(schema.shares)
        return np.array(schema.levels), np.asarray(probabilities)

    def explain(self, X: Any, top: int | None = None) -> TableExplanation:
        """Which cells make a row unusual: each cell given all others of its row.

        Parameters
        ----------
        X : table
        top : int, default=None
            Rank so many columns of each row; None is all.

        Returns
        -------
        explanation : TableExplanation
            Values and expectations in the units and with the levels of the table;
            ``print(explanation.table(i))`` shows row i.
        """
        check_is_fitted(self)
        table = read_typed(X)
        rows, log_units = encode(self.schema_, table)
        if top is not None:
            check_integer("top", top, 1)
        return explain_table(self.schema_, table, self.mixture_.explain(rows), log_units, top)

    def _places(self, names: Sequence[str]) -> list[int]:
        """Numbers of encoded columns."""
        known = [column.name for column in self.schema_.modelled]
        for name in names:
            if name not in known:
                raise ValueError(
                    f"columns must be part of the model, that is {', '.join(map(repr, known))}, "
                    f"got {name!r}."
                )
        if not names or len(set(names)) < len(names):
            raise ValueError(f"columns must hold at least one name, each once, got {names!r}.")
        return [known.index(name) for name in names]

    def _rows_without(self, X: Any, targets: Sequence[int]) -> np.ndarray:
        """Encoded rows in which the columns to predict are not known."""
        names = [self.schema_.modelled[target].name for target in targets]
        table = read_typed(X)
        others = {name: c for name, c in table.columns.items() if name not in names}
        known = [c.name for c in self.schema_.modelled if c.name in others]
        if not known:
            # Nothing is given: every row has the distribution of the whole.
            return np.full((table.n_rows, len(self.schema_.modelled)), np.nan)
        return encode(self.schema_, TypedTable(others, table.n_rows, table.origin), names)[0]


def _plain(schema: ColumnSchema, values: np.ndarray) -> np.ndarray:
    """Coordinates as values of the table; numbers are not rounded."""
    if schema.kind in ("number", "integer", "count"):
        return np.asarray(values * schema.scale)
    column = decode_column(schema, values.ravel())
    plain = column.values if column.levels is None else column.levels[column.values]
    return np.asarray(plain).reshape(values.shape)


def _as_given(schema: ColumnSchema, given: TypedColumn, decoded: TypedColumn) -> TypedColumn:
    """Given numbers to the last digit, which are perhaps no multiples of the step."""
    if schema.kind not in GAUSSIAN_KINDS or schema.whole or given.missing.any():
        return decoded
    values = as_numbers(schema.name, given).values.astype(np.float64)
    values = np.repeat(values, decoded.values.shape[0] // values.shape[0])
    return TypedColumn(decoded.storage, values, decoded.missing, None, decoded.form)


def _filled(
    schema: ColumnSchema, column: TypedColumn, coordinates: np.ndarray, random: Any
) -> TypedColumn:
    """A column with its gaps filled, all other values as they are."""
    gaps = np.flatnonzero(column.missing)
    found = decode_column(schema, coordinates[gaps], random)
    complete = np.zeros_like(column.missing)
    if found.levels is not None and column.levels is not None:
        values = column.values.copy()
        values[gaps] = len(column.levels) + found.values
        levels = np.concatenate([column.levels, found.levels])
        return TypedColumn("text", values, complete, levels, column.form)
    if found.storage == "time":
        column = as_times(schema.name, column) if not column.missing.all() else column
    elif found.storage == "number" and not column.missing.all():
        column = as_numbers(schema.name, column)
    if column.missing.all():
        filled = found.values
    else:
        filled = column.values.astype(np.promote_types(column.values.dtype, found.values.dtype))
        filled[gaps] = found.values
    form = column.form if column.form.get("dtype") not in (None, "null") else schema.form
    return TypedColumn(found.storage, filled, complete, found.levels, form)
