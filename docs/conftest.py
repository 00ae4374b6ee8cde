"""What pytest runs here: the code on the pages, each in a folder of its own."""

import os
import sys

import pytest

# Let JAX compile in a hurry; read when it is imported.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"

# Settings and extensions of Sphinx, and what it makes, are not pages.
collect_ignore = ["conf.py", "conftest.py", "check_site.py"]
collect_ignore_glob = ["_build/*", "_ext/*", "auto_examples/*", "reference/generated/*"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Files that a page writes do not end up in the repository; figures are closed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    yield
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close("all")
