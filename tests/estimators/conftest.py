"""What tests of estimators share: fits that are killed."""

import pytest
from killing import Killed

from pickmix.fitting.checkpoint import Checkpoints


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
