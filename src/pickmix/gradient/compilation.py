"""How JAX computes here: its precision, and compiled programs kept on disk for the next process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

#: "float32", "float64", or NumPy's names for them.
DType = np.dtype | str
# Programs that compile faster than this are not worth a file.
_LEAST_SECONDS = 0.2


def precision(dtype: DType) -> contextlib.AbstractContextManager[object]:
    """Return a context in which JAX computes in `dtype`.

    JAX turns float64 into float32 unless 64-bit types are enabled. That setting is global for
    most users; here it holds inside the context and in this thread only, whatever the user chose.
    """
    context: contextlib.AbstractContextManager[object] = jax.enable_x64(
        np.dtype(dtype) == np.float64
    )
    return context


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/pickmix/jax`, or that in `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pickmix" / "jax"


@contextlib.contextmanager
def kept_programs() -> Iterator[None]:
    """Let JAX keep what it compiles inside this context in `cache_folder`.

    JAX's setting is global: it is set here, and set back. A user who has chosen a folder for all
    of JAX keeps it. A folder that cannot be written to is no error; there is no cache then.
    """
    folder = cache_folder()
    # JAX makes its settings while it is imported, and has no types for them.
    settings: Any = jax.config
    if settings.jax_compilation_cache_dir is not None or not _make(folder):
        yield
        return
    before = settings.jax_persistent_cache_min_compile_time_secs
    try:
        settings.update("jax_compilation_cache_dir", str(folder))
        settings.update("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)
        # JAX looks at the folder once; these make it look again, now and afterwards.
        compilation_cache.reset_cache()
        yield
    finally:
        settings.update("jax_compilation_cache_dir", None)
        settings.update("jax_persistent_cache_min_compile_time_secs", before)
        compilation_cache.reset_cache()


def _make(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


@lru_cache(maxsize=256)
def compiled(function: Callable[..., Any], *static: Hashable) -> Callable[..., Any]:
    """Compile a function of a network, and perhaps of more, and of arrays; the same one once."""
    return jax.jit(partial(function, *static))
