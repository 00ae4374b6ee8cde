"""Conditions on columns as users write them: ranges and sets of values."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from pickmix.inputs.errors import InputError

_SIGNED = re.compile(r"\s*(<=|>=|<|>|=)\s*(.*\S)\s*\Z", re.DOTALL)
_RANGE = re.compile(r"\s*in\s*([\[(])\s*(.*\S)\s*,\s*(.*\S)\s*([\])])\s*\Z", re.DOTALL)
_SET = re.compile(r"\s*in\s*\{(.*\S.*)\}\s*\Z", re.DOTALL)
_FORMS = '"> 0", "<= 5", "in (0, 5]", "in {red, blue}" or a list of values'


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
            places = read(self.values)
            return np.stack([places, places], axis=1)
        low = -np.inf if self.low is None else float(read([self.low])[0])
        high = np.inf if self.high is None else float(read([self.high])[0])
        low = low if self.has_low else np.nextafter(low, np.inf)
        high = high if self.has_high else np.nextafter(high, -np.inf)
        return np.array([[low, high]])


class Allowed(NamedTuple):
    """What a column may be: closed intervals (m, 2) of coordinates, or shares (L,) of codes."""

    intervals: np.ndarray
    shares: np.ndarray | None = None


def parse_condition(name: Any, condition: Any) -> Condition:
    """Read a condition on a column.

    >>> parse_condition("x", "in (0, 5]")
    Condition(values=(), low='0', high='5', has_low=False, has_high=True)
    >>> parse_condition("colour", 'in {red, "blue, light"}').values
    ['red', 'blue, light']
    """
    if isinstance(condition, str):
        signed, between = _SIGNED.match(condition), _RANGE.match(condition)
        listed = _SET.match(condition)
        if signed:
            sign, value = signed.groups()
            if sign == "=":
                return Condition([value])
            if sign[0] == ">":
                return Condition(low=value, has_low=sign == ">=")
            return Condition(high=value, has_high=sign == "<=")
        if between:
            first, low, high, last = between.groups()
            return Condition((), low, high, first == "[", last == "]")
        if listed:
            return Condition(
                [v.strip() for v in next(csv.reader([listed[1]], skipinitialspace=True))]
            )
    elif isinstance(condition, Collection) and len(condition):
        return Condition(list(condition))
    problem = f"must be a condition such as {_FORMS}"
    raise InputError(problem, parameter="where", column=name, value=condition)


def split_condition(text: str, names: Sequence[str]) -> tuple[str, str] | None:
    """The column of a condition that names it, and the rest as `parse_condition` reads it.

    None if it names no column with a sign or "in" behind it. The longest name counts.

    >>> split_condition("0 < x <= 5", ["x"]), split_condition("x=3", ["x"])
    (('x', 'in (0, 5]'), ('x', '=3'))
    """
    for name in sorted(names, key=len, reverse=True):
        before = r"\s*(?:(?P<low>.*?\S)\s*(?P<first><=?)\s*)?"
        behind = r"\s*(?P<rest>(?:<|>|=|in\s*[\[({]).*)\Z"
        match = re.match(before + re.escape(name) + behind, text, re.DOTALL)
        if match is None:
            continue
        low, first, rest = match.group("low", "first", "rest")
        if low is None:
            return name, rest
        upper = _SIGNED.match(rest)
        if upper and upper[1][0] == "<":
            ends = "[" if first == "<=" else "(", "]" if upper[1] == "<=" else ")"
            return name, f"in {ends[0]}{low}, {upper[2]}{ends[1]}"
    return None
