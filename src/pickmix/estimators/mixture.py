"""Mixtures of the user's own components."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pickmix.estimators.deep_mixture import DeepMixture
from pickmix.estimators.validation import check_integer

if TYPE_CHECKING:
    from pickmix.gradient.network import Network


class Mixture(DeepMixture):
    """Mixture of any differentiable component, fitted by visiting a few of them per row. Needs JAX.

    Parameters
    ----------
    component : object
        `init(key, n_features)` draws the parameters of one component, an array or a dict, list or
        tuple of them; `log_prob(params, x)` is its log-density at one row x (D,). Written with
        `jax.numpy`; pickmix vectorises and differentiates. Optional: `sample(params, key)` draws a
        row, for `sample`; `place(params, centre, scale)` returns parameters of a component moved to
        `centre` with spread `scale`, both (D,), for `init_params="data"`; `location(params)`
        returns a point (D,) amid the component, for `proposal="partition"` (else the mean of a few
        samples is taken; without `sample`, blocks know no neighbours).
    n_components : int, default=8
        K.

    Notes
    -----
    All other parameters and the attributes are those of `DeepMixture`. `pickmix.save` cannot save
    the component; give it back when loading: `pickmix.load(path, component=...)`.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> from pickmix import Mixture
    >>> class Laplace:
    ...     def init(self, key, n_features):
    ...         return {"median": jax.random.normal(key, (n_features,)),
    ...                 "log_width": jnp.zeros(n_features)}
    ...     def log_prob(self, params, x):
    ...         distance = jnp.abs(x - params["median"]) * jnp.exp(-params["log_width"])
    ...         return -jnp.sum(distance + params["log_width"] + jnp.log(2.0))
    >>> X = np.random.default_rng(0).laplace(size=(500, 2))
    >>> mixture = Mixture(Laplace(), 4, max_steps=300, random_state=0).fit(X)
    >>> mixture.score_samples(X).shape
    (500,)
    """

    def __init__(
        self,
        component=None,
        n_components=8,
        *,
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
        self.component = component
        self.n_components = n_components
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
        self._check_component()

    def _check_component(self) -> None:
        missing = [name for name in ("init", "log_prob") if not hasattr(self.component, name)]
        if missing:
            raise ValueError(
                "component must have methods init(key, n_features) and log_prob(params, x), got "
                f"{self.component!r}, which has no {' and no '.join(missing)}."
            )

    def _network(self, n_features: int) -> Network:
        from pickmix.gradient.components import ComponentMixture

        self._check_component()
        return ComponentMixture(self.component, self.n_components, n_features)
