"""Conditions on columns as users write them: ranges and sets of values."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pickmix.inputs.errors import InputError

_SIGNED = re.compile(r"\s*(<=|>=|<|>|=)\s*(.*\S)\s*\Z", re.DOTALL)
_RANGE = re.compile(r"\s*in\s*([\[(])\s*(.*\S)\s*,\s*(.*\S)\s*([\])])\s*\Z", re.DOTALL)
_SET = re.compile(r"\s*in\s*\{(.*\S.*)\}\s*\Z", re.DOTALL)
_EXPECTED = 'must be a condition such as "> 0", "in (0, 5]", "in {red, blue}" or a list of values'


class Allowed(NamedTuple):
    """What a column may be: closed intervals (m, 2) of coordinates, or shares (L,) of codes."""

    intervals: np.ndarray
    shares: np.ndarray | None = None


class Condition(NamedTuple):
    """Values that a column may have: some, or a range of which ends may be open."""

    values: Sequence[Any] = ()
    low: Any = None
    high: Any = None
    has_low: bool = True  # Whether the end itself is in the range.
    has_high: bool = True

    def intervals(self, read: Callable[[Sequence[Any]], np.ndarray]) -> np.ndarray:
        """Closed intervals (m, 2) of coordinates (n,), which `read` makes of values."""
        if self.values:
            return np.repeat(read(self.values)[:, None], 2, axis=1)
        low = -np.inf if self.low is None else float(read([self.low])[0])
        high = np.inf if self.high is None else float(read([self.high])[0])
        low = low if self.has_low else np.nextafter(low, np.inf)
        return np.array([[low, high if self.has_high else np.nextafter(high, -np.inf)]])


def parse_conditions(where: Any) -> dict[Any, Condition]:
    """Conditions by column, of a dict of texts or lists of values.

    >>> parse_conditions({"x": "in (0, 5]"})
    {'x': Condition(values=(), low='0', high='5', has_low=False, has_high=True)}
    >>> parse_conditions({"colour": 'in {red, "blue, light"}'})["colour"].values
    ['red', 'blue, light']
    """
    if where is not None and not isinstance(where, Mapping):
        raise ValueError(f"where must be a dict of conditions by column, got {where!r}.")
    return {name: _parse(name, condition) for name, condition in (where or {}).items()}


def _parse(name: Any, condition: Any) -> Condition:
    text = condition if isinstance(condition, str) else ""
    if match := _SIGNED.match(text):
        sign, value = match.groups()
        if sign == "=":
            return Condition([value])
        if sign[0] == ">":
            return Condition(low=value, has_low=sign == ">=")
        return Condition(high=value, has_high=sign == "<=")
    if match := _RANGE.match(text):
        return Condition((), match[2], match[3], match[1] == "[", match[4] == "]")
    if match := _SET.match(text):
        return Condition([v.strip() for v in next(csv.reader([match[1]], skipinitialspace=True))])
    if isinstance(condition, str) or not isinstance(condition, Collection) or not condition:
        raise InputError(_EXPECTED, parameter="where", column=name, value=condition)
    return Condition(list(condition))


def split_condition(text: str, names: Sequence[str]) -> tuple[str, str] | None:
    """The column that a condition names, the longest, and the rest as `parse_conditions` reads it.

    >>> split_condition("0 < x <= 5", ["x"]), split_condition("x=3", ["x"])
    (('x', 'in (0, 5]'), ('x', '=3'))
    """
    for name in sorted(names, key=len, reverse=True):
        before, behind = r"\s*(?:(.*?\S)\s*(<=?)\s*)?", r"\s*((?:<|>|=|in\s*[\[({]).*)\Z"
        match = re.match(before + re.escape(name) + behind, text, re.DOTALL)
        if match is None:
            continue
        low, first, rest = match.groups()
        if low is None:
            return name, rest
        upper = _SIGNED.match(rest)
        if upper and upper[1][0] == "<":
            ends = "(["["=" in first], ")]"["=" in upper[1]]
            return name, f"in {ends[0]}{low}, {upper[2]}{ends[1]}"
    return None
