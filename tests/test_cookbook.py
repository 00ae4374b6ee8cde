"""The shell commands of the cookbook print what it says; its Python is run as a doctest."""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def commands(text):
    """Pairs of a command and what it prints, from the console blocks of a page."""
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            yield command, printed


def test_commands_are_found_with_what_they_print():
    page = "```console\n$ one\n1\n2\n$ two\n```\n\n```console\n$ three\n3\n```\n"
    assert list(commands(page)) == [("one", "1\n2\n"), ("two", ""), ("three", "3\n")]


def test_the_shell_commands_of_the_cookbook(tmp_path):
    load_penguins = pytest.importorskip("palmerpenguins").load_penguins
    text = (ROOT / "docs/cookbook.md").read_text(encoding="utf-8")
    penguins = load_penguins()
    names = re.search(r"penguins\.columns = \[(.*?)\]", text)[1]
    penguins.columns = re.findall(r'"(\w+)"', names)
    penguins.rename_axis("bird").to_csv(tmp_path / "penguins.csv")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    found = list(commands(text))
    assert sum(command.startswith("pickmix ") for command, _ in found) >= 4
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


def test_the_links_and_pictures_of_the_new_pages_are_there():
    for page in ("cookbook", "tables"):
        text = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
        titles = [title.lower() for title in re.findall(r"^## (.*)", text, re.MULTILINE)]
        anchors = {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles}
        for target in re.findall(r"\]\((.*?)\)", text):
            if target.startswith("#"):
                assert target[1:] in anchors, (page, target)
            elif not target.startswith("http"):
                assert (ROOT / "docs" / target.partition("#")[0]).exists(), (page, target)
