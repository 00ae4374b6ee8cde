"""The pages of the documentation, as text."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# What Sphinx makes.
_MADE = ("_build", "auto_examples", "generated")


def pages():
    """README, and all pages in docs/ that are written by hand."""
    found = [path for path in sorted(DOCS.rglob("*.md")) if not set(_MADE) & set(path.parts)]
    return [ROOT / "README.md", *found]


def blocks(text, language):
    """Contents of the code blocks in a language, indented ones too."""
    pattern = rf"^( *)```{language}\n(.*?)^\1```"
    for indent, block in re.findall(pattern, text, re.DOTALL | re.MULTILINE):
        yield "\n".join(line.removeprefix(indent) for line in block.splitlines()) + "\n"
