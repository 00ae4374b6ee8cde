"""Rows of numbers in files of all kinds, and a model fitted to them."""

import numpy as np
import pytest
from commands import QUICK, run_well

from pickmix.inputs.files import write_table


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
