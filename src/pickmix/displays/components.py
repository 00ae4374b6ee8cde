"""The components of a mixture in a plane: ellipses, contours, or drawn rows."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from pickmix.diagnostics.columns import (
    can_draw,
    column_names,
    draw_values,
    is_closed_form,
    nameless,
    read_columns,
    thin,
)
from pickmix.diagnostics.laws import NormalLaw
from pickmix.diagnostics.marginals import Marginal, marginals
from pickmix.diagnostics.plane import (
    Plane,
    choose_plane,
    component_means,
    coordinates,
    plane_covariances,
)
from pickmix.displays.base import (
    ROWS,
    check_level,
    cluster_colours,
    describe,
    set_title,
    single_axes,
    tidy,
)
from pickmix.displays.colours import BLUE
from pickmix.displays.ellipses import (
    draw_ellipses,
    draw_points,
    label_axes,
    set_limits,
    write_numbers,
)
from pickmix.displays.panels import draw_marginal
from pickmix.displays.shapes import (
    CONTOURS,
    Contours,
    Curve,
    Ellipses,
    cluster_centers,
    find_contours,
)

# Rows and ellipses that are drawn.
_MOST_POINTS, _MOST_ELLIPSES = 20_000, 5_000
# Components of a single column that have a curve each.
_MOST_CURVES = 30
_DEVIATIONS = {1: "one standard deviation", 2: "two standard deviations"}
# Clusters that have their number written at their centre.
_MOST_NUMBERS = 30


class ComponentsDisplay:
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

    def __init__(
        self,
        points: np.ndarray,
        names: tuple[str, ...],
        title: str,
        *,
        ellipses: Ellipses | None = None,
        contours: Contours | None = None,
        drawn: np.ndarray | None = None,
        curve: Curve | None = None,
        bars: Marginal | None = None,
    ) -> None:
        self.points = points
        self.names = names
        self.title = title
        self.ellipses = ellipses
        self.contours = contours
        self.drawn = drawn
        self.curve = curve
        self.bars = bars

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

        Returns
        -------
        display : ComponentsDisplay
        """
        return cls.compute(model, X, columns=columns, level=level).plot(ax, **settings)

    @classmethod
    def compute(cls, model: Any, X: Any, *, columns: Any = None, level: int | None = None) -> Self:
        """Compute what `plot` draws, and draw nothing yet; parameters as in `from_estimator`."""
        check_is_fitted(model)
        if level is not None:
            level = check_level(model, level)
        if len(column_names(model)) == 1 and columns is None:
            if level is not None:
                raise ValueError("level must be None for a single column, which has no ellipses.")
            return cls._one_column(model, X)
        X = thin(X, _MOST_POINTS)
        rows = coordinates(model, X)
        plane = choose_plane(model, X, columns)
        points = plane.project(rows)
        points = points[~np.isnan(points).any(axis=1)]
        if is_closed_form(model):
            return cls._with_ellipses(model, plane, points, level)
        if rows.shape[1] == 2:
            contours = find_contours(model, points, plane)
            shares = f"{', '.join(map(str, CONTOURS[:-1]))} and {CONTOURS[-1]} %"
            title = f"{describe(model)};\ncontours hold {shares} of the rows"
            return cls(points, plane.names, title, contours=contours)
        if not can_draw(model):
            return cls(points, plane.names, f"Data for {describe(model)}")
        drawn = plane.project(draw_values(model, max(points.shape[0], 1)))
        return cls(points, plane.names, describe(model), drawn=drawn)

    @classmethod
    def _with_ellipses(cls, model: Any, plane: Plane, points: np.ndarray, level: Any) -> Self:
        weights = np.asarray(model.weights_)
        heaviest = np.argsort(-weights, kind="stable")[:_MOST_ELLIPSES]
        ellipses = Ellipses(
            heaviest,
            plane.project(component_means(model, heaviest)),
            plane_covariances(model, heaviest, plane),
            weights[heaviest],
        )
        n, n_drawn = weights.shape[0], heaviest.shape[0]
        title = f"{describe(model)}; {_DEVIATIONS[ellipses.n_std]}"
        if n_drawn < n:
            share = 100.0 * ellipses.weights.sum() / weights.sum()
            title += f"\nthe {n_drawn:,} heaviest, {share:.0f} % of the weight"
        if level is not None:
            ellipses.clusters = model.merge_tree().labels(level)[heaviest]
            title += f"\n{level:,} cluster{'s' if level > 1 else ''} of the merge tree"
        return cls(points, plane.names, title, ellipses=ellipses)

    @classmethod
    def _one_column(cls, model: Any, X: Any) -> Self:
        (column,) = read_columns(model, X, most=_MOST_POINTS)
        seen = column.values[~np.isnan(column.values)]
        names = (column.name, "density")
        title = describe(model)
        if column.kind != "number":
            (bars,) = marginals(model, X)
            return cls(seen[:, None], (column.name, "share"), title, bars=bars)
        grid = np.linspace(seen.min(), seen.max(), 1000) if seen.size else np.linspace(0, 1, 1000)
        if isinstance(column.law, NormalLaw):
            parts = column.law.densities(grid)
            curve = Curve(grid, parts.sum(axis=1))
            if parts.shape[1] <= _MOST_CURVES:
                curve.parts = parts
        else:
            curve = Curve(grid, np.exp(nameless(model).score_samples(grid[:, None])))
        return cls(seen[:, None], names, title, curve=curve)

    def plot(
        self,
        ax: Any = None,
        *,
        n_std: float | None = None,
        rows_kwargs: dict[str, Any] | None = None,
        ellipse_kwargs: dict[str, Any] | None = None,
    ) -> Self:
        """Draw.

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

        Returns
        -------
        self
        """
        if np.ndim(ax) == 0:
            beside = None
            main = single_axes(ax)
        else:
            main, beside = ax
        self.ax_, self.axes_ = main, [main] if beside is None else [main, beside]
        self.figure_ = main.figure
        rows_kwargs = rows_kwargs or {}
        if self.bars is not None:
            draw_marginal(main, self.bars)
            main.legend(frameon=False)
        elif self.curve is not None:
            self._draw_curve(main)
        else:
            draw_points(main, self.points, **rows_kwargs)
            label_axes(main, self.names)
            set_limits(main, self.points)
        title = self.title
        if self.ellipses is not None:
            self._draw_ellipses(main, n_std, ellipse_kwargs or {})
        elif self.contours is not None:
            self._draw_contours(main)
        elif self.drawn is not None:
            title = self._draw_drawn(main, beside, rows_kwargs)
        set_title(main, title)
        for axes in self.axes_:
            tidy(axes)
        return self

    def _draw_curve(self, axes: Any) -> None:
        assert self.curve is not None
        bins = int(np.clip(2.0 * self.points.shape[0] ** 0.5, 10, 100))
        axes.hist(self.points[:, 0], bins=bins, density=True, color=ROWS, alpha=0.5, label="rows")
        for part in self.curve.parts.T if self.curve.parts.shape[1] > 1 else ():
            axes.plot(self.curve.grid, part, color=BLUE, linewidth=0.8, alpha=0.6)
        axes.plot(self.curve.grid, self.curve.density, color=BLUE, linewidth=2.0, label="mixture")
        label_axes(axes, self.names)
        axes.legend(frameon=False)

    def _draw_ellipses(self, axes: Any, n_std: float | None, settings: dict[str, Any]) -> None:
        own = self.ellipses
        assert own is not None
        if n_std is None:
            n_std = own.n_std
        colours: Any = BLUE
        if own.clusters is not None:
            numbers, centers = cluster_centers(own)
            palette = dict(zip(numbers.tolist(), cluster_colours(_scaled(centers)), strict=True))
            colours = [palette[cluster] for cluster in own.clusters.tolist()]
        draw_ellipses(axes, own.centers, own.covariances, own.weights, n_std, colours, **settings)
        if own.clusters is not None and numbers.shape[0] <= _MOST_NUMBERS:
            write_numbers(axes, numbers, centers, palette)

    def _draw_contours(self, axes: Any) -> None:
        own = self.contours
        assert own is not None
        if own.levels.size:
            axes.contour(
                own.x,
                own.y,
                own.values,
                levels=own.levels,
                colors=BLUE,
                linestyles="solid",
                linewidths=1.2,
            )

    def _draw_drawn(self, axes: Any, beside: Any, settings: dict[str, Any]) -> str:
        """Drawn rows, beside the others or among them; and the title of the first axes."""
        assert self.drawn is not None
        if beside is None:
            draw_points(axes, self.drawn, BLUE, **settings)
            return f"{self.title}\ngrey: rows; blue: drawn from the model"
        draw_points(beside, self.drawn, BLUE, **settings)
        label_axes(beside, self.names)
        beside.set_xlim(axes.get_xlim())
        beside.set_ylim(axes.get_ylim())
        set_title(beside, f"Drawn from the model:\n{self.title}")
        return "Data"


def _scaled(centers: np.ndarray) -> np.ndarray:
    """Centres in units of their spread: a picture has no other units."""
    spread = centers.std(axis=0)
    return np.asarray(centers / np.where(spread > 0.0, spread, 1.0))
