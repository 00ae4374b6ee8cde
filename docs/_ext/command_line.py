"""A directive that shows what `pickmix VERB --help` prints."""

from __future__ import annotations

from typing import Any

import click
from docutils import nodes
from docutils.parsers.rst import Directive

from pickmix.cli import main

_WIDTH = 84


def help_text(verbs: list[str]) -> str:
    """What `pickmix COMMAND ... --help` prints, in lines that fit on a page."""
    command: click.Command = main
    settings = {**main.context_settings, "max_content_width": _WIDTH, "terminal_width": _WIDTH}
    context = click.Context(main, info_name="pickmix", **settings)
    for verb in verbs:
        assert isinstance(command, click.Group)
        inner = command.get_command(context, verb)
        if inner is None:
            raise ValueError(f"pickmix has no verb {verb!r}")
        command = inner
        context = click.Context(command, info_name=verb, parent=context)
    return command.get_help(context)


class PickmixHelp(Directive):
    """`{pickmix-help} bench gaussian`: the help of that verb, as text."""

    optional_arguments = 2
    has_content = False

    def run(self) -> list[nodes.Node]:
        """The help as a block of text."""
        text = help_text(self.arguments)
        return [nodes.literal_block(text, text, language="text", classes=["help"])]


def setup(app: Any) -> dict[str, bool]:
    """Offer the directive."""
    app.add_directive("pickmix-help", PickmixHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
