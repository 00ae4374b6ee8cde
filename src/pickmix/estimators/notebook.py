"""How estimators show themselves in notebooks."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np
from sklearn import get_config
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from pickmix.estimators.notebook_facts import (
    changed_parameters,
    curves,
    facts,
    heaviest,
    typical_values,
)

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


class NotebookCard:
    """Shows a fitted estimator as a card of HTML; others are shown as by scikit-learn.

    The card holds nothing from elsewhere: no script, no link, no picture. All text is escaped.
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
    """A table of the heaviest components."""
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
    """The trace as a small picture."""
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
    """What is drawn: the first steps may lie so low that nothing else would be seen.

    Examples
    --------
    >>> _range(np.array([-1000.0, -3.0, -2.0, -1.5, -1.0]))
    (-7.0, -1.0)
    >>> _range(np.array([-3.0, -2.0]))
    (-3.0, -2.0)
    """
    highest, lowest = float(values.max()), float(values.min())
    spread = highest - float(np.median(values))
    return (max(lowest, highest - 6.0 * spread) if spread > 0.0 else lowest), highest
