"""The command line: `pickmix fit`, queries of a saved model, and commands of other packages."""

from __future__ import annotations

import difflib
import importlib
from importlib import metadata
from typing import Any

import click
from click.shell_completion import CompletionItem

from pickmix import __version__
from pickmix.cli.console import InputError, until_unread

# Commands: the modules that hold them, and what the list of commands says about them.
_COMMANDS = {
    "fit": ("fit", "fit a mixture to a table, and save it"),
    "score": ("queries", "log-density of each row under a saved mixture (low: an outlier)"),
    "assign": ("queries", "most probable components of each row, with their probabilities"),
    "sample": ("queries", "draw new rows from a saved mixture, also given some columns"),
    "predict": ("predict", "predict columns from the others, with quantiles"),
    "impute": ("queries", "fill in the missing cells of a table"),
    "explain": ("queries", "the most unusual rows, and the cells that make them so"),
    "detect": ("tables", "flag the unusual rows of a table, with reasons; needs no model"),
    "synthesize": ("tables", "draw rows like those of a table, and compare; needs no model"),
    "report": ("report", "one HTML file about a saved mixture: how good it is, what it has"),
    "compile": ("fit", "compile kernels before the first fit, for images and CI"),
}
# Commands of other packages, which name them in this group of entry points, and what the list says
# about those of pickmix-experiments.
_GROUP = "pickmix.commands"
_EXPERIMENTS = {
    "bench": "compare pickmix with other libraries on this machine",
    "reproduce": "draw the figures and tables of the paper behind it",
}


def _plugins() -> dict[str, metadata.EntryPoint]:
    # Looked up when needed: most commands do without reading what is installed.
    return {entry.name: entry for entry in metadata.entry_points(group=_GROUP)}


def _summaries() -> dict[str, str]:
    """Names of all commands and what they do, in the order in which people need them."""
    listed = {name: summary for name, (_, summary) in _COMMANDS.items()}
    plugins = {
        name: _EXPERIMENTS.get(name, f"from {entry.module.partition('.')[0]}")
        for name, entry in _plugins().items()
    }
    last = listed.popitem()
    return listed | plugins | dict([last])


class Commands(click.Group):
    """A group that imports the module of a command when the command is used.

    The list of commands and its completion import none of them, and are quick.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_summaries())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return self._plugin(cmd_name)
        module = importlib.import_module(f"pickmix.cli.{_COMMANDS[cmd_name][0]}")
        # A function named compile would hide Python's own.
        name = "compile_all" if cmd_name == "compile" else cmd_name
        command: click.Command = getattr(module, name)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find the command; a name that is none may be close to one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not close:
                raise
            message = f"{error.message} Did you mean {close[0]!r}?"
            raise click.UsageError(message, ctx) from error

    def _plugin(self, name: str) -> click.Command | None:
        if name in (plugins := _plugins()):
            plugin: click.Command = plugins[name].load()
            return plugin
        if name in _EXPERIMENTS:
            raise InputError(
                f"{name} needs the package pickmix-experiments: in a clone of pickmix, "
                "pip install ./experiments"
            )
        return None

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.help = _help()
        super().format_help_text(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write nothing: the page of help has the list of commands already."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        items = [
            CompletionItem(name, help=summary)
            for name, summary in _summaries().items()
            if name.startswith(incomplete)
        ]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the command line, which may print help; end quietly if that is not read."""
        with until_unread():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; end quietly if its output is not read to the end."""
        with until_unread():
            return super().invoke(ctx)


_HELP = """Mixture models with very many components.

A mixture of K Gaussians describes a table of numbers as K overlapping groups. pickmix fits
hundreds to a million of them, because it visits only a few components per row. Where Gaussians are
too simple, deep models may fit: flows and sum-product-transform networks. Tables with text, dates
and missing values have mixtures of all types of columns.

\b
Commands:
{commands}

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
  pickmix predict model people.csv --target income --quantiles 0.05,0.95
  pickmix impute model people.csv --out filled.csv
  pickmix explain model people.csv --top 5
  pickmix detect people.csv --id name --out flagged.csv
  pickmix synthesize people.csv -n 10000 --exclude name --out drawn.csv
  pickmix report model new.csv --held-out --out report.html
{examples}
\b
The Tab key completes commands, options and files in your shell after:
  eval "$(_PICKMIX_COMPLETE=bash_source pickmix)"      in ~/.bashrc
  eval "$(_PICKMIX_COMPLETE=zsh_source pickmix)"       in ~/.zshrc
  _PICKMIX_COMPLETE=fish_source pickmix | source       in ~/.config/fish/config.fish

`pickmix COMMAND --help` has the options of a command.
"""


_EXAMPLES = {
    "bench": "  pickmix bench gaussian --quick\n",
    "reproduce": "  pickmix reproduce figure-2 --repetitions 1\n",
}


def _help() -> str:
    summaries = _summaries()
    commands = "\n".join(f"  {name:<10} {summary}" for name, summary in summaries.items())
    examples = "".join(example for name, example in _EXAMPLES.items() if name in summaries)
    return _HELP.format(commands=commands, examples=examples)


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="pickmix")
def main() -> None:
    """Run the command line."""
