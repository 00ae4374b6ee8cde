"""The one legend of a figure, below its axes."""

from __future__ import annotations

from typing import Any

from pickmix.experiments.colours import INK
from pickmix.experiments.reproduction.drawing.error_axes import Shapes
from pickmix.experiments.reproduction.drawing.shown import Shown
from pickmix.experiments.reproduction.drawing.style import (
    DOTS,
    LOOKS,
    SPARSE_DOTS,
    look_of,
    marker_size,
)

_COLUMNS = 6


def write_legend(page: Any, shown: Shown, shapes: Shapes, markers: bool) -> int:
    """Explain algorithms, shapes of values and reference lines; the number of rows that takes.

    Parameters
    ----------
    page : matplotlib.figure.Figure
    shown : Shown
    shapes : mapping of (parameter, value) to a marker
    markers : bool
        Whether the algorithms have markers; where those stand for values, they are not theirs.
    """
    from matplotlib.lines import Line2D

    groups = [_algorithms(shown, markers), *_values(shown, shapes), _notes(shown)]
    groups = [group for group in groups if group]
    n_rows = _n_rows([len(group) for group in groups])
    handles = []
    for group in groups:
        # Each group begins a column.
        blanks = [Line2D([], [], linestyle="none", label=" ")] * (-len(group) % n_rows)
        handles += group + blanks
    page.legend(
        handles=handles,
        loc="outside lower center",
        ncols=len(handles) // n_rows,
        frameon=False,
        handlelength=3.2,
        columnspacing=1.2,
    )
    return n_rows


def _n_rows(lengths: list[int]) -> int:
    """Fewest rows with which all groups, each in columns of its own, fit.

    Examples
    --------
    >>> _n_rows([11, 2]), _n_rows([11, 4, 5, 4]), _n_rows([1] * 9)
    (3, 5, 1)
    """
    n_rows = 1
    while n_rows < max(lengths):
        if sum(-(-length // n_rows) for length in lengths) <= _COLUMNS:
            break
        n_rows += 1
    return n_rows


def _algorithms(shown: Shown, markers: bool) -> list[Any]:
    from matplotlib.lines import Line2D

    known = [algorithm for algorithm in LOOKS if algorithm in shown.algorithms]
    handles = []
    for algorithm in known + sorted(shown.algorithms - set(known)):
        look = look_of(algorithm)
        handle = Line2D([], [], **look.line, label=algorithm)
        if markers:
            handle.set(marker=look.marker, markersize=marker_size(look))
        handles.append(handle)
    return handles


def _values(shown: Shown, shapes: Shapes) -> list[list[Any]]:
    """One group per parameter."""
    from matplotlib.lines import Line2D

    groups: dict[str, list[Any]] = {}
    for (varies, value), shape in shapes.items():
        if (varies, value) in shown.values:
            label = f"without {varies}" if value is None else f"{varies} = {value:g}"
            handle = Line2D([], [], color=INK, linestyle="none", marker=shape, label=label)
            groups.setdefault(varies, []).append(handle)
    return list(groups.values())


def _notes(shown: Shown) -> list[Any]:
    from matplotlib.lines import Line2D

    looks: dict[str, dict[str, Any]] = {
        "t95": {"linestyle": "none", "marker": "o", "markerfacecolor": "none", "label": "t95"},
        "truth": {"linestyle": SPARSE_DOTS, "linewidth": 1.0, "label": "true mixture"},
        "chance": {"linestyle": DOTS, "linewidth": 0.9, "label": "exact draws"},
    }
    return [Line2D([], [], color=INK, **looks[note]) for note in looks if note in shown.notes]
