"""Whether columns are spread as the model says, against what chance does."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from pickmix.diagnostics.calibration import Calibration, calibration
from pickmix.displays.base import (
    CLUSTER_COLOURS,
    grid_of_axes,
    set_title,
    shorten,
    single_axes,
    tidy,
)
from pickmix.displays.colours import BLUE, GREY, GRID, INK, VERMILION
from pickmix.displays.panels import MOST_PANELS, worst
from pickmix.estimators.validation import check_choice, check_number

# Curves that have a name.
_MOST_NAMED = 8
# Points of a curve.
_MOST_PLACES = 1000


class CalibrationDisplay:
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

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration

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

        Returns
        -------
        display : CalibrationDisplay
        """
        return cls(calibration(model, X, columns, n_bins=n_bins)).plot(axes, **settings)

    def plot(self, axes: Any = None, *, kind: str = "histograms", level: float = 0.99) -> Self:
        """Draw.

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

        Returns
        -------
        self
        """
        check_choice("kind", kind, ("histograms", "curves"))
        check_number("level", level, 0.0)
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must be between 0 and 1, got {level!r}.")
        if kind == "curves":
            return self._draw_curves(axes, level)
        return self._draw_histograms(axes, level)

    def _draw_histograms(self, axes: Any, level: float) -> Self:
        own = self.calibration
        kept = worst(own.distances, MOST_PANELS if axes is None else len(own))
        self.axes_ = grid_of_axes(axes, kept.shape[0], 4, (3.0, 2.2), sharex=True)
        self.figure_ = self.axes_[0].figure
        n_bins = own.shares.shape[1]
        edges = np.linspace(0.0, 1.0, n_bins + 1)
        low, high = own.band(level)
        limits = own.limit(level)
        for panel, d in zip(self.axes_, kept.tolist(), strict=True):
            off = bool(own.distances[d] > limits[d])
            colour = VERMILION if off else BLUE
            # Heights are densities, 1 if the model is right, whatever the bins.
            panel.stairs(own.shares[d] * n_bins, edges, fill=True, color=colour, alpha=0.55)
            # Behind the bars, so that they do not look stacked.
            panel.axhspan(
                low[d] * n_bins, high[d] * n_bins, color=GREY, alpha=0.3, linewidth=0, zorder=0
            )
            panel.axhline(1.0, color=INK, linewidth=0.8)
            panel.set_ylim(0.0, max(2.0, 1.08 * n_bins * float(own.shares[d].max(initial=0.0))))
            panel.set_xlim(0.0, 1.0)
            panel.set_xticks([0.0, 0.5, 1.0])
            text = f"{shorten(own.names[d], 20)}: {own.distances[d]:.3f}"
            set_title(panel, f"{text}{' (off)' if off else ''}", 10)
            tidy(panel)
        if axes is None:
            shown = f"{len(kept)} of {len(own)} columns. " if len(kept) < len(own) else ""
            self.figure_.suptitle(
                f"{shown}Share of rows over the model's probability (1 is right), band of chance "
                f"({100.0 * level:g} %); beside the name, the largest distance",
                fontsize=9,
                wrap=True,
            )
        return self

    def _draw_curves(self, axes: Any, level: float) -> Self:
        own = self.calibration
        panel = single_axes(axes if axes is None or np.ndim(axes) == 0 else np.ravel(axes)[0])
        self.axes_, self.figure_ = np.array([panel], dtype=object), panel.figure
        limits = own.limit(level)
        panel.axhspan(-limits.max(), limits.max(), color=GREY, alpha=0.25, linewidth=0)
        panel.axhline(0.0, color=INK, linewidth=0.8)
        order = np.argsort(-np.nan_to_num(own.distances), kind="stable")
        palette = _cycle()
        for rank, d in enumerate(order.tolist()):
            u = own.values[d]
            places, heights = _curve(u)
            named = rank < _MOST_NAMED
            colour, style = palette[rank] if named else (GREY, "-")
            name = f"{shorten(own.names[d])}: {own.distances[d]:.3f}" if named else None
            if rank == _MOST_NAMED:
                name = f"{len(own) - _MOST_NAMED} more columns"
            panel.plot(
                places,
                heights,
                color=colour,
                linestyle=style,
                linewidth=1.5 if named else 0.6,
                zorder=2.0 if named else 1.5,
                label=name,
            )
        panel.set_xlim(0.0, 1.0)
        panel.grid(color=GRID, linewidth=0.8)
        panel.set_axisbelow(True)
        panel.set_xlabel("the model's probability of smaller values", color=INK)
        panel.set_ylabel("share of rows minus that probability", color=INK)
        set_title(panel, f"Calibration of the columns, with the band of chance ({100 * level:g} %)")
        # Beside the axes: curves may be anywhere in them.
        panel.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))
        tidy(panel)
        return self


def _curve(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places, and the share of sorted u below each minus the place, with the largest distance."""
    n = u.shape[0]
    # Where steps begin and end.
    places = np.repeat(u, 2)
    heights = np.repeat(np.arange(n + 1) / max(n, 1), 2)[1:-1] - places
    kept = np.arange(2 * n)
    if 2 * n > _MOST_PLACES:
        kept = np.linspace(0, 2 * n - 1, _MOST_PLACES).astype(np.int64)
        kept = np.unique(np.append(kept, np.abs(heights).argmax()))
    return (
        np.concatenate([[0.0], places[kept], [1.0]]),
        np.concatenate([[0.0], heights[kept], [0.0]]),
    )


def _cycle() -> list[tuple[str, str]]:
    """Colours and styles of the lines that have a name."""
    styles = ("-", "--")
    return [(CLUSTER_COLOURS[n], styles[n // 6]) for n in range(_MOST_NAMED)]
