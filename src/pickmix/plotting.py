"""A picture of a fit, in a file. Needs matplotlib: the extra `plot`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pickmix.inputs.files import replacing
from pickmix.inspection.displays.base import matplotlib_part
from pickmix.inspection.displays.components import ComponentsDisplay
from pickmix.inspection.displays.fits import TraceDisplay


def plot_fit(
    model: Any,
    X: Any,
    path: str | os.PathLike[str],
    *,
    references: Mapping[str, float] | None = None,
) -> Path:
    """Draw a fitted mixture on its data, and how the fit went.

    Left a `ComponentsDisplay`: up to 20,000 rows, with the components as ellipses, or as contours
    or drawn rows where they have none; more than two columns are seen along the first two principal
    axes of the standardised columns. Right a `TraceDisplay`: the log-likelihood of training and
    validation rows over the seconds of work, and the acceptance where it says anything.

    Parameters
    ----------
    model : fitted estimator of pickmix
    X : table of shape (N, D)
        As the model takes it.
    path : path
        .png, .pdf or .svg. The file appears whole or not at all.
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
    # A Figure of its own needs no display and leaves pyplot's state alone.
    make_figure = matplotlib_part("figure").Figure
    components = ComponentsDisplay.compute(model, X)
    beside = components.drawn is not None
    figure = make_figure(figsize=(17.0 if beside else 12.5, 6.0), layout="constrained")
    *left, right = figure.subplots(1, 3 if beside else 2)
    components.plot(left if beside else left[0])
    TraceDisplay(model.trace_, references).plot(right)
    target = Path(path)
    with replacing(target) as temporary:
        # The temporary name does not say the format.
        figure.savefig(temporary, dpi=160, format=target.suffix[1:] or "png")
    return target
