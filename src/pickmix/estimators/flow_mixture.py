"""Mixtures of real NVP flows."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from sklearn.utils.validation import check_is_fitted

from pickmix.checks import check_choice, check_flag, check_integer, check_number
from pickmix.estimators.deep_mixture import DeepMixture
from pickmix.gradient.settings import check_number_of

if TYPE_CHECKING:
    from pickmix.gradient.network import Network

ACTIVATIONS = ("relu", "tanh", "elu", "gelu", "silu", "softplus")


@dataclass(eq=False, repr=False)
class FlowMixture(DeepMixture):
    """Mixture of real NVP flows, fitted by visiting a few of them per row. Needs JAX.

    ``p(x) = sum_k weights_[k] N(f_k(x); 0, I) |det df_k/dx|``, where f_k is an affine map and then
    a stack of coupling layers: one half of the coordinates is shifted and scaled, given the other
    half, by small networks. The fit begins where a Gaussian mixture ends: its components are the
    affine maps, and layers begin as the identity.

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        K. "auto" takes the number that GaussianMixture chooses, at most 8192, a half or a quarter
        of it. It fits flows with that K and with a quarter of it. Validation rows decide.
    n_layers : int, default=2
        Coupling layers of a flow; they change the two halves in turn.
    hidden : int, default=10
        Width of the hidden layer of the networks for shift and scale.
    translation_activation, scale_activation : str, default="relu", "tanh"
        "relu", "tanh", "elu", "gelu", "silu" or "softplus".
    bounded_scale : bool, default=True
        Limit log-scales by a learnt bound times tanh.
    identity_start : bool, default=False
        Begin with layers that do nothing, instead of small random ones. A Gaussian start always
        has such layers.
    linear : bool, default=True
        Whether a flow begins with an affine map. False is the paper's family, which cannot begin
        with Gaussians.
    gaussian_share : float, default=0.01
        With `linear`: share of each component that stays the Gaussian of its start. If a flow
        overfits its rows, other rows still have at least this share of the density that the
        Gaussian gave them.

    Attributes
    ----------
    n_components_ : int
        K.

    References
    ----------
    L. Dinh, J. Sohl-Dickstein, S. Bengio: Density estimation using real NVP, 2017.
    M. Papež, T. Pevný, V. Šmídl: Fitting large mixture models using stochastic component
    selection, 2022.

    Examples
    --------
    >>> import numpy as np
    >>> from pickmix import FlowMixture
    >>> rng = np.random.default_rng(0)
    >>> angle = rng.uniform(0, np.pi, 1000)
    >>> X = np.stack([np.cos(angle), np.sin(angle)], axis=1) + rng.normal(0, 0.1, (1000, 2))
    >>> mixture = FlowMixture(n_components=4, max_steps=100, random_state=0).fit(X)
    >>> bool(mixture.score(X) > -0.4)        # one Gaussian: -1.3, four of them: -0.5
    True
    """

    n_components: int | str = "auto"
    _: KW_ONLY
    n_layers: int = 2
    hidden: int = 10
    translation_activation: str = "relu"
    scale_activation: str = "tanh"
    bounded_scale: bool = True
    identity_start: bool = False
    linear: bool = True
    gaussian_share: float = 0.01

    def _check_family(self) -> int | None:
        check_integer("n_layers", self.n_layers, 1)
        check_integer("hidden", self.hidden, 1)
        check_choice("translation_activation", self.translation_activation, ACTIVATIONS)
        check_choice("scale_activation", self.scale_activation, ACTIVATIONS)
        check_flag("bounded_scale", self.bounded_scale)
        check_flag("identity_start", self.identity_start)
        check_flag("linear", self.linear)
        check_number("gaussian_share", self.gaussian_share, 0.0)
        if self.gaussian_share >= 1.0:
            raise ValueError(
                f"gaussian_share must be a number in [0, 1), got {self.gaussian_share!r}."
            )
        if not self.linear and self.init_params == "gaussian":
            raise ValueError(
                "init_params must not be 'gaussian' with linear=False, got 'gaussian'."
            )
        if not self.linear and self.n_components == "auto":
            raise ValueError("n_components must be an integer with linear=False, got 'auto'.")
        return check_number_of(self, "n_components", self.n_components)

    @property
    def n_components_(self) -> int:
        """K, as it was fitted."""
        check_is_fitted(self)
        return int(self.weights_.shape[0])

    def _network(self, n_features: int, n_children: int | None = None) -> Network:
        from pickmix.gradient.components import ComponentMixture
        from pickmix.gradient.realnvp import RealNVP

        flow = RealNVP(
            self.n_layers,
            self.hidden,
            self.translation_activation,
            self.scale_activation,
            bool(self.bounded_scale),
            bool(self.identity_start),
            bool(self.linear),
            float(self.gaussian_share) if self.linear else 0.0,
        )
        return ComponentMixture(flow, self._n_children(n_children), n_features)
