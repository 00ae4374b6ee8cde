"""Fitted models of every kind, and rows drawn from them."""

import numpy as np
import pandas as pd

from pickmix import (
    FamilyMixture,
    FlowMixture,
    GaussianMixture,
    SumProductTransformNetwork,
    TableMixture,
)

COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")
SETTINGS = {"random_state": 0, "max_iter": 5, "tol": 0.0}


def gaussian(covariance_type="full", n_columns=3):
    """Two groups far apart."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, n_columns)) * np.arange(1, n_columns + 1)
    X[:200] += 6.0
    return GaussianMixture(3, covariance_type=covariance_type, **SETTINGS).fit(X), X


def counts():
    rng = np.random.default_rng(1)
    X = np.concatenate([rng.poisson(2.0, (200, 2)), rng.poisson(15.0, (200, 2))]).astype(float)
    return FamilyMixture("poisson", 2, **SETTINGS).fit(X), X


def categories():
    rng = np.random.default_rng(2)
    X = np.concatenate(
        [rng.choice(4, (200, 2), p=p) for p in ((0.7, 0.1, 0.1, 0.1), (0, 0, 0.5, 0.5))]
    )
    return FamilyMixture("categorical", 2, **SETTINGS).fit(X), X.astype(float)


def mixed():
    numbers, levels, whole = gaussian("full", 2)[1], categories()[1][:, :1], counts()[1][:, :1]
    X = np.concatenate([numbers[:, :1], whole, levels, numbers[:, 1:]], axis=1)
    family = [("full", [0, 3]), ("categorical", [2]), ("poisson", [1])]
    return FamilyMixture(family, 3, **SETTINGS).fit(X), X


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
    return TableMixture(3, **SETTINGS).fit(frame), frame


CLOSED_FORM = {
    **{kind: (lambda kind=kind: gaussian(kind)) for kind in COVARIANCE_TYPES},
    "counts": counts,
    "categories": categories,
    "mixed": mixed,
    "table": table,
}


def deep(kind="flow", n_columns=2):
    """Deep mixtures, hardly trained: rows drawn from them are theirs all the same."""
    X = gaussian("full", n_columns)[1]
    settings = {"batch_size": 50, "max_steps": 20, "random_state": 0, "algorithm": "em"}
    if kind == "flow":
        return FlowMixture(2, n_layers=1, hidden=3, **settings).fit(X), X
    return SumProductTransformNetwork(2, 2, 1, **settings).fit(X), X


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
