"""Figures are closed behind every test, and one browser serves all."""

import browser
import matplotlib.pyplot as plt
import pytest


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="session")
def driver():
    started = browser.start()
    yield started[0]
    browser.stop(started)
