"""Flows that begin as Gaussians, and starts from Gaussian mixtures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_jit import quick_jit
from scipy import stats

from pickmix.gradient.compilation import precision
from pickmix.gradient.components import ComponentMixture
from pickmix.gradient.queries import draw_rows, score_samples
from pickmix.gradient.realnvp import RealNVP
from pickmix.gradient.start import Gaussians, gaussian_start

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
    return params


FLOWS = {
    "flow": RealNVP(hidden=4, linear=True),
    "three layers": RealNVP(n_layers=3, hidden=2, linear=True),
    "with a share": RealNVP(hidden=4, linear=True, gaussian_share=0.1),
}


class TestAffineFlows:
    @pytest.mark.parametrize("name", FLOWS)
    def test_log_det_is_that_of_the_jacobian(self, name):
        flow = FLOWS[name]
        x = np.random.default_rng(1).normal(size=D)
        with precision("float64"):
            params = moved(flow)
            _, log_det = quick_jit(flow.forward)(params, x)
            jacobian = quick_jit(jax.jacfwd(lambda x: flow.forward(params, x)[0]))(x)
        np.testing.assert_allclose(log_det, np.linalg.slogdet(jacobian)[1], rtol=1e-9)

    @pytest.mark.parametrize("name", FLOWS)
    def test_inverse(self, name):
        flow = FLOWS[name]
        x = np.random.default_rng(2).normal(size=(5, D))
        with precision("float64"):
            params = moved(flow)
            base = jax.vmap(lambda row: flow.forward(params, row)[0])(x)
            back = jax.vmap(lambda row: flow.inverse(params, row))(base)
        np.testing.assert_allclose(back, x, atol=1e-9)

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

    def test_a_share_bounds_what_can_be_lost(self):
        flow = RealNVP(hidden=4, linear=True, gaussian_share=0.01)
        mixture = gaussians(1)
        rows = np.random.default_rng(5).normal(size=(200, D)) * 5.0
        with precision("float64"):
            start = flow.from_gaussian(
                moved(flow), jnp.asarray(mixture.means[0]), jnp.asarray(mixture.cholesky[0])
            )
            # A flow that has collapsed.
            start["affine"]["factor"] = 8.0 * np.eye(D)
            values = quick_jit(jax.vmap(flow.log_prob, in_axes=(None, 0)))(start, rows)
        values = np.asarray(values)
        expected = log_joint(mixture, rows)[:, 0] - np.log(mixture.weights[0])
        assert np.all(values >= expected + np.log(0.01) - 1e-12 * np.abs(expected))
        # Nothing but the share is left, for rows that are away from the centre.
        assert np.median(np.abs(values - expected - np.log(0.01))) < 1e-6


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
    @pytest.mark.parametrize("n_components", [4, 9])
    @pytest.mark.parametrize("share", [0.0, 0.01])
    def test_density_is_that_of_the_gaussian_mixture(self, n_components, share):
        mixture = gaussians()
        network = ComponentMixture(
            RealNVP(hidden=4, linear=True, gaussian_share=share), n_components, D
        )
        rows = np.random.default_rng(0).normal(size=(100, D))
        start = gaussian_start(network, mixture, rows, 0, "float64")
        scores = score_samples(network, start.tables, start.log_weights, rows, "float64")
        expected = np.logaddexp.reduce(log_joint(mixture, rows), axis=1)
        np.testing.assert_allclose(scores, expected, rtol=1e-9, atol=1e-9)

    def test_chains_stand_where_rows_are_probable(self):
        mixture = gaussians()
        centres = np.repeat(mixture.means, 5, axis=0)
        tight = Gaussians(np.full(4, 0.25), mixture.means, np.tile(100.0 * np.eye(D), (4, 1, 1)))
        network = ComponentMixture(RealNVP(hidden=2, linear=True), 4, D)
        start = gaussian_start(network, tight, centres, 0, "float32")
        np.testing.assert_array_equal(start.chain[:, 0], np.repeat(np.arange(4), 5))

    def test_the_frame_is_fixed_and_the_rest_is_not(self):
        network = ComponentMixture(RealNVP(hidden=4, linear=True), 4, D)
        assert network.learns == (True, False)
        assert network.shapes[1] == (4, D + D * D)
        # Two nets for a layer, their bounds, and an affine map.
        nets = 2 * ((2 * 4 + 4 + 4 * 1 + 1) + (1 * 4 + 4 + 4 * 2 + 2)) + 3
        assert network.n_parameters == 4 * (nets + D + D * (D + 1) // 2) + 3

    def test_rows_are_drawn_from_the_gaussians(self):
        mixture = gaussians(1)
        network = ComponentMixture(RealNVP(hidden=2, linear=True), 1, D)
        start = gaussian_start(network, mixture, np.zeros((1, D)), 0, "float64")
        uniforms = np.random.default_rng(0).random((4000, 1))
        rows, _ = draw_rows(network, start.tables, start.log_weights, uniforms, 0, "float64")
        whitened = (rows - mixture.means[0]) @ mixture.cholesky[0].T
        for column in whitened.T:
            assert stats.kstest(column, "norm").pvalue > 0.01
        assert np.abs(np.corrcoef(whitened.T) - np.eye(D)).max() < 0.07
