"""Arrays and cells as short JSON: few digits, and texts once."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from pickmix.data.typed_schema import LEVEL_KINDS
from pickmix.data.typed_tables import TypedTable
from pickmix.diagnostics.columns import code_names, is_table

# Characters of a text from the data that are shown.
_LONGEST = 120
_DAY: Any = np.timedelta64(1, "D")


def number(value: float, digits: int = 5) -> int | float | None:
    """A number with few digits; whole ones as they are, None for what is none.

    >>> number(0.1234567), number(1234567.0), number(float("nan"))
    (0.12346, 1234567, None)
    """
    value = float(value)
    if not math.isfinite(value):
        return None
    if value == int(value) and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.{digits}g}")


def numbers(values: Any, digits: int = 5) -> list[int | float | None]:
    """An array (n,) as `number` has its values."""
    return [number(value, digits) for value in np.asarray(values, dtype=np.float64).tolist()]


def shortened(text: Any) -> str:
    """A text that is not too long to show."""
    text = str(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def coded(texts: list[Any]) -> dict[str, Any]:
    """Texts (None: missing) as codes, -1 for missing, and the distinct texts.

    >>> coded(["a", "b", None, "a"])
    {'texts': ['a', 'b'], 'codes': [0, 1, -1, 0]}
    """
    known: dict[str, int] = {}
    codes = [
        -1 if text is None else known.setdefault(shortened(text), len(known)) for text in texts
    ]
    return {"texts": list(known), "codes": codes}


def cells_of(rows: Any) -> list[Any]:
    """Columns of rows: a list of numbers, or `coded` texts; None and -1 are missing."""
    if not isinstance(rows, TypedTable):
        return [numbers(column, 6) for column in np.asarray(rows).T]
    found: list[Any] = []
    for column in rows.columns.values():
        if column.storage == "number":
            values = [
                None if gap else value
                for value, gap in zip(column.values.tolist(), column.missing.tolist(), strict=True)
            ]
            found.append([None if value is None else number(value, 6) for value in values])
        else:
            found.append(coded([column.value(row) for row in range(rows.n_rows)]))
    return found


def centres_of(model: Any, names: list[str], centres: np.ndarray) -> list[Any]:
    """Centres (K, D) of components as columns in the table's own terms."""
    if not is_table(model):
        return [numbers(column) for column in centres.T]
    found: list[Any] = []
    for name, values in zip(names, centres.T, strict=True):
        schema = model.schema_[name]
        if schema.kind in LEVEL_KINDS:
            known = code_names(schema)
            found.append(coded([None if code != code else known[int(code)] for code in values]))
        elif schema.kind == "date" and not schema.form.get("duration"):
            origin = np.datetime64(schema.origin, schema.unit)
            days = np.rint(values).astype("m8[D]")
            found.append(coded([str((origin + day).astype("M8[D]")) for day in days]))
        else:
            found.append(numbers(values))
    return found


def embeddable(payload: Any) -> str:
    """JSON that cannot end the element it stands in, or start another one.

    >>> embeddable(["</script>"])
    '["\\\\u003c/script\\\\u003e"]'
    """
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        # Outside strings JSON has none of them.
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
