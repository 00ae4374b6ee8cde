"""What tests of estimators share: quick compilation, and fits that are killed."""

import pytest
from killing import Killed

from pickmix.fitting.checkpoint import Checkpoints


@pytest.fixture(scope="module")
def quick_compilation():
    """Compile in a hurry: for short fits, compiling well costs more than it saves."""
    jax = pytest.importorskip("jax")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def kill(monkeypatch):
    """`kill(n)` ends fits after so many checkpoints; None lets them live."""
    write = Checkpoints.write
    left = [None]

    def write_and_die(self, values):
        write(self, values)
        if left[0] is not None:
            left[0] -= 1
            if left[0] == 0:
                raise Killed

    monkeypatch.setattr(Checkpoints, "write", write_and_die)

    def set_left(number):
        left[0] = number

    return set_left
