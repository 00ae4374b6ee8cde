"""The page for people who come from scikit-learn names every parameter and method."""

import inspect
import re

import sklearn.mixture
from pages import DOCS

from pickmix import GaussianMixture

TEXT = (DOCS / "howto/from-scikit-learn.md").read_text(encoding="utf-8")


def first_cells(title):
    """Names in the first column of the table below a title, with what the second one says."""
    section = TEXT.partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (\w+)", section, re.MULTILINE)
    return {name: same for cell, same in rows for name in re.findall(r"`(\w+)`", cell)}


def parameters(estimator):
    return set(inspect.signature(estimator).parameters)


def test_every_parameter_is_in_the_table():
    ours, theirs = parameters(GaussianMixture), parameters(sklearn.mixture.GaussianMixture)
    table = first_cells("Parameters")
    assert set(table) == ours | theirs
    for name, same in table.items():
        expected = {"new"} if name not in theirs else {"yes", "nearly", "more"}
        assert same in (expected if name in ours else {"no"}), name


def test_every_method_is_in_the_table():
    def methods(estimator):
        return {
            name
            for name, value in inspect.getmembers(estimator, callable)
            if not name.startswith(("_", "set_", "get_"))
        }

    ours, theirs = methods(GaussianMixture), methods(sklearn.mixture.GaussianMixture)
    table = first_cells("Methods")
    assert set(table) == ours
    assert theirs <= ours
    assert all((same == "new") == (name not in theirs) for name, same in table.items())
