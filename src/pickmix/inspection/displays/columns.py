"""Columns one by one: rows against the model, and against what chance does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from pickmix.checks import check_choice, check_number
from pickmix.inspection.columns import Calibration, Marginal, calibration, marginals
from pickmix.inspection.displays.base import (
    CLUSTER_COLOURS,
    ROWS,
    Display,
    finish,
    matplotlib_part,
    shorten,
)
from pickmix.inspection.displays.colours import BLUE, GREY, INK, VERMILION

# Panels of a figure unless columns are given, curves that have a name, and points of a curve.
_MOST_PANELS, _MOST_NAMED, _MOST_POINTS = 12, 8, 1000


@dataclass(eq=False, repr=False)
class MarginalsDisplay(Display):
    """Shares of rows in bins or levels of each column, and what the model says of them.

    Use `from_estimator` to make one. Rows are grey; the model is blue: exact for mixtures in closed
    form, 20,000 drawn rows for others. The first and the last bin of a number hold all that lies
    beyond as well.

    Parameters
    ----------
    marginals : sequence of Marginal
    title : str, default=""

    Attributes
    ----------
    axes_ : (n,) array of matplotlib Axes
        One for each column.
    figure_ : matplotlib Figure

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> import numpy as np
    >>> from pickmix import GaussianMixture, MarginalsDisplay
    >>> X = np.random.default_rng(0).normal(size=(500, 3))
    >>> display = MarginalsDisplay.from_estimator(GaussianMixture(1).fit(X), X, columns=[2, 0])
    >>> [axes.get_title(loc="left") for axes in display.axes_]
    ['column 2', 'column 0']
    >>> plt.close(display.figure_)
    """

    marginals: Sequence[Marginal]
    title: str = ""

    @classmethod
    def from_estimator(
        cls,
        model: Any,
        X: Any,
        *,
        columns: Any = None,
        n_bins: int = 40,
        max_levels: int = 12,
        axes: Any = None,
    ) -> Self:
        """Draw rows against the model, column by column.

        Parameters
        ----------
        model : fitted estimator of pickmix
        X : table of shape (N, D)
            As the model takes it. Rows that the model was not fitted to say more.
        columns : list of names or numbers, default=None
            None are all; of more than twelve, those where rows and model differ most.
        n_bins : int, default=40
            Bins of a number.
        max_levels : int, default=12
            Levels of a category; the rarer ones are put together.
        axes : array of matplotlib Axes, default=None
            One for each column. None makes a figure.
        """
        shown = marginals(model, X, n_bins, columns, max_levels=max_levels)
        title = ""
        if columns is None and len(shown) > _MOST_PANELS:
            kept = _worst(np.array([marginal.distance for marginal in shown]), _MOST_PANELS)
            title = f"{_MOST_PANELS} of {len(shown)} columns, where rows and model differ most"
            shown = [shown[number] for number in kept.tolist()]
        return cls(shown, title).plot(axes)

    def plot(self, axes: Any = None) -> Self:
        """Draw in an array of matplotlib Axes, one for each column; None makes a figure."""
        panels = self._grid(axes, len(self.marginals), 4, (3.0, 2.4))
        for panel, marginal in zip(panels, self.marginals, strict=True):
            draw_marginal(panel, marginal)
            # The title has the name.
            finish(panel, shorten(marginal.name, 28), "", "", size=10)
        if axes is not None:
            panels[0].legend(frameon=False, fontsize=8)
            return self
        handles, labels = panels[0].get_legend_handles_labels()
        # Rows first; levels have their marks before the bars.
        pairs = sorted(zip(handles, labels, strict=True), key=lambda pair: pair[1] != "rows")
        legend = {"loc": "outside lower right", "ncols": 2, "frameon": False}
        self.figure_.legend(*zip(*pairs, strict=True), **legend)
        if self.title:
            self.figure_.suptitle(self.title, fontsize=11)
        return self


@dataclass(eq=False, repr=False)
class CalibrationDisplay(Display):
    """The probability integral transform of rows, column by column.

    Use `from_estimator` to make one. u = F(x) is uniform if the model's distribution F of a column
    is right. A histogram that is high in the middle says that the model is too wide, one that is
    high at both ends that it is too narrow, a slope that it is moved. The grey band is where chance
    alone stays with a probability of 99 %.

    Parameters
    ----------
    calibration : Calibration

    Attributes
    ----------
    axes_ : (n,) array of matplotlib Axes
    figure_ : matplotlib Figure

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> import numpy as np
    >>> from pickmix import CalibrationDisplay, GaussianMixture
    >>> X = np.random.default_rng(0).normal(size=(500, 2))
    >>> display = CalibrationDisplay.from_estimator(GaussianMixture(1).fit(X), X, kind="curves")
    >>> len(display.axes_)
    1
    >>> plt.close(display.figure_)
    """

    calibration: Calibration

    @classmethod
    def from_estimator(
        cls,
        model: Any,
        X: Any,
        *,
        columns: Any = None,
        n_bins: int = 20,
        axes: Any = None,
        **settings: Any,
    ) -> Self:
        """Draw how rows fall in the model's distributions of the columns.

        Parameters
        ----------
        model : fitted estimator of pickmix
        X : table of shape (N, D)
            As the model takes it. Rows that the model was not fitted to say more.
        columns : list of names or numbers, default=None
            None is all.
        n_bins : int, default=20
        axes : matplotlib Axes, or an array of them, default=None
            One for each column, or one for all curves. None makes a figure.
        **settings
            As in `plot`.
        """
        return cls(calibration(model, X, columns, n_bins=n_bins)).plot(axes, **settings)

    def plot(self, axes: Any = None, *, kind: str = "histograms", level: float = 0.99) -> Self:
        """Draw, and return the display.

        Parameters
        ----------
        axes : matplotlib Axes, or an array of them, default=None
            None makes a figure.
        kind : {"histograms", "curves"}, default="histograms"
            "histograms": one for each column; of more than twelve, those that are farthest off.
            "curves": for all columns in one picture, the share of rows below a place minus what it
            should be.
        level : float, default=0.99
            Probability of the band.
        """
        check_choice("kind", kind, ("histograms", "curves"))
        check_number("level", level, 0.0)
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must be between 0 and 1, got {level!r}.")
        (self._draw_curves if kind == "curves" else self._draw_histograms)(axes, level)
        return self

    def _draw_histograms(self, axes: Any, level: float) -> None:
        data = self.calibration
        kept = _worst(data.distances, _MOST_PANELS if axes is None else len(data))
        panels = self._grid(axes, kept.shape[0], 4, (3.0, 2.2), sharex=True)
        n_bins = data.shares.shape[1]
        edges = np.linspace(0.0, 1.0, n_bins + 1)
        # Heights are densities, 1 if the model is right, whatever the bins.
        low, high = (share * n_bins for share in data.band(level))
        is_off = data.distances > data.limit(level)
        for panel, d in zip(panels, kept.tolist(), strict=True):
            heights, colour = data.shares[d] * n_bins, VERMILION if is_off[d] else BLUE
            panel.stairs(heights, edges, fill=True, color=colour, alpha=0.55)
            # Behind the bars, so that they do not look stacked.
            panel.axhspan(low[d], high[d], color=GREY, alpha=0.3, linewidth=0, zorder=0)
            panel.axhline(1.0, color=INK, linewidth=0.8)
            top = max(2.0, 1.08 * float(heights.max(initial=0.0)))
            panel.set(xlim=(0.0, 1.0), ylim=(0.0, top), xticks=[0.0, 0.5, 1.0])
            title = f"{shorten(data.names[d], 20)}: {data.distances[d]:.3f}"
            finish(panel, f"{title}{' (off)' if is_off[d] else ''}", size=10)
        if axes is None:
            shown = f"{len(kept)} of {len(data)} columns. " if len(kept) < len(data) else ""
            self.figure_.suptitle(
                f"{shown}Share of rows over the model's probability (1 is right), band of chance "
                f"({100.0 * level:g} %); beside the name, the largest distance",
                fontsize=9,
                wrap=True,
            )

    def _draw_curves(self, axes: Any, level: float) -> None:
        data = self.calibration
        panel = self._single(axes if axes is None or np.ndim(axes) == 0 else np.ravel(axes)[0])
        self.axes_ = np.array([panel], dtype=object)
        limits = data.limit(level)
        panel.axhspan(-limits.max(), limits.max(), color=GREY, alpha=0.25, linewidth=0)
        panel.axhline(0.0, color=INK, linewidth=0.8)
        order = np.argsort(-np.nan_to_num(data.distances), kind="stable")
        for rank, d in enumerate(order.tolist()):
            named = rank < _MOST_NAMED
            name = f"{shorten(data.names[d])}: {data.distances[d]:.3f}" if named else None
            if rank == _MOST_NAMED:
                name = f"{len(data) - _MOST_NAMED} more columns"
            panel.plot(
                *_curve(data.values[d]),
                color=CLUSTER_COLOURS[rank] if named else GREY,
                linestyle="--" if 6 <= rank < _MOST_NAMED else "-",
                linewidth=1.5 if named else 0.6,
                zorder=2.0 if named else 1.5,
                label=name,
            )
        panel.set_xlim(0.0, 1.0)
        # Beside the axes: curves may be anywhere in them.
        panel.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))
        finish(
            panel,
            f"Calibration of the columns, with the band of chance ({100 * level:g} %)",
            "the model's probability of smaller values",
            "share of rows minus that probability",
            grid=True,
        )


def _curve(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, and the share of sorted u below each minus it, with the largest distance."""
    n = u.shape[0]
    # Where steps begin and end.
    x = np.repeat(u, 2)
    y = np.repeat(np.arange(n + 1) / max(n, 1), 2)[1:-1] - x
    if 2 * n > _MOST_POINTS:
        kept = np.linspace(0, 2 * n - 1, _MOST_POINTS).astype(np.int64)
        kept = np.unique(np.append(kept, np.abs(y).argmax()))
        x, y = x[kept], y[kept]
    return np.concatenate([[0.0], x, [1.0]]), np.concatenate([[0.0], y, [0.0]])


def _worst(distances: np.ndarray, most: int) -> np.ndarray:
    """Numbers of the columns with the largest distances, in the order of the columns."""
    return np.sort(np.argsort(-np.nan_to_num(distances, nan=-1.0), kind="stable")[:most])


def draw_marginal(axes: Any, marginal: Marginal) -> None:
    """Rows as grey bars, the model as a blue line; levels side by side, with blue marks."""
    model = "model" if marginal.exact else "drawn from the model"
    observed, expected = marginal.observed, marginal.expected
    if marginal.kind == "levels":
        at = np.arange(len(marginal.levels))
        axes.barh(at, observed, color=ROWS, alpha=0.5, label="rows")
        axes.plot(expected, at, "D", color=BLUE, markersize=5, label=model, clip_on=False)
        axes.set_yticks(at, [shorten(level, 16) for level in marginal.levels])
        # The first level on top, as in a list.
        axes.set_ylim(len(at) - 0.5, -0.5)
        axes.set_xlim(left=0.0)
        axes.set_xlabel("share", color=INK)
        return
    edges = marginal.edges
    axes.stairs(observed, edges, fill=True, color=ROWS, alpha=0.5, label="rows")
    axes.stairs(expected, edges, color=BLUE, linewidth=1.5, label=model, baseline=None)
    axes.set_ylim(bottom=0.0)
    axes.set_ylabel("share", color=INK)
    axes.set_xlabel(marginal.name, color=INK)
    if edges.dtype.kind != "M":
        axes.locator_params(axis="x", nbins=5)
        return
    # A few ticks along an axis of dates, whatever its range: usual lists end too soon for so few.
    dates = matplotlib_part("dates")
    locator = dates.AutoDateLocator(minticks=3, maxticks=5)
    longest = {"SECONDLY": 60, "MINUTELY": 60, "HOURLY": 24, "DAILY": 28, "MONTHLY": 12}
    for unit, steps in longest.items():
        intervals = locator.intervald[getattr(dates, unit)]
        locator.intervald[getattr(dates, unit)] = [*intervals, steps]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
