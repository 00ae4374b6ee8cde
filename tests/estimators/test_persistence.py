"""Saved models come back to the last bit; what cannot come back is named."""

import json
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import pickmix
from pickmix import (
    FlowMixture,
    GaussianMixture,
    Mixture,
    RandomPartition,
    SumProductTransformNetwork,
)
from pickmix.estimators import persistence
from pickmix.selection.proposals import UniformProposal


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.normal(size=(300, 3)) + 4.0 * rng.integers(0, 3, size=(300, 1))


def fitted(X, **parameters):
    settings = {"n_components": 5, "random_state": 0, "max_iter": 3, "tol": 0.0, **parameters}
    return GaussianMixture(**settings).fit(X)


def same(first, second):
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and np.array_equal(
            first, second, equal_nan=first.dtype.kind == "f"
        )
    return type(first) is type(second) and first == second


@pytest.mark.parametrize("name", ["model", "model.npz", "below/model"])
@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_a_loaded_model_is_the_saved_one(tmp_path, X, name, covariance_type):
    model = fitted(X, covariance_type=covariance_type)
    path = pickmix.save(model, tmp_path / name)
    assert path == tmp_path / name
    again = pickmix.load(path)
    assert type(again) is GaussianMixture
    assert again.get_params() == model.get_params()
    assert vars(again).keys() == vars(model).keys()
    assert np.array_equal(again.score_samples(X), model.score_samples(X))
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
    assert np.array_equal(again.predict(X), model.predict(X))
    assert np.array_equal(again.sample(5)[0], model.sample(5)[0])
    assert again.trace_.dtype == model.trace_.dtype
    for attribute in set(vars(model)) - {"trace_"}:
        assert same(vars(again)[attribute], vars(model)[attribute]), attribute


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


def test_array_parameters_and_numpy_scalars_are_kept(tmp_path, X):
    means = X[:5].copy()
    model = fitted(X, means_init=means, n_components=np.int64(5), weights_init=[0.2] * 5)
    again = pickmix.load(pickmix.save(model, tmp_path / "model.npz"))
    assert same(again.means_init, means)
    assert same(again.n_components, np.int64(5))
    assert again.weights_init == [0.2] * 5


def test_feature_names_and_non_finite_numbers_are_kept(tmp_path, X):
    model = fitted(X)
    model.feature_names_in_ = np.array(["a", "b", "ž"], dtype=object)
    model.lower_bound_ = float("nan")
    again = pickmix.load(pickmix.save(model, tmp_path / "model"))
    assert again.feature_names_in_.dtype == object
    assert again.feature_names_in_.tolist() == ["a", "b", "ž"]
    assert np.isnan(again.lower_bound_)


def test_objects_and_functions_are_named_and_left_at_their_defaults(tmp_path, X):
    model = fitted(X, callbacks=[lambda info: False], random_state=np.random.RandomState(0))
    model.proposal = UniformProposal()
    model.step_size = abs
    with pytest.warns(UserWarning, match="Not saved") as caught:
        pickmix.save(model, tmp_path / "model")
    message = str(caught[0].message)
    for name in ("callbacks=", "random_state=", "proposal=", "step_size="):
        assert name in message
    again = pickmix.load(tmp_path / "model")
    assert again.callbacks == ()
    assert again.random_state is None
    assert (again.proposal, again.step_size) == ("auto", "auto")
    assert np.array_equal(again.predict(X), model.predict(X))


def test_the_folder_has_a_description_for_people(tmp_path, X):
    pickmix.save(fitted(X), tmp_path / "model")
    description = json.loads((tmp_path / "model" / "model.json").read_text())
    assert description["format"] == 1
    assert description["pickmix"] == pickmix.__version__
    assert description["class"] == "GaussianMixture"
    assert description["parameters"]["n_components"] == 5
    assert {file.name for file in (tmp_path / "model").iterdir()} == {"model.json", "arrays.npz"}


@pytest.mark.parametrize("name", ["model", "model.npz"])
def test_an_interrupted_save_loses_nothing(tmp_path, X, monkeypatch, name):
    first, second = fitted(X), fitted(X, n_components=7)
    path = pickmix.save(first, tmp_path / name)
    before = sorted(tmp_path.rglob("*"))

    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(persistence.os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        pickmix.save(second, path)
    assert np.array_equal(pickmix.load(path).means_, first.means_)
    assert sorted(tmp_path.rglob("*")) == before
    monkeypatch.undo()
    pickmix.save(second, path)
    assert np.array_equal(pickmix.load(path).means_, second.means_)


def test_other_files_in_the_folder_stay(tmp_path, X):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").write_text("mine")
    pickmix.save(fitted(X), tmp_path / "model")
    assert (tmp_path / "model" / "notes.txt").read_text() == "mine"


def test_what_cannot_be_saved(tmp_path, X):
    with pytest.raises(NotFittedError):
        pickmix.save(GaussianMixture(2), tmp_path / "model")
    with pytest.raises(TypeError, match=r"must be a GaussianMixture or .* or Mixture, got"):
        pickmix.save(object(), tmp_path / "model")

    class Mine(GaussianMixture):
        pass

    Mine.__name__ = "GaussianMixture"
    with pytest.raises(TypeError, match=r"must be a GaussianMixture or .* or Mixture, got"):
        pickmix.save(Mine(2, random_state=0).fit(X), tmp_path / "model")
    assert not (tmp_path / "model").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="found a file"):
        pickmix.save(fitted(X), tmp_path / "file")


def test_what_cannot_be_loaded(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none: expected a saved model, found nothing"):
        pickmix.load(tmp_path / "none")
    with pytest.raises(ValueError, match=r"has no arrays\.npz"):
        pickmix.load(tmp_path)
    (tmp_path / "text.npz").write_text("words")
    with pytest.raises(ValueError, match="damaged or of another kind"):
        pickmix.load(tmp_path / "text.npz")
    (tmp_path / "half.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(ValueError, match="damaged or of another kind"):
        pickmix.load(tmp_path / "half.npz")
    np.save(tmp_path / "single.npy", np.ones(2))
    with pytest.raises(ValueError, match="got a single array"):
        pickmix.load(tmp_path / "single.npy")
    np.savez(tmp_path / "other.npz", a=np.ones(2))
    with pytest.raises(ValueError, match=r"got other arrays: \['a'\]"):
        pickmix.load(tmp_path / "other.npz")
    # An object array would need pickle, which may run anything.
    np.savez(tmp_path / "pickled.npz", model=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match=r"of shape \(1,\) and type object"):
        pickmix.load(tmp_path / "pickled.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, r"reads models of format 1, got format 2, written by pickmix 9\.9"),
        ({"class": "Unheard"}, "expected a GaussianMixture or .*, got a model of 'Unheard'"),
        ({"attributes": {"fit": 1}}, "no fitted attribute 'fit'"),
        ({"attributes": {"means_": {"array": "lost"}}}, "damaged: .*lost"),
        ({"parameters": {"colour": 1}}, "Invalid parameter 'colour'"),
    ],
)
def test_descriptions_that_make_no_sense(tmp_path, X, change, message):
    path = pickmix.save(fitted(X), tmp_path / "model.npz")
    with np.load(path) as saved:
        arrays = dict(saved)
    description = json.loads(arrays["model"].tobytes()) | {"pickmix": "9.9"} | change
    arrays["model"] = np.frombuffer(json.dumps(description).encode(), dtype=np.uint8)
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=message):
        pickmix.load(path)


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
@pytest.mark.parametrize(
    ("attribute", "damage", "message"),
    [
        ("weights_", lambda weights: weights * np.nan, "weights must hold finite numbers"),
        ("weights_", lambda weights: -weights, "weights must be non-negative"),
        ("weights_", lambda weights: 0.0 * weights, "weights must be .* not all zero"),
        ("means_", lambda means: means * np.nan, "means must hold finite numbers"),
        ("means_", lambda means: means[:, :2], r"means must have shape \(5, 3\), got \(5, 2\)"),
        ("covariances_", lambda matrices: np.inf * matrices, "covariances must hold finite"),
        ("covariances_", lambda matrices: -matrices, "covariances must be positive"),
        ("covariances_", lambda matrices: matrices[:1, ...], "covariances must have shape"),
    ],
)
def test_models_that_make_no_sense(tmp_path, X, covariance_type, attribute, damage, message):
    model = fitted(X, covariance_type=covariance_type)
    with np.errstate(invalid="ignore"):
        setattr(model, attribute, damage(getattr(model, attribute)))
    path = pickmix.save(model, tmp_path / "model.npz")
    with pytest.raises(ValueError, match=rf"model\.npz: the saved model is damaged: {message}"):
        pickmix.load(path)


def test_a_matrix_that_is_no_covariance(tmp_path, X):
    for change, message in ((np.eye(3)[[1, 0, 2]], "positive definite"), (np.tri(3), "symmetric")):
        model = fitted(X)
        model.covariances_[2] = change
        path = pickmix.save(model, tmp_path / "model")
        with pytest.raises(ValueError, match=f"is damaged: covariances must be {message}"):
            pickmix.load(path)


def test_other_families_that_make_no_sense(tmp_path):
    rows = np.random.default_rng(0).poisson(4.0, size=(100, 2)).astype(float)
    model = pickmix.FamilyMixture("poisson", 2, random_state=0, max_iter=3, tol=0.0).fit(rows)
    model.parameters_["rates"][0, 0] = np.nan
    path = pickmix.save(model, tmp_path / "model")
    with pytest.raises(ValueError, match="is damaged: rates must hold finite numbers"):
        pickmix.load(path)


def test_parameters_can_be_given_when_loading(tmp_path, X):
    model = fitted(X, proposal="uniform", callbacks=[lambda info: False])
    with pytest.warns(UserWarning, match=r"give them back: load\(path, callbacks=\.\.\.\)"):
        pickmix.save(model, tmp_path / "model")
    again = pickmix.load(tmp_path / "model", callbacks=model.callbacks, warm_start=True)
    assert again.get_params() == model.get_params() | {"warm_start": True}
    assert np.array_equal(again.score_samples(X), model.score_samples(X))
    with pytest.raises(ValueError, match=r"given colour=.* GaussianMixture has no"):
        pickmix.load(tmp_path / "model", colour="red")


class TestDeep:
    """Models of the gradient engine: lists of tables, chains and the frame of the data."""

    @pytest.fixture(autouse=True, scope="class")
    @staticmethod
    def quick_compilation():
        # Short fits: compiling them well costs more than it saves.
        jax.config.update("jax_disable_most_optimizations", True)
        yield
        jax.config.update("jax_disable_most_optimizations", False)

    @staticmethod
    def rows():
        rng = np.random.default_rng(0)
        return 100.0 + rng.normal(size=(200, 2)) + 4.0 * rng.integers(0, 3, size=(200, 1))

    @staticmethod
    def assert_the_same_to_the_last_bit(again, model, X):
        assert type(again) is type(model)
        assert vars(again).keys() == vars(model).keys()
        for attribute in set(vars(model)) - {"trace_", "tables_", "component"}:
            assert same(vars(again)[attribute], vars(model)[attribute]), attribute
        for one, other in zip(again.tables_, model.tables_, strict=True):
            assert same(one, other)
        assert again.trace_.dtype == model.trace_.dtype
        assert again.trace_.tobytes() == model.trace_.tobytes()
        assert np.array_equal(again.score_samples(X), model.score_samples(X))
        assert np.array_equal(again.predict_proba(X), model.predict_proba(X))

    @pytest.mark.parametrize("name", ["model", "model.npz"])
    def test_flows(self, tmp_path, name):
        X = self.rows()
        model = FlowMixture(4, hidden=3, batch_size=50, max_steps=20, random_state=0).fit(X)
        again = pickmix.load(pickmix.save(model, tmp_path / name))
        self.assert_the_same_to_the_last_bit(again, model, X)
        assert again.get_params() == model.get_params()
        assert np.array_equal(again.sample(5)[0], model.sample(5)[0])

    def test_flows_saved_before_they_had_affine_maps(self, tmp_path):
        X = self.rows()
        settings = {"batch_size": 50, "max_steps": 20, "random_state": 0}
        model = FlowMixture(4, hidden=3, linear=False, init_params="data", **settings).fit(X)
        path = pickmix.save(model, tmp_path / "model.npz")
        # The newer parameters and attributes are not in such a file.
        with np.load(path) as saved:
            arrays = dict(saved)
        description = json.loads(arrays["model"].tobytes())
        for name in ("linear", "gaussian_share", "noise", "reg_covar"):
            del description["parameters"][name]
        for name in ("start_validation_", "n_rows_seen_", "_moments"):
            description["attributes"].pop(name)
        arrays["model"] = np.frombuffer(json.dumps(description).encode(), dtype=np.uint8)
        np.savez(path, **arrays)
        again = pickmix.load(path)
        assert again.linear is False
        for one, other in zip(again.tables_, model.tables_, strict=True):
            assert same(one, other)
        assert np.array_equal(again.score_samples(X), model.score_samples(X))
        assert np.array_equal(again.sample(5)[0], model.sample(5)[0])
        # And it can go on, in either way.
        again.set_params(warm_start=True).fit(X)
        assert again.n_steps_ == 40
        assert pickmix.load(path).partial_fit(X).n_steps_ > 20

    def test_numbers_for_layers_and_chosen_ones(self, tmp_path):
        X = self.rows()
        settings = {"batch_size": 50, "max_steps": 5, "random_state": 0}
        for asked in ((3, 2), "auto"):
            model = SumProductTransformNetwork(asked, 1, 2, **settings).fit(X)
            again = pickmix.load(pickmix.save(model, tmp_path / "model"))
            self.assert_the_same_to_the_last_bit(again, model, X)
            assert again.n_children == asked
            assert (
                again.n_children_
                == model.n_children_
                == tuple(
                    rows // above
                    for rows, above in zip(
                        [table.shape[0] for table in model.tables_],
                        [1, model.weights_.shape[0]],
                        strict=True,
                    )
                )
            )

    def test_networks(self, tmp_path):
        X = self.rows()
        settings = {"batch_size": 50, "max_steps": 20, "random_state": 0}
        model = SumProductTransformNetwork(3, 2, 2, **settings).fit(X)
        again = pickmix.load(pickmix.save(model, tmp_path / "model"))
        self.assert_the_same_to_the_last_bit(again, model, X)
        assert again.n_trees_ == model.n_trees_

    @pytest.mark.parametrize("proposal", ["partition", RandomPartition(block_size=2, shuffle=0.1)])
    def test_partitions(self, tmp_path, proposal):
        X = self.rows()
        settings = {"batch_size": 50, "max_steps": 20, "random_state": 0, "warm_start": True}
        model = FlowMixture(4, hidden=3, proposal=proposal, **settings).fit(X)
        again = pickmix.load(pickmix.save(model, tmp_path / "model"))
        self.assert_the_same_to_the_last_bit(again, model, X)
        assert again.get_params() == model.get_params()
        assert again.proposal_ == "partition"
        assert np.array_equal(again.fit(X).tables_[0], model.fit(X).tables_[0])

    def test_warm_start_goes_on_as_if_never_saved(self, tmp_path):
        X = self.rows()
        settings = {"batch_size": 50, "max_steps": 20, "random_state": 0, "warm_start": True}
        model = FlowMixture(4, hidden=3, **settings).fit(X)
        again = pickmix.load(pickmix.save(model, tmp_path / "model"))
        model.fit(X)
        again.fit(X)
        assert again.n_steps_ == model.n_steps_ == 40
        assert again._passes == model._passes == 10.0
        assert np.array_equal(again.tables_[0], model.tables_[0])

    def test_a_component_is_given_back(self, tmp_path):
        X = self.rows()
        model = Mixture(StudentT(4.0), 4, batch_size=50, max_steps=20, random_state=0).fit(X)
        with pytest.warns(UserWarning, match=r"Not saved.*component=StudentT.*component=\.\.\.\)"):
            path = pickmix.save(model, tmp_path / "model")
        again = pickmix.load(path, component=StudentT(4.0))
        self.assert_the_same_to_the_last_bit(again, model, X)
        # Without it there is a model to look at, but none to ask.
        without = pickmix.load(path)
        assert without.component is None
        assert np.array_equal(without.weights_, model.weights_)
        for ask in (without.score_samples, without.predict, without.predict_proba, without.fit):
            with pytest.raises(ValueError, match=r"component must have .* got None"):
                ask(X)
        with pytest.raises(ValueError, match=r"component must have .* got None"):
            without.sample(3)
        without.set_params(component=StudentT(4.0))
        assert np.array_equal(without.score_samples(X), model.score_samples(X))


@dataclass(frozen=True)
class StudentT:
    freedom: float

    def init(self, key, n_features):
        return {"centre": jax.random.normal(key, (n_features,)), "log_width": jnp.zeros(())}

    def log_prob(self, params, x):
        square = jnp.sum((x - params["centre"]) ** 2) * jnp.exp(-2.0 * params["log_width"])
        power = 0.5 * (self.freedom + x.shape[0])
        return -power * jnp.log1p(square / self.freedom) - x.shape[0] * params["log_width"]


def test_paths_among_the_parameters(tmp_path):
    X = np.random.default_rng(0).normal(size=(50, 2))
    mixture = GaussianMixture(2, random_state=0, checkpoint=tmp_path / "saved").fit(X)
    again = pickmix.load(pickmix.save(mixture, tmp_path / "model"))
    assert again.checkpoint == tmp_path / "saved"


@pytest.mark.parametrize("name", ["model", "model.npz"])
def test_a_full_disk_leaves_nothing_and_names_the_file(tmp_path, monkeypatch, name):
    import os

    X = np.random.default_rng(0).normal(size=(50, 2))
    mixture = GaussianMixture(2, random_state=0).fit(X)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"npz: the model could not be saved .No space left"):
        pickmix.save(mixture, tmp_path / name)
    assert list(tmp_path.iterdir()) == []
