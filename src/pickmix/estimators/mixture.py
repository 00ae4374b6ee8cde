"""Mixtures of the user's own components."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pickmix.estimators.deep_mixture import DeepMixture
from pickmix.gradient.settings import check_number_of

if TYPE_CHECKING:
    from pickmix.gradient.components import Component
    from pickmix.gradient.network import Network


@dataclass(eq=False, repr=False)
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
        returns a point (D,) in the middle of the component, for `proposal="partition"` (else it is
        the mean of a few samples; without `sample`, blocks are drawn without regard to distance);
        `from_gaussian(params, mean, precision_cholesky)` returns parameters of a component that is
        N(mean, (L'L)^-1), L = `precision_cholesky` (D, D) lower triangular, for
        `init_params="gaussian"`; `fixed` names keys of a dict of parameters that stay as they are.
    n_components : int or "auto", default=8
        K. "auto" chooses it, as FlowMixture does, for a component with a `from_gaussian`.

    Notes
    -----
    `pickmix.save` cannot save the component; give it back when loading:
    ``pickmix.load(path, component=...)``.

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

    component: Component | None = None
    n_components: int | str = 8

    def _check_family(self) -> int | None:
        component = self._checked_component()
        number = check_number_of(self, "n_components", self.n_components)
        if number is None and not hasattr(component, "from_gaussian"):
            raise ValueError(
                "n_components must be an integer for a component without a method "
                "from_gaussian(params, mean, precision_cholesky), got 'auto'."
            )
        return number

    def _checked_component(self) -> Component:
        missing = [name for name in ("init", "log_prob") if not hasattr(self.component, name)]
        if missing or self.component is None:
            raise ValueError(
                "component must have methods init(key, n_features) and log_prob(params, x), got "
                f"{self.component!r}, which has no {' and no '.join(missing)}."
            )
        return self.component

    def _network(self, n_features: int, n_children: int | None = None) -> Network:
        from pickmix.gradient.components import ComponentMixture

        component = self._checked_component()
        return ComponentMixture(component, self._n_children(n_children), n_features)
