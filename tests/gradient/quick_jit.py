"""Compilation for tests: they run a program once, so compiling it well costs more than it saves."""

from functools import partial

import jax


def _accepted(options):
    """The options, or none if this version of JAX does not know them."""
    try:
        jax.jit(lambda x: x, compiler_options=options)(0.0)
    except jax.errors.JaxRuntimeError:
        return {}
    return options


_LEVEL = {"xla_backend_optimization_level": 0}
#: The program that users get, translated to machine code in a hurry. `tests/conftest.py` switches
#: the emitters off for all programs, which changes what is fused.
SAME_PROGRAM = _accepted(_LEVEL | {"xla_cpu_use_fusion_emitters": True}) or _accepted(_LEVEL)
_QUICKLY = _accepted(_LEVEL | {"xla_cpu_use_fusion_emitters": False}) or _accepted(_LEVEL)

quick_jit = partial(jax.jit, compiler_options=_QUICKLY)


def quick_compile(jitted, *arguments):
    """Compile an already jitted function for arguments like these (arrays or their shapes)."""
    return jitted.lower(*arguments).compile(compiler_options=_QUICKLY)
