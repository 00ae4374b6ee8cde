"""Check the pages that Sphinx made: no dead links inside, and nothing loaded from elsewhere.

python docs/check_site.py docs/_build/html
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches by itself when it shows a page.
_LOADED = {
    ("audio", "src"),
    ("embed", "src"),
    ("iframe", "src"),
    ("img", "src"),
    ("img", "srcset"),
    ("input", "src"),
    ("link", "href"),
    ("object", "data"),
    ("script", "src"),
    ("source", "src"),
    ("source", "srcset"),
    ("video", "src"),
}
# Links in the head that only name another page.
_NAMES_ONLY = {"canonical", "next", "prev", "search", "author", "index", "license"}


@dataclass
class Page(HTMLParser):
    """Anchors of a page, links to other places, and what it loads."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take down what a tag names, loads or links to."""
        values = {name: value or "" for name, value in attrs}
        for name in ("id", "name"):
            if name in values:
                self.anchors.add(values[name])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and values.get("rel", "") in _NAMES_ONLY:
            self.links.append(values.get("href", ""))
            return
        self.loaded += [values[name] for kind, name in _LOADED if kind == tag and name in values]


def read(path: Path) -> Page:
    """Parse one page."""
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def problems(folder: Path) -> tuple[int, list[str]]:
    """Number of pages, and a line for each dead link and each thing loaded from elsewhere."""
    # The theme keeps templates among its static files.
    paths = [p for p in sorted(folder.rglob("*.html")) if "_static" not in p.parts]
    pages = {path: read(path) for path in paths}
    found = []
    for path, page in pages.items():
        where = path.relative_to(folder)
        for address in page.loaded:
            parts = urlsplit(address)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                found.append(f"{where} loads {address}")
            elif not (path.parent / unquote(parts.path)).exists():
                found.append(f"{where} loads {address}, which is not there")
        for address in page.links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                found.append(f"{where} links to {address}, which is not there")
            elif parts.fragment and target.suffix == ".html":
                anchors = pages[target].anchors if target in pages else set()
                if unquote(parts.fragment) not in anchors:
                    found.append(f"{where} links to {address}, where there is no such anchor")
    return len(pages), found


def main(folder: str) -> int:
    """Print what was found; 1 if something was."""
    n_pages, found = problems(Path(folder).resolve())
    print("\n".join(found) or f"{n_pages} pages: no dead links inside, nothing loaded from outside")
    return 1 if found or n_pages == 0 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
