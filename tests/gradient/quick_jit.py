"""Compilation for tests: they run a program once, so compiling it well costs more than it saves."""

from functools import partial

import jax

quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
