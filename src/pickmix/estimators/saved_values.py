"""Models as JSON and arrays, and back.

A value becomes JSON; arrays go to a file of arrays, and JSON has their names.
"""

from __future__ import annotations

import importlib
import math
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from pickmix.data.typed_schema import TableSchema
from pickmix.selection.settings import RandomPartition


@dataclass(frozen=True)
class Saveable:
    """A class that can be saved.

    Attributes
    ----------
    module : str
        Where it lives.
    private_state : tuple of str
        Its state beyond names that end in `_`.
    unnamed : dict
        Parameters that older files do not name, and what they were then.
    """

    module: str
    private_state: tuple[str, ...] = ()
    unnamed: dict[str, Any] = field(default_factory=dict)

    def holds(self, attribute: str) -> bool:
        """Whether an attribute belongs to the fitted state."""
        public = attribute.endswith("_") and not attribute.startswith("_")
        return public or attribute in self.private_state


# Chains let warm_start continue where the fit ended, moments a stream.
_DEEP_STATE = ("_chain", "_moments", "_passes", "_split_seed")
# Modules go by name, so that loading one kind of model imports no other kind's engine.
SAVEABLE: dict[str, Saveable] = {
    "GaussianMixture": Saveable(
        "pickmix.estimators.gaussian_mixture",
        ("_chain", "_effective_counts", "_fitted_structure", "_passes"),
    ),
    "FamilyMixture": Saveable(
        "pickmix.estimators.family_mixture",
        ("_chain", "_effective_counts", "_fitted_description", "_passes"),
    ),
    "TableMixture": Saveable("pickmix.estimators.table_mixture"),
    "FlowMixture": Saveable("pickmix.estimators.flow_mixture", _DEEP_STATE, {"linear": False}),
    "SumProductTransformNetwork": Saveable(
        "pickmix.estimators.sum_product_transform_network", _DEEP_STATE
    ),
    "Mixture": Saveable("pickmix.estimators.mixture", _DEEP_STATE),
}
ANY_SAVEABLE = " or ".join(SAVEABLE)


class ForeignError(ValueError):
    """A description of something that is not a model of this package."""


class UnknownParameterError(ValueError):
    """The caller, not the file, names a parameter that there is not."""


def entry_of(model: Any) -> Saveable | None:
    """How a model is saved; None for a user's subclass, which would come back as its parent."""
    entry = SAVEABLE.get(type(model).__name__)
    return entry if entry is not None and type(model).__module__ == entry.module else None


def encode_model(model: Any, key: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """A model as JSON; names of its arrays begin with `key`."""
    entry = entry_of(model)
    assert entry is not None
    return {
        "class": type(model).__name__,
        "parameters": _encode_parameters(model, key, arrays),
        "attributes": {
            attribute: _encode(value, f"{key}attributes.{attribute}", arrays)
            for attribute, value in sorted(vars(model).items())
            if entry.holds(attribute)
        },
    }


def decode_model(
    description: dict[str, Any],
    arrays: np.lib.npyio.NpzFile,
    parameters: dict[str, Any] | None = None,
) -> Any:
    """The model of a description; `parameters` replace those that were saved."""
    name = description["class"]
    if name not in SAVEABLE:
        raise ForeignError(f"expected a {ANY_SAVEABLE}, got a model of {name!r}.")
    entry = SAVEABLE[name]
    model = getattr(importlib.import_module(entry.module), name)()
    saved = {
        parameter: _decode(value, arrays) for parameter, value in description["parameters"].items()
    }
    _check_names(name, model, parameters or {})
    model.set_params(**entry.unnamed | saved | (parameters or {}))
    for attribute, value in description["attributes"].items():
        if not entry.holds(attribute):
            raise ForeignError(f"a {name} has no fitted attribute {attribute!r}.")
        setattr(model, attribute, _decode(value, arrays))
    return model


def _check_names(name: str, model: BaseEstimator, parameters: dict[str, Any]) -> None:
    known = model.get_params(deep=False)
    for parameter in parameters:
        if parameter not in known:
            raise UnknownParameterError(
                f"load was given {parameter}=..., but the saved {name} has no such parameter, only "
                f"{', '.join(known)}."
            )


def _encode_parameters(
    model: BaseEstimator, key: str, arrays: dict[str, np.ndarray]
) -> dict[str, Any]:
    encoded, left_out = {}, {}
    for name, value in model.get_params(deep=False).items():
        try:
            encoded[name] = _encode(value, f"{key}parameters.{name}", arrays)
        except _CannotEncode:
            left_out[name] = value
    # Of a model within a model: it has the parameters of the outer one, which are warned of.
    if left_out and not key:
        listed = ", ".join(f"{name}={value!r}" for name, value in left_out.items())
        given_back = ", ".join(f"{name}=..." for name in left_out)
        warnings.warn(
            f"Not saved, as they are objects or functions: {listed}. The loaded model has the "
            f"defaults in their place, unless you give them back: load(path, {given_back}).",
            UserWarning,
            stacklevel=4,
        )
    return encoded


class _CannotEncode(TypeError):
    pass


def _encode(value: Any, key: str, arrays: dict[str, np.ndarray]) -> Any:
    """Turn a value into JSON. Arrays go to `arrays`; a dictionary of one entry names a kind."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        # Only pickle could save objects, but scikit-learn keeps feature names as str objects.
        if all(type(item) is str for item in value.flat) and value.ndim == 1:
            return {"strings": value.tolist()}
    elif isinstance(value, np.ndarray | np.generic):
        arrays[key] = np.asarray(value)
        return {"array" if isinstance(value, np.ndarray) else "scalar": key}
    elif type(value) in (list, tuple):
        items = [_encode(item, f"{key}.{place}", arrays) for place, item in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": items}
    elif type(value) is dict and all(type(name) is str for name in value):
        entries = {name: _encode(item, f"{key}.{name}", arrays) for name, item in value.items()}
        return {"dict": entries}
    elif isinstance(value, Path):
        return {"path": str(value)}
    elif type(value) is RandomPartition:
        return {"partition": _encode(vars(value), key, arrays)}
    elif type(value) is TableSchema:
        return {"schema": _encode(value.as_dict(), key, arrays)}
    elif entry_of(value) is not None:
        return {"model": encode_model(value, f"{key}.", arrays)}
    raise _CannotEncode(f"{key}: cannot save {value!r}")


def _decode(value: Any, arrays: np.lib.npyio.NpzFile) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "float":
        return float(content)
    if kind == "strings":
        return np.array(content, dtype=object)
    if kind in ("array", "scalar"):
        array = arrays[content]
        return array if kind == "array" else array[()]
    if kind == "dict":
        return {name: _decode(item, arrays) for name, item in content.items()}
    if kind == "path":
        return Path(content)
    if kind == "partition":
        return RandomPartition(**_decode(content, arrays))
    if kind == "schema":
        return TableSchema.from_dict(_decode(content, arrays))
    if kind == "model":
        return decode_model(content, arrays)
    items = [_decode(item, arrays) for item in content]
    return items if kind == "list" else tuple(items)
