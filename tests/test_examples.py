"""The scripts in examples/ run, their results make sense, and the tutorial quotes them rightly."""

import importlib.util
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from pickmix_experiments import uci

ROOT = Path(__file__).parents[1]
NAMES = ("idea_in_2d", "choosing", "deep_uci")


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / f"examples/{name}.py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up while it is being executed.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def assert_pictures(folder, *names):
    for name in names:
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


@pytest.fixture(autouse=True)
def coarse_pictures(monkeypatch):
    """Pictures are drawn, but small and without an arrangement of their parts."""
    save = Figure.savefig

    def save_small(self, path, **settings):
        self.set_layout_engine("none")
        save(self, path, dpi=20)

    monkeypatch.setattr(Figure, "savefig", save_small)


def test_idea_in_2d(tmp_path, capsys):
    script = example("idea_in_2d")
    n, steps = 600, 300
    wide, narrow, default, uniform = script.run(tmp_path, n_rows=n, per_arm=5, effort=0.03)
    assert_pictures(tmp_path, "idea-snapshots.png", "idea-chain.png")
    for fits in (wide, narrow):
        em, chain, partitions = (one.mixture for one in fits)
        assert em.n_component_evaluations_ == 3 * 15 * n
        # Two candidates and the component held, for 300 of 10 batches a pass.
        assert chain.n_component_evaluations_ == pytest.approx(3 * steps * n / 10, rel=0.01)
        assert partitions.n_component_evaluations_ < em.n_component_evaluations_
        for one in fits:
            values = one.mixture.trace_["log_likelihood"]
            assert values[-1] > values[0]
            assert one.snapshots[-1][0] == one.mixture.n_steps_
    truth = script.spirals(5)
    new, _ = truth.sample(2000, random_state=5)
    best = truth.score_samples(new).mean()
    assert best - 0.5 < default.score(new) < best
    assert "The watched row was visited" in capsys.readouterr().out
    # What the watched row took was offered or held.
    assert len(uniform.taken) == len(uniform.offered) == steps // 10
    held = None
    for offered, taken in zip(uniform.offered, uniform.taken, strict=True):
        for candidate, state in zip(offered, taken, strict=True):
            assert held is None or state in (candidate, held)
            held = state


@pytest.mark.slow
def test_choosing(tmp_path, capsys):
    script = example("choosing")
    budget = 40
    ((curves, best),) = script.run(tmp_path, sizes=((20, 3, 500, budget),), seeds=1)
    assert_pictures(tmp_path, "choosing.png")
    assert len(curves) == 10
    for name, (curve,) in curves.items():
        assert curve.scores.shape == curve.evaluations.shape
        assert np.isfinite(curve.scores).all()
        assert curve.scores[-1] < best
        if name != "default":
            # Blocks hold at most G components, often some less.
            assert 0.75 * budget < curve.evaluations[-1] < 1.02 * budget
    (default,) = curves["default"]
    others = [curve.scores[-1] for name, (curve,) in curves.items() if name != "default"]
    assert default.scores[-1] > np.median(others)
    assert "true mixture" in capsys.readouterr().out


def test_galaxy_colours(tmp_path, capsys):
    script = example("galaxy_colours")
    behind, as_seen, scores = script.run(tmp_path, n_rows=1000)
    assert_pictures(tmp_path, "galaxy-colours.png")
    assert scores[0] > scores[1] + 1.0
    # The red sequence is 0.03 wide behind errors of 0.06 in the middle.
    for mixture, low, high in ((behind, 0.02, 0.04), (as_seen, 0.06, 0.15)):
        sequence = mixture.means_[:, 0].argmax()
        assert low < np.sqrt(mixture.covariances_[sequence, 0, 0]) < high
    # The blue cloud: 0.45 * 0.09 / sqrt((0.45 * 0.09)^2 + 0.02^2).
    cloud = behind.covariances_[behind.means_[:, 0].argmin()]
    assert cloud[0, 1] / np.sqrt(cloud[0, 0] * cloud[1, 1]) == pytest.approx(0.897, abs=0.07)
    assert "fit with errors" in capsys.readouterr().out


@pytest.fixture
def data():
    if not os.environ.get("PICKMIX_DATA"):
        pytest.skip("PICKMIX_DATA is not set: no UCI sets to read")


@pytest.mark.slow
@pytest.mark.usefixtures("data")
def test_deep_uci(tmp_path, capsys):
    script = example("deep_uci")
    script.main(["--out", str(tmp_path), "--set", "pima-indians", "--quick"])
    assert_pictures(tmp_path, "deep-uci.png")
    table = re.findall(r"^(?:\d+ |network).*", capsys.readouterr().out, re.MULTILINE)
    assert len(table) == 3
    values = [tuple(map(float, re.findall(r"-?\d+\.\d{3}", line))) for line in table]
    # Four of each: the deep models begin with these very Gaussians, and never end below them.
    assert all(validation > values[0][0] - 0.002 for validation, _, _ in values)
    for _, test, auc in values:
        assert -9.0 < test < -5.0
        assert 0.65 < auc < 1.0


@pytest.mark.usefixtures("data")
def test_the_parts_are_those_of_the_library():
    parts = example("deep_uci").load("pima-indians", 3)
    split = uci.load("pima-indians", random_state=3)
    for part in ("train", "validation", "test"):
        np.testing.assert_allclose(getattr(parts, part), getattr(split, part), atol=1e-12)


def test_deep_uci_says_where_it_looked_for_files(tmp_path, monkeypatch):
    monkeypatch.setenv("PICKMIX_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(uci, "_BASE_ADDRESS", "file:///nowhere")
    with pytest.raises(SystemExit, match="found its files nowhere") as caught:
        example("deep_uci").main(["--out", str(tmp_path)])
    assert "set PICKMIX_DATA" in str(caught.value)


def test_the_tutorial_quotes_the_scripts():
    text = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    scripts = [(ROOT / f"examples/{name}.py").read_text(encoding="utf-8") for name in NAMES]
    quotes = [q for q in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if ">>>" not in q]
    assert quotes
    for quote in quotes:
        assert any(quote in script for script in scripts), quote


def test_the_pictures_of_the_tutorial_are_there_and_small():
    text = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert len(pictures) >= 4
    for picture in pictures:
        assert 0 < (ROOT / "docs" / picture).stat().st_size < 200_000
