"""`pickmix.report` without a browser: what is embedded, what is escaped, and how large it is."""

import json
import os
import re

import numpy as np
import pandas as pd
import pytest
from cases import (
    HOSTILE_COLUMN,
    HOSTILE_LEVEL,
    HOSTILE_TITLE,
    clusters,
    customers,
    gaussian,
    gaussians,
    given,
    payload_of,
    report_of,
)

import pickmix
from pickmix.families.base import Part
from pickmix.families.gaussian import DiagonalGaussian
from pickmix.families.gaussian_parts import DiagonalPart
from pickmix.inspection.view import sample_rows


@pytest.fixture(scope="module")
def plain():
    model, X = gaussians()
    return model, X, pickmix.report(model, X)


def test_a_page_appears_whole_or_not_at_all(tmp_path, plain, monkeypatch):
    model, X, _ = plain
    target = tmp_path / "r.html"
    assert pickmix.report(model, X, target, title="@@DATA@@ @@STYLE@@") == target
    page = target.read_text("utf-8")
    # The template is not looked for in the data.
    assert "<h1>@@DATA@@ @@STYLE@@</h1>" in page
    assert payload_of(page)["title"] == "@@DATA@@ @@STYLE@@"

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        pickmix.report(model, X, target)
    assert target.read_text("utf-8") == page
    assert [file.name for file in tmp_path.iterdir()] == ["r.html"]


def test_bad_places_and_numbers_are_refused_before_the_work(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        pickmix.report(None, None, tmp_path / "no" / "r.html")
    with pytest.raises(IsADirectoryError, match=r"report\.html"):
        pickmix.report(None, None, tmp_path)
    model = tmp_path / "model.npz"
    model.write_bytes(b"a model")
    with pytest.raises(ValueError, match=r"ending in \.html or \.htm, got '\.npz'"):
        pickmix.report(None, None, model)
    assert model.read_bytes() == b"a model"
    for settings in ({"max_rows": 0}, {"n_unusual": -1}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            pickmix.report(None, None, **settings)


def test_nothing_comes_from_elsewhere(plain):
    page = plain[2]
    addresses = set(re.findall(r"https?://[^\s'\"<>)]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|img|iframe|object|embed)\b", page)
    assert not re.search(r"\s(src|srcset|background|poster)=", page)
    for word in ("@import", "url(", "innerHTML"):
        assert word not in page
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)[1]
    assert "default-src 'none'" in policy


class TestNumbers:
    def test_components_rows_and_map(self, plain):
        model, X, page = plain
        payload, component = payload_of(page), model.predict(X)
        components, rows = payload["components"], payload["rows"]
        np.testing.assert_allclose(components["weight"], model.weights_, rtol=1e-3, atol=1e-7)
        assert components["rows"] == np.bincount(component, minlength=12).tolist()
        centres = np.array(components["centre"], dtype=float).T
        np.testing.assert_allclose(centres, model.means_, rtol=1e-4)
        numbers = np.array(rows["number"]) - 1
        assert len(set(numbers.tolist())) == len(numbers) == rows["n"]
        np.testing.assert_array_equal(rows["component"], component[numbers])
        np.testing.assert_allclose(np.array(rows["cells"]).T, X[numbers], rtol=1e-5)
        np.testing.assert_allclose(rows["density"], model.score_samples(X[numbers]), rtol=1e-4)
        for k, row in enumerate(components["typical"]):
            assert not components["rows"][k] or rows["component"][row] == k
        points = np.column_stack([payload["map"]["x"], payload["map"]["y"]])
        np.testing.assert_allclose(points, X[numbers], rtol=1e-3)
        np.testing.assert_allclose(payload["map"]["xy"], model.covariances_[:, 0, 1], rtol=1e-2)

    def test_tree_clusters_and_verdict(self, plain):
        model, X, page = plain
        payload, tree = payload_of(page), model.merge_tree()
        np.testing.assert_array_equal(payload["tree"]["left"], tree.linkage[:, 0])
        np.testing.assert_array_equal(payload["tree"]["right"], tree.linkage[:, 1])
        np.testing.assert_allclose(payload["tree"]["cost"], tree.costs, rtol=1e-3)
        np.testing.assert_array_equal(payload["tree"]["order"], tree.order())
        labels = tree.labels(10)[model.predict(X)]
        assert [c["n_rows"] for c in payload["clusters"]] == np.bincount(labels).tolist()
        assert sum(len(cluster["traits"]) for cluster in payload["clusters"]) > 10
        assert [column["kind"] for column in payload["summaries"]] == ["number", "number"]
        verdict = payload["verdict"]
        assert (
            f"On the rows of the fit the mixture scores {model.score(X):.3f}" in verdict["headline"]
        )
        assert verdict["facts"][0][1] == f"{model.score(X):.3f}"
        # Nothing is cut off, however long.
        assert verdict["headline"].endswith("after 10 passes.")

    def test_without_a_path_there_is_a_report(self, plain, monkeypatch):
        model, X, _ = plain
        assert report_of(model, X, held_out=True)["path"]["n"][-1] == 12

        def fail(*arguments):
            raise np.linalg.LinAlgError("Matrix is not positive definite")

        monkeypatch.setattr("pickmix.inspection.page.path", fail)
        payload = report_of(model, X, held_out=True)
        assert payload["path"] is None
        assert "has not seen" in payload["verdict"]["headline"]

    def test_few_rows_stand_for_many(self):
        model, X = gaussians(K=4)
        payload = report_of(model, X, max_rows=100, n_unusual=2)
        chosen = sample_rows(600, 100)
        assert payload["rows"]["n"] == 100
        assert sorted(payload["rows"]["number"]) == (chosen + 1).tolist()
        assert len(payload["unusual"]) == 2
        assert "100 of 600 rows" in payload["verdict"]["facts"][0][2]

    def test_rows_of_the_fit_say_whether_it_overfits(self, plain):
        model, X, _ = plain
        others = clusters(seed=0)[:200]
        verdict = report_of(model, others, held_out=True, X_fit=X)["verdict"]
        assert "has not seen" in verdict["headline"]
        (text,) = [f["text"] for f in verdict["findings"] if f["about"] == "overfit"]
        assert f"Rows of the fit scored {model.score(X):.3f} nats per row, these" in text
        assert f"these {model.score(others):.3f}" in text


class TestKinds:
    def test_a_table_in_its_own_terms(self):
        model, table = customers()
        payload = report_of(model, table, ids="who")
        assert payload["columns"] == ["income", "visits", "city", "since", "active"]
        rows, columns = payload["rows"], payload["columns"]
        numbers = np.array(rows["number"]) - 1
        assert rows["idName"] == "who"
        assert rows["id"] == table["who"][numbers].tolist()
        for name in ("city", "since"):
            cells = rows["cells"][columns.index(name)]
            texts = [cells["texts"][code] if code >= 0 else "None" for code in cells["codes"]]
            assert texts == [str(value) for value in table[name][numbers]]
        visits = np.array(rows["cells"][1], dtype=float)
        np.testing.assert_array_equal(visits, table["visits"][numbers])
        assert np.isnan(visits).any()
        centre = payload["components"]["centre"][columns.index("city")]
        assert set(centre["texts"]) <= {"Lyon", "Oslo", "Rome"}
        with pytest.raises(ValueError, match="ids must name a column of X, got 'whom'"):
            pickmix.report(model, table, ids="whom")

    def test_frames_names_and_ids(self):
        counts = np.random.default_rng(0).poisson(3.0, (100, 2)).astype(float)
        frame = pd.DataFrame(counts, columns=["visits", "calls"])
        settings = {"random_state": 0, "max_iter": 2, "tol": 0.0}
        gaussian = pickmix.GaussianMixture(2, **settings).fit(frame)
        poisson = pickmix.FamilyMixture("poisson", 2, **settings).fit(frame)
        names = [f"c{i}" for i in range(100)]
        # Names by place, whatever the index says; also in a column that no model knows.
        frame.index = np.arange(100)[::-1]
        named = frame.assign(who=names)
        for model, X, ids in (
            (gaussian, frame, named["who"]),
            (gaussian, named[["who", "visits", "calls"]], "who"),
            (poisson, named, "who"),
        ):
            payload = report_of(model, X, ids=ids)
            rows = payload["rows"]
            assert rows["idName"] == (ids if isinstance(ids, str) else "id")
            numbers = np.array(rows["number"]) - 1
            assert rows["id"] == [f"c{number}" for number in numbers]
            np.testing.assert_array_equal(np.array(rows["cells"]).T, counts[numbers])
            assert payload["columns"] == payload["map"]["names"] == ["visits", "calls"]
            assert {odd["reasons"][0][0] for odd in payload["unusual"]} <= {"visits", "calls"}
            assert [column["name"] for column in payload["marginals"]] == ["visits", "calls"]
        # A column of the model may name the rows.
        payload = report_of(gaussian, frame, ids="calls")
        assert payload["columns"] == ["visits", "calls"]
        first = payload["rows"]["number"][0] - 1
        assert payload["rows"]["id"][0] == str(counts[first, 1])
        with pytest.raises(ValueError, match="ids must hold one value for each of 100"):
            pickmix.report(gaussian, frame, ids=names[:5])

    def test_families_with_counts_and_levels(self):
        rng = np.random.default_rng(0)
        rows = np.column_stack([rng.poisson(3.0, 300), rng.integers(0, 3, 300)]).astype(float)
        rows[5, 0] = np.nan
        family = [("poisson", [0]), ("categorical", [1])]
        model = pickmix.FamilyMixture(family, 3, random_state=0, max_iter=5, tol=0.0).fit(rows)
        payload = report_of(model, rows)
        assert payload["marginals"][1]["kind"] == "levels"
        assert "left" in payload["tree"]

    def test_a_single_column_and_a_single_component(self):
        X = clusters(D=1)
        model = pickmix.GaussianMixture(1).fit(X)
        payload = report_of(model, X)
        assert payload["tree"] == {"why": "A single component has nothing to be merged with."}
        assert payload["map"]["names"] == ["column 0", "spread at random"]
        assert all(value is not None for value in payload["map"]["y"])

    def test_files_are_read_in_parts(self, tmp_path, plain):
        model, X, _ = plain
        np.save(tmp_path / "rows.npy", np.tile(X, (20, 1)))
        page = pickmix.report(model, tmp_path / "rows.npy", max_rows=1000)
        rows = payload_of(page)["rows"]
        assert "1,000 of 12,000 rows" in payload_of(page)["verdict"]["facts"][0][2]
        assert max(rows["number"]) > 11_000
        numbers = (np.array(rows["number"]) - 1) % 600
        np.testing.assert_allclose(np.array(rows["cells"]).T, X[numbers], rtol=1e-5)

    @pytest.mark.slow
    def test_wide_tables_stay_small(self):
        X = clusters(n=600, D=120, K=4)
        model = given(X[:8], np.ones((8, 120)))
        page = pickmix.report(model, X)
        assert len(page.encode()) < 2e6
        assert len(payload_of(page)["marginals"]) == 100


class TestEscaping:
    def test_hostile_texts_stay_texts(self):
        model, table = customers(hostile=True)
        page = pickmix.report(model, table, ids="who", title=HOSTILE_TITLE)
        payload = payload_of(page)
        assert payload["title"] == HOSTILE_TITLE
        assert HOSTILE_COLUMN in payload["columns"]
        city = payload["rows"]["cells"][payload["columns"].index("city")]
        assert HOSTILE_LEVEL in city["texts"]
        # The page's own three elements, and nothing that the data opened or ended.
        assert len(re.findall(r"<script\b", page)) == len(re.findall(r"</script>", page)) == 2
        assert "hacked = 1</script>" not in page
        assert "\u2028" not in page
        assert page.count("<title>") == page.count("</title>") == 1

    def test_halves_of_characters_are_replaced(self, tmp_path):
        table = {"size\udc80": np.arange(40.0), "city": np.array(["x\udc80", "y"] * 20, object)}
        model = pickmix.TableMixture(2, random_state=0, max_iter=2, tol=0.0).fit(table)
        path = pickmix.report(
            model, table, tmp_path / "r.html", title="\ud800", ids=["\udfff"] * 40
        )
        payload = payload_of(path.read_text("utf-8"))
        assert payload["title"] == "\ufffd"
        assert payload["columns"] == ["size\ufffd", "city"]
        assert payload["rows"]["id"][0] == "\ufffd"
        assert payload["rows"]["cells"][1]["texts"] == ["x\ufffd", "y"]


def test_many_components_take_less_than_a_megabyte():
    rng = np.random.default_rng(0)
    K, D = 250, 10
    weights, means = rng.dirichlet(np.full(K, 5.0)), 5.0 * rng.normal(size=(K, D))
    model = given(means, rng.uniform(0.5, 2.0, (K, D)), weights)
    X, _ = model.sample(4000, np.random.default_rng(1))
    page = pickmix.report(model, X, max_rows=4000)
    assert len(payload_of(page)["components"]["weight"]) == K
    assert len(page.encode()) < 1e6


# A family with parts of its own is inspected without any code for it.


class Plain(Part):
    """What a user must write: nothing that describes components."""

    kind = "number"

    def __init__(self, whole):
        self.columns, self.parameters = whole.columns, whole.parameters
        self.means, self.variances = whole.means, whole.variances
        self.whole = whole

    def leave_out(self, rows):
        return self.whole.leave_out(rows)


def test_a_report_is_the_same_with_parts_of_a_new_type(monkeypatch):
    model, X = gaussian("diag")
    X[:9, 1] = np.nan
    expected = report_of(model, X)
    parts = DiagonalGaussian.parts

    def plain_parts(self, parameters, centre):
        return [Plain(part) for part in parts(self, parameters, centre)]

    monkeypatch.setattr(DiagonalGaussian, "parts", plain_parts)
    assert not isinstance(model.model_.parts()[0][0], DiagonalPart)
    found = report_of(model, X)
    del expected["made"], found["made"]
    assert json.dumps(found) == json.dumps(expected)


def test_columns_that_are_pictures():
    X = np.random.default_rng(0).normal(size=(300, 6))
    X[:, :3] += 3.0 * np.random.default_rng(1).normal(size=(300, 1))
    settings = {"covariance_type": "low_rank", "axes": "columns", "random_state": 0}
    model = pickmix.GaussianMixture(2, **settings).fit(X)
    found = payload_of(pickmix.report(model, X, column_shape=(2, 3)))["pictures"]
    assert found["shape"] == [2, 3]
    for shown, loadings, rank in zip(found["loadings"], model.loadings_, model.ranks_, strict=True):
        assert len(shown) == min(rank, 3)
        np.testing.assert_allclose(shown, loadings.T[: len(shown)], rtol=0.01)
    assert max(model.ranks_) > 0
    assert payload_of(pickmix.report(model, X))["pictures"] is None
    for shape in ((3, 3), (6,), "2x3", (2.0, 3.0)):
        with pytest.raises(ValueError, match="number of columns, 6, got"):
            pickmix.report(model, X, column_shape=shape)
