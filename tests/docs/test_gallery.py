"""The examples of the gallery run, and show what they say."""

import runpy

import pytest
from pages import ROOT

pyplot = pytest.importorskip("matplotlib.pyplot")
EXAMPLES = sorted((ROOT / "examples").glob("plot_*.py"))
# What an example prints, or draws, if it still shows what its text says.
PRINTS = {
    "plot_01_first_look": "group 1: 124 birds, Gentoo",
    "plot_02_choose_k": "chosen: 15 components; the truth has 15",
    "plot_03_anomalies": "most unusual rows: [121, 73, 47,",
    "plot_04_gaps": "species Adelie",
    "plot_05_stream": "",
    "plot_06_many_components": "of 100 components per row and pass",
    "plot_07_inpainting": "error of a grey level: 3.",
    "plot_08_vector_search": "low rank: recall 1.0",
}


def test_the_gallery_has_examples():
    assert {path.stem for path in EXAMPLES} == set(PRINTS)


# `make docs` runs all of them; these take longest.
LONG = ("plot_04_gaps", "plot_07_inpainting", "plot_08_vector_search")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in LONG))
        for path in EXAMPLES
    ],
)
def test_an_example_runs(path, capsys, tmp_path, monkeypatch):
    if "palmerpenguins" in path.read_text(encoding="utf-8"):
        pytest.importorskip("palmerpenguins")
    monkeypatch.chdir(tmp_path)
    pyplot.switch_backend("Agg")
    pyplot.close("all")
    names = runpy.run_path(str(path))
    assert pyplot.get_fignums()
    pyplot.close("all")
    assert PRINTS[path.stem] in capsys.readouterr().out
    if path.stem == "plot_05_stream":
        kept, forgets = names["scores"].values()
        assert forgets[-1] > kept[-1] + 0.1
