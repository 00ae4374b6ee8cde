"""How a fit went: log-likelihood, validation and acceptance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from pickmix.displays.base import TICK_SIZE, set_title, single_axes, tidy
from pickmix.displays.colours import BLUE, GREEN, GRID, INK, PURPLE, VERMILION
from pickmix.estimators.validation import check_choice

_WORK = {
    "seconds": "seconds of work",
    "epoch": "passes over the rows",
    "evaluations": "evaluations of a component on a row",
    "step": "steps",
}


class TraceDisplay:
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

    def __init__(self, trace: np.ndarray, references: Mapping[str, float] | None = None) -> None:
        self.trace = trace
        self.references = dict(references or {})

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

        Returns
        -------
        display : TraceDisplay
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
        """Draw.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            None makes a figure.
        work : {"seconds", "epoch", "evaluations", "step"}, default="seconds"
            What the horizontal axis counts: seconds of work, passes over the rows, evaluations of
            a component on a row, or steps.
        **line_kwargs
            For the lines of the log-likelihoods.

        Returns
        -------
        self
        """
        check_choice("work", work, tuple(_WORK))
        axes = single_axes(ax)
        self.ax_, self.figure_ = axes, axes.figure
        trace, done = self.trace, self.trace[work]
        set_title(axes, "Log-likelihood per row over the work")
        axes.set_xlabel(_WORK[work], color=INK)
        axes.set_ylabel("log-likelihood per row", color=BLUE)
        axes.grid(color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        few = trace.shape[0] <= 60
        style = {"marker": "o", "markersize": 3.5 if few else 0.0, "linewidth": 2.0, **line_kwargs}
        axes.plot(done, trace["log_likelihood"], color=BLUE, label="training rows", **style)
        if np.isfinite(trace["validation"]).any():
            axes.plot(done, trace["validation"], color=PURPLE, label="validation rows", **style)
            axes.legend(frameon=False, loc="center right")
        # Kernels compiled on the way would push the curve into the far corner.
        if trace.shape[0] and done[0] < 0.5 * done[-1]:
            axes.set_xlim(left=0.0)
        for number, (name, value) in enumerate(
            sorted(self.references.items(), key=lambda item: -item[1])
        ):
            axes.axhline(value, color=GREEN, linewidth=1.5, linestyle=":")
            # Values may be close: the highest has its text above it, the others below.
            axes.annotate(
                f"{name}: {value:.3f}",
                xy=(0.02, value),
                xycoords=("axes fraction", "data"),
                xytext=(0, -4 if number else 4),
                va="top" if number else "bottom",
                textcoords="offset points",
                color=GREEN,
                fontsize=TICK_SIZE,
            )
        axes.margins(y=0.12)
        tidy(axes)
        self.acceptance_ax_ = self._draw_acceptance(done) if self.has_acceptance else None
        return self

    def _draw_acceptance(self, done: np.ndarray) -> Any:
        second = self.ax_.twinx()
        second.plot(done, self.trace["acceptance"], color=VERMILION, linestyle="--", linewidth=1.5)
        second.set_ylim(0.0, 1.0)
        second.set_ylabel("acceptance", color=VERMILION)
        second.spines["top"].set_visible(False)
        second.tick_params(labelsize=TICK_SIZE)
        return second
