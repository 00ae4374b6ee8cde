"""Densities, samples and parameters: every family against SciPy and against itself."""

import numpy as np
import pytest
from family_cases import (
    BACKENDS,
    CASES,
    K,
    both_backends,
    draw,
    every_family,
    every_plain_family,
    known,
)

from pickmix.kernels import numpy_kernels


@every_family
@both_backends
def test_log_joints_are_those_of_scipy(name, backend):
    mixture = known(name, 60)
    engine = BACKENDS[backend]
    model = mixture.state(engine).require_sound().model
    layout = mixture.family.layout
    expected = mixture.log_joints(mixture.raw)
    base = mixture.family.log_base(mixture.rows + mixture.centre)
    constant = 0.0 if base is None else base
    found = engine.log_joint_all(layout, model, mixture.rows)
    np.testing.assert_allclose(found + constant, expected, rtol=1e-9, atol=1e-9)
    candidates = np.random.default_rng(0).integers(-1, K, (60, 4)).astype(np.int32)
    pairs = engine.log_joint(layout, model, mixture.rows, candidates)
    chosen = np.take_along_axis(found.T, np.maximum(candidates, 0).astype(np.int64), axis=1)
    np.testing.assert_allclose(
        pairs, np.where(candidates < 0, -np.inf, chosen), rtol=1e-10, atol=1e-10
    )


@every_plain_family
def test_parameters_come_back(name):
    mixture = known(name, 20)
    found = mixture.family.parameters(mixture.state(numpy_kernels).model, mixture.centre)
    assert set(found) == set(mixture.parameters)
    for key, values in mixture.parameters.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-10, atol=1e-10, err_msg=key)


@every_family
def test_samples_have_the_mean(name):
    mixture = known(name, 20)
    n = 4000
    for k in (0, K - 1):
        rows = draw(mixture.family, mixture.parameters, k, n, np.random.default_rng(k))
        error = rows.mean(axis=0) - CASES[name].mean(mixture.parameters, k)
        # Five standard errors.
        assert (np.abs(error) <= 5.0 * rows.std(axis=0) / np.sqrt(n)).all()


@every_plain_family
@pytest.mark.parametrize("shrinkage", ["none", "pooled"])
def test_self_scores_are_mean_densities(name, shrinkage):
    """Scores of own rows, but for the D / 2 of a Gaussian, whose covariance fits its rows."""
    mixture = known(name, 400)
    moments, chosen = mixture.rough_moments(np.random.default_rng(1))
    state = mixture.state(numpy_kernels, shrinkage, moments)
    family, model, rows = mixture.family, state.model, mixture.rows
    densities = (
        numpy_kernels.log_joint_all(family.layout, model, rows) - np.log(state.masses)[:, None]
    )
    means = (chosen * densities).sum(axis=1) / chosen.sum(axis=1)
    excess = family.self_scores(model, state.moments) - means
    n_squared = np.count_nonzero(np.diff(family.layout.starts))
    if shrinkage == "none":
        assert state.masses @ excess == pytest.approx(0.5 * n_squared, abs=1e-8)
    if n_squared == 0 or (shrinkage == "none" and "tied" not in name):
        np.testing.assert_allclose(excess, 0.5 * n_squared, atol=1e-8)
