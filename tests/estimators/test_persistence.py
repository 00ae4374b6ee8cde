"""Saved models come back to the last bit; what cannot come back, and what is no model, is named."""

import json
import os
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import pickmix
from pickmix import (
    FamilyMixture,
    FlowMixture,
    GaussianMixture,
    Mixture,
    RandomPartition,
    TableMixture,
)
from pickmix.estimators import persistence
from pickmix.selection.proposals import UniformProposal

SHORT = {"random_state": 0, "max_iter": 3, "tol": 0.0}


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.normal(size=(300, 3)) + 4.0 * rng.integers(0, 3, size=(300, 1))


def fitted(X, **parameters):
    return GaussianMixture(**{"n_components": 5, **SHORT, **parameters}).fit(X)


@pytest.fixture(scope="module")
def mixture(X):
    return fitted(X)


def same(first, second):
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and first.tobytes() == second.tobytes()
    if isinstance(first, list):
        return all(same(one, other) for one, other in zip(first, second, strict=True))
    return type(first) is type(second) and first == second


def assert_same(again, model, X):
    assert type(again) is type(model)
    assert vars(again).keys() == vars(model).keys()
    for attribute in set(vars(model)) - {"component"}:
        assert same(vars(again)[attribute], vars(model)[attribute]), attribute
    for query in ("score_samples", "predict_proba", "predict"):
        assert np.array_equal(getattr(again, query)(X), getattr(model, query)(X))
    if not isinstance(model, Mixture):
        assert np.array_equal(again.sample(5)[0], model.sample(5)[0])


@pytest.mark.parametrize(
    ("name", "covariance_type"),
    [("model", "full"), ("model.npz", "tied"), ("below/model", "diag"), ("m.npz", "spherical")],
)
def test_a_loaded_model_is_the_saved_one(tmp_path, X, name, covariance_type):
    model = fitted(X, covariance_type=covariance_type)
    path = pickmix.save(model, tmp_path / name)
    assert path == tmp_path / name
    assert_same(pickmix.load(path), model, X)


def test_warm_start_goes_on_as_if_never_saved(tmp_path, X):
    model = fitted(X, n_components=40, proposal="uniform", warm_start=True, batch_size=50)
    again = pickmix.load(pickmix.save(model, tmp_path / "model"))
    model.fit(X)
    again.fit(X)
    assert again.n_steps_ == model.n_steps_ == 2 * 3 * 6
    assert np.array_equal(again.means_, model.means_)
    # The chains matter: without them the second fit takes another path.
    cold = pickmix.load(tmp_path / "model")
    cold._chain = np.roll(cold._chain, 1)
    assert not np.array_equal(cold.fit(X).means_, model.means_)


def test_values_of_parameters_and_attributes_are_kept(tmp_path, X):
    parameters = {
        "means_init": X[:5].copy(),
        "n_components": np.int64(5),
        "weights_init": [0.2] * 5,
        "checkpoint": tmp_path / "saved",
    }
    model = fitted(X, **parameters)
    model.feature_names_in_ = np.array(["a", "b", "ž"], dtype=object)
    model.lower_bound_ = float("nan")
    again = pickmix.load(pickmix.save(model, tmp_path / "model.npz"))
    for name, value in parameters.items():
        assert same(getattr(again, name), value), name
    assert again.feature_names_in_.dtype == object
    assert again.feature_names_in_.tolist() == ["a", "b", "ž"]
    assert np.isnan(again.lower_bound_)


def test_objects_and_functions_are_named_and_can_be_given_back(tmp_path, X):
    model = fitted(X, callbacks=[lambda info: False], random_state=np.random.RandomState(0))
    model.proposal = UniformProposal()
    model.step_size = abs
    with pytest.warns(UserWarning, match=r"Not saved.* load\(path, .*callbacks=\.\.\.") as caught:
        pickmix.save(model, tmp_path / "model")
    for name in ("callbacks=", "random_state=", "proposal=", "step_size="):
        assert name in str(caught[0].message)
    assert caught[0].filename == __file__
    again = pickmix.load(tmp_path / "model")
    assert (again.callbacks, again.random_state) == ((), None)
    assert (again.proposal, again.step_size) == ("auto", "auto")
    assert np.array_equal(again.predict(X), model.predict(X))
    again = pickmix.load(tmp_path / "model", callbacks=model.callbacks, warm_start=True)
    assert again.callbacks is model.callbacks
    assert again.warm_start
    with pytest.raises(ValueError, match=r"given colour=.* GaussianMixture has no"):
        pickmix.load(tmp_path / "model", colour="red")


class TestFolder:
    def test_it_has_a_description_for_people_and_keeps_other_files(self, tmp_path, mixture):
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "notes.txt").write_text("mine")
        path = pickmix.save(mixture, tmp_path / "model")
        description = json.loads((path / "model.json").read_text())
        assert (description["format"], description["pickmix"]) == (1, pickmix.__version__)
        assert description["class"] == "GaussianMixture"
        assert description["parameters"]["n_components"] == 5
        assert {file.name for file in path.iterdir()} == {"model.json", "arrays.npz", "notes.txt"}
        assert (path / "notes.txt").read_text() == "mine"

    @pytest.mark.parametrize("text", ['{"parameters": {"n_components": 7}}', "{ K = 3", "[" * 9999])
    def test_one_that_differs_is_warned_of_and_not_read(self, tmp_path, X, mixture, text):
        path = pickmix.save(mixture, tmp_path / "model")
        (path / "model.json").write_text(text)
        with pytest.warns(UserWarning, match=r"model\.json: .* The model is read from arrays\.npz"):
            again = pickmix.load(path)
        assert_same(again, mixture, X)

    def test_one_of_the_model_before_is_not(self, tmp_path, X, mixture):
        """As another process finds it between the two files of a save."""
        path = pickmix.save(mixture, tmp_path / "model")
        text = (path / "model.json").read_text()
        other = fitted(X, n_components=3)
        pickmix.save(other, path)
        (path / "model.json").write_text(text)
        os.utime(path / "model.json", (0, 0))
        assert np.array_equal(pickmix.load(path).means_, other.means_)


@pytest.mark.parametrize("name", ["model", "model.npz"])
def test_an_interrupted_save_loses_nothing(tmp_path, X, mixture, monkeypatch, name):
    path = pickmix.save(mixture, tmp_path / name)
    before = sorted(tmp_path.rglob("*"))
    second = fitted(X, n_components=7)

    def stop(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        pickmix.save(second, path)
    assert np.array_equal(pickmix.load(path).means_, mixture.means_)
    assert sorted(tmp_path.rglob("*")) == before
    monkeypatch.undo()
    pickmix.save(second, path)
    assert np.array_equal(pickmix.load(path).means_, second.means_)


@pytest.mark.parametrize("name", ["model", "model.npz"])
def test_a_full_disk_leaves_nothing_and_names_the_file(tmp_path, mixture, monkeypatch, name):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"npz: the model could not be saved .No space left"):
        pickmix.save(mixture, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_saved(tmp_path, X, mixture):
    with pytest.raises(NotFittedError):
        pickmix.save(GaussianMixture(2), tmp_path / "model")

    class Mine(GaussianMixture):
        pass

    Mine.__name__ = "GaussianMixture"
    for model in (object(), Mine(2, random_state=0).fit(X)):
        with pytest.raises(TypeError, match=r"must be a GaussianMixture or .*, got"):
            pickmix.save(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="found a file"):
        pickmix.save(mixture, tmp_path / "file")


def test_what_cannot_be_loaded(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none: expected a saved model, found nothing"):
        pickmix.load(tmp_path / "none")
    with pytest.raises(ValueError, match=r"expected a saved model, .* has no arrays\.npz"):
        pickmix.load(tmp_path)
    (tmp_path / "text.npz").write_text("words")
    np.save(tmp_path / "single.npy", np.ones(2))
    np.savez(tmp_path / "arrays.npz", a=np.ones(2))
    # An object array would need pickle, which may run anything.
    np.savez(tmp_path / "pickled.npz", model=np.array([{}], dtype=object))
    for name, message in {
        "text.npz": "damaged or of another kind",
        "single.npy": "got a single array",
        "arrays.npz": r"expected a saved model, got other arrays: \['a'\]",
        "": rf"{tmp_path.name}: expected a saved model, got other arrays: \['a'\]",
        "pickled.npz": r"of shape \(1,\) and type object",
    }.items():
        with pytest.raises(ValueError, match=message):
            pickmix.load(tmp_path / name)
    assert not persistence.holds_model(tmp_path)


def refusal(tmp_path, model):
    """What `load` says of a saved model that makes no sense."""
    path = pickmix.save(model, tmp_path / "model.npz")
    with pytest.raises(ValueError, match=r"model\.npz: the saved model is damaged: ") as caught:
        pickmix.load(path)
    return str(caught.value).partition("is damaged: ")[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format=2), r"format 1, got format 2, written by pickmix 9\.9"),
        (lambda d: d.update({"class": "Unheard"}), "expected a Gauss.*, got a model of 'Unheard'"),
        (lambda d: d.update({"class": [1]}), "makes no model .TypeError"),
        (lambda d: d.pop("class"), "makes no model .KeyError: 'class'"),
        (lambda d: d.update(parameters=None), "makes no model .TypeError"),
        (lambda d: d["parameters"].update(colour=1), "Invalid parameter 'colour'"),
        (lambda d: d["attributes"].update(fit=1), "no fitted attribute 'fit'"),
        (lambda d: d["attributes"].update(_fitted_description="round"), "family must be one of"),
        (lambda d: d["attributes"].update(means_={"array": "lost"}), "makes no .* 'lost'"),
        (lambda d: d["attributes"].pop("n_features_in_"), "makes no model .AttributeError"),
        (lambda d: d["attributes"].update(means_="words"), "means must be an array of real"),
        (lambda d: d["attributes"].update(weights_=None), "weights must be an array of real"),
    ],
)
def test_descriptions_that_make_no_model(tmp_path, mixture, change, message):
    path = pickmix.save(mixture, tmp_path / "model.npz")
    change_description(path, lambda d: (d.update(pickmix="9.9"), change(d)))
    with pytest.raises(ValueError, match=rf"model\.npz: .*{message}"):
        pickmix.load(path)


def change_description(path, change):
    with np.load(path) as saved:
        arrays = dict(saved)
    description = json.loads(arrays["model"].tobytes())
    change(description)
    arrays["model"] = np.frombuffer(json.dumps(description).encode(), dtype=np.uint8)
    np.savez(path, **arrays)


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_parameters_of_gaussians_that_make_no_sense(tmp_path, X, covariance_type):
    model = fitted(X, covariance_type=covariance_type)
    for attribute, damage, message in [
        ("weights_", lambda weights: weights * np.nan, "weights must hold finite numbers"),
        ("weights_", lambda weights: -weights, "weights must be non-negative"),
        ("weights_", lambda weights: 0.0 * weights, "weights must be"),
        ("means_", lambda means: means * np.nan, "means must hold finite numbers"),
        ("means_", lambda means: means[:, :2], "means must have shape (5, 3), got (5, 2)"),
        ("covariances_", lambda matrices: np.inf * matrices, "covariances must hold finite"),
        ("covariances_", lambda matrices: -matrices, "covariances must be positive"),
        ("covariances_", lambda matrices: matrices[:1, ...], "covariances must have shape"),
    ]:
        good = getattr(model, attribute)
        with np.errstate(invalid="ignore"):
            setattr(model, attribute, damage(good))
        assert refusal(tmp_path, model).startswith(message)
        setattr(model, attribute, good)
    if covariance_type == "full":
        for change, message in ((np.eye(3)[[1, 0, 2]], "positive definite"), (np.tri(3), "symm")):
            model.covariances_ = good.copy()
            model.covariances_[2] = change
            assert refusal(tmp_path, model).startswith(f"covariances must be {message}")


def test_parameters_of_other_families_that_make_no_sense(tmp_path, X):
    rng = np.random.default_rng(0)
    counts = rng.poisson(4.0, size=(100, 4)).astype(float)
    model = FamilyMixture("poisson", 2, **SHORT).fit(counts)
    rates = model.parameters_["rates"]
    model.parameters_ = {"rates": np.where(np.arange(4) == 1, -2.0, rates)}
    assert refusal(tmp_path, model) == "rates must not be negative, got a smallest value of -2.0."
    for other in (np.ones((3, 4)), rates[:, :3], rates[0]):
        model.parameters_ = {"rates": other}
        assert refusal(tmp_path, model) == f"rates must have shape (2, 4), got {other.shape}."
    model.parameters_ = {"rate": rates}
    assert refusal(tmp_path, model) == "parameters must be ['rates'], got ['rate']."
    model.parameters_, model.n_features_in_ = {"rates": rates}, 3
    assert refusal(tmp_path, model).startswith("n_features_in_ must be the number of columns")

    model = FamilyMixture("categorical", 2, **SHORT).fit(rng.integers(0, 3, (100, 2)).astype(float))
    good = model.parameters_["probabilities"]
    for values, message in {
        "negative": (-good, "probabilities must not be negative"),
        "sums": (2.0 * good, "probabilities must sum to 1 for each column"),
        "shape": (good[:, :-1], "probabilities must have shape (2, 6), got (2, 5)."),
    }.values():
        model.parameters_ = {"probabilities": values}
        assert refusal(tmp_path, model).startswith(message)

    rows = np.column_stack([X[:100], rng.integers(0, 3, size=100)])
    model = FamilyMixture([("diag", [0, 1, 2]), ("categorical", [3])], 2, **SHORT).fit(rows)
    model.parameters_["diag0_covariances"] *= -1.0
    assert refusal(tmp_path, model).startswith("diag0_covariances must be positive")


def test_parameters_of_tables_that_make_no_sense(tmp_path):
    table = {"a": np.arange(40.0), "b": np.array(["x", "y"] * 20), "c": np.arange(40.0) % 7}
    model = TableMixture(2, **SHORT).fit(table)
    good = model.parameters_
    for name, values in good.items():
        model.parameters_ = good | {name: np.concatenate([values, values])}
        assert refusal(tmp_path, model).startswith(f"{name} must have shape {values.shape}, got ")
    model.parameters_ = good
    model.schema_ = TableMixture(1, max_iter=1, tol=0.0).fit({"a": table["a"]}).schema_
    assert refusal(tmp_path, model) == "mixture_ must have the 1 columns of the schema, got 3."


@dataclass(frozen=True)
class StudentT:
    freedom: float

    def init(self, key, n_features):
        return {"centre": jax.random.normal(key, (n_features,)), "log_width": jnp.zeros(())}

    def log_prob(self, params, x):
        square = jnp.sum((x - params["centre"]) ** 2) * jnp.exp(-2.0 * params["log_width"])
        power = 0.5 * (self.freedom + x.shape[0])
        return -power * jnp.log1p(square / self.freedom) - x.shape[0] * params["log_width"]


class TestDeep:
    """Models of the gradient engine: lists of tables, chains and the frame of the data."""

    FEW: ClassVar = {"batch_size": 50, "max_steps": 10, "random_state": 0, "init_params": "data"}

    @pytest.fixture(scope="class")
    @staticmethod
    def rows():
        rng = np.random.default_rng(0)
        return 100.0 + rng.normal(size=(200, 2)) + 4.0 * rng.integers(0, 3, size=(200, 1))

    @pytest.mark.slow
    def test_flows_go_on_as_if_never_saved(self, tmp_path, rows):
        proposal = RandomPartition(block_size=2, shuffle=0.1)
        model = FlowMixture(4, hidden=3, proposal=proposal, warm_start=True, **self.FEW).fit(rows)
        again = pickmix.load(pickmix.save(model, tmp_path / "model"))
        assert_same(again, model, rows)
        assert again.get_params() == model.get_params()
        assert again.proposal_ == "partition"
        assert np.array_equal(again.fit(rows).tables_[0], model.fit(rows).tables_[0])
        assert again.n_steps_ == model.n_steps_ == 20
        assert again._passes == model._passes

    @pytest.fixture(scope="class")
    @classmethod
    def flow(cls, rows):
        return FlowMixture(2, n_layers=1, hidden=2, linear=False, **cls.FEW).fit(rows)

    def test_flows_saved_before_they_had_affine_maps(self, tmp_path, rows, flow):
        path = pickmix.save(flow, tmp_path / "model.npz")

        def older(description):
            for name in ("linear", "gaussian_share", "noise", "reg_covar"):
                del description["parameters"][name]
            for name in ("start_validation_", "n_rows_seen_", "_moments"):
                del description["attributes"][name]

        change_description(path, older)
        again = pickmix.load(path)
        assert again.linear is False
        assert np.array_equal(again.score_samples(rows), flow.score_samples(rows))
        assert again.partial_fit(rows).n_steps_ > 10

    def test_a_component_is_given_back(self, tmp_path, rows):
        model = Mixture(StudentT(4.0), 4, **self.FEW).fit(rows)
        with pytest.warns(UserWarning, match=r"Not saved.*component=StudentT.*component=\.\.\.\)"):
            path = pickmix.save(model, tmp_path / "model")
        assert_same(pickmix.load(path, component=StudentT(4.0)), model, rows)
        # Without it there is a model to look at, but none to query.
        without = pickmix.load(path)
        assert without.component is None
        assert np.array_equal(without.weights_, model.weights_)
        for query in (without.score_samples, without.predict, without.fit):
            with pytest.raises(ValueError, match=r"component must have .* got None"):
                query(rows)
        without.set_params(component=StudentT(4.0))
        assert np.array_equal(without.score_samples(rows), model.score_samples(rows))

    def test_parameters_that_make_no_sense(self, tmp_path, flow, monkeypatch):
        model = flow
        tables = [np.asarray(table).copy() for table in model.tables_]
        tables[-1][0, 0] = np.inf
        for attribute, values, message in [
            ("weights_", np.nan * model.weights_, "weights must hold finite numbers only"),
            ("weights_", -model.weights_, "weights must be non-negative"),
            ("center_", np.nan * model.center_, "center_ must hold finite numbers only"),
            ("scale_", -model.scale_, "scale_ must be positive, got a smallest"),
            ("whitening_", np.nan * model.whitening_, "whitening_ must hold finite numbers only"),
            ("tables_", tables, f"tables_[{len(tables) - 1}] must hold finite numbers"),
        ]:
            with monkeypatch.context() as patch:
                patch.setattr(model, attribute, values)
                assert refusal(tmp_path, model).startswith(message)

    def test_settings_and_shapes_of_another_model(self, tmp_path, rows, flow):
        path = pickmix.save(flow, tmp_path / "model.npz")
        change_description(path, lambda it: it["parameters"].update(dtype=True))
        with pytest.raises(ValueError, match="dtype must be"):
            pickmix.load(path)
        path = pickmix.save(flow, tmp_path / "wider.npz")
        change_description(path, lambda it: it["parameters"].update(hidden=3))
        with pytest.raises(ValueError, match=r"tables_ must have the shapes .*, got"):
            pickmix.load(path).score_samples(rows)
