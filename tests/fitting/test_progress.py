"""Bars: text on stderr, widgets in notebooks, and no warnings anywhere."""

import re
import sys
import types

import numpy as np
import pytest

import pickmix
from pickmix.fitting.progress import PassProgress, Progress


@pytest.fixture
def notebook(monkeypatch):
    """A process that looks like the kernel of a notebook, to tqdm."""
    for name in [name for name in sys.modules if name.startswith("tqdm.") and "notebook" in name]:
        monkeypatch.delitem(sys.modules, name)
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
    for name in [name for name in sys.modules if name.startswith("tqdm.") and "notebook" in name]:
        del sys.modules[name]


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
    progress = Progress(10, 1)
    progress.advance(4, 400)
    progress.close()
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(r"40%.*4/10", err)


def test_a_notebook_without_widgets_has_text_and_no_warning(notebook, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    for progress in (Progress(10, 1), PassProgress(100, 1)):
        progress.advance(3, 30)
        progress.close()
    assert notebook == []
    assert capsys.readouterr().err.count("30%") >= 2


def test_a_notebook_with_widgets_shows_one_that_does_not_turn_red(notebook, widgets, capsys):
    progress = Progress(10, 1)
    progress.advance(3, 300)
    progress.close()
    (shown,) = notebook
    _, bar, _ = shown.children
    assert (bar.value, bar.max, bar.bar_style) == (3, 10, "success")
    assert capsys.readouterr().err == ""


def test_each_pass_has_a_widget(notebook, widgets):
    progress = PassProgress(100, 1)
    for n_rows in (60, 100, 130):
        progress.advance(1, n_rows)
    progress.close()
    assert [shown.children[1].value for shown in notebook] == [100, 30]
    assert notebook[1].children[0].value.startswith("pass\N{FIGURE SPACE}2")


def test_a_fit_shows_a_bar_only_if_it_is_asked_to(notebook, widgets):
    rows = np.random.default_rng(0).normal(size=(100, 2))
    pickmix.GaussianMixture(2, random_state=0).fit(rows)
    assert notebook == []
    mixture = pickmix.GaussianMixture(2, random_state=0, verbose=1).fit(rows)
    (shown,) = notebook
    assert shown.children[1].value == mixture.n_steps_
    assert "log-likelihood" in shown.children[2].value
