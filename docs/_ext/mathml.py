"""Formulas as MathML, which browsers draw by themselves: no script has to be fetched for them."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml


def _visit_inline(writer: Any, node: nodes.Element) -> None:
    writer.body.append(tex2mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def _visit_block(writer: Any, node: nodes.Element) -> None:
    writer.body.append(writer.starttag(node, "div", CLASS="math"))
    writer.body.append(tex2mathml(node.astext(), as_block=True))
    writer.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Offer the renderer under the name `mathml`."""
    app.add_html_math_renderer("mathml", (_visit_inline, None), (_visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
