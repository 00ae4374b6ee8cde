"""Laws of real NVP flows, for one table of constructors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_jit import quick_jit
from scipy import special, stats

from pickmix.gradient.compilation import precision
from pickmix.gradient.realnvp import RealNVP

# Constructor's arguments and D.
FLOWS = {
    "as in the paper": ({}, 5),
    "one layer": ({"n_layers": 1}, 3),
    "one coordinate": ({}, 1),
    "tanh and relu": (
        {"hidden": 1, "translation_activation": "tanh", "scale_activation": "relu"},
        2,
    ),
    "elu and softplus": (
        {
            "n_layers": 3,
            "translation_activation": "elu",
            "scale_activation": "softplus",
            "bounded_scale": False,
        },
        2,
    ),
    "affine": ({"linear": True, "hidden": 4}, 3),
    "silu and gelu": ({"translation_activation": "silu", "scale_activation": "gelu"}, 3),
}
N_POINTS = 6
NUMPY_ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
    "elu": lambda x: np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0))),
    # The usual approximation of x Phi(x).
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * special.expit(x),
    "softplus": lambda x: np.logaddexp(x, 0.0),
}


def numpy_flow(arguments, params, x):
    """Method notes, section 7, for one row and in place: the base's coordinates and the log-det."""
    y, log_det = x.copy(), 0.0
    if arguments.get("linear"):
        factors = [np.asarray(params[name]["factor"]) for name in ("frame", "affine")]
        frame, affine = (np.tril(f, -1) + np.diag(np.exp(np.diag(f))) for f in factors)
        y = affine @ frame @ (x - params["frame"]["shift"]) + params["affine"]["shift"]
        log_det, params = sum(np.trace(factor) for factor in factors), params["layers"]
    for layer, nets in enumerate(params):
        given, changed = (y[0::2], y[1::2]) if layer % 2 == 0 else (y[1::2], y[0::2])

        def net(name, activation, nets=nets, given=given):
            weights = {key: np.asarray(value) for key, value in nets[name].items()}
            hidden = given @ weights["hidden"] + weights["hidden_bias"]
            return NUMPY_ACTIVATIONS[activation](hidden) @ weights["last"] + weights["last_bias"]

        alpha = net("translation", arguments.get("translation_activation", "relu"))
        beta = net("log_scale", arguments.get("scale_activation", "tanh"))
        if arguments.get("bounded_scale", True):
            beta = np.asarray(nets["bound"]) * np.tanh(beta)
        changed[:] = np.exp(-beta / 2) * (changed - alpha)
        log_det -= beta.sum() / 2
    return y, log_det


def shapes_of(flow, n_features):
    return jax.eval_shape(lambda key: flow.init(key, n_features), jax.random.key(0))


def identity_params(flow, n_features):
    """All zeros but for the bounds, which start at 3."""
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape), shapes_of(flow, n_features))
    for layer in params["layers"] if flow.linear else params:
        if "bound" in layer:
            layer["bound"][:] = 3.0
    return params


def random_params(flow, n_features, seed=0):
    """Parameters away from the start, where flows are close to the identity."""
    rng = np.random.default_rng(seed)
    params = jax.tree.map(
        lambda leaf: leaf + 0.5 * rng.normal(size=leaf.shape), identity_params(flow, n_features)
    )
    for name in ("frame", "affine") if flow.linear else ():
        params[name]["factor"] = np.tril(params[name]["factor"])
    return params


class Case:
    """Everything there is to know of one flow at a few points, computed in one call."""

    def __init__(self, name):
        self.arguments, self.n_features = FLOWS[name]
        self.flow = flow = RealNVP(**self.arguments)
        self.x = np.random.default_rng(5).normal(size=(N_POINTS, self.n_features))
        self.params = random_params(flow, self.n_features)

        def everything(params, x):
            y, log_det = flow.forward(params, x)
            return {
                "y": y,
                "log_det": log_det,
                "back": flow.inverse(params, y),
                "log_prob": flow.log_prob(params, x),
                "jacobian": jax.jacfwd(lambda row: flow.forward(params, row)[0])(x),
            }

        with precision("float64"):
            found = quick_jit(jax.vmap(everything, (None, 0)))(self.params, self.x)
        self.found = jax.tree.map(np.asarray, found)


@pytest.fixture(scope="module", params=FLOWS)
def case(request):
    return Case(request.param)


def test_the_map_is_the_one_of_the_method_notes(case):
    for x, y, log_det in zip(case.x, case.found["y"], case.found["log_det"], strict=True):
        expected, expected_log_det = numpy_flow(case.arguments, case.params, x)
        np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(log_det, expected_log_det, rtol=1e-10, atol=1e-12)


def test_the_log_det_is_that_of_the_jacobian(case):
    sign, expected = np.linalg.slogdet(case.found["jacobian"])
    # Diagonal scales are positive; layers exchange no coordinates.
    np.testing.assert_array_equal(sign, 1.0)
    np.testing.assert_allclose(case.found["log_det"], expected, atol=1e-8)


def test_the_inverse_inverts(case):
    np.testing.assert_allclose(case.found["back"], case.x, atol=1e-8)


def test_the_density_is_the_bases_by_change_of_variables(case):
    base = stats.norm.logpdf(case.found["y"]).sum(axis=1)
    expected = base + np.linalg.slogdet(case.found["jacobian"])[1]
    np.testing.assert_allclose(case.found["log_prob"], expected, atol=1e-8)


def test_the_start_is_the_identity_or_close_to_it():
    x = np.random.default_rng(2).normal(size=(N_POINTS, 3))
    flows = [RealNVP(identity_start=True), RealNVP(identity_start=False)]

    def first_maps(key, x):
        return [jax.vmap(flow.forward, (None, 0))(flow.init(key, 3), x) for flow in flows]

    with precision("float64"):
        (same, no_change), (near, _) = quick_jit(first_maps)(jax.random.key(1), x)
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(no_change, 0.0)
    assert (np.asarray(near) != x).all()
    np.testing.assert_allclose(near, x, atol=1.0)


def place_and_sample(flow, params, n_draws, seed=4):
    """Put a flow somewhere and draw from it; returns rows less the centre, by the scale."""
    rng = np.random.default_rng(seed)
    centre = 2.0 * rng.normal(size=3)
    scale = np.exp(rng.uniform(-1.2, 1.2, 3))

    def draw(params, key, centre, scale):
        placed = flow.place(params, centre, scale)
        return jax.vmap(flow.sample, (None, 0))(placed, jax.random.split(key, n_draws))

    with precision("float64"):
        rows = np.asarray(quick_jit(draw)(params, jax.random.key(0), centre, scale))
    return (rows - centre) / scale


@pytest.mark.parametrize("bounded", [True, False])
def test_place_moves_and_scales_a_flow(bounded):
    """From the identity it is N(centre, scale^2): bounds are those of the sample's size."""
    n_draws = 4000
    flow = RealNVP(bounded_scale=bounded)
    standardised = place_and_sample(flow, identity_params(flow, 3), n_draws)
    assert (np.abs(standardised.mean(axis=0)) < 5 / np.sqrt(n_draws)).all()
    assert (np.abs(standardised.var(axis=0) - 1) < 5 * np.sqrt(2 / n_draws)).all()


def test_place_reaches_spreads_beyond_the_first_bound():
    """The bound of a bounded scale is raised where it has to be."""
    flow = RealNVP()

    def density_at_the_centre(params, scale):
        return flow.log_prob(flow.place(params, jnp.zeros(2), scale), jnp.zeros(2))

    with precision("float64"):
        density = quick_jit(density_at_the_centre)
        for scale in ([1e3, 1.0], [1.0, 1e-3], [20.0, 0.01]):
            found = density(identity_params(flow, 2), np.array(scale))
            assert float(found) == pytest.approx(-np.log(2 * np.pi) - np.log(scale).sum())
