"""Fitted models on disk: arrays and JSON, never pickle, so that loading runs no foreign code.

A model is described by JSON; its arrays are files of an uncompressed archive, and JSON has their
names.
"""

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
from typing import IO, Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from pickmix.estimators.validation import check_array_parameter, check_fitted_weights
from pickmix.inputs.files import replacing
from pickmix.inputs.schema import TableSchema
from pickmix.selection.settings import RandomPartition

FORMAT_VERSION = 1
ARRAYS_FILE = "arrays.npz"
DESCRIPTION_FILE = "model.json"
# The description's name among the arrays.
_DESCRIPTION = "model"


def save(model: BaseEstimator, path: str | os.PathLike[str]) -> Path:
    """Save a fitted model.

    Parameters
    ----------
    model : fitted estimator of pickmix
        Parameters that are objects or functions (callbacks, a Proposal, a RandomState, the
        component of a `Mixture`, ...) cannot be saved: they are left at their defaults, with a
        warning that names them. `load` takes them back.
    path : path
        One file if it ends in .npz, else a folder with two files: `arrays.npz` holds the model,
        `model.json` is a copy of its description for people to read. Folders that do not exist are
        made. An earlier model there is replaced in one go: an interrupted save leaves it as it was.

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
    if entry_of(model) is None:
        raise TypeError(f"model must be a {ANY_SAVEABLE}, got {type(model)!r}.")
    check_is_fitted(model)
    arrays: dict[str, np.ndarray] = {}
    description = {
        "format": FORMAT_VERSION,
        "pickmix": _package_version(),
        **encode_model(model, "", arrays),
    }
    text = json.dumps(description, indent=2, allow_nan=False)
    arrays[_DESCRIPTION] = np.frombuffer(text.encode(), dtype=np.uint8)
    if path.suffix == ".npz":
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_arrays(path, arrays)
        return path
    if path.exists() and not path.is_dir():
        raise FileExistsError(f"{path}: expected a folder or a name ending in .npz, found a file.")
    is_new = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    try:
        # The arrays hold the description too: replacing this one file replaces the model.
        _write_arrays(path / ARRAYS_FILE, arrays, copy=path / DESCRIPTION_FILE)
    except OSError:
        if is_new:
            path.rmdir()
        raise
    with replacing(path / DESCRIPTION_FILE) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
    return path


def holds_model(path: str | os.PathLike[str]) -> bool:
    """Whether a folder or an .npz file holds a saved model; it is not read."""
    path = Path(path)
    file = path / ARRAYS_FILE if path.is_dir() else path
    try:
        with zipfile.ZipFile(file) as archive:
            return f"{_DESCRIPTION}.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def load(path: str | os.PathLike[str], **parameters: Any) -> Any:
    """Load a model that `save` wrote; its scores and predictions are the same to the last bit.

    Parameters
    ----------
    path : path
        Folder or .npz file. A `model.json` in the folder is for people: if it differs from what
        `arrays.npz` says, it is warned of and not read.
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
        if path.is_dir():
            _compare_copy(path / DESCRIPTION_FILE, description)
        with _blaming(path):
            model = decode_model(description, arrays, parameters)
            # Later, what the model is asked would be blamed for parameters that make no sense.
            _check_fitted(model)
    return model


def _compare_copy(copy: Path, description: dict[str, Any]) -> None:
    """Warn if model.json is not the description of the arrays."""
    try:
        same = json.loads(copy.read_text(encoding="utf-8")) == description
    except FileNotFoundError:
        return
    except (ValueError, RecursionError):
        same = False
    if not same:
        warnings.warn(
            f"{copy}: expected a copy of the model's description, got something else. The model is "
            f"read from {ARRAYS_FILE}; save it again, or delete {copy.name}.",
            UserWarning,
            stacklevel=3,
        )


@contextlib.contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """Blame the file for whatever its content makes fail."""
    try:
        yield
    except UnknownParameterError:
        raise
    except ForeignError as error:
        raise ValueError(f"{path}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path}: the saved model is damaged: {error}") from error
    except (AttributeError, LookupError, TypeError) as error:
        # What Python says of them does not name their kind.
        what = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{path}: the saved model is damaged: its description makes no model ({what})"
        ) from error


def _package_version() -> str:
    # Here and not above: this module is imported while pickmix itself is.
    from pickmix import __version__

    return __version__


def _write_arrays(path: Path, arrays: dict[str, np.ndarray], copy: Path | None = None) -> None:
    """Write arrays in one go; `copy`, which describes the arrays before them, is removed."""
    try:
        with replacing(path) as temporary:
            with open(temporary, "wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())
            if copy is not None:
                copy.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(
            error.errno, f"{path}: the model could not be saved ({error.strerror})"
        ) from error


class _Arrays:
    """The arrays of a saved model, each read when it is asked for and found to be whole.

    `save` stores arrays as they are. So an archive with compressed files, or with files that take
    more room than the archive itself, is none of ours, and is not unpacked.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        try:
            self._archive = zipfile.ZipFile(file)
        except zipfile.BadZipFile as error:
            what = "a single array" if file.seek(0) == 0 and file.read(6) == b"\x93NUMPY" else None
            raise ValueError(
                f"{path}: expected a saved model, got a single array."
                if what
                else f"{path}: expected a saved model, but the file is damaged or of another kind."
            ) from error
        members = self._archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members) or (
            sum(member.file_size for member in members) > path.stat().st_size
        ):
            raise ValueError(f"{path}: expected a saved model, got an archive of another kind.")
        self.files = [member.filename.removesuffix(".npy") for member in members]

    def __getitem__(self, name: str) -> np.ndarray:
        with self._archive.open(f"{name}.npy") as file:
            version = np.lib.format.read_magic(file)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }.get(version)
            if read_header is None:
                raise ValueError(f"array {name!r} is of version {version}")
            shape, _, dtype = read_header(file)
            size = math.prod(shape) * dtype.itemsize
            n_bytes = self._archive.getinfo(f"{name}.npy").file_size - file.tell()
            if dtype.hasobject or size != n_bytes:
                raise ValueError(
                    f"array {name!r} of shape {shape} and type {dtype} must take {size} bytes, "
                    f"got {n_bytes}."
                )
            file.seek(0)
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


@contextlib.contextmanager
def _open_arrays(path: Path) -> Iterator[_Arrays]:
    with open(path, "rb") as file:
        arrays = _Arrays(path, file)
        try:
            yield arrays
        except (KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: the saved model is damaged: {error}") from error


def _read_description(path: Path, arrays: _Arrays) -> dict[str, Any]:
    if _DESCRIPTION not in arrays.files:
        raise ValueError(f"{path}: expected a saved model, got other arrays: {arrays.files}.")
    try:
        description = json.loads(arrays[_DESCRIPTION].tobytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: the saved model is damaged: its description cannot be read ({error})"
        ) from error
    if not isinstance(description, dict):
        raise ValueError(f"{path}: expected a saved model, got a description of another kind.")
    version = description.get("format")
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{path}: this pickmix ({_package_version()}) reads models of format "
            f"{FORMAT_VERSION}, got format {version!r}, written by pickmix "
            f"{description.get('pickmix')}."
        )
    return description


@dataclass(frozen=True)
class Saveable:
    """A class that can be saved."""

    module: str
    #: State beyond names that end in `_`.
    private_state: tuple[str, ...] = ()
    #: Parameters that older files do not name, and what they were then.
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
    "TableMixture": Saveable(
        "pickmix.estimators.table_mixture",
        ("_chain", "_effective_counts", "_fitted_description", "_passes"),
    ),
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
    arrays: _Arrays,
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
    attributes = description["attributes"]
    if "mixture_" in attributes:
        # Up to version 0.2 a mixture of a table held one of encoded rows.
        attributes = attributes["mixture_"]["model"]["attributes"] | attributes
        del attributes["mixture_"]
    for attribute, value in attributes.items():
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


def _decode(value: Any, arrays: _Arrays) -> Any:
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


def _check_fitted(model: Any) -> None:
    """Raise a ValueError that names a fitted parameter that makes no mixture."""
    if hasattr(model, "tables_"):
        _check_deep(model)
    elif hasattr(model, "weights_"):
        _check_closed_form(model)


def _check_closed_form(model: Any) -> None:
    check_fitted_weights(model.weights_)
    fitted = model.model_
    n_columns = fitted.n_columns
    schema = getattr(model, "schema_", None)
    if schema is not None and len(schema.modelled) != n_columns:
        raise ValueError(
            f"mixture_ must have the {len(schema.modelled)} columns of the schema, got {n_columns}."
        )
    if schema is None and n_columns != model.n_features_in_:
        raise ValueError(
            f"n_features_in_ must be the number of columns of the family, {n_columns}, got "
            f"{model.n_features_in_!r}."
        )
    shapes = fitted.family.parameter_shapes(fitted.n_components)
    if set(fitted.parameters) != set(shapes):
        raise ValueError(f"parameters must be {sorted(shapes)}, got {sorted(fitted.parameters)}.")
    for name, shape in shapes.items():
        check_array_parameter(name, fitted.parameters[name], shape)
    fitted.family.check_parameters(fitted.parameters)


def _check_deep(model: Any) -> None:
    check_fitted_weights(model.weights_)
    named = {f"tables_[{number}]": table for number, table in enumerate(model.tables_)}
    named |= {"center_": model.center_, "scale_": model.scale_}
    if model.whitening_ is not None:
        named["whitening_"] = model.whitening_
    for name, values in named.items():
        check_array_parameter(name, values, np.shape(values))
    if (model.scale_ <= 0.0).any():
        raise ValueError(
            f"scale_ must be positive, got a smallest value of {float(model.scale_.min())!r}."
        )
