"""The page of a report: a template, a style sheet and scripts, with the numbers embedded."""

from __future__ import annotations

import html
import json
import math
import re
from dataclasses import fields, is_dataclass
from importlib import resources
from typing import Any

import numpy as np

# Scripts in the order in which they run: later ones use what earlier ones define.
_SCRIPTS = ["base", "clusters", "charts", "map", "tree", "table", "details", "columns"]
_SCRIPTS += ["summaries", "unusual", "main"]
# Halves of characters, from texts that were read with the wrong encoding: UTF-8 cannot hold them.
_SURROGATES = re.compile("[\ud800-\udfff]")
# Characters of a text from the data that are shown.
_LONGEST = 120


def render(payload: dict[str, Any]) -> str:
    """Fill the template: one text without any reference to another file."""
    script = "\n".join(_read(f"{name}.js") for name in _SCRIPTS)
    parts = {
        "TITLE": html.escape(str(payload["title"])),
        "STYLE": _read("report.css"),
        "SCRIPT": f"(() => {{\n'use strict';\n{script}\n}})();",
        "DATA": embeddable(payload),
    }
    # Split once, so that nothing is replaced in the data.
    pieces = _read("report.html").split("@@")
    page = "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", page)


def _read(name: str) -> str:
    return resources.files("pickmix.inspection").joinpath("assets", name).read_text("utf-8")


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


def plain(value: Any, digits: int = 6) -> Any:
    """Values, arrays and data classes as lists, dicts, short numbers and texts.

    >>> plain((0.123456789, np.arange(2), "a", None))
    [0.123457, [0, 1], 'a', None]
    """
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name), digits) for f in fields(value)}
    if isinstance(value, np.ndarray) and value.dtype.kind == "M":
        return [str(date).replace("T", " ")[:10] for date in value]
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(each, digits) for each in value]
    if value is None or isinstance(value, bool | np.bool_):
        return value if value is None else bool(value)
    is_number = isinstance(value, int | float | np.number)
    return number(float(value), digits) if is_number else shortened(value)


def cells(column: list[Any]) -> list[int | float | None] | dict[str, Any]:
    """A column of plain objects: numbers, or codes and distinct texts. None and -1 are missing.

    >>> cells(["a", "b", None, "a"])
    {'texts': ['a', 'b'], 'codes': [0, 1, -1, 0]}
    >>> cells([0.5, None])
    [0.5, None]
    """
    if not any(isinstance(value, bool | str) for value in column):
        return [None if value is None else number(value, 6) for value in column]
    known: dict[str, int] = {}
    codes = [
        -1 if value is None else known.setdefault(shortened(value), len(known)) for value in column
    ]
    return {"texts": list(known), "codes": codes}
