"""The command line: what it prints, writes and refuses."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from commands import QUICK, run, run_well

import pickmix
from pickmix.cli import fit_command
from pickmix.closed_form.partition_engine import PartitionEngine
from pickmix.data.files import read_table, write_table
from pickmix.data.mixsim import generate


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.normal(size=(300, 2)) + 6.0 * rng.integers(0, 3, size=(300, 1))


@pytest.fixture(scope="module")
def places(tmp_path_factory, X):
    """A folder with rows.csv and a model fitted to it."""
    folder = tmp_path_factory.mktemp("places")
    write_table(folder / "rows.csv", {"a": X[:, 0], "b": X[:, 1]})
    run_well("fit", folder / "rows.csv", *QUICK, "--out", folder / "model")
    return folder


def test_help_is_a_page():
    text = run_well("--help").output
    for verb in ("fit", "score", "assign", "sample", "impute", "explain", "report"):
        assert f"pickmix {verb}" in text
        assert "Example" in run_well(verb, "--help").output
    assert run_well("--version").output.split()[-1] == pickmix.__version__


def test_fit_saves_what_it_says_and_sums_it_up(tmp_path, X):
    np.save(tmp_path / "rows.npy", X)
    out = tmp_path / "model"
    result = run_well("fit", tmp_path / "rows.npy", "--components", 3, "--out", out)
    assert {file.name for file in out.iterdir()} == {
        "arrays.npz",
        "model.json",
        "fit.png",
        "report.html",
        "trace.csv",
    }
    model = pickmix.load(out)
    lines = {line[2:31].strip(): line[31:].strip() for line in result.stdout.splitlines()[1:-2]}
    assert lines["rows"] == "300"
    assert lines["columns"] == "2"
    assert lines["components"] == "3"
    assert lines["log-likelihood per row"] == f"{model.score(X):.4f}  (all rows)"
    assert lines["steps"] == str(model.n_steps_)
    evaluated = model.n_component_evaluations_ / (300 * model.n_iter_)
    assert lines["components per row and pass"] == f"{evaluated:.1f}"
    assert lines["outcome"] == model.outcome_ == "converged"
    assert str(out) in result.stdout.splitlines()[-1]
    assert "log-likelihood=" in result.stderr
    trace, names = read_table(out / "trace.csv")
    assert names == list(model.trace_.dtype.names)
    np.testing.assert_array_equal(trace[:, 0], model.trace_["step"])


def test_options_reach_the_estimator(tmp_path, places):
    values = {
        "--components": ("n_components", 4),
        "--covariance": ("covariance_type", "diag"),
        "--algorithm": ("algorithm", "mhsaem"),
        "--proposal": ("proposal", "uniform"),
        "--samples": ("n_samples", 3),
        "--batch-size": ("batch_size", 64),
        "--step-size": ("step_size", 0.5),
        "--annealing": ("annealing", "anti"),
        "--max-iter": ("max_iter", 7),
        "--max-steps": ("max_steps", 9),
        "--max-time": ("max_time", 60.0),
        "--tol": ("tol", 0.25),
        "--reg-covar": ("reg_covar", 0.125),
        "--init": ("init_params", "random_from_data"),
        "--seed": ("random_state", 11),
        "--jobs": ("n_jobs", 1),
    }
    options = [item for option, (_, value) in values.items() for item in (option, value)]
    run_well(
        "fit",
        places / "rows.csv",
        *options,
        "--no-plot",
        "--no-report",
        "--out",
        tmp_path / "model",
    )
    parameters = pickmix.load(tmp_path / "model").get_params()
    given = dict(values.values())
    assert {name: parameters[name] for name in given} == given
    assert {name: value for name, value in parameters.items() if name not in given} == {
        name: value
        for name, value in pickmix.GaussianMixture().get_params().items()
        if name not in given
    }


def test_words_are_taken_where_numbers_may_stand(tmp_path, places):
    options = ["--batch-size", "auto", "--step-size", "paper", *QUICK]
    run_well("fit", places / "rows.csv", *options, "--out", tmp_path / "model")
    assert pickmix.load(tmp_path / "model").step_size == "paper"


def test_fit_gives_what_the_estimator_gives(places, X):
    model = pickmix.load(places / "model")
    again = pickmix.GaussianMixture(3, max_iter=3, tol=0.0, random_state=0).fit(X)
    np.testing.assert_array_equal(model.means_, again.means_)
    assert model.feature_names_in_.tolist() == ["a", "b"]


@pytest.mark.parametrize("quiet", ["--quiet", "-q"])
def test_quiet_prints_nothing(tmp_path, places, quiet):
    result = run_well("fit", places / "rows.csv", *QUICK, quiet, "--out", tmp_path / "model")
    assert result.output == ""


def test_the_example_shows_the_truth(tmp_path, monkeypatch):
    monkeypatch.setattr(fit_command, "EXAMPLE_ROWS", 2000)
    monkeypatch.setattr(fit_command, "EXAMPLE_COMPONENTS", 10)
    result = run_well("fit", "--no-plot", "--no-report", "--out", tmp_path / "model")
    lines = {line[2:31].strip(): line[31:].split() for line in result.stdout.splitlines()}
    assert lines["rows"] == ["2,000"]
    assert lines["components"] == ["10"]
    mixture = generate(10, 2, 0.75, random_state=0)
    rows, _ = mixture.sample(2000, random_state=0)
    truth = mixture.score_samples(rows).mean()
    assert lines["the true mixture's"] == [f"{truth:.4f}"]
    assert float(lines["log-likelihood per row"][0]) == pytest.approx(truth, abs=0.3)


def test_warnings_are_one_line_notes(tmp_path, places):
    options = [
        "--components",
        3,
        "--max-iter",
        2,
        "--tol",
        1e-9,
        "--quiet",
        "--no-plot",
        "--no-report",
    ]
    result = run_well("fit", places / "rows.csv", *options, "--out", tmp_path / "model")
    (line,) = result.stderr.splitlines()
    assert line.startswith("note: The log-likelihood still rose")


def test_an_interrupted_fit_is_saved(tmp_path, places, monkeypatch):
    step = PartitionEngine.step

    def interrupt(self, t):
        step(self, t)
        if t == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(PartitionEngine, "step", interrupt)
    # Hosts may run tests with SIGINT ignored; the fit heeds Python's own handler only.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = run(
            "fit", places / "rows.csv", "--batch-size", 50, *QUICK, "--out", tmp_path / "model"
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.exit_code == 130
    assert "note: The fit was interrupted after 3 steps" in result.stderr
    assert "The interrupted model is in" in result.stdout
    assert pickmix.load(tmp_path / "model").n_steps_ == 3


def test_score(tmp_path, places, X):
    expected = pickmix.load(places / "model")
    del expected.feature_names_in_
    scores = expected.score_samples(X)
    out = tmp_path / "scores.parquet"
    result = run_well("score", places / "model", places / "rows.csv", "--out", out)
    assert f"mean log-density of 300 rows: {scores.mean():.6f}" in result.stdout
    written, names = read_table(out)
    np.testing.assert_array_equal(written[:, 0], scores)
    assert names == ["log_density"]


def test_assign(tmp_path, places, X):
    model = pickmix.load(places / "model")
    del model.feature_names_in_
    components, probabilities = model.top_components(X, 2)
    out = tmp_path / "components.csv"
    run_well("assign", places / "model", places / "rows.csv", "--top", 2, "--out", out)
    written, names = read_table(out)
    assert names == ["component_1", "probability_1", "component_2", "probability_2"]
    np.testing.assert_array_equal(written[:, ::2], components)
    np.testing.assert_array_equal(written[:, 1::2], probabilities)


def test_without_out_the_first_rows_are_shown(places):
    lines = run_well("assign", places / "model", places / "rows.csv").stdout.splitlines()
    assert lines[1] == "component_1,probability_1"
    assert len(lines) == 1 + 1 + 10 + 1
    assert lines[-1] == "... 290 more rows; --out FILE writes all, --out - prints all"


def test_sample(tmp_path, places):
    first, second, other = (tmp_path / f"{name}.csv" for name in ("first", "second", "other"))
    run_well("sample", places / "model", "-n", 500, "--seed", 1, "--out", first)
    run_well("sample", places / "model", "-n", 500, "--seed", 1, "--out", second)
    run_well("sample", places / "model", "-n", 500, "--seed", 2, "--out", other)
    rows, names = read_table(first)
    assert names == ["a", "b", "component"]
    np.testing.assert_array_equal(rows, read_table(second)[0])
    assert not np.array_equal(rows, read_table(other)[0])
    model = pickmix.load(places / "model")
    assert rows[:, 0].mean() == pytest.approx(model.weights_ @ model.means_[:, 0], abs=1.0)
    # In mixed order, yet each row still beside its own component.
    assert (np.diff(rows[:, 2]) < 0).any()
    distance = np.abs(rows[:, :2] - model.means_[rows[:, 2].astype(int)])
    assert distance.mean() < 2.0
    run_well("sample", places / "model", "-n", 5, "--out", tmp_path / "made.npy")
    assert np.load(tmp_path / "made.npy").shape == (5, 2)


def test_columns_are_found_by_name(tmp_path, places, X):
    moved = write_table(tmp_path / "moved.csv", {"b": X[:, 1], "other": np.ones(300), "a": X[:, 0]})
    straight = run_well("score", places / "model", places / "rows.csv").stdout
    assert run_well("score", places / "model", moved).stdout == straight
    np.save(tmp_path / "rows.npy", X)
    assert run_well("score", places / "model", tmp_path / "rows.npy").stdout == straight
    strange = write_table(tmp_path / "strange.csv", {"c": X[:, 0], "d": X[:, 1]})
    assert "no column 'a'" in run("score", places / "model", strange).stderr
    result = run_well("score", places / "model", strange, "--columns", "c,d")
    assert result.stdout == straight


def test_fit_takes_columns(tmp_path, places):
    run_well("fit", places / "rows.csv", *QUICK, "--columns", "b", "--out", tmp_path / "model")
    model = pickmix.load(tmp_path / "model")
    assert model.n_features_in_ == 1
    assert model.feature_names_in_.tolist() == ["b"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "none.csv"], "none.csv: expected a file, found nothing there"),
        (
            ["fit", "words.csv", "--model", "gaussian"],
            "column 'b', got 'x' in line 2; leave that column out with --columns, or use --model "
            "table, which takes text, dates and missing values",
        ),
        (["fit", "rows.xlsx"], "expected a file ending in"),
        (
            ["fit", "infinite.csv"],
            "infinite.csv: expected finite numbers, got inf in row 2 of column 'b'",
        ),
        (["fit", "rows.csv", "--components", "301"], "n_components must be at most"),
        (["fit", "rows.csv", "--tol", "-1"], "tol must be a finite number >= 0"),
        (["fit", "rows.csv", "--out", "rows.csv/x"], "rows.csv"),
        (["fit", "rows.csv", "--columns", "z"], "no column 'z'; there are a, b or 0 to 1"),
        (["score", "rows.csv", "rows.csv"], "expected a saved model"),
        (["score", "none", "rows.csv"], "none: expected a saved model, found nothing there"),
        (["score", "model", "rows.csv", "--columns", "a"], "expected the 2 columns"),
        (["score", "model", "rows.csv", "--out", "x.doc"], "got '.doc'"),
        (["assign", "model", "rows.csv", "--top", "4"], "n_components=3, got 4"),
        (["sample", "model", "--out", "none/x.csv"], "does not exist"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(places, monkeypatch, arguments, message):
    monkeypatch.chdir(places)
    (places / "infinite.csv").write_text("a,b\n1,2\n3,inf\n")
    (places / "words.csv").write_text("a,b\n1,x\n")
    before = sorted(places.rglob("*"))
    result = run(*arguments)
    assert result.exit_code == 2
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert result.stderr.splitlines()[-1] == errors[0]
    assert "Traceback" not in result.output
    assert sorted(places.rglob("*")) == before


@pytest.mark.parametrize("option", ["--batch-size", "--step-size"])
def test_a_wrong_word_is_refused(places, option):
    result = run("fit", places / "rows.csv", option, "some")
    assert result.exit_code == 2
    assert "got 'some'" in result.stderr


def test_without_matplotlib_fit_goes_on(tmp_path, places, monkeypatch):
    monkeypatch.setattr(fit_command.importlib.util, "find_spec", lambda name: None)
    options = [option for option in QUICK if option != "--no-plot"]
    result = run_well("fit", places / "rows.csv", *options, "--out", tmp_path / "model")
    assert "pip install pickmix[plot]" in result.stderr
    assert not (tmp_path / "model" / "fit.png").exists()


def test_python_m_pickmix(places):
    command = [sys.executable, "-m", "pickmix", "sample", str(places / "model"), "-n", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "a,b,component"
    assert done.stderr == ""


def test_a_verb_imports_no_other_verb():
    code = (
        "import sys\n"
        "from pickmix.cli import main\n"
        "main(['fit', '--help'], standalone_mode=False)\n"
        "others = ('apart', 'catalogue', 'bench_command', 'reproduce_command', 'queries')\n"
        "loaded = {name.split('.')[2] for name in sys.modules if name.count('.') > 1\n"
        "          and name.startswith(('pickmix.cli', 'pickmix.experiments'))}\n"
        "print(sorted(loaded.intersection(others)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


def test_the_saved_description_is_plain_json(places):
    description = json.loads((places / "model" / "model.json").read_text())
    assert description["attributes"]["feature_names_in_"] == {"strings": ["a", "b"]}
    assert description["parameters"]["verbose"] == 0
