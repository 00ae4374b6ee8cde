"""Models that earlier versions saved, in `saved/VERSION`: they load, and answer as they did.

``python tests/model/test_saved_models.py --write`` saves those of the present version.
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import pickmix
from pickmix import FamilyMixture, FlowMixture, GaussianMixture, Mixture, TableMixture
from pickmix import SumProductTransformNetwork as Network

SAVED = Path(__file__).parent / "saved"
MODELS = sorted(
    (version.name, name)
    for version in SAVED.iterdir()
    for name in json.loads((version / "expected.json").read_text(encoding="utf-8"))
)

# One of each class, a stream, and rows with gaps.
CONTINUED = ("gaussian-tied", "gaussian-stream", "family-product", "table.npz", "network-plain")


class Laplace:
    """A component that a saved `Mixture` gets back when it is loaded."""

    def init(self, key, n_features):
        import jax

        median = jax.random.normal(key, (n_features,))
        return {"median": median, "log_width": 0.0 * median}

    def log_prob(self, params, x):
        import jax.numpy as jnp

        distance = jnp.abs(x - params["median"]) * jnp.exp(-params["log_width"])
        return -jnp.sum(distance + params["log_width"] + jnp.log(2.0))


def expected_of(version, name):
    """Rows, and what the model said of them when it was saved."""
    return json.loads((SAVED / version / "expected.json").read_text(encoding="utf-8"))[name]


def rows_of(expected):
    """Rows as an array, with NaN in gaps, or as a table."""
    rows = expected["rows"]
    return rows if isinstance(rows, dict) else np.array(rows, dtype=np.float64)


def load(version, name):
    path = SAVED / version / name
    return pickmix.load(path, **({"component": Laplace()} if name.startswith("mixture") else {}))


@pytest.mark.parametrize(("version", "name"), MODELS)
def test_a_saved_model_answers_as_it_did(version, name):
    expected = expected_of(version, name)
    model, rows = load(version, name), rows_of(expected)
    assert type(model).__name__ == expected["class"]
    # Deep models compute in single precision.
    tolerance = 1e-5 if "dtype" in model.get_params() else 1e-9
    scores = model.score_samples(rows)
    np.testing.assert_allclose(scores, expected["score_samples"], rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(model.predict(rows), expected["predict"])
    assert model.n_steps_ == expected["n_steps_"]


@pytest.mark.parametrize(
    ("version", "name"),
    [(version, name) for version, name in MODELS if name.startswith(CONTINUED)],
)
def test_a_saved_fit_goes_on(version, name):
    expected = expected_of(version, name)
    model, rows = load(version, name), rows_of(expected)
    model.set_params(warm_start=True, max_steps=model.n_steps_ + 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(rows)
    assert model.n_steps_ > expected["n_steps_"]
    assert np.isfinite(model.score_samples(rows)).all()


def groups(n_columns=2):
    rng = np.random.default_rng(0)
    return np.round(3.0 * rng.integers(0, 2, (40, 1)) + rng.normal(size=(40, n_columns)), 3)


def with_gaps(rows):
    return np.where(np.random.default_rng(1).random(rows.shape) < 0.1, np.nan, rows)


def kinds_of_columns():
    """Two numbers, a count and two columns of levels."""
    rng = np.random.default_rng(2)
    group = rng.integers(0, 2, (40, 1))
    levels = np.where(rng.random((40, 2)) < 0.8, group, 2)
    return np.concatenate([groups(), rng.poisson(1.0 + 4.0 * group), levels], axis=1)


def mixed_table():
    rng = np.random.default_rng(3)
    group = rng.integers(0, 2, 40)
    days = np.datetime64("2024-01-01") + (60 * group + rng.integers(0, 30, 40)).astype("m8[D]")
    table = {
        "weight": np.round(3.0 * group + rng.normal(size=40), 3).tolist(),
        "age": (30 + 20 * group + rng.integers(0, 9, 40)).tolist(),
        "visits": rng.poisson(1.0 + 2.0 * group).tolist(),
        "smokes": [bool(share < 0.3) for share in rng.random(40)],
        "city": np.array(["Lyon", "Oslo", "Rome"])[group + rng.integers(0, 2, 40)].tolist(),
        "since": days.astype(str).tolist(),
        "unit": ["kg"] * 40,
    }
    for number, name in enumerate(["weight", "age", "smokes", "city", "since"]):
        table[name][5 * number] = None
    return table


def table_of_numbers():
    """An atom, ordered levels, hours, and a number with a long tail."""
    rng = np.random.default_rng(4)
    group = rng.integers(0, 2, 60)
    return {
        "rain": np.where(rng.random(60) < 0.5, 0.0, np.round(rng.exponential(5.0, 60), 2)).tolist(),
        "stars": (1 + group + rng.integers(0, 3, 60)).tolist(),
        "hour": rng.integers(0, 24, 60).tolist(),
        "price": np.round(np.exp(2.0 * group + rng.normal(size=60)), 3).tolist(),
    }


def make():
    """Small models of every kind, with rows, by the name of the file or folder."""
    X, short = groups(), {"max_iter": 5, "random_state": 0}
    few = {"max_steps": 5, "random_state": 0, "validation_fraction": None}
    product = [("full", [0, 1]), ("poisson", [2]), ("categorical", [3, 4])]
    kinds = {"stars": "ordinal", "hour": "periodic"}
    low_rank = [("low_rank", [0, 1]), *product[1:]]
    background = np.concatenate([X * 0.1, 40.0 * groups()[:6]])
    stream = GaussianMixture(3, random_state=0).partial_fit(X).partial_fit(X[::-1])
    holes, rows = with_gaps(X), kinds_of_columns()
    counts, levels = rows[:, 2:3], rows[:, 3:]
    models = {
        f"gaussian-{kind}.npz": (GaussianMixture(2, covariance_type=kind, **short).fit(X), X)
        for kind in ("full", "tied", "diag", "spherical")
    }
    models |= {
        "gaussian-full": models["gaussian-full.npz"],
        "gaussian-background.npz": (GaussianMixture(3, random_state=0).fit(background), background),
        "gaussian-gaps-em.npz": (GaussianMixture(2, algorithm="em", **short).fit(holes), holes),
        "gaussian-stream.npz": (stream, X),
        "family-poisson.npz": (FamilyMixture("poisson", 2, **short).fit(counts), counts),
        "family-categorical.npz": (FamilyMixture("categorical", 2, **short).fit(levels), levels),
        "family-product": (FamilyMixture(product, 2, **short).fit(with_gaps(rows)), rows),
        "gaussian-low_rank.npz": (
            GaussianMixture(2, covariance_type="low_rank", rank=1, **short).fit(groups(4)),
            groups(4),
        ),
        "family-student_t.npz": (FamilyMixture("student_t", 2, **short).fit(X), X),
        "family-low_rank.npz": (FamilyMixture(low_rank, 2, **short).fit(rows), rows),
        "family-tree.npz": (
            FamilyMixture("categorical", 2, dependence="tree", **short).fit(levels),
            levels,
        ),
        "table-numbers.npz": (
            TableMixture(2, schema=kinds, **short).fit(table_of_numbers()),
            table_of_numbers(),
        ),
        "table.npz": (TableMixture(2, **short).fit(mixed_table()), mixed_table()),
        "table": (TableMixture(2, exclude=["city"], **short).fit(mixed_table()), mixed_table()),
        "flow.npz": (FlowMixture(2, hidden=2, **few).fit(X), X),
        "flow-paper": (FlowMixture(2, hidden=2, linear=False, **few).fit(X), X),
        "mixture.npz": (Mixture(Laplace(), 2, **few).fit(X), X),
    }
    for transforms in ("triangular", "rotations", False):
        name = f"network-{transforms or 'plain'}.npz"
        models[name] = (Network(2, 2, 2, transforms=transforms, **few).fit(X), X)
    return models


def write():
    folder = SAVED / pickmix.__version__
    if folder.exists():
        sys.exit(f"{folder.name} has its models already, and they must stay as they are.")
    expected = {}
    for name, (model, rows) in make().items():
        pickmix.save(model, folder / name)
        table = rows if isinstance(rows, dict) else None
        expected[name] = {
            "class": type(model).__name__,
            "rows": table or [[None if cell != cell else cell for cell in row] for row in rows],
            "score_samples": model.score_samples(rows).tolist(),
            "predict": model.predict(rows).tolist(),
            "n_steps_": int(model.n_steps_),
        }
    lines = [f'"{name}": {json.dumps(entry)}' for name, entry in expected.items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (folder / "expected.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    warnings.simplefilter("ignore")
    write()
