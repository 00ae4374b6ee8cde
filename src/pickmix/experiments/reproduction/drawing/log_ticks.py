"""Ticks of logarithmic axes that span little."""

from __future__ import annotations

from typing import Any

# Ratios of the ends of an axis.
_SPANS_LITTLE, _SPANS_FEW_DECADES = 3.0, 100.0


def write_plain_ticks(axis: Any) -> None:
    """Write 0.5 rather than 5 x 10^-1 where powers of ten alone would be too few ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    if axis.get_scale() != "log":
        return
    low, high = sorted(axis.get_view_interval())
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    if high < _SPANS_LITTLE * low:
        axis.set_major_locator(MaxNLocator(4))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(plain)
    elif high < _SPANS_FEW_DECADES * low:
        axis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
        axis.set_minor_formatter(plain)
        axis.set_major_formatter(plain)
