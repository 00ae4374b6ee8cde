"""Cards of fitted estimators in notebooks."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from sklearn import get_config
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

#: How a fit ended, in words.
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
_MOST_COMPONENTS = 5
_MOST_COLUMNS = 5
_MOST_POINTS = 200
_WIDTH, _HEIGHT = 240, 84
# Colours are those of the page around, where JupyterLab, VS Code or the site's theme name them, and
# else the system's light or dark.
_STYLE = """<style>
.pickmix-card{--pm-text:var(--jp-content-font-color0,var(--vscode-editor-foreground,
var(--pst-color-text-base,#1b1f24)));--pm-back:var(--jp-layout-color0,
var(--vscode-editor-background,var(--pst-color-background,#fff)));--pm-line:#3b82c4;
--pm-soft:color-mix(in srgb,var(--pm-text) 72%,var(--pm-back));
--pm-edge:color-mix(in srgb,var(--pm-text) 22%,var(--pm-back));
color:var(--pm-text);background:var(--pm-back);border:1px solid var(--pm-edge);border-radius:6px;
display:inline-block;max-width:100%;box-sizing:border-box;padding:10px 14px;overflow-x:auto;
font:13px/1.45 system-ui,sans-serif}
@media (prefers-color-scheme:dark){.pickmix-card{--pm-text:var(--jp-content-font-color0,
var(--vscode-editor-foreground,var(--pst-color-text-base,#e8eaed)));--pm-back:var(
--jp-layout-color0,var(--vscode-editor-background,var(--pst-color-background,#15181c)))}}
.pickmix-card .pm-head{margin:0 0 8px}
.pickmix-card .pm-head b{font-size:15px;margin-right:8px}
.pickmix-card code{background:none;color:var(--pm-soft);font:12px/1.45 ui-monospace,monospace;
padding:0}
.pickmix-card .pm-body{display:flex;flex-wrap:wrap;gap:10px 28px;align-items:flex-start}
.pickmix-card table{border-collapse:collapse;margin:0;color:inherit;background:none;
font:inherit;width:auto}
.pickmix-card tr,.pickmix-card tr:nth-child(odd),.pickmix-card tr:hover{background:none}
.pickmix-card th,.pickmix-card td{padding:1px 12px 1px 0;border:0;text-align:left;
vertical-align:baseline;color:inherit;white-space:nowrap}
.pickmix-card .pm-components th,.pickmix-card .pm-components td{max-width:140px;overflow:hidden;
text-overflow:ellipsis}
.pickmix-card th{font-weight:normal;color:var(--pm-soft)}
.pickmix-card .pm-number{text-align:right;font-variant-numeric:tabular-nums}
.pickmix-card .pm-bar{display:inline-block;height:9px;background:var(--pm-line);border-radius:1px}
.pickmix-card svg{display:block}
.pickmix-card svg text{fill:var(--pm-soft);font:11px system-ui,sans-serif}
.pickmix-card polyline{fill:none;stroke:var(--pm-line);stroke-width:1.5;
vector-effect:non-scaling-stroke}
.pickmix-card polyline.pm-second{stroke:#d9822b;stroke-dasharray:4 2}
</style>"""


def changed_parameters(estimator: Any) -> list[tuple[str, str]]:
    """Names and values of the parameters that are not at their defaults, sizes first.

    >>> from pickmix import GaussianMixture
    >>> changed_parameters(GaussianMixture(5, algorithm="em", tol=1e-3))
    [('n_components', '5'), ('algorithm', "'em'")]
    """
    given = estimator.get_params(deep=False)
    defaults = inspect.signature(type(estimator)).parameters
    shown = []
    for name in sorted(given, key=lambda name: (name not in _FIRST, name)):
        text = repr(given[name])
        if name not in _NOT_SHOWN and text != repr(defaults[name].default):
            shown.append((name, text if len(text) <= 40 else text[:37] + "..."))
    return shown


def facts(estimator: Any) -> list[tuple[str, str]]:
    """Names and values that describe the result of a fit."""
    trace: Any = getattr(estimator, "trace_", None)
    has_trace = trace is not None and len(trace) > 0
    weights = estimator.weights_
    n_live = int(trace["live_components"][-1]) if has_trace else None
    components = f"{weights.shape[0]:,}"
    if n_live is not None:
        components += f", {n_live:,} of them live"
    found = [("components", components)]
    n_rows = getattr(estimator, "n_rows_seen_", None)
    n_columns = getattr(estimator, "n_features_in_", None)
    if n_columns is not None:
        size = f"{n_columns:,} columns" if n_columns != 1 else "1 column"
        found.append(("data", size if n_rows is None else f"{n_rows:,.0f} rows, {size}"))
    if has_trace:
        of = " of encoded rows" if hasattr(estimator, "schema_") else ""
        found.append(("log-likelihood per row", f"{trace['log_likelihood'][-1]:.4f}{of}"))
    best = getattr(estimator, "best_validation_", math.nan)
    if math.isfinite(best):
        found.append(("on validation rows", f"{best:.4f}"))
    ended = _ENDS.get(str(getattr(estimator, "outcome_", "")), "")
    if ended:
        n_passes = getattr(estimator, "n_iter_", 0)
        seconds = float(trace["seconds"][-1]) if has_trace else 0.0
        seconds += float(getattr(estimator, "start_seconds_", 0.0))
        passes = "1 pass" if n_passes == 1 else f"{n_passes:,} passes"
        found.append(("fit", f"{ended}, {passes} in {seconds:.3g} s"))
    return found


def curves(estimator: Any) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Curves of the trace, if it has two records: a name, passes (n,) and values (n,)."""
    trace: Any = getattr(estimator, "trace_", None)
    found: list[tuple[str, np.ndarray, np.ndarray]] = []
    if trace is None:
        return found
    for name in ("log_likelihood", "validation"):
        if name not in trace.dtype.names:
            # A model of version 0.1.
            continue
        kept = trace[np.isfinite(trace[name])]
        if kept.shape[0] >= 2:
            found.append((name.replace("_", "-"), kept["epoch"], kept[name]))
    return found


def heaviest(weights: np.ndarray, most: int) -> np.ndarray:
    """Numbers of the heaviest components, the heaviest first; equal ones by number.

    >>> heaviest(np.array([0.1, 0.5, 0.1, 0.3]), 3)
    array([1, 3, 0])
    """
    return np.argsort(-weights, kind="stable")[:most]


def typical_values(
    estimator: Any, members: np.ndarray, most: int
) -> tuple[Sequence[str], list[list[str]]]:
    """Names of the first columns, and rows of texts: means, rates, or the most probable level.

    Deep components have no centre, so there are none.
    """
    columns = getattr(estimator, "_columns", None)
    if columns is None:
        return [], []
    centres = estimator.model_.typical()[members]
    return columns.all_labels[:most], columns.texts(centres, most)


class NotebookCard:
    """Shows a fitted estimator as a card of HTML; others are shown as by scikit-learn.

    The card loads nothing: no script, link or picture. All text is escaped.
    ``sklearn.set_config(display="text")`` turns it off, as it does for scikit-learn's estimators.
    """

    def _repr_html_inner(self) -> str:
        # scikit-learn's `_repr_html_` is a property that returns this method, or is not there.
        try:
            check_is_fitted(self)
        except NotFittedError:
            return str(super()._repr_html_inner())  # type: ignore[misc]
        return card(self)

    def _repr_mimebundle_(self, **keywords: Any) -> dict[str, str]:
        bundle = {"text/plain": repr(self)}
        if get_config()["display"] == "diagram":
            bundle["text/html"] = self._repr_html_inner()
        return bundle


def card(estimator: Any) -> str:
    """A fitted estimator as HTML."""
    name = escape(type(estimator).__name__)
    parameters = ", ".join(f"{name}={value}" for name, value in changed_parameters(estimator))
    known = "".join(
        f'<tr><th scope="row">{escape(what)}</th><td>{escape(value)}</td></tr>'
        for what, value in facts(estimator)
    )
    body = f"<table>{known}</table>{_components(estimator)}{_trace(estimator)}"
    return (
        f'{_STYLE}<div class="pickmix-card" role="group" aria-label="{name}, fitted" tabindex="0">'
        f'<p class="pm-head"><b>{name}</b><code>{escape(parameters)}</code></p>'
        f'<div class="pm-body">{body}</div></div>'
    )


def _components(estimator: Any) -> str:
    weights = np.asarray(estimator.weights_)
    members = heaviest(weights, _MOST_COMPONENTS)
    names, rows = typical_values(estimator, members, _MOST_COLUMNS)
    heads = "".join(
        f'<th scope="col" class="pm-number" title="{escape(name)}">{escape(name)}</th>'
        for name in names
    )
    lines = []
    for place, member in enumerate(members.tolist()):
        share = float(weights[member])
        width = round(60 * share / float(weights[members[0]]))
        cells = "".join(
            f'<td class="pm-number">{escape(value)}</td>' for value in (rows[place] if rows else ())
        )
        lines.append(
            f'<tr><th scope="row" class="pm-number">{member}</th>'
            f'<td class="pm-number">{share:.3g}</td>'
            f'<td><span class="pm-bar" style="width:{width}px"></span></td>{cells}</tr>'
        )
    return (
        '<table class="pm-components"><tr><th scope="col" class="pm-number">component</th>'
        '<th scope="col" class="pm-number">weight</th><td></td>'
        f"{heads}</tr>{''.join(lines)}</table>"
    )


def _trace(estimator: Any) -> str:
    drawn = curves(estimator)
    if not drawn:
        return ""
    lowest, highest = _range(np.concatenate([values for _, _, values in drawn]))
    last = max(float(passes[-1]) for _, passes, _ in drawn)
    first = min(float(passes[0]) for _, passes, _ in drawn)
    lines = []
    for place, (_, passes, values) in enumerate(drawn):
        kept = np.unique(np.linspace(0, len(values) - 1, _MOST_POINTS).astype(np.int64))
        across = (passes[kept] - first) / max(last - first, 1e-12) * _WIDTH
        share = np.clip((highest - values[kept]) / max(highest - lowest, 1e-12), 0.0, 1.0)
        points = " ".join(
            f"{x:.1f},{y:.1f}" for x, y in zip(across, 16 + share * (_HEIGHT - 34), strict=True)
        )
        kind = ' class="pm-second"' if place else ""
        lines.append(f'<polyline{kind} points="{points}"/>')
    title = " and ".join(name for name, _, _ in drawn) + " by pass"
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{title}"><title>{title}</title>'
        f'<text x="0" y="10">{highest:.4g}</text>'
        f'<text x="{_WIDTH}" y="10" text-anchor="end">{" / ".join(n for n, _, _ in drawn)}</text>'
        f'<text x="0" y="{_HEIGHT - 4}">{lowest:.4g}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT - 4}" text-anchor="end">pass {last:.4g}</text>'
        f"{''.join(lines)}</svg>"
    )


def _range(values: np.ndarray) -> tuple[float, float]:
    """The range to draw, without first steps so low that nothing else would be seen.

    >>> _range(np.array([-1000.0, -3.0, -2.0, -1.5, -1.0]))
    (-7.0, -1.0)
    >>> _range(np.array([-3.0, -2.0]))
    (-3.0, -2.0)
    """
    highest, lowest = float(values.max()), float(values.min())
    spread = highest - float(np.median(values))
    return (max(lowest, highest - 6.0 * spread) if spread > 0.0 else lowest), highest
