"""Which start a fit takes: the last fit's end, the user's parameters, or one made from the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from pickmix.closed_form.seeding import spread_out
from pickmix.closed_form.start import Start, Starter
from pickmix.closed_form.structures import STRUCTURES, CovarianceStructure
from pickmix.data.rows import ArrayRows
from pickmix.estimators import validation
from pickmix.estimators.plan import Sizes, partition_settings, resolve_batch_size
from pickmix.threads import Threads


def is_warm(estimator: Any, n_features: int) -> bool:
    """True if the last fit's parameters fit this one's, and are to be used."""
    if not estimator.warm_start or not hasattr(estimator, "n_steps_"):
        return False
    # Shapes alone do not tell: K variances of D = K columns look like a tied covariance.
    if estimator._fitted_structure != estimator.covariance_type:
        return False
    n_components = estimator.n_components
    shape = STRUCTURES[estimator.covariance_type](n_features).shape(n_components)
    same_means = estimator.means_.shape == (n_components, n_features)
    return same_means and estimator.covariances_.shape == shape


def choose_start(
    estimator: Any,
    source: ArrayRows,
    structure: CovarianceStructure,
    seed: int,
    threads: Threads,
) -> Start:
    """Make the start that the estimator's parameters ask for."""
    K, D = estimator.n_components, source.n_features
    starter = Starter(source, structure, K, seed, threads)
    if is_warm(estimator, D):
        means = estimator.means_ - source.center
        chain = estimator._chain.copy()
        # Kernels trust these indices, wherever they come from.
        if chain.shape[0] != source.n_rows or chain.min() < 0 or chain.max() >= K:
            chain = starter.chain_at(means)
        packed = without_reg(structure, structure.pack(estimator.covariances_), estimator)
        return Start(estimator.weights_, means, packed, estimator._effective_counts, chain)
    settings = partition_settings(estimator.algorithm, estimator.proposal)
    if estimator.means_init is not None:
        means_init = validation.check_array_parameter("means_init", estimator.means_init, (K, D))
        start = starter.from_means(means_init - source.center)
    elif estimator.init_params == "paper":
        start = starter.unit_cube()
    elif estimator.init_params == "auto" and settings is not None:
        # Every sweep of the start replaces all statistics, however small the steps of the fit.
        sizes = Sizes(source.n_rows, D, K)
        batch_size = resolve_batch_size("auto", estimator.algorithm, sizes, True)
        start = spread_out(starter, settings, batch_size, estimator.reg_covar, seed)
    else:
        start = starter.from_data(estimator.init_params)
    if estimator.weights_init is not None:
        start.weights = validation.check_weights_init(estimator.weights_init, K)
    if estimator.precisions_init is not None:
        precisions = validation.check_array_parameter(
            "precisions_init", estimator.precisions_init, structure.shape(K)
        )
        validation.check_positive_definite("precisions_init", precisions, structure.name)
        packed = structure.pack(structure.invert(precisions))
        start.covariances = without_reg(structure, packed, estimator)
    return start


def without_reg(structure: CovarianceStructure, packed: np.ndarray, estimator: Any) -> np.ndarray:
    """Take reg_covar off covariances that are to be used as they are."""
    unit = structure.pack_matrices(np.eye(structure.n_features)[None])
    return packed - estimator.reg_covar * unit
