"""What `pickmix fit` says about a model before and after the fit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pickmix.cli.whole_tables import take
from pickmix.data.typed_tables import TypedTable
from pickmix.estimators.flow_mixture import FlowMixture
from pickmix.estimators.gaussian_mixture import GaussianMixture
from pickmix.estimators.table_mixture import TableMixture

# Scoring every row costs rows x components; beyond this some rows must do.
MOST_EVALUATIONS = 10**9
# A flow or a tree costs about so many Gaussians.
_COST_OF_DEPTH = 20


def name_parts(model: Any) -> str:
    """Name what a model that is not fitted yet consists of."""
    if isinstance(model, GaussianMixture | TableMixture):
        return f"{model.n_components:,} {model.covariance_type} components"
    if isinstance(model, FlowMixture):
        # How many there will be, "auto" chooses later.
        number = "" if isinstance(model.n_components, str) else f"{model.n_components:,} "
        return f"{number}flows of {_count(model.n_layers, 'layer')}"
    return (
        f"a network of {_count(model.n_layers, 'layer')}, {_children(model.n_children)}"
        f"{_count(model.n_partitions, 'part')} per product"
    )


def _children(numbers: int | str | tuple[int, ...]) -> str:
    """The numbers of children of a network that is not fitted yet."""
    if isinstance(numbers, str):
        return ""
    if isinstance(numbers, int):
        return f"{_count(numbers, 'child')} per sum and "
    return f"{' and '.join(f'{number:,}' for number in numbers)} children per sum and "


def _count(number: int, thing: str) -> str:
    plural = {"child": "children"}.get(thing, f"{thing}s")
    return f"{number:,} {thing if number == 1 else plural}"


def measure(model: Any, rows: Any, n_all: int) -> tuple[float, str]:
    """Log-likelihood per row, on all rows if there is time, and the name of the rows used.

    `rows` are those of all `n_all` rows that are in memory.
    """
    n_rows = rows.n_rows if isinstance(rows, TypedTable) else rows.shape[0]
    these = "all rows" if n_rows == n_all else f"{n_rows:,} of the rows"
    if isinstance(model, GaussianMixture):
        if n_rows * model.n_components <= MOST_EVALUATIONS:
            return model.score(rows), these
        return model.lower_bound_, "a sample of rows"
    per_row = _evaluated_per_row(model)
    affordable = max(1000, MOST_EVALUATIONS // per_row)
    if n_rows <= affordable:
        return model.score(rows), these
    # The fit's last measurement is not of the parameters that it kept.
    some = np.sort(np.random.default_rng(0).choice(n_rows, affordable, replace=False))
    chosen = take(rows, some) if isinstance(rows, TypedTable) else rows[some]
    return model.score(chosen), f"{affordable:,} of the rows"


def _evaluated_per_row(model: Any) -> int:
    """What a row costs, in Gaussians."""
    if isinstance(model, TableMixture):
        return model.n_components
    return _COST_OF_DEPTH * int(
        model.n_components_ if isinstance(model, FlowMixture) else model.n_paths_
    )


def summary(
    model: Any,
    shape: tuple[int, int],
    log_likelihood: float,
    measured_on: str,
    true_log_likelihood: float | None,
    by_pieces: bool = False,
) -> list[tuple[str, str]]:
    """Names and values of the summary of a fit to rows of a shape (N, D).

    If rows are read piece by piece, a pass may be one over a sample.
    """
    n_rows, n_columns = shape
    closed_form = isinstance(model, GaussianMixture | TableMixture)
    # A slice, as a fit interrupted twice has no record at all; its sums are then zero.
    last = model.trace_[-1:]
    passes = float(last["epoch"].sum())
    lines = [("rows", f"{n_rows:,}"), ("columns", f"{n_columns:,}")]
    lines += _parts(model, int(last["live_components"].sum()))
    lines.append(("log-likelihood per row", f"{log_likelihood:.4f}  ({measured_on})"))
    if true_log_likelihood is not None:
        lines.append(("the true mixture's", f"{true_log_likelihood:.4f}"))
    if not closed_form:
        lines.append(("validation log-likelihood", _number(model.best_validation_, 4)))
        lines.append(("that of the start", _number(model.start_validation_, 4)))
    acceptance = float(last["acceptance"].sum())
    # It is 1 where nothing can be refused, and says nothing there.
    if acceptance != 1.0:
        lines.append(("acceptance", _number(acceptance, 3)))
    lines += [("passes", f"{passes:.1f}"), ("steps", f"{model.n_steps_:,}")]
    if closed_form and not by_pieces:
        n_evaluations = getattr(model, "mixture_", model).n_component_evaluations_
        evaluations = n_evaluations / (n_rows * passes) if passes else 0.0
        lines.append(("components per row and pass", f"{evaluations:.1f}"))
    lines.append(("seconds of work", f"{float(last['seconds'].sum()):.2f}"))
    if not closed_form:
        lines.append(("seconds of the start", f"{model.start_seconds_:.2f}"))
        lines.append(("seconds of compilation", f"{model.compile_seconds_:.2f}"))
    return [*lines, ("outcome", model.outcome_)]


def _parts(model: Any, n_live: int) -> list[tuple[str, str]]:
    if isinstance(model, GaussianMixture | TableMixture | FlowMixture):
        n_components = model.n_components
        if isinstance(model, FlowMixture):
            n_components = model.n_components_
        parts = [("components", f"{n_components:,}"), ("live components", f"{n_live:,}")]
        if isinstance(model, FlowMixture):
            parts.append(("layers", f"{model.n_layers:,}"))
        return parts
    return [
        ("children by layer", ", ".join(map("{:,}".format, model.n_children_))),
        ("live children of the root", f"{n_live:,}"),
        ("partitions", f"{model.n_partitions:,}"),
        ("layers", f"{model.n_layers:,}"),
        ("trees", _large(model.n_trees_)),
    ]


def _large(number: int) -> str:
    # Networks have more trees than floats can count.
    return f"{number:,}" if number < 10**12 else f"about 10^{math.log10(number):.0f}"


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
