"""A plain mixture: K components of one differentiable family, written for one row."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from pickmix.gradient.compilation import DType, compiled
from pickmix.gradient.network import (
    LOCATION_DRAWS,
    Network,
    Scalar,
    Tables,
    Unflatten,
    flatten,
    shape_of,
)


class Component(Protocol):
    """A density with parameters. Its author writes it for one component and one row."""

    def init(self, key: jax.Array, n_features: int) -> Any:
        """Draw the parameters of one component: an array, or a dict, list or tuple of them."""
        ...

    def log_prob(self, params: Any, x: jax.Array) -> jax.Array:
        """Log-density of one row x (D,), a scalar."""
        ...


class ComponentMixture(Network):
    """K components of a family.

    A component may also have `sample(params, key) -> (D,)`, which lets the mixture draw rows,
    `place(params, centre, scale) -> params`, which lets a start put it where the data are,
    `from_gaussian(params, mean, precision_cholesky) -> params`, which makes it a Gaussian,
    `normals(params)` of all components, J Gaussians that each is, as in `Network.normals`, and
    `location(params) -> (D,)`, by which random partitions find neighbours. `fixed` may name keys of
    its parameters, a dict then, that gradients leave alone.
    """

    def __init__(self, component: Component, n_components: int, n_features: int) -> None:
        self.component = component
        self.n_features = n_features
        self.n_children = n_components
        self.slots = (1,)
        self.fixed: tuple[str, ...] = tuple(getattr(component, "fixed", ()))
        self.unflatteners = tuple(Unflatten(part) for part in self._split(self._init_shape()))
        self.shapes = tuple((n_components, each.width) for each in self.unflatteners)

    def _init_shape(self) -> Any:
        example = jax.eval_shape(lambda: self.component.init(jax.random.key(0), self.n_features))
        leaves = jax.tree.leaves(example)
        if not leaves or not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
            raise ValueError(
                f"component.init must return an array of floats or a tree of them, got {example!r}."
            )
        x = shape_of((self.n_features,), leaves[0].dtype)
        value = jax.eval_shape(self.component.log_prob, example, x)
        if getattr(value, "shape", None) != ():
            raise ValueError(
                "component.log_prob must return a scalar for one row x of shape "
                f"({self.n_features},), got {value!r}."
            )
        return example

    @property
    def n_parameters(self) -> int:
        count = getattr(self.component, "n_parameters", None)
        if count is None:
            return super().n_parameters
        return int(self.n_children * (count(self.n_features) + 1) - 1)

    def _split(self, params: Any) -> tuple[Any, ...]:
        """Parameters that are learnt, and the fixed ones if there are any."""
        if not self.fixed:
            return (params,)
        learnt = {name: value for name, value in params.items() if name not in self.fixed}
        return learnt, {name: params[name] for name in self.fixed}

    def _join(self, parts: Sequence[Any]) -> Any:
        """Invert `_split`."""
        return {**parts[0], **parts[1]} if self.fixed else parts[0]

    def params_of(self, tables: Tables) -> Any:
        """Named parameters of tables, or of other arrays (..., width)."""
        return self._join(
            [unflatten(table) for unflatten, table in zip(self.unflatteners, tables, strict=True)]
        )

    def tables_of(self, params: Any, dtype: DType) -> Tables:
        """Tables of named parameters (K, ...)."""
        return tuple(flatten(part, 1).astype(dtype) for part in self._split(params))

    @property
    def learns(self) -> tuple[bool, ...]:
        return (True, False) if self.fixed else (True,)

    @property
    def key(self) -> tuple[Hashable, ...]:
        component: Any = self.component
        try:
            hash(component)
        except TypeError:
            component = id(component)
        return (component, self.n_children, self.n_features)

    def start(self, seed: int, dtype: np.dtype) -> Tables:
        keys = jax.random.split(jax.random.key(seed % 2**32), self.n_children)
        tables: Tables = compiled(_start, self, np.dtype(dtype))(keys)
        return tables

    @property
    def mixes_columns(self) -> bool:
        return bool(getattr(self.component, "mixes_columns", False))

    @property
    def places(self) -> bool:
        return getattr(self.component, "place", None) is not None

    def place(self, tables: Tables, centres: np.ndarray, scales: np.ndarray, seed: int) -> Tables:
        return self._apply("place", tables, centres, scales)

    @property
    def takes_gaussians(self) -> bool:
        has_method = getattr(self.component, "from_gaussian", None) is not None
        return has_method and bool(getattr(self.component, "takes_gaussians", True))

    def take_gaussians(
        self, tables: Tables, means: np.ndarray, cholesky: np.ndarray, seed: int
    ) -> Tables:
        return self._apply("from_gaussian", tables, means, cholesky)

    def _apply(self, method: str, tables: Tables, *arrays: np.ndarray) -> Tables:
        given = [jnp.asarray(array, tables[0].dtype) for array in arrays]
        applied: Tables = compiled(_apply, self, method)(tables, *given)
        return applied

    @property
    def location_draws(self) -> int:
        if hasattr(self.component, "location"):
            return 1
        return LOCATION_DRAWS if hasattr(self.component, "sample") else 0

    def locations(self, tables: Tables) -> jax.Array:
        params = self.params_of(tables)
        locate = getattr(self.component, "location", None)
        if locate is not None:
            located: jax.Array = jax.vmap(locate)(params)
            return located
        # The same draws for all: what they are off by is much the same for alike components.
        keys = jax.random.split(jax.random.key(0), LOCATION_DRAWS)
        component: Any = self.component
        by_draws = jax.vmap(component.sample, in_axes=(None, 0))
        draws: jax.Array = jax.vmap(by_draws, in_axes=(0, None))(params, keys)
        return draws.mean(axis=1)

    def normals(self, tables: Tables) -> tuple[Any, ...] | None:
        of_component = getattr(self.component, "normals", None)
        if of_component is None:
            return None
        found = of_component(jax.tree.map(np.asarray, self.params_of(tables)))
        joined = [value.reshape(-1, *value.shape[2:]) for value in found]
        return np.repeat(np.arange(self.n_children), found[0].shape[1]), *joined

    def rows(self, choices: jax.Array) -> tuple[jax.Array, ...]:
        return (choices,) * len(self.shapes)

    def unpack(self, records: Tables) -> Any:
        return self.params_of(tuple(record[..., 0, :] for record in records))

    def gather(self, tables: Tables, choices: jax.Array) -> Any:
        by_table = zip(self.unflatteners, tables, strict=True)
        return self._join([each.gather(table, choices[:, 0]) for each, table in by_table])

    def pack(self, parameters: Any) -> Tables:
        return tuple(flatten(part, 1)[:, None, :] for part in self._split(parameters))

    def log_density(self, parameters: Any, choices: jax.Array, x: jax.Array) -> jax.Array:
        return jax.vmap(self.component.log_prob)(parameters, x)

    def log_density_all(self, tables: Tables, x: jax.Array, beta: Scalar = 1.0) -> jax.Array:
        # Components outside, rows inside: products with one component's matrices become one
        # matrix product over rows.
        by_rows = jax.vmap(self.component.log_prob, in_axes=(None, 0))
        return beta * jax.vmap(by_rows, in_axes=(0, None), out_axes=1)(self.params_of(tables), x)

    def sample(self, tables: Tables, choices: jax.Array, key: jax.Array) -> jax.Array:
        draw = getattr(self.component, "sample", None)
        if draw is None:
            raise TypeError(
                "sample needs a component with a method sample(params, key), and "
                f"{type(self.component).__name__} has none. Answers about missing values need it."
            )
        keys = jax.random.split(key, choices.shape[0])
        drawn: jax.Array = jax.vmap(draw)(self.gather(tables, choices), keys)
        return drawn


def _start(network: ComponentMixture, dtype: np.dtype, keys: jax.Array) -> Tables:
    params = jax.vmap(lambda key: network.component.init(key, network.n_features))(keys)
    return network.tables_of(params, dtype)


def _apply(
    network: ComponentMixture, method: str, tables: Tables, first: jax.Array, second: jax.Array
) -> Tables:
    """Apply a method (params, array, array) -> params of the component to all components."""
    by_component = jax.vmap(getattr(network.component, method))
    params = by_component(network.params_of(tables), first, second)
    return network.tables_of(params, tables[0].dtype)


def standard_normal(y: jax.Array) -> jax.Array:
    """Log-density of N(0, I) at y (D,)."""
    return -0.5 * (jnp.sum(y * y) + y.shape[-1] * float(np.log(2.0 * np.pi)))
