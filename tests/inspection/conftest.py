"""Figures are closed behind every test, and one browser serves all."""

import browser
import matplotlib.pyplot as plt
import pytest

from pickmix.estimators import detector


@pytest.fixture(scope="session", autouse=True)
def quick_detectors():
    """Reports have detectors, of two mixtures here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detector, "_N_MIXTURES", 2)
        yield


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="session")
def driver():
    started = browser.start()
    yield started[0]
    browser.stop(started)
