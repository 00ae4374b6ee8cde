"""Reports in a real browser: they load without errors, sort, zoom, filter, and link to rows."""

import re

import browser
import numpy as np
import pytest
from cases import HOSTILE_COLUMN, HOSTILE_TITLE, customers, deep, gaussians

import pickmix

Keys = browser.keys()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    model, X = gaussians(K=60, n=1500, max_iter=4)
    path = pickmix.report(model, X, tmp_path_factory.mktemp("report") / "report.html")
    return model, X, path


@pytest.fixture
def page(driver, made):
    page = browser.Page(driver, made[2]).open()
    yield page
    assert page.errors() == []


@pytest.fixture
def show(driver, tmp_path):
    """Write a report and open it; its console must stay empty."""
    pages = []

    def open_report(model, X, name="r.html", **settings):
        pages.append(browser.Page(driver, pickmix.report(model, X, tmp_path / name, **settings)))
        return pages[-1].open()

    yield open_report
    assert pages[-1].errors() == []


def column(page, number):
    """A column of the table of components, as it is shown."""
    return page.texts(f"#component-table tbody td:nth-child({number})")


def width(page, name):
    view = page.run(f"return window.pickmixReport.{name}.view()")
    return view["x1"] - view["x0"]


def test_loading(page, made):
    model, X, _ = made
    title = "GaussianMixture of 60 components"
    assert page.run("return performance.getEntriesByType('resource').length") == 0
    assert page.driver.title == title
    assert page.run("return document.documentElement.lang") == "en"
    assert page.texts("h1") == [title]
    sections = ["Verdict", "Clusters", "Map and tree", "Components", "Columns", "Most unusual rows"]
    assert page.texts("main h2") == sections
    assert f"{model.score(X):.3f}" in page.one("#headline").text
    assert len(page.all("#findings li")) >= 3
    assert page.one("#next").text
    for name in ("map", "tree"):
        drawn = page.run(
            "const c = document.getElementById(arguments[0]);"
            "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            "let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n",
            name,
        )
        assert drawn > 1000
        assert len(page.one(f"#{name}").get_attribute("aria-label")) > 40


def test_the_policy_holds(driver, made):
    page = browser.Page(driver, made[2]).open()
    refused = driver.execute_async_script(
        "const done = arguments[0];"
        "document.addEventListener('securitypolicyviolation',"
        "  (event) => done(event.violatedDirective));"
        "fetch('https://example.org/').catch(() => {});"
    )
    assert refused == "connect-src"
    page.errors()


def test_nothing_is_wider_than_the_window(page):
    for wide in (1280, 400):
        metrics = {"width": wide, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        page.open()
        assert page.run("return document.documentElement.scrollWidth - window.innerWidth") <= 0
    page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_clusters_columns_and_unusual_rows(page, made):
    model, X, _ = made
    assert len(page.all("#cluster-cards article")) == 10
    rows = np.bincount(model.merge_tree().labels(10)[model.predict(X)])
    notes = page.texts("#cluster-cards article > p.muted")
    assert notes[0].endswith(f", {rows[0]} rows of this report")
    assert "column " in page.texts("#cluster-cards article:first-child li")[0]
    page.run("window.pickmixReport.setLevel(3)")
    page.click("#clusters-show")
    assert page.state("level") == 10
    # Columns with kind and prediction.
    assert page.texts("#summary-table tbody th") == ["column 0", "column 1"]
    cells = page.texts("#summary-table tbody tr:first-child td")
    assert cells[0] == "number"
    assert cells[-1].endswith("of the variance")
    # An unusual row leads to its component.
    detector = pickmix.MixtureDetector(random_state=0).fit(X)
    lowest = int(detector.decision_scores_.argmax())
    assert page.texts("#unusual-rows summary strong")[0] == f"Row {lowest + 1:,}"
    page.click("#unusual-rows details:first-child p button")
    assert page.state("component") == model.predict(X)[lowest]
    number = "const {data, state} = window.pickmixReport; return data.rows.number[state.row]"
    assert page.run(number) == lowest + 1
    assert page.one("#rows-table tr.selected")


def test_the_table_sorts_filters_and_has_pages(page, made):
    model, X, _ = made
    counts = np.bincount(model.predict(X), minlength=60)
    assert page.one("#page-said").text == "Page 1 of 3"
    first = column(page, 1)
    page.click("#page-on")
    page.click("#page-on")
    assert page.one("#page-said").text == "Page 3 of 3"
    assert not page.one("#page-on").is_enabled()
    assert not set(first) & set(column(page, 1))
    page.click("th[data-key=rows] button")
    assert page.one("th[data-key=rows]").get_attribute("aria-sort") == "descending"
    assert [int(text) for text in column(page, 4)] == sorted(counts, reverse=True)[:20]
    page.click("th[data-key=rows] button")
    assert page.one("th[data-key=rows]").get_attribute("aria-sort") == "ascending"
    assert [int(text) for text in column(page, 4)] == sorted(counts)[:20]
    assert page.one("th[data-key=weight]").get_attribute("aria-sort") == "none"
    # The button that was pressed keeps the focus.
    assert page.run("return document.activeElement.textContent") == "Rows"
    page.press("#search", "rows<20")
    assert f"{np.count_nonzero(counts < 20)} of 60" in page.one("#table-said").text
    page.press("#search", Keys.ESCAPE)
    assert page.one("#search").get_attribute("value") == ""
    page.press("#search", "#17")
    assert column(page, 1) == ["17"]
    page.press("#search", Keys.ESCAPE, "no such word")
    assert "No component fits" in page.one("#component-table tbody").text


def test_a_component_leads_to_its_rows_and_its_neighbour(page, made):
    model, X, _ = made
    page.click("#component-table tbody tr:nth-child(3) td:nth-child(1) button")
    k = page.state("component")
    assert page.one("#details-title").text == f"Component {k}"
    assert page.one(f"tr[data-component='{k}']").get_attribute("class") == "selected"
    names = page.texts("#rows-table tbody tr[data-row] th button")
    rows = np.array([int(name.removeprefix("row ").replace(",", "")) for name in names]) - 1
    assert rows.size > 3
    assert (model.predict(X[rows]) == k).all()
    cells = [page.texts(f"#rows-table tbody tr[data-row] td:nth-child({n})") for n in (2, 3)]
    np.testing.assert_allclose(np.array(cells, dtype=float).T, X[rows], rtol=1e-3)
    assert "typical" in page.texts("#rows-table tbody tr[data-row]")[0]
    assert f"Component {k}" in page.one("#said").get_attribute("textContent")
    page.click("#details .sheet dd button")
    assert page.state("component") != k
    assert page.one("#details-title").text == f"Component {page.state('component')}"


def test_the_map_zooms_by_button_key_and_wheel(page):
    whole = width(page, "map")
    wheel = (
        "document.getElementById('map').dispatchEvent(new WheelEvent('wheel', "
        "{deltaY: -300, clientX: 300, clientY: 300, cancelable: true}))"
    )
    # Without the focus, the wheel scrolls the page.
    page.run(f"document.activeElement.blur(); {wheel}")
    assert width(page, "map") == pytest.approx(whole)
    page.click("#map-in")
    assert width(page, "map") == pytest.approx(whole / 1.5)
    for key, factor in (("+", 2.25), ("-", 1.5), ("0", 1.0)):
        page.press("#map", key)
        assert width(page, "map") == pytest.approx(whole / factor)
    page.run(wheel)
    assert width(page, "map") < 0.8 * whole


def test_a_pointer_that_is_taken_away_drags_no_more(page):
    move = (
        "const canvas = document.getElementById(arguments[0]);"
        "canvas.setPointerCapture = () => {};"
        "for (const [kind, x] of arguments[1]) canvas.dispatchEvent("
        "  new PointerEvent(kind, {clientX: x, clientY: 100, pointerId: 1}))"
    )
    for name in ("map", "tree"):
        page.click(f"#{name}-in")
        view = f"return window.pickmixReport.{name}.view()"
        before = page.run(view)
        page.run(move, name, [["pointerdown", 100], ["pointermove", 120]])
        dragged = page.run(view)
        assert dragged != before
        page.run(move, name, [["pointercancel", 120], ["pointermove", 160]])
        assert page.run(view) == dragged


def test_the_map_selects_by_click_and_keys(page):
    def place(k):
        return page.run("return window.pickmixReport.map.place(arguments[0])", k)

    first = page.state("component")
    for key, axis, sign in ((Keys.ARROW_RIGHT, 0, 1), (Keys.ARROW_UP, 1, -1)):
        page.run("window.pickmixReport.select(arguments[0])", first)
        page.press("#map", key)
        k = page.state("component")
        assert k == first or sign * (place(k)[axis] - place(first)[axis]) > 0
    page.click_at("#map", *place(7))
    k = page.state("component")
    # Another one may lie there as well, and be nearer in its own units.
    assert np.linalg.norm(np.subtract(place(7), place(k))) < 15.0
    assert page.one("#details-title").text == f"Component {k}"
    tip = page.one("#tip")
    assert tip.text.startswith(f"Component {k} · weight ")
    page.run("document.getElementById('map').dispatchEvent(new PointerEvent('pointerleave'))")
    assert not tip.is_displayed()
    page.press("#map", Keys.ARROW_RIGHT, Keys.ESCAPE)
    assert page.state("component") == -1
    assert page.one("#details-title").text == "No component is selected"


def check_labels(page, model, levels):
    for n in levels:
        labels = page.run("return window.pickmixReport.labelsAt(arguments[0])", n)
        np.testing.assert_array_equal(labels, model.merge_tree().labels(n))


def test_labels_of_many_components(show):
    # Weights of many clusters differ in late digits only. More components would compile kernels.
    model, X = gaussians(K=256, n=3000, max_iter=2)
    check_labels(show(model, X), model, (2, 10, 50, 100, 150, 200, 240, 256))


def test_levels_of_the_tree(page, made):
    check_labels(page, made[0], (1, 2, 7, 33, 60))
    assert page.state("level") == 10
    page.press("#level", Keys.ARROW_RIGHT)
    assert page.state("level") == 11
    assert page.one("#level-number").get_attribute("value") == "11"
    labels = page.run("return window.pickmixReport.labelsAt(11)")
    assert column(page, 2)[0] == str(labels[int(column(page, 1)[0])])
    page.press("#level", Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert page.state("level") == 9
    assert width(page, "tree") == 60
    page.click("#tree-in")
    assert width(page, "tree") == pytest.approx(40)
    page.press("#tree", "0")
    assert width(page, "tree") == 60
    page.click("#tree-fold")
    assert page.run("return window.pickmixReport.tree.nLeaves()") == 9
    assert width(page, "tree") == 9


def test_keys_go_up_to_branches_and_down_again(page):
    page.run("window.pickmixReport.select(5)")
    page.press("#tree", Keys.ARROW_UP)
    branch = page.one("#details-title").text
    assert branch.startswith("Branch of ")
    n = int(branch.split()[2])
    assert f"{n} of 60 components" in page.one("#table-said").text
    assert "5" in page.texts("#details-body button.link")
    page.press("#tree", Keys.ARROW_UP)
    assert int(page.one("#details-title").text.split()[2]) > n
    page.press("#tree", *[Keys.ARROW_DOWN] * 30)
    leaf = page.state("component")
    assert leaf >= 0
    page.press("#tree", Keys.ARROW_RIGHT)
    assert page.state("component") != leaf
    page.press("#tree", Keys.ARROW_UP, Keys.ARROW_UP)
    page.click("#clear-button")
    assert page.one("#table-said").text == "60 components"
    assert page.one("#details-title").text == "No component is selected"


def test_controls_can_be_reached_and_have_names(page):
    page.press("body", Keys.TAB, Keys.TAB, Keys.TAB)
    assert page.run("return getComputedStyle(document.activeElement).outlineWidth") == "3px"
    page.press("#map", "/")
    assert page.run("return document.activeElement.id") == "search"
    page.press("#map", "?")
    assert page.run("return document.getElementById('help').open") is True
    page.press("#help-close", Keys.ENTER)
    assert page.run("return document.getElementById('help').open") is False
    nameless = page.run(
        "return [...document.querySelectorAll('button, input, canvas, [role=region]')]"
        ".filter((e) => !(e.textContent.trim() || e.getAttribute('aria-label')"
        " || (e.labels && e.labels.length))).map((e) => e.id || e.className)"
    )
    assert nameless == []
    unreachable = page.run(
        "return [...document.querySelectorAll('button, input, canvas')]"
        ".filter((e) => e.tabIndex < 0).map((e) => e.id)"
    )
    assert unreachable == []


GROUND = "return getComputedStyle(document.body).backgroundColor"
THEME = "return document.documentElement.dataset.theme"


def test_the_system_chooses_theme_and_motion(page):
    behaviour = "return getComputedStyle(document.documentElement).scrollBehavior"
    page.open(prefers_color_scheme="dark", prefers_reduced_motion="no-preference")
    assert page.run(behaviour) == "smooth"
    page.open(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
    assert page.run(behaviour) == "auto"
    assert page.run(THEME) == "dark"
    dark = page.run(GROUND)
    page.click("#theme-button")
    assert page.run(THEME) == "light"
    assert page.run(GROUND) != dark
    page.run("localStorage.clear()")
    page.open(prefers_color_scheme="light")
    assert page.run(THEME) == "light"


def test_printing_opens_everything_on_white(page):
    closed = "return document.querySelectorAll('details:not([open])').length"
    page.open(prefers_color_scheme="dark")
    before = page.run(closed)
    assert before > 0
    page.run("window.dispatchEvent(new Event('beforeprint'))")
    assert page.run(closed) == 0
    assert page.run(THEME) == "light"
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert page.run(GROUND) == "rgb(255, 255, 255)"
    assert page.run("return getComputedStyle(document.querySelector('nav')).display") == "none"
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    page.run("window.dispatchEvent(new Event('afterprint'))")
    assert page.run(closed) == before
    assert page.run(THEME) == "dark"
    printed = page.driver.execute_cdp_cmd("Page.printToPDF", {})
    assert len(printed["data"]) > 50_000


# Other models.


def test_texts_from_the_data_never_become_markup(show):
    model, table = customers(hostile=True)
    page = show(model, table, "a b'c#d.html", ids="who", title=HOSTILE_TITLE)
    assert HOSTILE_COLUMN in page.texts("#rows-table thead th")
    assert page.driver.title == HOSTILE_TITLE
    assert page.texts("h1") == [HOSTILE_TITLE]
    names = set(page.texts("#rows-table tbody tr[data-row] th button"))
    assert names
    assert names <= set(table["who"])
    assert HOSTILE_COLUMN in page.texts("#column-cards h3")
    # Gaps and dates.
    text = page.one("body").text
    for word in ("NaN", "undefined", "[object"):
        assert word not in text
    cells = page.texts("#rows-table tbody td")
    dates = [text for text in cells if re.fullmatch(r"202\d-\d\d-\d\d", text)]
    # The typical row has the first of them, behind the centre's.
    page.press("#search", dates[1])
    assert str(page.state("component")) in column(page, 1)
    # Everything is opened, chosen and searched once.
    page.press("#search", Keys.ESCAPE, HOSTILE_COLUMN)
    page.press("#search", Keys.ESCAPE)
    page.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    page.run("for (let k = 0; k < 4; k += 1) window.pickmixReport.select(k)")
    page.frame()
    assert page.run("return typeof window.hacked") == "undefined"
    assert page.all("img, b, iframe") == []
    assert len(page.all("script")) == 2


def test_a_single_component_of_a_single_column(show):
    X = customers()[1]["visits"][7:, None]
    page = show(pickmix.GaussianMixture(1).fit(X), X)
    assert not page.one("#tree-panel").is_displayed()
    assert "nothing to be merged with" in page.one("#map-note").text
    assert page.one("#picture-title").text == "Map"
    assert page.texts("#component-table tbody td")[0] == "0"


@pytest.mark.slow
def test_a_deep_mixture_has_no_tree_and_no_reasons(show):
    # Of too few rows for a detector.
    page = show(*deep(), max_rows=40)
    assert not page.one("#tree-panel").is_displayed()
    assert not page.one("#level-bar").is_displayed()
    assert "Mixture cannot be merged" in page.one("#map-note").text
    assert "Mixture does not say" in page.one("#unusual-note").text
    assert page.texts("#component-table thead th")[1].startswith("Weight")
    assert len(page.all("#column-cards svg")) == 4


def test_held_out_rows_say_how_many_components(show):
    X = 9.0 * np.random.default_rng(0).integers(0, [3, 2], (1500, 2))
    X = X + np.random.default_rng(1).normal(size=X.shape)
    mixture = pickmix.GaussianMixture(20, random_state=0).fit(X[:1000])
    enough = pickmix.choose_n_components(mixture, X[1000:])
    assert 6 <= enough < 12
    page = show(mixture, X[1000:], held_out=True)
    assert f"{enough} components are enough" in page.one("#path-panel").text
    assert len(page.all("#path svg line.mark")) == 1
    assert f"with {enough} components of the merge tree" in page.one("#findings").text
    assert not show(mixture, X[:1000], held_out=False).one("#path-panel").is_displayed()
