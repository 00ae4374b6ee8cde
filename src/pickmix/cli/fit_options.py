"""What can be set on the command line of `pickmix fit`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pickmix.cli.console import WordOrNumber, columns_option, key_option
from pickmix.cli.models import DEEP, EVERY, ModelOption, model_option, word_option

GAUSSIAN, FLOW, SPTN = ("gaussian",), ("flow",), ("sptn",)
FLOW_COMPONENTS = 32

_OPTIONS = [
    # Every model.
    click.option(
        "--model",
        type=click.Choice(EVERY),
        default="gaussian",
        show_default=True,
        cls=ModelOption,
        help="Gaussians, real NVP flows, or a sum-product-transform network.",
    ),
    word_option(
        "--algorithm",
        "algorithm",
        "em (and sgd) visits all components; tsaem and mhsaem only a few per row. em, mcsaem and "
        "mhsaem are for every model, sgd for flow and sptn, the others for gaussian.",
    ),
    word_option(
        "--proposal",
        "proposal",
        "For mhsaem: how a row finds the components it tries. auto is for gaussian.",
    ),
    model_option(
        "--samples", parameter="n_samples", type=int, metavar="M", help="Draws per row and visit."
    ),
    model_option(
        "--batch-size",
        parameter="batch_size",
        type=WordOrNumber(int, "auto", "all"),
        help="Rows per step. auto is for gaussian, all for flow and sptn.",
    ),
    model_option(
        "--annealing",
        parameter="annealing",
        type=click.Choice(["anti"]),
        help="Flatten posteriors first and sharpen them later, as the paper does.",
    ),
    word_option(
        "--init",
        "init_params",
        "How to choose a start. data (k-means) is for flow and sptn, k-means++ and "
        "random_from_data for gaussian.",
    ),
    model_option(
        "--max-steps",
        parameter="max_steps",
        type=int,
        help="Steps: exactly so many for gaussian, at most for flow and sptn.",
    ),
    model_option("--max-time", parameter="max_time", type=float, help="Seconds of work at most."),
    model_option(
        "--tol",
        parameter="tol",
        type=float,
        help="Stop when the log-likelihood per row rises by less.",
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
    # Gaussians, and what they share with flows.
    model_option(
        "--components",
        parameter="n_components",
        models=GAUSSIAN + FLOW,
        type=click.IntRange(min=1),
        help="K, the number of components.",
        default=f"rows / 100, at most 500; flow: {FLOW_COMPONENTS}",
    ),
    model_option(
        "--covariance",
        parameter="covariance_type",
        models=GAUSSIAN,
        type=click.Choice(["full", "tied", "diag", "spherical"]),
        help="Shape of the components; tied: one for all.",
    ),
    model_option(
        "--step-size",
        parameter="step_size",
        models=GAUSSIAN,
        type=WordOrNumber(float, "auto", "paper"),
        help="How far a step moves towards its batch, in (0, 1].",
    ),
    model_option(
        "--max-iter",
        parameter="max_iter",
        models=GAUSSIAN,
        type=int,
        help="Passes over the rows at most.",
    ),
    model_option(
        "--reg-covar",
        parameter="reg_covar",
        models=GAUSSIAN,
        type=float,
        help="Added to every component's variances.",
    ),
    model_option(
        "--jobs",
        parameter="n_jobs",
        models=GAUSSIAN,
        type=int,
        help="Threads.",
        default="all cores",
    ),
    # Models that are fitted by gradients.
    model_option(
        "--layers",
        parameter="n_layers",
        models=DEEP,
        type=int,
        help="Coupling layers of a flow, or layers of sum nodes.",
    ),
    model_option(
        "--learning-rate",
        parameter="learning_rate",
        models=DEEP,
        type=WordOrNumber(float, "cosine"),
        help="Adam's; cosine falls from 0.001 to zero over the steps.",
    ),
    model_option(
        "--gradient-clip",
        parameter="gradient_clip",
        models=DEEP,
        type=float,
        help="Largest norm of a step's gradient.",
        default="none",
    ),
    model_option(
        "--validation-fraction",
        parameter="validation_fraction",
        models=DEEP,
        type=float,
        help="Share of the rows that is watched and not learnt from; 0 for none.",
    ),
    model_option(
        "--patience",
        parameter="patience",
        models=DEEP,
        type=WordOrNumber(int, "never"),
        help="Stop when so many evaluations in a row have not risen by --tol; never: make all "
        "steps.",
    ),
    model_option(
        "--dtype",
        parameter="dtype",
        models=DEEP,
        type=click.Choice(["float32", "float64"]),
        help="What the model computes in.",
    ),
    model_option(
        "--hidden",
        parameter="hidden",
        models=FLOW,
        type=int,
        help="Width of the hidden layers.",
    ),
    model_option(
        "--children",
        parameter="n_children",
        models=SPTN,
        type=int,
        help="Children of every sum node.",
    ),
    model_option(
        "--partitions",
        parameter="n_partitions",
        models=SPTN,
        type=int,
        help="Parts of every product; 1 makes no products.",
    ),
    click.option(
        "--no-transforms",
        is_flag=True,
        cls=ModelOption,
        models=SPTN,
        help="A plain sum-product network, with exact marginals and conditionals.",
    ),
    # Files and output.
    columns_option,
    key_option,
    click.option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("pickmix-model"),
        show_default=True,
        help="Folder for the model, fit.png and trace.csv.",
    ),
    click.option("--quiet", is_flag=True, help="Print nothing but notes and errors."),
    click.option("--no-plot", is_flag=True, help="Leave out fit.png."),
]


def fit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command all of these options, in this order."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
