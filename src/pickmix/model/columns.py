"""The columns of a model in the user's terms: how they are named, read and written."""

from __future__ import annotations

import difflib
import importlib
import numbers
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.families.base import Family, RandomSource
from pickmix.inputs.arrays import check_noise, is_lazy_frame, read_numbers
from pickmix.inputs.conditions import Allowed, parse_conditions
from pickmix.inputs.errors import InputError
from pickmix.inputs.maps import ColumnMaps
from pickmix.inputs.open_rows import is_dask, is_source

#: Kinds of columns whose values are names, of arrays and of tables.
LEVEL_KINDS = ("level", "boolean", "category", "ordinal")


@dataclass(frozen=True)
class ColumnTerms:
    """How one column of a model reads in the terms of the user's table.

    A value is coordinate * scale + offset; of dates, days since `start`.
    """

    name: str
    place: int  # Number of the column in the model's rows.
    kind: str = ""  # As the schema of a table has it; empty for arrays.
    scale: float = 1.0
    offset: float = 0.0
    step: float | None = None  # What values are multiples of, if the model knows that.
    levels: tuple[str, ...] = ()  # Names of the codes of a column of levels.
    #: The date that days are counted from; None of durations and of what is no date.
    start: Any = None
    #: From coordinates of the model to those that `scale` and `offset` are for, if they differ.
    back: Callable[[np.ndarray], np.ndarray] | None = None

    def values(self, coordinates: np.ndarray) -> np.ndarray:
        coordinates = coordinates if self.back is None else self.back(coordinates)
        return coordinates if self.levels else np.asarray(coordinates * self.scale + self.offset)

    @property
    def axis_name(self) -> str:
        """The name, and what days of a date are counted from."""
        if self.kind != "date":
            return self.name
        since = "" if self.start is None else f" since {self.start.astype('datetime64[D]')}"
        return f"{self.name} (days{since})"

    def dates(self, days: np.ndarray) -> list[str]:
        """Days as dates; of a column with a `start`."""
        whole = np.rint(days).astype("timedelta64[D]")
        return [str(date) for date in (self.start + whole).astype("datetime64[D]")]


class Columns:
    """Columns of arrays and frames of numbers, which are those of the model, as they are.

    Columns are found by number, or by name if they have names. `columns` (d,) are numbers in the
    model. Columns of tables with several kinds have these methods too, by their schema.
    """

    def __init__(self, estimator: Any, family: Family) -> None:
        self._estimator = estimator
        self._family = family
        self.n_columns = family.layout.n_columns
        names = getattr(estimator, "feature_names_in_", None)
        self.names = None if names is None else [str(name) for name in names]
        self.all_labels = self.names or [str(column) for column in range(self.n_columns)]
        #: By number of a column: see `QueryRows`.
        self.level_weights: dict[int, np.ndarray] = {}
        #: From columns of rows that are read to those of the model, if they differ.
        self.maps: ColumnMaps | None = None

    # Which columns.

    def labels(self, columns: np.ndarray) -> list[str]:
        """Names of columns, or their numbers as text."""
        return [self.all_labels[column] for column in columns]

    def named(self, columns: np.ndarray) -> str:
        return ", ".join(self.labels(columns))

    def in_model_order(self, columns: np.ndarray) -> np.ndarray:
        """Columns of the model that a mixture of these columns has, in its order."""
        return columns

    def find(self, columns: Any) -> np.ndarray:
        return find_columns(self.names, self.n_columns, columns, "columns")

    def _find_one(self, column: Any, parameter: str) -> int:
        return _find_column(self.names, self.n_columns, column, parameter)

    def free(self, is_given: np.ndarray) -> np.ndarray:
        """Columns that are not given, by flags (D,), in the user's order."""
        return np.flatnonzero(~is_given)

    def terms(self) -> list[ColumnTerms]:
        names = self.names or [f"column {column}" for column in range(self.n_columns)]
        return [ColumnTerms(name, column) for column, name in enumerate(names)]

    # Rows in.

    def read(self, X: Any, parameter: str = "X") -> tuple[np.ndarray, np.ndarray | None]:
        """Rows (N, D) with NaN for missing values, and what log-densities gain by units, (N, D)."""
        if is_dask(X) or is_source(X):
            is_path = isinstance(X, str | os.PathLike)
            given = f"the path {str(X)!r}" if is_path else repr(type(X))
            raise ValueError(
                f"{parameter} must be an array or a data frame in memory, got {given}. Read it "
                "first, for example by numpy.load or pandas.read_csv; read a large one piece by "
                "piece: pickmix.open_rows(...).read(first, last). On the command line, `pickmix "
                "impute` and `pickmix explain` read files."
            )
        return self._checked(read_numbers(self._estimator, X, parameter=parameter), parameter), None

    def read_some(
        self, X: Any, choose: Callable[[int], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, int, Any]:
        """The rows that `choose` numbers from how many there are.

        As `read` returns them, their numbers, how many there are, and the table of them.
        """
        rows, _ = self.read(X)
        numbers = choose(rows.shape[0])
        return rows[numbers], None, numbers, rows.shape[0], None

    def _checked(self, rows: np.ndarray, parameter: str) -> np.ndarray:
        """Rows without infinities and values that a column cannot have. NaN is missing."""
        if np.isinf(rows).any():
            raise ValueError(f"{parameter} must hold finite numbers, or NaN for missing values.")
        # A zero is a count, a level and a number.
        problem = self._family.check(np.where(np.isnan(rows), 0.0, rows))
        if problem is not None:
            raise ValueError(f"{parameter}: {problem}.")
        return rows

    def read_noise(self, noise: Any, rows: np.ndarray) -> np.ndarray | None:
        """Noise of rows (N, D): variances (N, D) or covariances (N, D, D), 0 for missing cells."""
        if noise is None:
            return None
        if not self._family.takes_noise:
            raise ValueError(
                f"noise is for a mixture of Gaussians, got the family {self._family.name!r}."
            )
        checked = check_noise(noise, rows)
        if checked is None or checked.shape == rows.shape:
            return checked
        covariances = np.zeros((*rows.shape, rows.shape[1]))
        i, j = np.tril_indices(rows.shape[1])
        covariances[:, i, j] = covariances[:, j, i] = checked
        return covariances

    def read_given(self, given: Any) -> np.ndarray:
        """Rows (n, D) with NaN for values that are not given; see `conditional`."""
        if is_frame(given):
            given = {name: _numbers(given[name]) for name in given.columns}
        if not isinstance(given, Mapping):
            return self.read(given, "given")[0].astype(np.float64)
        columns = [self._find_one(column, "given") for column in given]
        values = [np.asarray(value, dtype=np.float64) for value in given.values()]
        shapes = [value.shape for value in values]
        if any(len(shape) > 1 for shape in shapes):
            wrong = next(shape for shape in shapes if len(shape) > 1)
            raise ValueError(f"given must hold numbers or arrays (n,), got a shape of {wrong}.")
        try:
            (n_rows,) = np.broadcast_shapes((1,), *shapes)
        except ValueError as error:
            raise ValueError(
                f"given must hold numbers, or arrays of one length, got shapes {shapes}."
            ) from error
        if len(set(columns)) < len(values):
            raise ValueError(f"given must hold each column once, got {list(given)!r}.")
        if not n_rows:
            raise ValueError("given must hold at least one row, got arrays of length 0.")
        rows = np.full((n_rows, self.n_columns), np.nan)
        for column, value in zip(columns, values, strict=True):
            rows[:, column] = value
        return self._checked(rows, "given")

    def narrowed(self, where: Any) -> tuple[Columns, dict[int, Allowed]]:
        """Columns whose draws meet conditions by column, and these conditions by number."""
        allowed = {}
        for name, condition in parse_conditions(where).items():
            try:
                intervals = condition.intervals(lambda values: np.array(values, dtype=np.float64))
            except (TypeError, ValueError) as error:
                problem = "must be about numbers"
                raise InputError(problem, parameter="where", column=name) from error
            allowed[self._find_one(name, "where")] = Allowed(intervals)
        return self, allowed

    def rounded(self, column: int, values: np.ndarray) -> np.ndarray:
        """What draws (n,) of a column are in answers, in the same unit."""
        return values

    def read_without(self, X: Any, targets: np.ndarray) -> np.ndarray:
        """Rows (N, D) with NaN in the target columns, from rows that may have them or not."""
        if is_dask(X) or is_source(X):
            self.read(X)
        others = np.setdiff1d(np.arange(self.n_columns), targets)
        if is_frame(X) and self.names is not None:
            present = [self._find_one(str(name), "X") for name in X.columns]
            absent = np.setdiff1d(others, present)
            if absent.size:
                listed = ", ".join(map(repr, self.labels(absent[:5])))
                raise ValueError(
                    "X must have all columns beside those to predict (NaN where nothing is known), "
                    f"got none named {listed}."
                )
            rows = np.full((len(X), self.n_columns), np.nan)
            for name, column in zip(X.columns, present, strict=True):
                rows[:, column] = _numbers(X[name])
        else:
            values = np.asarray(X)
            if values.ndim != 2 or values.shape[1] not in (self.n_columns, others.size):
                raise ValueError(
                    f"X must have all {self.n_columns} columns, or the {others.size} beside those "
                    f"to predict, got an array of shape {values.shape}."
                )
            rows = np.full((values.shape[0], self.n_columns), np.nan)
            rows[:, others if values.shape[1] < self.n_columns else slice(None)] = values
        rows[:, targets] = np.nan
        if not rows.shape[0]:
            raise ValueError("X must hold at least one row, got none.")
        return self._checked(rows, "X")

    def read_targets(self, Y: Any, columns: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Values (n, d) or (d,) of columns, and the change of log-densities by units."""
        values = np.asarray(Y, dtype=np.float64)
        d = columns.shape[0]
        if values.shape not in ((n, d), (d,), (1, d)):
            raise ValueError(f"Y must have shape {(n, d)} or {(d,)}, got {values.shape}.")
        rows = np.full((values.size // d, self.n_columns), np.nan)
        rows[:, columns] = values
        self._checked(rows, "Y")
        return values, np.zeros(1)

    # Answers out.

    def values(self, values: np.ndarray, columns: np.ndarray) -> Any:
        """Answers (n, d, ...) as values of columns."""
        return values

    def spreads(self, spreads: np.ndarray, columns: np.ndarray) -> Any:
        """Answers (n, d) as standard deviations of columns."""
        return spreads

    def scales(self, columns: np.ndarray) -> np.ndarray:
        """Units (d,) of the model's coordinates of columns."""
        return np.ones(columns.shape[0])

    def draws(self, values: np.ndarray, columns: np.ndarray, random: RandomSource) -> Any:
        """Draws (n, m, d) of columns."""
        return values

    def single(self, answer: Any, columns: Any) -> Any:
        """The answer for the columns that were named: without their axis if it was one."""
        return answer[:, 0] if is_single(columns) else answer

    def probabilities(
        self, column: Any, columns: np.ndarray, shares: Callable[[int], np.ndarray | None]
    ) -> Any:
        """Probabilities of the levels of a column from those of its codes, (n, L)."""
        probabilities = shares(self._find_one(column, "column"))
        if probabilities is None:
            raise ValueError(
                f"column must be one of the categories among {self.named(columns)}, got {column!r}."
            )
        return probabilities

    def refuse_levels(self, query: str, kinds: np.ndarray, columns: np.ndarray) -> None:
        """Raise if a query of numbers is about levels; `kinds` (D,) are those of the model."""
        levels = columns[np.isin(kinds[columns].astype(str), LEVEL_KINDS)]
        if levels.size:
            raise ValueError(
                f"{query} is for numbers and counts, got the categories {self.named(levels)}. "
                "Ask for probabilities of their levels instead."
            )

    def explaining(self, X: Any) -> tuple[np.ndarray, np.ndarray | float, Callable[..., Any]]:
        """Rows to explain, what log-densities gain by units, and what turns answers into X's."""
        return self.read(X)[0], 0.0, lambda explanation, top: explanation

    def texts(self, values: np.ndarray, most: int) -> list[list[str]]:
        """The first columns of rows (n, D), as text."""
        return [[f"{value:.4g}" for value in row[:most]] for row in values]

    def filling(self, X: Any) -> tuple[np.ndarray, Callable[[np.ndarray, Any], Any]]:
        """Rows with NaN for gaps, and what turns filled rows (N, D) into an X without gaps."""
        rows, _ = self.read(X)
        missing = np.isnan(rows)

        def fill(complete: np.ndarray, random: RandomSource | None) -> Any:
            return _fill_frame(X, complete, missing) if is_frame(X) else complete

        return rows, fill


def find_columns(
    names: list[str] | None, n_columns: int, columns: Any, parameter: str
) -> np.ndarray:
    """Numbers of columns that are given by name or number, in the order given, each once."""
    if is_single(columns):
        columns = [columns]
    if isinstance(columns, Mapping) or not isinstance(columns, Iterable):
        raise ValueError(f"{parameter} must be a list of names or numbers, got {columns!r}.")
    listed = list(columns)
    places = [_find_column(names, n_columns, column, parameter) for column in listed]
    if not places or len(set(places)) < len(places):
        raise ValueError(f"{parameter} must hold at least one column, each once, got {listed!r}.")
    return np.array(places, dtype=np.int64)


def _find_column(names: list[str] | None, n_columns: int, column: Any, parameter: str) -> int:
    last = n_columns - 1
    if isinstance(column, str):
        if names is None:
            raise ValueError(
                f"{parameter} must hold numbers of columns, from 0 to {last}, as the mixture was "
                f"fitted to columns without names, got {column!r}."
            )
        if column in names:
            return names.index(column)
        near = difflib.get_close_matches(column, names, n=3) or names[:10]
        listed = ", ".join(map(repr, near))
        hint = f"Near ones are {listed}" if near != names[:10] else f"There are {listed}"
        raise ValueError(
            f"{parameter} must name columns that the mixture was fitted to, got {column!r}. {hint}."
        )
    whole = isinstance(column, numbers.Integral) and not isinstance(column, bool | np.bool_)
    if whole and 0 <= int(column) <= last:
        return int(column)
    kind = "numbers" if names is None else "names, or numbers"
    raise ValueError(f"{parameter} must hold {kind} of columns, from 0 to {last}, got {column!r}.")


def is_single(column: Any) -> bool:
    return isinstance(column, str | numbers.Integral)


def is_frame(X: Any) -> bool:
    if is_lazy_frame(X):
        return False
    return hasattr(X, "columns") and (hasattr(X, "iloc") or hasattr(X, "with_columns"))


def _numbers(column: Any) -> np.ndarray:
    """A column of a frame in float64, NaN for what is missing."""
    if hasattr(column, "iloc"):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.asarray(column, dtype=np.float64)


def _fill_frame(frame: Any, filled: np.ndarray, is_missing: np.ndarray) -> Any:
    """A frame like this one with the cells that were missing taken from an array (N, D).

    Columns without gaps stay as they are; others keep a floating type, or become float64.
    """
    new = {}
    for column, name in enumerate(frame.columns):
        if is_missing[:, column].any():
            kind = getattr(frame[name].dtype, "kind", "O")
            values = filled[:, column]
            if kind == "f" and isinstance(frame[name].dtype, np.dtype):
                values = values.astype(frame[name].dtype)
            new[name] = values
    if hasattr(frame, "iloc"):
        out = frame.copy()
        for name, values in new.items():
            out[name] = values
        return out
    # Here, as only those who have polars come here.
    polars = importlib.import_module("polars")
    return frame.with_columns([polars.Series(name, values) for name, values in new.items()])
