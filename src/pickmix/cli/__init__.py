"""The command line: `pickmix fit`, questions to a saved model, and commands about pickmix."""

from __future__ import annotations

import importlib
from typing import Any

import click
from click.shell_completion import CompletionItem

from pickmix import __version__
from pickmix.cli.console import until_unread

# Commands: the modules that hold them, and what the list of commands says about them.
_COMMANDS = {
    "fit": ("fit_command", "fit a mixture to a table, and save it"),
    "score": ("queries", "log-density of each row under a saved mixture (low: an outlier)"),
    "assign": ("queries", "most probable components of each row, with their probabilities"),
    "sample": ("queries", "draw new rows from a saved mixture, also given some columns"),
    "impute": ("impute_command", "fill in the missing cells of a table"),
    "explain": ("explain_command", "the most unusual rows, and the cells that make them so"),
    "report": (
        "report_command",
        "one HTML file about a saved mixture: how good it is, what it has",
    ),
    "bench": ("bench_command", "compare pickmix with other libraries on this machine"),
    "reproduce": ("reproduce_command", "draw the figures and tables of the paper behind it"),
    "compile": ("compile_command", "compile kernels before the first fit, for images and CI"),
}


class Commands(click.Group):
    """A group that imports the module of a command when the command is used.

    The list of commands and its completion import none of them, and are quick.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, in the order in which people need them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, if there is one."""
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"pickmix.cli.{_COMMANDS[cmd_name][0]}")
        # A function named compile would hide Python's own.
        name = "compile_all" if cmd_name == "compile" else cmd_name
        command: click.Command = getattr(module, name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write nothing: the page of help has the list of commands already."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands and options that begin with what is typed."""
        found = [
            CompletionItem(name, help=summary)
            for name, (_, summary) in _COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the command line, which may print help; end quietly if that is not read."""
        with until_unread():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; end quietly if its output is not read to the end."""
        with until_unread():
            return super().invoke(ctx)


_LISTED = "\n".join(f"  {name:<10} {summary}" for name, (_, summary) in _COMMANDS.items())
_HELP = f"""Mixture models with very many components.

A mixture of K Gaussians describes a table of numbers as K overlapping groups. pickmix fits
hundreds to a million of them, because it visits only a few components per row. Where Gaussians are
too simple there are deep models: flows, which bend, and sum-product-transform networks. Tables with
text, dates and missing values have a model of their own.

\b
Commands:
{_LISTED}

DATA is a table: a file ending in .npy, .npz, .csv, .tsv, .txt (these may be packed: .csv.gz) or
.parquet, a pattern of such files in quotes, a folder of Parquet files, or - for standard input.
Rows of numbers need not fit into memory. MODEL is the folder or the .npz file that fit made.
With `--out -` rows go to standard output and messages to standard error.

\b
Examples:
  pickmix fit                                    an embedded example: 500 components
  pickmix fit rows.csv --components 1000 --out model
  pickmix fit rows.csv --model flow --components 64 --out model
  pickmix fit people.csv --id name --exclude phone --out model
  pickmix score model new.csv --out scores.csv
  pickmix assign model new.csv --top 3 --out components.parquet
  pickmix sample model -n 10000 --out made.npy
  pickmix impute model people.csv --out filled.csv
  pickmix explain model people.csv --top 5
  pickmix report model new.csv --held-out --out report.html
  pickmix bench gaussian --quick
  pickmix reproduce figure-2 --repetitions 1

\b
The Tab key completes commands, options and files in your shell after:
  eval "$(_PICKMIX_COMPLETE=bash_source pickmix)"      in ~/.bashrc
  eval "$(_PICKMIX_COMPLETE=zsh_source pickmix)"       in ~/.zshrc
  _PICKMIX_COMPLETE=fish_source pickmix | source       in ~/.config/fish/config.fish

`pickmix COMMAND --help` has the options of a command.
"""


@click.group(
    cls=Commands,
    help=_HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="pickmix")
def main() -> None:
    """Run the command line."""
