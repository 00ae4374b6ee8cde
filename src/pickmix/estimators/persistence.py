"""Fitted models on disk: arrays and JSON, never pickle, so that loading runs no foreign code."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from pickmix.data.files import replacing
from pickmix.data.typed_schema import TableSchema
from pickmix.selection.settings import RandomPartition

FORMAT_VERSION = 1
ARRAYS_FILE = "arrays.npz"
DESCRIPTION_FILE = "model.json"
# The description's name among the arrays.
_DESCRIPTION = "model"


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
        """Tell whether an attribute belongs to the fitted state."""
        public = attribute.endswith("_") and not attribute.startswith("_")
        return public or attribute in self.private_state


# Chains let warm_start go on where the fit ended, moments a stream.
_DEEP_STATE = ("_chain", "_moments", "_passes", "_split_seed")
# Modules go by name, so that loading one kind of model imports no other kind's engine.
SAVEABLE: dict[str, Saveable] = {
    # The chains let warm_start go on where the fit ended.
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
_ANY_SAVEABLE = " or ".join(SAVEABLE)


def save(model: BaseEstimator, path: str | os.PathLike[str]) -> Path:
    """Save a fitted model.

    Parameters
    ----------
    model : fitted estimator of pickmix
        Parameters that are objects or functions (callbacks, a Proposal, a RandomState, the
        component of a `Mixture`, ...) cannot be saved: they are left at their defaults, with a
        warning that names them. `load` takes them back.
    path : path
        One file if it ends in .npz, else a folder with `arrays.npz` and, for people to read,
        `model.json`. An earlier model there is replaced in one go: an interrupted save leaves it
        as it was.

    Returns
    -------
    path : Path

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import pickmix
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> mixture = pickmix.GaussianMixture(2, random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = pickmix.load(pickmix.save(mixture, f"{folder}/mixture.npz"))
    >>> bool((again.score_samples(X) == mixture.score_samples(X)).all())
    True
    """
    path = Path(path)
    if _entry_of(model) is None:
        raise TypeError(f"model must be a {_ANY_SAVEABLE}, got {type(model)!r}.")
    check_is_fitted(model)
    arrays: dict[str, np.ndarray] = {}
    description = {
        "format": FORMAT_VERSION,
        "pickmix": _package_version(),
        **_encode_model(model, "", arrays),
    }
    text = json.dumps(description, indent=2, allow_nan=False)
    arrays[_DESCRIPTION] = np.frombuffer(text.encode(), dtype=np.uint8)
    if path.suffix == ".npz":
        _write_arrays(path, arrays)
        return path
    if path.exists() and not path.is_dir():
        raise FileExistsError(f"{path}: expected a folder or a name ending in .npz, found a file.")
    is_new = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    try:
        # The arrays hold the description too: replacing this one file replaces the model.
        _write_arrays(path / ARRAYS_FILE, arrays)
    except OSError:
        if is_new:
            path.rmdir()
        raise
    with replacing(path / DESCRIPTION_FILE) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
    return path


def load(path: str | os.PathLike[str], **parameters: Any) -> Any:
    """Load a model that `save` wrote; its scores and predictions are the same to the last bit.

    Parameters
    ----------
    path : path
        Folder or .npz file.
    **parameters
        Parameters to set on the loaded model: what could not be saved, such as the component of a
        `Mixture`. Without its component a mixture can be loaded, but not asked anything.

    Returns
    -------
    model : fitted estimator

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import pickmix
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> mixture = pickmix.GaussianMixture(2, random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = pickmix.load(pickmix.save(mixture, f"{folder}/model"), warm_start=True)
    >>> again.warm_start, again.n_steps_ == mixture.n_steps_
    (True, True)
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: expected a saved model, found nothing there.")
    file = path / ARRAYS_FILE if path.is_dir() else path
    if not file.is_file():
        raise ValueError(
            f"{path}: expected a saved model, found a folder that has no {ARRAYS_FILE}."
        )
    with _open_arrays(file) as arrays:
        description = _read_description(path, arrays)
        try:
            model = _decode_model(description, arrays, parameters)
        except _Foreign as error:
            raise ValueError(f"{path}: {error}") from error
    _check_fitted(path, model)
    return model


class _Foreign(ValueError):
    """A description of what is no model of this package."""


def _entry_of(model: Any) -> Saveable | None:
    """How a model is saved; None of a user's subclass, which would come back as its parent."""
    entry = SAVEABLE.get(type(model).__name__)
    return entry if entry is not None and type(model).__module__ == entry.module else None


def _encode_model(model: Any, key: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """A model as JSON; names of its arrays begin with `key`."""
    entry = _entry_of(model)
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


def _decode_model(
    description: dict[str, Any],
    arrays: np.lib.npyio.NpzFile,
    parameters: dict[str, Any] | None = None,
) -> Any:
    name = description["class"]
    if name not in SAVEABLE:
        raise _Foreign(f"expected a {_ANY_SAVEABLE}, got a model of {name!r}.")
    entry = SAVEABLE[name]
    model = getattr(importlib.import_module(entry.module), name)()
    saved = {
        parameter: _decode(value, arrays) for parameter, value in description["parameters"].items()
    }
    _check_names(name, model, parameters or {})
    model.set_params(**entry.unnamed | saved | (parameters or {}))
    for attribute, value in description["attributes"].items():
        if not entry.holds(attribute):
            raise _Foreign(f"a {name} has no fitted attribute {attribute!r}.")
        setattr(model, attribute, _decode(value, arrays))
    return model


def _check_fitted(path: Path, model: Any) -> None:
    """Blame the file, and not what the model is asked later, for parameters that make no sense."""
    check = getattr(model, "_check_fitted", None)
    if check is None:
        return
    try:
        check()
    except (AttributeError, ValueError) as error:
        raise ValueError(f"{path}: the saved model is damaged: {error}") from error


def _check_names(name: str, model: BaseEstimator, parameters: dict[str, Any]) -> None:
    known = model.get_params(deep=False)
    for parameter in parameters:
        if parameter not in known:
            raise ValueError(
                f"load was given {parameter}=..., but the saved {name} has no such parameter, only "
                f"{', '.join(known)}."
            )


def _package_version() -> str:
    # Here and not above: this module is imported while pickmix itself is.
    from pickmix import __version__

    return __version__


def _write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    try:
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(
            error.errno, f"{path}: the model could not be saved ({error.strerror})"
        ) from error


@contextlib.contextmanager
def _open_arrays(path: Path) -> Iterator[np.lib.npyio.NpzFile]:
    # Opened here, as NumPy leaves damaged archives open.
    with open(path, "rb") as file:
        try:
            arrays = np.load(file, allow_pickle=False)
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"{path}: expected a saved model, but the file is damaged or of another kind."
            ) from error
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise ValueError(f"{path}: expected a saved model, got a single array.")
        try:
            yield arrays
        except (KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: the saved model is damaged: {error}") from error


def _read_description(path: Path, arrays: np.lib.npyio.NpzFile) -> dict[str, Any]:
    if _DESCRIPTION not in arrays.files:
        raise ValueError(f"{path}: expected a saved model, got other arrays: {arrays.files}.")
    description: dict[str, Any] = json.loads(arrays[_DESCRIPTION].tobytes())
    version = description.get("format")
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{path}: this pickmix ({_package_version()}) reads models of format "
            f"{FORMAT_VERSION}, got format {version!r}, written by pickmix "
            f"{description.get('pickmix')}."
        )
    return description


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
    elif _entry_of(value) is not None:
        return {"model": _encode_model(value, f"{key}.", arrays)}
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
        return _decode_model(content, arrays)
    items = [_decode(item, arrays) for item in content]
    return items if kind == "list" else tuple(items)
