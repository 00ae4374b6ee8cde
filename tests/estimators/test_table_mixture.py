"""TableMixture: densities in the table's own units, and tables of all kinds."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm, poisson
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from table_cases import mixed_table, rows_of

import pickmix
from pickmix import FamilyMixture, TableMixture


@pytest.fixture(scope="module")
def table():
    return mixed_table()


@pytest.fixture(scope="module")
def fitted(table):
    return TableMixture(3, column_transform=None, random_state=0).fit(table)


@pytest.fixture(scope="module")
def with_gaps():
    return mixed_table(seed=1, gaps=0.15)


@pytest.fixture(scope="module")
def fitted_to_gaps(with_gaps):
    return TableMixture(3, column_transform=None, random_state=0).fit(with_gaps)


def log_densities_by_hand(mixture, table):
    """Sum over components, column by column, out of the parameters and the definitions alone."""
    parameters = mixture.mixture_.parameters_
    # Groups have their columns in the order of names.
    numbers = ["age", "since", "weight"]
    origin = np.datetime64(mixture.schema_["since"].lowest)
    scales = np.array([mixture.schema_[name].scale for name in numbers])
    values = np.column_stack(
        [table["age"], (table["since"] - origin) / np.timedelta64(1, "D"), table["weight"]]
    )
    levels = {"city": ["Lyon", "Oslo", "Rome"], "smokes": [False, True]}
    actual = []
    for i in range(values.shape[0]):
        seen = ~np.isnan(values[i])
        logs = np.log(mixture.weights_)
        for k in range(logs.shape[0]):
            mean = parameters["full0_means"][k] * scales
            covariance = parameters["full0_covariances"][k] * np.outer(scales, scales)
            if seen.any():
                part = multivariate_normal(mean[seen], covariance[np.ix_(seen, seen)])
                logs[k] += part.logpdf(values[i, seen])
            first = 0
            for name in ("city", "smokes"):
                shares = parameters["categorical1_probabilities"][k, first:]
                if table[name][i] is not None:
                    logs[k] += np.log(shares[levels[name].index(table[name][i])])
                first += len(levels[name])
            if not np.isnan(table["visits"][i]):
                rate = parameters["poisson2_rates"][k, 0]
                logs[k] += poisson(rate).logpmf(table["visits"][i])
        actual.append(logsumexp(logs))
    return np.array(actual)


def test_scores_are_log_densities_in_the_units_of_the_table(fitted, table):
    subset = rows_of(table, slice(0, 40))
    np.testing.assert_allclose(
        fitted.score_samples(subset), log_densities_by_hand(fitted, subset), rtol=1e-9
    )


@pytest.mark.parametrize("transform", ["auto", None])
def test_the_record_of_a_fit_has_log_likelihoods_in_the_units_of_the_table(transform):
    random = np.random.default_rng(0)
    table = {
        "price": np.append(np.exp(random.normal(9.0, 1.0, 400)), np.nan),
        "size": np.append(random.normal(120.0, 30.0, 400), np.nan),
        "day": np.append(
            np.datetime64("2020-01-01") + random.integers(0, 900, 400), np.datetime64("NaT")
        ),
    }
    mixture = TableMixture(
        2, schema={"price": "number", "size": "number"}, column_transform=transform, random_state=0
    )
    with pytest.warns(UserWarning, match="missing values only"):
        mixture.fit(table)
    score = mixture.score({name: values[:-1] for name, values in table.items()})
    assert score < -18.0
    # The record is of the step before the last M-step.
    np.testing.assert_allclose(mixture.trace_["log_likelihood"][-1], score, atol=0.02)


def test_scores_of_rows_with_gaps_are_those_of_what_was_seen(fitted_to_gaps, with_gaps):
    subset = rows_of(with_gaps, slice(0, 60))
    assert any(value is None for value in subset["city"])
    np.testing.assert_allclose(
        fitted_to_gaps.score_samples(subset),
        log_densities_by_hand(fitted_to_gaps, subset),
        rtol=1e-9,
    )


def test_standardising_by_hand_gives_the_same_mixture():
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.normal(-3.0, 1.0, 150), rng.normal(4.0, 2.0, 150)])
    X = np.column_stack([x, 0.5 * x + rng.normal(size=300)]) * [1e-4, 1e5] + [3.0, -7e5]
    mixture = TableMixture(2, column_transform=None, random_state=0).fit(
        {"a": X[:, 0], "b": X[:, 1]}
    )
    scales = X.std(axis=0)
    by_hand = FamilyMixture([("full", [0, 1])], 2, random_state=0).fit(X / scales)
    np.testing.assert_allclose(mixture.weights_, by_hand.weights_, rtol=1e-6)
    np.testing.assert_allclose(
        mixture.score_samples({"a": X[:, 0], "b": X[:, 1]}),
        by_hand.score_samples(X / scales) - np.log(scales).sum(),
        rtol=1e-6,
    )


@pytest.mark.parametrize("name", ["weight", "age"])
def test_a_column_in_other_units_shifts_scores_by_the_logarithm(fitted, table, name):
    scaled = {**table, name: 1000.0 * table[name]}
    other = TableMixture(3, column_transform=None, random_state=0).fit(scaled)
    shift = fitted.score_samples(table) - other.score_samples(scaled)
    np.testing.assert_allclose(shift, np.log(1000.0), atol=1e-6)
    np.testing.assert_array_equal(other.predict(scaled), fitted.predict(table))


def test_dates_count_days_whatever_they_are_stored_in(fitted, table):
    fine = {**table, "since": table["since"].astype("M8[ns]")}
    other = TableMixture(3, column_transform=None, random_state=0).fit(fine)
    np.testing.assert_array_equal(other.score_samples(fine), fitted.score_samples(table))


def test_the_order_of_columns_does_not_matter(fitted, table):
    turned = {name: table[name] for name in reversed(table)}
    other = TableMixture(3, column_transform=None, random_state=0).fit(turned)
    np.testing.assert_array_equal(other.score_samples(turned), fitted.score_samples(table))
    assert list(other.sample(2, random_state=0)) == list(turned)


def test_all_kinds_of_tables_give_the_same_fit(with_gaps, tmp_path):
    pd = pytest.importorskip("pandas")
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    with_gaps = rows_of(with_gaps, slice(0, 100))
    frame = pd.DataFrame(with_gaps)
    arrow = pa.Table.from_pandas(frame)
    parquet.write_table(arrow, tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv", index=False)
    settings = {"n_components": 2, "random_state": 0, "max_iter": 2, "tol": 0.0}
    expected = TableMixture(**settings).fit(with_gaps).score_samples(with_gaps)
    for source in (frame, arrow, tmp_path / "t.parquet", tmp_path / "t.csv"):
        mixture = TableMixture(**settings).fit(source)
        np.testing.assert_array_equal(mixture.score_samples(source), expected)
        np.testing.assert_array_equal(mixture.score_samples(with_gaps), expected)


def test_levels_beyond_the_most_still_have_probabilities_that_sum_to_one():
    rng = np.random.default_rng(0)
    names = np.array([f"level {k}" for k in range(30)], dtype=object)
    shares = rng.dirichlet(np.full(30, 0.5))
    table = {"t": rng.choice(names, 4000, p=shares), "x": rng.normal(size=4000)}
    mixture = TableMixture(2, max_levels=5, random_state=0).fit(table)
    assert mixture.mixture_.column_limits_[0] == 4
    seen, counts = np.unique(table["t"].astype(str), return_counts=True)
    subset = {"t": seen.astype(object), "x": np.full(seen.shape, np.nan)}
    probabilities = np.exp(mixture.score_samples(subset))
    assert probabilities.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(probabilities, counts / 4000.0, atol=2e-3)
    drawn = mixture.sample(40_000, random_state=0)["t"].astype(str)
    actual = np.array([np.count_nonzero(drawn == level) for level in seen])
    np.testing.assert_allclose(actual / 40_000.0, counts / 4000.0, atol=0.01)


def test_queries_agree_with_each_other(fitted, table):
    scores, posteriors = fitted.score_samples(table), fitted.predict_proba(table)
    np.testing.assert_allclose(posteriors.sum(axis=1), 1.0)
    np.testing.assert_array_equal(fitted.predict(table), posteriors.argmax(axis=1))
    components, probabilities = fitted.top_components(table, 2)
    np.testing.assert_allclose(
        probabilities, np.take_along_axis(posteriors, components, axis=1), atol=1e-12
    )
    assert fitted.score(table) == pytest.approx(scores.mean())
    # Means and covariances of three numbers, two and one free shares, a rate; and weights.
    n_parameters = 3 * (3 + 6 + 2 + 1 + 1) + 2
    assert fitted.aic(table) == pytest.approx(-2.0 * scores.sum() + 2.0 * n_parameters)
    assert fitted.bic(table) == pytest.approx(-2.0 * scores.sum() + np.log(300.0) * n_parameters)
    np.testing.assert_array_equal(clone(fitted).fit_predict(table), fitted.predict(table))


def test_approximate_scores_are_bounds_and_exact_on_request(fitted_to_gaps, with_gaps):
    exact = fitted_to_gaps.score_samples(with_gaps)
    bounds = fitted_to_gaps.score_samples(with_gaps, n_candidates=1)
    assert (bounds <= exact + 1e-9).all()
    threshold = float(np.quantile(exact, 0.3))
    mixed = fitted_to_gaps.score_samples(with_gaps, n_candidates=1, exact_below=threshold)
    np.testing.assert_array_equal(mixed < threshold, exact < threshold)


@pytest.mark.parametrize("suffix", ["model", "model.npz"])
def test_saved_and_loaded(fitted_to_gaps, with_gaps, tmp_path, suffix):
    again = pickmix.load(pickmix.save(fitted_to_gaps, tmp_path / suffix))
    assert again.schema_ == fitted_to_gaps.schema_
    assert again.get_params() == fitted_to_gaps.get_params()
    np.testing.assert_array_equal(
        again.score_samples(with_gaps), fitted_to_gaps.score_samples(with_gaps)
    )
    first, second = (m.sample(20, random_state=1) for m in (again, fitted_to_gaps))
    for name, values in second.items():
        np.testing.assert_array_equal(first[name], values)
        assert first[name].dtype == values.dtype
    assert again.feature_names_in_.tolist() == list(with_gaps)


def test_scikit_learn_conventions(fitted, table):
    mixture = TableMixture(4, schema={"age": "skip"}, covariance_type="diag", max_levels=7)
    copied = clone(mixture)
    assert copied.get_params() == mixture.get_params()
    assert copied.schema == {"age": "skip"}
    assert not hasattr(copied, "weights_")
    with pytest.raises(NotFittedError):
        copied.score_samples(table)
    assert fitted.n_features_in_ == 6
    assert fitted.feature_names_in_.tolist() == list(table)
    assert fitted.converged_
    assert fitted.weights_.shape == (3,)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schema": ["age"]}, "schema must be a dict"),
        ({"exclude": "age"}, "exclude must be a list"),
        ({"exclude": ["ages"]}, "exclude names the column 'ages'"),
        ({"covariance_type": "round"}, "covariance_type must be one of"),
        ({"covariance_type": "auto"}, '"auto" is for GaussianMixture'),
        ({"reg_covar": -1.0}, "reg_covar must be a finite number >= 0"),
        ({"max_levels": 1}, "max_levels must be an integer >= 2"),
        ({"n_components": 301}, "n_components must be at most"),
        ({"n_components": 0}, "n_components must be an integer >= 1"),
        ({"algorithm": "magic"}, "algorithm must be one of"),
    ],
)
def test_parameters_that_are_refused(table, settings, message):
    with pytest.raises(ValueError, match=message):
        TableMixture(**{"n_components": 2, **settings}).fit(table)


def test_infinite_values_and_unseen_levels_later(fitted, table):
    subset = rows_of(table, slice(0, 3))
    with pytest.raises(ValueError, match="'weight' must hold finite numbers, but row 1"):
        fitted.score_samples({**subset, "weight": [1.0, -np.inf, 2.0]})
    unseen = {**subset, "city": ["Oslo", "Bonn", None]}
    with pytest.warns(UserWarning, match="'Bonn'"):
        scores = fitted.score_samples(unseen)
    missing = fitted.score_samples({**subset, "city": ["Oslo", None, None]})
    np.testing.assert_array_equal(scores, missing)


def test_warm_start_goes_on_with_the_same_schema(table):
    mixture = TableMixture(3, column_transform=None, random_state=0, warm_start=True).fit(table)
    schema, steps = mixture.schema_, mixture.n_steps_
    half = rows_of(table, slice(0, 150))
    mixture.fit(half)
    assert mixture.schema_ is schema
    assert mixture.n_steps_ > steps


@pytest.mark.parametrize(
    ("covariance_type", "step"), [("diag", 1.0), ("diag", 0.1), ("diag", 25.0), ("full", 1.0)]
)
def test_ties_do_not_make_densities_unbounded(covariance_type, step):
    rng = np.random.default_rng(0)
    # Six values only, far apart: without a floor every component would collapse on one of them.
    values = rng.permutation(np.repeat(np.array([1, 4, 11, 30, 61, 100]), 40)) * step
    table = {"x": np.round(values, 1), "y": rng.normal(size=240)}
    settings = {"covariance_type": covariance_type, "reg_covar": 1e-9, "random_state": 0}
    mixture = TableMixture(6, column_transform=None, **settings).fit(table)
    assert mixture.schema_["x"].step == step
    alone = mixture.score_samples({"x": table["x"], "y": [None] * 240})
    bound = norm(0.0, step / np.sqrt(12.0)).logpdf(0.0)
    assert (alone <= bound + 1e-9).all()
    # The bound is what a component on a single value reaches, times its weight.
    if covariance_type == "diag":
        assert alone.max() > bound + np.log(1.0 / 6.0) - 0.5
    free = TableMixture(6, column_transform=None, schema={"x": "number"}, **settings).fit(table)
    unbounded = free.score_samples({"x": table["x"], "y": [None] * 240})
    if covariance_type == "diag":
        assert unbounded.max() > bound + 1.0
