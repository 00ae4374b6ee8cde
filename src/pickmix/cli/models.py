"""Kinds of model for `pickmix fit`, and options that belong to some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource

from pickmix.estimators import deep_plan, plan
from pickmix.estimators.flow_mixture import FlowMixture
from pickmix.estimators.gaussian_mixture import INIT_PARAMS, GaussianMixture
from pickmix.estimators.sum_product_transform_network import SumProductTransformNetwork
from pickmix.estimators.table_mixture import TableMixture


@dataclass(frozen=True)
class Kind:
    """A kind of model: its estimator, and the words that some of its parameters take."""

    estimator: type
    words: dict[str, tuple[str, ...]]


_DEEP_WORDS = {
    "algorithm": deep_plan.ALGORITHMS,
    "proposal": deep_plan.PROPOSALS,
    "init_params": deep_plan.STARTS,
}
_CLOSED_FORM_WORDS: dict[str, tuple[str, ...]] = {
    "algorithm": plan.ALGORITHMS,
    "proposal": plan.PROPOSALS,
    "init_params": INIT_PARAMS,
}
KINDS = {
    "gaussian": Kind(GaussianMixture, _CLOSED_FORM_WORDS),
    "table": Kind(TableMixture, _CLOSED_FORM_WORDS),
    "flow": Kind(FlowMixture, _DEEP_WORDS),
    "sptn": Kind(SumProductTransformNetwork, _DEEP_WORDS),
}
EVERY = tuple(KINDS)
CLOSED_FORM = ("gaussian", "table")
DEEP = ("flow", "sptn")
# Parameters whose None is a word on the command line.
WORDS_FOR_NONE = {"batch_size": "all", "patience": "never"}
# What --transforms calls False.
NO_TRANSFORMS = "none"


class ModelOption(click.Option):
    """An option of some kinds of model; without it they have their own defaults.

    Parameters
    ----------
    models : tuple of str
        The kinds that it belongs to.
    """

    def __init__(self, *args: Any, models: tuple[str, ...] = EVERY, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.models = models


class SectionedCommand(click.Command):
    """A command whose help shows options by the kinds of model that they belong to."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section for each set of models, and a last one for the rest."""
        sections: dict[str, list[tuple[str, str]]] = {}
        options = [option for option in self.get_params(ctx) if isinstance(option, click.Option)]
        for option in sorted(options, key=lambda option: not isinstance(option, ModelOption)):
            record = option.get_help_record(ctx)
            if record is not None:
                sections.setdefault(_section(option), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _section(parameter: click.Parameter) -> str:
    if not isinstance(parameter, ModelOption):
        return "Files and output"
    if parameter.models == EVERY:
        return "Every model"
    return f"With --model {_listed(parameter.models, 'or')}"


def _listed(names: Iterable[str], conjunction: str) -> str:
    *first, last = names
    return f"{', '.join(first)} {conjunction} {last}" if first else last


def model_option(
    name: str,
    parameter: str,
    type: click.ParamType[Any] | type[int] | type[float],
    help: str,
    models: tuple[str, ...] = EVERY,
    default: str | None = None,
    **settings: Any,
) -> Callable[..., Any]:
    """Make an option; its help has the defaults of the estimators, or `default`."""
    shown = _defaults(parameter, models) if default is None else default
    text = f"{help} [default: {shown}]" if shown else help
    return click.option(
        name, parameter, type=type, cls=ModelOption, models=models, help=text, **settings
    )


def word_option(name: str, parameter: str, help: str) -> Callable[..., Any]:
    """Make an option for a word; models differ in the words they take."""
    words = dict.fromkeys(word for kind in KINDS.values() for word in kind.words[parameter])
    return model_option(name, parameter, click.Choice(list(words)), help)


def _defaults(parameter: str, models: tuple[str, ...]) -> str:
    """Defaults of a parameter for people: `2; flow and sptn: 1`, or empty if they are None."""
    by_value: dict[str, list[str]] = {}
    for model in models:
        value = KINDS[model].estimator().get_params(deep=False)[parameter]
        if value is not None:
            by_value.setdefault(str(value), []).append(model)
    if len(by_value) == 1 and len(next(iter(by_value.values()))) == len(models):
        return next(iter(by_value))
    return "; ".join(f"{value} ({_listed(names, 'and')})" for value, names in by_value.items())


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
    if model in CLOSED_FORM and given.get("n_components") == "auto":
        raise ValueError(f"--components auto belongs to --model flow, not to --model {model}")
    if given.pop("no_transforms", False):
        chosen = given.setdefault("transforms", NO_TRANSFORMS)
        if chosen != NO_TRANSFORMS:
            raise ValueError(
                f"--no-transforms means --transforms {NO_TRANSFORMS}, got --transforms {chosen}"
            )
    if given.get("transforms") == NO_TRANSFORMS:
        given["transforms"] = False
    if model in DEEP:
        for name, word in WORDS_FOR_NONE.items():
            if given.get(name) == word:
                given[name] = None
    return given
