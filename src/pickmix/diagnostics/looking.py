"""One look at rows through a model: log-densities and most probable components, in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.diagnostics.columns import is_closed_form, is_table, nameless, read_values
from pickmix.estimators.queries import refuse_overflow


@dataclass(frozen=True)
class Looked:
    """What one pass over rows finds.

    Attributes
    ----------
    rows : (N, D) array
        As the mixture sees them: of a table encoded, NaN where nothing was seen.
    component : (N,) int64 array
        The most probable one of each row.
    probability : (N,) array
        How probable it is.
    log_density : (N,) array
        In the units of the table.
    log_units : (N,) array
        What of `log_density` is due to the units of a table; zeros for arrays.
    """

    rows: np.ndarray
    component: np.ndarray
    probability: np.ndarray
    log_density: np.ndarray
    log_units: np.ndarray


def look_at(model: Any, X: Any) -> Looked:
    """Look at rows through a fitted model.

    Parameters
    ----------
    model : fitted estimator of pickmix
    X : table of N rows, as the model takes it

    Returns
    -------
    looked : Looked

    Examples
    --------
    >>> import numpy as np
    >>> from pickmix import GaussianMixture
    >>> X = np.concatenate([np.random.default_rng(0).normal(c, 1.0, (100, 1)) for c in (0.0, 9.0)])
    >>> looked = look_at(GaussianMixture(2, random_state=0).fit(X), X)
    >>> np.bincount(looked.component)
    array([100, 100])
    """
    if is_table(model):
        rows, log_units = model._encode(X)
        units = log_units.sum(axis=1)
    else:
        rows = read_values(model, X)
        units = np.zeros(rows.shape[0])
    mixture = nameless(getattr(model, "mixture_", model))
    if not is_closed_form(model):
        components, probabilities = mixture.top_components(rows, 1)
        log_density = np.asarray(mixture.score_samples(rows))
        return Looked(
            rows, components[:, 0].astype(np.int64), probabilities[:, 0], log_density, units
        )
    components, probabilities, densities = [], [], []
    # Not `top_components` and `score_samples`: they would evaluate all components twice.
    for log_joint, log_base, operations in mixture._blocks(rows):
        likelihood = operations.log_sum_exp(log_joint)
        refuse_overflow(likelihood)
        best = operations.top_of_all(log_joint, 1.0, 1)[0][:, 0]
        components.append(best)
        probabilities.append(np.exp(log_joint[best, np.arange(best.shape[0])] - likelihood))
        densities.append(likelihood + log_base)
    return Looked(
        rows,
        np.concatenate(components).astype(np.int64),
        np.concatenate(probabilities),
        np.concatenate(densities) + units,
        units,
    )
