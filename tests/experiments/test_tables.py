from made_up import made_up

from pickmix.experiments.results import Results, Run
from pickmix.experiments.tables import markdown, table


def cells(text):
    lines = [[cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines()]
    header = lines[0]
    return {line[0]: dict(zip(header, line, strict=True)) for line in lines[2:]}


def test_medians_gaps_and_the_yardstick(tmp_path):
    found = cells(table(made_up(tmp_path / "r.csv"), "small"))
    assert list(found) == [
        "*true mixture*",
        "sklearn-kmeans",
        "sklearn-k-means++",
        "sklearn-kmeans-one-thread",
        "em",
        "faiss-kmeans",
        "gmmx",
    ]
    assert found["*true mixture*"]["held-out"] == "0.500"
    em = found["em"]
    assert em["held-out"] == "0.400"
    assert em["short of the truth"] == "0.100"
    assert em["seconds"] == "0.750"
    # The better start in the faster of its two forms: not the fastest start of all.
    ratio = "seconds ÷ sklearn-kmeans-one-thread's"
    assert em[ratio] == "0.125"
    assert found["sklearn-kmeans"][ratio] == "2.00"
    assert em["evaluations per row"] == "1,234"
    assert em["live"] == "80"
    assert em["memory, MB"] == "12"
    assert em["outcome"] == "2 converged"
    assert found["faiss-kmeans"]["evaluations per row"] == "–"


def test_failures_are_listed_and_do_not_break_the_table(tmp_path):
    gmmx = cells(table(made_up(tmp_path / "r.csv"), "small"))["gmmx"]
    assert gmmx["held-out"] == gmmx["seconds"] == gmmx["live"] == "–"
    assert gmmx["outcome"] == "2 failed: a / b"


def test_long_messages_are_cut(tmp_path):
    results = Results(tmp_path / "r.csv")
    results.add(Run("birch1", "em", 0), [{"kind": "end", "outcome": "failed: " + "very " * 50}])
    assert table(results, "birch1").splitlines()[-1].endswith("very v… |")


def test_without_truth_and_yardstick_there_are_no_such_columns(tmp_path):
    results = Results(tmp_path / "r.csv")
    end = {"kind": "end", "outcome": "converged", "held_out": -1.0, "seconds": 1234.5}
    results.add(Run("birch1", "em", 0), [end])
    header, _, line = table(results, "birch1").splitlines()
    assert "truth" not in header
    assert "÷" not in header
    assert "1,23" in line


def test_the_page_has_every_setting_and_the_machine(tmp_path):
    results = made_up(tmp_path / "r.csv")
    results.add(Run("birch1", "em", 0), [{"kind": "end", "outcome": "no data: nothing"}])
    page = markdown(results, pictures=["small"])
    assert page.index("## small") < page.index("## birch1")
    assert "(gaussian-small.png)" in page
    assert "gaussian-birch1.png" not in page
    assert "2 cores; load average at the start of a run 0.5 to 1.5. numpy 2, pickmix 1." in page
