"""The imputer, the regressor and the classifier: laws, tables in and out, pipelines, files."""

from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import pickmix
from pickmix import MixtureClassifier, MixtureImputer, MixtureRegressor
from pickmix.estimators import answering
from pickmix.estimators.answering import learn_scores, mean_of_scores

SMALL = {"n_folds": 2, "random_state": 0}


@pytest.fixture
def quick(monkeypatch):
    """Little to choose from, and short fits: enough for what is about the interface."""
    monkeypatch.setattr(answering, "fit_family", partial(answering.fit_family, max_iter=2))
    monkeypatch.setattr(answering, "_WIDTHS", (0.1,))
    monkeypatch.setattr(answering, "_ASKED_WIDTHS", (0.0,))


@parametrize_with_checks(
    [MixtureImputer(1, **SMALL), MixtureRegressor(1, **SMALL), MixtureClassifier(3, **SMALL)],
    xfail_strict=True,
)
def test_scikit_learn_checks(estimator, check, quick):
    check(estimator)


def curve(n_rows, seed=0):
    """Rows (N, 2), and a target that bends with the first and spreads with the second."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (n_rows, 2))
    spread = 0.1 + 0.2 * (X[:, 1] > 0.0)
    return X, 10.0 + np.abs(X[:, 0]) + spread * rng.normal(size=n_rows)


@pytest.fixture(scope="module")
def regressor():
    return MixtureRegressor(16, **SMALL).fit(*curve(1500))


def test_density_mean_and_quantiles_are_of_one_distribution(regressor):
    row = np.array([[1.0, 1.5]])
    y, width = np.linspace(6.0, 16.0, 4001, retstep=True)
    density = np.exp(regressor.log_density(np.repeat(row, y.size, axis=0), y)) * width
    mean, std, quantiles = regressor.predict(row, return_std=True, quantiles=[0.1, 0.9])
    assert density.sum() == pytest.approx(1.0, abs=1e-6)
    assert density @ y == pytest.approx(mean[0], abs=1e-6)
    assert density @ np.square(y - mean) == pytest.approx(std[0] ** 2, rel=1e-6)
    below = np.interp(quantiles[0], y + width / 2.0, np.cumsum(density))
    np.testing.assert_allclose(below, [0.1, 0.9], atol=1e-5)


def test_regressor_learns_the_curve_and_its_spread(regressor):
    X, y = curve(2000, seed=1)
    assert regressor.score(X, y) > 0.85
    low, high = regressor.predict(X, quantiles=[0.05, 0.95])[1].T
    assert np.mean((y > low) & (y < high)) == pytest.approx(0.9, abs=0.05)
    truth = 0.1 + 0.2 * (X[:, 1] > 0.0)
    best = -0.5 * np.square((y - 10.0 - np.abs(X[:, 0])) / truth) - np.log(truth * 2.5066)
    assert best.mean() - regressor.log_density(X, y).mean() < 0.25


def test_draws_follow_the_quantiles(regressor):
    rows = np.array([[1.0, 1.0], [-1.5, -1.0]])
    drawn = regressor.sample(rows, 4000, random_state=1)
    assert drawn.shape == (2, 4000)
    _, quantiles = regressor.predict(rows, quantiles=[0.25, 0.75])
    below = np.mean(drawn[:, :, None] < quantiles[:, None, :], axis=1)
    np.testing.assert_allclose(below, [[0.25, 0.75]] * 2, atol=0.03)


def test_units_of_y_and_monotone_maps_of_x_do_not_matter():
    X, y = curve(500)
    # So few values that all are knots of the map.
    X = X.round(1)
    one = MixtureRegressor(4, **SMALL).fit(X, y)
    other = MixtureRegressor(4, **SMALL).fit(np.exp(X), 1000.0 * y)
    np.testing.assert_allclose(
        other.log_density(np.exp(X), 1000.0 * y), one.log_density(X, y) - np.log(1000.0), rtol=1e-6
    )


def test_rounded_targets_have_bounded_densities():
    X, y = curve(600)
    model = MixtureRegressor(4, **SMALL).fit(X, np.rint(y))
    # A Gaussian of the variance of rounding has its peak here.
    assert model.log_density(X, np.rint(y)).max() <= np.log(np.sqrt(12.0 / (2.0 * np.pi))) + 1e-9


def test_rows_without_a_target_count_and_rows_without_values_get_the_average(quick):
    X, y = curve(400)
    y[200:] = np.nan
    model = MixtureRegressor(4, **SMALL).fit(X, y)
    assert model.predict([[np.nan, np.nan]])[0] == pytest.approx(np.nanmean(y), abs=0.1)
    assert model.mixture_.marginal([0, 1]).model_.n_columns == 2


def groups(n_rows, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n_rows)
    centres = np.array([[-3.0, 0.0], [0.0, 3.0], [3.0, 0.0]])
    return centres[y] + rng.normal(size=(n_rows, 2)), y


def test_few_labels_are_enough_where_rows_show_the_groups():
    X, y = groups(600)
    few = np.full(600, -1)
    few[:12] = y[:12]
    new, truth = groups(500, seed=1)
    model = MixtureClassifier(3, **SMALL).fit(X, few)
    alone = MixtureClassifier(1, **SMALL).fit(X[:12], y[:12])
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.score(new, truth) > 0.9 > alone.score(new, truth)
    np.testing.assert_allclose(model.predict_proba(new).sum(axis=1), 1.0)


def test_missing_labels_may_be_written_in_several_ways(quick):
    X, y = groups(60)
    numbered = MixtureClassifier(3, **SMALL).fit(X, np.where(np.arange(60) < 30, y, -1))
    for labels, missing, settings in (
        (np.array(["a", "b", "c"], dtype=object), None, {}),
        (np.array([0.0, 1.0, 2.0]), np.nan, {}),
        (np.array(["a", "b", "c"]), "?", {"missing_label": "?"}),
    ):
        given = labels[y]
        given[30:] = missing
        model = MixtureClassifier(3, **SMALL, **settings).fit(X, given)
        assert model.classes_.tolist() == labels.tolist()
        np.testing.assert_array_equal(model.predict_proba(X), numbered.predict_proba(X))


def test_minus_one_is_a_class_if_there_is_but_one_other(quick):
    X, y = groups(200)
    model = MixtureClassifier(3, **SMALL).fit(X, np.where(y == 0, -1, 1))
    assert model.classes_.tolist() == [-1, 1]
    assert model.score(X, np.where(y == 0, -1, 1)) > 0.9


def test_the_number_of_classes_is_tried():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 40)
    X = rng.normal(size=(120, 4)) + 6.0 * np.eye(4)[y]
    few = np.where(np.arange(120) % 8 == 0, y, -1)
    model = MixtureClassifier(**SMALL).fit(X, few)
    assert model.n_components_ == 3
    assert model.score(X, y) > 0.98


def table(n_rows=400, seed=0):
    """A table with gaps of all kinds, and the same without them."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(2, size=n_rows)
    frame = pd.DataFrame(
        {
            "size": np.where(kind, 180.0, 160.0) + rng.normal(0.0, 2.0, n_rows),
            "kind": np.array(["small", "tall"])[kind],
            "age": rng.integers(20, 60, n_rows),
        },
        index=np.arange(n_rows) + 7,
    )
    gaps = rng.random(frame.shape) < 0.1
    gaps[:, 2] &= ~gaps[:, :2].any(axis=1)
    return frame.mask(gaps).astype({"age": "Int64"}), frame, gaps


def test_frames_in_and_out():
    frame, truth, gaps = table()
    imputer = MixtureImputer(2, **SMALL)
    filled = imputer.fit_transform(frame)
    assert filled.index.equals(frame.index)
    assert filled.dtypes.equals(frame.dtypes)
    assert not filled.isna().any().any()
    seen = ~gaps
    for place, name in enumerate(frame.columns):
        assert (filled[name][seen[:, place]] == truth[name][seen[:, place]]).all()
    alone = gaps[:, 1] & ~gaps[:, 0]
    assert (filled["kind"] == truth["kind"])[alone].mean() > 0.95
    alone = gaps[:, 0] & ~gaps[:, 1]
    assert np.abs(filled["size"] - truth["size"])[alone].mean() < 3.0


def test_other_tables_get_the_same_cells(quick):
    frame = table(150)[0].reset_index(drop=True)
    imputer = MixtureImputer(2, add_indicator=True, **SMALL)
    expected = imputer.fit_transform(frame)
    columns = {name: frame[name].to_numpy() for name in frame}
    for other in (pl.from_pandas(frame), pa.Table.from_pandas(frame), columns):
        filled = imputer.fit_transform(other)
        assert type(filled) is type(other)
        for name in ("size", "kind", "missingindicator_size"):
            cells = filled[name].to_pylist() if isinstance(other, pa.Table) else list(filled[name])
            assert cells == expected[name].tolist()


def test_indicators_and_names_and_set_output(quick):
    X, _ = curve(200)
    X[:20, 1] = np.nan
    imputer = MixtureImputer(2, add_indicator=True, **SMALL)
    filled = imputer.fit_transform(X)
    np.testing.assert_array_equal(filled[:, 2], np.arange(200) < 20)
    np.testing.assert_array_equal(filled[20:, :2], X[20:])
    framed = imputer.set_output(transform="pandas").transform(X)
    assert list(framed) == ["x0", "x1", "missingindicator_x1"]
    np.testing.assert_array_equal(framed.to_numpy(), filled)


def test_strategies_answer_as_they_say():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 2))
    X[:, 1] = np.exp(X[:, 1])
    gap = [[0.0, np.nan]]
    settings = {"n_components": 1, **SMALL}
    mean = MixtureImputer(**settings).fit(X)
    median = MixtureImputer(strategy="median", **settings).fit(X)
    assert mean.transform(gap)[0, 1] == pytest.approx(X[:, 1].mean(), rel=0.1)
    assert median.transform(gap)[0, 1] == pytest.approx(np.median(X[:, 1]), rel=0.1)
    draws = np.array([d[0, 1] for d in mean.sample(gap, 2000, random_state=0)])
    assert draws.mean() == pytest.approx(mean.transform(gap)[0, 1], rel=0.1)
    assert np.median(draws) == pytest.approx(median.transform(gap)[0, 1], rel=0.1)
    drawn = MixtureImputer(strategy="draw", **settings).fit(X).transform(gap * 50)
    assert np.unique(drawn[:, 1]).size == 50


def test_mean_of_scores_is_the_integral():
    knots = learn_scores(np.random.default_rng(0).exponential(size=200))
    means, variances = np.array([-0.5, 1.0, 4.0]), np.array([0.3, 0.01, 1.0])
    z = np.random.default_rng(1).normal(size=400_000)
    for m, v, found in zip(means, variances, mean_of_scores(knots, means, variances), strict=True):
        drawn = np.interp(m + np.sqrt(v) * z, knots[1], knots[0]).mean()
        assert found == pytest.approx(drawn, abs=5e-3)


def test_pipelines_grids_and_column_transformers(quick):
    X, y = curve(120)
    X[:12, 0] = np.nan
    frame = pd.DataFrame(X, columns=["a", "b"])
    steps = make_column_transformer((MixtureImputer(2, **SMALL), ["a", "b"]))
    grid = GridSearchCV(
        make_pipeline(steps, StandardScaler(), MixtureRegressor(2, **SMALL)),
        {"mixtureregressor__n_components": [1, 4]},
        cv=2,
    )
    assert grid.fit(frame, y).best_params_ == {"mixtureregressor__n_components": 4}
    linear = make_pipeline(MixtureImputer(2, **SMALL), LinearRegression()).fit(X, y)
    assert np.isfinite(linear.predict(X)).all()


def test_tables_of_the_predictors():
    frame, truth, _ = table()
    # Categories of two and of three levels.
    inputs = frame[["size", "age"]].assign(colour=np.resize(["red", "green", "blue"], len(frame)))
    model = MixtureClassifier(2, **SMALL).fit(inputs, truth["kind"])
    assert model.score(inputs, truth["kind"]) > 0.9
    regressor = MixtureRegressor(2, **SMALL).fit(frame[["kind", "age"]], truth["size"])
    assert regressor.predict({"kind": ["tall", "small"], "age": [30, 30]}) == pytest.approx(
        [180.0, 160.0], abs=1.0
    )


@pytest.mark.parametrize("model", [MixtureImputer, MixtureRegressor, MixtureClassifier])
def test_saved_and_loaded(model, tmp_path, quick):
    frame, truth, _ = table(100)
    target = {MixtureRegressor: "size", MixtureClassifier: "kind"}.get(model)
    inputs = frame if target is None else frame.drop(columns=target)
    fitted = model(2, **SMALL).fit(inputs, None if target is None else truth[target])
    again = pickmix.load(pickmix.save(fitted, tmp_path / "model.npz"))
    ask = "transform" if target is None else "predict"
    one, other = getattr(fitted, ask)(inputs), getattr(again, ask)(inputs)
    assert one.equals(other) if target is None else (one == other).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda X, y: MixtureImputer("many").fit(X), 'n_components must be an integer or "auto"'),
        (lambda X, y: MixtureImputer(strategy="best").fit(X), "strategy must be one of"),
        (lambda X, y: MixtureRegressor(300).fit(X, y), "n_components must be at most 80"),
        (lambda X, y: MixtureRegressor(schema={"a": "count"}).fit(X, y), "schema is for tables"),
        (lambda X, y: MixtureRegressor().fit(X, y * np.nan), "y must hold numbers"),
        (lambda X, y: MixtureClassifier().fit(X, np.zeros(100)), "one class"),
        (lambda X, y: MixtureClassifier().fit(X, [None] * 100), "only missing ones"),
        (lambda X, y: MixtureRegressor(n_folds=1).fit(X, y), "n_folds must be an integer >= 2"),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make(*curve(100))
