"""Fitted models on disk, as archives of arrays and JSON: loading one runs no foreign code."""

from __future__ import annotations

import importlib
import json
import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from pickmix import archive
from pickmix.archive import DamagedFileError, Extension
from pickmix.checks import check_array_parameter, check_fitted_weights, check_n_jobs
from pickmix.inputs.files import replacing
from pickmix.inputs.maps import maps_of
from pickmix.inputs.schema import TableSchema
from pickmix.selection.partitions import RandomPartition

ARRAYS_FILE = "arrays.npz"
DESCRIPTION_FILE = "model.json"
_KIND = "model"
_EXTENSIONS = {
    "path": Extension(Path, str, Path),
    "partition": Extension(RandomPartition, vars, lambda fields: RandomPartition(**fields)),
    "schema": Extension(TableSchema, TableSchema.as_dict, TableSchema.from_dict),
}


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
_DEEP_STATE = ("_chain", "_kept", "_moments", "_passes", "_split_seed")
_CLOSED_FORM_STATE = ("_chain", "_effective_counts", "_fitted_description", "_passes")
_DETECTOR_STATE = ("_last_tail", "_mean", "_parts", "_recent", "_scale", "_tails")
# Modules go by name, so that loading one kind of model imports no other kind's engine.
SAVEABLE: dict[str, Saveable] = {
    "GaussianMixture": Saveable("pickmix.estimators.gaussian_mixture", _CLOSED_FORM_STATE),
    "FamilyMixture": Saveable("pickmix.estimators.family_mixture", _CLOSED_FORM_STATE),
    "TableMixture": Saveable(
        "pickmix.estimators.table_mixture", _CLOSED_FORM_STATE, {"dependence": None}
    ),
    "MixtureDetector": Saveable("pickmix.estimators.detector", _DETECTOR_STATE),
    "FlowMixture": Saveable("pickmix.estimators.flow_mixture", _DEEP_STATE, {"linear": False}),
    "SumProductTransformNetwork": Saveable(
        "pickmix.estimators.sum_product_transform_network", _DEEP_STATE
    ),
    "Mixture": Saveable("pickmix.estimators.mixture", _DEEP_STATE),
    "MixtureImputer": Saveable("pickmix.estimators.mixture_imputer"),
    "MixtureRegressor": Saveable("pickmix.estimators.mixture_predictors"),
    "MixtureClassifier": Saveable("pickmix.estimators.mixture_predictors"),
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
    name = type(model).__name__
    # A user's subclass would come back as its parent.
    if name not in SAVEABLE or type(model).__module__ != SAVEABLE[name].module:
        raise TypeError(f"model must be a {_ANY_SAVEABLE}, got {type(model)!r}.")
    check_is_fitted(model)
    content = {
        "class": name,
        "parameters": _saveable_parameters(model),
        "attributes": {
            attribute: value
            for attribute, value in sorted(vars(model).items())
            if SAVEABLE[name].holds(attribute)
        },
    }
    is_file = path.suffix == ".npz"
    if not is_file and path.exists() and not path.is_dir():
        raise FileExistsError(f"{path}: expected a folder or a name ending in .npz, found a file.")
    # The arrays hold the description too: replacing this one file replaces the model.
    file = path if is_file else path / ARRAYS_FILE
    is_new = not file.parent.exists()
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        description = archive.write(file, content, kind=_KIND, extensions=_EXTENSIONS)
    except OSError as error:
        if is_new and not is_file:
            path.rmdir()
        raise OSError(
            error.errno, f"{file}: the model could not be saved ({error.strerror})"
        ) from error
    if not is_file:
        with replacing(path / DESCRIPTION_FILE) as temporary:
            temporary.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    return path


def _saveable_parameters(model: BaseEstimator) -> dict[str, Any]:
    """Parameters of a model without objects and functions, which are warned of."""
    kept, left_out = {}, {}
    for name, value in model.get_params(deep=False).items():
        try:
            archive.encode({name: value}, _EXTENSIONS)
            kept[name] = value
        except archive.UnsupportedValueError:
            left_out[name] = value
    if left_out:
        listed = ", ".join(f"{name}={value!r}" for name, value in left_out.items())
        given_back = ", ".join(f"{name}=..." for name in left_out)
        warnings.warn(
            f"Not saved, as they are objects or functions: {listed}. The loaded model has the "
            f"defaults in their place, unless you give them back: load(path, {given_back}).",
            UserWarning,
            stacklevel=3,
        )
    return kept


def holds_model(path: str | os.PathLike[str]) -> bool:
    """Whether a folder or an .npz file holds a saved model; it is not read."""
    path = Path(path)
    return archive.holds(path / ARRAYS_FILE if path.is_dir() else path, _KIND)


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
        kind = f"a folder that has no {ARRAYS_FILE}" if path.is_dir() else "no file"
        raise ValueError(f"{path}: expected a saved model, found {kind}.")
    try:
        description, arrays = archive.read_parts(file, _KIND)
    except DamagedFileError as error:
        raise DamagedFileError(path, error.reason) from error
    if path.is_dir():
        _compare_copy(path / DESCRIPTION_FILE, file, description)
    content = archive.decode_content(path, description, arrays, kind=_KIND, extensions=_EXTENSIONS)
    with archive.blaming(path, _KIND):
        model = _make(path, content)
    known = model.get_params(deep=False)
    for parameter in parameters:
        if parameter not in known:
            raise ValueError(
                f"load was given {parameter}=..., but the saved {type(model).__name__} has no such "
                f"parameter, only {', '.join(known)}."
            )
    return model.set_params(**parameters)


def _compare_copy(copy: Path, file: Path, description: dict[str, Any]) -> None:
    """Warn if model.json is not the description of the arrays."""
    try:
        # Until a save has ended, the copy is that of the model before.
        if copy.stat().st_mtime_ns < file.stat().st_mtime_ns:
            return
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


def _make(path: Path, content: dict[str, Any]) -> Any:
    """Make the model of an archive, and check that its parameters make a mixture."""
    name, attributes = content["class"], content["attributes"]
    if name not in SAVEABLE:
        raise DamagedFileError(path, f"expected a {_ANY_SAVEABLE}, got a model of {name!r}.")
    entry = SAVEABLE[name]
    model = getattr(importlib.import_module(entry.module), name)()
    model.set_params(**entry.unnamed | content["parameters"])
    check_n_jobs(content["parameters"].get("n_jobs"))
    if "mixture_" in attributes:
        # Up to version 0.2 a mixture of a table held one of encoded rows.
        attributes = attributes["mixture_"]["model"]["attributes"] | attributes
        del attributes["mixture_"]
    if "_fitted_structure" in attributes:
        attributes["_fitted_description"] = attributes.pop("_fitted_structure")
    for attribute, value in attributes.items():
        if not entry.holds(attribute):
            raise DamagedFileError(path, f"a {name} has no fitted attribute {attribute!r}.")
        setattr(model, attribute, value)
    # Later, queries of the model would be blamed for parameters that make no sense.
    if hasattr(model, "tables_"):
        _check_deep(model)
    elif hasattr(model, "weights_"):
        _check_closed_form(model)
    elif hasattr(model, "fitted_"):
        _check_closed_form(model.mixture_)
    elif hasattr(model, "_parts"):
        _check_detector(model)
    return model


def _check_detector(model: Any) -> None:
    parts = model._part_mixtures
    check_array_parameter("limits", parts.limits, (np.size(parts.limits),))
    for fitted in parts.models():
        check_fitted_weights(fitted.weights)
        _check_parameters(fitted)
    # Scores of any densities fail where the tails are no tails.
    scores = model._calibrated(np.zeros((len(model._tails["knots"]), 1)))
    check_array_parameter("scores", scores, (1,))


def _check_closed_form(model: Any) -> None:
    check_fitted_weights(model.weights_)
    fitted = model.model_
    n_columns = fitted.n_columns
    schema = getattr(model, "schema_", None)
    if schema is not None:
        maps = maps_of(schema)
        expected = len(schema.modelled) if maps is None else maps.n_latent
        if expected != n_columns:
            raise ValueError(
                f"mixture_ must have the {expected} columns of the schema, got {n_columns}."
            )
    if schema is None and n_columns != model.n_features_in_:
        raise ValueError(
            f"n_features_in_ must be the number of columns of the family, {n_columns}, got "
            f"{model.n_features_in_!r}."
        )
    _check_parameters(fitted)


def _check_parameters(fitted: Any) -> None:
    shapes = fitted.family.parameter_shapes(fitted.n_components)
    if set(fitted.parameters) != set(shapes):
        raise ValueError(f"parameters must be {sorted(shapes)}, got {sorted(fitted.parameters)}.")
    for name, shape in shapes.items():
        check_array_parameter(name, fitted.parameters[name], shape)
    fitted.family.check_parameters(fitted.parameters)


def _check_deep(model: Any) -> None:
    # The component of a `Mixture` is given after this.
    if "component" not in model.get_params(deep=False):
        model._check()
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
