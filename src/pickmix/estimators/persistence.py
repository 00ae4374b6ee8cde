"""Fitted models on disk: arrays and JSON, never pickle, so that loading runs no foreign code."""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from pickmix.data.files import replacing
from pickmix.estimators.saved_checks import DifferentCopyError, check_copy, check_parameters
from pickmix.estimators.saved_values import (
    ANY_SAVEABLE,
    ForeignError,
    UnknownParameterError,
    decode_model,
    encode_model,
    entry_of,
)

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
        Folder or .npz file. A `model.json` in the folder must say what `arrays.npz` says; it may be
        deleted.
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
    try:
        return _load(path, file, parameters)
    except DifferentCopyError:
        # Another process may have replaced the model between two reads. Then this works.
        return _load(path, file, parameters)


def _load(path: Path, file: Path, parameters: dict[str, Any]) -> Any:
    with _open_arrays(file) as arrays:
        description = _read_description(path, arrays)
        if path.is_dir():
            check_copy(path / DESCRIPTION_FILE, file, description)
        with _blaming(path):
            model = decode_model(description, arrays, parameters)
            # Later, what the model is asked would be blamed for parameters that make no sense.
            check_parameters(model)
    return model


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
                # Before the arrays change: a model without the copy loads, one with an old copy
                # does not.
                copy.unlink(missing_ok=True)
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
    try:
        description = json.loads(arrays[_DESCRIPTION].tobytes())
    except ValueError as error:
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
