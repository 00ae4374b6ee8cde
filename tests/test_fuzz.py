"""Random tables and settings: a usable mixture, or an error that says what to do."""

import datetime
import os
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning

import pickmix
from pickmix import FamilyMixture, GaussianMixture, MixtureDetector, TableMixture

pytestmark = pytest.mark.slow

# So many cases each; more by hand: PICKMIX_FUZZ=5000 python -m pytest -m slow tests/test_fuzz.py
N_CASES = int(os.environ.get("PICKMIX_FUZZ", "60"))
fuzz = settings(
    max_examples=N_CASES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
MOST_LETTERS = 3000  # Of a message.

COLUMNS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "far": lambda rng, n: 1e8 + rng.normal(size=n),
    "small": lambda rng, n: 1e-30 * rng.normal(size=n),
    "large": lambda rng, n: 1e100 * rng.normal(size=n),
    "heavy": lambda rng, n: rng.standard_cauchy(n) ** 3,
    "constant": lambda rng, n: np.full(n, rng.normal()),
    "few": lambda rng, n: rng.integers(0, 3, n).astype(float),
    "counts": lambda rng, n: rng.poisson(3.0, n).astype(float),
    "zeros": lambda rng, n: np.where(rng.random(n) < 0.6, 0.0, rng.exponential(size=n)),
    "rounded": lambda rng, n: rng.normal(size=n).round(1),
    "outlier": lambda rng, n: np.append(rng.normal(size=n - 1), 1e6),
}
OTHERS = {
    "text": lambda rng, n: rng.choice(['a"b', "c,d", "<b>", " e "], n),
    "rare": lambda rng, n: np.array([f"level {min(i, 4)}" for i in range(n)]),
    "names": lambda rng, n: np.array([f"name {i}" for i in range(n)]),
    "flags": lambda rng, n: rng.random(n) < 0.3,
    "dates": lambda rng, n: np.array(
        [datetime.date(2020, 1, 1) + datetime.timedelta(int(d)) for d in rng.integers(0, 400, n)]
    ),
    "integers": lambda rng, n: rng.integers(-5, 900, n),
}


@st.composite
def numbers(draw):
    """Rows of numbers (N, D), some of them missing."""
    n = draw(st.integers(1, 60))
    kinds = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    X = np.column_stack([COLUMNS[kind](rng, n) for kind in kinds])
    X[rng.random(X.shape) < draw(st.sampled_from([0.0, 0.0, 0.2, 0.7]))] = np.nan
    return X[rng.integers(0, n, n)] if draw(st.booleans()) else X


@st.composite
def tables(draw):
    """Tables of columns of any kind, some cells missing."""
    n = draw(st.integers(2, 90))
    makers = COLUMNS | OTHERS
    kinds = draw(st.lists(st.sampled_from(sorted(makers)), min_size=1, max_size=5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    share = draw(st.sampled_from([0.0, 0.0, 0.2, 0.6]))
    columns = {}
    for number, kind in enumerate(kinds):
        cells = pd.Series(makers[kind](rng, n), dtype=object if kind in OTHERS else None)
        columns[f"{kind} {number}"] = cells.mask(rng.random(n) < share).infer_objects()
    return pd.DataFrame(columns)


def fitted(mixture, X):
    """The fitted mixture, or None where a clear error says why there is none."""
    try:
        return mixture.fit(X)
    except (ValueError, TypeError) as error:
        message = str(error)
    assert 10 < len(message) < MOST_LETTERS
    return None


@pytest.fixture(autouse=True)
def _no_leaks():
    """Only warnings that are meant for users are allowed."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", UserWarning)
        yield


def check_log_densities(values, n):
    assert values.shape == (n,)
    assert not np.isnan(values).any()
    assert (values < np.inf).all()


@fuzz
@given(
    numbers(),
    st.fixed_dictionaries(
        {
            "n_components": st.sampled_from([1, 2, 3, 7, "auto"]),
            "covariance_type": st.sampled_from(
                ["full", "tied", "diag", "spherical", "low_rank", "auto"]
            ),
            "reg_covar": st.sampled_from([1e-6, 1e-6, 1e-12, 0.0, 1.0]),
            "algorithm": st.sampled_from(["mhsaem", "mhsaem", "mhsaem", "em"]),
            "background": st.booleans(),
        }
    ),
    st.integers(0, 9),
)
def test_gaussian_mixtures(tmp_path_factory, X, parameters, seed):
    mixture = fitted(GaussianMixture(**parameters, max_iter=20, random_state=seed), X)
    if mixture is None:
        return
    n, D = X.shape
    assert np.isclose(mixture.weights_.sum(), 1.0)
    assert all(np.isfinite(values).all() for values in (mixture.weights_, mixture.means_))
    scores = mixture.score_samples(X)
    check_log_densities(scores, n)
    assert set(mixture.predict(X)) <= set(range(mixture.n_components_))
    np.testing.assert_allclose(mixture.predict_proba(X).sum(axis=1), 1.0)
    drawn, _ = mixture.sample(5, random_state=0)
    assert drawn.shape == (5, D)
    assert np.isfinite(drawn).all()
    filled = mixture.impute(X)
    assert np.isfinite(filled).all()
    np.testing.assert_array_equal(filled[~np.isnan(X)], X[~np.isnan(X)])
    assert not np.isnan(mixture.explain(X[:3]).surprise[~np.isnan(X[:3])]).any()
    folder = tmp_path_factory.mktemp("saved") / "model"
    pickmix.save(mixture, folder)
    np.testing.assert_array_equal(pickmix.load(folder).score_samples(X), scores)


@fuzz
@given(
    numbers(),
    st.sampled_from(["poisson", "categorical", "student_t", "gaussian"]),
    st.sampled_from([1, 2, 5, "auto"]),
    st.sampled_from([None, "tree"]),
)
def test_family_mixtures(X, family, n_components, dependence):
    mixture = FamilyMixture(
        family, n_components, dependence=dependence, max_iter=20, random_state=0
    )
    if fitted(mixture, X) is None:
        return
    check_log_densities(mixture.score_samples(X), len(X))
    drawn, _ = mixture.sample(5, random_state=0)
    assert np.isfinite(drawn).all()
    filled = mixture.impute(X)
    np.testing.assert_array_equal(filled[~np.isnan(X)], X[~np.isnan(X)])
    assert not np.isnan(filled).any()


@fuzz
@given(
    tables(),
    st.fixed_dictionaries(
        {
            "n_components": st.sampled_from([1, 2, 4, "auto"]),
            "column_transform": st.sampled_from(["auto", None]),
            "dependence": st.sampled_from(["tree", None]),
        }
    ),
)
def test_table_mixtures(tmp_path_factory, table, parameters):
    mixture = fitted(TableMixture(**parameters, max_iter=20, random_state=0), table)
    if mixture is None:
        return
    scores = mixture.score_samples(table)
    check_log_densities(scores, len(table))
    drawn = mixture.sample(7, random_state=0)
    assert len(drawn) == 7
    filled = mixture.impute(table)
    kinds = mixture.schema_.kinds
    modelled = [name for name, kind in kinds.items() if kind not in ("constant", "skip")]
    assert not filled[modelled].isna().to_numpy().any()
    explained = mixture.explain(table.head(3), top=2)
    assert len(explained.ranked) == min(3, len(table))
    if len(modelled) > 1:
        predicted = mixture.predict_columns(table.head(4), modelled[:1])
        assert len(
            next(iter(predicted.values())) if isinstance(predicted, dict) else predicted
        ) == min(4, len(table))
    folder = tmp_path_factory.mktemp("saved") / "model"
    pickmix.save(mixture, folder)
    np.testing.assert_array_equal(pickmix.load(folder).score_samples(table), scores)


@fuzz
@given(st.one_of(numbers(), tables()), st.booleans())
def test_detectors(X, novelty):
    detector = fitted(MixtureDetector(novelty=novelty, random_state=0), X)
    if detector is None:
        return
    check_log_densities(detector.score_samples(X), len(X))
    assert set(detector.predict(X)) <= {-1, 1}
    assert len(detector.explain(X[:2], top=1).ranked) == 2
