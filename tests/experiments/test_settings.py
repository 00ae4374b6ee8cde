import numpy as np
import pytest

from pickmix.data import mixsim, rotated
from pickmix.experiments import settings
from pickmix.experiments.settings import SETTINGS, ellipsoids, from_file, from_mixsim, from_uci


def test_all_settings_are_there():
    four = ["separated", "overlapping", "separated-power", "overlapping-power"]
    uci = [f"{name}-{K}" for name in ("magic-telescope", "pendigits") for K in (50, 200)]
    synthetic = [f"k{K}-{kind}" for K in (300, 1000) for kind in four]
    assert list(SETTINGS) == ["small", "mixsim", *synthetic, "birch1", *uci, "k10000"]
    assert [name for name, setting in SETTINGS.items() if not setting.dense] == ["k10000"]


def test_sizes_are_as_named():
    big, huge = SETTINGS["k1000-overlapping-power"], SETTINGS["k10000"]
    assert big.summary == (
        "ellipsoids in the unit cube, D = 8, K = 1,000, N = 200,000, width 0.2, power-law weights"
    )
    assert "D = 16, K = 10,000, N = 1,000,000" in huge.summary
    assert (big.n_components, huge.n_components) == (1000, 10_000)


@pytest.mark.parametrize("make", [from_mixsim, ellipsoids])
def test_drawn_rows_and_their_truth(make, monkeypatch):
    weights = {"weights": "power"} if make is ellipsoids else {}
    setting = make("tiny", 2, 3, 50, 0.1, **weights)
    monkeypatch.setattr(settings, "HELD_OUT_ROWS", 40)
    first, again, other = setting.make(0), setting.make(0), setting.make(1)
    assert first.train.shape == (50, 2)
    assert first.held_out.shape == (40, 2)
    assert first.n_components == 3
    np.testing.assert_array_equal(first.train, again.train)
    assert not np.array_equal(first.train, other.train)
    assert not np.isin(first.held_out[:, 0], first.train[:, 0]).any()
    generator = np.random.default_rng(0)
    if make is from_mixsim:
        truth = mixsim.generate(3, 2, 0.1, random_state=generator)
    else:
        truth = rotated.generate(3, 2, 0.1, weights="power", random_state=generator)
    np.testing.assert_allclose(first.true_log_density, truth.score_samples(first.held_out))


def test_rows_of_a_file_are_split_and_standardised(tmp_path, monkeypatch):
    monkeypatch.setenv("PICKMIX_DATA", str(tmp_path))
    rows = np.random.default_rng(0).normal(50.0, 7.0, size=(100, 2))
    np.savetxt(tmp_path / "rows.txt", rows)
    data = from_file("tiny", "rows.txt", "made up", 5).make(3)
    assert (data.train.shape, data.held_out.shape) == ((80, 2), (20, 2))
    np.testing.assert_allclose(data.train.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(data.train.std(axis=0), 1.0)
    assert data.true_log_density is None
    everything = np.concatenate([data.train, data.held_out])
    back = everything * (rows[:, 0].std() / everything[:, 0].std())
    np.testing.assert_allclose(
        np.sort(back[:, 0] - back[:, 0].mean()), np.sort(rows[:, 0] - rows[:, 0].mean()), atol=1e-9
    )


def test_a_missing_folder_is_named(monkeypatch):
    monkeypatch.delenv("PICKMIX_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"birch1: expected birch/birch1.txt .* not set"):
        SETTINGS["birch1"].make(0)


def test_uci_rows_are_those_of_the_split(tmp_path, monkeypatch):
    monkeypatch.setenv("PICKMIX_DATA", str(tmp_path))
    folder = tmp_path / "loda" / "iris"
    folder.mkdir(parents=True)
    for file in ("normal.txt", "easy.txt"):
        np.savetxt(folder / file, np.random.default_rng(0).normal(size=(50, 4)))
    data = from_uci("iris", 2).make(0)
    assert (data.train.shape, data.held_out.shape, data.n_components) == ((32, 4), (10, 4), 2)
