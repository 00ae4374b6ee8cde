"""Fits that are killed and resumed end with the bits of those that were not."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from pickmix import FamilyMixture, GaussianMixture, Proposal, open_rows
from pickmix.closed_form.chunks import LocalChunks
from pickmix.estimators import large
from pickmix.fitting.checkpoint import Checkpoints

rng = np.random.default_rng(0)
MEANS = rng.normal(size=(12, 3)) * 5.0
MANY = MEANS[rng.integers(0, 12, 12_000)] + rng.normal(size=(12_000, 3))
X = MANY[:4000]


class Killed(BaseException):
    """Ends a process here and now, as far as a fit can tell."""


class Ring(Proposal):
    """A user's own proposal, which remembers something."""

    def start(self, n_rows, n_components):
        self.n_components = n_components
        self.seen = np.zeros(n_rows)

    def propose(self, rows, current, n_draws, first_draw, random):
        self.seen[rows] += 1.0
        uniforms = random.uniforms(1, rows, n_draws, first_draw)
        shift = np.where(uniforms < 0.3 + 0.4 * (self.seen[rows] % 2)[:, None], 1, 11)
        candidates = ((current[:, None] + shift) % self.n_components).astype(np.int32)
        return candidates, np.zeros(candidates.shape), np.zeros(rows.shape[0])


def bits(mixture):
    arrays = [mixture.weights_, *mixture._get_parameters().values()]
    return b"".join(a.tobytes() for a in arrays) + mixture.trace_["log_likelihood"].tobytes()


def killed_and_resumed(make, rows, folder, moments, monkeypatch, capsys, **options):
    """Fit, die at the given checkpoints (before or after they are written), and go on."""
    write = Checkpoints.write
    count = 0

    def dying(self, values):
        nonlocal count
        count += 1
        if count in moments and count % 2:
            raise Killed
        write(self, values)
        if count in moments:
            raise Killed

    monkeypatch.setattr(Checkpoints, "write", dying)
    deaths = 0
    while True:
        try:
            mixture = make(checkpoint=folder, checkpoint_every=0.0).fit(rows, **options)
            break
        except Killed:
            deaths += 1
    monkeypatch.setattr(Checkpoints, "write", write)
    assert deaths >= 2
    assert "resuming from the checkpoint" in capsys.readouterr().err
    return mixture


FITS = {
    "default": lambda **o: GaussianMixture(12, random_state=0, **o),
    "starts": lambda **o: GaussianMixture(12, random_state=0, n_init=2, **o),
    "kernels": lambda **o: GaussianMixture(300, covariance_type="diag", random_state=0, **o),
    "batches": lambda **o: GaussianMixture(
        12, random_state=0, batch_size=1000, proposal="partition", step_size=0.3, **o
    ),
    "table": lambda **o: GaussianMixture(12, random_state=0, proposal="table", max_steps=60, **o),
    "reuse": lambda **o: GaussianMixture(
        12, random_state=0, proposal="uniform", reuse_log_joint=True, max_steps=60, **o
    ),
    "own": lambda **o: GaussianMixture(12, random_state=0, proposal=Ring(), max_steps=60, **o),
    "em": lambda **o: GaussianMixture(12, algorithm="em", random_state=0, **o),
    "mcsaem": lambda **o: GaussianMixture(
        12, algorithm="mcsaem", max_steps=40, random_state=0, **o
    ),
    "tsaem": lambda **o: GaussianMixture(12, algorithm="tsaem", max_steps=40, random_state=0, **o),
    "random": lambda **o: GaussianMixture(
        12, algorithm="em", init_params="random", n_init=2, max_steps=15, random_state=0, **o
    ),
    "tied": lambda **o: GaussianMixture(12, covariance_type="tied", random_state=0, **o),
    "families": lambda **o: FamilyMixture(
        [("full", [0, 1]), ("spherical", [2])], 12, random_state=0, **o
    ),
}


@pytest.mark.parametrize("name", FITS)
def test_the_same_bits(name, tmp_path, monkeypatch, capsys):
    # The large one runs in compiled kernels.
    rows = MANY if name == "kernels" else X
    expected = FITS[name]().fit(rows)
    resumed = killed_and_resumed(FITS[name], rows, tmp_path, (2, 3, 8, 11), monkeypatch, capsys)
    assert bits(resumed) == bits(expected)
    assert resumed.n_steps_ == expected.n_steps_
    assert resumed.n_component_evaluations_ == expected.n_component_evaluations_
    assert resumed.outcome_ == expected.outcome_


@pytest.mark.parametrize("moments", [(2, 5), (18, 27, 30), (24, 29)])
def test_the_same_bits_of_rows_that_stay(moments, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(large, "_SAMPLE_BYTES", 4000 * 24)
    source = open_rows(MANY, chunk_size=1000)
    expected = FITS["default"]().fit(source)
    resumed = killed_and_resumed(FITS["default"], source, tmp_path, moments, monkeypatch, capsys)
    assert bits(resumed) == bits(expected)
    assert resumed.n_steps_ == expected.n_steps_


def test_legs_of_another_length_go_on_as_they_were(tmp_path, monkeypatch, capsys):
    # A cluster of another size hands over more chunks at a time.
    monkeypatch.setattr(large, "_SAMPLE_BYTES", 4000 * 24)
    source = open_rows(MANY, chunk_size=1000)
    expected = FITS["default"]().fit(source)
    monkeypatch.setattr(LocalChunks, "chunks_per_run", 2)
    longer = FITS["default"]().fit(source)
    assert bits(longer) == bits(expected)
    write, kept = Checkpoints.write, []

    def dying(self, values):
        write(self, values)
        if values.passing:
            kept.append(values)
            # In the middle of the second pass.
            if len(kept) == 9:
                raise Killed

    monkeypatch.setattr(Checkpoints, "write", dying)
    with pytest.raises(Killed):
        FITS["default"](checkpoint=tmp_path, checkpoint_every=0.0).fit(source)
    monkeypatch.setattr(Checkpoints, "write", write)
    monkeypatch.setattr(LocalChunks, "chunks_per_run", 8)
    resumed = FITS["default"](checkpoint=tmp_path).fit(source)
    assert bits(resumed) == bits(expected)
    assert resumed.n_steps_ == longer.n_steps_
    assert resumed.outcome_ == expected.outcome_


def test_other_weights_of_a_table_are_refused(tmp_path):
    pandas = pytest.importorskip("pandas")
    weights = pandas.Series(np.linspace(1.0, 2.0, 12_000))
    source = open_rows(MANY, chunk_size=1000)
    FITS["default"](checkpoint=tmp_path).fit(source, sample_weight=weights)
    with pytest.raises(ValueError, match=r"sample_weight was .*, is"):
        FITS["default"](checkpoint=tmp_path).fit(source, sample_weight=weights[::-1].to_numpy())


def test_streams_leave_no_checkpoints(tmp_path):
    mixture = FITS["default"](checkpoint=tmp_path / "new")
    mixture.partial_fit(X[:2000])
    assert not (tmp_path / "new").exists()
    assert bits(mixture.fit(X)) == bits(FITS["default"]().fit(X))


def test_a_finished_fit_is_not_made_again(tmp_path, capsys):
    make = FITS["default"]
    first = make(checkpoint=tmp_path).fit(X)
    assert len(list(tmp_path.iterdir())) == 1
    again = make(checkpoint=tmp_path).fit(X)
    assert bits(again) == bits(first)
    assert "where it had ended (converged)" in capsys.readouterr().err


def test_without_a_seed_the_first_one_counts(tmp_path, monkeypatch, capsys):
    resumed = killed_and_resumed(
        lambda **o: GaussianMixture(12, **o), X, tmp_path, (4, 6), monkeypatch, capsys
    )
    again = GaussianMixture(12, checkpoint=tmp_path).fit(X)
    assert bits(again) == bits(resumed)


def test_other_parameters_or_rows_are_refused(tmp_path):
    GaussianMixture(12, random_state=0, checkpoint=tmp_path).fit(X)
    with pytest.raises(ValueError, match="n_components was 12, is 13"):
        GaussianMixture(13, random_state=0, checkpoint=tmp_path).fit(X)
    with pytest.raises(ValueError, match="random_state was 0, is 1"):
        GaussianMixture(12, random_state=1, checkpoint=tmp_path).fit(X)
    with pytest.raises(ValueError, match="rows"):
        GaussianMixture(12, random_state=0, checkpoint=tmp_path).fit(X + 1e-9)
    with pytest.raises(ValueError, match="sample_weight was None"):
        GaussianMixture(12, random_state=0, checkpoint=tmp_path).fit(
            X, sample_weight=np.linspace(1.0, 2.0, 4000)
        )
    with pytest.raises(ValueError, match="estimator was 'GaussianMixture', is 'FamilyMixture'"):
        FamilyMixture("full", 12, random_state=0, checkpoint=tmp_path).fit(X)
    # These change nothing in what comes of a fit.
    GaussianMixture(12, random_state=0, checkpoint=tmp_path, n_jobs=1, max_time=9.0).fit(X)


def test_a_time_limit_goes_on_next_time(tmp_path):
    expected = FITS["table"]().fit(X)
    mixture = FITS["table"](checkpoint=tmp_path, max_time=1e-6).fit(X)
    assert mixture.outcome_ == "max_time"
    assert mixture.n_steps_ == 1
    for n in range(2, 5):
        mixture = FITS["table"](checkpoint=tmp_path, max_time=1e-6).fit(X)
        assert mixture.n_steps_ == n
    mixture = FITS["table"](checkpoint=tmp_path).fit(X)
    assert bits(mixture) == bits(expected)


def test_a_sample_that_was_cut_short_goes_on_next_time(tmp_path, monkeypatch):
    monkeypatch.setattr(large, "_SAMPLE_BYTES", 4000 * 24)
    source = open_rows(MANY, chunk_size=1000)
    cut = FITS["default"](checkpoint=tmp_path, max_time=1e-6).fit(source)
    assert cut.outcome_ == "max_time"
    resumed = FITS["default"](checkpoint=tmp_path).fit(source)
    assert bits(resumed) == bits(FITS["default"]().fit(source))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"checkpoint": 3}, "checkpoint must be None or the path"),
        ({"checkpoint": "x", "checkpoint_every": -1.0}, "checkpoint_every must be a finite number"),
        ({"checkpoint": "x", "checkpoint_every": "often"}, "checkpoint_every"),
    ],
)
def test_bad_parameters(parameters, message):
    with pytest.raises(ValueError, match=message):
        GaussianMixture(2, **parameters).fit(X)


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
    assert sorted(os.listdir(tmp_path)) == [
        "checkpoint-000002.pickmix",
        "checkpoint-000003.pickmix",
    ]
    assert bits(FITS["default"](checkpoint=tmp_path).fit(X)) == bits(FITS["default"]().fit(X))


SCRIPT = textwrap.dedent(
    """
    import signal, sys
    import numpy as np
    from pickmix import GaussianMixture
    # Workers of pytest-xdist ignore Ctrl-C, and so do their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 3))[rng.integers(0, 12, 4000)] * 5.0 + rng.normal(size=(4000, 3))
    def slow(info):
        print("evaluated", flush=True)
        import time
        time.sleep(0.1)
    mixture = GaussianMixture(12, random_state=0, checkpoint=sys.argv[1], checkpoint_every=1e9,
                              proposal="table", tol=0.0, max_iter=12, callbacks=slow).fit(X)
    np.save(sys.argv[1] + ".npy", mixture.means_)
    """
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Means of the same fit in a process that nothing was sent to."""
    folder = str(tmp_path_factory.mktemp("undisturbed") / "checkpoints")
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, folder]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
    return np.load(folder + ".npy")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_write_a_checkpoint_before_they_end(tmp_path, number, undisturbed):
    folder = str(tmp_path / "checkpoints")
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, folder]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for _ in range(3):
        assert process.stdout.readline() == b"evaluated\n"
    process.send_signal(number)
    started = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - started < 30
    # Ctrl-C ends the fit, SIGTERM the process.
    assert process.returncode == (-signal.SIGTERM if number == signal.SIGTERM else 0), errors
    assert os.listdir(folder) == ["checkpoint-000001.pickmix"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
    np.testing.assert_array_equal(np.load(folder + ".npy"), undisturbed)
