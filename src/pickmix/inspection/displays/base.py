"""What all displays share: axes, titles, colours of clusters, points and ellipses."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from pickmix.checks import require
from pickmix.inspection.displays import colours as c
from pickmix.inspection.displays.colours import BLUE, GRID, INK

#: Of rows, behind everything else.
ROWS = "#8c8c8c"
#: Of clusters. Grey is left to the rows.
CLUSTER_COLOURS = [BLUE, c.VERMILION, c.GREEN, c.PURPLE, c.ORANGE]
CLUSTER_COLOURS += [c.SKY, c.WINE, c.OLIVE, c.INDIGO, c.BLACK]
#: Of titles and tick labels.
TITLE_SIZE, TICK_SIZE = 11, 9
# The light that passes through all ellipses at one point, and how opaque a single one is at most.
_LIGHT, _MOST_OPAQUE = 0.15, 0.35
# Centres at which ellipses are counted.
_N_COUNTED = 300


def matplotlib_part(name: str = "pyplot") -> Any:
    """A module of matplotlib, or an error that names the extra."""
    require("matplotlib", "Plots need matplotlib: pip install pickmix[plot]")
    return importlib.import_module(f"matplotlib.{name}")


class Display:
    """A picture that keeps its figure, and its axes as `ax_` or `axes_`."""

    figure_: Any
    ax_: Any
    axes_: Any

    def _single(self, ax: Any, figsize: tuple[float, float] = (7.0, 5.5)) -> Any:
        """The axes to draw in: those given, or new ones of pyplot."""
        if ax is None:
            ax = matplotlib_part().subplots(figsize=figsize, layout="constrained")[1]
        self.ax_, self.figure_ = ax, ax.figure
        return ax

    def _grid(
        self, axes: Any, n_panels: int, n_across: int, panel: tuple[float, float], **settings: Any
    ) -> np.ndarray:
        """Axes (n,) of panels: those given, or a new grid of pyplot, `n_across` wide."""
        if axes is None:
            n_across = min(n_across, n_panels)
            n_down = -(-n_panels // n_across)
            size = panel[0] * n_across, panel[1] * n_down + 0.5
            settings |= {"figsize": size, "layout": "constrained", "squeeze": False}
            given = matplotlib_part().subplots(n_down, n_across, **settings)[1].ravel()
            for unused in given[n_panels:]:
                unused.set_visible(False)
            # Shared axes have labels in the last row only, which may not be full.
            for lowest in given[max(n_panels - n_across, 0) : n_panels]:
                lowest.xaxis.set_tick_params(labelbottom=True)
        else:
            given = np.asarray(axes, dtype=object).ravel()
            if given.shape[0] < n_panels:
                raise ValueError(
                    f"axes must hold at least {n_panels} axes, one for each panel, got "
                    f"{given.shape[0]}."
                )
        self.axes_ = given[:n_panels]
        self.figure_ = self.axes_[0].figure
        return np.asarray(self.axes_)


def finish(
    axes: Any,
    title: str | None = None,
    x: str | None = None,
    y: str | None = None,
    *,
    size: float = TITLE_SIZE,
    grid: bool = False,
) -> None:
    """Write a title on the left and names of both axes, and remove what is not needed."""
    if title is not None:
        axes.set_title(title, loc="left", fontsize=size)
    if x is not None:
        axes.set_xlabel(x, color=INK)
    if y is not None:
        axes.set_ylabel(y, color=INK)
    if grid:
        axes.grid(color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=TICK_SIZE)


def annotate(
    axes: Any, text: str, xy: Any, shift: tuple[float, float], coordinates: Any, **settings: Any
) -> None:
    """Write a text beside a point, shifted by points of the font."""
    axes.annotate(
        text, xy, xycoords=coordinates, xytext=shift, textcoords="offset points", **settings
    )


def shorten(text: str, most: int = 22) -> str:
    """A text of at most so many characters: names often differ in how they end."""
    if len(text) <= most:
        return text
    end = (most - 1) // 3
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


def describe(estimator: Any) -> str:
    """A mixture in a few words."""
    if hasattr(estimator, "n_children"):
        children: Sequence[int] = estimator.n_children_
        # One number if all layers have the same, else all.
        shown = "/".join(map(str, children if len(set(children)) > 1 else children[:1]))
        return (
            f"network of {estimator.n_layers} layers, {shown} children, {estimator.n_partitions} "
            f"parts, by {estimator.algorithm}"
        )
    n_components = estimator.weights_.shape[0]
    thing = "flow" if hasattr(estimator, "hidden") else "component"
    if hasattr(estimator, "covariance_type"):
        thing = f"{estimator.covariance_type} component"
    return f"{n_components:,} {thing}{'' if n_components == 1 else 's'}, by {estimator.algorithm}"


def refuse_path(X: Any) -> None:
    """Raise unless X is a table in memory."""
    if isinstance(X, str | os.PathLike):
        raise ValueError(f"X must be a table in memory, got the path {str(X)!r}. Read it first.")


def is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_level(estimator: Any, level: Any) -> int:
    """The number of clusters that are left, checked."""
    if not hasattr(estimator, "merge_tree"):
        raise ValueError(
            f"level must be None for {type(estimator).__name__}, which has no merge tree, got "
            f"{level!r}. GaussianMixture, FamilyMixture and TableMixture have one."
        )
    n_components = int(estimator.weights_.shape[0])
    if not is_whole(level) or not 1 <= level <= n_components:
        raise ValueError(
            f"level must be a number of clusters from 1 to {n_components}, the number of "
            f"components, got {level!r}."
        )
    return int(level)


def cluster_colours(centers: np.ndarray) -> list[str]:
    """A colour for each cluster (k, d), the heaviest first; those that share one are far apart."""
    spread = centers.std(axis=0)
    # A picture has no other units.
    centers = centers / np.where(spread > 0.0, spread, 1.0)
    # Squared distance from the next cluster to the nearest one of each colour.
    nearest = np.full((len(CLUSTER_COLOURS), centers.shape[0]), np.inf)
    chosen = []
    for number, center in enumerate(centers):
        # The first unused colour, or else the one whose clusters are farthest.
        best = int(nearest[:, number].argmax())
        chosen.append(CLUSTER_COLOURS[best])
        distances = np.square(centers - center).sum(axis=1)
        np.minimum(nearest[best], distances, out=nearest[best])
    return chosen


# Points and ellipses.


def draw_points(axes: Any, points: np.ndarray, colour: Any = ROWS, **settings: Any) -> None:
    """Scatter points (n, 2), smaller and lighter the more there are."""
    n = max(points.shape[0], 1)
    settings = {
        "s": float(np.clip(4e4 / n, 1.5, 20.0)),
        "c" if isinstance(colour, list | np.ndarray) else "color": colour,
        "alpha": float(np.clip(0.45 * (4000.0 / n) ** 0.3, 0.25, 0.45)),
        "linewidths": 0,
        "rasterized": True,
        **settings,
    }
    axes.scatter(*points.T, **settings)


def limits_of(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least and largest coordinates (d,) to show of points (n, d), without a few far-off ones."""
    if not points.shape[0]:
        return np.zeros(points.shape[1]), np.ones(points.shape[1])
    low, high = np.percentile(points, [0.05, 99.95], axis=0)
    margin = 0.05 * (high - low)
    # All rows may share a value.
    margin = np.where(margin > 0.0, margin, np.maximum(0.05 * np.abs(low), 0.5))
    return low - margin, high + margin


def set_limits(axes: Any, points: np.ndarray) -> None:
    (left, bottom), (right, top) = limits_of(points)
    axes.set(xlim=(left, right), ylim=(bottom, top))


def overlap(centers: np.ndarray, covariances: np.ndarray, n_std: float) -> np.ndarray:
    """How many ellipses (m,) lie over each other at a sample of the centres; 1 if apart."""
    n = centers.shape[0]
    counted = centers[np.linspace(0, n - 1, min(n, _N_COUNTED)).astype(np.int64)]
    # Flat components have no inverse: they are given a little width.
    width = 1e-6 * np.trace(covariances, axis1=1, axis2=2).mean() + 1e-300
    precisions = np.linalg.inv(covariances + width * np.eye(2))
    away = counted[:, None] - centers
    distances = np.einsum("mni,nij,mnj->mn", away, precisions, away, optimize=True)
    return np.asarray(np.count_nonzero(distances <= n_std**2, axis=1))


def draw_ellipses(
    axes: Any,
    centers: np.ndarray,
    covariances: np.ndarray,
    weights: np.ndarray,
    n_std: float,
    colours: Any = BLUE,
    fill: float = 1.0,
    **settings: Any,
) -> None:
    """Draw ellipses `n_std` standard deviations around the centres, shaded by weight.

    `colours` is one for all, or one for each; `fill` multiplies the opacity inside.
    """
    n = centers.shape[0]
    values, vectors = np.linalg.eigh(covariances)
    # Rounding may leave a flat component a variance just below zero.
    lengths = 2.0 * n_std * np.sqrt(np.maximum(values, 0.0))
    angles = np.degrees(np.arctan2(vectors[:, 1, 1], vectors[:, 0, 1]))
    faces = np.resize(matplotlib_part("colors").to_rgba_array(colours), (n, 4))
    # The heaviest one is the darkest.
    edges, shade = faces.copy(), np.sqrt(weights / max(float(weights.max()), 1e-300))
    # Where ellipses lie over each other each is fainter, so that what is below stays visible.
    crowd = np.percentile(overlap(centers, covariances, n_std), 90)
    opacity = min(1.0 - _LIGHT ** (1.0 / crowd), _MOST_OPAQUE)
    faces[:, 3] = fill * opacity * shade
    edges[:, 3] = np.clip(4.0 * opacity, 0.12, 1.0) * (0.2 + 0.75 * shade)
    settings = {
        "units": "xy",
        "offset_transform": axes.transData,
        "linewidths": float(np.clip(20.0 / np.sqrt(max(n, 1)), 0.4, 1.6)),
        "facecolors": faces,
        "edgecolors": edges,
        **settings,
    }
    make = matplotlib_part("collections").EllipseCollection
    axes.add_collection(make(lengths[:, 1], lengths[:, 0], angles, offsets=centers, **settings))


def write_numbers(
    axes: Any, numbers: Any, centers: np.ndarray, colours: Sequence[str], size: float = 9.0
) -> None:
    """Write numbers of clusters at their centres: colours alone are not enough for everybody.

    One that would lie over another, of a heavier cluster, is left out.
    """
    box, pixels = axes.get_window_extent(), axes.transData.transform(centers)
    room = size * axes.figure.dpi / 72.0 * np.array([2.6, 2.0])
    frame = {"boxstyle": "round,pad=0.2", "facecolor": "white", "linewidth": 1.5, "alpha": 0.85}
    style = {"ha": "center", "va": "center", "fontsize": size, "fontweight": "bold", "color": INK}
    written: list[np.ndarray] = []
    for number, center, pixel, colour in zip(numbers, centers, pixels, colours, strict=True):
        covered = any((np.abs(pixel - other) < room).all() for other in written)
        if box.contains(*pixel) and not covered:
            written.append(pixel)
            axes.annotate(str(number), center, bbox={**frame, "edgecolor": colour}, **style)
