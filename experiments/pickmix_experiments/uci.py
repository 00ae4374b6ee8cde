"""The paper's 19 UCI data sets, as prepared for the Loda study, split and standardised.

Each set is two text files, `loda/<name>/normal.txt` and `loda/<name>/easy.txt` (anomalies that are
easy to distinguish from the normal rows). Models are fitted to normal rows only. The files are not
part of the package. They are looked for, in this order,

1. in the folder given as `folder`, and then nowhere else;
2. in the folder that the environment variable `PICKMIX_DATA` names;
3. in the cache, `$XDG_CACHE_HOME/pickmix` or `~/.cache/pickmix`;
4. on GitHub, at a fixed commit. What comes from there goes into the cache if its SHA-256 is right.

Files in the cache must have that SHA-256 too; those in folders that you name are taken as they are.

Things to know: `waveform-1` and `waveform-2` have the same normal rows. `cardiotocography` has 27
columns of rank 25. A column of `ionosphere` is constant over the normal rows but not over the easy
ones, so the protocol "paper" keeps it. One of `yeast` is constant but for a few rows; with "clean"
and a seed that leaves them out of the training part (2, for one) there are 7 columns, not 8, and
log-likelihoods do not compare with those of other seeds. Regularise full covariances.
"""

from __future__ import annotations

import hashlib
import http.client
import numbers
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["NAMES", "PROTOCOLS", "SIZES", "Split", "load", "read"]

FloatArray = NDArray[np.float64]

# "<name>/<file>" to hexadecimal digest; `sha256sum --check` in a folder loda/ takes that file, too.
SHA256: dict[str, str] = {
    file: digest
    for digest, file in map(
        str.split, Path(__file__).with_suffix(".sha256").read_text().splitlines()
    )
}
NAMES: tuple[str, ...] = tuple(sorted({file.split("/")[0] for file in SHA256}))
PROTOCOLS = ("clean", "paper")
# Normal rows and columns of each set.
SIZES: dict[str, tuple[int, int]] = {
    **{"breast-cancer-wisconsin": (357, 30), "cardiotocography": (1831, 27), "ecoli": (205, 7)},
    **{"ionosphere": (225, 33), "iris": (100, 4), "magic-telescope": (12332, 10)},
    **{"page-blocks": (4913, 10), "parkinsons": (147, 22), "pendigits": (5539, 16)},
    **{"pima-indians": (500, 8), "sonar": (111, 60), "statlog-satimage": (3594, 36)},
    **{"statlog-segment": (1320, 18), "statlog-vehicle": (629, 18)},
    **{"wall-following-robot": (2923, 24), "waveform-1": (3304, 21), "waveform-2": (3304, 21)},
    **{"wine": (107, 13), "yeast": (752, 8)},
}

_FILES = ("normal.txt", "easy.txt")
_COMMIT = "ef9bfb15f2ada7c90b810eb8c84c99110c688da5"
# Tests put a server of their own here.
_BASE_ADDRESS = f"https://raw.githubusercontent.com/vitskvara/UCI.jl/{_COMMIT}"
_TIMEOUT_SECONDS = 30.0
# A column that spreads no more than this counts as constant.
_CONSTANT = 1e-6
# With fewer rows, one of the parts would be empty.
_FEWEST_ROWS = 5


@dataclass(frozen=True, eq=False)
class Split:
    """The normal rows of one set in three parts, standardised.

    Attributes
    ----------
    name : str
        One of `NAMES`.
    protocol : str
        "clean" or "paper".
    train : (N_train, D) array
        64 % of the rows.
    validation : (N_validation, D) array
        16 %.
    test : (N_test, D) array
        20 %.
    """

    name: str
    protocol: str
    train: FloatArray
    validation: FloatArray
    test: FloatArray


def load(
    name: str,
    protocol: str = "clean",
    *,
    random_state: int = 0,
    folder: str | os.PathLike[str] | None = None,
) -> Split:
    """Load a set, split its normal rows 64/16/20 and standardise the columns.

    The rows are shuffled by `numpy.random.default_rng(random_state).permutation(N)` and cut at
    0.64 N and 0.8 N, rounded. Which rows go where does not depend on the protocol.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    protocol : {"clean", "paper"}
        What the mean and standard deviation (divisor N) of a column are taken over, and with them
        which columns are dropped as constant (standard deviation 1e-6 or less):

        - "clean": the training rows;
        - "paper": all normal and easy rows, before the split. This leaks validation rows, test rows
          and anomalies into the scale; it is what the code that the paper's authors published does.
    random_state : int
        Seed of the split, 0 or more.
    folder : path, optional
        Holds `loda/<name>/{normal,easy}.txt`. The default is to look in `PICKMIX_DATA`, then in the
        cache, then to download.

    Returns
    -------
    Split
        Its parts are float64 arrays of shapes (N_train, D), (N_validation, D) and (N_test, D).

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:  # stands for the one with the real files
    ...     Path(folder, "loda", "iris").mkdir(parents=True)
    ...     for file in ("normal.txt", "easy.txt"):
    ...         np.savetxt(Path(folder, "loda", "iris", file), np.arange(200.0).reshape(50, 4))
    ...     split = load("iris", folder=folder)
    >>> split.train.shape, split.validation.shape, split.test.shape
    ((32, 4), (8, 4), (10, 4))
    >>> bool(np.allclose(split.train.std(axis=0), 1.0))
    True
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol must be one of {', '.join(PROTOCOLS)}; got {protocol!r}")
    # A generator would give each call other rows, and the protocols could not be compared.
    whole = isinstance(random_state, numbers.Integral) and not isinstance(random_state, bool)
    if not whole or random_state < 0:
        raise ValueError(f"random_state must be an integer >= 0; got {random_state!r}")
    normal, easy = read(name, folder)
    N = normal.shape[0]
    if N < _FEWEST_ROWS:
        raise ValueError(f"{name}: expected at least {_FEWEST_ROWS} normal rows to split, got {N}")
    order = np.random.default_rng(random_state).permutation(N)
    train, validation, test = np.split(order, [(64 * N + 50) // 100, (80 * N + 50) // 100])

    reference = normal[train] if protocol == "clean" else np.concatenate([normal, easy])
    mean, scale = reference.mean(axis=0), reference.std(axis=0)
    kept = np.flatnonzero(scale > _CONSTANT)
    if kept.size == 0:
        raise ValueError(
            f"{name}: expected a column that is not constant, got {scale.size} that are"
        )

    def standardised(rows: NDArray[np.intp]) -> FloatArray:
        part: FloatArray = (normal[np.ix_(rows, kept)] - mean[kept]) / scale[kept]
        return part

    return Split(name, protocol, standardised(train), standardised(validation), standardised(test))


def read(name: str, folder: str | os.PathLike[str] | None = None) -> tuple[FloatArray, FloatArray]:
    """Read a set as it is in its files: unscaled, no column dropped.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    folder : path, optional
        As in `load`.

    Returns
    -------
    normal : (N, D) array
    easy : (N_easy, D) array
        Anomalies that are easy to distinguish from the normal rows.

    Examples
    --------
    >>> len(NAMES)
    19
    >>> read("irises")
    Traceback (most recent call last):
    ValueError: name must be one of breast-cancer-wisconsin, ..., yeast; got 'irises'
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}; got {name!r}")
    place = _find(name, folder)
    normal, easy = (_read_finite(place / file) for file in _FILES)
    if normal.shape[1] != easy.shape[1]:
        raise ValueError(
            f"{place}: expected as many columns in easy.txt as in normal.txt, {normal.shape[1]}, "
            f"got {easy.shape[1]}"
        )
    return normal, easy


def _read_finite(path: Path) -> FloatArray:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: expected a file")
    try:
        rows = np.loadtxt(path, ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path}: expected rows of numbers; {error}") from error
    bad = np.argwhere(~np.isfinite(rows))
    if bad.size:
        row, column = bad[0]
        raise ValueError(
            f"{path}: expected finite numbers, got {rows[row, column]} in row {row} and column "
            f"{column}, counted from 0"
        )
    return rows


def _find(name: str, folder: str | os.PathLike[str] | None) -> Path:
    """Return the folder of a set's two files: the given one, or else one that holds them."""
    if folder is not None:
        return Path(folder) / "loda" / name
    tried = ["PICKMIX_DATA is not set"]
    if data := os.environ.get("PICKMIX_DATA"):
        place = Path(data) / "loda" / name
        missing = [place / file for file in _FILES if not (place / file).is_file()]
        if not missing:
            return place
        tried = [f"PICKMIX_DATA: no file {path}" for path in missing]
    base = os.environ.get("XDG_CACHE_HOME")
    cache = (Path(base) if base else Path.home() / ".cache") / "pickmix" / "loda" / name
    wanted = []
    for path in (cache / file for file in _FILES):
        if not path.is_file():
            tried.append(f"cache: no file {path}")
        # A file that a full disk has cut short, for example, is fetched again.
        elif hashlib.sha256(path.read_bytes()).hexdigest() != SHA256[f"{name}/{path.name}"]:
            tried.append(f"cache: {path} has the wrong SHA-256")
        else:
            continue
        wanted.append(path)
    try:
        for path in wanted:
            address = f"{_BASE_ADDRESS}/loda/{name}/{path.name}"
            _download(address, path, SHA256[f"{name}/{path.name}"])
    except OSError as error:
        tried.append(f"download: {error}")
        raise FileNotFoundError(
            f"{name}: found its files nowhere.\n  " + "\n  ".join(tried) + "\n"
            f"Save {' and '.join(_FILES)} from {_BASE_ADDRESS}/loda/{name}/ in a folder "
            f"<data>/loda/{name} and set PICKMIX_DATA=<data>."
        ) from error
    return cache


def _download(address: str, path: Path, digest: str) -> None:
    """Fetch a file with the right SHA-256, whole or not at all."""
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT_SECONDS) as response:
            content: bytes = response.read()
    # A response that is cut short raises no OSError.
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            # It holds the connection open.
            error.close()
        raise OSError(f"{address}: {error}") from error
    actual = hashlib.sha256(content).hexdigest()
    if actual != digest:
        raise OSError(f"{address}: expected SHA-256 {digest}, got {actual} of {len(content)} bytes")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)
