"""Reports in a real browser: they load without errors, sort, zoom, filter, and link to rows."""

import browser
import numpy as np
import pytest
from report_cases import gaussians

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


def column(page, number):
    """A column of the table of components, as it is shown."""
    return page.texts(f"#component-table tbody td:nth-child({number})")


class TestLoading:
    def test_nothing_is_asked_of_the_network(self, page):
        assert page.run("return performance.getEntriesByType('resource').length") == 0

    def test_the_policy_holds(self, driver, made):
        page = browser.Page(driver, made[2]).open()
        refused = driver.execute_async_script(
            "const done = arguments[0];"
            "document.addEventListener('securitypolicyviolation',"
            "  (event) => done(event.violatedDirective));"
            "fetch('https://example.org/').catch(() => {});"
        )
        assert refused == "connect-src"
        page.errors()

    def test_headings_and_titles(self, page):
        assert page.driver.title == "GaussianMixture of 60 components"
        assert page.run("return document.documentElement.lang") == "en"
        assert page.texts("h1") == ["GaussianMixture of 60 components"]
        assert page.texts("main h2") == [
            "Verdict",
            "Clusters",
            "Map and tree",
            "Components",
            "Columns",
            "Most unusual rows",
        ]

    def test_the_verdict_is_there(self, page, made):
        model, X, _ = made
        assert f"{model.score(X):.3f}" in page.one("#headline").text
        assert len(page.all("#findings li")) >= 3
        assert page.one("#next").text

    def test_canvases_are_drawn_on(self, page):
        for name in ("map", "tree"):
            drawn = page.run(
                "const c = document.getElementById(arguments[0]);"
                "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
                "let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n",
                name,
            )
            assert drawn > 1000
            assert len(page.one(f"#{name}").get_attribute("aria-label")) > 40

    def test_nothing_is_wider_than_the_window(self, page):
        for width in (1280, 400):
            metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            page.open()
            wide = page.run("return document.documentElement.scrollWidth - window.innerWidth")
            assert wide <= 0
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


class TestSummaries:
    def test_clusters_have_cards_and_can_be_shown_on_the_map(self, page, made):
        tree, X, model = made[0].merge_tree(), made[1], made[0]
        assert len(page.all("#cluster-cards article")) == 10
        rows = np.bincount(tree.labels(10)[model.predict(X)])
        notes = page.texts("#cluster-cards article > p.muted")
        assert notes[0].endswith(f", {rows[0]} rows of this report")
        assert "column " in page.texts("#cluster-cards article:first-child li")[0]
        page.run("window.pickmixReport.setLevel(3)")
        page.click("#clusters-show")
        assert page.state("level") == 10

    def test_columns_are_listed_with_kind_and_prediction(self, page):
        assert page.texts("#summary-table tbody th") == ["column 0", "column 1"]
        cells = page.texts("#summary-table tbody tr:first-child td")
        assert cells[0] == "number"
        assert cells[-1].endswith("of the variance")


class TestTable:
    def test_it_sorts_both_ways(self, page, made):
        model, X, _ = made
        counts = np.bincount(model.predict(X), minlength=60)
        page.click("th[data-key=rows] button")
        assert page.one("th[data-key=rows]").get_attribute("aria-sort") == "descending"
        assert [int(text) for text in column(page, 4)] == sorted(counts, reverse=True)[:20]
        page.click("th[data-key=rows] button")
        assert page.one("th[data-key=rows]").get_attribute("aria-sort") == "ascending"
        assert [int(text) for text in column(page, 4)] == sorted(counts)[:20]
        assert page.one("th[data-key=weight]").get_attribute("aria-sort") == "none"
        # The button that was pressed keeps the focus.
        assert page.run("return document.activeElement.textContent") == "Rows"

    def test_it_filters_by_conditions_and_numbers(self, page, made):
        model, X, _ = made
        counts = np.bincount(model.predict(X), minlength=60)
        page.press("#search", "rows<20")
        few = np.flatnonzero(counts < 20)
        assert f"{few.size} of 60" in page.one("#table-said").text
        page.press("#search", Keys.ESCAPE)
        assert page.one("#search").get_attribute("value") == ""
        page.press("#search", "#17")
        assert column(page, 1) == ["17"]
        page.press("#search", Keys.ESCAPE, "no such word")
        assert "No component fits" in page.one("#component-table tbody").text

    def test_pages(self, page):
        assert page.one("#page-said").text == "Page 1 of 3"
        first = column(page, 1)
        page.click("#page-on")
        page.click("#page-on")
        assert page.one("#page-said").text == "Page 3 of 3"
        assert not page.one("#page-on").is_enabled()
        assert not set(first) & set(column(page, 1))

    def test_a_component_leads_to_its_rows(self, page, made):
        model, X, _ = made
        page.click("#component-table tbody tr:nth-child(3) td:nth-child(1) button")
        k = page.state("component")
        assert page.one("#details-title").text == f"Component {k}"
        assert page.one(f"tr[data-component='{k}']").get_attribute("class") == "selected"
        names = page.texts("#rows-table tbody tr[data-row] th button")
        rows = np.array([int(name.removeprefix("row ").replace(",", "")) for name in names]) - 1
        assert rows.size > 3
        assert (model.predict(X[rows]) == k).all()
        cells = [
            [float(value) for value in (a, b)]
            for a, b in zip(
                page.texts("#rows-table tbody tr[data-row] td:nth-child(2)"),
                page.texts("#rows-table tbody tr[data-row] td:nth-child(3)"),
                strict=True,
            )
        ]
        np.testing.assert_allclose(cells, X[rows], rtol=1e-3)
        assert "typical" in page.texts("#rows-table tbody tr[data-row]")[0]
        assert f"Component {k}" in page.one("#said").get_attribute("textContent")

    def test_the_neighbour_is_a_link(self, page):
        k = page.state("component")
        page.click("#details .sheet dd button")
        assert page.state("component") != k
        assert page.one("#details-title").text == f"Component {page.state('component')}"


class TestMap:
    def width(self, page):
        view = page.run("return window.pickmixReport.map.view()")
        return view["x1"] - view["x0"]

    def test_it_zooms_by_button_key_and_wheel(self, page):
        whole = self.width(page)
        page.click("#map-in")
        assert self.width(page) == pytest.approx(whole / 1.5)
        page.press("#map", "+")
        assert self.width(page) == pytest.approx(whole / 2.25)
        page.press("#map", "-")
        assert self.width(page) == pytest.approx(whole / 1.5)
        page.press("#map", "0")
        assert self.width(page) == pytest.approx(whole)
        page.run(
            "document.getElementById('map').dispatchEvent(new WheelEvent('wheel', "
            "{deltaY: -300, clientX: 300, clientY: 300, cancelable: true}))"
        )
        assert self.width(page) < 0.8 * whole

    def test_a_wheel_without_the_focus_scrolls_the_page(self, page):
        whole = self.width(page)
        page.run(
            "document.activeElement.blur();"
            "document.getElementById('map').dispatchEvent(new WheelEvent('wheel', "
            "{deltaY: -300, cancelable: true}))"
        )
        assert self.width(page) == pytest.approx(whole)

    @pytest.mark.parametrize("name", ["map", "tree"])
    def test_a_pointer_that_is_taken_away_drags_no_more(self, page, name):
        page.click(f"#{name}-in")
        view = f"return window.pickmixReport.{name}.view()"
        point = (
            "const canvas = document.getElementById(arguments[0]);"
            "canvas.setPointerCapture = () => {};"
            "for (const [kind, x] of arguments[1]) canvas.dispatchEvent("
            "  new PointerEvent(kind, {clientX: x, clientY: 100, pointerId: 1}))"
        )
        before = page.run(view)
        page.run(point, name, [["pointerdown", 100], ["pointermove", 120]])
        dragged = page.run(view)
        assert dragged != before
        page.run(point, name, [["pointercancel", 120], ["pointermove", 160]])
        assert page.run(view) == dragged

    def test_what_is_under_the_pointer_is_named(self, page):
        x, y = page.run("return window.pickmixReport.map.place(7)")
        page.click_at("#map", x, y)
        tip = page.one("#tip")
        assert tip.text.startswith(f"Component {page.state('component')} · weight ")
        page.run("document.getElementById('map').dispatchEvent(new PointerEvent('pointerleave'))")
        assert not tip.is_displayed()

    def test_a_click_selects(self, page):
        k = 7
        x, y = page.run("return window.pickmixReport.map.place(arguments[0])", k)
        page.click_at("#map", x, y)
        found = page.state("component")
        # Another one may lie there as well, and be nearer in its own units.
        places = np.array(
            [page.run("return window.pickmixReport.map.place(arguments[0])", f) for f in (k, found)]
        )
        assert np.linalg.norm(places[0] - places[1]) < 15.0
        assert page.one("#details-title").text == f"Component {found}"

    def test_arrows_go_to_the_next_component(self, page):
        first = page.state("component")
        before = page.run("return window.pickmixReport.map.place(arguments[0])", first)
        for key, axis, sign in ((Keys.ARROW_RIGHT, 0, 1), (Keys.ARROW_UP, 1, -1)):
            page.run("window.pickmixReport.select(arguments[0])", first)
            page.press("#map", key)
            k = page.state("component")
            after = page.run("return window.pickmixReport.map.place(arguments[0])", k)
            assert k == first or sign * (after[axis] - before[axis]) > 0

    def test_escape_clears(self, page):
        page.press("#map", Keys.ARROW_RIGHT, Keys.ESCAPE)
        assert page.state("component") == -1
        assert page.one("#details-title").text == "No component is selected"


class TestTree:
    def test_labels_are_those_of_the_mixture(self, page, made):
        tree = made[0].merge_tree()
        for n in (1, 2, 7, 33, 60):
            labels = page.run("return window.pickmixReport.labelsAt(arguments[0])", n)
            np.testing.assert_array_equal(labels, tree.labels(n))

    def test_labels_of_many_components(self, driver, tmp_path):
        # Weights of many clusters differ in late digits only.
        model, X = gaussians(K=300, n=3000, max_iter=2)
        page = browser.Page(driver, pickmix.report(model, X, tmp_path / "many.html")).open()
        tree = model.merge_tree()
        for n in (2, 10, 50, 100, 150, 200, 250, 280, 300):
            labels = page.run("return window.pickmixReport.labelsAt(arguments[0])", n)
            np.testing.assert_array_equal(labels, tree.labels(n))
        assert page.errors() == []

    def test_the_slider_moves_by_one_cluster(self, page):
        assert page.state("level") == 10
        page.press("#level", Keys.ARROW_RIGHT)
        assert page.state("level") == 11
        assert page.one("#level-number").get_attribute("value") == "11"
        labels = page.run("return window.pickmixReport.labelsAt(11)")
        k = int(column(page, 1)[0])
        assert column(page, 2)[0] == str(labels[k])
        page.press("#level", Keys.ARROW_LEFT, Keys.ARROW_LEFT)
        assert page.state("level") == 9

    def test_it_zooms_and_folds(self, page):
        width = "const v = window.pickmixReport.tree.view(); return v.x1 - v.x0"
        assert page.run(width) == 60
        page.click("#tree-in")
        assert page.run(width) == pytest.approx(40)
        page.press("#tree", "0")
        assert page.run(width) == 60
        page.click("#tree-fold")
        assert page.run("return window.pickmixReport.tree.nLeaves()") == 10
        assert page.run(width) == 10

    def test_keys_go_up_to_branches_and_down_again(self, page):
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
        assert page.state("component") >= 0
        leaf = page.state("component")
        page.press("#tree", Keys.ARROW_RIGHT)
        assert page.state("component") != leaf

    def test_a_branch_can_be_left(self, page):
        page.press("#tree", Keys.ARROW_UP, Keys.ARROW_UP)
        page.click("#clear-button")
        assert page.one("#table-said").text == "60 components"
        assert page.one("#details-title").text == "No component is selected"


class TestUnusual:
    def test_a_row_leads_to_its_component(self, page, made):
        model, X, _ = made
        lowest = int(model.score_samples(X).argmin())
        assert page.texts("#unusual-rows summary strong")[0] == f"Row {lowest + 1:,}"
        page.click("#unusual-rows details:first-child p button")
        assert page.state("component") == model.predict(X)[lowest]
        number = page.run(
            "const {data, state} = window.pickmixReport; return data.rows.number[state.row]"
        )
        assert number == lowest + 1
        assert page.one("#rows-table tr.selected")


class TestKeysAndThemes:
    def test_slash_searches_and_help_opens(self, page):
        page.press("#map", "/")
        assert page.run("return document.activeElement.id") == "search"
        page.press("#map", "?")
        assert page.run("return document.getElementById('help').open") is True
        page.press("#help-close", Keys.ENTER)
        assert page.run("return document.getElementById('help').open") is False

    def test_the_system_chooses_the_theme_and_the_button_changes_it(self, page):
        ground = "return getComputedStyle(document.body).backgroundColor"
        theme = "return document.documentElement.dataset.theme"
        page.open(prefers_color_scheme="dark")
        assert page.run(theme) == "dark"
        dark = page.run(ground)
        page.click("#theme-button")
        assert page.run(theme) == "light"
        assert page.run(ground) != dark
        page.run("localStorage.clear()")
        page.open(prefers_color_scheme="light")
        assert page.run(theme) == "light"

    def test_motion_is_reduced_on_request(self, page):
        behaviour = "return getComputedStyle(document.documentElement).scrollBehavior"
        assert page.run(behaviour) == "smooth"
        assert page.open(prefers_reduced_motion="reduce").run(behaviour) == "auto"

    def test_every_control_can_be_reached_and_has_a_name(self, page):
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

    def test_the_focus_is_visible(self, page):
        page.press("body", Keys.TAB, Keys.TAB, Keys.TAB)
        outline = page.run("return getComputedStyle(document.activeElement).outlineWidth")
        assert outline == "3px"

    def test_printing_opens_everything_on_white(self, page):
        closed = "return document.querySelectorAll('details:not([open])').length"
        page.open(prefers_color_scheme="dark")
        before = page.run(closed)
        assert before > 0
        page.run("window.dispatchEvent(new Event('beforeprint'))")
        assert page.run(closed) == 0
        assert page.run("return document.documentElement.dataset.theme") == "light"
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        ground = "return getComputedStyle(document.body).backgroundColor"
        assert page.run(ground) == "rgb(255, 255, 255)"
        assert page.run("return getComputedStyle(document.querySelector('nav')).display") == "none"
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        page.run("window.dispatchEvent(new Event('afterprint'))")
        assert page.run(closed) == before
        assert page.run("return document.documentElement.dataset.theme") == "dark"
        printed = page.driver.execute_cdp_cmd("Page.printToPDF", {})
        assert len(printed["data"]) > 50_000
