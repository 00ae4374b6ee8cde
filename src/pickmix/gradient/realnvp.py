"""Real NVP flows (Dinh, Sohl-Dickstein and Bengio 2017) as mixture components."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from pickmix.gradient.components import standard_normal

Activation = Callable[[jax.Array], jax.Array]
ACTIVATIONS: dict[str, Activation] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
}
# Start of the bound of |beta|: scales within exp(+-1.5) of one another before training.
_FIRST_BOUND = 3.0
_LAST_LAYER = 0.1


@dataclass(frozen=True)
class RealNVP:
    """Coupling layers that shift and scale one half of the coordinates, given the other.

    Layer 1 conditions on the odd coordinates (the 1st, 3rd, ...), layer 2 on the even ones, and
    so on in turn. With conditioning half u and other half v:
    v <- exp(-beta(u) / 2) (v - alpha(u)), log-det = -1/2 sum beta. The base is N(0, I).

    With `linear`, a row first passes an affine map of the component, y = A L (x - mu) + c, with
    lower triangular A and L. mu and L are fixed: they come from a Gaussian, and gradients move A
    and c, whose units are then the Gaussian's own widths. (Gradients of L itself would have to
    cross all scales that narrow directions have.) A share of the component stays that Gaussian, so
    a flow that overfits its rows gives no row a density of nearly zero.
    """

    n_layers: int = 2
    #: Width of the one hidden layer of the nets alpha and beta.
    hidden: int = 10
    translation_activation: str = "relu"
    scale_activation: str = "tanh"
    #: beta = a tanh(net) with a learnt bound a, instead of beta = net.
    bounded_scale: bool = True
    #: Start with last layers of zero, where every flow is the identity; else small random ones.
    identity_start: bool = False
    linear: bool = False
    #: Share of a component that stays N(mu, (L'L)^-1); for `linear`.
    gaussian_share: float = 0.0

    #: Columns are mixed by nets anyway.
    mixes_columns: ClassVar[bool] = True

    @property
    def fixed(self) -> tuple[str, ...]:
        """Names of parameters that are not learnt."""
        return ("frame",) if self.linear else ()

    @property
    def takes_gaussians(self) -> bool:
        """Whether `from_gaussian` can be asked: only an affine map makes a flow any Gaussian."""
        return self.linear

    def n_parameters(self, n_features: int) -> int:
        """Free parameters of one flow over D coordinates."""
        total = n_features + n_features * (n_features + 1) // 2 if self.linear else 0
        for n_in, n_out in self._shapes(n_features):
            total += 2 * (n_in * self.hidden + self.hidden + self.hidden * n_out + n_out)
            total += n_out if self.bounded_scale else 0
        return total

    def _shapes(self, n_features: int) -> list[tuple[int, int]]:
        """Conditioning and changed coordinates of each layer."""
        halves = [self._halves(layer, n_features) for layer in range(self.n_layers)]
        return [
            (len(range(n_features)[given]), len(range(n_features)[changed]))
            for given, changed in halves
        ]

    def _halves(self, layer: int, n_features: int) -> tuple[slice, slice]:
        """Conditioning coordinates and changed ones."""
        odd, even = slice(0, n_features, 2), slice(1, n_features, 2)
        return (odd, even) if layer % 2 == 0 else (even, odd)

    def init(self, key: jax.Array, n_features: int) -> Any:
        """Draw weights: Glorot-uniform hidden layers, small last ones; affine maps do nothing."""
        layers = self._init_layers(key, n_features)
        if not self.linear:
            return layers
        nothing = {"shift": jnp.zeros(n_features), "factor": jnp.zeros((n_features, n_features))}
        return {"frame": nothing, "affine": nothing, "layers": layers}

    def _init_layers(self, key: jax.Array, n_features: int) -> list[dict[str, Any]]:
        shapes = self._shapes(n_features)
        sizes = [2 * (n_in * self.hidden + self.hidden * n + n) for n_in, n in shapes]
        # One draw for all: every call of a generator takes long to compile.
        draws = jnp.split(
            jax.random.uniform(key, (sum(sizes),), minval=-1.0, maxval=1.0),
            np.cumsum(sizes)[:-1].tolist(),
        )
        layers = []
        for (n_in, n_out), drawn in zip(shapes, draws, strict=True):
            translation, log_scale = jnp.split(drawn, 2)
            params: dict[str, Any] = {
                "translation": self._init_net(translation, n_in, n_out),
                "log_scale": self._init_net(log_scale, n_in, n_out),
            }
            if self.bounded_scale:
                params["bound"] = jnp.full(n_out, _FIRST_BOUND)
            layers.append(params)
        return layers

    def _init_net(self, drawn: jax.Array, n_in: int, n_out: int) -> dict[str, jax.Array]:
        """Weights of one net from draws in [-1, 1)."""
        width = np.sqrt(6.0 / max(1, n_in + self.hidden))
        # A uniform draw of standard deviation _LAST_LAYER over the hidden units.
        spread = 0.0 if self.identity_start else _LAST_LAYER * np.sqrt(3.0 / self.hidden)
        hidden, last, last_bias = jnp.split(
            drawn, [n_in * self.hidden, (n_in + n_out) * self.hidden]
        )
        return {
            "hidden": width * hidden.reshape(n_in, self.hidden),
            "hidden_bias": jnp.zeros(self.hidden),
            "last": spread * last.reshape(self.hidden, n_out),
            # Without inputs a bias is all that can make components differ.
            "last_bias": spread * last_bias,
        }

    def place(self, params: Any, centre: jax.Array, scale: jax.Array) -> Any:
        """Shift the flow by `centre` (D,) and scale it by `scale`, raising the bound if need be.

        The affine map does it, or else the first layer that changes a half, by the biases of its
        nets.
        """
        if self.linear:
            frame = {"shift": centre, "factor": jnp.diag(-jnp.log(scale))}
            return {**params, "frame": frame}
        placed = list(params)
        for layer in range(min(2, self.n_layers)):
            _, changed = self._halves(layer, centre.shape[0])
            nets = params[layer]
            log_scale = 2.0 * jnp.log(scale[changed])
            own = {}
            if self.bounded_scale:
                own["bound"] = jnp.maximum(nets["bound"], 1.25 * jnp.abs(log_scale))
                log_scale = jnp.arctanh(log_scale / own["bound"])
            moves = {"translation": centre[changed], "log_scale": log_scale}
            placed[layer] = (
                nets
                | own
                | {
                    name: nets[name] | {"last_bias": nets[name]["last_bias"] + move}
                    for name, move in moves.items()
                }
            )
        return placed

    def from_gaussian(self, params: Any, mean: jax.Array, precision_cholesky: jax.Array) -> Any:
        """Make the flow N(mean, (L'L)^-1), L = `precision_cholesky` (D, D) lower triangular.

        With `linear` alone; layers then begin as the identity.
        """
        log_diagonal = jnp.log(jnp.diagonal(precision_cholesky))
        factor = jnp.tril(precision_cholesky, -1) + jnp.diag(log_diagonal)
        layers = [
            layer
            | {
                name: layer[name]
                | {end: jnp.zeros_like(layer[name][end]) for end in ("last", "last_bias")}
                for name in ("translation", "log_scale")
            }
            for layer in params["layers"]
        ]
        nothing = jax.tree.map(jnp.zeros_like, params["affine"])
        return {"frame": {"shift": mean, "factor": factor}, "affine": nothing, "layers": layers}

    def _net(self, params: dict[str, jax.Array], x: jax.Array, activation: Activation) -> jax.Array:
        hidden = activation(x @ params["hidden"] + params["hidden_bias"])
        return hidden @ params["last"] + params["last_bias"]

    def _translation_and_scale(self, params: Any, given: jax.Array) -> tuple[jax.Array, jax.Array]:
        """alpha and beta, given the conditioning half."""
        alpha = self._net(params["translation"], given, ACTIVATIONS[self.translation_activation])
        beta = self._net(params["log_scale"], given, ACTIVATIONS[self.scale_activation])
        if self.bounded_scale:
            beta = params["bound"] * jnp.tanh(beta)
        return alpha, beta

    def _to_base(self, params: Any, x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        halves = [x[0::2], x[1::2]]
        log_det = jnp.zeros((), x.dtype)
        for layer, layer_params in enumerate(params):
            given, changed = layer % 2, 1 - layer % 2
            alpha, beta = self._translation_and_scale(layer_params, halves[given])
            halves[changed] = jnp.exp(-0.5 * beta) * (halves[changed] - alpha)
            log_det = log_det - 0.5 * jnp.sum(beta)
        return halves, log_det

    def forward(self, params: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Map a row (D,) to the base; also log |det| of the map."""
        if not self.linear:
            halves, log_det = self._to_base(params, x)
            return _interleave(halves), log_det
        y = _lower(params["frame"], x - params["frame"]["shift"])
        z = _lower(params["affine"], y) + params["affine"]["shift"]
        halves, log_det = self._to_base(params["layers"], z)
        return _interleave(halves), log_det + _log_det(params["frame"]) + _log_det(params["affine"])

    def inverse(self, params: Any, y: jax.Array) -> jax.Array:
        """Map a point of the base (D,) to a row."""
        layers = params["layers"] if self.linear else params
        halves = [y[0::2], y[1::2]]
        for layer in reversed(range(self.n_layers)):
            given, changed = layer % 2, 1 - layer % 2
            alpha, beta = self._translation_and_scale(layers[layer], halves[given])
            halves[changed] = jnp.exp(0.5 * beta) * halves[changed] + alpha
        z = _interleave(halves)
        if not self.linear:
            return z
        before = _solve_lower(params["affine"], z - params["affine"]["shift"])
        x: jax.Array = _solve_lower(params["frame"], before) + params["frame"]["shift"]
        return x

    def log_prob(self, params: Any, x: jax.Array) -> jax.Array:
        """Log-density of one row (D,)."""
        if not self.linear:
            return self._log_prob_of_layers(params, x)
        y = _lower(params["frame"], x - params["frame"]["shift"])
        z = _lower(params["affine"], y) + params["affine"]["shift"]
        bent = self._log_prob_of_layers(params["layers"], z) + _log_det(params["affine"])
        if self.gaussian_share:
            share, rest = float(np.log(self.gaussian_share)), float(np.log1p(-self.gaussian_share))
            bent = jnp.logaddexp(bent + rest, standard_normal(y) + share)
        return bent + _log_det(params["frame"])

    def _log_prob_of_layers(self, layers: Any, x: jax.Array) -> jax.Array:
        # The base looks the same in any order of coordinates.
        (odd, even), log_det = self._to_base(layers, x)
        return standard_normal(odd) + standard_normal(even) + log_det

    def location(self, params: Any) -> jax.Array:
        """Image (D,) of the base's mode."""
        return self.inverse(params, jnp.zeros(*self._base(params)))

    def normals(self, params: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Gaussians of flows (K, ...) that do not bend, in NumPy: XLA may hang in many solves.

        Shares (K, J), means (K, J, D) and square roots (K, J, D, D) of covariances. Nothing bends
        where last layers are zero. The shares of a flow that bends are zero.
        """
        layers = params["layers"] if self.linear else params
        nets = [layer[name] for layer in layers for name in ("translation", "log_scale")]
        K, D = nets[0]["last"].shape[0], nets[0]["hidden"].shape[1] + nets[0]["last"].shape[2]
        is_straight = ~np.any([net["last"].any(axis=(1, 2)) for net in nets], axis=0)
        centre, scale = np.zeros((K, D)), np.ones((K, D))
        for number in reversed(range(self.n_layers)):
            _, changed = self._halves(number, D)
            beta = layers[number]["log_scale"]["last_bias"]
            if self.bounded_scale:
                beta = layers[number]["bound"] * np.tanh(beta)
            shift = layers[number]["translation"]["last_bias"]
            centre[:, changed] = np.exp(0.5 * beta) * centre[:, changed] + shift
            scale[:, changed] *= np.exp(0.5 * beta)
        root = scale[:, :, None] * np.eye(D)
        if not self.linear:
            return is_straight[:, None] * 1.0, centre[:, None], root[:, None]
        affine, frame = params["affine"], params["frame"]
        inner, first = (
            np.linalg.inv(
                np.tril(m, -1) + np.exp(np.diagonal(m, axis1=1, axis2=2))[:, None] * np.eye(D)
            )
            for m in (affine["factor"], frame["factor"])
        )
        outer = first @ inner
        centre = (outer @ (centre - affine["shift"])[:, :, None])[:, :, 0] + frame["shift"]
        # If nothing was learnt, there is but one Gaussian.
        share = self.gaussian_share * (np.abs(outer @ root - first).max(axis=(1, 2)) > 0.0)
        share = np.where((centre == frame["shift"]).all(axis=1), share, self.gaussian_share)
        return (
            is_straight[:, None] * np.stack([1.0 - share, share], axis=1),
            np.stack([centre, frame["shift"]], axis=1),
            np.stack([outer @ root, first], axis=1),
        )

    def sample(self, params: Any, key: jax.Array) -> jax.Array:
        """Draw one row (D,)."""
        if not (self.linear and self.gaussian_share):
            return self.inverse(params, jax.random.normal(key, *self._base(params)))
        of_normal, of_share = jax.random.split(key)
        y = jax.random.normal(of_normal, *self._base(params))
        straight = _solve_lower(params["frame"], y) + params["frame"]["shift"]
        is_straight = jax.random.uniform(of_share) < self.gaussian_share
        return jnp.where(is_straight, straight, self.inverse(params, y))

    def _base(self, params: Any) -> tuple[tuple[int], Any]:
        """Shape and dtype of the base's points."""
        net = (params["layers"] if self.linear else params)[0]["translation"]
        return (net["hidden"].shape[0] + net["last"].shape[1],), net["last"].dtype


def _lower(affine: Any, x: jax.Array) -> jax.Array:
    """L x. `factor` holds L below its diagonal, zeros above, and the logs of L's diagonal."""
    factor = _remains_triangular(affine["factor"])
    diagonal = _diagonal(factor)
    product: jax.Array = factor @ x + (jnp.exp(diagonal) - diagonal) * x
    return product


@jax.custom_vjp
def _remains_triangular(matrix: jax.Array) -> jax.Array:
    """The matrix as it is, with gradients that are zero above its diagonal.

    `jnp.tril` would write the matrix anew at each evaluation.
    """
    return matrix


_remains_triangular.defvjp(
    lambda matrix: (matrix, None),
    lambda _, gradient: (gradient * np.tri(gradient.shape[0], dtype=gradient.dtype),),
)


def _diagonal(matrix: jax.Array) -> jax.Array:
    """Diagonal as a slice, which reads D numbers; that of `jnp.diagonal` is a sum over D^2."""
    return matrix.reshape(-1)[:: matrix.shape[0] + 1]


def _log_det(affine: Any) -> jax.Array:
    return jnp.sum(_diagonal(affine["factor"]))


def _solve_lower(affine: Any, y: jax.Array) -> jax.Array:
    """Invert `_lower`."""
    factor, y = jnp.asarray(affine["factor"]), jnp.asarray(y)
    below, diagonal = jnp.tril(factor, -1), _diagonal(factor)

    # Not by `solve_triangular`: XLA may hang where it runs many of them at once.
    def step(i: jax.Array, x: jax.Array) -> jax.Array:
        return x.at[i].set((y[i] - below[i] @ x) * jnp.exp(-diagonal[i]))

    solved: jax.Array = jax.lax.fori_loop(0, y.shape[0], step, jnp.zeros_like(y))
    return solved


def _interleave(halves: list[jax.Array]) -> jax.Array:
    """Put the odd and the even coordinates back in their places."""
    odd, even = halves
    n_features = odd.shape[0] + even.shape[0]
    padded = jnp.pad(even, (0, odd.shape[0] - even.shape[0]))
    return jnp.stack([odd, padded], axis=1).reshape(-1)[:n_features]
