"""What all displays share: matplotlib when it is needed, axes, titles and colours of clusters."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from pickmix.displays.colours import (
    BLACK,
    BLUE,
    GREEN,
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
CLUSTER_COLOURS = (
    BLUE,
    VERMILION,
    GREEN,
    PURPLE,
    ORANGE,
    SKY,
    WINE,
    OLIVE,
    INDIGO,
    BLACK,
)
#: Of titles and tick labels.
TITLE_SIZE, TICK_SIZE = 11, 9


def matplotlib_part(name: str = "pyplot") -> Any:
    """A module of matplotlib, or an error that names the extra."""
    try:
        import matplotlib as matplotlib

        return importlib.import_module(f"matplotlib.{name}")
    except ImportError as error:
        raise ImportError("Plots need matplotlib: pip install pickmix[plot]") from error


def single_axes(ax: Any, figsize: tuple[float, float] = (7.0, 5.5)) -> Any:
    """The axes to draw in: those given, or new ones of pyplot."""
    if ax is not None:
        matplotlib_part("figure")
        return ax
    return matplotlib_part().subplots(figsize=figsize, layout="constrained")[1]


def grid_of_axes(
    axes: Any,
    n_panels: int,
    n_across: int,
    panel: tuple[float, float] = (3.0, 2.4),
    **settings: Any,
) -> np.ndarray:
    """Axes (n,) for some panels: those given, or a new grid of pyplot that is as large as needed.

    `n_across` panels stand side by side.
    """
    if axes is not None:
        matplotlib_part("figure")
        found = np.asarray(axes, dtype=object).ravel()
        if found.shape[0] < n_panels:
            raise ValueError(
                f"axes must hold at least {n_panels} axes, one for each panel, got "
                f"{found.shape[0]}."
            )
        return found[:n_panels]
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
    found = np.asarray(grid.ravel()[:n_panels])
    # Shared axes have labels in the last row only, which may not be full.
    for lowest in found[max(n_panels - n_across, 0) :]:
        lowest.xaxis.set_tick_params(labelbottom=True)
    return found


def tidy(axes: Any) -> None:
    """Take away what is not needed, and make ticks quiet."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=TICK_SIZE)


def set_title(axes: Any, text: str, size: float = TITLE_SIZE) -> None:
    """A title on the left, where lines of several lengths begin at one place."""
    axes.set_title(text, loc="left", fontsize=size)


def shorten(text: str, most: int = 22) -> str:
    """A text that is no longer than so many characters: names often differ in how they end.

    >>> shorten("flipper length in millimetres", 12)
    'flipper …res'
    """
    if len(text) <= most:
        return text
    end = (most - 1) // 3
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


def describe(model: Any) -> str:
    """What a model is, in a few words.

    Examples
    --------
    >>> from pickmix import GaussianMixture
    >>> describe(GaussianMixture(2, random_state=0).fit([[0.0], [1.0], [5.0], [6.0]]))
    '2 full components, by mhsaem'
    """
    if hasattr(model, "n_children"):
        children: Sequence[int] = model.n_children_
        # One number if all layers have the same, else all.
        shown = "/".join(map(str, children if len(set(children)) > 1 else children[:1]))
        return (
            f"network of {model.n_layers} layers, {shown} children, {model.n_partitions} parts, "
            f"by {model.algorithm}"
        )
    n_components = model.weights_.shape[0]
    thing = "component"
    if hasattr(model, "covariance_type"):
        thing = f"{model.covariance_type} component"
    elif hasattr(model, "hidden"):
        thing = "flow"
    plural = "" if n_components == 1 else "s"
    return f"{n_components:,} {thing}{plural}, by {model.algorithm}"


def check_level(model: Any, level: Any) -> int:
    """The number of clusters that are left, checked."""
    if not hasattr(model, "merge_tree"):
        raise ValueError(
            f"level must be None for {type(model).__name__}, which has no merge tree, got "
            f"{level!r}. GaussianMixture, FamilyMixture and TableMixture have one."
        )
    n_components = int(model.weights_.shape[0])
    whole = isinstance(level, int | np.integer) and not isinstance(level, bool)
    if not whole or not 1 <= level <= n_components:
        raise ValueError(
            f"level must be a number of clusters from 1 to {n_components}, the number of "
            f"components, got {level!r}."
        )
    return int(level)


def cluster_colours(centers: np.ndarray) -> list[str]:
    """A colour for each cluster; those that share one are far from each other.

    Parameters
    ----------
    centers : (k, d) array
        The heaviest first.

    Examples
    --------
    >>> len(set(cluster_colours(np.arange(10.0)[:, None])))
    10
    >>> colours = cluster_colours(np.arange(100.0)[:, None])
    >>> any(first == second for first, second in zip(colours, colours[1:]))
    False
    """
    n_colours = len(CLUSTER_COLOURS)
    # Squared distance from the next cluster to the nearest one of each colour.
    nearest = np.full((n_colours, centers.shape[0]), np.inf)
    chosen = []
    for number, center in enumerate(centers):
        # The first colour that nobody has, or else the one whose clusters are farthest.
        best = int(nearest[:, number].argmax())
        chosen.append(CLUSTER_COLOURS[best])
        distances = np.square(centers - center).sum(axis=1)
        np.minimum(nearest[best], distances, out=nearest[best])
    return chosen
