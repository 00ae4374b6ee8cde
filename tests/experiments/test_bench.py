"""`pickmix bench`: data sets, methods, runs, pages and the command. Most fits are made up."""

import dataclasses
import warnings
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from made_rows import bench as made_up
from made_rows import by_key
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from pickmix.data.rotated import generate
from pickmix_experiments import bench, datasets, methods, uci
from pickmix_experiments.bench_pages import Cases, page
from pickmix_experiments.datasets import (
    SETTINGS,
    TABLES,
    Dataset,
    GaussianParameters,
    Rows,
    choose,
    split_rows,
)
from pickmix_experiments.methods import METHODS, gaussians_of_clusters
from pickmix_experiments.runner import perform
from pickmix_experiments.runs import BenchRun
from pickmix_experiments.store import Store

TRUTH = generate(4, 2, 0.03, random_state=3)
SKLEARN = "sklearn-kmeans-one-thread"


def nothing(evaluations, parameters):
    pass


@pytest.fixture(scope="module")
def X():
    # Four clusters far apart, so that every method finds them.
    return TRUTH.sample(400, random_state=0)[0]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_finds_clusters(name, X):
    method = METHODS[name]
    if method.needs:
        pytest.importorskip(method.needs)
    with warnings.catch_warnings():
        if method.needs:
            warnings.simplefilter("ignore")
        fitted = method.fit(X, 4, 0, nothing)
    best = TRUTH.score_samples(X).mean()
    assert abs(fitted.parameters.score_samples(X).mean() - best) < 0.1
    assert fitted.parameters.live_components(400) == 4
    # A pass at least, and all of one for those that take no batches.
    assert method.needs or fitted.evaluations >= 400
    if name == "em" or name.startswith("sklearn"):
        assert fitted.evaluations % (4 * 400) == 0


def test_clusters_become_gaussians_shrunk_by_one_row():
    X = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0], [9.0, 9.0]])
    parameters = gaussians_of_clusters(X, np.array([0, 0, 0, 0, 1]), np.full((3, 2), 7.0))
    np.testing.assert_allclose(parameters.weights, [0.8, 0.2, 0.0])
    np.testing.assert_allclose(parameters.means, [[1, 1], [9, 9], [7, 7]])
    # The scatter of all clusters is 4 per column, over five rows.
    pooled = 0.8 * np.eye(2)
    expected = [(4 * np.eye(2) + pooled) / 5, pooled / 2, pooled]
    np.testing.assert_allclose(parameters.covariances, np.array(expected) + 1e-6 * np.eye(2))


def test_density_is_scipys_whatever_the_type_and_the_sum_of_weights(X):
    arrays = (3.0 * TRUTH.weights, TRUTH.means, TRUTH.covariances)
    narrow = GaussianParameters(*(values.astype(np.float32) for values in arrays))
    parts = [
        np.log(w) + multivariate_normal(m, S).logpdf(X[:30])
        for w, m, S in zip(TRUTH.weights, TRUTH.means, TRUTH.covariances, strict=True)
    ]
    np.testing.assert_allclose(narrow.score_samples(X[:30]), logsumexp(parts, axis=0), rtol=1e-3)
    with pytest.raises(ValueError, match="means must be finite; got nan"):
        GaussianParameters([1.0], [[np.nan]], [[[1.0]]])


@pytest.fixture
def make(monkeypatch):
    """Make a run of a method, or of one with another fit, on tiny data."""

    def draw(seed):
        train, held_out = (TRUTH.sample(n, random_state=seed + n)[0] for n in (300, 200))
        return Rows(train, held_out, TRUTH.score_samples(held_out))

    def make(name="em", fit=None, data=draw):
        monkeypatch.setitem(SETTINGS, "tiny", Dataset("tiny", "made up", data, 4))
        if fit is not None:
            monkeypatch.setitem(METHODS, name, dataclasses.replace(METHODS[name], fit=fit))
        return perform(BenchRun(name, 0, 0, setting="tiny"), threads=2)

    return make


def test_a_run_measures_its_curve_and_its_end(make, monkeypatch):
    monkeypatch.setattr(methods, "CURVE_SPACING", 0.0)
    monkeypatch.setattr(methods, "CURVE_ROWS", 200)
    row = make()
    trace = row["trace"]
    assert len(trace["seconds"]) >= 3
    assert np.all(np.diff([0.0, *trace["seconds"]]) >= 0)
    # The last record on the way is the end, here measured on all held-out rows.
    assert trace["validation"][-2] == pytest.approx(trace["validation"][-1])
    assert trace["validation"][-1] == pytest.approx(row["test"])
    assert trace["evaluations"][-1] % 4 == 0
    assert row["true_test"] == pytest.approx(row["true_validation"])
    assert (row["outcome"], row["threads"], row["n_rows"]) == ("converged", 2, 300)
    assert (row["n_features"], row["n_components"], trace["live_components"][-1]) == (2, 4, 4)
    assert "numba" in row["versions"]
    monkeypatch.setattr(methods, "CURVE_SPACING", 1e9)
    assert len(make()["trace"]["seconds"]) == 2


def test_errors_are_outcomes(make):
    def broken(X, n_components, seed, record):
        raise ZeroDivisionError("first line\nsecond line")

    def missing(seed):
        raise FileNotFoundError("rows.txt: nothing there")

    row = make(fit=broken)
    assert row["outcome"] == "failed: ZeroDivisionError: first line"
    assert ("test" in row, row["n_rows"]) == (False, 300)
    assert make(data=missing)["outcome"] == "no data: rows.txt: nothing there"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Data with two small tables, of which 180 and 45 rows are fitted, and nothing elsewhere."""
    (tmp_path / "tables").mkdir()
    rng = np.random.default_rng(0)
    rows = np.repeat(rng.normal(size=(3, 2)), 80, axis=0) + rng.normal(0, 0.1, (240, 2))
    np.savez(tmp_path / "tables" / "skin.npz", X=rows.astype(np.float32))
    np.savez(tmp_path / "tables" / "bike.npz", X=rng.integers(0, 9, size=(60, 2), dtype=np.int16))
    monkeypatch.setenv("PICKMIX_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "scikit-learn"))
    monkeypatch.setattr(uci, "_BASE_ADDRESS", "file:///nowhere")
    return tmp_path


def test_drawn_rows_and_their_truth(monkeypatch):
    monkeypatch.setattr(datasets, "HELD_OUT_ROWS", 40)
    data = datasets.ellipsoids("tiny", 2, 3, 50, 0.1, weights="power")
    first, again, other = data.make(0), data.make(0), data.make(1)
    assert (first.train.shape, first.held_out.shape) == ((50, 2), (40, 2))
    np.testing.assert_array_equal(first.train, again.train)
    assert not np.array_equal(first.train, other.train)
    truth = generate(3, 2, 0.1, weights="power", random_state=np.random.default_rng(0))
    np.testing.assert_allclose(first.true_log_density, truth.score_samples(first.held_out))


def test_rows_of_tables_are_shuffled_split_and_standardised(folder):
    train, held_out, _ = TABLES["skin"].make(7)
    rows = np.load(folder / "tables" / "skin.npz")["X"].astype(np.float64)
    rows = rows[np.random.default_rng(0).permutation(240)]
    expected = (rows - rows[:180].mean(axis=0)) / rows[:180].std(axis=0)
    np.testing.assert_allclose(np.concatenate([train, held_out]), expected)
    # Equal numbers whose mean is not exactly one of them.
    parts = split_rows("made-up", np.column_stack([np.full(100, 0.1), np.arange(100.0)]))
    assert not any(part[:, 0].any() for part in parts[:2])


def test_rows_decide_on_the_numbers_of_components_and_tables_may_be_missing(folder, monkeypatch):
    tables = folder / "tables"
    (tables / "shuttle.npz").write_bytes(b"no archive")
    np.savez(tables / "kin40k.npz", Y=np.zeros((9, 2)))
    np.savez(tables / "kdd-log.npz", X=np.full((9, 2), np.nan))
    np.savez(tables / "elevators.npz", X=np.zeros((1, 2)))
    reasons = {
        "shuttle": "",
        "kin40k": "expected an array X, got Y",
        "kdd-log": "expected finite numbers",
        "elevators": "expected at least 2 rows, got 1",
        "cytometry": "PICKMIX_DATA names, but there is no such file",
        "wine": "found its files nowhere.",
        "sklearn-california-housing": "expected it in scikit-learn's cache",
    }
    choice = choose(["bike", "skin", *reasons], (32, 8, 8, 12))
    assert choice.settings == ["bike-k8", "skin-k8", "skin-k12", "skin-k32"]
    assert choice.too_few_rows == {"bike": [12, 32]}
    assert set(choice.missing) == set(reasons)
    assert all(reason in choice.missing[name] for name, reason in reasons.items())
    # No empty cache of scikit-learn's was made.
    assert not (folder / "scikit-learn").exists()


@pytest.fixture
def results():
    """Wins, a tie, losses, failures on either side, and a rival that is not installed."""
    runs = {
        # (pickmix, em, scikit-learn)
        "wine-k8": ([(-1.0, 2.0), (-1.0, 4.0), (-5.0, 3.0)], [(-2.0, 1.0)] * 3, [(-3.0, 6.0)] * 3),
        "skin-k32": ([(-1.0, 1.0)], [(-1.0, 1.0)], [(-1.05, 2.0)]),
        "skin-k8": ([(-1.0, 1.0)], [()], [(-0.5, 0.5)]),
        "bike-k128": ([(-1.0, 1.0)], [(-1.5, 1.0)], [()]),
        "iris-k8": ([()], [()], [()]),
    }
    sizes = {"n_rows": 1000, "n_features": 3, "versions": "numpy 2", "true_test": 0.0}
    rows = [
        made_up(setting, rival, seed, *value, **sizes)
        for setting, of_rivals in runs.items()
        for rival, values in zip(("pickmix", "em", SKLEARN), of_rivals, strict=True)
        for seed, value in enumerate(values)
    ]
    # The better start in the faster of its two forms, not the fastest start of all.
    rows += [made_up("skin-k32", "sklearn-k-means++", 0, -3.0, 0.1)]
    rows += [made_up("skin-k32", "sklearn-kmeans", 0, -1.05, 4.0)]
    return by_key(*rows, made_up("wine-k8", "gmmx", outcome="not installed: a | b", versions=""))


def test_ties_wins_and_failures_are_counted(results):
    cases = Cases(results)
    # Wins on wine and, as scikit-learn failed, bike; neither finished on iris.
    found = cases.compare("pickmix")
    assert found[:3] == (2, 1, 1)
    assert (found.median_gain, found.median_ratio) == (pytest.approx(0.05), pytest.approx(0.5))
    # EM failed on skin with K = 8.
    assert cases.compare("em")[:3] == (2, 1, 1)
    assert cases.compare("gmmx")[:3] == (0, 0, 0)
    assert cases.compare("pickmix", K=8)[:3] == (1, 0, 1)


def test_a_page_has_summary_results_missing_tables_and_the_machine(results):
    missing = {"kdd-log": "no such file", "wine": "gone by now"}
    text = page("Real tables", Cases(results), missing, [Path("tables.png")])
    lines = text.splitlines()
    assert "| pickmix | scikit-learn | all | 4 | 2 | 1 | 1 | +0.050 | 0.500 |" in lines
    assert "|  |  | 32 | 1 | 0 | 1 | 0 | +0.050 | 0.500 |" in lines
    assert any(line.startswith("| pickmix | em | all |") for line in lines)
    numbers = "-1.000 | +2.000 | 1.000 | 3.00 | 0.500 | 1,234 | 80 | – | 3 converged |"
    assert f"| wine | 8 | 1,000 | 3 | pickmix | {numbers}" in lines
    assert any(line.endswith("| 1 not installed: a / b |") for line in lines)
    assert text.index("## Summary") < text.index("(tables.png)") < text.index("## Results")
    assert text.count("no such file") == 1
    # Results of wine are there.
    assert "gone by now" not in text
    assert lines[-1] == "2 cores. numpy 2, pickmix 1."
    alone = Cases(by_key(made_up("wine-k8", "pickmix", test=-1.0)))
    assert "## Summary" not in page("Real tables", alone, None)


def run(*arguments):
    return CliRunner().invoke(bench.bench, [*map(str, arguments)])


@pytest.fixture
def made(monkeypatch):
    """Runs in the order in which they were made, each with its limit; none is fitted."""
    runs = []

    def make(run, max_seconds):
        if run.algorithm == "pomegranate":
            raise KeyboardInterrupt
        runs.append((run.setting, run.algorithm, run.seed, max_seconds))
        test = -1.0 if run.algorithm == "pickmix" else -1.5
        return made_up(run.setting, run.algorithm, run.seed, test, seconds=2.0)

    monkeypatch.setattr(bench, "make", make)
    return runs


@pytest.mark.parametrize(("verb", "names"), [("gaussian", SETTINGS), ("tables", TABLES)])
def test_lists(verb, names):
    result = run(verb, "--list")
    assert result.exit_code == 0
    for name in (*names, *METHODS):
        assert f"\n  {name} " in result.output


def test_quick_is_small_and_nothing_is_repeated(tmp_path, made):
    assert run("gaussian", "--quick", "--out", tmp_path / "b").exit_code == 0
    rivals = (SKLEARN, "pickmix", "em", "tsaem")
    assert made == [("small", name, 0, 3600.0) for name in rivals]
    files = {file.name for file in (tmp_path / "b").iterdir()}
    assert files == {"gaussian.jsonl", "gaussian.md", "gaussian-small.png"}
    choice = ["--quick", "--setting", "k10000", "--setting", "small", "--rival", "em"]
    choice += ["--rival", "pickmix", "--seeds", 2, "--max-seconds", 7, "--out", tmp_path / "b"]
    made.clear()
    result = run("gaussian", *choice)
    assert "[2/6] small, em, seed 0: converged, -1.5000 held out in 2.00 s (from" in result.output
    # Dense ones are left out where there are too many components.
    assert [row[:3] for row in made] == [
        *(("small", name, 1) for name in ("pickmix", "em")),
        *(("k10000", "pickmix", seed) for seed in (0, 1)),
    ]
    assert made[0][3] == 7.0


def test_tables_and_their_numbers_of_components(folder, made):
    choice = ["--table", "skin", "--components", 8, "--components", 50, "--rival", "pickmix"]
    result = run("tables", *choice, "--rival", SKLEARN, "--seeds", 1, "--out", folder / "out")
    assert made == [("skin-k8", name, 0, 3600.0) for name in (SKLEARN, "pickmix")]
    assert "left out, with fewer than 4 K rows to fit: skin K = 50" in result.output
    before = (folder / "out" / "tables.jsonl").read_bytes()
    (folder / "out" / "tables.md").unlink()
    assert run("tables", "--draw-only", "--out", folder / "out").exit_code == 0
    assert (folder / "out" / "tables.md").exists()
    assert (folder / "out" / "tables.jsonl").read_bytes() == before


def test_an_interrupt_keeps_the_finished_runs(tmp_path, made):
    result = run(
        "gaussian", "--quick", "--rival", "em", "--rival", "pomegranate", "--out", tmp_path
    )
    assert result.exit_code == 130
    assert "the same command resumes from here" in result.output
    assert len(Store(tmp_path / "gaussian.jsonl").rows) == 1
    assert (tmp_path / "gaussian.md").exists()


def test_a_real_run_from_end_to_end(folder, monkeypatch):
    gmmx = dataclasses.replace(METHODS["gmmx"], needs="no_such_library")
    monkeypatch.setitem(METHODS, "gmmx", gmmx)
    choice = ("--table", "skin", "--table", "wine", "--rival", "em", "--rival", "gmmx")
    result = run("tables", "--quick", *choice, "--out", folder / "out")
    assert result.exit_code == 0, result.output
    assert "missing: wine: found its files nowhere." in result.output
    assert "seed 0: not installed: no_such_library" in result.output
    row, _ = Store(folder / "out" / "tables.jsonl").rows.values()
    assert (row["algorithm"], row["setting"]) == ("em", "skin-k8")
    assert (row["n_rows"], row["n_features"], row["n_components"]) == (180, 2, 8)
    assert row["outcome"] in ("converged", "max_iter")
    assert np.isfinite([row["test"], row["peak_megabytes"], row["trace"]["seconds"][-1]]).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gaussian", "--setting", "mixsom"], "'mixsom' is not one of 'small', 'mixsim'"),
        (["gaussian", "--rival", "sklearn"], "'sklearn' is not one of 'sklearn-kmeans'"),
        (["gaussian", "--seeds", "0"], "0 is not in the range"),
        (["gaussian", "--max-seconds", "0"], "0.0 is not in the range"),
        (["gaussian", "--draw-only"], "--draw-only: expected results in"),
        (["gaussian", "--setting", "k10000", "--rival", "em"], "--rival: "),
        (["tables", "--components", "0"], "0 is not in the range"),
        (["tables", "--table", "wine"], "--table: expected a table that is there"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(folder, made, arguments, message):
    result = run(*arguments, "--out", folder / "out")
    assert result.exit_code == 2
    assert message in result.output
    assert not (folder / "out").exists()
