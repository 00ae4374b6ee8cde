"""Each column by itself: rows against the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from pickmix.diagnostics.marginals import Marginal, marginals
from pickmix.displays.base import grid_of_axes, set_title, shorten, tidy
from pickmix.displays.panels import MOST_PANELS, draw_marginal, worst


class MarginalsDisplay:
    """Shares of rows in bins or levels of each column, and what the model says of them.

    Use `from_estimator` to make one. Rows are grey; the model is blue: exact for mixtures in closed
    form, 20,000 drawn rows for others. The first and the last bin of a number hold all that lies
    beyond as well.

    Parameters
    ----------
    marginals : sequence of Marginal
    title : str, default=""

    Attributes
    ----------
    axes_ : (n,) array of matplotlib Axes
        One for each column.
    figure_ : matplotlib Figure

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> import numpy as np
    >>> from pickmix import GaussianMixture, MarginalsDisplay
    >>> X = np.random.default_rng(0).normal(size=(500, 3))
    >>> display = MarginalsDisplay.from_estimator(GaussianMixture(1).fit(X), X, columns=[2, 0])
    >>> [axes.get_title(loc="left") for axes in display.axes_]
    ['column 2', 'column 0']
    >>> plt.close(display.figure_)
    """

    def __init__(self, marginals: Sequence[Marginal], title: str = "") -> None:
        self.marginals = list(marginals)
        self.title = title

    @classmethod
    def from_estimator(
        cls,
        model: Any,
        X: Any,
        *,
        columns: Any = None,
        n_bins: int = 40,
        max_levels: int = 12,
        axes: Any = None,
    ) -> Self:
        """Draw rows against the model, column by column.

        Parameters
        ----------
        model : fitted estimator of pickmix
        X : table of shape (N, D)
            As the model takes it. Rows that the model was not fitted to say more.
        columns : list of names or numbers, default=None
            None are all; of more than twelve, those where rows and model differ most.
        n_bins : int, default=40
            Bins of a number.
        max_levels : int, default=12
            Levels of a category; the rarer ones are put together.
        axes : array of matplotlib Axes, default=None
            One for each column. None makes a figure.

        Returns
        -------
        display : MarginalsDisplay
        """
        found = marginals(model, X, n_bins, columns, max_levels=max_levels)
        title = ""
        if columns is None and len(found) > MOST_PANELS:
            kept = worst(np.array([marginal.distance for marginal in found]), MOST_PANELS)
            title = f"{MOST_PANELS} of {len(found)} columns, where rows and model differ most"
            found = [found[number] for number in kept.tolist()]
        return cls(found, title).plot(axes)

    def plot(self, axes: Any = None) -> Self:
        """Draw.

        Parameters
        ----------
        axes : array of matplotlib Axes, default=None
            One for each column. None makes a figure.

        Returns
        -------
        self
        """
        self.axes_ = grid_of_axes(axes, len(self.marginals), 4)
        self.figure_ = self.axes_[0].figure
        for panel, marginal in zip(self.axes_, self.marginals, strict=True):
            draw_marginal(panel, marginal)
            set_title(panel, shorten(marginal.name, 28), 10)
            # The title has it.
            panel.set_xlabel("")
            panel.set_ylabel("")
            tidy(panel)
        if axes is None:
            handles, labels = self.axes_[0].get_legend_handles_labels()
            # Rows first; levels have their marks before the bars.
            first = labels.index("rows")
            order = [first, 1 - first]
            self.figure_.legend(
                [handles[place] for place in order],
                [labels[place] for place in order],
                loc="outside lower right",
                ncols=2,
                frameon=False,
            )
            if self.title:
                self.figure_.suptitle(self.title, fontsize=11)
        else:
            self.axes_[0].legend(frameon=False, fontsize=8)
        return self
