"""The check of the built site finds dead links and what is loaded from elsewhere."""

import importlib.util
import sys

import pytest
from pages import DOCS

spec = importlib.util.spec_from_file_location("check_site", DOCS / "check_site.py")
check_site = importlib.util.module_from_spec(spec)
# Dataclasses look their module up while it is being executed.
sys.modules[spec.name] = check_site
spec.loader.exec_module(check_site)

GOOD = """<html><head><link rel="stylesheet" href="style.css"><link rel="next" href="other.html">
</head><body><h1 id="top">One</h1><a href="other.html#there">x</a> <a href="#top">y</a>
<a href="https://example.org">away</a><img src="data:image/png;base64,AAAA"></body></html>"""
OTHER = '<html><body><a name="there"></a><a href="folder/deep%20page.html">z</a></body></html>'


@pytest.fixture
def site(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "style.css").write_text("")
    (tmp_path / "index.html").write_text(GOOD)
    (tmp_path / "other.html").write_text(OTHER)
    (tmp_path / "folder/deep page.html").write_text('<a href="../index.html">up</a>')
    return tmp_path


def test_a_good_site(site, capsys):
    assert check_site.main(site) == 0
    assert "3 pages" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('<a href="gone.html">x</a>', "links to gone.html"),
        ('<a href="other.html#nowhere">x</a>', "no such anchor"),
        ('<a href="#nowhere">x</a>', "no such anchor"),
        ('<script src="https://cdn.example.org/x.js"></script>', "loads https://cdn"),
        ('<link rel="stylesheet" href="//fonts.example.org/x.css">', "loads //fonts"),
        ('<img src="https://img.example.org/badge.svg">', "loads https://img"),
        ('<img src="gone.png">', "gone.png, which is not there"),
    ],
)
def test_what_is_wrong_is_found(site, capsys, text, complaint):
    (site / "bad.html").write_text(text)
    assert check_site.main(site) == 1
    assert complaint in capsys.readouterr().out
