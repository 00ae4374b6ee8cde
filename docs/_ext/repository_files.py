"""Links from a page to files of the repository that are not pages become downloads.

Pages link to results and scripts as `../benchmarks/...`, which works where Markdown is read in the
repository. On the site such a file is handed out beside the pages.
"""

from __future__ import annotations

import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+(?:benchmarks|examples)/[^)#]+\.\w+)\)")


def as_downloads(text: str) -> str:
    """The text of a page, with links to results and scripts as downloads."""
    return _LINK.sub(lambda m: f"{{download}}`{m[1].replace('`', '')} <{m[2]}>`", text)


def _read(app: Any, name: str, source: list[str]) -> None:
    source[0] = as_downloads(source[0])


def setup(app: Any) -> dict[str, bool]:
    """Change pages as they are read."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
