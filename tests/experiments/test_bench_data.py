"""Data of the benches: drawn rows, files, and real tables."""

import numpy as np
import pytest

from pickmix.data import mixsim, rotated
from pickmix_experiments import bench_data, uci
from pickmix_experiments.bench_data import (
    COMPONENTS,
    SETTINGS,
    TABLES,
    choose,
    ellipsoids,
    from_file,
    from_mixsim,
    from_uci,
    setting_of,
    split_rows,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of data with two small tables and a UCI set in it, and nothing anywhere else."""
    (tmp_path / "tables").mkdir()
    rng = np.random.default_rng(0)
    rows = rng.normal(50.0, 7.0, size=(200, 3)).astype(np.float32)
    np.savez(tmp_path / "tables" / "skin.npz", X=rows)
    np.savez(tmp_path / "tables" / "bike.npz", X=rng.integers(0, 9, size=(60, 2), dtype=np.int16))
    iris = tmp_path / "loda" / "iris"
    iris.mkdir(parents=True)
    for file in ("normal.txt", "easy.txt"):
        np.savetxt(iris / file, rng.normal(size=(50, 4)))
    monkeypatch.setenv("PICKMIX_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "scikit-learn"))
    monkeypatch.setattr(uci, "_BASE_ADDRESS", "file:///nowhere")
    return tmp_path


def test_names_of_settings_and_tables():
    four = ["separated", "overlapping", "separated-power", "overlapping-power"]
    sets = [f"{name}-{K}" for name in ("magic-telescope", "pendigits") for K in (50, 200)]
    synthetic = [f"k{K}-{kind}" for K in (300, 1000) for kind in four]
    assert list(SETTINGS) == ["small", "mixsim", *synthetic, "birch1", *sets, "k10000"]
    assert [name for name, setting in SETTINGS.items() if not setting.dense] == ["k10000"]
    assert SETTINGS["k1000-overlapping-power"].summary == (
        "ellipsoids in the unit cube, D = 8, K = 1,000, N = 200,000, width 0.2, power-law weights"
    )
    files = "shuttle cytometry kegg-directed bike elevators uk-accidents mammography kin40k "
    files += "tamielectric skin kdd-log"
    names = ("iris", "wine", "breast-cancer", "digits", "diabetes", "california-housing")
    assert list(TABLES) == [*files.split(), *uci.NAMES, *(f"sklearn-{name}" for name in names)]
    assert not set(SETTINGS) & {f"{name}-k{K}" for name in TABLES for K in COMPONENTS}


@pytest.mark.parametrize("make", [from_mixsim, ellipsoids])
def test_drawn_rows_and_their_truth(make, monkeypatch):
    weights = {"weights": "power"} if make is ellipsoids else {}
    setting = make("tiny", 2, 3, 50, 0.1, **weights)
    monkeypatch.setattr(bench_data, "HELD_OUT_ROWS", 40)
    first, again, other = setting.make(0), setting.make(0), setting.make(1)
    assert (first.train.shape, first.held_out.shape, first.n_components) == ((50, 2), (40, 2), 3)
    np.testing.assert_array_equal(first.train, again.train)
    assert not np.array_equal(first.train, other.train)
    assert not np.isin(first.held_out[:, 0], first.train[:, 0]).any()
    generate = mixsim.generate if make is from_mixsim else rotated.generate
    truth = generate(3, 2, 0.1, **weights, random_state=np.random.default_rng(0))
    np.testing.assert_allclose(first.true_log_density, truth.score_samples(first.held_out))


def test_rows_of_a_file_are_split_and_standardised(tmp_path, monkeypatch):
    monkeypatch.setenv("PICKMIX_DATA", str(tmp_path))
    rows = np.random.default_rng(0).normal(50.0, 7.0, size=(100, 2))
    np.savetxt(tmp_path / "rows.txt", rows)
    data = from_file("tiny", "rows.txt", "made up", 5).make(3)
    shuffled = rows[np.random.default_rng(3).permutation(100)]
    expected = (shuffled - shuffled[:80].mean(axis=0)) / shuffled[:80].std(axis=0)
    np.testing.assert_allclose(data.train, expected[:80])
    np.testing.assert_allclose(data.held_out, expected[80:])
    assert data.true_log_density is None
    monkeypatch.delenv("PICKMIX_DATA")
    with pytest.raises(FileNotFoundError, match=r"birch1: expected birch/birch1.txt .* not set"):
        SETTINGS["birch1"].make(0)


def test_rows_of_tables_are_shuffled_split_and_standardised(folder, monkeypatch):
    train, held_out = TABLES["skin"].split()
    assert (train.shape, held_out.shape) == ((150, 3), (50, 3))
    assert train.dtype == held_out.dtype == np.float64
    rows = np.load(folder / "tables" / "skin.npz")["X"].astype(np.float64)
    rows = rows[np.random.default_rng(0).permutation(200)]
    expected = (rows - rows[:150].mean(axis=0)) / rows[:150].std(axis=0)
    np.testing.assert_allclose(np.concatenate([train, held_out]), expected)
    monkeypatch.setattr(bench_data, "MOST_TRAINING_ROWS", 30)
    monkeypatch.setattr(bench_data, "MOST_HELD_OUT_ROWS", 15)
    train, held_out = split_rows("made-up", np.random.default_rng(0).normal(size=(100, 2)))
    assert (train.shape, held_out.shape) == ((30, 2), (15, 2))


def test_constant_columns():
    # Equal numbers whose mean is not exactly one of them.
    rows = np.column_stack([np.full(100, 0.1), np.arange(100.0)])
    train, held_out = split_rows("made-up", rows)
    assert not train[:, 0].any()
    assert not held_out[:, 0].any()
    train, held_out = TABLES["sklearn-digits"].split()
    assert (train.shape, held_out.shape) == ((1347, 61), (450, 61))


@pytest.mark.usefixtures("folder")
def test_rows_of_uci_sets():
    data = from_uci("iris", 2).make(0)
    assert (data.train.shape, data.held_out.shape, data.n_components) == ((32, 4), (10, 4), 2)
    data, split = setting_of(TABLES["iris"], 2).make(3), uci.load("iris", "paper")
    np.testing.assert_array_equal(data.train, split.train)
    np.testing.assert_array_equal(data.held_out, split.test)


@pytest.mark.usefixtures("folder")
def test_rows_decide_on_the_numbers_of_components():
    choice = choose([TABLES["bike"], TABLES["skin"]], (32, 8, 8, 11, 12))
    names = [setting.name for setting in choice.settings]
    # 45 and 150 rows to fit.
    assert names == ["bike-k8", "bike-k11", "skin-k8", "skin-k11", "skin-k12", "skin-k32"]
    assert choice.too_few_rows == {"bike": [12, 32]}
    assert choice.missing == {}


def test_tables_that_cannot_be_read_are_missing_with_a_reason(folder, monkeypatch):
    tables = folder / "tables"
    (tables / "shuttle.npz").write_bytes(b"no archive")
    np.savez(tables / "kin40k.npz", Y=np.zeros((9, 2)))
    np.savez(tables / "kdd-log.npz", X=np.full((9, 2), np.nan))
    np.savez(tables / "elevators.npz", X=np.zeros((1, 2)))
    names = ["shuttle", "kin40k", "kdd-log", "elevators", "cytometry", "wine", "bike"]
    choice = choose([TABLES[name] for name in (*names, "sklearn-california-housing")], [8])
    assert [setting.name for setting in choice.settings] == ["bike-k8"]
    assert set(choice.missing) == {*names, "sklearn-california-housing"} - {"bike"}
    assert choice.missing["cytometry"] == (
        "expected tables/cytometry.npz in the folder that the environment variable PICKMIX_DATA "
        "names, but there is no such file"
    )
    assert choice.missing["wine"] == "found its files nowhere."
    assert "expected an array X, got Y" in choice.missing["kin40k"]
    assert choice.missing["kdd-log"].startswith("expected finite numbers")
    assert choice.missing["elevators"] == "expected at least 2 rows, got 1"
    # No empty cache of scikit-learn's was made.
    assert not (folder / "scikit-learn").exists()
    monkeypatch.delenv("PICKMIX_DATA")
    assert choose([TABLES["skin"]], [8]).missing["skin"].endswith("but it is not set")
