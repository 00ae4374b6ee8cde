"""Arrays of numbers that users pass in: rows, weights and noise; errors say which cell is wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pickmix.inputs.errors import InputError, shown, warn_caller

_TABLE_MIXTURE = "TableMixture takes tables with text and dates."
# Squares of variances must stay within float64.
_LARGEST_NOISE = 1e120
# Characters of a message of another library.
_LONGEST = 300
# What dtypes hold beside real numbers.
_OTHER_KINDS = {
    "U": "text",
    "S": "bytes of text",
    "O": "Python objects",
    "c": "complex numbers",
    "M": "dates",
    "m": "spans of time",
}


def check_integer(name: str, value: object, least: int, why: str = "") -> None:
    """Refuse what is no integer >= least; `why` says what that is good for."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be an integer >= {least}{why}; got {shown(value)}")


def check_matrix(name: str, array: np.ndarray) -> None:
    if array.ndim != 2:
        got = f"shape {array.shape}"
        if array.ndim == 1:
            got = f"an array of {got}; reshape(-1, 1) makes it one column, reshape(1, -1) one row"
        raise InputError(f"expected rows and columns, got {got}", path=name)
    check_numbers(name, array.dtype)
    check_shape(name, *array.shape)


def check_shape(name: str, n_rows: int, n_columns: int) -> None:
    if n_rows == 0 or n_columns == 0:
        raise InputError(f"expected {'columns' if n_rows else 'rows'}, got none", path=name)


def check_numbers(name: str, dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "fiub":
        kind = _OTHER_KINDS.get(dtype.kind, "something else")
        raise InputError(f"expected real numbers, got dtype {dtype} ({kind})", path=name)


def is_lazy_frame(data: object) -> bool:
    return type(data).__module__.startswith("polars.") and type(data).__name__ == "LazyFrame"


def refuse_lazy_frame(name: str, data: object) -> None:
    if is_lazy_frame(data):
        raise TypeError(
            f"{name} must hold rows, got a polars LazyFrame, which is a plan to read them. Call "
            ".collect() on it first."
        )


# Rows


def read_numbers(estimator: Any, X: Any, reset: bool = False, parameter: str = "X") -> np.ndarray:
    """Return rows (N, D) in float64 or float32, in which NaN is a missing value.

    What a mask hides is missing. The estimator learns the columns of X if `reset`; else X must have
    its columns. `parameter` is what messages call X.
    """
    from sklearn.utils.validation import validate_data

    if hasattr(X, "tocsr"):
        raise TypeError(
            f"{parameter} must be dense, got a sparse {type(X).__name__}. Use .toarray(), or "
            "pickmix.open_rows, which makes sparse rows dense chunk by chunk."
        )
    if getattr(getattr(X, "dtype", None), "kind", "") == "c":
        raise ValueError(
            f"Complex data not supported: {parameter} must hold real numbers, got dtype {X.dtype}. "
            "Real and imaginary parts may be columns: np.hstack([X.real, X.imag])."
        )
    X = without_mask(X)
    settings = {"dtype": [np.float64, np.float32], "ensure_all_finite": "allow-nan"}
    with naming_cells(X, parameter):
        return np.asarray(validate_data(estimator, X, reset=reset, **settings))


def without_mask(array: Any) -> Any:
    """Return a masked array with NaN for what is masked; other things as they are."""
    if not isinstance(array, np.ma.MaskedArray) or array.dtype.kind not in "fiub":
        return array
    dtype = array.dtype if array.dtype.kind == "f" else np.float64
    return np.ma.filled(array.astype(dtype), np.nan)


@contextlib.contextmanager
def naming_cells(X: Any, parameter: str = "X") -> Iterator[None]:
    """Name the cell of X that makes the block fail, if it is text, a date or infinite."""
    _refuse_other_objects(X, parameter)
    _refuse_dates(X, parameter)
    try:
        yield
    except InputError:
        raise
    except (ValueError, TypeError) as error:
        text = _first_cell(X, _is_text)
        cell = text or _first_cell(X, _is_infinite)
        if cell is not None:
            value, row, column = cell
            if text is not None:
                value, expected = str(value), "numbers"
                problem = f"must hold numbers, got the text {shown(value)}"
                remedy = f" Leave that column out. {_TABLE_MIXTURE}"
            else:
                value, expected, remedy = float(value), "finite numbers", ""
                problem = f"contains infinity: expected finite numbers, got {value}"
            fields = {"column": column, "row": row, "value": value, "expected": expected}
            place = f"in row {row}, column {shown(column)}"
            raise InputError(**fields, message=f"{parameter} {problem} {place}.{remedy}") from error
        message = str(error)
        if len(message) <= _LONGEST:
            raise
        # Some end with the whole array.
        raise type(error)(f"{message[:_LONGEST].rstrip()} ...") from error


def _refuse_other_objects(X: Any, parameter: str) -> None:
    refuse_lazy_frame(parameter, X)
    expected = f"{parameter} must be an array, a data frame or a path to rows of numbers"
    if X is None:
        raise ValueError(f"{expected}, got None.")
    # A sparse array of dictionaries is a mapping too; scikit-learn refuses it as sparse.
    if isinstance(X, Mapping) and not hasattr(X, "tocsr"):
        raise TypeError(
            f"{expected}, got a {type(X).__name__}. Use a data frame, or np.column_stack of its "
            f"columns. {_TABLE_MIXTURE}"
        )
    if isinstance(X, bytes | bytearray):
        raise TypeError(f"{expected}, got {type(X).__name__}.")


def _refuse_dates(X: Any, parameter: str) -> None:
    """Refuse dates, which NumPy would turn into numbers of some unit."""
    types = [(None, X.dtype)] if isinstance(X, np.ndarray) else []
    if not types and hasattr(X, "columns") and getattr(X, "dtypes", None) is not None:
        types = list(zip(X.columns, X.dtypes, strict=False))
    for column, dtype in types:
        # polars has no kinds of types, but names.
        is_date = getattr(dtype, "kind", "") in ("m", "M")
        if is_date or str(dtype).startswith(("Date", "Duration", "Time")):
            where = "" if column is None else f" in column {shown(column)}. Leave that column out"
            raise ValueError(
                f"{parameter} must hold numbers, got dates ({dtype}){where}. {_TABLE_MIXTURE}"
            )


def _columns(X: Any) -> Iterator[tuple[Any, np.ndarray]]:
    if hasattr(X, "columns") and hasattr(X, "to_numpy"):
        for number, name in enumerate(X.columns):
            yield name, np.asarray(X.iloc[:, number] if hasattr(X, "iloc") else X[name])
        return
    try:
        # Lists become objects, so that numbers among text stay numbers.
        cells = X if isinstance(X, np.ndarray) else np.array(X, dtype=object)
    except ValueError:
        # Rows of several lengths have no columns.
        return
    if cells.ndim == 2:
        yield from enumerate(cells.T)


def _first_cell(X: Any, is_wrong: Callable[[Any], bool]) -> tuple[Any, int, Any] | None:
    first: tuple[Any, int, Any] | None = None
    for name, values in _columns(X):
        # Only rows above what has been found already.
        for row, value in enumerate(values if first is None else values[: first[1]]):
            if is_wrong(value):
                first = value, row, name
                break
    return first


def _is_text(cell: Any) -> bool:
    if not isinstance(cell, str | bytes):
        return False
    try:
        float(cell)
    except ValueError:
        return True
    return False


def _is_infinite(cell: Any) -> bool:
    with contextlib.suppress(TypeError, ValueError):
        return not isinstance(cell, complex | np.complexfloating) and bool(np.isinf(float(cell)))
    return False


# Weights, gaps and noise


def check_weights(sample_weight: Any, n_rows: int | None) -> np.ndarray | None:
    """Return weights of rows (N,), or None; `n_rows` None leaves their number open."""
    if sample_weight is None:
        return None
    weights = np.asarray(without_mask(sample_weight), dtype=np.float64)
    if n_rows is not None and weights.shape != (n_rows,):
        raise ValueError(f"sample_weight must have shape ({n_rows},), got {weights.shape}.")
    if not np.isfinite(weights).all() or (weights < 0.0).any():
        raise ValueError("sample_weight must hold finite numbers >= 0.")
    return _relative(weights)


def _relative(weights: np.ndarray) -> np.ndarray:
    if not weights.any():
        raise ValueError("sample_weight must hold a positive weight, got only zeros.")
    # Only ratios matter. A power of two keeps every digit, and squares within float64.
    return np.asarray(np.ldexp(weights, 1 - np.frexp(weights.max())[1]))


def without_weightless(
    X: np.ndarray, sample_weight: Any, noise: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Return rows with their weights and noise, without those of weight zero."""
    from sklearn.utils.validation import _check_sample_weight

    if sample_weight is None:
        return X, None, noise
    settings = {"dtype": np.float64, "ensure_non_negative": True}
    weights = _relative(_check_sample_weight(without_mask(sample_weight), X, **settings))
    return _chosen(weights > 0.0, X, weights, noise)


def _chosen(
    kept: np.ndarray, rows: np.ndarray, weights: np.ndarray | None, noise: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    if kept.all():
        return rows, weights, noise
    weights = None if weights is None else weights[kept]
    return rows[kept], weights, None if noise is None else noise[kept]


def check_partial_table(
    estimator: Any, X: Any, sample_weight: Any, noise: Any, reset: bool = True
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Return the rows to fit with their weights and noise.

    Rows of weight zero, and rows with missing values only, are left out.
    """
    rows = read_numbers(estimator, X, reset)
    checked = check_noise(noise, rows)
    rows, weights, checked = without_weightless(rows, sample_weight, checked)
    nothing = np.isnan(rows).all(axis=1)
    n_nothing = int(nothing.sum())
    if n_nothing == rows.shape[0]:
        raise ValueError(f"X must hold a value, got {n_nothing} row(s) of missing values only.")
    warn_about_unseen(n_nothing)
    return _chosen(~nothing, rows, weights, checked)


def warn_about_unseen(n_rows: int) -> None:
    if n_rows:
        warn_caller(f"{n_rows} row(s) of X hold missing values only, and are left out of the fit.")


def refuse_empty(masses: np.ndarray, names: Sequence[Any]) -> None:
    """Refuse columns without a value: the weights (D,) of their values are zero."""
    if not (masses > 0.0).all():
        column = names[int((masses > 0.0).argmin())]
        raise ValueError(
            "X must hold a value in every column, got only missing values in column "
            f"{shown(column)}. Leave that column out."
        )


def refuse_empty_columns(rows: np.ndarray) -> None:
    refuse_empty((~np.isnan(rows)).sum(axis=0), range(rows.shape[1]))


def check_noise(noise: Any, rows: np.ndarray) -> np.ndarray | None:
    """Return the noise of rows (N, D): variances (N, D), or lower triangles of covariances.

    Noise of a missing value does not matter, and may be anything.
    """
    if noise is None:
        return None
    n_rows, n_columns = rows.shape
    values = _noise_numbers(without_mask(noise))
    shapes = (n_rows, n_columns), (n_rows, n_columns, n_columns)
    if values.shape not in shapes:
        raise ValueError(
            f"noise must have the shape {shapes[0]} for variances, or {shapes[1]} for covariances, "
            f"as X has {n_rows} rows of {n_columns} columns; got {values.shape}."
        )
    seen = ~np.isnan(rows)
    if values.ndim == 2:
        variances = np.where(seen, values, 0.0)
        _refuse_variances(variances)
        return variances
    values = np.where(seen[:, :, None] & seen[:, None, :], values, 0.0)
    _refuse_variances(np.diagonal(values, axis1=1, axis2=2))
    _refuse_covariances(values)
    i, j = np.tril_indices(n_columns)
    return np.asarray(values[:, i, j])


def _noise_numbers(noise: Any) -> np.ndarray:
    """Return noise as float64; what a frame has not is NaN."""
    try:
        if hasattr(noise, "to_numpy") and hasattr(noise, "dtypes"):
            return np.asarray(noise.to_numpy(dtype=np.float64, na_value=np.nan))
        values = np.asarray(noise)
        casting: Any = "unsafe" if values.dtype == object else "same_kind"
        return values.astype(np.float64, casting=casting)
    except (TypeError, ValueError) as error:
        what, why = type(noise).__name__, str(error)[:_LONGEST]
        raise ValueError(f"noise must be an array of real numbers, got {what}: {why}.") from error


def _refuse_variances(variances: np.ndarray) -> None:
    wrong = ~((variances <= _LARGEST_NOISE) & (variances >= 0.0))
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        raise ValueError(
            f"noise must hold variances from 0 to {_LARGEST_NOISE:.0e} (a value that says nothing "
            f"is NaN in X), got {float(variances[row, column])!r} for row {row}, column {column}."
        )


def _refuse_covariances(covariances: np.ndarray) -> None:
    # In units of the columns' own noise, which may be very different.
    deviations = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
    scale = np.where(deviations > 0.0, deviations, 1.0)
    scaled = covariances / (scale[:, :, None] * scale[:, None, :])
    uneven = ~(np.abs(scaled - scaled.transpose(0, 2, 1)).max(axis=(1, 2)) <= 1e-8)
    if uneven.any():
        raise ValueError(
            "noise must hold symmetric covariances of finite numbers; that of row "
            f"{int(uneven.argmax())} is none."
        )
    smallest = np.linalg.eigvalsh(scaled)[:, 0]
    if (smallest < -1e-8).any():
        row = int(smallest.argmin())
        raise ValueError(
            "noise must hold covariances without negative eigenvalues, got "
            f"{float(smallest[row]):.3g} for the correlations of row {row}."
        )
