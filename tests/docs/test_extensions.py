"""What the site changes on pages as it reads them, and completion as the pages describe it."""

import importlib.util

import pytest
from click.shell_completion import shell_complete
from pages import DOCS

from pickmix.cli import main

spec = importlib.util.spec_from_file_location("files", DOCS / "_ext/repository_files.py")
repository_files = importlib.util.module_from_spec(spec)
spec.loader.exec_module(repository_files)


def test_links_to_results_become_downloads_and_pictures_do_not():
    text = "See [`a.md`](../benchmarks/results/a.md), ![b](../benchmarks/b.png), [c](deep.md#x)."
    assert repository_files.as_downloads(text) == (
        "See {download}`a.md <../benchmarks/results/a.md>`, "
        "![b](../benchmarks/b.png), [c](deep.md#x)."
    )


def test_the_last_empty_line_of_a_doctest_is_not_shown():
    page = "a\n\n```python\n>>> 1\n1\n\n```\n\nb\n\n```\nc\n```\n"
    assert repository_files.without_last_lines(page) == page.replace("1\n\n```", "1\n```")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_as_the_page_says(shell, capsys):
    page = (DOCS / "howto/command-line.md").read_text(encoding="utf-8")
    assert f"_PICKMIX_COMPLETE={shell}_source pickmix" in page
    assert shell_complete(main, {}, "pickmix", "_PICKMIX_COMPLETE", f"{shell}_source") == 0
    printed = capsys.readouterr().out
    assert "_PICKMIX_COMPLETE" in printed
    assert f"{shell}_complete" in printed
