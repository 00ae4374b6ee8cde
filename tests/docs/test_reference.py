"""The reference lists every public name and every verb, and no others."""

import importlib
import re

import click
import pytest
from pages import DOCS

import pickmix
from pickmix.cli import main

MODULES = (
    "pickmix",
    "pickmix.callbacks",
    "pickmix.data.mixsim",
    "pickmix.plotting",
    "pickmix.selection.schedules",
)
# Shown as text, not as a page of its own.
AS_TEXT = {"pickmix": {"__version__"}}


def listed():
    """Names that the pages of the reference list, by module."""
    names = {}
    for page in sorted((DOCS / "reference").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for module, block in re.findall(r"currentmodule:: (\S+)\n(.*?)```", text, re.DOTALL):
            found = re.findall(r"^   (\w+)$", block, re.MULTILINE)
            names.setdefault(module, []).extend(found)
    return names


def public_names(module):
    """`__all__`, or what is defined there without an underscore."""
    module = importlib.import_module(module)
    if hasattr(module, "__all__"):
        return set(module.__all__)
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    }


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_lists_all_names_of_a_module(module):
    names = listed()[module]
    assert sorted(names) == sorted(public_names(module) - AS_TEXT.get(module, set()))


def test_the_names_of_other_modules_are_there():
    for module, names in listed().items():
        for name in names:
            assert hasattr(importlib.import_module(module), name), (module, name)


def test_all_names_of_pickmix_have_a_docstring():
    for name in pickmix.__all__:
        if name != "__version__":
            assert getattr(pickmix, name).__doc__, name


def test_the_reference_shows_the_help_of_every_verb():
    text = (DOCS / "reference/command-line.md").read_text(encoding="utf-8")
    shown = re.findall(r"```\{pickmix-help\} ?(.*)\n", text)
    context = click.Context(main)
    expected = [""]
    for verb in main.list_commands(context):
        expected.append(verb)
        command = main.get_command(context, verb)
        if isinstance(command, click.Group):
            expected += [f"{verb} {name}" for name in command.list_commands(context)]
    assert sorted(shown) == sorted(expected)


def test_the_page_on_the_command_line_names_every_verb():
    text = (DOCS / "howto/command-line.md").read_text(encoding="utf-8")
    table = "".join(line for line in text.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", table)) == set(main.list_commands(click.Context(main)))
