"""Pages and the picture of the benches, from results that nobody measured."""

import pytest
from made_histories import bench

from pickmix_experiments.bench_pages import (
    Cases,
    draw_gains,
    ends_of,
    gaussian_page,
    setting_table,
    tables_page,
)
from pickmix_experiments.store import Store

SKLEARN = "sklearn-kmeans-one-thread"


def ends(folder, *histories):
    store = Store(folder / "results.jsonl")
    for history in histories:
        store.add(history)
    return ends_of(store)


def cells(text):
    lines = [[cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines()]
    return {line[0]: dict(zip(lines[0], line, strict=True)) for line in lines[2:]}


@pytest.fixture
def small(tmp_path):
    """Rivals on two seeds; rows of seed 1 are all one higher. One rival failed."""
    histories = []
    for seed in (0, 1):
        facts = {"seed": seed, "true_test": float(seed), "load_average": 0.5 + seed}
        for rival, test, seconds in (
            ("sklearn-kmeans", -0.2, 8.0),
            (SKLEARN, -0.2, 4.0),
            ("sklearn-k-means++", -0.3, 1.0),
            ("em", -0.1, 0.5),
        ):
            known = {"test": test + seed, "seconds": seconds * (1 + seed), "peak_megabytes": 12.4}
            histories.append(bench("small", rival, **known, **facts))
        histories.append(bench("small", "gmmx", outcome="failed: a | b", **facts))
    return ends(tmp_path, *histories)


def test_medians_gaps_and_the_reference(small):
    found = cells(setting_table(small))
    names = ["sklearn-kmeans", "sklearn-k-means++", SKLEARN, "em", "gmmx"]
    assert list(found) == ["*true mixture*", *names]
    assert found["*true mixture*"]["held-out"] == "0.500"
    em = found["em"]
    assert (em["held-out"], em["short of the truth"], em["seconds"]) == ("0.400", "0.100", "0.750")
    # The better start in the faster of its two forms: not the fastest start of all.
    ratio = f"seconds ÷ {SKLEARN}'s"
    assert (em[ratio], found["sklearn-kmeans"][ratio]) == ("0.125", "2.00")
    assert (em["evaluations per row"], em["live"], em["memory, MB"]) == ("1,234", "80", "12")
    assert em["outcome"] == "2 converged"
    gmmx = found["gmmx"]
    assert gmmx["held-out"] == gmmx["seconds"] == gmmx["live"] == "–"
    assert gmmx["outcome"] == "2 failed: a / b"


def test_without_truth_and_reference_there_are_no_such_columns(tmp_path):
    found = ends(tmp_path, bench("birch1", "em", test=-1.0, seconds=1234.5))
    header, _, line = setting_table(found).splitlines()
    assert "truth" not in header
    assert "÷" not in header
    assert "1,23" in line


def test_the_page_has_every_setting_and_the_machine(tmp_path, small):
    store = Store(tmp_path / "results.jsonl")
    store.add(bench("birch1", "em", outcome="no data: nothing", load_average=1.0))
    page = gaussian_page(ends_of(store), ["small"])
    assert page.index("## small") < page.index("## birch1")
    assert "(gaussian-small.png)" in page
    assert "gaussian-birch1.png" not in page
    assert "2 cores; load average at the start of a run 0.5 to 1.5. numpy 2, pickmix 1." in page


@pytest.fixture
def results(tmp_path):
    """Wins, a tie, losses, failures on either side, and a rival that is not installed."""
    runs = {
        # (pickmix, em, scikit-learn)
        "wine-k8": ([(-1.0, 2.0), (-1.0, 4.0), (-5.0, 3.0)], [(-2.0, 1.0)] * 3, [(-3.0, 6.0)] * 3),
        "skin-k32": ([(-1.0, 1.0)], [(-1.0, 1.0)], [(-1.05, 2.0)]),
        "skin-k8": ([(-1.0, 1.0)], [()], [(-0.5, 0.5)]),
        "bike-k128": ([(-1.0, 1.0)], [(-1.5, 1.0)], [()]),
        "iris-k8": ([()], [()], [()]),
    }
    sizes = {"n_rows": 1000, "n_features": 3, "versions": "numpy 2"}
    histories = [
        bench(setting, rival, seed, *value, **sizes)
        for setting, of_rivals in runs.items()
        for rival, values in zip(("pickmix", "em", SKLEARN), of_rivals, strict=True)
        for seed, value in enumerate(values)
    ]
    histories.append(bench("wine-k8", "gmmx", outcome="not installed: gmmx", versions=""))
    return ends(tmp_path, *histories)


def test_ties_wins_and_failures_are_counted(results):
    cases = Cases(results)
    # Wins on wine and, as scikit-learn failed, bike; neither finished on iris.
    found = cases.compare("pickmix")
    assert (found.wins, found.ties, found.losses) == (2, 1, 1)
    assert found.median_gain == pytest.approx(0.05)
    assert found.median_seconds_ratio == pytest.approx(0.5)
    # EM failed on skin with K = 8.
    assert cases.compare("em")[:3] == (2, 1, 1)
    assert cases.compare("gmmx")[:3] == (0, 0, 0)
    assert cases.compare("pickmix", K=8)[:3] == (1, 0, 1)


def test_the_page_has_summary_tables_failures_and_missing_ones(results):
    missing = {"kdd-log": "no such file", "wine": "gone by now"}
    page = tables_page(results, missing=missing, picture=True)
    lines = page.splitlines()
    assert "| pickmix | scikit-learn | all | 4 | 2 | 1 | 1 | +0.050 | 0.500 |" in lines
    assert "|  |  | 32 | 1 | 0 | 1 | 0 | +0.050 | 0.500 |" in lines
    assert any(line.startswith("| pickmix | em | all |") for line in lines)
    assert page.index("## Summary") < page.index("(tables.png)") < page.index("## Tables")
    table = [line for line in lines if line.startswith(("| table |", "| --- | ---: |", "| wine |"))]
    wine = cells("\n".join(table))["wine"]
    assert (wine["K"], wine["rows"], wine["columns"]) == ("8", "1,000", "3")
    assert (wine["held-out, pickmix"], wine["gain, pickmix"]) == ("-1.000", "+2.000")
    assert wine["gain, gmmx"] == wine["seconds, gmmx"] == "–"
    assert "- skin, K = 8, em: 1 timed out after 5 s" in lines
    assert "- wine, K = 8, gmmx: 1 not installed: gmmx" in lines
    # Results of wine are there.
    assert page.count("no such file") == 1
    assert "gone by now" not in page
    assert lines[-1] == "2 cores. numpy 2."


def test_without_scikit_learn_there_is_no_gain_and_no_picture(tmp_path):
    found = ends(tmp_path, bench("wine-k8", "pickmix", test=-1.0, seconds=2.0))
    page = tables_page(found)
    assert "gain, pickmix" not in page
    assert "## Summary" not in page
    assert "Missing" not in page
    assert draw_gains(Cases(found), tmp_path / "tables.png") is None


def test_a_picture_is_drawn(results, tmp_path):
    path = tmp_path / "tables.png"
    assert draw_gains(Cases(results), path) == path
    assert path.read_bytes().startswith(b"\x89PNG")
