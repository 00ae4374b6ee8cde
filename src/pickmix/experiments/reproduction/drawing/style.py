"""How the figures of the reproduction look: algorithms, axes and words."""

from __future__ import annotations

import textwrap
from typing import Any, NamedTuple

from pickmix.experiments.colours import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    GRID,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
)
from pickmix.experiments.reproduction import runs


class Look(NamedTuple):
    """How an algorithm is told from the others; in grey print by dashes and marker."""

    colour: str
    marker: str
    # On and off in line widths; solid if empty.
    dashes: tuple[float, ...] = ()
    ours: bool = False

    @property
    def line(self) -> dict[str, Any]:
        """Matplotlib's properties of the line."""
        return {
            "color": self.colour,
            "linestyle": (0, self.dashes) if self.dashes else "-",
            "linewidth": 2.0 if self.ours else 1.2,
            "zorder": 3.0 if self.ours else 2.5,
        }


# There are more algorithms than colours. Those that share one are kin: black evaluates all
# components, grey draws from the exact posterior, vermilion is ours.
# Circles are left to t95, dots to what lines are compared with.
LOOKS = {
    runs.EM: Look(BLACK, "s"),
    runs.SAEM: Look(BLACK, "v", (5, 2)),
    runs.SGD: Look(BLACK, "^", (5, 1.5, 1, 1.5)),
    runs.SSAEM: Look(SKY, "<", (4, 1, 1, 1, 1, 1)),
    runs.TSAEM: Look(GREEN, "p", (9, 2)),
    runs.MCSAEM: Look(GREY, ">"),
    runs.MHSAEM_O: Look(GREY, "h", (5, 2)),
    runs.MHSAEM_U: Look(ORANGE, "P", (2, 1)),
    runs.MHSAEM_T: Look(BLUE, "d", (7, 1.5, 2, 1.5)),
    runs.MHSAEM_TF: Look(PURPLE, "X", (6, 1.5, 1, 1.5, 1, 1.5)),
    runs.MHSAEM_P: Look(VERMILION, "D", ours=True),
    runs.PICKMIX: Look(VERMILION, "*", (3, 1), ours=True),
}
_OTHER = Look(GREY, ".", (1, 3))
# Of levels that lines are compared with: the truth and 1/K; and of what exact draws would give.
SPARSE_DOTS, DOTS = (0, (1, 3)), (0, (1, 1.2))
# Of the values of a parameter, in rising order; the last is for algorithms without it.
SHAPES = ("+", "s", "o", "^", "D", "v", "X", "p", "<", ">")
WITHOUT = "*"

X_LABELS = {
    "seconds": "work time (seconds)",
    "evaluations": "component evaluations per row",
}
X_LABELS_AT_T95 = {
    "seconds": "work time to t95 (seconds)",
    "evaluations": "component evaluations per row to t95",
}
Y_LABELS = {
    "log_likelihood": "training log-likelihood per row",
    "validation": "validation log-likelihood per row",
    "acceptance": "average acceptance ratio",
    "bias": "squared norm of the gradient's error",
    "bias_by_chance": "squared norm of the gradient's error by chance",
    "live_components": "components in use",
}
ERROR_LABEL = "absolute error at t95 (nats per row)"

# 17 cm, the width of a printed page's text: sizes of fonts are what the reader gets.
WIDTH = 17.0 / 2.54
RC = {
    "font.family": "sans-serif",
    "font.size": 8.0,
    "axes.labelsize": 8.0,
    "axes.titlesize": 8.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "figure.titlesize": 9.5,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "lines.markersize": 4.5,
    # Journals refuse the default, Type 3.
    "pdf.fonttype": 42,
}


def look_of(algorithm: str) -> Look:
    """The look of an algorithm, also of one that is not in the paper."""
    return LOOKS.get(algorithm, _OTHER)


def marker_size(look: Look) -> float:
    """A star of the same width covers less than other shapes."""
    return 7.5 if look.marker == "*" else 4.5


def y_label(series: str) -> str:
    """Name of a series in plain words."""
    return Y_LABELS.get(series, series.replace("_", " "))


def fold(text: str, width: int) -> str:
    """Break a text into lines, unless it holds formulas, which do not go across lines.

    Examples
    --------
    >>> fold("ten components", 5), fold("$K = 10$", 5)
    ('ten\\ncomponents', '$K = 10$')
    """
    if "$" in text:
        return text
    return textwrap.fill(text, max(width, 1), break_long_words=False, break_on_hyphens=False)


def ordinal(percent: float) -> str:
    """A percentile's name.

    Examples
    --------
    >>> [ordinal(percent) for percent in (1.0, 2.5, 11.0, 25.0, 92.0, 99.0)]
    ['1st', '2.5th', '11th', '25th', '92nd', '99th']
    """
    text = f"{percent:g}"
    if text[-2:] in ("11", "12", "13") or not text.isdigit():
        return f"{text}th"
    return text + {"1": "st", "2": "nd", "3": "rd"}.get(text[-1], "th")


def over_seeds(percentiles: tuple[float, float], counts: list[int]) -> str:
    """What lines and bands are, for a title.

    Examples
    --------
    >>> over_seeds((1.0, 99.0), [3, 3])
    'median and 1st to 99th percentile over 3 seeds'
    >>> over_seeds((1.0, 99.0), [3, 2]), over_seeds((1.0, 99.0), [1])
    ('median and 1st to 99th percentile over 2 to 3 seeds', 'one seed')
    """
    fewest, most = min(counts), max(counts)
    if most == 1:
        return "one seed"
    number = f"{most}" if fewest == most else f"{fewest} to {most}"
    low, high = percentiles
    return f"median and {ordinal(low)} to {ordinal(high)} percentile over {number} seeds"
