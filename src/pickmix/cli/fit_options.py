"""Kinds of model for `pickmix fit`, and its options: the fields of their estimators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from pickmix.cli.data import data_options, names_in
from pickmix.estimators.flow_mixture import FlowMixture
from pickmix.estimators.gaussian_mixture import INIT_PARAMS, GaussianMixture
from pickmix.estimators.sum_product_transform_network import SumProductTransformNetwork
from pickmix.estimators.table_mixture import TableMixture
from pickmix.fitting import settings as closed_form_settings
from pickmix.gradient import settings


@dataclass(frozen=True)
class Kind:
    """A kind of model: its estimator, and the words that some of its parameters take."""

    estimator: type
    words: dict[str, tuple[str, ...]]

    @functools.cached_property
    def defaults(self) -> dict[str, Any]:
        return {field.name: field.default for field in fields(self.estimator)}


_CLOSED_FORM_WORDS: dict[str, tuple[str, ...]] = {
    "algorithm": closed_form_settings.ALGORITHMS,
    "proposal": closed_form_settings.PROPOSALS,
    "init_params": INIT_PARAMS,
}
_DEEP_WORDS: dict[str, tuple[str, ...]] = {
    "algorithm": settings.ALGORITHMS,
    "proposal": settings.PROPOSALS,
    "init_params": settings.STARTS,
}
KINDS = {
    "gaussian": Kind(GaussianMixture, _CLOSED_FORM_WORDS),
    "table": Kind(TableMixture, _CLOSED_FORM_WORDS),
    "flow": Kind(FlowMixture, _DEEP_WORDS),
    "sptn": Kind(SumProductTransformNetwork, _DEEP_WORDS),
}
CLOSED_FORM, DEEP = ("gaussian", "table"), ("flow", "sptn")
# Parameters that only tables have.
OF_TABLES = ("schema", "max_levels", "missing_values", "gap_levels")
# Parameters whose None is a word on the command line, and what --transforms calls False.
_WORDS_FOR_NONE = {"batch_size": "all", "patience": "never"}
_NO_TRANSFORMS = "none"


class WordOrNumber(click.ParamType[Any]):
    """One of some words, or a number; or several numbers from 1, as in 32,4."""

    def __init__(self, number: Any, *words: str, several: bool = False) -> None:
        self.number, self.words, self.several = number, words, several
        name = "number" if number is float else "integer"
        self.name = "|".join((*words, name, f"{name},...") if several else (*words, name))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in self.words:
            return value
        if self.several and "," in value:
            return tuple(self.number.convert(part.strip(), param, ctx) for part in value.split(","))
        if isinstance(self.number, click.ParamType):
            return self.number.convert(value, param, ctx)
        try:
            return self.number(value)
        except ValueError:
            self.fail(f"expected {self.name}, got {value!r}", param, ctx)


class ModelOption(click.Option):
    """An option of some kinds of model; without it they have their own defaults."""

    def __init__(self, *args: Any, models: tuple[str, ...] = tuple(KINDS), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.models = models


class SectionedCommand(click.Command):
    """A command whose help shows options by the kinds of model that they belong to."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        options = [option for option in self.get_params(ctx) if isinstance(option, click.Option)]
        for option in sorted(options, key=lambda option: not isinstance(option, ModelOption)):
            record = option.get_help_record(ctx)
            if record is not None:
                sections.setdefault(_section(option), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _section(option: click.Option) -> str:
    if not isinstance(option, ModelOption):
        return "Files and output"
    every = option.models == tuple(KINDS)
    return "Every model" if every else f"With --model {_listed(option.models, 'or')}"


def _listed(names: Iterable[str], conjunction: str) -> str:
    *first, last = names
    return f"{', '.join(first)} {conjunction} {last}" if first else last


def _option(
    names: str,
    type: Any,
    help: str,
    default: str | None = None,
    models: tuple[str, ...] | None = None,
    **settings: Any,
) -> Callable[..., Any]:
    """Make an option of the models that have a parameter; its help has their defaults.

    `names` are those of the parameter and, if it has another, of the option: n_samples|--samples.
    """
    parameter, _, name = names.partition("|")
    if models is None:
        models = tuple(model for model, kind in KINDS.items() if parameter in kind.defaults)
    default = _shown_defaults(parameter, models) if default is None else default
    help = f"{help} [default: {default}]" if default else help
    if type is str:
        # Models differ in the words they take.
        words = dict.fromkeys(word for model in models for word in KINDS[model].words[parameter])
        type = click.Choice(list(words))
    settings |= {"type": type, "help": help, "models": models}
    name = name or f"--{parameter.replace('_', '-')}"
    return click.option(name, parameter, cls=ModelOption, **settings)


def _shown_defaults(parameter: str, models: tuple[str, ...]) -> str:
    """Defaults of a parameter for people: `2; flow and sptn: 1`, or empty if they are None."""
    by_value: dict[str, list[str]] = {}
    for model in models:
        value = KINDS[model].defaults[parameter]
        if value is not None:
            by_value.setdefault(str(value), []).append(model)
    if len(by_value) == 1 and len(next(iter(by_value.values()))) == len(models):
        return next(iter(by_value))
    return "; ".join(f"{value} ({_listed(names, 'and')})" for value, names in by_value.items())


_OPTIONS: list[Callable[..., Any]] = [
    click.option(
        "--model",
        type=click.Choice(["auto", *KINDS]),
        default="auto",
        show_default=True,
        cls=ModelOption,
        help="Gaussians, components for columns of all types, real NVP flows, or a "
        "sum-product-transform network. auto: gaussian for numbers without gaps, not all whole "
        "in a column, and for data that are read piece by piece; else table.",
    ),
    _option(
        "algorithm",
        str,
        "em (and sgd) visits all components; tsaem and mhsaem only a few per row. em, mcsaem and "
        "mhsaem are for every model, sgd for flow and sptn, the others for gaussian and table.",
    ),
    _option(
        "proposal",
        str,
        "For mhsaem: how candidate components of a row are drawn. auto is for gaussian and table.",
    ),
    _option("n_samples|--samples", int, "Draws per row and visit.", metavar="M"),
    _option(
        "batch_size",
        WordOrNumber(int, "auto", "all"),
        "Rows per step. auto is for gaussian and table, all for flow and sptn.",
    ),
    _option(
        "annealing",
        click.Choice(["anti"]),
        "Flatten posteriors first and sharpen them later, as the paper does.",
    ),
    _option(
        "init_params|--init",
        str,
        "How to choose a start. gaussian (a Gaussian mixture, what auto means there) and data "
        "(k-means) are for flow and sptn, k-means++ and random_from_data for gaussian and table.",
    ),
    _option(
        "max_steps",
        int,
        "Number of steps: exactly this for gaussian and table, at most this for flow and sptn.",
    ),
    _option("max_time", float, "Most seconds of work."),
    _option(
        "reg_covar",
        float,
        "Added to the variances of every Gaussian; for flow and sptn, of those at the start.",
    ),
    _option("tol", float, "Stop when the log-likelihood per row rises by less than this."),
    click.option(
        "--seed",
        "random_state",
        type=int,
        default=0,
        show_default=True,
        cls=ModelOption,
        help="Random seed.",
    ),
    _option(
        "checkpoint",
        click.Path(file_okay=False),
        "Folder for checkpoints. If the fit was killed or ended early, the same command resumes "
        "from the last one.",
        metavar="FOLDER",
    ),
    _option("checkpoint_every", float, "Seconds between checkpoints.", metavar="SECONDS"),
    _option(
        "n_components|--components",
        WordOrNumber(click.IntRange(min=1), "auto"),
        "K, the number of components. auto chooses: components are split and merged as long as "
        "that explains left-out rows better; flow tries a quarter of them as well.",
        "auto, or 500 for the embedded example",
    ),
    _option(
        "max_components",
        click.IntRange(min=1),
        "Most components that --components auto may choose.",
        models=CLOSED_FORM,
    ),
    _option(
        "covariance_type|--covariance",
        click.Choice(["full", "tied", "diag", "spherical", "low_rank", "auto"]),
        "Covariances of the components (for table: of numbers and dates); tied: one for all; "
        "low_rank: for many columns; auto: by held-out rows, not for table.",
    ),
    _option(
        "rank",
        WordOrNumber(click.IntRange(min=0), "auto"),
        "Most directions of a low_rank covariance; those that may be chance are dropped.",
    ),
    _option(
        "axes",
        click.Choice(["auto", "columns", "principal"]),
        "Where the noise of low_rank covariances is independent.",
    ),
    _option(
        "step_size",
        WordOrNumber(float, "auto", "paper"),
        "How far a step moves towards its batch, in (0, 1].",
        models=CLOSED_FORM,
    ),
    _option("max_iter", int, "Most passes over the rows."),
    _option("n_jobs|--jobs", int, "Threads.", "all cores"),
    _option(
        "schema|--kind",
        None,
        "Kind of a column, if the one that was found is wrong: number, integer, ordinal, "
        "periodic, count, boolean, category, date or skip. May be given several times.",
        multiple=True,
        metavar="NAME=KIND",
    ),
    _option(
        "missing_values|--missing",
        None,
        "Words that mean a missing value, besides the usual ones: ?,unknown,-999.",
        "",
        metavar="WORD,...",
    ),
    _option(
        "gap_levels",
        None,
        "Categories in which a missing cell is an answer: one more level, kept by draws and fills.",
        "",
        metavar="NAME,...",
    ),
    _option(
        "max_levels",
        click.IntRange(min=1),
        "Most levels of a category that have a probability each; the rarest others share one.",
    ),
    _option(
        "column_transform",
        click.Choice(["auto", "none"]),
        "auto: frequent values of numbers have a probability each, and the others are "
        "mapped to normal scores; none: numbers as they are.",
    ),
    _option(
        "dependence",
        click.Choice(["tree", "none"]),
        "tree: categories may depend on each other inside a component; none: they do not.",
    ),
    _option("n_layers|--layers", int, "Coupling layers of a flow, or layers of sum nodes."),
    _option(
        "learning_rate",
        WordOrNumber(float, "cosine"),
        "Learning rate of Adam; cosine falls from 0.001 to zero over the steps.",
    ),
    _option("gradient_clip", float, "Largest norm of a step's gradient.", "none"),
    _option(
        "validation_fraction",
        float,
        "Share of the rows for validation, which the fit does not learn from; 0 for none.",
    ),
    _option(
        "patience",
        WordOrNumber(int, "never"),
        "Stop after so many evaluations without a rise by --tol; never: make all steps.",
    ),
    _option("dtype", click.Choice(["float32", "float64"]), "Precision of the computation."),
    _option("hidden", int, "Width of the hidden layers."),
    _option(
        "n_children|--children",
        WordOrNumber(click.IntRange(min=1), "auto", several=True),
        "Children of every sum node, or one number per layer, from the root down, as in 32,4. auto "
        "chooses the number of the root as for flow, and takes 4 below.",
    ),
    _option("n_partitions|--partitions", int, "Parts of every product; 1: no products."),
    _option(
        "transforms",
        click.Choice(["triangular", "rotations", _NO_TRANSFORMS]),
        "Affine maps between the sums: triangular (fast), rotations (the paper's), or none: a "
        "plain sum-product network with exact marginals and conditionals, which takes rows with "
        "gaps.",
    ),
    click.option(
        "--no-transforms",
        is_flag=True,
        cls=ModelOption,
        models=("sptn",),
        help="The same as --transforms none.",
    ),
    data_options,
    click.option(
        "--hold-out",
        type=click.FloatRange(0.0, 1.0, min_open=True, max_open=True),
        metavar="SHARE",
        help="Keep this share of the rows, chosen at random, out of the fit, and score and report "
        "the model by them.",
    ),
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
    return functools.reduce(lambda given, option: option(given), reversed(_OPTIONS), command)


def given_parameters(context: click.Context, model: str, values: dict[str, Any]) -> dict[str, Any]:
    """Parameters of a kind of model that were given on the command line, with words resolved.

    Options of other kinds of model, and words that this kind does not take, are refused.
    """
    options = {option.name: option for option in context.command.params}
    given = {}
    for name, value in values.items():
        if context.get_parameter_source(name) is ParameterSource.DEFAULT:
            continue
        option = options[name]
        if isinstance(option, ModelOption) and model not in option.models:
            raise ValueError(
                f"{option.opts[0]} belongs to --model {_listed(option.models, 'and')}, not to "
                f"--model {model}"
            )
        known = KINDS[model].words.get(name)
        if known is not None and value not in known:
            raise ValueError(
                f"{option.opts[0]} must be {_listed(known, 'or')} with --model {model}, "
                f"got {value!r}"
            )
        given[name] = value
    if given.pop("no_transforms", False):
        transforms = given.setdefault("transforms", _NO_TRANSFORMS)
        if transforms != _NO_TRANSFORMS:
            raise ValueError(
                f"--no-transforms means --transforms {_NO_TRANSFORMS}, got --transforms "
                f"{transforms}"
            )
    if given.get("transforms") == _NO_TRANSFORMS:
        given["transforms"] = False
    if "missing_values" in given:
        given["missing_values"] = given["missing_values"].split(",")
    if "gap_levels" in given:
        given["gap_levels"] = names_in(given["gap_levels"])
    for name in given.keys() & {"column_transform", "dependence"}:
        given[name] = None if given[name] == "none" else given[name]
    for name, word in _WORDS_FOR_NONE.items() if model in DEEP else ():
        if given.get(name) == word:
            given[name] = None
    if "checkpoint_every" in given and "checkpoint" not in given:
        raise ValueError("--checkpoint-every needs --checkpoint")
    return given
