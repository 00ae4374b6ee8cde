"""Mixtures of real NVP flows."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from pickmix.estimators.deep_mixture import DeepMixture
from pickmix.estimators.validation import check_choice, check_flag, check_integer

if TYPE_CHECKING:
    from pickmix.gradient.network import Network

ACTIVATIONS = ("relu", "tanh", "elu", "gelu", "silu", "softplus")


@dataclass(eq=False, repr=False)
class FlowMixture(DeepMixture):
    """Mixture of real NVP flows, fitted by visiting a few of them per row. Needs JAX.

    p(x) = sum_k weights_[k] N(f_k(x); 0, I) |det df_k/dx|, where f_k is a stack of coupling layers:
    one half of the coordinates is shifted and scaled, given the other half, by small networks.

    Parameters
    ----------
    n_components : int, default=8
        K.
    n_layers : int, default=2
        Coupling layers of a flow; they change the one and the other half in turn.
    hidden : int, default=10
        Width of the hidden layer of the networks for shift and scale.
    translation_activation, scale_activation : str, default="relu", "tanh"
        "relu", "tanh", "elu", "gelu", "silu" or "softplus".
    bounded_scale : bool, default=True
        Limit log-scales by a learnt bound times tanh.
    identity_start : bool, default=False
        Begin with flows that do nothing, instead of small random ones.

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
    >>> mixture = FlowMixture(n_components=16, max_steps=1000, random_state=0).fit(X)
    >>> bool(mixture.score(X) > -1.0)        # one Gaussian: -1.3
    True
    """

    n_components: int = 8
    _: KW_ONLY
    n_layers: int = 2
    hidden: int = 10
    translation_activation: str = "relu"
    scale_activation: str = "tanh"
    bounded_scale: bool = True
    identity_start: bool = False

    def _check_family(self) -> int:
        check_integer("n_components", self.n_components, 1)
        check_integer("n_layers", self.n_layers, 1)
        check_integer("hidden", self.hidden, 1)
        check_choice("translation_activation", self.translation_activation, ACTIVATIONS)
        check_choice("scale_activation", self.scale_activation, ACTIVATIONS)
        check_flag("bounded_scale", self.bounded_scale)
        check_flag("identity_start", self.identity_start)
        return self.n_components

    def _can_whiten(self) -> bool:
        return True

    def _network(self, n_features: int) -> Network:
        from pickmix.gradient.components import ComponentMixture
        from pickmix.gradient.realnvp import RealNVP

        flow = RealNVP(
            self.n_layers,
            self.hidden,
            self.translation_activation,
            self.scale_activation,
            bool(self.bounded_scale),
            bool(self.identity_start),
        )
        return ComponentMixture(flow, self.n_components, n_features)
