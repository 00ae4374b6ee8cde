"""Rows and short fits of deep mixtures. The same few shapes: a program is compiled for each."""

import numpy as np

from pickmix import FlowMixture, SumProductTransformNetwork

# With 200 rows, 20 are watched. The start is the one that costs least; the default one, a Gaussian
# mixture, is asked for where it matters.
SETTINGS = {"batch_size": 50, "max_steps": 40, "evaluate_every": 20, "random_state": 0}
SETTINGS["init_params"] = "paper"


def rows(n_rows=200):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n_rows, 2)) + 4.0 * rng.integers(0, 3, size=(n_rows, 1))


def flow(n_components=4, **settings):
    return FlowMixture(n_components, hidden=3, **SETTINGS | settings)


def network(**settings):
    return SumProductTransformNetwork(3, 2, 2, **SETTINGS | settings)


def small(**settings):
    """A mixture of four Gaussians, whose program compiles soon."""
    return SumProductTransformNetwork(4, 2, 1, transforms=False, **SETTINGS | settings)
