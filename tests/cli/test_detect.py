"""`pickmix detect`: flagged rows of a file, with reasons, as the detector has them."""

import numpy as np
from commands import error_of, printed_rows, run_well

import pickmix


def write_bills(path, n=300):
    rng = np.random.default_rng(0)
    lines = ["who,repair,total,time"]
    for number in range(n):
        cost = round(float(rng.normal(20.0, 2.0)), 1)
        cost = 900.0 if number == 100 else cost
        time = rng.choice(["Day", "Night"])
        lines.append(f"b{number},{cost},{cost + round(float(rng.normal(0.0, 0.1)), 1)},{time}")
    path.write_text("\n".join(lines) + "\n")


def test_flagged_rows_with_reasons(tmp_path):
    path = tmp_path / "bills.csv"
    write_bills(path)
    arguments = [path, "--id", "who", "--contamination", 0.02, "--reasons", 2]
    header, lines = printed_rows("detect", *arguments, "--model", tmp_path / "detector")
    assert header == ["who", "row", "score", "flagged", "reasons", "scale"]
    assert len(lines) == 6
    assert lines[0][:2] == ["b100", "101"]
    assert lines[0][4].startswith("repair 900 (expected ")
    assert ") with total; total " in lines[0][4]
    scores = [float(line[2]) for line in lines]
    assert scores == sorted(scores, reverse=True)
    detector = pickmix.load(tmp_path / "detector")
    assert lines[0][5] in detector.scales_
    np.testing.assert_allclose(scores[0], detector.decision_scores_.max(), rtol=1e-9)
    header, lines = printed_rows("detect", *arguments, "--all")
    assert [line[0] for line in lines] == [f"b{number}" for number in range(300)]
    assert sum(int(line[3]) for line in lines) == 6
    assert {bool(line[4]) for line in lines if line[3] == "0"} == {False}


def test_what_is_said(tmp_path):
    path, out = tmp_path / "bills.csv", tmp_path / "flagged.csv"
    write_bills(path, 100)
    said = run_well("detect", path, "--exclude", "who", "--out", out).stdout
    assert said.splitlines() == ["5 of 100 rows flagged", f"wrote {out}"]
    assert "who" in error_of("detect", path)
    detector = tmp_path / "detector"
    kinds = ("--kind", "who=skip", "--kind", "total=category")
    run_well("detect", path, *kinds, "--model", detector, "--out", out)
    schema = pickmix.load(detector).schema_
    assert [schema[name].kind for name in ("who", "total")] == ["skip", "category"]
    assert "--kind must be NAME=KIND" in error_of("detect", path, "--kind", "total")
    assert "contamination" in error_of("detect", path, "--contamination", 0.9)
