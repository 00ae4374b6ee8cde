"""Rows, and short fits of three kinds. Flows have one shape, so that JAX compiles them once."""

import numpy as np

import pickmix


def two_groups():
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(-3.0, 1.0, (100, 2)), rng.normal(3.0, 1.0, (100, 2))])


def table_of(rows):
    return {"a": rows[:, 0], "b": rows[:, 1], "side": np.where(rows[:, 0] > 0, "right", "left")}


def make_gaussian(**parameters):
    """Five passes of EM: one component more than groups, so that it is not done before."""
    return pickmix.GaussianMixture(
        3, algorithm="em", random_state=0, max_iter=5, tol=0.0, **parameters
    )


def make_table(**parameters):
    return pickmix.TableMixture(2, random_state=0, **parameters)


def make_flow(**parameters):
    settings = {"n_layers": 1, "hidden": 3, "max_steps": 60, "evaluate_every": 20}
    settings |= {"patience": None, "random_state": 0}
    return pickmix.FlowMixture(2, **settings, **parameters)


def fitted(make, rows, **parameters):
    return make(**parameters).fit(table_of(rows) if make is make_table else rows)
