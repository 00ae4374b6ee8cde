"""Compilation for tests: they run a program once, so compiling it well costs more than it saves."""

from functools import partial

import jax

_QUICKLY = {"xla_backend_optimization_level": 0}

quick_jit = partial(jax.jit, compiler_options=_QUICKLY)


def quick_compile(jitted, *arguments):
    """Compile an already jitted function for arguments like these (arrays or their shapes)."""
    return jitted.lower(*arguments).compile(compiler_options=_QUICKLY)
