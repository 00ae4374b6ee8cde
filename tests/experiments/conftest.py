"""What tests of the experiments share."""

import gc

import pytest


@pytest.fixture(autouse=True)
def _quick_collections():
    """Meters collect garbage: leave what earlier tests have made out of that."""
    gc.freeze()
    yield
    gc.unfreeze()
