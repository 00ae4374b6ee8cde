"""The page of a report: a template, a style sheet and scripts, with the numbers embedded."""

from __future__ import annotations

import html
import re
from importlib import resources
from typing import Any

from pickmix.reporting.plain import embeddable

# Scripts in the order in which they run: later ones use what earlier ones define.
_SCRIPTS = (
    "base.js",
    "clusters.js",
    "charts.js",
    "map.js",
    "tree.js",
    "table.js",
    "details.js",
    "columns.js",
    "unusual.js",
    "main.js",
)

# Halves of characters, from texts that were read with the wrong encoding: UTF-8 has no place for
# them.
_SURROGATES = re.compile("[\ud800-\udfff]")


def _read(name: str) -> str:
    return resources.files("pickmix.reporting").joinpath("assets", name).read_text("utf-8")


def render(payload: dict[str, Any]) -> str:
    """Fill the template: one text without any reference to another file."""
    script = "\n".join(_read(name) for name in _SCRIPTS)
    parts = {
        "TITLE": html.escape(str(payload["title"])),
        "STYLE": _read("report.css"),
        "SCRIPT": f"(() => {{\n'use strict';\n{script}\n}})();",
        "DATA": embeddable(payload),
    }
    text = _read("report.html")
    # Filled from pieces, so that nothing is looked for in what was filled in.
    pieces = text.split("@@")
    page = "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", page)
