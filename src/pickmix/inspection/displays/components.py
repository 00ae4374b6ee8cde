"""The components of a mixture in a plane: ellipses, contours, or drawn rows."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Self

import numpy as np

from pickmix.inspection.columns import Marginal, marginals, read_columns
from pickmix.inspection.displays import base
from pickmix.inspection.displays.base import ROWS, Display, describe, finish
from pickmix.inspection.displays.colours import BLUE
from pickmix.inspection.displays.columns import draw_marginal
from pickmix.inspection.plane import Plane, choose_plane, component_moments, coordinates
from pickmix.inspection.view import View, sample_rows

# Rows and ellipses that are drawn.
_MOST_POINTS, _MOST_ELLIPSES = 20_000, 5_000
# Ellipses of two standard deviations are drawn if they are few, or if no more than so many lie over
# each other.
_FEW, _MOST_OVER_EACH_OTHER = 20, 4.0
# Components of a single column that have a curve each, and clusters that have a number.
_MOST_CURVES, _MOST_NUMBERS = 30, 30
_DEVIATIONS = {1: "one standard deviation", 2: "two standard deviations"}
# Percentages of the rows that lie where the density is higher than on a contour.
_CONTOURS = (99, 90, 70, 50, 30, 10)
# Components on points of a grid, and points along its side.
_GRID_EVALUATIONS = 5_000_000
_COARSEST_GRID, _FINEST_GRID = 60, 250


@dataclass
class Ellipses:
    """Components as means and covariances in a plane, the heaviest first."""

    components: np.ndarray  # (n,), their numbers in the model
    centers: np.ndarray  # (n, 2)
    covariances: np.ndarray  # (n, 2, 2)
    weights: np.ndarray  # (n,)
    clusters: np.ndarray | None = None  # (n,), numbered by falling weight

    @property
    def n_std(self) -> int:
        """Standard deviations to draw: two, or one where ellipses would hide each other."""
        crowded = self.centers.shape[0] > _FEW and (
            base.overlap(self.centers, self.covariances, 2.0).mean() > _MOST_OVER_EACH_OTHER
        )
        return 1 if crowded else 2

    def draw(self, axes: Any, n_std: float | None, **settings: Any) -> None:
        n_std = self.n_std if n_std is None else n_std
        shapes = self.centers, self.covariances, self.weights, n_std
        if self.clusters is None:
            base.draw_ellipses(axes, *shapes, BLUE, **settings)
            return
        numbers, which = np.unique(self.clusters, return_inverse=True)
        sums = [np.bincount(which, self.weights * c) for c in self.centers.T]
        centers = (sums / np.bincount(which, self.weights)).T
        colours = base.cluster_colours(centers)
        base.draw_ellipses(axes, *shapes, [colours[cluster] for cluster in which], **settings)
        if numbers.shape[0] <= _MOST_NUMBERS:
            base.write_numbers(axes, numbers, centers, colours)


@dataclass
class Contours:
    """A density on a grid: values (m, m) at coordinates x (m,) and y (m,), and levels."""

    x: np.ndarray
    y: np.ndarray
    values: np.ndarray
    levels: np.ndarray

    def draw(self, axes: Any) -> None:
        if self.levels.size:
            style = {"colors": BLUE, "linestyles": "solid", "linewidths": 1.2}
            axes.contour(self.x, self.y, self.values, levels=self.levels, **style)


@dataclass
class Curve:
    """A density of one column: its values (m,) at a grid (m,), and those of components (m, K)."""

    grid: np.ndarray
    density: np.ndarray
    parts: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))

    def draw(self, axes: Any, values: np.ndarray) -> None:
        bins = int(np.clip(2.0 * values.shape[0] ** 0.5, 10, 100))
        axes.hist(values, bins=bins, density=True, color=ROWS, alpha=0.5, label="rows")
        for part in self.parts.T:
            axes.plot(self.grid, part, color=BLUE, linewidth=0.8, alpha=0.6)
        axes.plot(self.grid, self.density, color=BLUE, linewidth=2.0, label="mixture")
        axes.legend(frameon=False)


@dataclass(eq=False, repr=False)
class ComponentsDisplay(Display):
    """Components of a mixture over its rows.

    Use `from_estimator` to make one. What is drawn depends on the model and its columns:

    - mixtures in closed form have an *ellipse* for each component, darker the more it weighs: two
      standard deviations around the mean (86 % of a Gaussian component), or one (39 %) where these
      would hide each other; of more than 5,000 components the heaviest;
    - other mixtures of two columns have *contours* of their density, which hold shares of the rows;
    - other mixtures of more columns have *rows drawn* from the model;
    - a single column has a *histogram*, and the density.

    Parameters
    ----------
    points : (n, 2) array
        Rows in the plane; of a single column (n, 1).
    names : pair of str
        Names of the axes.
    title : str
    ellipses : Ellipses, default=None
    contours : Contours, default=None
    drawn : (n, 2) array, default=None
    curve : Curve, default=None
    bars : Marginal, default=None
        Shares of a single column of counts or levels.

    Attributes
    ----------
    ax_ : matplotlib Axes
    axes_ : list of matplotlib Axes
        Both of them if drawn rows stand beside the rows.
    figure_ : matplotlib Figure

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> import numpy as np
    >>> from pickmix import ComponentsDisplay, GaussianMixture
    >>> X = np.random.default_rng(0).normal(size=(500, 2))
    >>> display = ComponentsDisplay.from_estimator(GaussianMixture(3, random_state=0).fit(X), X)
    >>> display.ax_.get_title(loc="left")
    '3 full components, by mhsaem; two standard deviations'
    >>> plt.close(display.figure_)
    """

    points: np.ndarray
    names: tuple[str, ...]
    title: str
    _: KW_ONLY
    ellipses: Ellipses | None = None
    contours: Contours | None = None
    drawn: np.ndarray | None = None
    curve: Curve | None = None
    bars: Marginal | None = None

    @classmethod
    def from_estimator(
        cls,
        model: Any,
        X: Any,
        *,
        columns: Any = None,
        level: int | None = None,
        ax: Any = None,
        **settings: Any,
    ) -> Self:
        """Draw the components of a fitted mixture.

        Parameters
        ----------
        model : fitted estimator of pickmix
        X : table of shape (N, D)
            As the model takes it. Up to 20,000 rows are drawn.
        columns : pair of names or numbers, default=None
            Two columns to look at. None are both columns of two, else the first two principal axes
            of the standardised columns.
        level : int, default=None
            Colour components by the clusters of the merge tree when so many are left. For mixtures
            in closed form.
        ax : matplotlib Axes, or a pair of them, default=None
            None makes a figure. Drawn rows stand beside the rows if there are two axes.
        **settings
            As in `plot`.
        """
        return cls.compute(model, X, columns=columns, level=level).plot(ax, **settings)

    @classmethod
    def compute(cls, model: Any, X: Any, *, columns: Any = None, level: int | None = None) -> Self:
        """Compute what `plot` draws, and draw nothing yet; parameters as in `from_estimator`."""
        view = View(model)
        if level is not None:
            level = base.check_level(model, level)
        if len(view.columns) == 1 and columns is None:
            if level is not None:
                raise ValueError("level must be None for a single column, which has no ellipses.")
            return cls._one_column(view, X)
        base.refuse_path(X)
        X = view.read(X, _MOST_POINTS)
        rows = coordinates(view, X)
        plane = choose_plane(view, X, columns)
        points = plane.project(rows)
        points = points[~np.isnan(points).any(axis=1)]
        if view.is_closed_form:
            return cls._with_ellipses(view, plane, points, level)
        if rows.shape[1] == 2:
            contours = _find_contours(view, points, plane)
            shares = f"{', '.join(map(str, _CONTOURS[:-1]))} and {_CONTOURS[-1]} %"
            title = f"{describe(model)};\ncontours hold {shares} of the rows"
            return cls(points, plane.names, title, contours=contours)
        if not view.can_draw:
            return cls(points, plane.names, f"Data for {describe(model)}")
        drawn = plane.project(view.draw(max(points.shape[0], 1)))
        return cls(points, plane.names, describe(model), drawn=drawn)

    @classmethod
    def _with_ellipses(cls, view: View, plane: Plane, points: np.ndarray, level: Any) -> Self:
        heaviest = np.argsort(-view.weights, kind="stable")[:_MOST_ELLIPSES]
        ellipses = Ellipses(
            heaviest,
            *component_moments(view, plane, heaviest),
            np.asarray(view.model.weights)[heaviest],
        )
        title = f"{describe(view.estimator)}; {_DEVIATIONS[ellipses.n_std]}"
        if heaviest.shape[0] < view.n_components:
            share = 100.0 * view.weights[heaviest].sum()
            title += f"\nthe {heaviest.shape[0]:,} heaviest, {share:.0f} % of the weight"
        if level is not None:
            ellipses.clusters = view.estimator.merge_tree().labels(level)[heaviest]
            title += f"\n{level:,} cluster{'s' if level > 1 else ''} of the merge tree"
        return cls(points, plane.names, title, ellipses=ellipses)

    @classmethod
    def _one_column(cls, view: View, X: Any) -> Self:
        (column,) = read_columns(view, X, most=_MOST_POINTS)
        seen, name, title = column.seen, column.terms.name, describe(view.estimator)
        if column.distribution.kind != "number":
            (bars,) = marginals(view, X)
            return cls(seen[:, None], (name, "share"), title, bars=bars)
        grid = np.linspace(seen.min(), seen.max(), 1000) if seen.size else np.linspace(0, 1, 1000)
        parts = column.distribution.densities(grid)
        if parts is None:
            curve = Curve(grid, np.exp(view.log_densities(grid[:, None])))
        else:
            few = 1 < parts.shape[1] <= _MOST_CURVES
            curve = Curve(grid, parts.sum(axis=1), parts if few else parts[:, :0])
        return cls(seen[:, None], (name, "density"), title, curve=curve)

    def plot(
        self,
        ax: Any = None,
        *,
        n_std: float | None = None,
        rows_kwargs: dict[str, Any] | None = None,
        ellipse_kwargs: dict[str, Any] | None = None,
    ) -> Self:
        """Draw, and return the display.

        Parameters
        ----------
        ax : matplotlib Axes, or a pair of them, default=None
            None makes a figure.
        n_std : float, default=None
            Standard deviations from an ellipse's centre to its edge. None is two, or one where
            ellipses would hide each other.
        rows_kwargs : dict, default=None
            For the scatter of the rows.
        ellipse_kwargs : dict, default=None
            For the `EllipseCollection`.
        """
        main, beside = (ax, None) if np.ndim(ax) == 0 else ax
        main = self._single(main)
        self.axes_ = [main] if beside is None else [main, beside]
        title, rows_kwargs = self.title, rows_kwargs or {}
        if self.bars is not None:
            draw_marginal(main, self.bars)
            main.legend(frameon=False)
        elif self.curve is not None:
            self.curve.draw(main, self.points[:, 0])
        else:
            base.draw_points(main, self.points, **rows_kwargs)
            base.set_limits(main, self.points)
        if self.ellipses is not None:
            self.ellipses.draw(main, n_std, **(ellipse_kwargs or {}))
        elif self.contours is not None:
            self.contours.draw(main)
        elif self.drawn is not None:
            base.draw_points(main if beside is None else beside, self.drawn, BLUE, **rows_kwargs)
            title = f"{self.title}\ngrey: rows; blue: drawn from the model"
            if beside is not None:
                beside.set(xlim=main.get_xlim(), ylim=main.get_ylim())
                finish(beside, f"Drawn from the model:\n{self.title}", *self.names)
                title = "Data"
        finish(main, title, *(() if self.bars is not None else self.names))
        return self


def _find_contours(view: View, points: np.ndarray, plane: Plane) -> Contours:
    """Where the density of two columns is as high as at shares of the rows."""
    n_side = np.sqrt(_GRID_EVALUATIONS / getattr(view.estimator, "n_paths_", view.n_components))
    n_side = int(np.clip(n_side, _COARSEST_GRID, _FINEST_GRID))
    low, high = base.limits_of(points)
    x, y = np.linspace(low, high, n_side).T
    grid = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    # The plane may show the second column first.
    order = np.argsort(plane.columns)
    values = view.log_densities(grid[:, order]).reshape(n_side, n_side)
    few = points[sample_rows(points.shape[0], 2000)][:, order]
    levels = np.unique(np.percentile(view.log_densities(few), [100 - p for p in _CONTOURS]))
    # Data on a line have densities that no point of the grid reaches.
    return Contours(x, y, values, levels[(levels > values.min()) & (levels < values.max())])
