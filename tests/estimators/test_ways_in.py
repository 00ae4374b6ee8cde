"""scikit-learn's callbacks, sparse rows, and AnnData."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import pickmix
from pickmix import FamilyMixture, GaussianMixture, TableMixture

callback = pytest.importorskip("sklearn.callback", reason="scikit-learn before 1.9 has none")


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(-2.0, 1.0, (150, 2)), rng.normal(2.0, 1.0, (150, 2))])


class Recorder:
    """A callback of one's own, after the protocol."""

    def __init__(self, stop_after=None):
        self.events, self.scores, self.stop_after = [], [], stop_after

    def setup(self, estimator, context):
        self.events.append("setup")

    def teardown(self, estimator, context):
        self.events.append("teardown")

    def on_fit_task_begin(self, estimator, context):
        self.events.append(f"begin {context.task_name}")

    def on_fit_task_end(self, estimator, context, *, X=None, fitted_estimator=None):
        self.events.append(f"end {context.task_name}")
        if context.task_name == "evaluation":
            self.scores.append(fitted_estimator.score(X))
            return self.stop_after is not None and len(self.scores) >= self.stop_after
        return False


@pytest.mark.parametrize("kind", ["array", "table"])
def test_tasks_are_the_fit_and_its_evaluations(X, kind):
    recorder = Recorder()
    mixture = (
        GaussianMixture(3, random_state=0) if kind == "array" else TableMixture(3, random_state=0)
    )
    data = X if kind == "array" else {"a": X[:, 0], "b": X[:, 1]}
    mixture.set_callbacks(recorder).fit(data)
    n = mixture.trace_.shape[0]
    middle = ["begin evaluation", "end evaluation"] * n
    assert recorder.events == ["setup", "begin fit", *middle, "end fit", "teardown"]
    assert recorder.scores[-1] > recorder.scores[0]
    # Nobody listens any more, and the fit is what it is without listeners.
    plain = clone(mixture).set_callbacks().fit(data)
    np.testing.assert_array_equal(plain.weights_, mixture.weights_)
    assert not {"_skl_callbacks", "_callback_fit_ctx", "_evaluation_tasks"} & vars(plain).keys()


def test_a_callback_may_end_the_fit_and_hears_of_one_that_fails(X):
    recorder = Recorder(stop_after=2)
    mixture = GaussianMixture(3, random_state=0).set_callbacks(recorder).fit(X)
    assert mixture.outcome_ == "callback"
    assert mixture.trace_.shape == (2,)
    recorder = Recorder()
    with pytest.raises(ValueError, match="n_components"):
        GaussianMixture(1000).set_callbacks(recorder).fit(X)
    assert recorder.events == ["setup", "begin fit", "teardown"]


def test_scoring_monitor_and_progress_bar(X):
    monitor = callback.ScoringMonitor(scoring={"score": lambda mixture, X, y: mixture.score(X)})
    mixture = GaussianMixture(3, random_state=0)
    mixture.set_callbacks(monitor, callback.ProgressBar()).fit(X)
    scores = [row["score"] for row in monitor.get_logs().data if row["task_name"] == "evaluation"]
    assert len(scores) == mixture.trace_.shape[0]
    assert scores[-1] == pytest.approx(mixture.trace_["log_likelihood"][-1], abs=0.05)


def test_callbacks_of_a_grid_reach_the_mixtures(X, capsys):
    pipeline = make_pipeline(StandardScaler(), GaussianMixture(random_state=0))
    grid = GridSearchCV(pipeline, {"gaussianmixture__n_components": [1, 2]}, cv=2)
    grid.set_callbacks(callback.ProgressBar(max_propagation_depth=3)).fit(X[::-1])
    assert "GaussianMixture" in capsys.readouterr().out


@pytest.mark.parametrize("make", [sparse.csr_matrix, sparse.csr_array, sparse.coo_array])
def test_sparse_rows_are_dense_in_chunks(X, make):
    rows = np.where(X > 1.0, X, 0.0)
    dense = GaussianMixture(2, random_state=0).fit(rows)
    with pytest.raises(TypeError, match=r"sparse .* pickmix\.open_rows"):
        GaussianMixture(2).fit(make(rows))
    with pickmix.open_rows(make(rows)) as source:
        mixture = GaussianMixture(2, random_state=0).fit(source)
        np.testing.assert_allclose(mixture.means_, dense.means_)
        np.testing.assert_array_equal(mixture.predict(source), dense.predict(rows))


def annotated(X, names=("a", "b")):
    """What an AnnData looks like."""
    obs = pd.DataFrame(index=[f"cell{i}" for i in range(X.shape[0])])
    return SimpleNamespace(X=X, obs=obs, obsm={}, var_names=pd.Index(names))


class Backed:
    """Rows in a file that has slices only."""

    def __init__(self, X):
        self.X, self.shape = X, X.shape

    def __getitem__(self, some):
        return self.X[some]


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix, Backed], ids=str)
def test_annotated_rows_in_and_answers_out(X, form):
    rows = np.where(X > 1.0, X, 0.0)
    frame = pd.DataFrame(rows, columns=["a", "b"])
    cells = annotated(form(rows))
    mixture = GaussianMixture(2, random_state=0).fit(cells)
    assert mixture.feature_names_in_.tolist() == ["a", "b"]
    assert pickmix.annotate(mixture, cells, key="group") is None
    assert cells.obs["group"].tolist() == mixture.predict(frame).astype(str).tolist()
    np.testing.assert_allclose(cells.obs["group_log_density"], mixture.score_samples(frame))
    np.testing.assert_allclose(cells.obsm["group"], mixture.predict_proba(frame), atol=1e-12)
    pickmix.annotate(mixture, cells, top=1)
    assert cells.obsm["mixture"].nnz == 300
    with pytest.raises(TypeError, match="data must have X, obs, obsm"):
        pickmix.annotate(mixture, X)


def test_many_components_are_annotated_sparsely(X):
    cells = annotated(X)
    mixture = GaussianMixture(60, random_state=0, max_iter=1, tol=0.0).fit(cells)
    pickmix.annotate(mixture, cells)
    assert cells.obsm["mixture"].shape == (300, 60)
    assert cells.obsm["mixture"].nnz == 1500


def test_other_families_take_them_too():
    counts = np.random.default_rng(0).poisson(2.0, (100, 2))
    cells = annotated(sparse.csr_matrix(counts))
    assert FamilyMixture("poisson", 2, random_state=0).fit(cells).predict(cells).shape == (100,)
