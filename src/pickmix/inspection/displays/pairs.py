"""Pairs of columns at a cut of the merge tree: clusters as ellipses, over their rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from pickmix.families.distributions import NormalMixture
from pickmix.inspection.displays import base
from pickmix.inspection.displays.base import ROWS, Display, finish, shorten
from pickmix.inspection.displays.colours import INK
from pickmix.inspection.plane import (
    centred,
    component_moments,
    coordinates,
    number_columns,
    plane_of,
)
from pickmix.inspection.view import View

# Columns that are drawn unless they are given, columns at most, and rows.
_CHOSEN_COLUMNS, _MOST_COLUMNS, _MOST_POINTS = 4, 8, 4_000
# Clusters unless a level is given, and clusters with a name in the legend.
_LEVEL, _MOST_NAMED = 7, 12
_FEW_VALUES = 8
_BINS = 40


@dataclass(eq=False, repr=False)
class PairsDisplay(Display):
    """A grid of pairs of columns, with merged components as ellipses.

    Use `from_estimator` to make one. The mixture is reduced to `level` components along its merge
    tree; an ellipse holds two standard deviations of each. Rows have the colour of their most
    probable cluster. On the diagonal, rows as a histogram and the merged components as curves.

    Parameters
    ----------
    rows : (n, d) array
        Rows, NaN where nothing was seen.
    labels : (n,) int array
        Their clusters.
    weights : (k,) array
    means : (k, d) array
    covariances : (k, d, d) array
    names : list of d str
    title : str

    Attributes
    ----------
    axes_ : (d, d) array of matplotlib Axes
        None above the diagonal.
    figure_ : matplotlib Figure

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> import numpy as np
    >>> from pickmix import GaussianMixture, PairsDisplay
    >>> X = np.random.default_rng(0).normal(size=(500, 3))
    >>> mixture = GaussianMixture(8, random_state=0).fit(X)
    >>> display = PairsDisplay.from_estimator(mixture, X, level=3)
    >>> display.means.shape, display.axes_.shape
    ((3, 3), (3, 3))
    >>> plt.close(display.figure_)
    """

    rows: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    names: list[str]
    title: str

    @classmethod
    def from_estimator(
        cls,
        model: Any,
        X: Any,
        *,
        level: int | None = None,
        columns: Any = None,
        figure: Any = None,
    ) -> Self:
        """Draw pairs of columns of a fitted mixture.

        Parameters
        ----------
        model : fitted GaussianMixture, FamilyMixture or TableMixture
        X : table of shape (N, D)
            As the model takes it. Up to 4,000 rows are drawn.
        level : int, default=None
            Clusters that are left. None is 7, or all components if there are fewer.
        columns : list of names or numbers, default=None
            Columns of numbers, two to eight. None are the four in which the clusters differ most.
        figure : matplotlib Figure or SubFigure, default=None
            None makes one.
        """
        view = View(model)
        level = base.check_level(model, min(_LEVEL, view.n_components) if level is None else level)
        wanted = number_columns(view) if columns is None else view.find(columns)
        if columns is not None and not 2 <= wanted.shape[0] <= _MOST_COLUMNS:
            raise ValueError(
                f"columns must be two to {_MOST_COLUMNS} names or numbers, got {columns!r}."
            )
        if wanted.shape[0] < 2:
            raise ValueError(
                f"model must have two columns of numbers to draw pairs of, got {wanted.shape[0]}."
            )
        base.refuse_path(X)
        read = view.read(X, _MOST_POINTS)
        rows, reduced = coordinates(view, read), View(model.reduce(level))
        if columns is None:
            wanted = _most_different(reduced, rows, wanted)
        plane = plane_of(view, wanted)
        labels = model.merge_tree().labels(level)
        return cls(
            plane.project(rows),
            np.asarray(view.model.predict(view.model_rows(read.values), labels=labels)),
            np.asarray(reduced.model.weights),
            *component_moments(reduced, plane),
            list(plane.names),
            f"{base.describe(model)}; {level} cluster{'s' if level > 1 else ''} of the merge tree, "
            "two standard deviations",
        ).plot(figure)

    def plot(self, figure: Any = None) -> Self:
        """Draw in a Figure or SubFigure of matplotlib; None makes one."""
        d = len(self.names)
        if figure is None:
            size = 2.3 * d + 0.6
            figure = base.matplotlib_part().figure(figsize=(size, size), layout="constrained")
        self.figure_ = figure
        grid = figure.add_gridspec(d, d)
        self.axes_ = np.full((d, d), None, dtype=object)
        colours = base.cluster_colours(self.means)
        for i in range(d):
            for j in range(i + 1):
                panel = figure.add_subplot(grid[i, j])
                self.axes_[i, j] = panel
                if i == j:
                    self._draw_column(panel, i, colours)
                else:
                    self._draw_pair(panel, j, i, colours)
                finish(panel)
                panel.tick_params(labelsize=7.5)
                panel.locator_params(nbins=4)
                panel.xaxis.set_tick_params(labelbottom=i == d - 1)
                panel.yaxis.set_tick_params(labelleft=j == 0 and i > 0)
                if i == d - 1:
                    panel.set_xlabel(_label(self.names[j]), fontsize=9, color=INK)
                if j == 0 and i > 0:
                    panel.set_ylabel(_label(self.names[i]), fontsize=9, color=INK)
        figure.suptitle(self.title, fontsize=10, x=0.01, ha="left", wrap=True)
        self._write_legend(grid, colours)
        return self

    def _draw_column(self, panel: Any, d: int, colours: list[str]) -> None:
        """Rows as a histogram, and each cluster's share of the density."""
        seen = self.rows[:, d]
        seen = seen[~np.isnan(seen)]
        (low,), (high,) = base.limits_of(seen[:, None])
        edges, grid = np.linspace(low, high, _BINS + 1), np.linspace(low, high, 400)
        heights, *_ = panel.hist(seen, edges, density=True, color=ROWS, alpha=0.4)
        deviations = np.sqrt(np.maximum(self.covariances[:, d, d], 1e-300))
        curves = NormalMixture(self.weights, self.means[:, d], deviations).densities(grid)
        for curve, colour in zip(curves.T, colours, strict=True):
            panel.plot(grid, curve, color=colour, linewidth=1.3)
        # A narrow cluster must not flatten the rest.
        panel.set(xlim=(low, high), ylim=(0.0, 1.15 * float(heights.max())), yticks=[])
        panel.spines["left"].set_visible(False)

    def _draw_pair(self, panel: Any, x: int, y: int, colours: list[str]) -> None:
        points = self.rows[:, [x, y]]
        seen = ~np.isnan(points).any(axis=1)
        size = float(np.clip(3000.0 / max(int(np.count_nonzero(seen)), 1), 2.0, 10.0))
        base.draw_points(panel, points[seen], np.array(colours)[self.labels[seen]], s=size)
        covariances = self.covariances[:, [x, y]][:, :, [x, y]]
        centers = self.means[:, [x, y]]
        base.draw_ellipses(panel, centers, covariances, self.weights, 2.0, colours, fill=0.4)
        base.set_limits(panel, points[seen])
        if len(colours) <= _MOST_NAMED:
            base.write_numbers(panel, range(len(colours)), centers, colours, size=7.0)

    def _write_legend(self, grid: Any, colours: list[str]) -> None:
        """Clusters and their weights, where the grid has room: above the diagonal."""
        d = len(self.names)
        corner = self.figure_.add_subplot(grid[0, d - 1])
        corner.set_axis_off()
        self.legend_ax_ = corner
        lines = base.matplotlib_part("lines")
        shown = list(enumerate(self.weights[:_MOST_NAMED]))
        handles = [
            lines.Line2D([], [], color=colours[n], marker="o", linewidth=0, label=f"{n}: {w:.1%}")
            for n, w in shown
        ]
        more = self.weights.shape[0] - len(shown)
        if more:
            rest = f"{more:,} more: {self.weights[len(shown) :].sum():.1%}"
            handles.append(lines.Line2D([], [], linewidth=0, label=rest))
        sizes = {"fontsize": 8, "title_fontsize": 8}
        corner.legend(
            handles=handles, title="cluster: weight", frameon=False, loc="upper right", **sizes
        )


def _label(name: str) -> str:
    """A name for the side of a small panel; the first day of dates has its own line."""
    start, mark, since = name.partition(" (days")
    return shorten(start, 26) + (f"\n(days{since}" if mark else "")


def _most_different(reduced: View, rows: np.ndarray, usable: np.ndarray) -> np.ndarray:
    """The few columns in which clusters differ most, and that do not repeat each other."""
    plane = plane_of(reduced, usable)
    means, _ = component_moments(reduced, plane)
    points = plane.project(rows)
    _, away = centred(points)
    spread = np.sqrt(np.square(away).mean(axis=0))
    between = reduced.weights @ np.square(means - reduced.weights @ means)
    explained = between / np.where(spread > 0.0, np.square(spread), np.inf)
    # Columns of a few values are lines in a picture.
    n_distinct = np.array([np.unique(column[~np.isnan(column)]).shape[0] for column in points.T])
    explained = np.where(n_distinct < _FEW_VALUES, 1e-3, 1.0) * np.minimum(explained, 1.0)
    scaled = away / np.where(spread > 0.0, spread, 1.0)
    squared_correlation = np.square(scaled.T @ scaled / max(rows.shape[0], 1))
    chosen: list[int] = []
    left = explained.copy()
    for _ in range(min(_CHOSEN_COLUMNS, usable.shape[0])):
        chosen.append(int(left.argmax()))
        left = explained * (1.0 - squared_correlation[:, chosen].max(axis=1))
        left[chosen] = -1.0
    return np.asarray(usable[np.sort(chosen)])
