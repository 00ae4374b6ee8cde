"""Checks of what generators and loaders are given."""

from __future__ import annotations

import numpy as np


def check_integer(name: str, value: object, least: int, why: str = "") -> None:
    """Refuse what is no integer >= least; `why` says what that is good for.

    Examples
    --------
    >>> check_integer("n", 0, 1)
    Traceback (most recent call last):
    ValueError: n must be an integer >= 1; got 0
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be an integer >= {least}{why}; got {value!r}")
