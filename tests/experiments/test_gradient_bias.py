"""The error of a gradient against its definition, written out for Gaussians."""

import jax
import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import multivariate_normal

from pickmix.experiments.fits.gradient_bias import FullGaussian, gradient_error
from pickmix.gradient.components import ComponentMixture
from pickmix.gradient.network import flatten

K, D, B = 3, 2, 40


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    means = rng.normal(size=(K, D))
    logs = 0.3 * rng.normal(size=(K, D))
    lower = np.tril(rng.normal(size=(K, D, D)), -1)
    factors = lower + np.array([np.diag(np.exp(log)) for log in logs])
    log_weights = np.log(rng.dirichlet(np.ones(K)))
    rows = rng.normal(size=(B, D))
    with jax.enable_x64(True):
        table = flatten({"mean": means, "log_diagonal": logs, "lower": lower}, 1)
    return means, factors, log_weights, rows, (np.asarray(table),)


def written_out(means, factors, rows):
    """Gradients (B, K, P) of log N in mean, log-diagonal and strict lower part, and of the weight.

    With w = L^-1 (x - m): d/dm = L^-T w; d/dL = L^-T (w w^T - I), of which the diagonal is scaled
    by that of L and the upper part does not exist.
    """
    gradients = np.zeros((rows.shape[0], K, D + D + D * D + 1))
    for k in range(K):
        inverse = np.linalg.inv(factors[k])
        for i, row in enumerate(rows):
            white = inverse @ (row - means[k])
            of_factor = inverse.T @ (np.outer(white, white) - np.eye(D))
            of_log = np.diag(of_factor) * np.diag(factors[k])
            strict = np.tril(of_factor, -1)
            gradients[i, k] = np.concatenate([inverse.T @ white, of_log, strict.ravel(), [1.0]])
    return gradients


def posterior(means, factors, log_weights, rows):
    log_joint = np.stack(
        [
            multivariate_normal(means[k], factors[k] @ factors[k].T).logpdf(rows) + log_weights[k]
            for k in range(K)
        ],
        axis=1,
    )
    return softmax(log_joint, axis=1)


def error(problem, chosen):
    *_, log_weights, rows, tables = problem
    with jax.enable_x64(True):
        network = ComponentMixture(FullGaussian(), K, D)
        return gradient_error(network, tables, log_weights, rows, chosen)


def test_squared_norm_is_that_of_the_definition(problem):
    means, factors, log_weights, rows, _ = problem
    chosen = np.random.default_rng(1).integers(K, size=B)
    gradients = written_out(means, factors, rows)
    p = posterior(means, factors, log_weights, rows)
    difference = np.einsum("ik,ikp->kp", np.eye(K)[chosen] - p, gradients) / B
    found = error(problem, chosen)
    assert found.squared_norm == pytest.approx(np.sum(difference**2), rel=1e-8)


def test_by_chance_is_the_mean_over_exact_draws(problem):
    means, factors, log_weights, rows, _ = problem
    gradients = written_out(means, factors, rows)
    p = posterior(means, factors, log_weights, rows)
    rng = np.random.default_rng(2)
    n_draws = 4000
    uniforms = rng.uniform(size=(n_draws, B, 1))
    chosen = (uniforms > np.cumsum(p, axis=1)[None, :, :-1]).sum(axis=2)
    differences = np.eye(K)[chosen] - p
    squared = np.sum(np.einsum("nik,ikp->nkp", differences, gradients) ** 2, axis=(1, 2)) / B**2
    found = error(problem, chosen[0])
    # Five standard errors of the mean over draws.
    assert found.by_chance == pytest.approx(
        squared.mean(), abs=5.0 * squared.std() / np.sqrt(n_draws)
    )


def test_component_starts_as_the_papers():
    params = FullGaussian().init(jax.random.key(0), 3)
    x = np.array([0.1, 0.2, 0.3])
    expected = multivariate_normal(np.asarray(params["mean"]), np.eye(3)).logpdf(x)
    assert 0.0 <= float(params["mean"].min()) <= float(params["mean"].max()) <= 1.0
    assert float(FullGaussian().log_prob(params, x)) == pytest.approx(expected, rel=1e-5)
