"""The style sheet and the scripts: contrast, and nothing that could make markup of data."""

import re
import runpy
import sys
from importlib import resources
from pathlib import Path

import pytest

from pickmix.inspection.page import _SCRIPTS

ASSETS = resources.files("pickmix.inspection").joinpath("assets")
SCRIPTS = sorted(file.name for file in ASSETS.iterdir() if file.name.endswith(".js"))


def themes():
    """Colours of the light theme, the dark one and of paper, by name."""
    style = ASSETS.joinpath("report.css").read_text("utf-8")
    blocks = re.findall(r":root[^{]*\{([^}]*)\}", style)
    assert len(blocks) == 3
    light, dark, paper = (dict(re.findall(r"--([\w-]+):\s*(#\w{6})", b)) for b in blocks)
    return {"light": light, "dark": dark, "paper": paper}


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255.0 for place in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """As the Web Content Accessibility Guidelines define it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_measured_right():
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark", "paper"])
def test_texts_can_be_read_and_shapes_be_seen(theme):
    colours = themes()[theme]
    for text in ("text", "muted", "accent", "good", "act"):
        for ground in ("page", "panel", "mark"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for shape in ("rows", "model", "strong", "accent"):
        assert contrast(colours[shape], colours["panel"]) >= 3.0, shape


@pytest.mark.parametrize(("theme", "name"), [("light", "LIGHT"), ("dark", "DARK")])
def test_clusters_can_be_seen(theme, name):
    script = ASSETS.joinpath("clusters.js").read_text("utf-8")
    palette = re.findall(r"#\w{6}", re.search(rf"const {name} = \[(.*?)\]", script)[1])
    assert len(set(palette)) == len(palette) >= 8
    for colour in palette:
        assert contrast(colour, themes()[theme]["panel"]) >= 3.0


def test_scripts_make_no_markup_of_data_and_are_in_the_page():
    for script in SCRIPTS:
        text = ASSETS.joinpath(script).read_text("utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text
        for word in ("fetch(", "XMLHttpRequest", "WebSocket", "import(", "new Function"):
            assert word not in text
        assert "@@" not in text
    assert sorted(f"{name}.js" for name in _SCRIPTS) == SCRIPTS


def test_without_selenium_the_tests_in_a_browser_are_skipped(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("selenium.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "selenium", None)
    with pytest.raises(pytest.skip.Exception, match="pip install selenium"):
        runpy.run_path(str(Path(__file__).with_name("test_browser.py")))
