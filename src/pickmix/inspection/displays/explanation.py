"""Why a row is unusual: how surprising each of its cells is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from pickmix.checks import check_integer
from pickmix.inspection.displays.base import (
    Display,
    annotate,
    finish,
    is_whole,
    refuse_path,
    shorten,
)
from pickmix.inspection.displays.colours import BLUE, GREY, INK, VERMILION
from pickmix.inspection.view import View
from pickmix.model.columns import LEVEL_KINDS

# Nats of a cell three standard deviations off.
_THREE_DEVIATIONS = 4.5
_MOST_COLUMNS = 15
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+(\.\d+)?")
# Durations as NumPy spells them, in seconds.
_UNITS = {"nanoseconds": 1e-9, "microseconds": 1e-6, "milliseconds": 1e-3}
_UNITS |= {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}


@dataclass(eq=False, repr=False)
class ExplanationDisplay(Display):
    """How surprising each cell of one row is, given the row's other cells.

    Use `from_estimator` or `from_explanation` to make one. A bar is log p(expected | others) -
    log p(cell | others) in nats: how much less probable the cell is than what was expected there.
    It has no units, so it compares columns of all kinds; z standard deviations are about z^2 / 2.
    Beside each bar stand the value, and what was expected: mean and standard deviation, or the most
    probable level and its probability.

    Parameters
    ----------
    names : list of n str
        Columns, the most surprising first.
    surprise : (n,) array
    texts : list of n str
        Value and expectation of each.
    title : str

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> import numpy as np
    >>> from pickmix import ExplanationDisplay, GaussianMixture
    >>> X = np.random.default_rng(0).normal(size=(500, 3))
    >>> mixture = GaussianMixture(1).fit(X)
    >>> display = ExplanationDisplay.from_estimator(mixture, [[0.0, 5.0, 0.0]])
    >>> display.names[0], display.texts[0]
    ('column 1', '5 (expected 0.08 ± 0.96)')
    >>> plt.close(display.figure_)
    """

    names: list[str]
    surprise: np.ndarray
    texts: list[str]
    title: str

    @classmethod
    def from_estimator(
        cls, model: Any, X: Any, *, row: int = 0, top: int | None = None, ax: Any = None
    ) -> Self:
        """Draw why one of the rows is unusual.

        Parameters
        ----------
        model : fitted GaussianMixture, FamilyMixture or TableMixture
        X : table of shape (N, D)
            As the model takes it.
        row : int, default=0
            Which of them.
        top : int, default=None
            Columns to show, the most surprising ones. None is 15, or as many as there are.
        ax : matplotlib Axes, default=None
            None makes a figure.
        """
        if not hasattr(model, "explain"):
            raise ValueError(
                f"model must be able to explain rows, got {type(model).__name__}: GaussianMixture, "
                "FamilyMixture and TableMixture can."
            )
        refuse_path(X)
        view = View(model)
        rows = view.read(X)
        _check_row(row, len(rows))
        explanation = view.explain(rows.take(np.array([row])))
        return cls._of(explanation, 0, row, top, view.names).plot(ax)

    @classmethod
    def from_explanation(
        cls, explanation: Any, *, row: int = 0, top: int | None = None, ax: Any = None
    ) -> Self:
        """Draw one row of an explanation that `explain` returned, as in `from_estimator`."""
        _check_row(row, len(explanation))
        # Columns without names have their numbers as text.
        named = any(not name.isdigit() for name in explanation.names)
        names = [name if named else f"column {name}" for name in explanation.names]
        return cls._of(explanation, row, row, top, names).plot(ax)

    @classmethod
    def _of(
        cls, explanation: Any, at: int, row: int, top: int | None, names: Sequence[str]
    ) -> Self:
        """The row `at` a place of an explanation, and its number in the data."""
        if top is not None:
            check_integer("top", top, 1)
        surprise = explanation.surprise[at]
        seen = np.flatnonzero(~np.isnan(surprise))
        order = seen[np.argsort(-surprise[seen], kind="stable")][: top or _MOST_COLUMNS]
        texts = [_text(explanation, at, d) + explanation.beside(at, d) for d in order.tolist()]
        title = f"row {row}: log p(row) = {explanation.log_density[at]:.2f}"
        if order.shape[0] < seen.shape[0]:
            title += f"; the {order.shape[0]} most surprising of {len(names)} columns"
        return cls([names[d] for d in order.tolist()], surprise[order], texts, title)

    def plot(self, ax: Any = None) -> Self:
        """Draw in matplotlib Axes; None makes a figure."""
        n = len(self.names)
        axes = self._single(ax, (8.0, 1.2 + 0.32 * max(n, 3)))
        # What is less probable than three standard deviations stands out, also without colours.
        large = self.surprise > _THREE_DEVIATIONS
        colours = np.where(large, VERMILION, BLUE)
        axes.barh(np.arange(n), self.surprise, color=colours, alpha=0.8, height=0.7)
        axes.axvline(0.0, color=INK, linewidth=0.8)
        axes.set_yticks(np.arange(n), [shorten(name, 26) for name in self.names])
        axes.set_ylim(max(n, 1) - 0.4, -0.6)
        longest = float(max(self.surprise.max(initial=0.0), _THREE_DEVIATIONS))
        least = min(0.0, float(self.surprise.min(initial=0.0)))
        # Room for the texts beside the bars.
        axes.set_xlim(1.05 * least, 1.85 * longest)
        # White below the texts: the dotted line would run through them.
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85}
        style = {"va": "center", "fontsize": 8.5, "color": INK, "zorder": 3, "bbox": ground}
        for place, (value, text) in enumerate(zip(self.surprise, self.texts, strict=True)):
            annotate(axes, text, (max(float(value), 0.0), place), (5, 0), "data", **style)
        axes.axvline(_THREE_DEVIATIONS, color=GREY, linewidth=1.0, linestyle=":", zorder=0)
        at, mixed = (_THREE_DEVIATIONS, 0.0), ("data", "axes fraction")
        annotate(axes, "three standard deviations", at, (3, 3), mixed, fontsize=7.5, color=GREY)
        finish(axes, self.title, "surprise given the other cells, in nats")
        return self


def _check_row(row: Any, n_rows: int) -> None:
    if not is_whole(row) or not 0 <= row < n_rows:
        raise ValueError(f"row must be a number from 0 to {n_rows - 1}, got {row!r}.")


def _text(explanation: Any, row: int, column: int) -> str:
    """The value of a cell, and what was expected."""
    value, expected = explanation.values[row, column], explanation.expected[row, column]
    spread, kind = float(explanation.spread[row, column]), explanation.kinds[column]
    if kind in LEVEL_KINDS:
        return f"{_shown(value)} (expected {_shown(expected)}, {100.0 * spread:.0f} %)"
    unit = " days" if kind == "date" else ""
    # Two digits, and an exponent only where zeros would be many.
    rounded = float(f"{spread:.2g}")
    digits = f"{rounded:.0f}" if 100.0 <= rounded < 1e6 else f"{rounded:.2g}"
    return f"{_shown(value)} (expected {_shown(expected, spread)} ± {digits}{unit})"


def _shown(value: Any, spread: float | None = None) -> str:
    """A number with as many digits as its spread is worth; a level; a date; a duration in days.

    >>> _shown("2024-01-01T10:20:30.123456789"), _shown("43200000000000 nanoseconds")
    ('2024-01-01T10:20:30', '0.5 days')
    """
    if isinstance(value, float | np.floating):
        if spread and np.isfinite(value):
            digits = max(0, 1 - int(np.floor(np.log10(spread))))
            return f"{float(value):.{min(digits, 12)}f}"
        return f"{float(value):.6g}"
    text = str(value)
    if _TIME.fullmatch(text):
        return text.partition(".")[0]
    number, _, unit = text.partition(" ")
    if unit in _UNITS and number.lstrip("-").isdigit():
        return f"{int(number) * _UNITS[unit] / 86_400.0:.3g} days"
    return shorten(text, 22)
