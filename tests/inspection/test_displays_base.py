"""What displays share: matplotlib is optional, and importing pickmix does not import it."""

import subprocess
import sys

import numpy as np
import pytest
from displayed import flow, gaussian, rows

import pickmix
from pickmix.inspection.displays.base import cluster_colours, shorten

DISPLAYS = [name for name in dir(pickmix) if name.endswith("Display")]


def test_all_displays_are_public():
    assert DISPLAYS == [
        "CalibrationDisplay",
        "ComponentsDisplay",
        "ExplanationDisplay",
        "MarginalsDisplay",
        "PairsDisplay",
        "PathDisplay",
        "TraceDisplay",
    ]


@pytest.mark.parametrize("name", DISPLAYS)
def test_without_matplotlib_the_extra_is_offered(name, monkeypatch):
    model, X = gaussian(3), rows(3)
    for module in [module for module in sys.modules if module.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    arguments = (model,) if name == "TraceDisplay" else (model, X)
    with pytest.raises(ImportError, match=r"pip install pickmix\[plot\]"):
        getattr(pickmix, name).from_estimator(*arguments)


def test_displays_are_imported_without_matplotlib():
    names = ", ".join(DISPLAYS)
    code = f"import sys; from pickmix import {names}; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_clusters_near_each_other_have_different_colours():
    centers = np.random.default_rng(0).normal(size=(60, 2))
    colours = cluster_colours(centers)
    assert len(set(colours[:10])) == 10
    distances = np.linalg.norm(centers[:, None] - centers, axis=-1) + 1e9 * np.eye(60)
    nearest = distances.argmin(axis=1)
    assert all(colours[i] != colours[j] for i, j in enumerate(nearest))


def test_long_names_are_cut():
    names = [shorten(f"country number {n}", 14) for n in (7, 12)]
    assert names == ["country n…er 7", "country n…r 12"]
    assert shorten("short", 10) == "short"


@pytest.mark.parametrize(
    ("name", "make", "settings", "message"),
    [
        ("Components", gaussian, {"level": 7}, "level must be a number of clusters from 1 to 6"),
        ("Components", gaussian, {"level": 0}, "level must be a number of clusters from 1 to 6"),
        ("Components", gaussian, {"level": 2.0}, "level must be a number of clusters"),
        ("Components", flow, {"level": 2}, "level must be None for FlowMixture"),
        ("Components", gaussian, {"columns": [0, 3]}, "numbers of columns, from 0 to 2, got 3"),
        ("Components", gaussian, {"columns": ["a", "b"]}, "columns must hold numbers"),
        ("Calibration", gaussian, {"kind": "pies"}, "kind"),
        ("Calibration", gaussian, {"level": 1.0}, "level must be between 0 and 1"),
        ("Calibration", gaussian, {"columns": [5]}, "from 0 to 2, got 5"),
        ("Pairs", gaussian, {"level": 9}, "level must be a number of clusters from 1 to 6"),
        ("Pairs", gaussian, {"columns": [1]}, "columns must be two to 8"),
        ("Pairs", gaussian, {"columns": ["a", "b"]}, "columns must hold numbers of columns"),
        ("Trace", gaussian, {"work": "hours"}, "work"),
    ],
)
def test_wrong_parameters_are_named(name, make, settings, message):
    arguments = (make(3),) if name == "Trace" else (make(3), rows(3))
    with pytest.raises(ValueError, match=message):
        getattr(pickmix, f"{name}Display").from_estimator(*arguments, **settings)


@pytest.mark.parametrize("name", ["Components", "Pairs", "Explanation"])
def test_paths_are_refused(name):
    with pytest.raises(ValueError, match="X must be a table in memory, got the path"):
        getattr(pickmix, f"{name}Display").from_estimator(gaussian(3), "rows.csv")
