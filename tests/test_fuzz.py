"""Random tables, settings and damage: a usable mixture, or an error that says what to do."""

import copy
import datetime
import json
import multiprocessing
import os
import time
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning

import pickmix
from pickmix import (
    FamilyMixture,
    FlowMixture,
    GaussianMixture,
    MixtureDetector,
    SumProductTransformNetwork,
    TableMixture,
)

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
# Deep fits compile for seconds, and a killed process has to start.
fuzz_few = settings(fuzz, max_examples=max(1, N_CASES // 20))
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
            "covariance_type": st.sampled_from(["full", "diag", "low_rank"]),
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


@fuzz_few
@given(numbers(), st.sampled_from([FlowMixture, SumProductTransformNetwork]), st.integers(1, 3))
def test_deep_mixtures(tmp_path_factory, X, estimator, n_components):
    size = {"n_components": n_components}
    if estimator is SumProductTransformNetwork:
        size = {"n_children": (2,), "n_partitions": 1, "n_layers": 1}
    mixture = fitted(estimator(**size, max_steps=20, random_state=0), X)
    if mixture is None:
        return
    scores = mixture.score_samples(X)
    check_log_densities(scores, len(X))
    assert np.isfinite(mixture.sample(5, random_state=0)[0]).all()
    np.testing.assert_allclose(mixture.predict_proba(X).sum(axis=1), 1.0, atol=1e-6)
    folder = tmp_path_factory.mktemp("saved") / "model"
    pickmix.save(mixture, folder)
    np.testing.assert_array_equal(pickmix.load(folder).score_samples(X), scores)


def some_table(n=60):
    rng = np.random.default_rng(0)
    kinds = ("normal", "zeros", "counts", "text", "dates", "flags")
    return pd.DataFrame({kind: (COLUMNS | OTHERS)[kind](rng, n) for kind in kinds})


class SavedArrays(list):
    def __repr__(self):
        # Hypothesis prints the arguments of what fails.
        return "saved arrays"


@pytest.fixture(scope="module")
def saved_arrays(tmp_path_factory):
    """Arrays of saved models, with the rows of their fits."""
    table, kept = some_table(), SavedArrays()
    X = np.random.default_rng(1).normal(size=(60, 3))
    for mixture, rows in (
        (TableMixture(3, max_iter=20, random_state=0), table),
        (GaussianMixture(3, covariance_type="low_rank", max_iter=20, random_state=0), X),
        (FamilyMixture("student_t", 2, max_iter=20, random_state=0), X),
        (MixtureDetector(random_state=0), table),
        (FlowMixture(2, max_steps=20, random_state=0), X),
    ):
        file = tmp_path_factory.mktemp("saved") / "model.npz"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pickmix.save(mixture.fit(rows), file)
        with np.load(file) as arrays:
            kept.append((dict(arrays), rows))
    return kept


ODD_VALUES = (None, -1, 0, 10**30, 1.5, "", "number", [], {}, True, [1, 2], {"array": "weights_"})
ODD_ARRAYS = (
    lambda values: values[:0],
    lambda values: values[..., None],
    lambda values: values.astype("U8"),
    lambda values: np.zeros_like(values),
    lambda values: np.full(values.shape, np.nan),
    lambda values: -np.abs(np.nan_to_num(values)) - 1.0,
    lambda values: np.repeat(values, 2, axis=0) if values.ndim else values,
    lambda values: values.astype(np.float32)[::-1] if values.ndim else values,
)


def replace_somewhere(data, value, rng):
    """Replace a random entry of nested lists and dicts."""
    while True:
        keys = list(data) if isinstance(data, dict) else list(range(len(data)))
        key = keys[rng.integers(len(keys))]
        inner = data[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.1:
            data[key] = value
            return
        data = inner


@fuzz
@given(st.integers(0, 2**32))
def test_damaged_models(tmp_path_factory, saved_arrays, seed):
    rng = np.random.default_rng(seed)
    arrays, rows = saved_arrays[rng.integers(len(saved_arrays))]
    arrays = dict(arrays)
    if rng.random() < 0.5:
        description = json.loads(bytes(arrays["model"]))
        value = copy.deepcopy(ODD_VALUES[rng.integers(len(ODD_VALUES))])
        replace_somewhere(description, value, rng)
        arrays["model"] = np.frombuffer(json.dumps(description).encode(), np.uint8)
    else:
        names = [name for name, values in arrays.items() if values.dtype.kind in "fi"]
        name = names[rng.integers(len(names))]
        arrays[name] = ODD_ARRAYS[rng.integers(len(ODD_ARRAYS))](arrays[name])
    file = tmp_path_factory.mktemp("damaged") / "model.npz"
    np.savez(file, **arrays)
    message = ""
    try:
        pickmix.load(file).score_samples(rows)
    except (ValueError, OSError) as error:
        message = str(error)
    assert len(message) < MOST_LETTERS


def save_in_turns(mixtures, path):
    while True:
        for mixture in mixtures:
            pickmix.save(mixture, path)


@pytest.mark.parametrize("name", ["model", "model.npz"])
def test_killed_saves(tmp_path, name):
    X = np.random.default_rng(0).normal(size=(300, 4))
    mixtures = [GaussianMixture(k, max_iter=5, random_state=0).fit(X) for k in (2, 5)]
    scores = [mixture.score(X) for mixture in mixtures]
    path = tmp_path / name
    pickmix.save(mixtures[0], path)
    processes = multiprocessing.get_context("spawn")
    rng = np.random.default_rng(0)
    for _ in range(max(1, N_CASES // 20)):
        process = processes.Process(target=save_in_turns, args=(mixtures, path))
        before = path.stat().st_mtime_ns
        process.start()
        while path.stat().st_mtime_ns == before:
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.1))
        process.kill()
        process.join()
        assert pickmix.load(path).score(X) in scores
    # What killed processes leave behind is removed when it is old: another may be writing it.
    for leftover in tmp_path.rglob("*.tmp"):
        os.utime(leftover, (0, 0))
    pickmix.save(mixtures[1], path)
    assert not list(tmp_path.rglob("*.tmp"))
