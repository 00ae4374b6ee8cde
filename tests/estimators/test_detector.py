"""The detector of unusual rows: what it finds, thresholds, tables, gaps, streams and files."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import pickmix
from pickmix import MixtureDetector
from pickmix.estimators import detector as module
from pickmix.estimators import part_mixtures
from pickmix.estimators.part_mixtures import _is_member, _marks


@pytest.fixture(scope="module", autouse=True)
def _fewer_mixtures():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_N_MIXTURES", 4)
        yield


@parametrize_with_checks([MixtureDetector(n_components=1, random_state=0)])
def test_scikit_learn_checks(estimator, check, monkeypatch):
    # The checks are about the interface, whatever the number of mixtures and how long they learn.
    monkeypatch.setattr(module, "_N_MIXTURES", 2)
    monkeypatch.setattr(part_mixtures, "_MAX_ITER", 1)
    check(estimator)


def clean_rows(n, seed):
    """Rows of two correlated groups."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)) @ np.array([[1.0, 0.8, 0.0], [0.0, 0.6, 0.0], [0.0, 0.0, 1.0]])
    return x + np.where(rng.random(n) < 0.5, -4.0, 4.0)[:, None]


def planted_rows(n=1000, n_planted=50, seed=0):
    """Clean rows, and last rows that are uniform over a cube that has both groups inside."""
    planted = np.random.default_rng(seed + 1).uniform(-8.0, 8.0, (n_planted, 3))
    return np.concatenate([clean_rows(n - n_planted, seed), planted])


@pytest.fixture(scope="module")
def detector(_fewer_mixtures):
    return MixtureDetector(contamination=0.05, random_state=0).fit(planted_rows())


def test_planted_rows_are_found_though_they_were_in_the_fit(detector):
    is_planted = np.arange(1000) >= 950
    assert roc_auc_score(is_planted, detector.decision_scores_) > 0.95
    assert np.count_nonzero(detector.labels_) == 50
    assert np.count_nonzero(detector.labels_[is_planted]) >= 35


def test_names_of_both_libraries_agree(detector):
    X = planted_rows()
    scores = detector.score_samples(X)
    np.testing.assert_array_equal(detector.decision_scores_, -scores)
    np.testing.assert_array_equal(detector.decision_function(X), scores - detector.offset_)
    np.testing.assert_array_equal(detector.predict(X), np.where(detector.labels_, -1, 1))
    assert detector.threshold_ == -detector.offset_


def test_scores_are_logarithms_of_tail_probabilities(detector):
    # The share of fitted rows with a score of log p or less is p.
    shares = np.exp(np.sort(detector.score_samples(planted_rows())))
    np.testing.assert_allclose(shares, np.arange(1, 1001) / 1000, atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("novelty", [False, True])
def test_false_alarms_on_new_clean_rows(novelty):
    fitted = MixtureDetector(0.05, novelty=novelty, random_state=0).fit(clean_rows(1000, 3))
    assert np.mean(fitted.predict(clean_rows(4000, 4)) == -1) == pytest.approx(0.05, abs=0.02)


def test_rows_of_the_fit_score_as_new_ones_unless_they_are_known_to_be_normal():
    X, new = np.random.default_rng(0).normal(size=(2, 150, 8))
    for novelty, lowest, highest in ((False, 0.4, 0.6), (True, 0.75, 1.0)):
        fitted = MixtureDetector(novelty=novelty, random_state=0).fit(np.repeat(X, 4, axis=0))
        labels = np.repeat([1, 0], 150)
        scores = np.concatenate([fitted.score_samples(X), fitted.score_samples(new)])
        assert lowest < roc_auc_score(labels, scores) < highest


def test_pair_of_equal_anomalies_is_found():
    # Each would explain the other if only one of them were left out.
    X = np.concatenate([clean_rows(500, 0), np.repeat([[-4.0, 4.0, 0.0]], 3, axis=0)])
    fitted = MixtureDetector(random_state=0).fit(X)
    assert set(np.argsort(fitted.score_samples(X))[:3]) == {500, 501, 502}


def test_frequent_row_is_normal():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(800, 2)), np.repeat([[6.0, 6.0]], 200, axis=0)])
    scores = MixtureDetector(random_state=0).fit(X).score_samples(X)
    assert scores[-1] > np.quantile(scores, 0.1)


def test_membership_depends_on_the_row_alone():
    rows = np.array([[0.0, 1.0], [-0.0, 1.0], [np.nan, 1.0], [0.0, 1.0 + 1e-15]])
    marks = _marks(rows)
    assert marks[0] == marks[1]
    assert len(set(marks.tolist())) == 3
    many = np.random.default_rng(0).normal(size=(20_000, 2))
    parts = np.stack([_is_member(_marks(many), number, 0.25) for number in range(4)])
    # Shares of one part, and of two together.
    np.testing.assert_allclose(parts.mean(axis=1), 0.25, atol=0.015)
    np.testing.assert_allclose((parts[0] & parts[1]).mean(), 0.0625, atol=0.01)


def test_explanations_name_the_scale_and_the_right_cells(detector):
    # A column that is constant is no part of the model, and of no explanation.
    X = np.insert(planted_rows(), 1, 7.0, axis=1) * 10.0
    fitted = MixtureDetector(random_state=0).fit(X)
    row = [[40.0, 70.0, 40.0, 120.0]]
    explanation = fitted.explain(row)
    assert explanation.ranked[0, 0] == 3
    assert explanation.ranked[0, -1] == -1
    assert np.isnan(explanation.surprise[0, 1])
    assert explanation.scales[0] in fitted.scales_
    assert explanation.expected[0, 3] == pytest.approx(40.0, abs=15.0)
    np.testing.assert_array_equal(explanation.values, row)
    assert explanation.scales[0] in explanation.table(0)
    # Rows are explained one by one.
    several = fitted.explain(np.concatenate([X[-20:], row]), top=2)
    np.testing.assert_allclose(several.surprise[-1], explanation.surprise[0])
    assert several.ranked.shape == (21, 2)


def mixed_table(n=600, seed=0):
    rng = np.random.default_rng(seed)
    is_tall = rng.random(n) < 0.5
    table = {
        "height": np.where(is_tall, 180.0, 160.0) + rng.normal(0.0, 3.0, n),
        "sex": np.where(is_tall, "m", "f"),
        "visits": rng.poisson(2.0, n),
    }
    table["height"][:40] = np.nan
    return table


def test_table_with_kinds_and_gaps(tmp_path):
    table = mixed_table()
    fitted = MixtureDetector(0.02, random_state=0).fit(table)
    assert fitted.schema_.kinds["sex"] == "category"
    odd = {"height": [180.0, 180.0, np.nan], "sex": ["m", "f", "f"], "visits": [2, 2, 15]}
    assert fitted.predict(odd).tolist() == [1, -1, -1]
    explanation = fitted.explain(odd, top=1)
    assert [explanation.names[column] for column in explanation.ranked[1:, 0]][1] == "visits"
    assert explanation.values[1].tolist()[:2] == [180.0, "f"]
    # A gap is neither usual nor unusual.
    assert 0.0 <= np.mean(fitted.labels_[:40]) < 0.1
    again = pickmix.load(pickmix.save(fitted, tmp_path / "detector"))
    np.testing.assert_array_equal(again.score_samples(table), fitted.score_samples(table))


def test_frames_of_numbers_are_arrays_and_others_tables():
    polars = pytest.importorskip("polars")
    X = planted_rows(300, 10)
    numbers = polars.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    fitted = MixtureDetector(random_state=0).fit(numbers)
    assert fitted.feature_names_in_.tolist() == ["a", "b"]
    assert not hasattr(fitted, "schema_")
    fitted.fit(numbers.with_columns(c=polars.lit("x")))
    assert fitted.schema_.kinds["c"] == "constant"


def test_gaps_of_numbers_cost_nothing_on_average():
    X = clean_rows(800, 0)
    rng = np.random.default_rng(1)
    with_gaps = np.where(rng.random(X.shape) < 0.2, np.nan, X)
    fitted = MixtureDetector(random_state=0).fit(with_gaps)
    n_gaps = np.isnan(with_gaps).sum(axis=1)
    flagged = [fitted.labels_[n_gaps == n].mean() for n in (0, 1)]
    assert flagged == pytest.approx([0.05, 0.05], abs=0.025)
    # The first two columns are related: opposite signs are between groups.
    assert fitted.predict([[4.0, -4.0, np.nan], [4.0, np.nan, 4.0]]).tolist() == [-1, 1]


def test_source_of_rows_scores_as_the_array(tmp_path):
    X = planted_rows(300, 10)
    np.save(tmp_path / "rows.npy", X)
    fitted = MixtureDetector(random_state=0).fit(tmp_path / "rows.npy")
    assert fitted.decision_scores_.shape == (300,)
    scores = fitted.score_samples(pickmix.open_rows(tmp_path / "rows.npy", chunk_size=100))
    np.testing.assert_allclose(scores, fitted.score_samples(X), rtol=1e-9)


def test_stream_follows_a_drift(tmp_path):
    fitted = MixtureDetector(0.05, random_state=0)
    for number in range(3):
        fitted.partial_fit(clean_rows(600, number))
    assert np.mean(fitted.predict(clean_rows(2000, 9)) == -1) == pytest.approx(0.05, abs=0.025)
    moved = np.array([[4.0, 4.0, -6.0]])
    before = fitted.score_samples(moved)[0]
    fitted = pickmix.load(pickmix.save(fitted, tmp_path / "detector.npz"))
    for number in range(3, 6):
        fitted.partial_fit(clean_rows(600, number) - np.array([0.0, 0.0, 8.0]))
    assert fitted.decision_scores_.shape == (600,)
    assert fitted.score_samples(moved)[0] > before + 1.0


@pytest.mark.parametrize("n_rows", [2, 10, 50])
def test_few_rows(n_rows):
    X = clean_rows(n_rows, 0)
    scores = MixtureDetector(random_state=0).fit(X).score_samples(np.concatenate([X, X + 100.0]))
    assert scores[n_rows:].max() < scores[:n_rows].min()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"contamination": 0.6}, "contamination must be at most 0.5, got 0.6"),
        ({"n_components": 0}, "n_components must be an integer >= 1"),
        ({"novelty": "yes"}, "novelty must be"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        MixtureDetector(**parameters).fit(clean_rows(50, 0))


def test_rows_of_one_value_are_refused():
    with pytest.raises(ValueError, match="X must have a column with more than one value"):
        MixtureDetector().fit(np.ones((20, 2)))
