"""The command line for flows and sum-product-transform networks."""

import importlib.util
import signal

import click
import numpy as np
import pytest
from commands import error_of, nameless, printed_rows, pythons_own_ctrl_c, run, run_well, summary_of

import pickmix
from pickmix import FlowMixture, GaussianMixture, Mixture, SumProductTransformNetwork
from pickmix.cli import fit as fit_command
from pickmix.cli.fit_options import DEEP, KINDS, ModelOption
from pickmix.cli.fit_output import measure, name_parts, summary
from pickmix.gradient.engine import GradientEngine
from pickmix.inputs.files import read_table, write_table

FLOW = ["--model", "flow", "--components", 4, "--hidden", 3, "--batch-size", 50]
FLOW += ["--max-steps", 20, "--no-report"]
SPTN = ["--model", "sptn", "--children", 3, "--batch-size", 50, "--max-steps", 20]
SPTN += ["--no-report", "--init", "paper"]


@pytest.fixture(scope="module")
def deep(tmp_path_factory, places):
    """A folder with two models fitted to rows.csv, and what was printed meanwhile."""
    folder = tmp_path_factory.mktemp("deep")
    for name, options in (("flow", FLOW), ("sptn", [*SPTN, "--no-plot"])):
        result = run_well("fit", places / "rows.csv", *options, "--out", folder / name)
        (folder / f"{name}.txt").write_text(result.stdout)
    return folder


@pytest.fixture
def refused(monkeypatch):
    """Estimators that were asked to fit, and did not."""
    estimators = []

    def refuse(self, X):
        estimators.append((self, X))
        raise ValueError("enough")

    for kind in KINDS.values():
        monkeypatch.setattr(kind.estimator, "fit", refuse)
    return estimators


def test_a_fit_of_flows_is_summed_up(deep, places, X):
    text = (deep / "flow.txt").read_text()
    first, *_, last = text.splitlines()
    assert first.startswith("Fitting 4 flows of 2 layers to 300 rows of 2 columns by mhsaem: ")
    assert first.endswith(str(places / "rows.csv"))
    model = nameless(deep / "flow")
    assert model.best_validation_ >= model.start_validation_
    lines = summary_of(text)
    expected = {
        "rows": "300",
        "columns": "2",
        "components": "4",
        "layers": "2",
        "log-likelihood per row": f"{model.score(X):.4f}  (all rows)",
        "validation log-likelihood": f"{model.best_validation_:.4f}",
        "that of the start": f"{model.start_validation_:.4f}",
        "acceptance": f"{model.trace_['acceptance'][-1]:.3f}",
        "passes": f"{model.trace_['epoch'][-1]:.1f}",
        "steps": "20",
        "seconds of work": f"{model.trace_['seconds'][-1]:.2f}",
        "seconds of the start": f"{model.start_seconds_:.2f}",
        "seconds of compilation": f"{model.compile_seconds_:.2f}",
        "outcome": "max_steps",
    }
    assert expected.items() <= lines.items()
    files = ["model.json", "arrays.npz", "trace.csv", "fit.png"]
    assert last == f"The model is in {deep / 'flow'} ({', '.join(files)})."
    assert {file.name for file in (deep / "flow").iterdir()} == set(files)
    trace, names = read_table(deep / "flow" / "trace.csv")
    assert names == list(model.trace_.dtype.names)
    np.testing.assert_array_equal(trace[:, names.index("validation")], model.trace_["validation"])


def test_a_fit_of_a_network_is_summed_up(deep):
    text = (deep / "sptn.txt").read_text()
    assert "a network of 2 layers, 3 children per sum and 2 parts per product" in text
    expected = {
        "children by layer": "3, 3",
        "partitions": "2",
        "layers": "2",
        "trees": "27",
        "that of the start": f"{nameless(deep / 'sptn').start_validation_:.4f}",
        "outcome": "max_steps",
    }
    assert expected.items() <= summary_of(text).items()


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (FlowMixture(), "flows of 2 layers"),
        (FlowMixture(1200, n_layers=1), "1,200 flows of 1 layer"),
        (SumProductTransformNetwork(), "a network of 2 layers, 2 parts per product"),
        (
            SumProductTransformNetwork((32, 4), n_partitions=1),
            "a network of 2 layers, 32 and 4 children per sum and 1 part per product",
        ),
    ],
)
def test_what_will_be_fitted_is_named(model, named):
    assert name_parts(model) == named


@pytest.mark.parametrize(
    ("name", "parameter", "line", "numbers"),
    [
        ("flow", "n_components", "components", "4"),
        ("sptn", "n_children", "children by layer", "3, 3"),
    ],
)
def test_a_summary_tells_the_numbers_that_were_fitted(deep, X, name, parameter, line, numbers):
    model = nameless(deep / name).set_params(**{parameter: "auto"})
    assert dict(summary(model, X.shape, *measure(model, X, len(X)), None))[line] == numbers


def test_more_trees_than_floats_can_count():
    class Large(SumProductTransformNetwork):
        n_trees_, n_children_ = 8**1000, (8, 8)

    model = Large()
    model.trace_ = GaussianMixture(2, max_iter=1, tol=0.0).fit(np.eye(4)).trace_
    model.outcome_, model.n_steps_ = "max_steps", 1
    model.best_validation_ = model.start_validation_ = float("nan")
    model.start_seconds_ = model.compile_seconds_ = 0.0
    lines = dict(summary(model, (4, 4), 0.0, "all rows", None))
    assert lines["trees"] == "about 10^903"
    assert lines["validation log-likelihood"] == "-"


def test_fit_gives_what_the_estimator_gives(deep, X):
    settings = {"batch_size": 50, "max_steps": 20, "random_state": 0}
    for name, again in {
        "flow": FlowMixture(4, hidden=3, **settings),
        "sptn": SumProductTransformNetwork(3, init_params="paper", **settings),
    }.items():
        model = pickmix.load(deep / name)
        assert model.get_params() == again.get_params()
        again.fit(X)
        for one, other in zip(model.tables_, again.tables_, strict=True):
            np.testing.assert_array_equal(one, other)
        assert model.feature_names_in_.tolist() == ["a", "b"]


@pytest.mark.parametrize("name", ["flow", "sptn"])
def test_saved_models_answer(tmp_path, deep, places, X, name):
    model = nameless(deep / name)
    out = tmp_path / "scores.csv"
    run_well("score", deep / name, places / "rows.csv", "--out", out)
    np.testing.assert_array_equal(read_table(out)[0][:, 0], model.score_samples(X))
    out = tmp_path / "components.csv"
    run_well("assign", deep / name, places / "rows.csv", "--top", 2, "--out", out)
    written, _ = read_table(out)
    components, probabilities = model.top_components(X, 2)
    np.testing.assert_array_equal(written[:, ::2], components)
    np.testing.assert_array_equal(written[:, 1::2], probabilities)


def test_saved_models_draw(tmp_path, deep):
    out = tmp_path / "drawn.csv"
    run_well("sample", deep / "flow", "-n", 200, "--seed", 1, "--out", out)
    drawn, names = read_table(out)
    assert names == ["a", "b", "component"]
    rows, components = nameless(deep / "flow").set_params(random_state=1).sample(200)
    expected = np.column_stack([rows, components])
    np.testing.assert_array_equal(drawn[np.lexsort(drawn.T)], expected[np.lexsort(expected.T)])


def test_components_of_ones_own_are_for_python(tmp_path, deep, places):
    mixture = Mixture(n_components=4)
    vars(mixture).update({k: v for k, v in vars(nameless(deep / "flow")).items() if k[-1] == "_"})
    pickmix.save(mixture, tmp_path / "model")
    for verb in (["score"], ["assign"], ["sample"]):
        rows = [] if verb == ["sample"] else [places / "rows.csv"]
        message = error_of(*verb, tmp_path / "model", *rows)
        assert message.endswith("from Python only: pickmix.load(path, component=...)")


def value_for(option, model):
    """A value of an option on the command line, and as the estimator has it."""
    if option.name == "schema":
        return "a=number", {"a": "number"}
    if option.name in ("missing_values", "gap_levels"):
        return "a,b", ["a", "b"]
    if isinstance(option.type, click.Path):
        return "kept", "kept"
    if isinstance(option.type, click.Choice):
        # The last word of --transforms stands for False.
        word = KINDS[model].words.get(option.name, option.type.choices[:1])[-1]
        return word, word
    number = getattr(option.type, "number", option.type)
    value = 0.25 if number is float or isinstance(number, click.types.FloatParamType) else 3
    return value, value


@pytest.mark.parametrize("model", list(KINDS))
def test_options_reach_the_estimator(refused, places, model):
    options = [
        option
        for option in fit_command.fit.params
        if isinstance(option, ModelOption) and model in option.models
    ]
    values = {
        option: value_for(option, model)
        for option in options
        if option.opts[0] not in ("--model", "--no-transforms")
    }
    words = [word for option, (word, _) in values.items() for word in (option.opts[0], word)]
    assert error_of("fit", places / "rows.csv", "--model", model, *words) == "Error: enough"
    given = {option.name: value for option, (_, value) in values.items()}
    expected = KINDS[model].estimator().get_params() | given | {"verbose": 1}
    assert refused[0][0].get_params() == expected
    assert len(given) > 15


@pytest.mark.parametrize(
    ("model", "options", "name", "expected"),
    [
        ("gaussian", ["--batch-size", "auto"], "batch_size", "auto"),
        ("gaussian", ["--step-size", "paper"], "step_size", "paper"),
        ("flow", ["--components", "auto"], "n_components", "auto"),
        ("sptn", ["--children", "auto"], "n_children", "auto"),
        ("sptn", ["--children", "32,4"], "n_children", (32, 4)),
        ("sptn", ["--children", "16, 8"], "n_children", (16, 8)),
        ("flow", ["--init", "gaussian"], "init_params", "gaussian"),
        ("flow", ["--batch-size", "all"], "batch_size", None),
        ("flow", ["--patience", "never"], "patience", None),
        ("flow", ["--learning-rate", "cosine"], "learning_rate", "cosine"),
        ("sptn", ["--no-transforms"], "transforms", False),
        ("sptn", ["--transforms", "none"], "transforms", False),
    ],
)
def test_words_and_flags_reach_the_estimator(refused, places, model, options, name, expected):
    error_of("fit", places / "rows.csv", "--model", model, *options)
    assert refused[0][0].get_params()[name] == expected


@pytest.mark.parametrize("model", list(KINDS))
def test_what_is_not_given_is_the_estimators_own(refused, places, model):
    error_of("fit", places / "rows.csv", "--model", model, "--quiet")
    own = {} if model in DEEP else {"n_components": "auto"}
    expected = KINDS[model].estimator().get_params() | {"random_state": 0} | own
    assert refused[0][0].get_params() == expected


@pytest.mark.parametrize(
    ("model", "max_steps", "name", "number"),
    [
        ("gaussian", None, "n_components", 3),
        ("flow", 2000, "n_components", 128),
        ("sptn", 2000, "n_children", (128, 4)),
    ],
)
def test_the_example_is_affordable(refused, monkeypatch, model, max_steps, name, number):
    monkeypatch.setattr(fit_command, "EXAMPLE_ROWS", 2000)
    monkeypatch.setattr(fit_command, "EXAMPLE_COMPONENTS", 3)
    result = run("fit", "--model", model)
    assert "to 2,000 rows of 2 columns by mhsaem: the embedded example" in result.stdout
    assert refused[0][0].max_steps == max_steps
    assert refused[0][0].get_params()[name] == number
    assert refused[0][1].shape == (2000, 2)
    run("fit", "--model", model, "--max-steps", 77)
    assert refused[1][0].max_steps == 77
    run("fit", "--model", model, f"--{name.removeprefix('n_')}", 5)
    assert refused[2][0].get_params()[name] == 5


def test_the_example_suits_networks_of_any_depth(refused, monkeypatch):
    monkeypatch.setattr(fit_command, "EXAMPLE_ROWS", 100)
    monkeypatch.setattr(fit_command, "EXAMPLE_COMPONENTS", 2)
    run("fit", "--model", "sptn", "--layers", 3)
    assert refused[0][0].n_children == (128, 4, 4)


def test_networks_without_transforms_take_gaps(tmp_path, X):
    gappy = X.copy()
    gappy[::7, 1] = np.nan
    write_table(tmp_path / "rows.csv", {"a": gappy[:, 0], "b": gappy[:, 1]})
    for model, other in (("flow", ", or use"), ("sptn", ", use --transforms none, or use")):
        message = error_of("fit", tmp_path / "rows.csv", "--model", model)
        assert "rows.csv: a missing value in row 1 of column 'b'" in message
        assert f"with --exclude{other} --model table" in message
    (tmp_path / "words.csv").write_text("a,b\n1,x\n")
    message = error_of("fit", tmp_path / "words.csv", "--model", "flow")
    assert "leave that column out with --columns, or use --model table" in message
    out = tmp_path / "model"
    plain = ["--transforms", "none", "--layers", 1, "--no-plot"]
    run_well("fit", tmp_path / "rows.csv", *SPTN, *plain, "--out", out)
    scores = tmp_path / "scores.csv"
    run_well("score", out, tmp_path / "rows.csv", "--out", scores)
    # What is not seen is integrated out: such a row has the density of its first column.
    expected = nameless(out).score_marginal(gappy[::7, :1], columns=[0])
    np.testing.assert_allclose(read_table(scores)[0][::7, 0], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--hidden 5", "--hidden belongs to --model flow, not to --model gaussian"),
        ("--layers 5", "--layers belongs to --model flow and sptn, not to --model gaussian"),
        ("--no-transforms", "--no-transforms belongs to --model sptn, not to --model gaussian"),
        ("--model sptn --no-transforms --transforms rotations", "none, got --transforms rotations"),
        ("--model flow --max-components 3", "--max-components belongs to --model gaussian and ta"),
        ("--components many", "'many' is not a valid integer range"),
        ("--components 0", "0 is not in the range x>=1"),
        ("--model sptn --children 4,0", "0 is not in the range x>=1"),
        ("--model sptn --children 4,4,4", "one for each of the n_layers=2 layers"),
        ("--model flow --init data", "n_components must be an integer with init_params='data'"),
        ("--model sptn --components 5", "gaussian, table and flow, not to --model sptn"),
        ("--model flow --covariance full", "to --model gaussian and table, not to --model flow"),
        ("--model flow --max-iter 100", "to --model gaussian and table, not to --model flow"),
        ("--model flow --algorithm tsaem", "mcsaem, em or sgd with --model flow, got 'tsaem'"),
        ("--algorithm sgd", "mcsaem or mhsaem with --model gaussian, got 'sgd'"),
        ("--model sptn --proposal auto", "or partition with --model sptn, got 'auto'"),
        ("--init data", "or paper with --model gaussian, got 'data'"),
        ("--model flow --batch-size auto", "batch_size must be "),
        ("--batch-size all", "batch_size must be 'auto' or an integer >= 1, got 'all'"),
        ("--model flow --layers 0", "n_layers must be an integer >= 1, got 0"),
        ("--model flow --gradient-clip 0", "gradient_clip must be a finite number > 0"),
        ("--model sptn --annealing anti --algorithm sgd", "must be None with algorithm='sgd'"),
    ],
)
def test_what_does_not_fit_the_model_is_one_clear_line(tmp_path, places, arguments, message):
    out = tmp_path / "model"
    assert message in error_of("fit", places / "rows.csv", *arguments.split(), "--out", out)
    assert not out.exists()


def test_flows_take_gaps_and_conditions(tmp_path, deep):
    (tmp_path / "gaps.csv").write_text("a,b\n0.5,1\n0.5,\n")
    gaps, flows = np.array([[0.5, 1.0], [0.5, np.nan]]), pickmix.load(deep / "flow")
    flows.__dict__.pop("feature_names_in_")
    _, scores = printed_rows("score", deep / "flow", tmp_path / "gaps.csv")
    np.testing.assert_allclose(np.array(scores, float)[:, -1], flows.score_samples(gaps), rtol=1e-4)
    out = tmp_path / "filled.csv"
    run_well("impute", deep / "flow", tmp_path / "gaps.csv", "--out", out)
    filled = np.loadtxt(out, delimiter=",", skiprows=1)
    np.testing.assert_allclose(filled, flows.impute(gaps), rtol=1e-4)
    _, predicted = printed_rows("predict", deep / "flow", tmp_path / "gaps.csv", "--target", "b")
    np.testing.assert_allclose(float(predicted[1][-1]), filled[1, 1], rtol=1e-3)
    run_well("sample", deep / "flow", "--given", "a=1", "--rows", 3)
    message = error_of("explain", deep / "flow", tmp_path / "gaps.csv")
    assert "`pickmix explain` needs a model of Gaussians or of a table, got a FlowMix" in message


def test_checkpoints_and_chunks(tmp_path, deep, places):
    data = [places / "part-*.csv", *FLOW, "--no-plot", "--chunk-size", 100, "--out"]
    kept = ["--checkpoint", tmp_path / "kept", "--max-time"]
    run_well("fit", *data, tmp_path / "expected")
    result = run_well("fit", *data, tmp_path / "model", *kept, 1e-9)
    assert "The same command resumes" in result.stderr
    assert pickmix.load(tmp_path / "model").n_steps_ < 20
    run_well("fit", *data, tmp_path / "model", *kept, 100)
    one, other = pickmix.load(tmp_path / "model"), pickmix.load(tmp_path / "expected")
    assert one.feature_names_in_.tolist() == ["a", "b"]
    for a, b in zip(one.tables_, other.tables_, strict=True):
        assert a.tobytes() == b.tobytes()
    _, chunked = printed_rows("score", tmp_path / "model", places / "part-*.csv")
    _, whole = printed_rows("score", tmp_path / "model", places / "rows.csv")
    np.testing.assert_allclose(np.array(chunked, float), np.array(whole, float), rtol=1e-4)


def test_every_option_is_refused_by_the_models_it_does_not_belong_to(places):
    for option in fit_command.fit.params:
        if not isinstance(option, ModelOption):
            continue
        value = option.type.choices[0] if isinstance(option.type, click.Choice) else "1"
        given = [option.opts[0]] if option.is_flag else [option.opts[0], value]
        for model in set(KINDS) - set(option.models):
            message = error_of("fit", places / "rows.csv", "--model", model, *given)
            assert f"{option.opts[0]} belongs to --model" in message


def test_without_jax_the_extra_is_offered(deep, places, monkeypatch):
    original = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "jax" else original(name)
    )
    expected = "Error: Deep mixtures need JAX: pip install 'pickmix[deep]'"
    for model in ("flow", "sptn"):
        assert error_of("fit", places / "rows.csv", "--model", model) == expected
    assert error_of("score", deep / "flow", places / "rows.csv") == expected
    assert error_of("sample", deep / "flow") == expected


def test_an_interrupted_fit_is_saved(tmp_path, places, monkeypatch):
    advance = GradientEngine.advance

    def interrupt(self, first, most):
        n_steps = advance(self, first, most)
        if first + n_steps > 3:
            signal.raise_signal(signal.SIGINT)
        return n_steps

    monkeypatch.setattr(GradientEngine, "advance", interrupt)
    options = [*FLOW, "--no-plot", "--quiet", "--out", tmp_path / "model"]
    with pythons_own_ctrl_c():
        result = run("fit", places / "rows.csv", *options)
    assert result.exit_code == 130
    assert "note: The fit was interrupted after" in result.stderr
    assert result.stdout == ""
    assert 3 <= pickmix.load(tmp_path / "model").n_steps_ < 20


def test_help_groups_options_by_model():
    text = run_well("fit", "--help").output
    titles = [line for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    assert titles == [
        "Every model:",
        "With --model gaussian, table or flow:",
        "With --model gaussian or table:",
        "With --model table:",
        "With --model flow or sptn:",
        "With --model flow:",
        "With --model sptn:",
        "Files and output:",
    ]
    words = " ".join(text.split())
    assert "per row and visit. [default: auto (gaussian and table); 1 (flow and sptn)]" in words
    assert "at most this for flow and sptn. [default: 20000 (flow and sptn)]" in words
    for option in fit_command.fit.params:
        if isinstance(option, click.Option):
            assert f"  {option.opts[-1]}" in text
