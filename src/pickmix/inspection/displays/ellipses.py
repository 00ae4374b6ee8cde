"""Rows as points, and components as ellipses that are darker the more they weigh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pickmix.inspection.displays.base import ROWS, matplotlib_part
from pickmix.inspection.displays.colours import BLUE, INK

# Ellipses of two standard deviations are drawn if they are few, or if no more than so many lie over
# each other.
_MOST_OVER_EACH_OTHER = 4.0
_FEW = 20
# What a crowd of ellipses lets through, and how opaque a single one is.
_LIGHT, _MOST_OPAQUE = 0.15, 0.35
# Centres at which ellipses are counted.
_N_COUNTED = 300


def draw_points(axes: Any, points: np.ndarray, colour: Any = ROWS, **settings: Any) -> Any:
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
    return axes.scatter(*points.T, **settings)


def limits_of(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least and largest coordinates (2,) to show of points (n, 2).

    A few far-off rows or ellipses must not shrink the rest to a dot.
    """
    if not points.shape[0]:
        return np.zeros(2), np.ones(2)
    low, high = np.percentile(points, [0.05, 99.95], axis=0)
    margin = 0.05 * (high - low)
    # All rows may share a value.
    margin = np.where(margin > 0.0, margin, np.maximum(0.05 * np.abs(low), 0.5))
    return low - margin, high + margin


def set_limits(axes: Any, points: np.ndarray) -> None:
    """Show where the points are."""
    low, high = limits_of(points)
    axes.set_xlim(low[0], high[0])
    axes.set_ylim(low[1], high[1])


def ellipse_axes(covariances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard deviations (n, 2) along the long and the short axis, and angles (n,) in degrees."""
    values, vectors = np.linalg.eigh(covariances)
    # Rounding may leave a flat component a variance just below zero.
    deviations = np.sqrt(np.maximum(values, 0.0))[:, ::-1]
    return deviations, np.degrees(np.arctan2(vectors[:, 1, 1], vectors[:, 0, 1]))


def shades(weights: np.ndarray) -> np.ndarray:
    """How dark (n,) components are drawn, 0 to 1: the heaviest 1, and rising with the weight.

    >>> shades(np.array([0.01, 0.04, 0.16]))
    array([0.25, 0.5 , 1.  ])
    """
    return np.asarray(np.sqrt(weights / max(float(weights.max()), 1e-300)))


def overlap(centers: np.ndarray, covariances: np.ndarray, n_std: float) -> np.ndarray:
    """How many ellipses (m,) lie over each other at some of the centres; 1 where they are apart.

    >>> overlap(np.array([[0.0, 0.0], [9.0, 0.0]]), np.array([np.eye(2)] * 2), 2.0)
    array([1, 1])
    """
    n = centers.shape[0]
    counted = centers[np.linspace(0, n - 1, min(n, _N_COUNTED)).astype(np.int64)]
    # Flat components have no inverse: they are given a little width.
    width = 1e-6 * np.trace(covariances, axis1=1, axis2=2).mean() + 1e-300
    precisions = np.linalg.inv(covariances + width * np.eye(2))
    away = counted[:, None] - centers
    distances = np.einsum("mni,nij,mnj->mn", away, precisions, away, optimize=True)
    return np.asarray(np.count_nonzero(distances <= n_std**2, axis=1))


def choose_n_std(centers: np.ndarray, covariances: np.ndarray) -> int:
    """Two standard deviations, or one where more than a few ellipses would hide each other."""
    if centers.shape[0] <= _FEW:
        return 2
    return 2 if overlap(centers, covariances, 2.0).mean() <= _MOST_OVER_EACH_OTHER else 1


def draw_ellipses(
    axes: Any,
    centers: np.ndarray,
    covariances: np.ndarray,
    weights: np.ndarray,
    n_std: float,
    colours: Any = BLUE,
    fill: float = 1.0,
    **settings: Any,
) -> Any:
    """Ellipses `n_std` standard deviations around the centres, shaded by weight.

    `colours` is one for all, or one for each; `fill` is how much of the usual colour is inside.
    """
    to_rgba_array = matplotlib_part("colors").to_rgba_array
    collection = matplotlib_part("collections").EllipseCollection
    n = centers.shape[0]
    deviations, angles = ellipse_axes(covariances)
    rgba = np.resize(to_rgba_array(colours), (n, 4))
    shade = shades(weights)
    # Where ellipses lie over each other each is fainter, so that all of them leave some light.
    crowd = np.percentile(overlap(centers, covariances, n_std), 90)
    opacity = min(1.0 - _LIGHT ** (1.0 / crowd), _MOST_OPAQUE)
    faces, edges = rgba.copy(), rgba.copy()
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
    drawn = collection(
        2.0 * n_std * deviations[:, 0],
        2.0 * n_std * deviations[:, 1],
        angles,
        offsets=centers,
        **settings,
    )
    axes.add_collection(drawn)
    return drawn


def write_numbers(
    axes: Any,
    numbers: np.ndarray,
    centers: np.ndarray,
    colours: Mapping[int, str],
    size: float = 9.0,
) -> None:
    """Numbers of clusters at their centres: colours alone are not enough for everybody.

    One that would lie over another, of a heavier cluster, is left out.
    """
    box = axes.get_window_extent()
    pixels = axes.transData.transform(centers)
    room = size * axes.figure.dpi / 72.0 * np.array([2.6, 2.0])
    written: list[np.ndarray] = []
    for number, center, pixel in zip(numbers.tolist(), centers, pixels, strict=True):
        covered = any((np.abs(pixel - other) < room).all() for other in written)
        if covered or not box.contains(*pixel):
            continue
        written.append(pixel)
        axes.annotate(
            str(number),
            center,
            ha="center",
            va="center",
            fontsize=size,
            fontweight="bold",
            color=INK,
            bbox={
                "boxstyle": "round,pad=0.2",
                "facecolor": "white",
                "edgecolor": colours[number],
                "linewidth": 1.5,
                "alpha": 0.85,
            },
        )
