"""Fitted models of every kind and their rows, fitted once; reports as tests read them."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import pickmix
from pickmix import FamilyMixture, GaussianMixture, Mixture, TableMixture

COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")
SETTINGS = {"random_state": 0, "max_iter": 5, "tol": 0.0}

#: Texts that would be markup, code or the end of a string if they were not escaped.
HOSTILE_COLUMN = "<script>window.hacked = 1</script>"
HOSTILE_LEVEL = "</script><script>window.hacked = 2</script>"
HOSTILE_LEVELS = (HOSTILE_LEVEL, '"><img src=x onerror="window.hacked=3">', "a & b \u2028 'c'")
HOSTILE_ID = '\'"><b onmouseover="window.hacked=4">{}</b>\\'
HOSTILE_TITLE = "</title><script>window.hacked = 5</script> & co."


def shared(make):
    """Fit once, and give each caller rows that it may change."""
    fitted = functools.cache(make)

    @functools.wraps(make)
    def model_and_rows(*arguments, **settings):
        model, rows = fitted(*arguments, **settings)
        return model, rows.copy()

    return model_and_rows


def two_groups(n_columns=2, n_rows=400):
    """Two groups far apart."""
    X = np.random.default_rng(0).normal(size=(n_rows, n_columns)) * np.arange(1, n_columns + 1)
    X[: n_rows // 2] += 6.0
    return X


@shared
def gaussian(covariance_type="full", n_columns=3, n_components=3):
    X = two_groups(n_columns)
    model = GaussianMixture(n_components, covariance_type=covariance_type, **SETTINGS)
    return model.fit(X), X


@shared
def counts(n_columns=2):
    rates = np.repeat([2.0, 15.0], 200)[:, None]
    X = np.random.default_rng(1).poisson(rates, (400, n_columns)).astype(float)
    return FamilyMixture("poisson", 2, **SETTINGS).fit(X), X


@shared
def categories():
    rng = np.random.default_rng(2)
    X = np.concatenate(
        [rng.choice(4, (200, 2), p=p) for p in ((0.7, 0.1, 0.1, 0.1), (0, 0, 0.5, 0.5))]
    )
    return FamilyMixture("categorical", 2, **SETTINGS).fit(X), X.astype(float)


@shared
def mixed():
    numbers, levels, whole = two_groups(2), categories()[1][:, :1], counts()[1][:, :1]
    X = np.concatenate([numbers[:, :1], whole, levels, numbers[:, 1:]], axis=1)
    family = [("full", [0, 3]), ("categorical", [2]), ("poisson", [1])]
    return FamilyMixture(family, 3, **SETTINGS).fit(X), X


@shared
def table():
    """Columns of all kinds, with gaps; names are not in the order of the alphabet."""
    rng = np.random.default_rng(3)
    n = 400
    group = rng.integers(0, 2, n)
    frame = pd.DataFrame(
        {
            "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, n), unit="D"),
            "kind": np.array(["red", "green", "blue"])[(group + rng.integers(0, 2, n)) % 3],
            "age": rng.integers(20, 60, n) + 20 * group,
            "fixed": 7,
            "breath": 5.0 * group + rng.normal(size=n),
            "calls": rng.poisson(1.0 + 3.0 * group),
            "alive": group == 1,
        }
    )
    frame.loc[:20, "breath"] = np.nan
    frame.loc[10:30, "kind"] = None
    return TableMixture(3, column_transform=None, **SETTINGS).fit(frame), frame


@functools.cache
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
    return (
        TableMixture(2, column_transform=None, random_state=0, max_iter=20, tol=0.0).fit(frame),
        frame,
        group,
    )


CLOSED_FORM = {
    **{kind: functools.partial(gaussian, kind) for kind in COVARIANCE_TYPES},
    "counts": counts,
    "categories": categories,
    "mixed": mixed,
    "table": table,
}


class Bell:
    """Round Gaussians by gradients: the deep mixture that compiles fastest."""

    def init(self, key, n_features):
        return jax.random.normal(key, (n_features,))

    def log_prob(self, params, x):
        return -0.5 * jnp.sum(jnp.square(x - params) + jnp.log(2.0 * jnp.pi))

    def sample(self, params, key):
        return params + jax.random.normal(key, params.shape)


@shared
def deep(n_columns=2):
    """A deep mixture, hardly trained: rows drawn from it are its own all the same."""
    X = two_groups(n_columns)
    settings = {"batch_size": 50, "max_steps": 20, "random_state": 0}
    return Mixture(Bell(), 2, **settings).fit(X), X


def mixture(n_columns=2, n_components=6, covariance_type="full"):
    return gaussian(covariance_type, n_columns, n_components)[0]


def trained(n_columns=2):
    return deep(n_columns)[0]


def drawn_rows(model, n_rows, seed=7):
    """Rows drawn from a model in closed form."""
    rows = model.sample(n_rows, np.random.default_rng(seed))
    return rows if isinstance(model, TableMixture) else rows[0]


def as_matrices(mixture):
    """Covariances (K, D, D) of a `GaussianMixture`."""
    covariances, (K, D) = mixture.covariances_, mixture.means_.shape
    full = {
        "full": lambda: covariances,
        "tied": lambda: np.broadcast_to(covariances, (K, D, D)),
        "diag": lambda: covariances[:, :, None] * np.eye(D),
        "spherical": lambda: covariances[:, None, None] * np.eye(D),
    }
    return full[mixture.covariance_type]()


def given(means, covariances, weights=None, covariance_type="diag"):
    """A mixture with parameters set by hand."""
    means = np.asarray(means, dtype=float)
    K = means.shape[0]
    mixture = GaussianMixture(K, covariance_type=covariance_type)
    mixture.weights_ = np.full(K, 1.0 / K) if weights is None else np.asarray(weights)
    mixture.means_, mixture.covariances_ = means, np.asarray(covariances, dtype=float)
    mixture.n_features_in_ = means.shape[1]
    return mixture


# Reports.


def clusters(n=600, D=2, K=6, seed=0):
    rng = np.random.default_rng(seed)
    centres = 8.0 * rng.normal(size=(K, D))
    return centres[rng.integers(K, size=n)] + rng.normal(size=(n, D))


@shared
def gaussians(K=12, n=600, max_iter=10):
    X = clusters(n)
    return GaussianMixture(K, random_state=0, max_iter=max_iter, tol=0.0).fit(X), X


@functools.cache
def customers(hostile=False):
    """A fitted table of several kinds of columns, with gaps and a column that names the rows."""
    n, rng = 400, np.random.default_rng(0)
    group = rng.integers(0, 3, n)
    levels = HOSTILE_LEVELS if hostile else ("Lyon", "Oslo", "Rome")
    table = {
        "who": np.array([(HOSTILE_ID if hostile else "c{}").format(i) for i in range(n)]),
        (HOSTILE_COLUMN if hostile else "income"): 1000.0 * group + 100.0 * rng.normal(size=n),
        "visits": rng.poisson(1.0 + 3.0 * group).astype(np.float64),
        "city": np.array(levels, dtype=object)[group],
        "since": np.datetime64("2020-01-01") + (200 * group + rng.integers(0, 30, n)),
        "active": np.array([bool(b) for b in rng.random(n) < 0.3 + 0.2 * group], dtype=object),
    }
    table["visits"][:7] = np.nan
    table["city"][3:9] = None
    known = {name: column for name, column in table.items() if name != "who"}
    return TableMixture(4, random_state=0, max_iter=8, tol=0.0).fit(known), table


def payload_of(page):
    """What is embedded in a page."""
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert len(found) == 1
    return json.loads(found[0])


def report_of(model, X, **settings):
    return payload_of(pickmix.report(model, X, **settings))
