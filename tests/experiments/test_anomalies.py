"""`pickmix bench anomalies`: its protocols, and what it writes, on a small set."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from pickmix.estimators import detector
from pickmix_experiments.anomalies import anomalies, read_set


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    folder = tmp_path / "adbench"
    folder.mkdir()
    X = np.concatenate([rng.normal(size=(1100, 2)), rng.normal(6.0, 1.0, (20, 2))])
    np.savez(folder / "1_large.npz", X=X, y=np.repeat([0, 1], [1100, 20]))
    np.savez(folder / "2_small.npz", X=X[-120:], y=np.repeat([0, 1], [100, 20]))
    for setting in ("semi", "unsup"):
        text = "file,dataset,A,B\n1_large,large,50.0,60.0\n2_small,small,50.0,100.0\n"
        (folder / f"published-{setting}.csv").write_text(text)
    monkeypatch.setenv("PICKMIX_DATA", str(tmp_path))
    monkeypatch.setattr(detector, "_N_MIXTURES", 4)
    return folder


def test_protocols(folder):
    fitted, measured, y = read_set(folder / "1_large.npz", "semi", 0)
    assert fitted.shape == (550, 2)
    assert np.bincount(y).tolist() == [550, 20]
    np.testing.assert_allclose([fitted.mean(), fitted.std()], [0.0, 1.0], atol=1e-9)
    fitted, measured, y = read_set(folder / "1_large.npz", "unsup", 0)
    assert len(fitted) == len(measured) == len(y) == 1120
    # Drawn with replacement: about 1 - 1 / e of the rows are there.
    assert len(np.unique(fitted, axis=0)) == pytest.approx(1120 * 0.632, rel=0.05)
    fitted, _, _ = read_set(folder / "2_small.npz", "unsup", 0)
    assert len(fitted) == 1000


def test_results_resume_and_have_ranks(folder, tmp_path):
    out = tmp_path / "out"
    arguments = ["--seeds", "1", "--ablation", "--set", "1_large", "--out", str(out)]
    first = CliRunner().invoke(anomalies, arguments)
    assert first.exit_code == 0, first.output
    assert first.output.count("seed 0:") == 2
    again = CliRunner().invoke(anomalies, arguments)
    assert "seed 0:" not in again.output
    rows = [json.loads(line) for line in (out / "anomalies.jsonl").read_text().splitlines()]
    assert [row["setting"] for row in rows] == ["semi", "unsup"]
    assert min(row["methods"]["pickmix"]["area"] for row in rows) > 95.0
    page = (out / "anomalies.md").read_text()
    assert "## semi, sets of at least 1,000 rows: 1 sets, seeds [0]" in page
    # Above both of the published.
    line = next(line for line in page.splitlines() if line.startswith("| pickmix |"))
    assert line.split("|")[4].strip() == "1.00"
    assert "- rows score themselves: " in page
