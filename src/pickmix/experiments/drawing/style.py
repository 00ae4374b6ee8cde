"""How pictures look: algorithms and rivals, axes and words."""

from __future__ import annotations

import textwrap
from typing import Any, NamedTuple

from pickmix.displays import colours
from pickmix.displays.colours import BLACK, BLUE, GREY, GRID, INK, VERMILION
from pickmix.experiments import runs


class Look(NamedTuple):
    """How an algorithm is drawn; dashes and markers differ too, for grey print."""

    colour: str
    marker: str
    # On and off in line widths; solid if empty.
    dashes: tuple[float, ...] = ()
    ours: bool = False
    hollow: bool = False

    @property
    def line(self) -> dict[str, Any]:
        """Matplotlib's properties of the line."""
        return {
            "color": self.colour,
            "linestyle": (0, self.dashes) if self.dashes else "-",
            "linewidth": 2.0 if self.ours else 1.2,
            "zorder": 3.0 if self.ours else 2.5,
        }

    @property
    def points(self) -> dict[str, Any]:
        """Matplotlib's properties of the markers."""
        return {
            "marker": self.marker,
            # A star of the same width covers less than other shapes.
            "markersize": 7.5 if self.marker == "*" else 4.5,
            "markerfacecolor": "white" if self.hollow else self.colour,
            "markeredgecolor": self.colour if self.hollow else "white",
            "markeredgewidth": 1.0 if self.hollow else 0.4,
        }

    def value(self, shape: str) -> dict[str, Any]:
        """Matplotlib's properties of the marker of a parameter's value."""
        # A plus is all edge.
        edge, width = (self.colour, 1.8) if shape == "+" else ("white", 0.5)
        size = {"marker": shape, "markersize": 7.5 if shape in "+*" else 5.0}
        colours = {"markerfacecolor": self.colour, "markeredgecolor": edge}
        return {**size, **colours, "markeredgewidth": width}


# There are more algorithms than colours. Those that share one are kin: black evaluates all
# components, grey draws from the exact posterior or is another library's, vermilion is ours.
# Circles are left to t95, dots to what lines are compared with.
LOOKS = {
    runs.EM: Look(BLACK, "s"),
    runs.SAEM: Look(BLACK, "v", (5, 2)),
    runs.SGD: Look(BLACK, "^", (5, 1.5, 1, 1.5)),
    runs.SSAEM: Look(colours.SKY, "<", (4, 1, 1, 1, 1, 1)),
    runs.TSAEM: Look(colours.GREEN, "p", (9, 2)),
    runs.MCSAEM: Look(GREY, ">"),
    runs.MHSAEM_O: Look(GREY, "h", (5, 2)),
    runs.MHSAEM_U: Look(colours.ORANGE, "P", (2, 1)),
    runs.MHSAEM_T: Look(BLUE, "d", (7, 1.5, 2, 1.5)),
    runs.MHSAEM_TF: Look(colours.PURPLE, "X", (6, 1.5, 1, 1.5, 1, 1.5)),
    runs.MHSAEM_P: Look(VERMILION, "D", ours=True),
    runs.PICKMIX: Look(VERMILION, "*", (3, 1), ours=True),
    # Rivals of benches. Those of other libraries are points.
    "sklearn-kmeans": Look(BLUE, "D"),
    "sklearn-k-means++": Look(BLUE, "^"),
    "sklearn-kmeans-one-thread": Look(BLUE, "D", hollow=True),
    "sklearn-k-means++-one-thread": Look(BLUE, "^", hollow=True),
    "faiss-kmeans": Look(GREY, "h"),
    "gmmx": Look(GREY, "8", hollow=True),
    "pomegranate": Look(GREY, "H", hollow=True),
}
# Ours have the names of the algorithms there.
_SAME = {"mhsaem-uniform": runs.MHSAEM_U, "mhsaem-table-forgetting": runs.MHSAEM_TF}
_OTHER = Look(GREY, ".", (1, 3))
# Of levels that lines are compared with: the truth and 1/K; and of what exact draws would give.
SPARSE_DOTS, DOTS = (0, (1, 3)), (0, (1, 1.2))
RING: dict[str, Any] = {"linestyle": "none", "marker": "o", "markerfacecolor": "none"}
# Of the values of a parameter, in rising order; the last is for algorithms without it.
SHAPES = ("+", "s", "o", "^", "D", "v", "X", "p", "<", ">")
WITHOUT = "*"

X_LABELS = {"seconds": "work time (seconds)", "evaluations": "component evaluations per row"}
X_LABELS_AT_T95 = {"seconds": "work time to t95 (seconds)"}
X_LABELS_AT_T95["evaluations"] = "component evaluations per row to t95"
Y_LABELS = {
    "log_likelihood": "training log-likelihood per row",
    "validation": "held-out log-likelihood per row",
    "acceptance": "average acceptance ratio",
    "bias": "squared norm of the gradient's error",
}
ERROR_LABEL = "absolute error at t95 (nats per row)"

# 17 cm, the width of a printed page's text: sizes of fonts are what the reader gets.
WIDTH = 17.0 / 2.54
RC: dict[str, Any] = {
    **{"font.family": "sans-serif", "font.size": 8.0, "figure.titlesize": 9.5},
    **{"axes.labelsize": 8.0, "axes.titlesize": 8.5, "axes.linewidth": 0.7},
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 7.5),
    **dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), INK),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": GRID, "grid.linewidth": 0.6},
    # Journals refuse the default, Type 3.
    **{"lines.markersize": 4.5, "pdf.fonttype": 42},
}


def look_of(algorithm: str) -> Look:
    """The look of an algorithm or a rival, also of an unknown one."""
    name = _SAME.get(algorithm, algorithm)
    return LOOKS.get(name) or LOOKS.get(name.upper(), _OTHER)


class Legend:
    """What was drawn: algorithms, values of parameters, notes; and the seeds behind each line."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self._handles: tuple[dict[str, Any], ...] = ({}, {}, {})

    def add(self, group: int, words: str, **look: Any) -> None:
        """Explain an algorithm (group 0), a value (1), or what lines are compared with (2)."""
        from matplotlib.lines import Line2D

        self._handles[group].setdefault(words, Line2D([], [], label=words, **look))

    def write(self, page: Any) -> int:
        """Write it below the axes; the number of rows that takes."""
        handles = [handle for group in self._handles for handle in group.values()]
        longest = max(len(handle.get_label()) for handle in handles)
        # The page is about 64 letters "m" of the legend wide, a handle with its gaps five.
        n_columns = min(len(handles), 6, int(64.0 / (5.4 + 0.55 * longest)))
        place = {"loc": "outside lower center", "ncols": n_columns, "frameon": False}
        page.legend(handles=handles, **place, handlelength=3.2, columnspacing=1.2)
        return -(-len(handles) // n_columns)


def fold(text: str, width: int) -> str:
    """Break a text into lines, unless it holds formulas, which do not go across lines."""
    if "$" in text:
        return text
    return textwrap.fill(text, max(width, 1), break_long_words=False, break_on_hyphens=False)


def over_seeds(percentiles: tuple[float, float], counts: list[int]) -> str:
    """What lines and bands are, for a title."""
    fewest, most = min(counts), max(counts)
    if most == 1:
        return "one seed"
    number = f"{most}" if fewest == most else f"{fewest} to {most}"
    low, high = (f"{percent:g}{'st' if percent == 1.0 else 'th'}" for percent in percentiles)
    band = f" and {low} to {high} percentile" if low != high else ""
    return f"median{band} over {number} seeds"


def write_plain_ticks(axis: Any) -> None:
    """Write 0.5 rather than 5 x 10^-1 where powers of ten alone would be too few ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    if axis.get_scale() != "log":
        return
    low, high = sorted(axis.get_view_interval())
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    if high < 3.0 * low:
        axis.set_major_locator(MaxNLocator(4))
        axis.set_minor_locator(NullLocator())
    elif high < 100.0 * low:
        axis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
        axis.set_minor_formatter(plain)
    if high < 100.0 * low:
        axis.set_major_formatter(plain)
