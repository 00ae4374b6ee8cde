"""Reports of other models in a real browser: hostile texts, tables with gaps, deep mixtures."""

import re

import browser
import numpy as np
import pytest
from report_cases import HOSTILE_COLUMN, HOSTILE_TITLE, customers, table_mixture

import pickmix


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    table = customers(hostile=True)
    model = table_mixture(table)
    path = tmp_path_factory.mktemp("hostile") / "a b'c#d.html"
    return table, pickmix.report(model, table, path, ids="who", title=HOSTILE_TITLE)


def test_texts_from_the_data_never_become_markup(driver, hostile):
    table, path = hostile
    page = browser.Page(driver, path).open()
    names = page.texts("#rows-table thead th")
    assert HOSTILE_COLUMN in names
    assert driver.title == HOSTILE_TITLE
    assert page.texts("h1") == [HOSTILE_TITLE]
    shown = set(page.texts("#rows-table tbody tr[data-row] th button"))
    assert shown
    assert shown <= set(table["who"])
    assert HOSTILE_COLUMN in page.texts("#column-cards h3")
    # Everything is opened, chosen and searched once.
    page.press("#search", HOSTILE_COLUMN)
    page.press("#search", "\ue00c")
    page.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    page.run("for (let k = 0; k < 4; k += 1) window.pickmixReport.select(k)")
    page.frame()
    assert page.run("return typeof window.hacked") == "undefined"
    assert page.all("img, b, iframe") == []
    assert len(page.all("script")) == 2
    assert page.errors() == []


def test_gaps_and_dates_are_shown_as_such(driver, hostile):
    page = browser.Page(driver, hostile[1]).open()
    texts = page.texts("#rows-table tbody td")
    dates = [text for text in texts if re.fullmatch(r"202\d-\d\d-\d\d", text)]
    assert dates
    assert "NaN" not in page.one("body").text
    assert "undefined" not in page.one("body").text
    assert "[object" not in page.one("body").text
    # The typical row has the first of them, behind the centre's.
    page.press("#search", dates[1])
    assert str(page.state("component")) in page.texts("#component-table tbody td:nth-child(1)")
    assert page.errors() == []


def test_a_single_component_of_a_single_column(driver, tmp_path):
    X = customers()["visits"][7:, None]
    path = pickmix.report(pickmix.GaussianMixture(1).fit(X), X, tmp_path / "one.html")
    page = browser.Page(driver, path).open()
    assert not page.one("#tree-panel").is_displayed()
    assert "nothing to be merged with" in page.one("#map-note").text
    assert page.one("#picture-title").text == "Map"
    assert page.texts("#component-table tbody td")[0] == "0"
    assert page.errors() == []


def test_a_deep_mixture_has_no_tree_and_no_reasons(driver, tmp_path):
    pytest.importorskip("jax")
    from report_cases import clusters

    X = clusters(n=300)
    settings = {"hidden": 3, "max_steps": 20, "batch_size": 50, "random_state": 0}
    model = pickmix.FlowMixture(3, n_layers=1, **settings).fit(X)
    path = pickmix.report(model, X, tmp_path / "flow.html", max_rows=200)
    page = browser.Page(driver, path).open()
    assert not page.one("#tree-panel").is_displayed()
    assert not page.one("#level-bar").is_displayed()
    assert "FlowMixture cannot be merged" in page.one("#map-note").text
    assert "FlowMixture does not say" in page.one("#unusual-note").text
    assert page.texts("#component-table thead th")[1].startswith("Weight")
    assert len(page.all("#column-cards svg")) == 4
    assert page.errors() == []


def test_held_out_rows_say_how_many_components(driver, tmp_path):
    X = 9.0 * np.random.default_rng(0).integers(0, [3, 2], (1500, 2))
    X = X + np.random.default_rng(1).normal(size=X.shape)
    mixture = pickmix.GaussianMixture(20, random_state=0).fit(X[:1000])
    path = pickmix.report(mixture, X[1000:], tmp_path / "r.html", held_out=True)
    page = browser.Page(driver, path).open()
    enough = pickmix.choose_n_components(mixture, X[1000:])
    assert 6 <= enough < 12
    assert f"{enough} components are enough" in page.one("#path-panel").text
    assert len(page.all("#path svg line.mark")) == 1
    said = page.one("#findings").text
    assert f"with {enough} components of the merge tree" in said
    assert page.errors() == []
    path = pickmix.report(mixture, X[:1000], tmp_path / "r.html", held_out=False)
    page = browser.Page(driver, path).open()
    assert not page.one("#path-panel").is_displayed()
