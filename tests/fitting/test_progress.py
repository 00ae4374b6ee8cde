"""Bars of fits: text on stderr, widgets in notebooks, and no warnings anywhere."""

import re
import sys
import types

import numpy as np
import pytest

import pickmix

ROWS = np.random.default_rng(0).normal(size=(100, 2))


def fit(**settings):
    return pickmix.GaussianMixture(2, random_state=0, max_steps=10, **settings).fit(ROWS)


@pytest.fixture
def notebook(monkeypatch):
    """Make the process look like the kernel of a notebook, to tqdm."""

    def forget():
        for name in [n for n in sys.modules if n.startswith("tqdm.") and "notebook" in n]:
            monkeypatch.delitem(sys.modules, name)

    forget()
    shell = type("ZMQInteractiveShell", (), {"config": {"IPKernelApp": {}}})()
    interactive = types.ModuleType("IPython")
    interactive.get_ipython = lambda: shell
    interactive.display = types.ModuleType("IPython.display")
    interactive.display.shown = []
    interactive.display.display = interactive.display.shown.append
    for module in (interactive, interactive.display, types.ModuleType("ipykernel.zmqshell")):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    yield interactive.display.shown
    # What was imported here took these for real.
    forget()


class Widget:
    """As much of a widget of ipywidgets as tqdm uses."""

    def __init__(self, children=(), **values):
        self.children = children
        self.layout = types.SimpleNamespace()
        self.style = types.SimpleNamespace()
        self.bar_style = ""
        self.value = 0
        vars(self).update(values)


@pytest.fixture
def widgets(monkeypatch):
    module = types.ModuleType("ipywidgets")
    module.HBox = module.HTML = module.FloatProgress = Widget
    monkeypatch.setitem(sys.modules, "ipywidgets", module)


def test_text_on_stderr_by_default(capsys):
    fit(verbose=1)
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(r"100%.*10/10", err)


def test_a_notebook_without_widgets_has_text_and_no_warning(notebook, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    fit(verbose=1)
    assert notebook == []
    assert "10/10" in capsys.readouterr().err


def test_a_notebook_with_widgets_shows_one_that_does_not_turn_red(notebook, widgets, capsys):
    fit()
    assert notebook == []
    # A fit that converges before its limit, too.
    mixture = fit(verbose=1, tol=1.0)
    (shown,) = notebook
    _, bar, text = shown.children
    assert (bar.value, bar.max, bar.bar_style) == (mixture.n_steps_, 10, "success")
    assert "log-likelihood" in text.value
    assert capsys.readouterr().err == ""
