"""Fits that are killed and resumed end with the bits of those that were not."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from small_tables import small_samples

from pickmix import FamilyMixture, GaussianMixture, Proposal, open_rows

rng = np.random.default_rng(0)
MEANS = rng.normal(size=(6, 3)) * 5.0
MANY = MEANS[rng.integers(0, 6, 6000)] + rng.normal(size=(6000, 3))
X = MANY[:600]


class Killed(BaseException):
    """Ends a process here and now, as far as a fit can tell."""


class Ring(Proposal):
    """A proposal of a user, which remembers something."""

    def start(self, n_rows, n_components):
        self.n_components = n_components
        self.seen = np.zeros(n_rows)

    def propose(self, rows, current, n_draws, first_draw, random):
        self.seen[rows] += 1.0
        uniforms = random.uniforms(1, rows, n_draws, first_draw)
        shift = np.where(uniforms < 0.3 + 0.4 * (self.seen[rows] % 2)[:, None], 1, 5)
        candidates = ((current[:, None] + shift) % self.n_components).astype(np.int32)
        return candidates, np.zeros(candidates.shape), np.zeros(rows.shape[0])


def bits(mixture):
    gaussian = isinstance(mixture, GaussianMixture)
    arrays = [mixture.means_, mixture.covariances_] if gaussian else mixture.parameters_.values()
    arrays = [mixture.weights_, *arrays]
    return b"".join(a.tobytes() for a in arrays) + mixture.trace_["log_likelihood"].tobytes()


class Killer:
    """A callback that ends fits at some of its calls."""

    def __init__(self, *moments):
        self.moments = moments
        self.n_calls = 0

    def __call__(self, info):
        self.n_calls += 1
        if self.n_calls in self.moments:
            raise Killed


def killed_and_resumed(make, rows, folder, moments, capsys, **options):
    """Fit, die at the given evaluations, and go on."""
    killer, deaths = Killer(*moments), 0
    while True:
        mixture = make(checkpoint=folder, checkpoint_every=0.0, callbacks=killer)
        try:
            mixture.fit(rows, **options)
            break
        except Killed:
            deaths += 1
    assert deaths == len(moments)
    assert "resuming from the checkpoint" in capsys.readouterr().err
    return mixture


def gaussians(n_components=6, **settings):
    return lambda **o: GaussianMixture(n_components, random_state=0, **settings, **o)


FITS = {
    "default": gaussians(evaluate_every=1),
    "starts": gaussians(n_init=2),
    # So many components are evaluated in compiled kernels.
    "kernels": gaussians(300, covariance_type="diag", max_steps=8, evaluate_every=1),
    "table": gaussians(proposal="table", max_steps=30, evaluate_every=3),
    "ring": gaussians(proposal=Ring(), max_steps=30, evaluate_every=3),
    "tsaem": gaussians(algorithm="tsaem", max_steps=30, evaluate_every=3),
    "random": gaussians(algorithm="em", init_params="random", n_init=2, max_steps=8),
    "families": lambda **o: FamilyMixture(
        [("full", [0, 1]), ("spherical", [2])], 6, random_state=0, evaluate_every=1, **o
    ),
}


@pytest.mark.parametrize("name", FITS)
def test_the_same_bits(name, tmp_path, capsys):
    expected = FITS[name]().fit(X)
    resumed = killed_and_resumed(FITS[name], X, tmp_path, (2, 3, 6), capsys)
    assert bits(resumed) == bits(expected)
    assert resumed.n_steps_ == expected.n_steps_
    assert resumed.n_component_evaluations_ == expected.n_component_evaluations_
    assert resumed.outcome_ == expected.outcome_


@pytest.fixture(scope="module")
def passes():
    """Rows of which a sample comes into memory, and a fit of them."""
    source = open_rows(MANY, chunk_size=500)
    with small_samples(24 * 1000):
        yield source, FITS["default"]().fit(source)


@pytest.mark.parametrize("moments", [(2, 5), (7, 9, 10)])
def test_the_same_bits_of_passes_over_chunks(moments, tmp_path, passes, capsys):
    source, expected = passes
    resumed = killed_and_resumed(FITS["default"], source, tmp_path, moments, capsys)
    assert bits(resumed) == bits(expected)
    assert resumed.n_steps_ == expected.n_steps_


def test_a_sample_that_was_cut_short_goes_on_next_time(tmp_path, passes):
    source, expected = passes
    cut = FITS["default"](checkpoint=tmp_path, max_time=1e-6).fit(source)
    assert cut.outcome_ == "max_time"
    resumed = FITS["default"](checkpoint=tmp_path).fit(source)
    assert bits(resumed) == bits(expected)


def test_other_weights_of_a_table_are_refused(tmp_path, passes):
    weights = np.linspace(1.0, 2.0, 6000)
    FITS["default"](checkpoint=tmp_path).fit(passes[0], sample_weight=weights)
    with pytest.raises(ValueError, match=r"sample_weight was .*, is"):
        FITS["default"](checkpoint=tmp_path).fit(passes[0], sample_weight=weights[::-1])


def test_a_finished_fit_is_not_made_again(tmp_path, capsys):
    make = FITS["default"]
    first = make(checkpoint=tmp_path).fit(X)
    assert len(list(tmp_path.iterdir())) == 1
    again = make(checkpoint=tmp_path).fit(X)
    assert bits(again) == bits(first)
    assert "where it had ended (converged)" in capsys.readouterr().err


def test_without_a_seed_the_first_one_counts(tmp_path, capsys):
    def make(**options):
        return GaussianMixture(6, evaluate_every=1, **options)

    resumed = killed_and_resumed(make, X, tmp_path, (2, 4), capsys)
    again = make(checkpoint=tmp_path).fit(X)
    assert bits(again) == bits(resumed)


def test_other_parameters_or_rows_are_refused(tmp_path):
    GaussianMixture(6, random_state=0, checkpoint=tmp_path).fit(X)
    with pytest.raises(ValueError, match="another fit") as caught:
        GaussianMixture(7, random_state=1, checkpoint=tmp_path).fit(X)
    assert "n_components was 6, is 7" in str(caught.value)
    assert "random_state was 0, is 1" in str(caught.value)
    assert "tol" not in str(caught.value)
    with pytest.raises(ValueError, match="rows"):
        GaussianMixture(6, random_state=0, checkpoint=tmp_path).fit(X + 1e-9)
    with pytest.raises(ValueError, match="sample_weight was None"):
        GaussianMixture(6, random_state=0, checkpoint=tmp_path).fit(
            X, sample_weight=np.linspace(1.0, 2.0, 600)
        )
    with pytest.raises(ValueError, match="estimator was 'GaussianMixture', is 'FamilyMixture'"):
        FamilyMixture("full", 6, random_state=0, checkpoint=tmp_path).fit(X)
    # These change nothing in what comes of a fit.
    GaussianMixture(6, random_state=0, checkpoint=tmp_path, n_jobs=1, max_time=9.0).fit(X)


def test_a_time_limit_goes_on_next_time(tmp_path):
    expected = FITS["table"]().fit(X)
    for n in range(1, 4):
        mixture = FITS["table"](checkpoint=tmp_path, max_time=1e-6).fit(X)
        assert (mixture.outcome_, mixture.n_steps_) == ("max_time", n)
    mixture = FITS["table"](checkpoint=tmp_path).fit(X)
    assert bits(mixture) == bits(expected)


@pytest.mark.parametrize("damage", ["flipped", "empty"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, damage):
    make = FITS["table"]
    with pytest.raises(Killed):
        make(checkpoint=tmp_path, checkpoint_every=0.0, callbacks=Killer(5)).fit(X)
    # What a process was writing when it was killed is removed.
    (tmp_path / ".checkpoint-000001.pickmix.0a1b.tmp").write_bytes(b"half")
    last = max(path for path in tmp_path.iterdir() if path.name[0] != ".")
    content = bytearray(last.read_bytes())
    if damage == "flipped":
        content[-500] ^= 1
    else:
        content.clear()
    last.write_bytes(content)
    assert bits(make(checkpoint=tmp_path).fit(X)) == bits(make().fit(X))
    assert not [path for path in tmp_path.iterdir() if path.name[0] == "."]
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    with pytest.raises(ValueError, match="no checkpoint can be read"):
        make(checkpoint=tmp_path).fit(X)


def test_a_full_disk_ends_the_fit_and_keeps_the_last_one(tmp_path, monkeypatch):
    real, count = os.fsync, 0

    def filling(descriptor):
        nonlocal count
        count += 1
        if count > 3:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", filling)
    with pytest.raises(OSError, match=r"checkpoint-000004.*No space left.*checkpoint-000003"):
        FITS["default"](checkpoint=tmp_path, checkpoint_every=0.0).fit(X)
    monkeypatch.setattr(os, "fsync", real)
    names = sorted(path.name.partition(".")[0] for path in tmp_path.iterdir())
    assert names == ["checkpoint-000002", "checkpoint-000003"]
    assert bits(FITS["default"](checkpoint=tmp_path).fit(X)) == bits(FITS["default"]().fit(X))


SLOW_FIT = """
import signal, sys, time
import numpy as np
from pickmix import GaussianMixture
# Workers of pytest-xdist ignore Ctrl-C, and so do their children.
signal.signal(signal.SIGINT, signal.default_int_handler)

def report(info):
    print("evaluated", flush=True)
    time.sleep(0.1)

GaussianMixture(6, random_state=0, proposal="table", max_steps=30, evaluate_every=3,
                checkpoint=sys.argv[1], checkpoint_every=1e9, callbacks=report,
                ).fit(np.load(sys.argv[2]))
"""


@pytest.mark.slow
def test_a_signal_writes_a_checkpoint_before_it_ends_the_process(tmp_path, capsys):
    np.save(tmp_path / "rows.npy", X)
    folder = tmp_path / "checkpoints"
    arguments = [str(folder), str(tmp_path / "rows.npy")]
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SLOW_FIT, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    for _ in range(2):
        assert process.stdout.readline() == b"evaluated\n"
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGTERM, errors
    assert len(list(folder.iterdir())) == 1
    resumed = FITS["table"](checkpoint=folder).fit(X)
    assert "resuming from the checkpoint" in capsys.readouterr().err
    assert bits(resumed) == bits(FITS["table"]().fit(X))
