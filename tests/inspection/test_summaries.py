"""What clusters are, what columns hold, and how well columns are predicted."""

import numpy as np
import pandas as pd
import pytest
from fitted_cases import deep, gaussian, mixed, table

from pickmix import GaussianMixture, TableMixture
from pickmix.inspection.summaries import cluster_labels, describe_clusters, summarise_columns
from pickmix.inspection.view import View


def described(model, X, n_clusters):
    view = View(model)
    labels = model.merge_tree().labels(n_clusters)
    return describe_clusters(view, view.look(view.read(X)), labels)


@pytest.fixture(scope="module")
def people():
    """Two groups that differ in height, town and date, and not in age."""
    rng = np.random.default_rng(0)
    group = (rng.random(1000) < 0.3).astype(int)
    frame = pd.DataFrame(
        {
            "height": 160.0 + 30.0 * group + rng.normal(size=1000),
            "town": np.where(rng.random(1000) < np.where(group, 0.9, 0.1), "Oslo", "Rome"),
            "age": rng.normal(40.0, 5.0, 1000),
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(300 * group, unit="D"),
        }
    )
    frame.loc[:99, "age"] = np.nan
    return TableMixture(2, random_state=0, max_iter=20, tol=0.0).fit(frame), frame, group


def test_clusters_are_described_by_the_columns_that_set_them_apart(people):
    model, frame, group = people
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


def test_one_cluster_is_like_the_whole():
    model, X = gaussian("full")
    (whole,) = described(model, X, 1)
    assert whole.weight == pytest.approx(1.0)
    assert whole.traits == ()


def test_families_of_arrays_have_traits_of_all_kinds():
    model, X = mixed()
    clusters = described(model, X, 2)
    assert sum(cluster.n_rows for cluster in clusters) == X.shape[0]
    levels = [t for cluster in clusters for t in cluster.traits if t.level is not None]
    assert levels
    assert all(0.0 <= trait.value <= 1.0 for trait in levels)


def test_deep_components_are_described_by_their_rows():
    model, X = deep("flow", 3)
    view = View(model)
    looked = view.look(view.read(X))
    labels = cluster_labels(view, None)
    clusters = describe_clusters(view, looked, labels)
    assert [cluster.n_components for cluster in clusters] == [1, 1]
    for label, cluster in enumerate(clusters):
        rows = X[labels[looked.component] == label]
        assert cluster.n_rows == rows.shape[0]
        for trait in cluster.traits:
            column = int(trait.column.removeprefix("column "))
            assert trait.value == pytest.approx(rows[:, column].mean())


def test_columns_have_kinds_gaps_and_contents():
    model, frame = table()
    view = View(model)
    columns = {c.name: c for c in summarise_columns(view, view.read(frame))}
    kinds = {name: column.kind for name, column in columns.items()}
    assert kinds == {
        "when": "date",
        "kind": "category",
        "age": "integer",
        "breath": "number",
        "calls": "count",
        "alive": "boolean",
    }
    gaps = frame[list(columns)].isna().mean()
    assert {name: column.missing for name, column in columns.items()} == pytest.approx(
        gaps.to_dict()
    )
    assert columns["kind"].content == "3 levels"
    assert columns["age"].content == f"{frame['age'].min()} to {frame['age'].max()}"
    first, last = (str(date.date()) for date in (frame["when"].min(), frame["when"].max()))
    assert columns["when"].content == f"{first} to {last}"
    assert columns["age"].step == 1.0


def test_predictions_are_those_of_the_other_columns():
    rng = np.random.default_rng(0)
    x = rng.normal(size=2000)
    X = np.stack([x, 0.6 * x + 0.8 * rng.normal(size=2000), rng.normal(size=2000)], axis=1)
    model = GaussianMixture(1).fit(X)
    view = View(model)
    first, second, third = summarise_columns(view, view.read(X))
    expected = model.predict_columns(X, [1])[:, 0]
    share = 1.0 - np.square(X[:, 1] - expected).mean() / X[:, 1].var()
    assert second.predicted == pytest.approx(share)
    assert first.predicted == pytest.approx(0.36, abs=0.05)
    assert third.predicted == pytest.approx(0.0, abs=0.01)
    assert third.baseline == 0.0


def test_levels_are_predicted_against_the_most_frequent_one(people):
    model, frame, _ = people
    view = View(model)
    town = summarise_columns(view, view.read(frame))[1]
    levels, probabilities = model.predict_levels(frame, "town")
    right = (levels[probabilities.argmax(axis=1)] == frame["town"]).mean()
    assert town.predicted == pytest.approx(right)
    assert town.baseline == pytest.approx((frame["town"] == "Rome").mean())
    assert town.predicted > town.baseline + 0.1


@pytest.mark.parametrize("make", [deep, lambda: gaussian("full", 1)])
def test_nothing_is_predicted_without_conditionals_or_other_columns(make):
    model, X = make()
    view = View(model)
    assert all(np.isnan(c.predicted) for c in summarise_columns(view, view.read(X)))
