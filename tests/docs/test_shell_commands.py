"""Commands behind a `$` on pages print what the page says; its Python is run as a doctest."""

import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from pages import DOCS, blocks, pages

from pickmix.cli import main

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# Pages with a session in the shell, on a table of penguins.
SESSIONS = ("cookbook.md", "quickstart.md")


def commands(text):
    """Pairs of a command and what it prints, from the console blocks of a page."""
    for block in blocks(text, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            yield command, printed


def run_here(command):
    result = CliRunner().invoke(main, shlex.split(command)[1:])
    assert result.exit_code == 0, (command, result.output)
    return result.stdout


def run_in_shell(command):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "LC_ALL": "C.UTF-8"}
    run = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, (command, run.stderr)
    return run.stdout


def test_commands_are_found_with_what_they_print():
    page = "```console\n$ one\n1\n2\n$ two\n```\n\n```console\n$ three\n3\n```\n"
    assert list(commands(page)) == [("one", "1\n2\n"), ("two", ""), ("three", "3\n")]


def test_no_other_page_has_a_session():
    found = [path.name for path in pages() if list(commands(path.read_text(encoding="utf-8")))]
    assert sorted(found) == sorted(SESSIONS)


@pytest.mark.parametrize("page", SESSIONS)
def test_the_shell_commands_of_a_page(page, tmp_path, monkeypatch):
    load_penguins = pytest.importorskip("palmerpenguins").load_penguins
    text = (DOCS / page).read_text(encoding="utf-8")
    penguins = load_penguins()
    names = re.search(r"penguins\.columns = \[(.*?)\]", text, re.DOTALL)[1]
    penguins.columns = re.findall(r'"(\w+)"', names)
    if 'drop(columns="year")' in text:
        penguins = penguins.drop(columns="year")
    penguins.rename_axis("bird").to_csv(tmp_path / "penguins.csv")
    found = list(commands(text))
    assert sum(command.startswith("pickmix ") for command, _ in found) >= 3
    monkeypatch.chdir(tmp_path)
    for command, printed in found:
        output = run_here(command) if command.startswith("pickmix ") else run_in_shell(command)
        assert doctest.OutputChecker().check_output(printed, output, FLAGS), (
            f"$ {command}\nexpected:\n{printed}\ngot:\n{output}"
        )
