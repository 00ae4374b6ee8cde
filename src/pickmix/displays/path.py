"""The path over the number of components: held-out score, BIC and AIC."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from pickmix.displays.base import grid_of_axes, set_title, tidy
from pickmix.displays.colours import BLUE, GREEN, GRID, INK, ORANGE, VERMILION
from pickmix.estimators.path import ComponentPath, path

# Share of the (logarithmic) axis of components where curves may leave the picture.
_LOWEST = 0.2


class PathDisplay:
    """How good a mixture is with fewer components, from one fit.

    Use `from_estimator` or `from_path` to make one. Above, the log-likelihood of held-out rows with
    a band of one standard error of its difference to the best; below, BIC and AIC, where lower is
    better, each with its best number of components. A line marks the chosen number.

    Parameters
    ----------
    path : ComponentPath
    rule : str, default="one-standard-error"
        As in `ComponentPath.choose`.

    Attributes
    ----------
    axes_ : (2,) array of matplotlib Axes
        Those of the score and of the criteria.
    figure_ : matplotlib Figure
    chosen : int
        The number of components that is marked.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> import numpy as np
    >>> from pickmix import GaussianMixture, PathDisplay
    >>> rng = np.random.default_rng(0)
    >>> X = 8.0 * rng.integers(0, [5, 2], (3000, 2)) + rng.normal(size=(3000, 2))
    >>> mixture = GaussianMixture(30, random_state=0).fit(X[:2000])
    >>> display = PathDisplay.from_estimator(mixture, X[2000:])
    >>> display.chosen
    10
    >>> plt.close(display.figure_)
    """

    def __init__(self, path: ComponentPath, rule: str = "one-standard-error") -> None:
        self.path = path
        self.rule = rule
        self.chosen = path.choose(rule)

    @classmethod
    def from_estimator(
        cls,
        mixture: Any,
        X_validation: Any,
        X: Any = None,
        *,
        n_components: Any = None,
        rule: str = "one-standard-error",
        ax: Any = None,
    ) -> Self:
        """Draw the path of a fitted mixture.

        Parameters
        ----------
        mixture : fitted GaussianMixture, FamilyMixture or TableMixture
        X_validation : table of shape (N, D)
            Rows that the mixture was not fitted to.
        X : table, default=None
            The rows that it was fitted to, for BIC and AIC. Without them these are computed on the
            validation rows.
        n_components : sequence of int, default=None
            As in `pickmix.path`.
        rule : str, default="one-standard-error"
            As in `ComponentPath.choose`.
        ax : matplotlib Axes, or a pair of them, default=None
            As in `plot`.

        Returns
        -------
        display : PathDisplay
        """
        found = path(mixture, X_validation, X, n_components=n_components)
        return cls(found, rule).plot(ax)

    @classmethod
    def from_path(
        cls, path: ComponentPath, *, rule: str = "one-standard-error", ax: Any = None
    ) -> Self:
        """Draw a path that was computed before, as `pickmix.path` returns it.

        Parameters
        ----------
        path : ComponentPath
        rule : str, default="one-standard-error"
            As in `ComponentPath.choose`.
        ax : matplotlib Axes, or a pair of them, default=None
            As in `plot`.

        Returns
        -------
        display : PathDisplay
        """
        return cls(path, rule).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes, or a pair of them, default=None
            None makes a figure with two panels. A single one has BIC and AIC on an axis of its own
            on the right.

        Returns
        -------
        self
        """
        single = ax is not None and np.ndim(ax) == 0
        if single:
            axes = np.array([ax, ax.twinx()], dtype=object)
        else:
            axes = grid_of_axes(ax, 2, 1, (7.0, 2.9), sharex=True)
        self.axes_, self.figure_ = axes, axes[0].figure
        self._draw_score(axes[0])
        self._draw_criteria(axes[1], single)
        for panel in axes:
            panel.set_xscale("log")
            panel.xaxis.set_major_formatter(_plain)
            # Powers of ten are far apart where there are few components.
            few = self.path.n_components[-1] < 20 * self.path.n_components[0]
            panel.xaxis.set_minor_formatter(_plain if few else _nothing)
            panel.set_xlim(self.path.n_components[0] * 0.92, self.path.n_components[-1] * 1.08)
            tidy(panel)
        if single:
            axes[1].spines["right"].set_visible(True)
            # One legend for both, below: curves cross everywhere in the axes.
            handles, labels = axes[0].get_legend_handles_labels()
            more, names = axes[1].get_legend_handles_labels()
            axes[0].legend(
                handles + more,
                labels + names,
                frameon=False,
                fontsize=9,
                ncols=4,
                loc="upper center",
                bbox_to_anchor=(0.5, -0.14),
            )
        axes[0 if single else 1].set_xlabel("components", color=INK)
        return self

    def _draw_score(self, axes: Any) -> None:
        own = self.path
        K, score, error = own.n_components, own.log_likelihood, own.standard_error
        axes.fill_between(
            K, score - error, score + error, color=BLUE, alpha=0.25, linewidth=0, label="±1 s.e."
        )
        marker = {"marker": "o", "markersize": 3.0} if K.shape[0] <= 40 else {}
        axes.plot(K, score, color=BLUE, linewidth=1.8, label="held-out rows", **marker)
        place = int(np.searchsorted(K, self.chosen))
        axes.axvline(self.chosen, color=VERMILION, linestyle="--", linewidth=1.2)
        axes.plot([self.chosen], [score[place]], "o", color=VERMILION, markersize=7)
        right = self.chosen <= np.sqrt(float(K[0]) * float(K[-1]))
        axes.annotate(
            f"{self.chosen:,} chosen ({self.rule})",
            (self.chosen, 0.04),
            xycoords=("data", "axes fraction"),
            xytext=(6 if right else -6, 0),
            textcoords="offset points",
            ha="left" if right else "right",
            color=VERMILION,
            fontsize=9,
        )
        axes.set_ylabel("log-likelihood per row", color=INK)
        axes.grid(color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_ylim(*_range(K, score))
        set_title(axes, "Held-out log-likelihood over the number of components")
        axes.legend(frameon=False, fontsize=9, loc="upper left")

    def _draw_criteria(self, axes: Any, single: bool) -> None:
        own = self.path
        for values, name, colour, style in (
            (own.bic, "BIC", GREEN, "-"),
            (own.aic, "AIC", ORANGE, "--"),
        ):
            best = int(np.argmin(values))
            axes.plot(own.n_components, values, color=colour, linestyle=style, linewidth=1.6)
            axes.plot(
                own.n_components[best],
                values[best],
                marker="v",
                color=colour,
                markersize=8,
                linestyle=style,
                label=f"{name}, lowest at {int(own.n_components[best]):,}",
            )
        # Both from the left; on the right, BIC may leave the picture.
        low, high = _range(own.n_components, -own.aic)
        most = max(-low, float(own.bic.min()) + 0.1 * (high - low))
        axes.set_ylim(-high, most)
        axes.set_ylabel("BIC, AIC", color=INK)
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4))
        if not single:
            axes.axvline(self.chosen, color=VERMILION, linestyle="--", linewidth=1.2)
            axes.grid(color=GRID, linewidth=0.8)
            axes.set_axisbelow(True)
        if not single:
            axes.legend(frameon=False, fontsize=9, loc="lower left")


def _plain(value: float, _: int) -> str:
    """A number of components as people write it."""
    return f"{value:,.0f}" if value >= 1.0 and float(value).is_integer() else ""


def _nothing(value: float, _: int) -> str:
    """No text."""
    return ""


def _range(n_components: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Limits of an axis on which higher is better: a few bad values must not flatten the rest."""
    places = np.log(n_components)
    along = np.interp(np.linspace(places[0], places[-1], 200), places, values)
    low, high = float(np.quantile(along, _LOWEST)), float(values.max())
    margin = 0.08 * (high - low) or 0.5
    return low - margin, high + margin
