import numpy as np
import pytest

from pickmix.data import uci
from pickmix.experiments import real_tables
from pickmix.experiments.fits.bench_run import find_setting
from pickmix.experiments.real_tables import (
    COMPONENTS,
    TABLES,
    choose,
    setting_of,
    split_rows,
)
from pickmix.experiments.settings import SETTINGS


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of data with two small tables in it, and nothing anywhere else."""
    (tmp_path / "tables").mkdir()
    rng = np.random.default_rng(0)
    rows = rng.normal(50.0, 7.0, size=(200, 3)).astype(np.float32)
    np.savez(tmp_path / "tables" / "skin.npz", X=rows)
    np.savez(tmp_path / "tables" / "bike.npz", X=rng.integers(0, 9, size=(60, 2), dtype=np.int16))
    monkeypatch.setenv("PICKMIX_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "scikit-learn"))
    monkeypatch.setattr(uci, "_BASE_ADDRESS", "file:///nowhere")
    return tmp_path


def test_all_tables_are_there_under_names_of_their_own():
    files = "shuttle cytometry kegg-directed bike elevators uk-accidents mammography kin40k "
    files += "tamielectric skin kdd-log"
    sklearn = [
        f"sklearn-{name}"
        for name in ("iris", "wine", "breast-cancer", "digits", "diabetes", "california-housing")
    ]
    assert list(TABLES) == [*files.split(), *uci.NAMES, *sklearn]
    assert not set(SETTINGS) & {f"{name}-k{K}" for name in TABLES for K in COMPONENTS}


def test_rows_are_shuffled_split_and_standardised(folder):
    train, held_out = TABLES["skin"].split()
    assert (train.shape, held_out.shape) == ((150, 3), (50, 3))
    assert train.dtype == held_out.dtype == np.float64
    np.testing.assert_allclose(train.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(train.std(axis=0), 1.0)
    rows = np.load(folder / "tables" / "skin.npz")["X"].astype(np.float64)
    rows = rows[np.random.default_rng(0).permutation(200)]
    expected = (rows - rows[:150].mean(axis=0)) / rows[:150].std(axis=0)
    np.testing.assert_allclose(np.concatenate([train, held_out]), expected)


def test_large_tables_are_cut(monkeypatch):
    monkeypatch.setattr(real_tables, "MOST_TRAINING_ROWS", 30)
    monkeypatch.setattr(real_tables, "MOST_HELD_OUT_ROWS", 15)
    train, held_out = split_rows("made-up", np.random.default_rng(0).normal(size=(100, 2)))
    assert (train.shape, held_out.shape) == ((30, 2), (15, 2))


def test_a_constant_column_is_not_scaled():
    # Equal numbers whose mean is not exactly one of them.
    rows = np.column_stack([np.full(100, 0.1), np.arange(100.0)])
    train, held_out = split_rows("made-up", rows)
    assert not train[:, 0].any()
    assert not held_out[:, 0].any()


def test_sets_of_scikit_learn_lose_constant_columns():
    train, held_out = TABLES["sklearn-digits"].split()
    assert (train.shape, held_out.shape) == ((1347, 61), (450, 61))


def test_uci_rows_are_those_of_the_papers_protocol(folder):
    place = folder / "loda" / "iris"
    place.mkdir(parents=True)
    for seed, file in enumerate(("normal.txt", "easy.txt")):
        np.savetxt(place / file, np.random.default_rng(seed).normal(size=(50, 4)))
    data = setting_of(TABLES["iris"], 2).make(3)
    split = uci.load("iris", "paper")
    np.testing.assert_array_equal(data.train, split.train)
    np.testing.assert_array_equal(data.held_out, split.test)


def test_rows_decide_on_the_numbers_of_components(folder):
    choice = choose([TABLES["bike"], TABLES["skin"]], (32, 8, 8, 11, 12))
    names = [setting.name for setting in choice.settings]
    # 45 and 150 rows to fit.
    assert names == ["bike-k8", "bike-k11", "skin-k8", "skin-k11", "skin-k12", "skin-k32"]
    assert choice.too_few_rows == {"bike": [12, 32]}
    assert choice.missing == {}


def test_what_cannot_be_read_is_missing_with_its_reason(folder, monkeypatch):
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
    assert "named 'X', got Y" in choice.missing["kin40k"]
    assert choice.missing["kdd-log"].startswith("expected finite numbers")
    assert choice.missing["elevators"] == "expected at least 2 rows, got 1"
    # Nobody made a cache of scikit-learn's.
    assert not (folder / "scikit-learn").exists()
    monkeypatch.delenv("PICKMIX_DATA")
    assert choose([TABLES["skin"]], [8]).missing["skin"].endswith("but it is not set")


def test_a_run_finds_its_setting_by_name(folder):
    setting = find_setting("kegg-directed-k128")
    assert (setting.name, setting.n_components) == ("kegg-directed-k128", 128)
    assert "K = 128" in setting.summary
    assert find_setting("small") is SETTINGS["small"]
    for name in ("no-such-table-k8", "skin"):
        with pytest.raises(KeyError):
            find_setting(name)
