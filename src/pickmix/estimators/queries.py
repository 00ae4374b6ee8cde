"""What every mixture has: queries by its log-densities and posteriors, and a card in notebooks."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from html import escape
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn import get_config
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from pickmix.fitting.loop import Outcome
from pickmix.inputs.errors import warn_caller

_ENDS = {
    "converged": "converged",
    "max_iter": "reached max_iter",
    "max_steps": "reached max_steps",
    "max_time": "reached max_time",
    "callback": "ended by a callback",
    "interrupted": "interrupted",
    "singular_covariance": "stopped: singular covariance",
    "non_finite": "stopped: values that are not finite",
}
# Parameters that do not describe the model, and may be long.
_NOT_SHOWN = ("callbacks", "verbose")
_FIRST = ("n_components", "n_children")
_MOST_COMPONENTS, _MOST_COLUMNS, _MOST_POINTS = 5, 5, 200
_WIDTH, _HEIGHT = 240, 84


class DensityQueries:
    """Queries of an estimator that has `score_samples`, `top_components` and `_n_parameters`.

    In notebooks, once fitted, it is a card of HTML; others are shown as by scikit-learn. The card
    loads nothing: no script, link or picture. All text is escaped.
    ``sklearn.set_config(display="text")`` turns it off, as it does for scikit-learn's estimators.
    """

    score_samples: Callable[[ArrayLike], np.ndarray]
    top_components: Callable[[ArrayLike, int], tuple[np.ndarray, np.ndarray]]
    _n_parameters: Callable[[], int]

    def _repr_html_inner(self) -> str:
        # scikit-learn's `_repr_html_` is a property that returns this method, or raises.
        try:
            check_is_fitted(self)
        except NotFittedError:
            return str(super()._repr_html_inner())  # type: ignore[misc]
        return _card(self)

    def _repr_mimebundle_(self, **keywords: Any) -> dict[str, str]:
        bundle = {"text/plain": repr(self)}
        if get_config()["display"] == "diagram":
            bundle["text/html"] = self._repr_html_inner()
        return bundle

    def score(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Mean log-density per row, weighted by `sample_weight` if given."""
        return weighted_mean(self.score_samples(X), sample_weight)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Most probable component of each row, (N,)."""
        return np.asarray(self.top_components(X, 1)[0][:, 0].astype(np.int64))

    def bic(self, X: ArrayLike) -> float:
        """Bayesian information criterion on X; lower is better."""
        scores = np.asarray(self.score_samples(X))
        return -2.0 * float(scores.sum()) + self._n_parameters() * float(np.log(scores.shape[0]))

    def aic(self, X: ArrayLike) -> float:
        """Akaike information criterion on X; lower is better."""
        return -2.0 * float(self.score_samples(X).sum()) + 2.0 * self._n_parameters()


def weighted_mean(scores: np.ndarray, sample_weight: ArrayLike | None) -> float:
    """Mean of scores (N,), weighted if weights are given."""
    if sample_weight is None:
        return float(scores.mean())
    weights = _check_sample_weight(
        sample_weight, scores, dtype=np.float64, ensure_non_negative=True
    )
    if not weights.any():
        raise ValueError("sample_weight must hold a positive weight, got only zeros.")
    return float(weights @ scores / weights.sum())


def warn_about_outcome(mixture: Any) -> None:
    outcome, category = mixture.outcome_, ConvergenceWarning
    if outcome == Outcome.MAX_ITER and mixture.annealing is None and mixture.tol > 0.0:
        message = (
            f"The log-likelihood still rose by more than tol={mixture.tol!r} after "
            f"max_iter={mixture.max_iter} passes. Increase max_iter or tol."
        )
        values = mixture.trace_["log_likelihood"][-2:]
        if values.size < 2 or values[1] - values[0] <= mixture.tol:
            message = (
                f"max_iter={mixture.max_iter} passes were too few to see whether the "
                "log-likelihood has settled. Increase max_iter."
            )
    elif outcome == Outcome.SINGULAR:
        message = (
            "The fit ended early: a component's covariance became singular, and its last good "
            f"value was kept. Increase reg_covar (now {mixture.reg_covar!r}) or decrease "
            f"n_components (now {mixture.n_components_})."
        )
    elif outcome == Outcome.NON_FINITE:
        message = "The fit ended early: the log-likelihood was not finite. Rescale X."
    elif outcome == Outcome.INTERRUPTED:
        category = UserWarning
        message = f"The fit was interrupted after {mixture.n_steps_} steps; the model is usable."
    else:
        return
    warn_caller(message, category)


# Cards in notebooks.


def changed_parameters(estimator: Any) -> list[tuple[str, str]]:
    """Names and values of the parameters that are not at their defaults, sizes first."""
    given = estimator.get_params(deep=False)
    defaults = inspect.signature(type(estimator)).parameters
    shown = []
    for name in sorted(given, key=lambda name: (name not in _FIRST, name)):
        text = repr(given[name])
        if name not in _NOT_SHOWN and text != repr(defaults[name].default):
            shown.append((name, text if len(text) <= 40 else text[:37] + "..."))
    return shown


def typical_values(
    estimator: Any, members: np.ndarray, most: int
) -> tuple[Sequence[str], list[list[str]]]:
    """Names of the first columns, and rows of texts: means, rates, or the most probable level.

    Deep components have no centre, so there are none.
    """
    if not hasattr(estimator, "merge_tree"):
        return [], []
    columns, centres = estimator._columns, estimator.model_.typical()[members]
    return columns.all_labels[:most], columns.texts(centres, most)


def _card(estimator: Any) -> str:
    name = escape(type(estimator).__name__)
    style = resources.files("pickmix.estimators").joinpath("card.css").read_text("utf-8")
    parameters = ", ".join(f"{name}={value}" for name, value in changed_parameters(estimator))
    facts = "".join(
        f'<tr><th scope="row">{escape(what)}</th><td>{escape(value)}</td></tr>'
        for what, value in _facts(estimator)
    )
    return (
        f'<style>\n{style}</style><div class="pickmix-card" role="group" '
        f'aria-label="{name}, fitted" tabindex="0">'
        f'<p class="pm-head"><b>{name}</b><code>{escape(parameters)}</code></p>'
        f'<div class="pm-body"><table>{facts}</table>{_components(estimator)}{_trace(estimator)}'
        "</div></div>"
    )


def _facts(estimator: Any) -> list[tuple[str, str]]:
    """Names and values that describe the result of a fit."""
    trace: Any = getattr(estimator, "trace_", ())
    last: Any = trace[-1] if len(trace) else None
    live = "" if last is None else f", {int(last['live_components']):,} of them live"
    facts = [("components", f"{estimator.weights_.shape[0]:,}{live}")]
    n_rows = getattr(estimator, "n_rows_seen_", None)
    n_columns = getattr(estimator, "n_features_in_", None)
    if n_columns is not None:
        size = f"{n_columns:,} columns" if n_columns != 1 else "1 column"
        facts.append(("data", size if n_rows is None else f"{n_rows:,.0f} rows, {size}"))
    if last is not None:
        of = " of encoded rows" if hasattr(estimator, "schema_") else ""
        facts.append(("log-likelihood per row", f"{last['log_likelihood']:.4f}{of}"))
    best = getattr(estimator, "best_validation_", math.nan)
    if math.isfinite(best):
        facts.append(("on validation rows", f"{best:.4f}"))
    ended = _ENDS.get(str(getattr(estimator, "outcome_", "")))
    if ended:
        n_passes = getattr(estimator, "n_iter_", 0)
        seconds = 0.0 if last is None else float(last["seconds"])
        seconds += float(getattr(estimator, "start_seconds_", 0.0))
        passes = "1 pass" if n_passes == 1 else f"{n_passes:,} passes"
        facts.append(("fit", f"{ended}, {passes} in {seconds:.3g} s"))
    return facts


def _components(estimator: Any) -> str:
    """A table of the heaviest components."""
    weights = np.asarray(estimator.weights_)
    members = np.argsort(-weights, kind="stable")[:_MOST_COMPONENTS]
    names, rows = typical_values(estimator, members, _MOST_COLUMNS)
    number = 'class="pm-number"'
    heads = "".join(
        f'<th scope="col" {number} title="{escape(name)}">{escape(name)}</th>' for name in names
    )
    lines = ""
    for place, member in enumerate(members.tolist()):
        width = round(60 * float(weights[member]) / float(weights[members[0]]))
        cells = "".join(f"<td {number}>{escape(v)}</td>" for v in (rows[place] if rows else ()))
        lines += (
            f'<tr><th scope="row" {number}>{member}</th><td {number}>{weights[member]:.3g}</td>'
            f'<td><span class="pm-bar" style="width:{width}px"></span></td>{cells}</tr>'
        )
    return (
        f'<table class="pm-components"><tr><th scope="col" {number}>component</th>'
        f'<th scope="col" {number}>weight</th><td></td>{heads}</tr>{lines}</table>'
    )


def _trace(estimator: Any) -> str:
    """Curves of the trace, if it has two records."""
    trace: Any = getattr(estimator, "trace_", None)
    curves = []
    for name in ("log_likelihood", "validation"):
        # Models of version 0.1 have no validation.
        if trace is not None and name in trace.dtype.names:
            kept = trace[np.isfinite(trace[name])]
            if len(kept) >= 2:
                few = np.unique(np.linspace(0, len(kept) - 1, _MOST_POINTS).astype(np.int64))
                curves.append((name.replace("_", "-"), kept["epoch"], kept[name], few))
    if not curves:
        return ""
    values = np.concatenate([values for _, _, values, _ in curves])
    highest, lowest = float(values.max()), float(values.min())
    # First steps may be so low that nothing else would be seen.
    spread = highest - float(np.median(values))
    if spread > 0.0:
        lowest = max(lowest, highest - 6.0 * spread)
    first = min(float(passes[0]) for _, passes, _, _ in curves)
    last = max(float(passes[-1]) for _, passes, _, _ in curves)
    lines = ""
    for _, passes, values, few in curves:
        x = (passes[few] - first) / max(last - first, 1e-12) * _WIDTH
        share = np.clip((highest - values[few]) / max(highest - lowest, 1e-12), 0.0, 1.0)
        points = zip(x, 16 + share * (_HEIGHT - 34), strict=True)
        listed = " ".join(f"{across:.1f},{down:.1f}" for across, down in points)
        kind = ' class="pm-second"' if lines else ""
        lines += f'<polyline{kind} points="{listed}"/>'
    names = [name for name, *_ in curves]
    title = f"{' and '.join(names)} by pass"
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{title}"><title>{title}</title>'
        f'<text x="0" y="10">{highest:.4g}</text>'
        f'<text x="{_WIDTH}" y="10" text-anchor="end">{" / ".join(names)}</text>'
        f'<text x="0" y="{_HEIGHT - 4}">{lowest:.4g}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT - 4}" text-anchor="end">pass {last:.4g}</text>'
        f"{lines}</svg>"
    )
