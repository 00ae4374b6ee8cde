"""Known Gaussian noise on the rows of a query."""

from __future__ import annotations

from typing import Any

import numpy as np

from pickmix.estimators.partial_tables import check_noise
from pickmix.families.gaussian import Gaussian


def read_noise(mixture: Any, noise: Any, rows: np.ndarray) -> np.ndarray | None:
    """Noise of rows (N, D): variances (N, D) or covariances (N, D, D), 0 for missing cells."""
    if noise is None:
        return None
    family = mixture._fitted_family()
    if not isinstance(family, Gaussian):
        raise ValueError(f"noise is for a mixture of Gaussians, got the family {family.name!r}.")
    checked = check_noise(noise, rows)
    if checked is None or checked.shape == rows.shape:
        return checked
    N, D = rows.shape
    covariances = np.zeros((N, D, D))
    i, j = np.tril_indices(D)
    covariances[:, i, j] = covariances[:, j, i] = checked
    return covariances
