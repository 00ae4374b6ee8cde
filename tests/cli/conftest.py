"""Rows of numbers in files of all kinds, and a model fitted to them."""

import numpy as np
import pytest
from commands import QUICK, as_csv, run_well

from pickmix.estimators import detector
from pickmix.inputs.files import write_table


@pytest.fixture(scope="session", autouse=True)
def quick_detectors():
    """Reports have detectors, of two mixtures here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detector, "_N_MIXTURES", 2)
        yield


@pytest.fixture(scope="session")
def X():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 2)) + 6.0 * rng.integers(0, 3, size=(300, 1))
    return rows.round(4)


@pytest.fixture(scope="session")
def places(tmp_path_factory, X):
    """A folder with the same rows in several files, some with names of rows, and a model."""
    folder = tmp_path_factory.mktemp("places")
    columns = {"a": X[:, 0], "b": X[:, 1]}
    for suffix in ("csv", "csv.gz", "parquet"):
        write_table(folder / f"rows.{suffix}", columns)
    np.save(folder / "rows.npy", X)
    for number in range(3):
        rows = slice(100 * number, 100 * (number + 1))
        part = {name: values[rows] for name, values in columns.items()}
        write_table(folder / f"part-{number}.csv", part)
        write_table(folder / f"packed-{number}.csv.gz", part)
    with open(folder / "named.csv", "w") as file:
        file.write("b,who,a\n")
        file.writelines(f'{b!r},"No. {row}, x",{a!r}\n' for row, (a, b) in enumerate(X.tolist()))
    commas = "".join(f"{a!r};{b!r}\n" for a, b in X.tolist()).replace(".", ",")
    (folder / "comma.csv").write_text("a;b\n" + commas)
    run_well("fit", folder / "rows.csv", *QUICK, "--out", folder / "model")
    return folder


@pytest.fixture(scope="session")
def people():
    """A table by column, with gaps: None."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, 240)
    days = np.datetime64("2007-01-01") + rng.integers(0, 900, 240)
    columns = {
        "name": [f"No. {row}, x" for row in range(240)],
        "species": np.array(["Adelie", "Gentoo", "Chin, strap"])[group].tolist(),
        "mass": (np.array([3700, 5000, 3800])[group] + rng.normal(0, 300, 240))
        .astype(int)
        .tolist(),
        "height": (np.array([190, 217, 195])[group] + rng.normal(0, 5, 240)).round(1).tolist(),
        "born": days.astype(str).tolist(),
    }
    tagged = rng.random(240) < np.array([0.1, 0.5, 0.9])[group]
    columns["tagged"] = tagged.tolist()
    for name in ("species", "mass", "height", "born"):
        for row in np.flatnonzero(rng.random(240) < 0.08).tolist():
            columns[name][row] = None
    return columns


@pytest.fixture(scope="session")
def tables(tmp_path_factory, people):
    """A folder with people.csv, a model fitted to it, and what was printed meanwhile."""
    folder = tmp_path_factory.mktemp("tables")
    (folder / "people.csv").write_text(as_csv(people))
    options = [*QUICK, "--max-iter", "5", "--out", folder / "model"]
    result = run_well("fit", folder / "people.csv", "--id", "name", *options)
    (folder / "printed.txt").write_text(result.stdout)
    return folder
