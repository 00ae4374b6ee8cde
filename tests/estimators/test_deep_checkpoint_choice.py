"""Checkpoints of deep fits that choose their number of components: the search, then the fits."""

import numpy as np
import pytest
from killing import Killed

from pickmix import SumProductTransformNetwork
from pickmix.estimators import deep_fit, deep_gaussians
from pickmix.gradient import engine as engine_module
from pickmix.gradient.engine import GradientEngine

SETTINGS = {"batch_size": 50, "max_steps": 24, "evaluate_every": 10, "random_state": 0}
SETTINGS |= {"init_params": "gaussian", "patience": None}


@pytest.fixture(autouse=True, scope="module")
def short_search():
    with pytest.MonkeyPatch.context() as patch:
        # Four groups need no longer search.
        patch.setattr(deep_gaussians, "_MOST_CHOSEN", 4)
        yield


@pytest.fixture(autouse=True)
def cut_finely(monkeypatch, request):
    if "kill" in request.fixturenames:
        # Every step is a call, and a checkpoint; the first call makes four.
        monkeypatch.setattr(engine_module, "_CHUNK_SECONDS", 1e-9)


def rows(n_rows=300):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n_rows, 2)) + 6.0 * rng.integers(0, 4, size=(n_rows, 1))


def network(**settings):
    return SumProductTransformNetwork("auto", 1, 1, **SETTINGS | settings)


def bits(mixture):
    columns = set(mixture.trace_.dtype.names) - {"seconds"}
    arrays = [mixture.trace_[name] for name in sorted(columns)] + list(mixture.tables_)
    names = ("weights_", "center_", "scale_", "_chain", "n_steps_", "n_component_evaluations_")
    arrays += [getattr(mixture, name) for name in (*names, "best_validation_", "n_rows_seen_")]
    return [mixture.outcome_, *(np.asarray(array).tobytes() for array in arrays)]


@pytest.fixture(scope="module")
def expected():
    return bits(network().fit(rows()))


# Amid the first fit; after its end, the 23rd checkpoint; amid the second one. Four Gaussians and a
# background, one and a background.
@pytest.mark.slow
@pytest.mark.parametrize(("n_written", "folders"), [(8, [5]), (28, [5, 2])])
def test_killed_and_resumed_gives_the_same_bits(
    n_written, folders, expected, tmp_path, kill, capfd
):
    settings = {"checkpoint": tmp_path, "checkpoint_every": 0}
    kill(n_written)
    with pytest.raises(Killed):
        network(**settings).fit(rows())
    # The search is kept in the folder, the fits are in one each.
    there = (int(path.name) for path in tmp_path.iterdir() if path.is_dir())
    assert sorted(there, reverse=True) == folders
    kill(3)
    with pytest.raises(Killed):
        network(**settings).fit(rows())
    kill(None)
    capfd.readouterr()
    assert bits(network(**settings).fit(rows())) == expected
    assert "resuming from the checkpoint in " in capfd.readouterr().err


def test_the_search_is_not_repeated(expected, tmp_path, monkeypatch, kill):
    """A Gaussian fit depends on threads of other libraries: it is kept, not repeated."""
    kill(1)
    with pytest.raises(Killed):
        network(checkpoint=tmp_path).fit(rows())
    kill(None)
    monkeypatch.setattr(deep_fit, "choose_gaussians", None)
    monkeypatch.setattr(deep_fit, "find_frame", None)
    assert bits(network(checkpoint=tmp_path).fit(rows())) == expected


def test_a_finished_fit_is_there_at_once(expected, tmp_path, monkeypatch):
    assert bits(network(checkpoint=tmp_path).fit(rows())) == expected
    for name in ("compile", "advance", "log_likelihood", "validation"):
        monkeypatch.setattr(GradientEngine, name, None)
    for name in ("choose_gaussians", "gaussian_start"):
        monkeypatch.setattr(deep_fit, name, None)
    assert bits(network(checkpoint=tmp_path).fit(rows())) == expected
