"""Flows that begin as Gaussians, and starts from Gaussian mixtures."""

import jax
import numpy as np
import pytest
from quick_jit import quick_jit
from scipy import stats

from pickmix.gradient.compilation import precision
from pickmix.gradient.components import ComponentMixture
from pickmix.gradient.realnvp import RealNVP
from pickmix.gradient.start import Gaussians

D = 3


def gaussians(n_components=4, n_features=D, seed=0):
    """Gaussians of very different widths."""
    rng = np.random.default_rng(seed)
    factors = np.tril(rng.normal(size=(n_components, n_features, n_features)), -1)
    factors += np.exp(rng.normal(size=(n_components, n_features, 1))) * np.eye(n_features)
    factors *= 10.0 ** rng.uniform(-1, 2, size=(n_components, 1, 1))
    weights = rng.dirichlet(np.ones(n_components))
    return Gaussians(weights, rng.normal(size=(n_components, n_features)), factors)


def log_joint(mixture, rows):
    """log p(x, k) by SciPy, (N, K)."""
    return np.stack(
        [
            np.log(weight)
            + stats.multivariate_normal(mean, np.linalg.inv(factor.T @ factor))
            .logpdf(rows)
            .reshape(-1)
            for weight, mean, factor in zip(
                mixture.weights, mixture.means, mixture.cholesky, strict=True
            )
        ],
        axis=1,
    )


def moved(flow, n_features=D, seed=0):
    """Parameters of one flow, all of them away from any start."""
    shapes = jax.eval_shape(lambda key: flow.init(key, n_features), jax.random.key(0))
    rng = np.random.default_rng(seed)
    params = jax.tree.map(lambda leaf: 0.4 * rng.normal(size=leaf.shape), shapes)
    for layer in params["layers"]:
        layer["bound"] = 1.0 + np.abs(layer["bound"])
    for name in ("frame", "affine"):
        params[name]["factor"] = np.tril(params[name]["factor"])
    return params


class TestAffineFlows:
    @pytest.mark.parametrize("share", [0.0, 0.3])
    def test_density_is_that_of_its_parts(self, share):
        flow = RealNVP(hidden=4, linear=True, gaussian_share=share)
        x = np.random.default_rng(3).normal(size=D)
        with precision("float64"):
            params = moved(flow)
            value = quick_jit(flow.log_prob)(params, x)
            y, log_det = quick_jit(flow.forward)(params, x)
        bent = stats.norm.logpdf(np.asarray(y)).sum() + float(log_det)
        factor = params["frame"]["factor"]
        matrix = np.tril(factor, -1) + np.diag(np.exp(np.diagonal(factor)))
        straight = stats.multivariate_normal(
            params["frame"]["shift"], np.linalg.inv(matrix.T @ matrix)
        ).logpdf(x)
        expected = np.log((1 - share) * np.exp(bent) + share * np.exp(straight))
        np.testing.assert_allclose(float(value), expected, rtol=1e-9)

    def test_gradients_keep_maps_triangular(self):
        flow = RealNVP(hidden=4, linear=True)
        x = np.random.default_rng(4).normal(size=D)
        with precision("float64"):
            params = moved(flow)

            def shifted(step, place):
                factor = params["affine"]["factor"].copy()
                factor[place] += step
                return params | {"affine": params["affine"] | {"factor": factor}}

            log_prob = quick_jit(flow.log_prob)
            gradient = quick_jit(jax.grad(flow.log_prob))(params, x)["affine"]["factor"]
            expected = np.zeros((D, D))
            for place in zip(*np.tril_indices(D), strict=True):
                values = [float(log_prob(shifted(step, place), x)) for step in (1e-5, -1e-5)]
                expected[place] = (values[0] - values[1]) / 2e-5
        np.testing.assert_allclose(gradient, expected, atol=1e-7)

    def test_density_integrates_to_one(self):
        flow = RealNVP(hidden=3, linear=True, gaussian_share=0.2)
        edge = np.linspace(-14.0, 14.0, 561)
        grid = np.stack(np.meshgrid(edge, edge), axis=-1).reshape(-1, 2)
        with precision("float64"):
            params = moved(flow, 2)
            values = quick_jit(jax.vmap(flow.log_prob, in_axes=(None, 0)))(params, grid)
        assert np.exp(values).sum() * (edge[1] - edge[0]) ** 2 == pytest.approx(1.0, abs=1e-4)

    def test_samples_follow_the_density(self):
        # In one dimension layers do nothing but shift and scale: a mixture of two normals.
        flow = RealNVP(hidden=2, linear=True, gaussian_share=0.3)
        with precision("float64"):
            params = moved(flow, 1, seed=4)
            keys = jax.random.split(jax.random.key(0), 4000)
            drawn = np.asarray(jax.vmap(lambda key: flow.sample(params, key))(keys))[:, 0]
            grid = np.linspace(drawn.min() - 8.0, drawn.max() + 8.0, 8001)
            density = np.exp(
                quick_jit(jax.vmap(flow.log_prob, in_axes=(None, 0)))(params, grid[:, None])
            )
        cumulative = np.cumsum(density) * (grid[1] - grid[0])
        test = stats.kstest(drawn, lambda x: np.interp(x, grid, cumulative))
        assert test.pvalue > 0.01


class TestGaussians:
    def test_log_joint(self):
        mixture, rows = gaussians(), np.random.default_rng(0).normal(size=(50, D))
        np.testing.assert_allclose(mixture.log_joint(rows), log_joint(mixture, rows), rtol=1e-9)

    def test_copies_have_the_same_density(self):
        mixture, rows = gaussians(), np.random.default_rng(0).normal(size=(50, D))
        more = mixture.repeated(11, seed=3)
        assert more.n_components == 11
        np.testing.assert_allclose(
            np.logaddexp.reduce(more.log_joint(rows), axis=1),
            np.logaddexp.reduce(mixture.log_joint(rows), axis=1),
            rtol=1e-12,
        )

    def test_components_are_drawn_from_the_posterior(self):
        mixture = gaussians()
        row = np.random.default_rng(0).normal(size=D) * 0.1
        # A point where several components are probable.
        flat = Gaussians(mixture.weights, 0.1 * mixture.means, np.tile(np.eye(D), (4, 1, 1)))
        drawn = flat.draw_components(np.tile(row, (4000, 1)), seed=1)
        scores = log_joint(flat, row[None])
        posterior = np.exp(scores - np.logaddexp.reduce(scores, axis=1))
        test = stats.chisquare(np.bincount(drawn, minlength=4), 4000 * posterior.ravel())
        assert posterior.max() < 0.9
        assert test.pvalue > 0.01


class TestStart:
    def test_the_frame_is_fixed_and_the_rest_is_not(self):
        network = ComponentMixture(RealNVP(hidden=4, linear=True), 4, D)
        assert network.learns == (True, False)
        assert network.shapes[1] == (4, D + D * D)
        # Two nets for a layer, their bounds, and an affine map.
        nets = 2 * ((2 * 4 + 4 + 4 * 1 + 1) + (1 * 4 + 4 + 4 * 2 + 2)) + 3
        assert network.n_parameters == 4 * (nets + D + D * (D + 1) // 2) + 3
