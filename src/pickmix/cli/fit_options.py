"""The options of `pickmix fit`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pickmix.cli.console import WordOrNumber
from pickmix.cli.models import (
    CLOSED_FORM,
    DEEP,
    EVERY,
    NO_TRANSFORMS,
    ModelOption,
    model_option,
    word_option,
)
from pickmix.cli.reading import place_options

TABLE, FLOW, SPTN = ("table",), ("flow",), ("sptn",)


class NumberOfComponents(click.ParamType[int | str]):
    """A number from 1, or auto."""

    name = "auto|integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse one value."""
        return value if value == "auto" else click.IntRange(min=1).convert(value, param, ctx)


class NumbersOfChildren(NumberOfComponents):
    """The same, or a number for each layer: 32,4."""

    name = "auto|integer|integer,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse one value."""
        if "," not in value:
            return super().convert(value, param, ctx)
        number = click.IntRange(min=1)
        return tuple(number.convert(part.strip(), param, ctx) for part in value.split(","))


_OPTIONS: list[Callable[..., Any]] = [
    # Every model.
    click.option(
        "--model",
        type=click.Choice(["auto", *EVERY]),
        default="auto",
        show_default=True,
        cls=ModelOption,
        help="Gaussians, components for columns of all types, real NVP flows, or a "
        "sum-product-transform network. auto: gaussian for numbers without gaps, and for data that "
        "are read piece by piece; else table.",
    ),
    word_option(
        "--algorithm",
        "algorithm",
        "em (and sgd) visits all components; tsaem and mhsaem only a few per row. em, mcsaem and "
        "mhsaem are for every model, sgd for flow and sptn, the others for gaussian and table.",
    ),
    word_option(
        "--proposal",
        "proposal",
        "For mhsaem: how candidate components of a row are drawn. auto is for gaussian and table.",
    ),
    model_option("--samples", "n_samples", int, "Draws per row and visit.", metavar="M"),
    model_option(
        "--batch-size",
        "batch_size",
        WordOrNumber(int, "auto", "all"),
        "Rows per step. auto is for gaussian and table, all for flow and sptn.",
    ),
    model_option(
        "--annealing",
        "annealing",
        click.Choice(["anti"]),
        "Flatten posteriors first and sharpen them later, as the paper does.",
    ),
    word_option(
        "--init",
        "init_params",
        "How to choose a start. gaussian (a Gaussian mixture, what auto means there) and data "
        "(k-means) are for flow and sptn, k-means++ and random_from_data for gaussian and table.",
    ),
    model_option(
        "--max-steps",
        "max_steps",
        int,
        "Number of steps: exactly this for gaussian and table, at most this for flow and sptn.",
    ),
    model_option("--max-time", "max_time", float, "Most seconds of work."),
    model_option(
        "--reg-covar",
        "reg_covar",
        float,
        "Added to the variances of every Gaussian; for flow and sptn, of those at the start.",
    ),
    model_option(
        "--tol", "tol", float, "Stop when the log-likelihood per row rises by less than this."
    ),
    click.option(
        "--seed",
        "random_state",
        type=int,
        default=0,
        show_default=True,
        cls=ModelOption,
        help="Random seed.",
    ),
    model_option(
        "--checkpoint",
        "checkpoint",
        click.Path(file_okay=False),
        "Folder for checkpoints. If the fit was killed or ended early, the same command resumes "
        "from the last one.",
        metavar="FOLDER",
    ),
    model_option(
        "--checkpoint-every",
        "checkpoint_every",
        float,
        "Seconds between checkpoints.",
        metavar="SECONDS",
    ),
    # Models in closed form, and what they share with flows.
    model_option(
        "--components",
        "n_components",
        NumberOfComponents(),
        "K, the number of components. auto, for flow only, chooses among 1, 2, 4, ..., 128 by rows "
        "that the fit does not learn from.",
        CLOSED_FORM + FLOW,
        "rows / 100, at most 500 (gaussian and table); auto (flow)",
    ),
    model_option(
        "--covariance",
        "covariance_type",
        click.Choice(["full", "tied", "diag", "spherical"]),
        "Covariances of the components (for table: of numbers and dates); tied: one for all.",
        CLOSED_FORM,
    ),
    model_option(
        "--step-size",
        "step_size",
        WordOrNumber(float, "auto", "paper"),
        "How far a step moves towards its batch, in (0, 1].",
        CLOSED_FORM,
    ),
    model_option("--max-iter", "max_iter", int, "Most passes over the rows.", CLOSED_FORM),
    model_option("--jobs", "n_jobs", int, "Threads.", CLOSED_FORM, "all cores"),
    click.option(
        "--kind",
        "schema",
        multiple=True,
        metavar="NAME=KIND",
        cls=ModelOption,
        models=TABLE,
        help="Kind of a column, if the one that was found is wrong: number, integer, count, "
        "boolean, category, date or skip. May be given several times.",
    ),
    model_option(
        "--max-levels",
        "max_levels",
        click.IntRange(min=1),
        "Most levels of a category with probabilities of their own; the rarest others share one.",
        TABLE,
    ),
    # Models that are fitted by gradients.
    model_option(
        "--layers", "n_layers", int, "Coupling layers of a flow, or layers of sum nodes.", DEEP
    ),
    model_option(
        "--learning-rate",
        "learning_rate",
        WordOrNumber(float, "cosine"),
        "Learning rate of Adam; cosine falls from 0.001 to zero over the steps.",
        DEEP,
    ),
    model_option(
        "--gradient-clip",
        "gradient_clip",
        float,
        "Largest norm of a step's gradient.",
        DEEP,
        "none",
    ),
    model_option(
        "--validation-fraction",
        "validation_fraction",
        float,
        "Share of the rows for validation, which the fit does not learn from; 0 for none.",
        DEEP,
    ),
    model_option(
        "--patience",
        "patience",
        WordOrNumber(int, "never"),
        "Stop after so many evaluations without a rise by --tol; never: make all steps.",
        DEEP,
    ),
    model_option(
        "--dtype",
        "dtype",
        click.Choice(["float32", "float64"]),
        "Precision of the computation.",
        DEEP,
    ),
    model_option("--hidden", "hidden", int, "Width of the hidden layers.", FLOW),
    model_option(
        "--children",
        "n_children",
        NumbersOfChildren(),
        "Children of every sum node, or one number per layer, from the root down, as in 32,4. auto "
        "chooses the number of the root as for flow, and takes 4 below.",
        SPTN,
    ),
    model_option(
        "--partitions", "n_partitions", int, "Parts of every product; 1: no products.", SPTN
    ),
    model_option(
        "--transforms",
        "transforms",
        click.Choice(["triangular", "rotations", NO_TRANSFORMS]),
        "Affine maps between the sums: triangular (fast), rotations (the paper's), or none: a "
        "plain sum-product network with exact marginals and conditionals, which takes rows with "
        "gaps.",
        SPTN,
    ),
    click.option(
        "--no-transforms",
        is_flag=True,
        cls=ModelOption,
        models=SPTN,
        help="The same as --transforms none.",
    ),
    # Files and output.
    place_options,
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        default=Path("pickmix-model"),
        show_default=True,
        help="Folder for the model, trace.csv, fit.png and report.html; a name ending in .npz "
        "makes one file with the model alone.",
    ),
    click.option(
        "--keep",
        is_flag=True,
        help="If Ctrl-C ends the fit, let its model replace an earlier one in --out. Without it, "
        "the earlier model stays and the interrupted one is saved beside it.",
    ),
    click.option("--quiet", "-q", is_flag=True, help="Print notes and errors only."),
    click.option("--no-plot", is_flag=True, help="Do not draw fit.png."),
    click.option("--no-report", is_flag=True, help="Leave out report.html."),
]


def fit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command all of these options, in this order."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
