"""The command line: `pickmix fit`, `score`, `assign`, `sample`, `bench`, `reproduce`."""

from __future__ import annotations

import click

from pickmix import __version__
from pickmix.cli.bench_command import bench
from pickmix.cli.fit_command import fit
from pickmix.cli.queries import assign, sample, score
from pickmix.cli.reproduce_command import reproduce


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="pickmix")
def main() -> None:
    """Mixture models with very many components.

    A mixture of K Gaussians describes a table of numbers as K overlapping groups. pickmix fits
    hundreds to a million of them by visiting only a few per row. Deep models take the place of
    the Gaussians where those are too simple: flows that bend, and sum-product-transform networks.
    Six verbs:

    \b
      fit        find the mixture that explains a table, and save it
      score      how probable is each row under a saved mixture (low: an outlier)
      assign     which components does each row belong to, with which probability
      sample     draw new rows from a saved mixture
      bench      compare pickmix with its rivals on this machine
      reproduce  redraw figures and tables of the paper behind it

    DATA is a table of numbers: .npy, .npz, .csv (.tsv, .txt) or .parquet. MODEL is the folder that
    fit made.

    \b
    Examples:
      pickmix fit                                    an embedded example: 500 components
      pickmix fit rows.csv --components 1000 --out model
      pickmix fit rows.csv --model flow --components 64 --out model
      pickmix score model new.csv --out scores.csv
      pickmix assign model new.csv --top 3 --out components.parquet
      pickmix sample model -n 10000 --out made.npy
      pickmix bench gaussian --quick
      pickmix reproduce figure-2 --repetitions 1

    `pickmix VERB --help` tells the rest.
    """


for command in (fit, score, assign, sample, bench, reproduce):
    main.add_command(command)
