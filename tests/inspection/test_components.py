"""Components, clusters, unusual rows, and which rows a report shows."""

import numpy as np
import pytest
from cases import (
    COVARIANCE_TYPES,
    as_matrices,
    deep,
    gaussian,
    given,
    mixed,
    people,
    table,
    two_groups,
)

from pickmix import FamilyMixture, GaussianMixture
from pickmix.inspection.components import (
    ComponentTable,
    UnusualRow,
    cluster_labels,
    component_table,
    describe_clusters,
    detector_of,
    unusual_rows,
)
from pickmix.inspection.page import choose_shown
from pickmix.inspection.view import RowScores, View


def bhattacharyya(mean, other_mean, covariance, other_covariance):
    middle = 0.5 * (covariance + other_covariance)
    away = mean - other_mean
    logs = [np.linalg.slogdet(matrix)[1] for matrix in (middle, covariance, other_covariance)]
    return 0.125 * away @ np.linalg.solve(middle, away) + 0.5 * (logs[0] - 0.5 * sum(logs[1:]))


def test_scores_are_those_of_the_mixture():
    model, X = gaussian()
    X[3, 1] = np.nan
    scores = View(model).score(View(model).read(X))
    np.testing.assert_array_equal(scores.component, model.predict(X))
    np.testing.assert_allclose(scores.log_density, model.score_samples(X))
    # Of a table in its units.
    model, frame = table()
    scores = View(model).score(View(model).read(frame))
    np.testing.assert_allclose(scores.log_density, model.score_samples(frame))
    encoded = scores.log_density - scores.log_units
    np.testing.assert_allclose(encoded, model.mixture_.score_samples(scores.rows))


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_gaussians(covariance_type):
    model, X = gaussian(covariance_type)
    table, K = component_table(model, X), 3
    matrices, component = as_matrices(model), model.predict(X)
    np.testing.assert_array_equal(table.rows, np.bincount(component, minlength=K))
    np.testing.assert_allclose(table.weight.sum(), 1.0)
    np.testing.assert_allclose(table.centre, model.means_)
    # Volumes are determinants in units of the spread.
    scale = np.outer(X.std(axis=0), X.std(axis=0))
    volumes = 0.5 * np.linalg.slogdet(matrices / scale)[1]
    np.testing.assert_allclose(table.log_volume, volumes)
    np.testing.assert_allclose(table.side, np.exp(volumes / 3.0))
    for k in range(K):
        others = [other for other in range(K) if other != k]
        distances = [
            bhattacharyya(model.means_[k], model.means_[o], matrices[k], matrices[o])
            for o in others
        ]
        assert table.neighbour[k] == others[int(np.argmin(distances))]
        np.testing.assert_allclose(table.separation[k], np.sqrt(8.0 * min(distances)))
    # The typical row is the nearest one of the component.
    for k in np.flatnonzero(table.rows):
        members = np.flatnonzero(component == k)
        away = X[members] - model.means_[k]
        far = np.einsum("nd,nd->n", away @ np.linalg.inv(matrices[k]), away)
        assert table.typical[k] == members[far.argmin()]
    # Units of columns do not matter. Spheres stay spheres only if all columns have the same unit.
    units = np.array([1000.0, 1.0, 0.01]) if covariance_type != "spherical" else np.full(3, 7.0)
    factor = units[:, None] if covariance_type in ("full", "tied") else units
    scaled = given(
        model.means_ * units,
        model.covariances_ * (49.0 if covariance_type == "spherical" else factor * units),
        model.weights_,
        covariance_type,
    )
    other = component_table(scaled, X * units)
    np.testing.assert_allclose(other.log_volume, table.log_volume)
    np.testing.assert_array_equal(other.neighbour, table.neighbour)
    np.testing.assert_array_equal(other.typical, table.typical)


def test_neighbours_and_components_without_rows():
    # Between equal shapes, the distance of the centres in standard deviations.
    shape, away = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([3.0, 1.0])
    mixture = given([[0.0, 0.0], away], [shape, shape], covariance_type="full")
    table = component_table(mixture, two_groups())
    np.testing.assert_allclose(table.separation, np.sqrt(away @ np.linalg.solve(shape, away)))
    X = np.random.default_rng(0).normal(size=(50, 2))
    table = component_table(given([[0.0, 0.0], [900.0, 0.0]], np.ones((2, 2))), X)
    assert table.rows.tolist() == [50, 0]
    assert table.typical[1] == -1
    alone = component_table(given([[0.0, 0.0]], np.ones((1, 2))), X)
    assert alone.neighbour.tolist() == [-1]
    assert np.isnan(alone.separation).all()
    # Components that coincide have others as neighbours. A root of what rounding leaves.
    table = component_table(given(np.zeros((9, 2)), np.ones((9, 2))), X)
    assert (table.neighbour != np.arange(9)).all()
    np.testing.assert_allclose(table.separation, 0.0, atol=1e-6)
    # Many columns are searched by all pairs.
    means = np.random.default_rng(0).normal(size=(200, 14))
    table = component_table(given(means, np.ones((200, 14))), means)
    far = np.linalg.norm(means[:, None] - means, axis=2) + np.where(np.eye(200), np.inf, 0.0)
    np.testing.assert_array_equal(table.neighbour, far.argmin(axis=1))
    np.testing.assert_allclose(table.separation, far.min(axis=1))
    # A gap counts as one standard deviation: 0.8^2 + 0.8^2 = 1.28, then 1 + 0.1^2, then 1 + 0.7^2.
    X = np.array([[0.8, 0.8], [0.1, np.nan], [np.nan, 0.7]])
    assert component_table(given([[0.0, 0.0]], [[1.0, 1.0]]), X).typical.tolist() == [1]


def test_counts_and_levels():
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 400)
    rows = np.column_stack(
        [rng.poisson(np.array([2.0, 20.0])[group]), np.where(rng.random(400) < 0.9, group, 2)]
    ).astype(float)
    family = [("poisson", [0]), ("categorical", [1])]
    mixture = FamilyMixture(family, 2, random_state=0, max_iter=20, tol=0.0).fit(rows)
    table = component_table(mixture, rows)
    (rates, levels) = (values for _, values in sorted(mixture.parameters_.items())[::-1])
    rates = rates[:, 0]
    np.testing.assert_allclose(table.centre[:, 0], rates)
    np.testing.assert_array_equal(table.centre[:, 1], levels.argmax(axis=1))
    overlap = np.sqrt(levels[0] * levels[1]).sum()
    expected = 0.5 * (np.sqrt(rates[0]) - np.sqrt(rates[1])) ** 2 - np.log(overlap)
    np.testing.assert_allclose(table.separation, np.sqrt(8.0 * expected), rtol=1e-6)
    shares = np.bincount(rows[:, 1].astype(int)) / 400.0
    entropy = -(levels * np.log(levels)).sum(axis=1) + (shares * np.log(shares)).sum()
    volumes = 0.5 * np.log(rates) - np.log(rows[:, 0].std()) + entropy
    np.testing.assert_allclose(table.log_volume, volumes, rtol=1e-6)


def test_a_table_has_centres_in_its_own_units():
    model, frame, group = people()
    columns = ["height", "town", "age", "since"]
    centre = component_table(model, frame).centre[model.weights_.argmax()]
    assert View(model).names == columns
    assert centre[0] == pytest.approx(frame["height"][group == 0].mean(), rel=1e-3)
    assert View(model).columns[1].levels[int(centre[1])] == "Rome"
    assert centre[3] == pytest.approx(0.0, abs=0.5)


# Clusters.


def described(model, X, n_clusters):
    view = View(model)
    labels = model.merge_tree().labels(n_clusters)
    return describe_clusters(view, view.score(view.read(X)), labels)


def test_clusters_are_described_by_the_columns_that_set_them_apart():
    model, frame, group = people()
    large, small = described(model, frame, 2)
    assert (large.n_rows, small.n_rows) == (np.count_nonzero(group == 0), np.count_nonzero(group))
    assert small.weight == pytest.approx(group.mean(), abs=0.01)
    traits = {trait.column: trait for trait in small.traits}
    assert set(traits) == {"height", "town", "since"}
    height = frame["height"]
    assert traits["height"].value == pytest.approx(height[group == 1].mean(), rel=1e-3)
    assert traits["height"].overall == pytest.approx(height.mean(), rel=1e-3)
    away = (height[group == 1].mean() - height.mean()) / height.std()
    assert traits["height"].difference == pytest.approx(away, rel=0.02)
    assert traits["height"].text == "height 190 (168 in all)"
    share = (frame["town"] == "Oslo")[group == 1].mean()
    assert traits["town"].level == "Oslo"
    assert traits["town"].value == pytest.approx(share, abs=0.02)
    assert traits["town"].text.startswith("town is Oslo in ")
    assert traits["since"].text.startswith("since 2020-10-2")
    # The largest difference comes first, and its sign says where.
    sizes = [abs(trait.difference) for trait in small.traits]
    assert sizes == sorted(sizes, reverse=True)
    assert next(t for t in large.traits if t.column == "height").difference < 0.0


def test_families_of_arrays_have_traits_of_all_kinds():
    model, X = mixed()
    clusters = described(model, X, 2)
    assert sum(cluster.n_rows for cluster in clusters) == X.shape[0]
    levels = [t for cluster in clusters for t in cluster.traits if t.level is not None]
    assert levels
    assert all(0.0 <= trait.value <= 1.0 for trait in levels)
    # One cluster is like the whole.
    (whole,) = described(model, X, 1)
    assert whole.weight == pytest.approx(1.0)
    assert whole.traits == ()


def test_deep_components_are_described_by_their_rows():
    model, X = deep(3)
    view = View(model)
    scores = view.score(view.read(X))
    labels = cluster_labels(view, None)
    clusters = describe_clusters(view, scores, labels)
    assert [cluster.n_components for cluster in clusters] == [1, 1]
    for label, cluster in enumerate(clusters):
        rows = X[labels[scores.component] == label]
        assert cluster.n_rows == rows.shape[0]
        for trait in cluster.traits:
            column = int(trait.column.removeprefix("column "))
            assert trait.value == pytest.approx(rows[:, column].mean())


# Unusual rows.


def test_the_lowest_come_first_with_the_reasons_of_explain():
    rng = np.random.default_rng(0)
    a = rng.normal(size=500)
    X = np.column_stack([a, 2.0 * a + 0.1 * rng.normal(size=500), rng.normal(size=500)])
    mixture = GaussianMixture(2, random_state=0, max_iter=10, tol=0.0).fit(X)
    X[42, 1], X[7], X[9, 2] = 5.0, np.nan, np.nan
    found, scores = unusual_rows(mixture, X, 500), mixture.score_samples(X)
    # Rows of nothing never come.
    kept = np.delete(np.arange(500), 7)
    lowest = kept[np.argsort(scores[kept], kind="stable")]
    assert [row.row for row in found] == lowest.tolist()
    np.testing.assert_allclose([row.log_density for row in found], scores[lowest])
    assert [row.component for row in found] == mixture.predict(X)[lowest].tolist()
    # Gaps are no reasons.
    by_row = {row.row: row for row in found}
    assert {reason.column for reason in by_row[9].reasons} == {"column 0", "column 1"}
    (first,) = unusual_rows(mixture, X, 1, reasons=2)
    assert first.row == 42
    explanation = mixture.explain(X[[42]], top=2)
    columns = explanation.ranked[0].tolist()
    assert [reason.column for reason in first.reasons] == [f"column {c}" for c in columns]
    assert first.reasons[0].observed == X[42, columns[0]]
    np.testing.assert_allclose(first.reasons[0].expected, explanation.expected[0, columns[0]])
    assert not first.reasons[0].is_level
    assert unusual_rows(mixture, X, 0) == []
    with pytest.raises(ValueError, match="n_rows"):
        unusual_rows(mixture, X, -1)


def test_a_detector_finds_rows_that_have_a_component_of_their_own():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(400, 2)), rng.normal(9.0, 0.01, size=(4, 2))])
    mixture = GaussianMixture(4, background=False, random_state=0).fit(X)
    hidden = {400, 401, 402, 403}
    assert not hidden & {row.row for row in unusual_rows(mixture, X, 4)}
    detector = detector_of(mixture, X)
    found = unusual_rows(mixture, X, 4, reasons=1, detector=detector)
    assert {row.row for row in found} == hidden
    assert found[0].score == detector.decision_scores_.max()
    assert found[0].scale in detector.scales_
    assert found[0].reasons[0].column in ("column 0", "column 1")
    assert found[0].log_density == mixture.score_samples(X)[found[0].row]
    # Too few rows, and codes of levels.
    assert detector_of(mixture, X[:40]) is None
    levels = rng.integers(3, size=(100, 2))
    assert detector_of(FamilyMixture("categorical", 2, random_state=0).fit(levels), levels) is None


def test_a_detector_reads_the_columns_of_the_model():
    model, frame, group = people()
    frame = frame.assign(number=np.arange(len(frame)))
    frame.loc[5, "height"] = 190.0 if group[5] == 0 else 160.0
    detector = detector_of(model, frame)
    odd = unusual_rows(model, frame, 1, detector=detector)[0]
    assert odd.row == 5
    assert "number" not in detector.feature_names_in_
    assert {"town", "height"} <= {reason.column for reason in odd.reasons}


def test_a_table_speaks_its_own_terms():
    model, frame, group = people()
    frame = frame.copy()
    frame.loc[5, "height"] = 190.0 if group[5] == 0 else 160.0
    odd = unusual_rows(model, frame, 1)[0]
    assert odd.row == 5
    reasons = {reason.column: reason for reason in odd.reasons}
    assert reasons["town"].is_level
    assert reasons["town"].observed == frame["town"][5]
    assert reasons["height"].observed == frame["height"][5]
    assert [column for column, reason in reasons.items() if reason.unit == "days"] == ["since"]


# Rows of a report.


def table_of(component, K, typical):
    n = component.shape[0]
    scores = RowScores(np.zeros((n, 1)), component, np.zeros(n), np.zeros(n))
    weight = np.bincount(component, minlength=K) / n
    rows = np.bincount(component, minlength=K)
    nothing = np.zeros(K)
    return ComponentTable(weight, rows, nothing, rows, nothing, typical, nothing[:, None], scores)


@pytest.mark.parametrize("n_columns", [4, 400])
def test_a_sample_comes_first_then_unusual_and_typical_rows(n_columns):
    K, n = 400, 50_000
    component = np.random.default_rng(0).integers(K, size=n)
    typical = np.array([np.flatnonzero(component == k)[-1] for k in range(K)])
    table = table_of(component, K, typical)
    odd = [UnusualRow(row, -9.0, 0, ()) for row in (49_000, 49_001)]
    shown = choose_shown(table, odd, n_columns)
    rows = set(shown.rows.tolist())
    assert len(rows) == shown.rows.size
    assert shown.n_sampled == (3000 if n_columns == 4 else 300)
    assert (np.diff(shown.rows[: shown.n_sampled]) > 0).all()
    assert {49_000, 49_001} <= rows
    assert all(shown.rows[place] == row for row, place in shown.place.items())
    # Wide tables have fewer rows, and the heaviest components first.
    heaviest = np.argsort(-table.weight, kind="stable")
    assert set(typical[heaviest[:300]].tolist()) <= rows
    if n_columns == 4:
        assert set(typical.tolist()) <= rows
        assert np.bincount(component[shown.rows], minlength=K).min() >= 8
    else:
        assert shown.rows.size <= 1000


def test_components_without_rows_have_no_typical_one():
    component = np.zeros(10, dtype=np.int64)
    shown = choose_shown(table_of(component, 2, np.array([3, -1])), [], n_columns=1)
    assert sorted(shown.rows.tolist()) == list(range(10))
