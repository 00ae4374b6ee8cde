"""What `load` makes of a changed copy of the description, and of parameters that make no sense."""

import json

import numpy as np
import pytest

import pickmix
from pickmix import FamilyMixture, GaussianMixture, TableMixture
from pickmix.estimators import persistence


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).normal(size=(200, 2))


@pytest.fixture(scope="module")
def mixture(X):
    return GaussianMixture(3, random_state=0, max_iter=3, tol=0.0).fit(X)


def changed(path, **values):
    """Change parameters in model.json."""
    file = path / "model.json"
    description = json.loads(file.read_text())
    description["parameters"] |= values
    file.write_text(json.dumps(description))
    return file


class TestCopy:
    """model.json, which people read, beside arrays.npz, which holds the model."""

    def test_it_may_be_missing_or_written_in_another_way(self, tmp_path, X, mixture):
        path = pickmix.save(mixture, tmp_path / "model")
        changed(path)
        again = pickmix.load(path)
        assert np.array_equal(again.score_samples(X), mixture.score_samples(X))
        (path / "model.json").unlink()
        assert np.array_equal(pickmix.load(path).means_, mixture.means_)

    @pytest.mark.parametrize(
        "text", ['{"parameters": {"n_components": 7}}', "{ K = 3", "[1]", '{"format": 999}']
    )
    def test_one_that_differs_is_warned_of_and_not_read(self, tmp_path, X, mixture, text):
        path = pickmix.save(mixture, tmp_path / "model")
        (path / "model.json").write_text(text)
        with pytest.warns(UserWarning, match=r"model\.json: .* The model is read from arrays\.npz"):
            again = pickmix.load(path)
        assert again.n_components == 3
        assert np.array_equal(again.score_samples(X), mixture.score_samples(X))

    def test_a_save_that_stops_between_the_two_files_leaves_a_model(
        self, tmp_path, X, mixture, monkeypatch
    ):
        path = pickmix.save(mixture, tmp_path / "model")
        other = GaussianMixture(5, random_state=0, max_iter=3, tol=0.0).fit(X)
        replacing = persistence.replacing

        def stop(target):
            if target.name == "model.json":
                raise KeyboardInterrupt
            return replacing(target)

        monkeypatch.setattr(persistence, "replacing", stop)
        with pytest.raises(KeyboardInterrupt):
            pickmix.save(other, path)
        assert np.array_equal(pickmix.load(path).means_, other.means_)


def test_a_folder_of_something_else_is_named(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "model.json").write_text("{}")
    with pytest.raises(ValueError, match=r"notes: expected a saved model, .* no arrays\.npz"):
        pickmix.load(tmp_path / "notes")
    np.savez(tmp_path / "notes" / "arrays.npz", X=np.ones(3))
    with pytest.raises(ValueError, match=r"notes: expected a saved model, got other arrays"):
        pickmix.load(tmp_path / "notes")
    assert not persistence.holds_model(tmp_path / "notes")
    np.savez(tmp_path / "words.npz", model=np.frombuffer(b"words", dtype=np.uint8))
    with pytest.raises(ValueError, match=r"words\.npz: the saved model is damaged: its descr"):
        pickmix.load(tmp_path / "words.npz")


def refusal(tmp_path, model):
    path = pickmix.save(model, tmp_path / "model.npz")
    with pytest.raises(ValueError, match=r"model\.npz: the saved model is damaged: ") as caught:
        pickmix.load(path)
    return str(caught.value).partition("is damaged: ")[2]


class TestFamilies:
    def fitted(self, family, rows):
        return FamilyMixture(family, 2, random_state=0, max_iter=3, tol=0.0).fit(rows)

    def test_rates(self, tmp_path):
        rows = np.random.default_rng(0).poisson(4.0, size=(100, 2)).astype(float)
        model = self.fitted("poisson", rows)
        model.parameters_["rates"][1, 0] = -2.0
        assert refusal(tmp_path, model) == (
            "rates must not be negative, got a smallest value of -2.0."
        )

    def test_shapes(self, tmp_path):
        rows = np.random.default_rng(0).poisson(4.0, size=(100, 4)).astype(float)
        model = self.fitted("poisson", rows)
        rates = model.parameters_["rates"]
        for other in (np.ones((300, 1)), np.ones((3, 4)), rates[:, :3], rates[:, :1], rates[0]):
            model.parameters_ = {"rates": other}
            assert refusal(tmp_path, model) == (f"rates must have shape (2, 4), got {other.shape}.")
        model.parameters_ = {"rate": rates}
        assert refusal(tmp_path, model) == "parameters must be ['rates'], got ['rate']."
        model.parameters_ = {"rates": rates}
        model.weights_ = np.full(3, 1 / 3)
        assert refusal(tmp_path, model) == "rates must have shape (3, 4), got (2, 4)."

    def test_columns(self, tmp_path):
        rows = np.random.default_rng(0).poisson(4.0, size=(100, 4)).astype(float)
        model = self.fitted([("poisson", [0, 1]), ("full", [2, 3])], rows)
        good = model.column_limits_
        for other in (good[:3], np.float64(3.0)):
            model.column_limits_ = other
            refusal(tmp_path, model)
        model.column_limits_ = good
        model.n_features_in_ = 3
        assert refusal(tmp_path, model).startswith("n_features_in_ must be the number of columns")

    def test_probabilities(self, tmp_path):
        rows = np.random.default_rng(0).integers(0, 3, size=(100, 2)).astype(float)
        model = self.fitted("categorical", rows)
        good = model.parameters_["probabilities"].copy()
        model.parameters_["probabilities"] = -good
        assert refusal(tmp_path, model).startswith("probabilities must not be negative")
        model.parameters_["probabilities"] = 2.0 * good
        assert refusal(tmp_path, model).startswith("probabilities must sum to 1 for each column")
        model.parameters_["probabilities"] = good[:, :-1]
        assert refusal(tmp_path, model) == "probabilities must have shape (2, 6), got (2, 5)."

    @pytest.mark.parametrize("form", ["full", "tied", "diag", "spherical"])
    def test_groups(self, tmp_path, X, form):
        rows = np.column_stack([X, np.random.default_rng(1).integers(0, 3, size=200)])
        model = self.fitted([(form, [0, 1]), ("categorical", [2])], rows)
        assert np.array_equal(
            pickmix.load(pickmix.save(model, tmp_path / "good")).score_samples(rows),
            model.score_samples(rows),
        )
        name = f"{form}0_covariances"
        model.parameters_[name] = -model.parameters_[name]
        assert refusal(tmp_path, model).startswith(f"{name} must be positive")


def test_tables(tmp_path):
    table = {"a": np.arange(40.0), "b": np.array(["x", "y"] * 20)}
    model = TableMixture(2, random_state=0, max_iter=3, tol=0.0).fit(table)
    name = next(name for name in model.mixture_.parameters_ if name.endswith("probabilities"))
    model.mixture_.parameters_[name][0, 0] = np.nan
    assert refusal(tmp_path, model).startswith(f"{name} must hold finite numbers")


def test_shapes_in_tables(tmp_path):
    table = {"a": np.arange(40.0), "b": np.array(["x", "y"] * 20), "c": np.arange(40.0) % 7}
    model = TableMixture(2, random_state=0, max_iter=3, tol=0.0).fit(table)
    mixture, good = model, model.parameters_
    for name, values in good.items():
        mixture.parameters_ = good | {name: np.concatenate([values, values])}
        assert refusal(tmp_path, model).startswith(f"{name} must have shape {values.shape}, got ")
    mixture.parameters_ = good
    model.schema_ = TableMixture(1, max_iter=1, tol=0.0).fit({"a": table["a"]}).schema_
    assert refusal(tmp_path, model) == "mixture_ must have the 1 columns of the schema, got 3."


def without(description, group, name):
    del description[group][name]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: d.update({"class": [1]}), "makes no model .TypeError"),
        (lambda d: d.pop("class"), "makes no model .KeyError: 'class'"),
        (lambda d: d.update(parameters=None), "makes no model .TypeError"),
        (lambda d: d.update(parameters=[]), "makes no model .TypeError"),
        (lambda d: d["parameters"].update(colour=1), "Invalid parameter 'colour'"),
        (lambda d: d["attributes"].update(_fitted_structure="round"), "makes no model .KeyError"),
        (lambda d: d["attributes"].update(means_={"array": 3}), "makes no model .KeyError"),
        (lambda d: without(d, "attributes", "n_features_in_"), "makes no model .AttributeError"),
        (lambda d: d["attributes"].update(means_="words"), "means must be an array of real"),
        (lambda d: d["attributes"].update(weights_=None), "weights must be an array of real"),
    ],
)
def test_descriptions_that_make_no_model(tmp_path, mixture, damage, message):
    path = pickmix.save(mixture, tmp_path / "model.npz")
    with np.load(path) as saved:
        arrays = dict(saved)
    description = json.loads(arrays["model"].tobytes())
    damage(description)
    arrays["model"] = np.frombuffer(json.dumps(description).encode(), dtype=np.uint8)
    np.savez(path, **arrays)
    expected = rf"model\.npz: the saved model is damaged: .*{message}"
    with pytest.raises(ValueError, match=expected):
        pickmix.load(path)


class TestDeep:
    @pytest.fixture(scope="class")
    @staticmethod
    def flows(X):
        jax = pytest.importorskip("jax")
        # Short fits: compiling them well costs more than it saves.
        jax.config.update("jax_disable_most_optimizations", True)
        settings = {"init_params": "data", "batch_size": 50, "max_steps": 5, "random_state": 0}
        yield pickmix.FlowMixture(2, hidden=3, **settings).fit(X)
        jax.config.update("jax_disable_most_optimizations", False)

    @pytest.mark.parametrize(
        ("attribute", "message"),
        [
            ("weights_", "weights must hold finite numbers only"),
            ("center_", "center_ must hold finite numbers only"),
            ("scale_", "scale_ must hold finite numbers only"),
            ("whitening_", "whitening_ must hold finite numbers only"),
        ],
    )
    def test_nan(self, tmp_path, flows, attribute, message, monkeypatch):
        monkeypatch.setattr(flows, attribute, np.nan * getattr(flows, attribute))
        assert refusal(tmp_path, flows).startswith(message)

    def test_tables(self, tmp_path, flows, monkeypatch):
        tables = [np.asarray(table).copy() for table in flows.tables_]
        tables[-1][0, 0] = np.inf
        monkeypatch.setattr(flows, "tables_", tables)
        number = len(tables) - 1
        assert refusal(tmp_path, flows).startswith(f"tables_[{number}] must hold finite numbers")

    def test_signs(self, tmp_path, flows, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(flows, "scale_", -flows.scale_)
            assert refusal(tmp_path, flows).startswith("scale_ must be positive, got a smallest")
        monkeypatch.setattr(flows, "weights_", -flows.weights_)
        assert refusal(tmp_path, flows).startswith("weights must be non-negative")
