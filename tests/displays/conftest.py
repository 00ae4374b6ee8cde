"""Every figure of a test is closed behind it."""

import matplotlib.pyplot as plt
import pytest


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")
