"""How a fit went, and how good it is with fewer components."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from pickmix.checks import check_choice
from pickmix.inspection.displays.base import TICK_SIZE, Display, annotate, finish
from pickmix.inspection.displays.colours import BLUE, GREEN, INK, ORANGE, PURPLE, VERMILION
from pickmix.model.path import ComponentPath, path

_WORK = {
    "seconds": "seconds of work",
    "epoch": "passes over the rows",
    "evaluations": "evaluations of a component on a row",
    "step": "steps",
}
# Share of the (logarithmic) axis of components where curves may leave the picture.
_LOWEST = 0.2


@dataclass(eq=False, repr=False)
class TraceDisplay(Display):
    """Log-likelihood per row over the work of a fit.

    Use `from_estimator` to make one. The acceptance has an axis of its own on the right. It is not
    drawn where there is none, nor where it is 1 throughout: a fit by blocks accepts everything by
    construction.

    Parameters
    ----------
    trace : structured array
        As the attribute `trace_` of a fitted estimator.
    references : mapping of str to float, default=None
        Names and values of log-likelihoods per row to compare with, such as the true mixture's.

    Attributes
    ----------
    ax_ : matplotlib Axes
    acceptance_ax_ : matplotlib Axes or None
    figure_ : matplotlib Figure

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> import numpy as np
    >>> from pickmix import GaussianMixture, TraceDisplay
    >>> X = np.random.default_rng(0).normal(size=(500, 2))
    >>> display = TraceDisplay.from_estimator(GaussianMixture(3, random_state=0).fit(X))
    >>> display.ax_.get_xlabel()
    'seconds of work'
    >>> plt.close(display.figure_)
    """

    trace: np.ndarray
    references: Mapping[str, float] | None = None

    @classmethod
    def from_estimator(
        cls,
        model: Any,
        *,
        references: Mapping[str, float] | None = None,
        ax: Any = None,
        **settings: Any,
    ) -> Self:
        """Draw how the fit of an estimator went.

        Parameters
        ----------
        model : fitted estimator of pickmix
        references : mapping of str to float, default=None
            As in the class.
        ax : matplotlib Axes, default=None
            None makes a figure.
        **settings
            As in `plot`.
        """
        check_is_fitted(model)
        return cls(model.trace_, references).plot(ax, **settings)

    @property
    def has_acceptance(self) -> bool:
        """Whether the acceptance says anything."""
        values = self.trace["acceptance"]
        values = values[np.isfinite(values)]
        return bool((values != 1.0).any())

    def plot(self, ax: Any = None, *, work: str = "seconds", **line_kwargs: Any) -> Self:
        """Draw, and return the display.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            None makes a figure.
        work : {"seconds", "epoch", "evaluations", "step"}, default="seconds"
            What the horizontal axis counts: seconds of work, passes over the rows, evaluations of
            a component on a row, or steps.
        **line_kwargs
            For the lines of the log-likelihoods.
        """
        check_choice("work", work, tuple(_WORK))
        axes = self._single(ax)
        trace, done = self.trace, self.trace[work]
        few = trace.shape[0] <= 60
        style = {"marker": "o", "markersize": 3.5 if few else 0.0, "linewidth": 2.0, **line_kwargs}
        axes.plot(done, trace["log_likelihood"], color=BLUE, label="training rows", **style)
        if np.isfinite(trace["validation"]).any():
            axes.plot(done, trace["validation"], color=PURPLE, label="validation rows", **style)
            axes.legend(frameon=False, loc="center right")
        # Kernels compiled on the way would push the curve into the far corner.
        if trace.shape[0] and done[0] < 0.5 * done[-1]:
            axes.set_xlim(left=0.0)
        highest_first = sorted((self.references or {}).items(), key=lambda item: -item[1])
        for number, (name, value) in enumerate(highest_first):
            axes.axhline(value, color=GREEN, linewidth=1.5, linestyle=":")
            # Values may be close: the highest has its text above it, the others below.
            shift, side = (-4, "top") if number else (4, "bottom")
            style = {"va": side, "color": GREEN, "fontsize": TICK_SIZE}
            mixed = ("axes fraction", "data")
            annotate(axes, f"{name}: {value:.3f}", (0.02, value), (0, shift), mixed, **style)
        axes.margins(y=0.12)
        finish(axes, "Log-likelihood per row over the work", _WORK[work], grid=True)
        axes.set_ylabel("log-likelihood per row", color=BLUE)
        self.acceptance_ax_ = None
        if self.has_acceptance:
            self.acceptance_ax_ = right = axes.twinx()
            right.plot(done, trace["acceptance"], color=VERMILION, linestyle="--", linewidth=1.5)
            right.set_ylim(0.0, 1.0)
            right.set_ylabel("acceptance", color=VERMILION)
            right.spines["top"].set_visible(False)
            right.tick_params(labelsize=TICK_SIZE)
        return self


@dataclass(eq=False, repr=False)
class PathDisplay(Display):
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

    path: ComponentPath
    rule: str = "one-standard-error"

    def __post_init__(self) -> None:
        self.chosen = self.path.choose(self.rule)

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
        """
        computed = path(mixture, X_validation, X, n_components=n_components)
        return cls(computed, rule).plot(ax)

    @classmethod
    def from_path(
        cls, path: ComponentPath, *, rule: str = "one-standard-error", ax: Any = None
    ) -> Self:
        """Draw a path that `pickmix.path` returned; `rule` and `ax` as in `from_estimator`."""
        return cls(path, rule).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw, and return the display.

        Parameters
        ----------
        ax : matplotlib Axes, or a pair of them, default=None
            None makes a figure with two panels. A single one has BIC and AIC on an axis of its own
            on the right.
        """
        single = ax is not None and np.ndim(ax) == 0
        both = np.array([ax, ax.twinx()], dtype=object) if single else ax
        score, criteria = axes = self._grid(both, 2, 1, (7.0, 2.9), sharex=True)
        self._draw_score(score)
        self._draw_criteria(criteria, single)
        K = self.path.n_components
        for panel in axes:
            panel.set_xscale("log")
            panel.xaxis.set_major_formatter(_plain)
            # Powers of ten are far apart where there are few components.
            panel.xaxis.set_minor_formatter(_plain if K[-1] < 20 * K[0] else lambda value, _: "")
            panel.set_xlim(K[0] * 0.92, K[-1] * 1.08)
            finish(panel)
        (score if single else criteria).set_xlabel("components", color=INK)
        if single:
            criteria.spines["right"].set_visible(True)
            # One legend for both, below: curves cross everywhere in the axes.
            handles = [handle for panel in axes for handle in panel.get_legend_handles_labels()[0]]
            below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "ncols": 4}
            score.legend(handles=handles, frameon=False, fontsize=9, **below)
        return self

    def _draw_score(self, axes: Any) -> None:
        K, score, error = self.path.n_components, self.path.log_likelihood, self.path.standard_error
        band = {"color": BLUE, "alpha": 0.25, "linewidth": 0, "label": "±1 s.e."}
        axes.fill_between(K, score - error, score + error, **band)
        marker = {"marker": "o", "markersize": 3.0} if K.shape[0] <= 40 else {}
        axes.plot(K, score, color=BLUE, linewidth=1.8, label="held-out rows", **marker)
        at = score[int(np.searchsorted(K, self.chosen))]
        axes.axvline(self.chosen, color=VERMILION, linestyle="--", linewidth=1.2)
        axes.plot([self.chosen], [at], "o", color=VERMILION, markersize=7)
        right = self.chosen <= np.sqrt(float(K[0]) * float(K[-1]))
        shift, side = (6, "left") if right else (-6, "right")
        text, mixed = f"{self.chosen:,} chosen ({self.rule})", ("data", "axes fraction")
        style = {"ha": side, "color": VERMILION, "fontsize": 9}
        annotate(axes, text, (self.chosen, 0.04), (shift, 0), mixed, **style)
        axes.set_ylim(*_range(K, score))
        title = "Held-out log-likelihood over the number of components"
        finish(axes, title, y="log-likelihood per row", grid=True)
        axes.legend(frameon=False, fontsize=9, loc="upper left")

    def _draw_criteria(self, axes: Any, single: bool) -> None:
        K, bic, aic = self.path.n_components, self.path.bic, self.path.aic
        for values, name, colour, style in ((bic, "BIC", GREEN, "-"), (aic, "AIC", ORANGE, "--")):
            best = int(np.argmin(values))
            axes.plot(K, values, color=colour, linestyle=style, linewidth=1.6)
            label = f"{name}, lowest at {int(K[best]):,}"
            mark = {"marker": "v", "markersize": 8, "linestyle": style, "label": label}
            axes.plot(K[best], values[best], color=colour, **mark)
        # Both from the left; on the right, BIC may leave the picture.
        low, high = _range(K, -aic)
        axes.set_ylim(-high, max(-low, float(bic.min()) + 0.1 * (high - low)))
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4))
        finish(axes, y="BIC, AIC", grid=not single)
        if not single:
            axes.axvline(self.chosen, color=VERMILION, linestyle="--", linewidth=1.2)
            axes.legend(frameon=False, fontsize=9, loc="lower left")


def _plain(value: float, _: int) -> str:
    """A number of components as people write it."""
    return f"{value:,.0f}" if value >= 1.0 and float(value).is_integer() else ""


def _range(n_components: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Limits of an axis on which higher is better: a few bad values must not flatten the rest."""
    x = np.log(n_components)
    along = np.interp(np.linspace(x[0], x[-1], 200), x, values)
    low, high = float(np.quantile(along, _LOWEST)), float(values.max())
    margin = 0.08 * (high - low) or 0.5
    return low - margin, high + margin
