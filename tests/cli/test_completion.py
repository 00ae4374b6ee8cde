"""Completion in shells: commands, options and files, and what the help says about it."""

import subprocess
import sys

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from pickmix.cli import main


def completions(*words, incomplete=""):
    """Kinds and values that are offered after some words."""
    shell = BashComplete(main, {}, "pickmix", "_PICKMIX_COMPLETE")
    found = shell.get_completions([str(word) for word in words], incomplete)
    return [(item.type, item.value) for item in found]


def test_commands():
    names = [name for _, name in completions()]
    assert names[:3] == ["fit", "score", "assign"]
    assert completions(incomplete="sc") == [("plain", "score")]
    assert ("plain", "--version") in completions(incomplete="--v")


def test_options_and_their_words():
    assert ("plain", "--model") in completions("fit", incomplete="--mo")
    words = [name for _, name in completions("fit", "--model")]
    assert words == ["auto", "gaussian", "table", "flow", "sptn"]


@pytest.mark.parametrize(
    "words",
    [
        ("fit",),
        ("score",),
        ("score", "model"),
        ("assign", "model"),
        ("impute", "model"),
        ("explain", "model"),
        ("report", "model"),
        ("sample",),
        ("fit", "--out"),
        ("score", "model", "rows.csv", "--out"),
    ],
)
def test_files_and_folders(words):
    # The shell itself completes a "file", which may be a folder.
    assert completions(*words, incomplete="mo") == [("file", "mo")]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_help_says_how_to_switch_it_on(shell):
    assert f"_PICKMIX_COMPLETE={shell}_source pickmix" in CliRunner().invoke(main, ["-h"]).output


def test_the_script_for_a_shell_and_the_list_need_no_module_of_a_command():
    code = (
        "import os, sys\n"
        "from pickmix.cli import main\n"
        "try:\n"
        "    main(prog_name='pickmix')\n"
        "finally:\n"
        "    print(sorted({'numpy', 'sklearn', 'numba'} & set(sys.modules)), file=sys.stderr)\n"
    )
    for environment, expected in (
        ({"_PICKMIX_COMPLETE": "bash_source"}, "complete -o nosort -F _pickmix_completion pickmix"),
        (
            {"_PICKMIX_COMPLETE": "bash_complete", "COMP_WORDS": "pickmix ", "COMP_CWORD": "1"},
            "plain,score",
        ),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        )
        assert expected in done.stdout
        assert done.stderr == "[]\n"
