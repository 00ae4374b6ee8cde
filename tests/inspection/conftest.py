"""Figures are closed behind every test, one browser serves all, JAX compiles quickly."""

import browser
import jax
import matplotlib.pyplot as plt
import pytest


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


@pytest.fixture(autouse=True, scope="package")
def quick_compilation():
    # Short fits: compiling them well costs more than it saves.
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="session")
def driver():
    started = browser.start()
    yield started[0]
    browser.stop(started)
