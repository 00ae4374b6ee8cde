"""Links, terms and pictures of the pages are there. The built site is checked by `make docs`."""

import re

from pages import DOCS, ROOT, pages


def anchors(text):
    """Anchors of the headings of a page, as GitHub and MyST make them."""
    titles = [title.lower() for title in re.findall(r"^#+ (.*)", text, re.MULTILINE)]
    return {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles}


def without_code(text):
    return re.sub(r"^ *```(?!\{).*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)


def made_by_sphinx(target):
    return "reference/generated" in str(target) or "auto_examples" in str(target)


def test_links_and_pictures_are_there():
    for page in pages():
        text = without_code(page.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)\s]*?)\)", text):
            if re.match(r"https?:", target):
                continue
            path, _, anchor = target.partition("#")
            found = page.parent / path if path else page
            if made_by_sphinx(found):
                continue
            assert found.exists(), (page.name, target)
            if anchor:
                assert anchor in anchors(found.read_text(encoding="utf-8")), (page.name, target)


def test_pages_that_are_named_are_there():
    for page in pages():
        text = without_code(page.read_text(encoding="utf-8"))
        for title, target in re.findall(r"\{doc\}`(?:([^`<]*)<)?([^`>]+)>?`", text):
            found = (page.parent / f"{target}.md").resolve()
            assert made_by_sphinx(found) or found.exists(), (page.name, title, target)


def glossary():
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    body = text[text.index(":::{glossary}") :]
    return {line.lower() for line in body.splitlines()[1:] if re.match(r"\w", line)}


def test_terms_are_in_the_glossary():
    terms = glossary()
    assert {"acceptance", "pass", "block", "overlap", "trace", "mixsim", "real nvp"} <= terms
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for term in re.findall(r"\{term\}`(?:[^`<]*<)?([^`>]+)>?`", text):
            assert term.lower() in terms, (page.name, term)


def test_the_glossary_is_in_alphabetical_order():
    body = (DOCS / "glossary.md").read_text(encoding="utf-8")
    entries = re.findall(r"\n\n(\w.*)\n", body[body.index(":::{glossary}") - 1 :])
    first = [entry.lower().replace("-", " ") for entry in entries]
    assert first == sorted(first)


def test_every_page_is_in_a_table_of_contents():
    linked = {DOCS / "index.md"}
    for page in pages():
        for block in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.splitlines():
                if line and not line.startswith(":"):
                    linked.add((page.parent / f"{line}.md").resolve())
    assert {page for page in pages() if page != ROOT / "README.md"} <= linked
