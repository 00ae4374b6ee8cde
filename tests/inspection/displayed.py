"""Fitted mixtures to draw."""

import functools

import numpy as np
import pandas as pd

from pickmix import FamilyMixture, FlowMixture, GaussianMixture, TableMixture

SETTINGS = {"random_state": 0, "max_iter": 5, "tol": 0.0}


def rows(n_columns=2, n_rows=400):
    X = np.random.default_rng(0).normal(size=(n_rows, n_columns)) * np.arange(1, n_columns + 1)
    X[: n_rows // 2] += 8.0
    return X


@functools.cache
def gaussian(n_columns=2, n_components=6, covariance_type="full"):
    return GaussianMixture(n_components, covariance_type=covariance_type, **SETTINGS).fit(
        rows(n_columns)
    )


@functools.cache
def flow(n_columns=2):
    settings = {"batch_size": 50, "max_steps": 20, "random_state": 0, "algorithm": "em"}
    return FlowMixture(2, n_layers=1, hidden=3, **settings).fit(rows(n_columns))


@functools.cache
def table():
    """A fitted mixture of a table, and the table."""
    rng = np.random.default_rng(3)
    group = rng.integers(0, 2, 300)
    frame = pd.DataFrame(
        {
            "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 99, 300), "D"),
            "kind": np.array(["red", "green", "blue"])[(group + rng.integers(0, 2, 300)) % 3],
            "breath": 5.0 * group + rng.normal(size=300),
            "age": rng.integers(20, 60, 300) + 20 * group,
        }
    )
    frame.loc[:20, "breath"] = np.nan
    return TableMixture(4, **SETTINGS).fit(frame), frame


@functools.cache
def counts():
    X = np.random.default_rng(1).poisson([[2.0], [9.0]] * 100).astype(float)
    return FamilyMixture("poisson", 2, **SETTINGS).fit(X), X
