"""JAX compiles for tests in a hurry: they run a program once or twice, mostly on few rows."""

import os
from importlib.metadata import PackageNotFoundError, version

import pytest
from _pytest.doctest import DoctestModule

# Older code generators of XLA, which translate the same operations in a third of the time, and no
# optimisation by LLVM. XLA ends the process at a flag that it does not know, and flags come and go:
# they are set for a version that is known to have them, before anything imports JAX.
_QUICKLY = "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"
_KNOWN_BY = "0.10."


def _jaxlib():
    try:
        return version("jaxlib")
    except PackageNotFoundError:
        return ""


if _jaxlib().startswith(_KNOWN_BY):
    os.environ["XLA_FLAGS"] = f"{_QUICKLY} {os.environ.get('XLA_FLAGS', '')}".strip()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Look for examples in the sources and on the pages, not in the tests: there are none."""
    collected = yield
    return [found for found in collected if not isinstance(found, DoctestModule)]
