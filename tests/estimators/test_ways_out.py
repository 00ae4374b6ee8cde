"""Posteriors as features, and mixtures as scikit-learn's."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import pickmix
from pickmix import FamilyMixture, GaussianMixture, TableMixture


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(-2.0, 1.0, (200, 3)), rng.normal(2.0, 1.0, (200, 3))])


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_scikit_learn_gives_the_same_answers(X, covariance_type):
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    mixture = GaussianMixture(4, covariance_type=covariance_type, random_state=0).fit(frame)
    other = mixture.to_sklearn()
    np.testing.assert_allclose(other.score_samples(frame), mixture.score_samples(frame), rtol=1e-10)
    np.testing.assert_allclose(other.predict_proba(frame), mixture.predict_proba(frame), atol=1e-10)
    np.testing.assert_allclose(other.precisions_, mixture.precisions_)
    assert other.bic(frame) == pytest.approx(mixture.bic(frame))
    assert other.sample(10)[0].shape == (10, 3)
    # It is a copy.
    other.means_ += 1.0
    assert not np.allclose(other.means_, mixture.means_)


def test_marginals_and_conditionals_have_a_way_out_too(X):
    mixture = GaussianMixture(2, random_state=0).fit(X)
    for part, rows in ((mixture.marginal([2, 0]), X[:, [2, 0]]), (mixture.reduce(1), X)):
        np.testing.assert_allclose(part.to_sklearn().score_samples(rows), part.score_samples(rows))


def test_sparse_posteriors_are_the_largest(X):
    mixture = GaussianMixture(6, random_state=0).fit(X)
    dense, sparse = mixture.transform(X), mixture.transform(X, top=2)
    np.testing.assert_array_equal(dense, mixture.predict_proba(X))
    kept = np.where(dense >= np.sort(dense, axis=1)[:, [-2]], dense, 0.0)
    np.testing.assert_allclose(sparse.toarray(), kept, atol=1e-12)
    with pytest.raises(ValueError, match="m must be at most n_components=6"):
        mixture.transform(X, top=7)


def test_posteriors_in_a_pipeline_and_as_a_frame(X):
    y = np.repeat([0, 1], 200)
    pipeline = make_pipeline(GaussianMixture(4, random_state=0), LogisticRegression())
    assert pipeline.fit(X, y).score(X, y) > 0.95
    mixture = FamilyMixture("diag", 2, random_state=0).set_output(transform="pandas")
    assert list(mixture.fit_transform(X)) == ["familymixture0", "familymixture1"]
    table = TableMixture(2, random_state=0).fit({"x": X[:, 0], "kind": np.where(y, "a", "b")})
    assert table.transform({"x": [0.0], "kind": ["a"]}).shape == (1, 2)
    assert table.get_feature_names_out().tolist() == ["tablemixture0", "tablemixture1"]


def test_the_reader_of_the_page_reads_all_covariance_types(X, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "howto" / "elsewhere.md").read_text()
    lines = [line[4:] for line in page.splitlines() if line.startswith((">>> def", "... "))]
    assert len(lines) <= 30
    names = {"np": np, "json": json}
    exec("\n".join(lines), names)
    for covariance_type in ("full", "tied", "diag", "spherical"):
        mixture = GaussianMixture(3, covariance_type=covariance_type, random_state=0).fit(X)
        content = names["read_mixture"](pickmix.save(mixture, tmp_path / "mixture.npz"))
        np.testing.assert_allclose(
            names["log_density"](content, X), mixture.score_samples(X), rtol=1e-10
        )
