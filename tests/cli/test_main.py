"""The list of commands: help, completion in shells, and commands of other packages."""

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from commands import run, run_well

import pickmix
from pickmix.cli import main

ROOT = Path(__file__).parents[2]


def completions(*words, incomplete=""):
    """Kinds and values that are offered after some words."""
    shell = BashComplete(main, {}, "pickmix", "_PICKMIX_COMPLETE")
    found = shell.get_completions([str(word) for word in words], incomplete)
    return [(item.type, item.value) for item in found]


def test_help_is_a_page():
    text = run_well("--help").output
    for verb in ("fit", "score", "assign", "sample", "impute", "explain", "report"):
        assert f"pickmix {verb}" in text
        assert "Example" in run_well(verb, "--help").output
    for shell in ("bash", "zsh", "fish"):
        assert f"_PICKMIX_COMPLETE={shell}_source pickmix" in text
    assert run_well("--version").output.split()[-1] == pickmix.__version__


def test_commands_options_and_words_are_completed():
    assert [name for _, name in completions()][:3] == ["fit", "score", "assign"]
    assert completions(incomplete="sc") == [("plain", "score")]
    assert ("plain", "--version") in completions(incomplete="--v")
    assert ("plain", "--model") in completions("fit", incomplete="--mo")
    words = [name for _, name in completions("fit", "--model")]
    assert words == ["auto", "gaussian", "table", "flow", "sptn"]


@pytest.mark.parametrize(
    "words",
    [
        *(["fit"], ["score"], ["score", "model"], ["assign", "model"], ["impute", "model"]),
        *(["explain", "model"], ["report", "model"], ["sample"], ["fit", "--out"]),
        ["score", "model", "rows.csv", "--out"],
    ],
)
def test_files_and_folders_are_completed(words):
    # The shell itself completes a "file", which may be a folder.
    assert completions(*words, incomplete="mo") == [("file", "mo")]


def test_completion_imports_nothing_that_is_slow():
    code = (
        "import sys\nfrom pickmix.cli import main\n"
        "try:\n    main(prog_name='pickmix')\n"
        "finally:\n    print(*sys.modules, file=sys.stderr)"
    )
    variables = {"_PICKMIX_COMPLETE": "bash_complete", "COMP_WORDS": "pickmix ", "COMP_CWORD": "1"}
    variables |= {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    command, environment = [sys.executable, "-c", code], os.environ | variables
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "plain,score" in done.stdout
    assert not {"numpy", "sklearn", "numba", "jax"} & set(done.stderr.split())


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install packages with these commands and no others, as pip would describe them."""

    def put(**commands):
        package = tmp_path / "other-1.0.dist-info"
        package.mkdir()
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
        lines = ["[pickmix.commands]", *(f"{name} = {place}" for name, place in commands.items())]
        (package / "entry_points.txt").write_text("\n".join(lines))
        (tmp_path / "other_package.py").write_text(
            "import click\n@click.command()\ndef hello():\n    click.echo('hello')\n"
        )
        monkeypatch.setattr(sys, "path", [str(tmp_path)])

    return put


def test_commands_of_other_packages_are_listed_and_run(install):
    install(hello="other_package:hello", bench="pickmix_experiments.bench:bench")
    text = run_well("--help").output
    assert "  bench      compare pickmix with other libraries on this machine\n" in text
    assert "  hello      from other_package\n" in text
    assert "  pickmix bench gaussian --quick\n" in text
    assert "reproduce" not in text
    assert "hello" in main.list_commands(click.Context(main))
    assert [item.value for item in main.shell_complete(click.Context(main), "he")] == ["hello"]
    assert "other_package" not in sys.modules
    assert run_well("hello").output == "hello\n"


@pytest.mark.parametrize("name", ["bench", "reproduce"])
def test_commands_that_are_not_installed_say_how_to_get_them(install, name):
    install()
    assert name not in run_well("--help").output
    result = run(name, "--help")
    assert result.exit_code == 2
    assert result.output == (
        f"Error: {name} needs the package pickmix-experiments: in a clone of pickmix, "
        "pip install ./experiments\n"
    )
    assert "No such command 'benches'" in run("benches").output


def test_the_package_of_experiments_names_its_commands():
    project = tomllib.loads((ROOT / "experiments" / "pyproject.toml").read_text())["project"]
    for name, place in project["entry-points"]["pickmix.commands"].items():
        module, attribute = place.split(":")
        assert getattr(import_module(module), attribute).name == name


def test_uci_sets_say_what_they_need(monkeypatch):
    for name in ("pickmix_experiments", "pickmix_experiments.uci"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "pickmix.data.uci", raising=False)
    with pytest.raises(ImportError, match="uci needs the package pickmix-experiments: in a clone"):
        import_module("pickmix.data.uci")
