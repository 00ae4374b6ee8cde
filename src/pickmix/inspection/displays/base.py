"""What all displays share: matplotlib when it is needed, axes, titles and colours of clusters."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from pickmix.inspection.displays.colours import (
    BLACK,
    BLUE,
    GREEN,
    GRID,
    INDIGO,
    INK,
    OLIVE,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    WINE,
)

#: Of rows, behind everything else.
ROWS = "#8c8c8c"
#: Of clusters. Grey is left to the rows.
CLUSTER_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, WINE, OLIVE, INDIGO, BLACK)
#: Of titles and tick labels.
TITLE_SIZE, TICK_SIZE = 11, 9


def matplotlib_part(name: str = "pyplot") -> Any:
    """A module of matplotlib, or an error that names the extra."""
    try:
        import matplotlib as matplotlib

        return importlib.import_module(f"matplotlib.{name}")
    except ImportError as error:
        raise ImportError("Plots need matplotlib: pip install pickmix[plot]") from error


class Display:
    """A picture that keeps its figure, and its axes as `ax_` or `axes_`."""

    figure_: Any
    ax_: Any
    axes_: Any

    def _single(self, ax: Any, figsize: tuple[float, float] = (7.0, 5.5)) -> Any:
        """The axes to draw in: those given, or new ones of pyplot."""
        if ax is None:
            ax = matplotlib_part().subplots(figsize=figsize, layout="constrained")[1]
        else:
            matplotlib_part("figure")
        self.ax_, self.figure_ = ax, ax.figure
        return ax

    def _grid(
        self,
        axes: Any,
        n_panels: int,
        n_across: int,
        panel: tuple[float, float] = (3.0, 2.4),
        **settings: Any,
    ) -> np.ndarray:
        """Axes (n,) for some panels: those given, or a new grid of pyplot, `n_across` wide."""
        if axes is not None:
            matplotlib_part("figure")
            self.axes_ = np.asarray(axes, dtype=object).ravel()
            if self.axes_.shape[0] < n_panels:
                raise ValueError(
                    f"axes must hold at least {n_panels} axes, one for each panel, got "
                    f"{self.axes_.shape[0]}."
                )
            self.axes_ = self.axes_[:n_panels]
        else:
            n_across = min(n_across, n_panels)
            n_down = -(-n_panels // n_across)
            _, grid = matplotlib_part().subplots(
                n_down,
                n_across,
                figsize=(panel[0] * n_across, panel[1] * n_down + 0.5),
                layout="constrained",
                squeeze=False,
                **settings,
            )
            for unused in grid.ravel()[n_panels:]:
                unused.set_visible(False)
            self.axes_ = np.asarray(grid.ravel()[:n_panels])
            # Shared axes have labels in the last row only, which may not be full.
            for lowest in self.axes_[max(n_panels - n_across, 0) :]:
                lowest.xaxis.set_tick_params(labelbottom=True)
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
    """Write a title on the left and names of both axes, and take away what is not needed."""
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


def shorten(text: str, most: int = 22) -> str:
    """A text that is no longer than so many characters: names often differ in how they end.

    >>> shorten("flipper length in millimetres", 12)
    'flipper …res'
    """
    if len(text) <= most:
        return text
    end = (most - 1) // 3
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


def describe(estimator: Any) -> str:
    """What a mixture is, in a few words.

    >>> from pickmix import GaussianMixture
    >>> describe(GaussianMixture(2, random_state=0).fit([[0.0], [1.0], [5.0], [6.0]]))
    '2 full components, by mhsaem'
    """
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


def check_level(estimator: Any, level: Any) -> int:
    """The number of clusters that are left, checked."""
    if not hasattr(estimator, "merge_tree"):
        raise ValueError(
            f"level must be None for {type(estimator).__name__}, which has no merge tree, got "
            f"{level!r}. GaussianMixture, FamilyMixture and TableMixture have one."
        )
    n_components = int(estimator.weights_.shape[0])
    whole = isinstance(level, int | np.integer) and not isinstance(level, bool)
    if not whole or not 1 <= level <= n_components:
        raise ValueError(
            f"level must be a number of clusters from 1 to {n_components}, the number of "
            f"components, got {level!r}."
        )
    return int(level)


def cluster_colours(centers: np.ndarray) -> list[str]:
    """A colour for each cluster (k, d), the heaviest first; those that share one are far apart.

    >>> len(set(cluster_colours(np.arange(10.0)[:, None])))
    10
    >>> colours = cluster_colours(np.arange(100.0)[:, None])
    >>> any(first == second for first, second in zip(colours, colours[1:]))
    False
    """
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
