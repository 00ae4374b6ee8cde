"""What estimators show in notebooks."""

import copy
import re
from html.parser import HTMLParser

import numpy as np
import numpy.lib.recfunctions as rfn
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import pickmix
from pickmix.estimators.queries import changed_parameters, typical_values

EVIL = "<script>alert('x')</script>"
NAMES = [EVIL, '"><img src=x onerror=alert(1)>', "height & width"]


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    groups = [rng.normal(-3.0, 1.0, (150, 2)), rng.normal(3.0, 1.0, (50, 2))]
    return np.concatenate(groups)


@pytest.fixture(scope="module")
def mixture(rows):
    return pickmix.GaussianMixture(2, random_state=0, covariance_type="diag").fit(rows)


class Reader(HTMLParser):
    """Elements, their attributes and the text, of HTML whose elements are all closed."""

    def __init__(self, body):
        super().__init__()
        self.open, self.seen, self.text = [], [], []
        self.feed(body)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)


def read(estimator):
    return Reader(estimator._repr_html_())


def facts_of(estimator):
    body = estimator._repr_html_()
    return dict(re.findall(r'<th scope="row">([^<]*)</th><td>([^<]*)</td>', body))


def test_a_fit_in_a_card(mixture):
    text = "|".join(read(mixture).text)
    assert "GaussianMixture|n_components=2, covariance_type='diag', random_state=0|" in text
    shown = facts_of(mixture)
    assert shown["components"] == "2, 2 of them live"
    assert shown["data"] == "200 rows, 2 columns"
    assert float(shown["log-likelihood per row"]) == pytest.approx(mixture.lower_bound_, abs=1e-4)
    assert shown["fit"].startswith(f"converged, {mixture.n_iter_} passes in ")
    # The heavier one comes first, with its mean.
    heavy = int(mixture.weights_.argmax())
    means = "|".join(f"{value:.4g}" for value in mixture.means_[heavy])
    assert f"|{heavy}|{mixture.weights_[heavy]:.3g}|{means}|{1 - heavy}|" in text

    # The picture has a point per record.
    (points,) = [
        attributes["points"] for tag, attributes in read(mixture).seen if tag == "polyline"
    ]
    assert len(points.split()) == len(mixture.trace_)
    heights = [float(point.split(",")[1]) for point in points.split()]
    assert min(heights) == heights[int(mixture.trace_["log_likelihood"].argmax())]
    # Nothing comes from elsewhere.
    body = mixture._repr_html_()
    for sign in ("http", "url(", "@import", "<script", "<link", "src=", "href="):
        assert sign not in body
    # Traces of older models have no validation.
    older = copy.copy(mixture)
    older.trace_ = rfn.drop_fields(mixture.trace_, "validation")
    assert older._repr_html_() == body


def test_only_five_components_and_columns_and_few_points():
    rng = np.random.default_rng(0)
    mixture = pickmix.GaussianMixture(7, algorithm="em", tol=0.0, max_iter=250, random_state=0)
    body = mixture.fit(rng.normal(size=(100, 7)))._repr_html_()
    assert len(body) < 12_000
    assert body.count('pm-bar"') == 5
    assert len(re.findall("<polyline[^>]*>", body)[0].split()) <= 202


def test_names_of_columns_are_escaped(rows):
    frame = pd.DataFrame(np.append(rows, rows[:, :1], axis=1), columns=NAMES)
    table = {name: np.where(rows[:, 0] > 0, name, "other") for name in NAMES}
    for estimator in (
        pickmix.GaussianMixture(2, random_state=0).fit(frame),
        pickmix.TableMixture(2, random_state=0).fit(table),
    ):
        shown = read(estimator)
        assert set(NAMES) <= set(shown.text)
        assert {tag for tag, _ in shown.seen}.isdisjoint({"script", "img"})
        for _, attributes in shown.seen:
            assert "onerror" not in attributes


def test_typical_values_of_tables(rows):
    table = {
        "town": np.where(rows[:, 0] > 0, "Rome", "Oslo"),
        "when": np.datetime64("2024-01-01") + np.where(rows[:, 0] > 0, 100, 0),
        "size": rows[:, 1],
        "children": np.random.default_rng(0).poisson(np.where(rows[:, 0] > 0, 8.0, 1.0)),
        "old": rows[:, 0] > 0,
    }
    mixture = pickmix.TableMixture(2, random_state=0).fit(table)
    members = np.argsort(-mixture.weights_)
    names, values = typical_values(mixture, members, 5)
    assert names == ["children", "old", "size", "town", "when"]
    heavy, light = (dict(zip(names, row, strict=True)) for row in values)
    assert (heavy["town"], heavy["old"], heavy["children"]) == ("Oslo", "False", "1")
    assert (light["town"], light["old"], light["children"]) == ("Rome", "True", "8")
    assert light["when"].startswith("2024-04-10")
    assert float(heavy["size"]) == pytest.approx(-3.0, abs=0.3)
    assert facts_of(mixture)["log-likelihood per row"].endswith("of encoded rows")


def test_typical_values_of_families(rows):
    codes = np.column_stack([rows[:, 0] > 0, np.where(rows[:, 0] > 0, 2, 1), rows[:, 1]])
    family = [("diag", [2]), ("categorical", [0, 1])]
    mixture = pickmix.FamilyMixture(family, 2, random_state=0).fit(codes)
    _, values = typical_values(mixture, np.argsort(-mixture.weights_), 3)
    assert [row[:2] for row in values] == [["0", "1"], ["1", "2"]]


@pytest.mark.slow
def test_flows_have_no_centres_and_two_curves(rows):
    settings = {"n_layers": 1, "hidden": 3, "max_steps": 60, "evaluate_every": 20}
    flow = pickmix.FlowMixture(2, patience=None, random_state=0, **settings).fit(rows)
    shown = read(flow)
    assert [tag for tag, _ in shown.seen].count("polyline") == 2
    assert facts_of(flow)["on validation rows"] == f"{flow.best_validation_:.4f}"
    assert typical_values(flow, np.arange(2), 4) == ([], [])


def test_mixtures_in_the_middle_of_a_fit_and_on_disk(rows, tmp_path):
    cards = []
    table = {"a": rows[:, 0], "b": rows[:, 1]}
    for make, X in ((pickmix.GaussianMixture, rows), (pickmix.TableMixture, table)):
        fitted = make(
            2, random_state=0, callbacks=lambda info: cards.append(read(info.estimator()))
        ).fit(X)
        fitted.callbacks = getattr(fitted, "mixture_", fitted).callbacks = ()
        again = pickmix.load(pickmix.save(fitted, tmp_path / "model.npz"))
        assert again._repr_html_() == fitted._repr_html_()
    assert all("component" in shown.text for shown in cards)


def test_others_are_shown_by_scikit_learn(mixture):
    for estimator in (pickmix.GaussianMixture(3), pickmix.FlowMixture(), pickmix.TableMixture()):
        body = estimator._repr_html_()
        assert "sk-top-container" in body or "sk-global" in body
        assert "pickmix-card" not in body


def test_text_is_shown_where_it_is_asked_for(mixture):
    assert mixture._repr_mimebundle_() == {
        "text/plain": repr(mixture),
        "text/html": mixture._repr_html_(),
    }
    with config_context(display="text"):
        assert not hasattr(mixture, "_repr_html_")
        assert mixture._repr_mimebundle_() == {"text/plain": repr(mixture)}


def test_pipelines_are_still_drawn(rows):
    pipeline = make_pipeline(StandardScaler(), pickmix.GaussianMixture(2, random_state=0))
    for estimator in (pipeline, pipeline.fit(rows)):
        body = estimator._repr_html_()
        assert "StandardScaler" in body
        assert "GaussianMixture" in body
        assert "pickmix-card" not in body


def test_parameters_that_were_changed_come_first_and_are_cut():
    given = changed_parameters(pickmix.GaussianMixture(5, algorithm="em", tol=1e-3))
    assert given == [("n_components", "5"), ("algorithm", "'em'")]
    given = dict(changed_parameters(pickmix.GaussianMixture(2, means_init=np.zeros((9, 9)))))
    assert list(given) == ["n_components", "means_init"]
    assert len(given["means_init"]) == 40
