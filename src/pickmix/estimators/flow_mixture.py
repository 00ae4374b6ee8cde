"""Mixtures of real NVP flows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pickmix.estimators.deep_mixture import DeepMixture
from pickmix.estimators.validation import check_choice, check_flag, check_integer

if TYPE_CHECKING:
    from pickmix.gradient.network import Network

ACTIVATIONS = ("relu", "tanh", "elu", "gelu", "silu", "softplus")


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

    Notes
    -----
    All other parameters and the attributes are those of `DeepMixture`.

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

    def __init__(
        self,
        n_components=8,
        *,
        n_layers=2,
        hidden=10,
        translation_activation="relu",
        scale_activation="tanh",
        bounded_scale=True,
        identity_start=False,
        algorithm="mhsaem",
        proposal="uniform",
        n_samples=1,
        reuse_log_joint=False,
        batch_size=100,
        max_steps=20000,
        max_time=None,
        learning_rate=1e-3,
        adam="row",
        weight_update="auto",
        step_size="auto",
        annealing=None,
        gradient_clip=None,
        init_params="auto",
        standardize="auto",
        validation_fraction=0.1,
        patience=20,
        tol=1e-4,
        evaluate_every="auto",
        dtype="float32",
        random_state=None,
        warm_start=False,
        verbose=0,
        callbacks=(),
    ):
        self.n_components = n_components
        self.n_layers = n_layers
        self.hidden = hidden
        self.translation_activation = translation_activation
        self.scale_activation = scale_activation
        self.bounded_scale = bounded_scale
        self.identity_start = identity_start
        self.algorithm = algorithm
        self.proposal = proposal
        self.n_samples = n_samples
        self.reuse_log_joint = reuse_log_joint
        self.batch_size = batch_size
        self.max_steps = max_steps
        self.max_time = max_time
        self.learning_rate = learning_rate
        self.adam = adam
        self.weight_update = weight_update
        self.step_size = step_size
        self.annealing = annealing
        self.gradient_clip = gradient_clip
        self.init_params = init_params
        self.standardize = standardize
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.tol = tol
        self.evaluate_every = evaluate_every
        self.dtype = dtype
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose
        self.callbacks = callbacks

    def _check_family(self) -> None:
        check_integer("n_components", self.n_components, 1)
        check_integer("n_layers", self.n_layers, 1)
        check_integer("hidden", self.hidden, 1)
        check_choice("translation_activation", self.translation_activation, ACTIVATIONS)
        check_choice("scale_activation", self.scale_activation, ACTIVATIONS)
        check_flag("bounded_scale", self.bounded_scale)
        check_flag("identity_start", self.identity_start)

    def _frames(self) -> tuple[str, ...]:
        return ("columns",) if self.init_params == "paper" else ("columns", "whiten")

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
