"""Commands behind a `$` on pages print what the page says; its Python is run as a doctest."""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import DOCS, blocks, pages

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# Pages with a session in the shell, on a table of penguins.
SESSIONS = ("cookbook.md", "quickstart.md")


def commands(text):
    """Pairs of a command and what it prints, from the console blocks of a page."""
    for block in blocks(text, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            yield command, printed


def test_commands_are_found_with_what_they_print():
    page = "```console\n$ one\n1\n2\n$ two\n```\n\n```console\n$ three\n3\n```\n"
    assert list(commands(page)) == [("one", "1\n2\n"), ("two", ""), ("three", "3\n")]


def test_no_other_page_has_a_session():
    found = [path.name for path in pages() if list(commands(path.read_text(encoding="utf-8")))]
    assert sorted(found) == sorted(SESSIONS)


@pytest.mark.parametrize("page", SESSIONS)
def test_the_shell_commands_of_a_page(page, tmp_path):
    load_penguins = pytest.importorskip("palmerpenguins").load_penguins
    text = (DOCS / page).read_text(encoding="utf-8")
    penguins = load_penguins()
    names = re.search(r"penguins\.columns = \[(.*?)\]", text, re.DOTALL)[1]
    penguins.columns = re.findall(r'"(\w+)"', names)
    if 'drop(columns="year")' in text:
        penguins = penguins.drop(columns="year")
    penguins.rename_axis("bird").to_csv(tmp_path / "penguins.csv")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    found = list(commands(text))
    assert sum(command.startswith("pickmix ") for command, _ in found) >= 3
    for command, printed in found:
        run = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "LC_ALL": "C.UTF-8"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, (command, run.stderr)
        assert doctest.OutputChecker().check_output(printed, run.stdout, FLAGS), (
            f"$ {command}\nexpected:\n{printed}\ngot:\n{run.stdout}"
        )
