import math

import pytest

from pickmix.experiments.results import COLUMNS, Results, Run

RUN = Run("mixsim", "em", 1)


def rows(outcome="converged"):
    return [
        {"kind": "curve", "seconds": 0.5, "held_out_some": -2.5},
        {"kind": "end", "seconds": 1.25, "held_out": -2.0, "outcome": outcome},
    ]


def test_rows_come_back_as_they_were(tmp_path):
    results = Results(tmp_path / "r.csv")
    results.add(RUN, rows('failed: a, "quoted"\nline'))
    again = Results(results.path)
    curve, end = again.rows
    assert (curve["setting"], curve["rival"], curve["seed"]) == RUN
    assert (curve["seconds"], curve["held_out_some"]) == (0.5, -2.5)
    assert math.isnan(curve["held_out"])
    assert end["outcome"] == 'failed: a, "quoted" line'
    assert again.finished(RUN)
    assert not again.finished(Run("mixsim", "em", 2))
    assert again.of("mixsim", "em", "end") == [end] or math.isnan(end["train"])
    assert len(again.of("mixsim", "em", "curve")) == 1


def test_runs_are_appended_and_nothing_is_written_twice(tmp_path):
    path = tmp_path / "r.csv"
    Results(path).add(RUN, rows())
    before = path.read_text()
    Results(path).add(Run("mixsim", "em", 2), rows())
    assert path.read_text().startswith(before)
    assert path.read_text().count(",".join(COLUMNS)) == 1
    assert len(Results(path).rows) == 4


@pytest.mark.parametrize("cut", [1, 5, 60])
def test_a_run_cut_short_is_made_again_and_leaves_nothing(tmp_path, cut):
    path = tmp_path / "r.csv"
    Results(path).add(RUN, rows())
    whole = path.read_bytes()
    second = Run("mixsim", "em", 2)
    Results(path).add(second, rows())
    path.write_bytes(path.read_bytes()[: -cut - 1])
    results = Results(path)
    assert results.finished(RUN)
    # Without the last separators the line has too few fields, or no end at all.
    if cut > 1:
        assert not results.finished(second)
        assert {row["seed"] for row in results.rows} == {1}
    results.add(second, rows())
    assert path.read_bytes().startswith(whole)
    assert len(Results(path).rows) == 4


@pytest.mark.parametrize("outcome", ["not installed: faiss", "no data: nothing there"])
def test_what_was_missing_is_tried_again_and_replaced(tmp_path, outcome):
    results = Results(tmp_path / "r.csv")
    results.add(RUN, [{"kind": "end", "outcome": outcome}])
    assert not results.finished(RUN)
    results.add(RUN, rows())
    assert results.finished(RUN)
    assert [row["kind"] for row in Results(results.path).rows] == ["curve", "end"]


@pytest.mark.parametrize("outcome", ["failed: ValueError", "timed out after 5 s"])
def test_failures_are_results(tmp_path, outcome):
    results = Results(tmp_path / "r.csv")
    results.add(RUN, rows(outcome))
    assert results.finished(RUN)


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"expected the columns setting, .*, got a, b"):
        Results(path)
