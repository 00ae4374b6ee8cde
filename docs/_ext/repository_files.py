"""Pages as they are in the repository, and as the site wants them.

Pages link to results and scripts as `../benchmarks/...`, which works where Markdown is read in the
repository. On the site such a file is handed out beside the pages. And doctests end with an empty
line, which need not be seen.
"""

from __future__ import annotations

import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+(?:benchmarks|examples)/[^)#]+\.\w+)\)")


def as_downloads(text: str) -> str:
    """The text of a page, with links to results and scripts as downloads."""
    return _LINK.sub(lambda m: f"{{download}}`{m[1].replace('`', '')} <{m[2]}>`", text)


_LAST_LINE = re.compile(r"^( *```python\n(?:(?!```).)*?)\n\n( *```)$", re.DOTALL | re.MULTILINE)


def without_last_lines(text: str) -> str:
    """The text of a page, without empty lines at the end of Python blocks."""
    return _LAST_LINE.sub(r"\1\n\2", text)


def _read(app: Any, name: str, source: list[str]) -> None:
    source[0] = without_last_lines(as_downloads(source[0]))


def setup(app: Any) -> dict[str, bool]:
    """Change pages as they are read."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
