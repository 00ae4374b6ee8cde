"""Every `pickmix ...` on a page is a command that pickmix takes: its verb, options and values."""

import re
import shlex

import click
import pytest
from pages import blocks, pages

from pickmix.cli import main


def pickmix_commands(text):
    """Arguments of every call of pickmix in the console blocks and inline code of a page."""
    lines = [line for block in blocks(text, "console") for line in block.splitlines()]
    lines += re.findall(r"`((?:zcat \S+ \| )?pickmix [a-z][^`\n]*)`", text)
    for line in lines:
        for call in line.removeprefix("$ ").split(" | "):
            if call.startswith("pickmix "):
                yield shlex.split(call, comments=True)[1:]


def check_arguments(arguments):
    """Raise what click raises for a verb, an option or a value that is not there."""
    command, context = main, click.Context(main, info_name="pickmix")
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
        inner = command.get_command(context, name)
        if inner is None:
            raise click.UsageError(f"no verb {name!r}")
        command, context = inner, click.Context(inner, info_name=name, parent=context)
    parser = command.make_parser(context)
    values, _, _ = parser.parse_args(args=list(arguments))
    for parameter in command.params:
        value = values.get(parameter.name)
        # Files on a page need not be there.
        if not isinstance(value, str) or isinstance(parameter.type, click.Path):
            continue
        parameter.type.convert(value, parameter, context)


def snippets():
    for page in pages():
        for arguments in pickmix_commands(page.read_text(encoding="utf-8")):
            # `pickmix COMMAND --help` and `pickmix ... DATA` name no command.
            if not any(word in ("COMMAND", "...", "…") for word in arguments):
                yield pytest.param(arguments, id=f"{page.stem}: {' '.join(arguments)}"[:90])


@pytest.mark.parametrize("arguments", list(snippets()))
def test_a_snippet_is_a_command(arguments):
    check_arguments(arguments)


def test_snippets_are_found():
    page = "Say `pickmix fit x.csv`.\n```console\n$ zcat a.gz | pickmix score m - # why\n```\n"
    assert list(pickmix_commands(page)) == [["score", "m", "-"], ["fit", "x.csv"]]


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["fit", "x.csv", "--component", "3", "--colour", "red"],
        ["fit", "x.csv", "--covariance", "round"],
        ["assign", "model", "x.csv", "--top", "many"],
        ["bench", "nothing"],
    ],
)
def test_what_pickmix_does_not_take_is_found(arguments):
    with pytest.raises(click.UsageError):
        check_arguments(arguments)
