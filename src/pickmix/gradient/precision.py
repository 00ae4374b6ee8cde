"""float32 by default, float64 on request, without touching JAX's global setting."""

from __future__ import annotations

from contextlib import AbstractContextManager

import jax
import numpy as np

#: "float32", "float64", or NumPy's names for them.
DType = np.dtype | str


def precision(dtype: DType) -> AbstractContextManager[object]:
    """Return a context in which JAX computes in `dtype`.

    JAX turns float64 into float32 unless 64-bit types are enabled. That setting is global for
    most users; here it holds inside the context and in this thread only, whatever the user chose.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> with precision("float64"):
    ...     print(jnp.ones(3, "float64").dtype)
    float64
    >>> jax.config.jax_enable_x64
    False
    """
    context: AbstractContextManager[object] = jax.enable_x64(np.dtype(dtype) == np.float64)
    return context
