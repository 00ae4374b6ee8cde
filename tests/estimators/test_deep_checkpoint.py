"""Deep fits that are killed and go on: the same bits, whatever ended them; and rows from files."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from deep_cases import rows
from killing import Killed

import pickmix
from pickmix import FlowMixture, Mixture, SumProductTransformNetwork, archive
from pickmix.estimators import deep_fit
from pickmix.gradient import engine as engine_module
from pickmix.gradient.engine import GradientEngine
from pickmix.inputs.files import write_table
from pickmix.selection.partitions import RandomPartition
from pickmix.selection.proposals import Proposal
from pickmix.selection.randomness import Stream

SETTINGS = {"batch_size": 50, "max_steps": 24, "evaluate_every": 10, "random_state": 0}
SETTINGS |= {"hidden": 3, "init_params": "paper"}
SHARED = {name: value for name, value in SETTINGS.items() if name != "hidden"}


def flow(**settings):
    return FlowMixture(4, **SETTINGS | settings)


def small(**settings):
    """A model whose program compiles soon: what is kept of a fit does not depend on the model."""
    return SumProductTransformNetwork(4, 2, 1, transforms=False, **SHARED | settings)


def assert_same_bits(one, other):
    assert one.outcome_ == other.outcome_
    names = ("weights_", "center_", "scale_", "whitening_", "_chain")
    arrays = [(name, getattr(one, name), getattr(other, name)) for name in names]
    arrays += [("tables_", *pair) for pair in zip(one.tables_, other.tables_, strict=True)]
    columns = set(one.trace_.dtype.names) - {"seconds"}
    arrays += [(name, one.trace_[name], other.trace_[name]) for name in sorted(columns)]
    for name in ("n_steps_", "n_iter_", "n_component_evaluations_", "best_validation_"):
        arrays.append((name, getattr(one, name), getattr(other, name)))
    arrays += [(name, getattr(one, name), getattr(other, name)) for name in ("_passes",)]
    for name, a, b in arrays:
        a, b = np.asarray(a), np.asarray(b)
        assert (a.dtype, a.shape) == (b.dtype, b.shape), name
        assert a.tobytes() == b.tobytes(), name


def cut_finely(monkeypatch):
    """Let calls of `advance` make one step each."""
    monkeypatch.setattr(engine_module, "_CHUNK_SECONDS", 1e-9)


CASES = {
    # Best before the first step: what is remembered and its value must survive.
    "falling": (flow, {"learning_rate": 5.0}),
    "table": (small, {"proposal": "table", "n_samples": 2, "dtype": "float64"}),
    "table-forgetting": (small, {"proposal": "table-forgetting", "weight_update": "closed_form"}),
    "partition": (small, {"proposal": RandomPartition(block_size=2)}),
    "reused": (small, {"reuse_log_joint": True, "adam": "dense", "validation_fraction": None}),
    "em": (small, {"algorithm": "em", "annealing": "anti", "learning_rate": "cosine"}),
}


QUICK = ("falling", "partition")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES]
)
def test_killed_and_resumed_gives_the_same_bits(case, tmp_path, monkeypatch, kill, capfd):
    make, settings = CASES[case]
    expected = make(**settings).fit(rows())
    # The one above was cut by the clock; now every step is a call, and a checkpoint.
    cut_finely(monkeypatch)
    steps = []
    for n_written in (1, 5, 2, 1):
        kill(n_written)
        with pytest.raises(Killed):
            make(checkpoint=tmp_path, checkpoint_every=0, **settings).fit(rows())
        found = re.findall(
            r"resuming from the checkpoint in .*: step (\d+)\n", capfd.readouterr()[1]
        )
        steps += map(int, found)
    # The first call of `advance` makes four: how long steps take is not known yet.
    assert steps == [4, 12, 17]
    kill(None)
    resumed = make(checkpoint=tmp_path, checkpoint_every=0, **settings).fit(rows())
    assert_same_bits(resumed, expected)
    if case == "falling":
        assert resumed.best_validation_ > resumed.trace_["validation"].max()


def test_a_resumed_fit_does_not_start_again(tmp_path, monkeypatch, kill):
    """A start depends on threads of other libraries: it is kept, not repeated."""
    settings = {"init_params": "data", "standardize": "whiten"}
    expected = flow(**settings).fit(rows())
    kill(2)
    with pytest.raises(Killed):
        flow(checkpoint=tmp_path, checkpoint_every=0, **settings).fit(rows())
    kill(None)
    monkeypatch.setattr(deep_fit, "find_frame", None)
    monkeypatch.setattr(deep_fit, "choose_start", None)
    assert_same_bits(flow(checkpoint=tmp_path, **settings).fit(rows()), expected)


@pytest.mark.slow
def test_weights_validation_rows_and_a_warm_start(tmp_path, kill):
    X = rows()
    given = {"sample_weight": np.linspace(0.0, 2.0, 150), "validation_data": X[150:]}
    first = flow().fit(X[:150], **given)
    saved = pickmix.save(first, tmp_path / "first.npz")
    expected = first.set_params(warm_start=True).fit(X[:150], **given)
    assert expected.n_steps_ == 48

    def again():
        settings = {"warm_start": True, "checkpoint": tmp_path / "c", "checkpoint_every": 0}
        return pickmix.load(saved, **settings).fit(X[:150], **given)

    for n_written in (1, 2):
        kill(n_written)
        with pytest.raises(Killed):
            again()
    kill(None)
    assert_same_bits(again(), expected)
    with pytest.raises(ValueError, match=r"rows\.before was .*, is None"):
        flow(warm_start=True, checkpoint=tmp_path / "c").fit(X[:150], **given)


@pytest.mark.slow
def test_networks_and_components_of_ones_own(tmp_path, kill):
    component = Laplace(1.0)
    for make in (
        lambda **s: SumProductTransformNetwork(3, 2, 2, **SHARED | s),
        lambda **s: Mixture(component, 3, proposal=Ring(), n_samples=2, **SHARED | s),
    ):
        folder = tmp_path / make().__class__.__name__
        expected = make().fit(rows())
        kill(2)
        with pytest.raises(Killed):
            make(checkpoint=folder, checkpoint_every=0).fit(rows())
        kill(None)
        assert_same_bits(make(checkpoint=folder).fit(rows()), expected)
    with pytest.raises(ValueError, match=r"component\..*Laplace\.width was 1\.0, is 2\.0"):
        Mixture(Laplace(2.0), 3, proposal=Ring(), n_samples=2, checkpoint=folder, **SHARED).fit(
            rows()
        )


class Laplace:
    def __init__(self, width):
        self.width = width

    def init(self, key, n_features):
        return jax.random.normal(key, (n_features,))

    def log_prob(self, params, x):
        return -jnp.sum(jnp.abs(x - params) / self.width + jnp.log(2.0 * self.width))


class Ring(Proposal):
    """Depends on the current component, and on how often it was told of others."""

    independent = False

    def start(self, n_rows, n_components):
        super().start(n_rows, n_components)
        self.seen = {"by row": np.zeros(n_rows)}

    def propose(self, rows, current, n_draws, first_draw, random):
        u = random.uniforms(Stream.PROPOSAL, rows, 1, first_draw)
        step = np.where(u < 0.5, -1, 1) + self.seen["by row"][rows, None].astype(int)
        candidates = (current[:, None] + step) % self.n_components
        log_q = np.zeros(candidates.shape)
        return candidates, log_q, log_q[:, 0]

    def observe(self, rows, states, step_size):
        self.seen["by row"][rows] += 1.0


def test_a_proposal_that_cannot_be_kept_is_refused_at_once(tmp_path):
    for attribute in (np.random.default_rng(0), lambda: None):
        proposal = Ring()
        proposal.own = attribute
        mixture = Mixture(Laplace(1.0), 3, proposal=proposal, checkpoint=tmp_path, **SHARED)
        with pytest.raises(ValueError, match="a Ring cannot be kept"):
            mixture.fit(rows())
    assert list(tmp_path.iterdir()) == []


def test_without_a_random_state_the_seed_is_kept(tmp_path, kill):
    kill(2)
    with pytest.raises(Killed):
        flow(random_state=None, checkpoint=tmp_path, checkpoint_every=0).fit(rows())
    (newest, *_) = sorted(tmp_path.iterdir(), reverse=True)
    seeds = archive.read(newest, kind="checkpoint")["notes"]["seeds"]
    kill(None)
    resumed = flow(random_state=None, checkpoint=tmp_path).fit(rows())
    assert resumed._split_seed == seeds[0] * 2**31 + seeds[1]

    class Seeds(np.random.RandomState):
        def randint(self, *args):
            return seeds.pop(0)

    assert_same_bits(resumed, flow(random_state=Seeds()).fit(rows()))


def test_another_call_is_refused_with_what_differs(tmp_path):
    X = rows()
    small(checkpoint=tmp_path, proposal=RandomPartition(block_size=2)).fit(X)

    def message(X=X, sample_weight=None, validation_data=None, **settings):
        settings = {"proposal": RandomPartition(block_size=2)} | settings
        with pytest.raises(ValueError, match="belongs to another fit") as error:
            small(checkpoint=tmp_path, **settings).fit(X, None, sample_weight, validation_data)
        return str(error.value)

    assert "parameters.max_steps was 24, is 25." in message(max_steps=25)
    found = message(adam="dense", learning_rate=0.5)
    assert "adam was 'row', is 'dense'; parameters.learning_rate was 0.001, is 0.5." in found
    assert "RandomPartition.block_size was 2, is 3" in message(proposal=RandomPartition(3))
    assert re.search(r"rows.array was 'array of shape .*checksum", message(X + 1.0))
    assert "sample_weight was None, is " in message(sample_weight=np.ones(200))
    assert "rows.validation_data was None, is " in message(validation_data=X[:20])


def test_a_finished_fit_is_there_at_once(tmp_path, monkeypatch, capfd):
    first = flow(checkpoint=tmp_path).fit(rows())
    for name in ("compile", "advance", "log_likelihood", "validation"):
        monkeypatch.setattr(GradientEngine, name, None)
    # How it is made is free to change.
    settings = {"checkpoint_every": 1.0, "max_time": 100.0, "verbose": 1, "callbacks": print}
    second = flow(checkpoint=tmp_path, **settings).fit(rows())
    assert_same_bits(second, first)
    said = capfd.readouterr().err
    assert said == (
        f"pickmix: resuming from the checkpoint in {tmp_path}: step 24, where it had ended "
        "(max_steps)\n"
    )


def test_max_time_ends_a_call_and_not_the_fit(tmp_path, monkeypatch):
    expected = flow().fit(rows())
    cut_finely(monkeypatch)
    ends = []
    for _ in range(30):
        resumed = flow(checkpoint=tmp_path, max_time=1e-9).fit(rows())
        assert resumed.trace_["step"][-1] == resumed.n_steps_
        if resumed.outcome_ != "max_time":
            break
        ends.append(resumed.n_steps_)
    assert len(ends) > 5
    assert_same_bits(resumed, expected)


class TestRowsFromElsewhere:
    @pytest.mark.slow
    def test_files_and_the_like_are_read(self, tmp_path):
        X = rows()
        expected = flow().fit(X[:150], validation_data=X[150:])
        write_table(tmp_path / "X.csv", {"a": X[:150, 0], "b": X[:150, 1]})
        write_table(tmp_path / "V.csv", {"b": X[150:, 1], "c": X[150:, 0], "a": X[150:, 0]})
        found = flow().fit(tmp_path / "X.csv", validation_data=tmp_path / "V.csv")
        assert_same_bits(found, expected)
        assert found.feature_names_in_.tolist() == ["a", "b"]
        np.save(tmp_path / "X.npy", X[:150])
        mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
        with pickmix.open_rows(mapped) as source:
            for data in (mapped, source, lambda: iter([X[:70], X[70:150]])):
                found = flow().fit(data, validation_data=X[150:])
                assert_same_bits(found, expected)
                assert not hasattr(found, "feature_names_in_")
            assert source.read(0, 1).tolist() == X[:1].tolist()

    def test_numbers_that_are_missing_are_named(self, tmp_path):
        X = rows()
        X[7, 1] = np.nan
        for part in range(2):
            write_table(tmp_path / f"{part}.csv", {"a": X[:, 0], "b": X[:, part]})
        with pytest.raises(
            ValueError, match=r"X has a missing value .* in 1.csv, row 8, column 'b'"
        ):
            flow().fit(tmp_path / "*.csv")
        with pytest.raises(
            ValueError, match=r"validation_data has a missing value .* in .*1.csv, row 8"
        ):
            flow().fit(tmp_path / "0.csv", validation_data=tmp_path / "1.csv")

    def test_dask_is_refused(self):
        array = pytest.importorskip("dask.array").from_array(rows(), chunks=50)
        with pytest.raises(TypeError, match=r"X must not be a Dask .* pass X.compute\(\)"):
            flow().fit(array)
        with pytest.raises(TypeError, match="validation_data must not be a Dask"):
            flow().fit(rows(), validation_data=array)
