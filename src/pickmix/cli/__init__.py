"""The command line: `pickmix fit`, the questions to a model, `bench`, `reproduce`, `compile`."""

from __future__ import annotations

import importlib
from typing import Any

import click

from pickmix import __version__
from pickmix.cli.console import until_unread

# Verbs and the modules that hold them.
_VERBS = {
    "fit": "fit_command",
    "score": "queries",
    "assign": "queries",
    "sample": "queries",
    "impute": "impute_command",
    "explain": "explain_command",
    "report": "report_command",
    "bench": "bench_command",
    "compile": "compile_command",
    "reproduce": "reproduce_command",
}


class Verbs(click.Group):
    """A group that imports a verb's module when the verb is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all verbs."""
        return sorted(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb of a name, if there is one."""
        if cmd_name not in _VERBS:
            return None
        module = importlib.import_module(f"pickmix.cli.{_VERBS[cmd_name]}")
        # A function of the name of a built-in one would hide it.
        name = "compile_all" if cmd_name == "compile" else cmd_name
        command: click.Command = getattr(module, name)
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the command line, which may print help; end quietly if that is not read."""
        with until_unread():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; end quietly if its output is not read to the end."""
        with until_unread():
            return super().invoke(ctx)


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="pickmix")
def main() -> None:
    """Mixture models with very many components.

    A mixture of K Gaussians describes a table of numbers as K overlapping groups. pickmix fits
    hundreds to a million of them by visiting only a few per row. Deep models take the place of
    the Gaussians where those are too simple: flows that bend, and sum-product-transform networks.
    Tables with text, dates and missing values have components of their own. Ten verbs:

    \b
      fit        find the mixture that explains a table, and save it
      score      how probable is each row under a saved mixture (low: an outlier)
      assign     which components does each row belong to, with which probability
      sample     draw new rows from a saved mixture, also given values of some columns
      impute     fill in the missing cells of a table
      explain    which rows are the most unusual, and which of their cells make them so
      report     one HTML file about a saved mixture: how good it is, and what is in it
      bench      compare pickmix with its rivals on this machine
      reproduce  redraw figures and tables of the paper behind it
      compile    compile kernels ahead of the first fit, for images and CI

    DATA is a table: .npy, .npz, .csv (.tsv, .txt, also .gz) or .parquet, a pattern of such files, a
    folder of Parquet files, or - for standard input; rows of numbers need not fit into memory.
    MODEL is the folder that fit made. `--out -` writes rows to standard output, messages go
    elsewhere.

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
      pickmix bench tables --quick
      pickmix reproduce figure-2 --repetitions 1

    `pickmix VERB --help` tells the rest.
    """
