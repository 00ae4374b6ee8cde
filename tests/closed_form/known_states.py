"""States of Gaussian mixtures with known parameters, for either implementation."""

import numpy as np
import pytest

from pickmix.closed_form.local_fleet import LocalFleet
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows, Batches
from pickmix.families.gaussian import GAUSSIANS
from pickmix.families.layout import Moments
from pickmix.sweep.compiled import Compiled
from pickmix.sweep.reference import Reference
from pickmix.threads import Threads

BACKENDS = {"reference": Reference, "compiled": lambda: Compiled(Threads())}
every_covariance = pytest.mark.parametrize("name", list(GAUSSIANS))
both_backends = pytest.mark.parametrize("backend", list(BACKENDS))


def state_of(
    name,
    weights,
    means,
    covariances,
    *,
    reg_covar=0.0,
    floor=0.0,
    counts=1.0,
    shrinkage="none",
    n_rows=1.0,
    backend="reference",
):
    """K components with covariances (K, D, D), each of which comes from `counts` rows."""
    family = GAUSSIANS[name](means.shape[1], reg_covar)
    weights = np.array(weights, dtype=float)
    moments = Moments(
        weights,
        np.square(weights) / counts,
        np.array(means, dtype=float),
        family.pack_matrices(np.asarray(covariances)),
        np.zeros((weights.shape[0], 0)),
    )
    prior = family.make_prior(moments, shrinkage, float(n_rows))
    return MixtureState(family, moments, BACKENDS[backend](), prior, floor)


def as_matrices(name, covariances, n_components, n_features):
    """Covariances in the user's shape as (K, D, D)."""
    unit = np.eye(n_features)
    return {
        "full": lambda c: c,
        "tied": lambda c: np.repeat(c[None], n_components, axis=0),
        "diag": lambda c: c[:, :, None] * unit,
        "spherical": lambda c: c[:, None, None] * unit,
    }[name](covariances)


def in_use(state):
    """The covariances in use, (K, D, D)."""
    family = state.family
    parameters = family.parameters(state.model, np.zeros(family.n_features))
    return as_matrices(
        family.name, parameters["covariances"], state.n_components, family.n_features
    )


def project(name, matrices):
    """The nearest matrices (..., D, D) of the form that the name says."""
    if name in ("full", "tied"):
        return matrices
    diagonal = np.diagonal(matrices, axis1=-2, axis2=-1)
    if name == "spherical":
        diagonal = np.repeat(diagonal.mean(axis=-1, keepdims=True), diagonal.shape[-1], axis=-1)
    return diagonal[..., None] * np.eye(diagonal.shape[-1])


def fleet_of(backend, X, chain, weights=None, batch_size=None, seed=0):
    """One shard of rows whose chains stand on `chain` (N,)."""
    source = ArrayRows(X, weights)
    batches = Batches(source.n_rows, batch_size or source.n_rows, seed)
    return LocalFleet(backend, source, np.asarray(chain, dtype=np.int32), batches)
