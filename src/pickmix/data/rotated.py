"""Random Gaussian mixtures of any size: means in the unit cube, rotated ellipsoids around them.

Unlike MixSim's, the overlap is not prescribed but follows from the width. Nothing of size K x K is
computed, so that mixtures of very many components are made at once.
"""

from __future__ import annotations

import math

import numpy as np

from pickmix.data.known_mixture import KnownMixture, RandomState
from pickmix.inputs.arrays import check_integer

__all__ = ["generate"]

WEIGHTS = ("equal", "power")


def generate(
    n_components: int,
    n_features: int,
    width: float,
    *,
    weights: str = "equal",
    random_state: RandomState = None,
) -> KnownMixture:
    r"""Draw a Gaussian mixture with means uniform in the unit cube.

    The covariances are :math:`R_k \operatorname{diag}(s_k) R_k^T` with a random rotation
    :math:`R_k` (uniform over all) and a spectrum :math:`s_k` uniform in [0.1, 1] times the squared
    width.

    Parameters
    ----------
    n_components : int
        K >= 1.
    n_features : int
        D >= 1.
    width : float
        Largest standard deviation along an axis of a component. With K = 300 and D = 8, components
        are separate at 0.09 and overlap at 0.2.
    weights : {"equal", "power"}
        1/K each, or a power law: proportional to 1, 1/2, ..., 1/K in random order.
    random_state : int, numpy Generator or None

    Returns
    -------
    KnownMixture

    Examples
    --------
    >>> mixture = generate(1000, 8, 0.09, weights="power", random_state=0)
    >>> X, labels = mixture.sample(5000, random_state=1)
    >>> X.shape, mixture.score_samples(X[:10]).shape
    ((5000, 8), (10,))
    >>> round(mixture.weights.max() / mixture.weights.min())
    1000
    """
    check_integer("n_components", n_components, 1)
    check_integer("n_features", n_features, 1)
    if not 0.0 < width < math.inf:
        raise ValueError(f"width must be a positive number; got {width!r}")
    if weights not in WEIGHTS:
        raise ValueError(f"weights must be one of {', '.join(WEIGHTS)}; got {weights!r}")
    rng = np.random.default_rng(random_state)
    means = rng.uniform(size=(n_components, n_features))
    # Uniform over all rotations but for the signs of the axes, which a covariance does not have.
    rotations = np.linalg.qr(rng.standard_normal((n_components, n_features, n_features)))[0]
    spectrum = width**2 * rng.uniform(0.1, 1.0, size=(n_components, 1, n_features))
    covariances = (rotations * spectrum) @ np.swapaxes(rotations, 1, 2)
    shares = np.ones(n_components)
    if weights == "power":
        shares = rng.permutation(1.0 / np.arange(1, n_components + 1))
    return KnownMixture(shares / shares.sum(), means, covariances)
