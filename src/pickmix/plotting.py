"""Pictures of fits. Needs matplotlib: the extra `plot`."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from pickmix.displays.colours import BLUE, GREEN, GRID, INK, PURPLE, VERMILION

_DATA = "#8c8c8c"
_MOST_POINTS = 20_000
_MOST_ELLIPSES = 5_000
# Percentages of the rows that lie where the density is higher than on a contour.
_CONTOURS = (99, 90, 70, 50, 30, 10)
# Components on points of a grid, and points along its side.
_GRID_EVALUATIONS = 5_000_000
_COARSEST_GRID, _FINEST_GRID = 60, 250


def plot_fit(
    model: Any,
    X: np.ndarray,
    path: str | os.PathLike[str],
    *,
    references: Mapping[str, float] | None = None,
) -> Path:
    """Draw a fitted mixture on its data, and how the fit went.

    Left, up to 20,000 rows; more than two columns are seen along their first two principal axes.
    A Gaussian mixture is drawn as the ellipses that hold 86 % of each component (two standard
    deviations), at most the 5,000 heaviest. Other mixtures are drawn as contours of their
    log-density, or with more than two columns as rows drawn from them, beside the data. One column
    is a histogram with the density. Right, the log-likelihood of training and validation rows and
    the acceptance over the seconds of work.

    Parameters
    ----------
    model : fitted estimator of pickmix
    X : (N, D) array
    path : path
        .png, .pdf or .svg.
    references : mapping of str to float, optional
        Names and values of log-likelihoods per row to compare with, such as the true mixture's.

    Returns
    -------
    path : Path

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from pickmix import GaussianMixture
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plot_fit(GaussianMixture(2, random_state=0).fit(X), X, f"{folder}/fit.png").name
    'fit.png'
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Plots need matplotlib: pip install pickmix[plot]") from error
    check_is_fitted(model)
    X = np.asarray(X, dtype=np.float64)
    path = Path(path)
    n_columns = X.shape[1]
    gaussian = hasattr(model, "covariances_")
    beside = not gaussian and n_columns > 2 and _can_sample(model)
    # A Figure of its own needs no display and leaves pyplot's state alone.
    figure = Figure(figsize=(17.0 if beside else 12.5, 6.0), layout="constrained")
    left, *middle, right = figure.subplots(1, 3 if beside else 2)
    rows = X[_some(X.shape[0], _MOST_POINTS)]
    if n_columns == 1:
        _draw_density(left, model, rows)
    elif gaussian:
        _draw_ellipses(left, model, rows)
    elif n_columns == 2:
        _draw_contours(left, model, rows)
    else:
        _draw_beside(left, middle, model, rows)
    _draw_trace(right, model.trace_, references or {})
    for axes in (left, *middle, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK, labelsize=9)
    figure.savefig(path, dpi=160)
    return path


def _some(n_rows: int, most: int) -> np.ndarray:
    if n_rows <= most:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng(0).choice(n_rows, most, replace=False))


def _draw_density(axes: Any, model: Any, rows: np.ndarray) -> None:
    """One column: a histogram and the mixture's density."""
    axes.hist(rows[:, 0], bins=100, density=True, color=_DATA, alpha=0.5, label="data")
    grid = np.linspace(rows.min(), rows.max(), 1000)
    density = np.exp(_nameless(model).score_samples(grid[:, None]))
    axes.plot(grid, density, color=BLUE, label="mixture")
    axes.set_xlabel(_column_names(model, 1)[0])
    axes.set_ylabel("density")
    axes.legend(frameon=False)
    axes.set_title(_title(model), loc="left", fontsize=11)


def _nameless(model: Any) -> Any:
    """Copy a model without column names: scikit-learn would warn that a grid has none."""
    nameless = copy.copy(model)
    vars(nameless).pop("feature_names_in_", None)
    return nameless


def _can_sample(model: Any) -> bool:
    component = getattr(model, "component", None)
    return component is None or hasattr(component, "sample")


def _plane(model: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Origin (D,) and basis (D, 2) of the plane to look at, and the names of its axes."""
    if rows.shape[1] == 2:
        return np.zeros(2), np.eye(2), _column_names(model, 2)
    origin = rows.mean(axis=0)
    # Right singular vectors, by falling spread.
    basis = np.linalg.svd(rows - origin, full_matrices=False)[2][:2].T
    return origin, basis, ["first principal axis", "second principal axis"]


def _draw_points(axes: Any, points: np.ndarray, names: list[str], colour: str = _DATA) -> None:
    size = float(np.clip(4e4 / points.shape[0], 1.5, 20.0))
    axes.scatter(*points.T, s=size, color=colour, alpha=0.45, linewidths=0, rasterized=True)
    axes.set_xlabel(names[0], color=INK)
    axes.set_ylabel(names[1], color=INK)


def _set_limits(axes: Any, points: np.ndarray) -> None:
    # A few far-off rows or ellipses must not shrink the rest to a dot.
    low, high = np.percentile(points, [0.05, 99.95], axis=0)
    margin = 0.05 * (high - low) + 1e-12
    axes.set_xlim(low[0] - margin[0], high[0] + margin[0])
    axes.set_ylim(low[1] - margin[1], high[1] + margin[1])


def _draw_contours(axes: Any, model: Any, rows: np.ndarray) -> None:
    """Two columns: the data, and where the density is as high as at shares of them."""
    _draw_points(axes, rows, _column_names(model, 2))
    _set_limits(axes, rows)
    nameless = _nameless(model)
    n_side = np.sqrt(_GRID_EVALUATIONS / getattr(model, "n_paths_", model.weights_.shape[0]))
    n_side = int(np.clip(n_side, _COARSEST_GRID, _FINEST_GRID))
    low, high = zip(axes.get_xlim(), axes.get_ylim(), strict=True)
    x, y = np.linspace(low, high, n_side).T
    grid = np.stack(np.meshgrid(x, y), axis=-1)
    values = nameless.score_samples(grid.reshape(-1, 2)).reshape(n_side, n_side)
    some = rows[_some(rows.shape[0], 2000)]
    levels = np.unique(np.percentile(nameless.score_samples(some), [100 - p for p in _CONTOURS]))
    # Data on a line have densities that no point of the grid reaches.
    levels = levels[(levels > values.min()) & (levels < values.max())]
    if levels.size:
        axes.contour(x, y, values, levels=levels, colors=BLUE, linestyles="solid", linewidths=1.2)
    shares = f"{', '.join(map(str, _CONTOURS[:-1]))} and {_CONTOURS[-1]} %"
    axes.set_title(f"{_title(model)};\ncontours hold {shares} of the rows", loc="left", fontsize=11)


def _draw_beside(left: Any, middle: list[Any], model: Any, rows: np.ndarray) -> None:
    """Many columns: the data, and beside them as many rows drawn from the model, if it can."""
    origin, basis, names = _plane(model, rows)
    points = (rows - origin) @ basis
    _draw_points(left, points, names)
    _set_limits(left, points)
    if not middle:
        left.set_title(f"Data for {_title(model)}", loc="left", fontsize=11)
        return
    left.set_title("Data", loc="left", fontsize=11)
    # The same picture at each call, and a user's RandomState is left alone.
    drawn = _nameless(model).set_params(random_state=0).sample(rows.shape[0])[0]
    (beside,) = middle
    _draw_points(beside, (drawn - origin) @ basis, names, BLUE)
    beside.set_xlim(left.get_xlim())
    beside.set_ylim(left.get_ylim())
    beside.set_title(f"Drawn from the model:\n{_title(model)}", loc="left", fontsize=11)


def _draw_ellipses(axes: Any, model: Any, rows: np.ndarray) -> None:
    from matplotlib.collections import EllipseCollection

    origin, basis, names = _plane(model, rows)
    points = (rows - origin) @ basis
    _draw_points(axes, points, names)

    heaviest = np.argsort(-model.weights_, kind="stable")[:_MOST_ELLIPSES]
    centers = (model.means_[heaviest] - origin) @ basis
    values, vectors = np.linalg.eigh(_plane_covariances(model, heaviest, basis))
    # Rounding may leave a flat component a variance just below zero.
    widths = 4.0 * np.sqrt(np.maximum(values, 0.0))
    angles = np.degrees(np.arctan2(vectors[:, 1, 1], vectors[:, 0, 1]))
    n_drawn = heaviest.shape[0]
    axes.add_collection(
        EllipseCollection(
            widths[:, 1],
            widths[:, 0],
            angles,
            units="xy",
            offsets=centers,
            offset_transform=axes.transData,
            facecolors=(*_rgb(BLUE), 0.08 if n_drawn <= 1000 else 0.02),
            edgecolors=(*_rgb(BLUE), 0.85 if n_drawn <= 1000 else 0.4),
            linewidths=float(np.clip(20.0 / np.sqrt(n_drawn), 0.3, 1.6)),
        )
    )
    _set_limits(axes, points)
    axes.set_title(f"{_title(model)}; two standard deviations", loc="left", fontsize=11)


def _rgb(colour: str) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    return to_rgb(colour)


def _title(model: Any) -> str:
    if hasattr(model, "n_children"):
        return (
            f"network of {model.n_layers} layers, {_children(model.n_children_)} children, "
            f"{model.n_partitions} parts, by {model.algorithm}"
        )
    n_components = model.weights_.shape[0]
    thing = "component"
    if hasattr(model, "covariance_type"):
        thing = f"{model.covariance_type} component"
    elif hasattr(model, "hidden"):
        thing = "flow"
    plural = "" if n_components == 1 else "s"
    return f"{n_components:,} {thing}{plural}, by {model.algorithm}"


def _children(numbers: tuple[int, ...]) -> str:
    """One number if all layers have the same, else all."""
    return "/".join(map(str, numbers if len(set(numbers)) > 1 else numbers[:1]))


def _column_names(model: Any, n_columns: int) -> list[str]:
    names = getattr(model, "feature_names_in_", None)
    return [f"column {d}" for d in range(n_columns)] if names is None else list(names)


def _plane_covariances(model: Any, components: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Covariances of some components in the plane of `basis` (D, 2), as (n, 2, 2)."""
    covariances = model.covariances_
    if model.covariance_type == "full":
        return np.asarray(basis.T @ covariances[components] @ basis)
    if model.covariance_type == "tied":
        return np.broadcast_to(basis.T @ covariances @ basis, (components.shape[0], 2, 2))
    variances = covariances[components].reshape(components.shape[0], -1)
    variances = np.broadcast_to(variances, (components.shape[0], basis.shape[0]))
    return np.asarray((basis.T * variances[:, None, :]) @ basis)


def _draw_trace(axes: Any, trace: np.ndarray, references: Mapping[str, float]) -> None:
    axes.set_title("Log-likelihood per row over the work", loc="left", fontsize=11)
    axes.set_xlabel("seconds of work", color=INK)
    axes.set_ylabel("log-likelihood per row", color=BLUE)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    style = {"marker": "o", "markersize": 3.5 if len(trace) <= 60 else 0.0}
    style["linewidth"] = 2.0
    seconds = trace["seconds"]
    axes.plot(seconds, trace["log_likelihood"], color=BLUE, label="training rows", **style)
    if np.isfinite(trace["validation"]).any():
        axes.plot(seconds, trace["validation"], color=PURPLE, label="validation rows", **style)
        axes.legend(frameon=False, loc="center right")
    # Kernels compiled on the way would push the curve into the far corner.
    if len(trace) and seconds[0] < 0.5 * seconds[-1]:
        axes.set_xlim(left=0.0)
    for name, value in references.items():
        axes.axhline(value, color=GREEN, linewidth=1.5, linestyle=":")
        axes.annotate(
            f"{name}: {value:.3f}",
            xy=(0.02, value),
            xycoords=("axes fraction", "data"),
            xytext=(0, 4),
            textcoords="offset points",
            color=GREEN,
            fontsize=9,
        )
    axes.margins(y=0.12)
    if np.isfinite(trace["acceptance"]).any():
        second = axes.twinx()
        second.plot(
            trace["seconds"], trace["acceptance"], color=VERMILION, linestyle="--", linewidth=1.5
        )
        second.set_ylim(0.0, 1.0)
        second.set_ylabel("acceptance", color=VERMILION)
        second.spines["top"].set_visible(False)
        second.tick_params(labelsize=9)
