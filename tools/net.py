"""Write the results of some seventy small fits, or compare the present code with such a file.

    python tools/net.py write FILE [PART]      fit, and write all results to FILE, an .npz
    python tools/net.py compare FILE [PART]    fit again, and compare with FILE

PART restricts the run to cases whose names contain it. Only the public interface is used, so that
the same script runs on the code before and after a change: PYTHONPATH chooses one. Numbers are
compared to `--tolerance`, 1e-9, absolute and relative together; texts and gaps must be equal. The
exit code is 1 after a difference.

Stochastic fits may part on another processor, where sums round differently: a file is for the
machine that wrote it, and this is no test of the suite.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import pickmix
from pickmix import FamilyMixture, GaussianMixture, RandomPartition, SearchSet, TableMixture

FITTED = "weights_ means_ covariances_ parameters_ column_limits_ background_ precisions_ n_iter_"
FITTED += " n_steps_ outcome_ n_rows_seen_ lower_bound_ proposal_ n_component_evaluations_"
FITTED += " n_start_evaluations_ n_components_ n_children_ n_trees_ n_paths_ feature_names_in_"


def groups(n: int, n_groups: int = 5, n_columns: int = 3, seed: int = 0) -> np.ndarray:
    """Draw rows of Gaussian groups."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(n_groups, n_columns)) * 4.0
    return centres[rng.integers(0, n_groups, n)] + rng.normal(size=(n, n_columns))


def with_gaps(rows: np.ndarray, share: float = 0.1) -> np.ndarray:
    """Return a copy in which a share of the cells is missing."""
    return np.where(np.random.default_rng(7).random(rows.shape) < share, np.nan, rows)


def counts_and_levels(n: int = 600) -> np.ndarray:
    """Draw rows of two numbers, two counts and two columns of levels, in three groups."""
    rng = np.random.default_rng(1)
    group = rng.integers(0, 3, n)[:, None]
    counts = rng.poisson(1.0 + 3.0 * group, size=(n, 2))
    levels = np.where(rng.random((n, 2)) < 0.7, group, rng.integers(0, 4, (n, 2)))
    return np.concatenate([4.0 * group + rng.normal(size=(n, 2)), counts, levels], axis=1)


def mixed_table(n: int = 400, seed: int = 0, gaps: float = 0.1) -> dict[str, np.ndarray]:
    """Draw a table with a column of every kind, in three groups."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 3, n)
    cities = np.array(["Lyon", "Oslo", "Rome"], dtype=object)
    days = np.round(200.0 * group + 20.0 * rng.normal(size=n)).astype("m8[D]")
    table = {
        "weight": 3.0 * group + rng.normal(size=n),
        "age": np.round(20.0 * group + 30.0 + 5.0 * rng.normal(size=n)),
        "visits": rng.poisson(1.0 + 2.0 * group).astype(np.float64),
        "smokes": (rng.random(n) < 0.2 + 0.3 * group).astype(object),
        "city": cities[np.where(rng.random(n) < 0.8, group, rng.integers(0, 3, n))],
        "since": np.datetime64("2020-01-01") + days,
    }
    missing = {"f": np.nan, "M": np.datetime64("NaT"), "O": None}
    for column in table.values():
        column[rng.random(n) < gaps] = missing[column.dtype.kind]
    return table


X, GAPS = groups(500), with_gaps(groups(500))
MANY = groups(12_000, 200, 4)
LARGE = groups(310_000, 6, 2).astype(np.float32)
KINDS = counts_and_levels()
BROAD = np.concatenate(
    [groups(1500, 8, 2) * 0.2, np.random.default_rng(3).uniform(-12, 12, (99, 2))]
)
VARIANCES = np.random.default_rng(2).uniform(0.1, 2.0, X.shape)
COVARIANCES = VARIANCES[:, :, None] * np.eye(3) + 0.05
WEIGHTS = np.random.default_rng(5).integers(0, 4, 500) / 2.0
GROUPS = [("full", [0, 1]), ("poisson", [2, 3]), ("categorical", [4, 5])]
SMALL = {"max_steps": 60, "dtype": "float64", "hidden": 4}

# Rows, parameters, and arguments of `fit`.
GAUSSIANS: dict[str, tuple[np.ndarray, dict[str, Any], dict[str, Any]]] = {
    "full": (X, {}, {}),
    "tied": (X, {"covariance_type": "tied"}, {}),
    "diag": (X, {"covariance_type": "diag"}, {}),
    "spherical": (X, {"covariance_type": "spherical"}, {}),
    "background": (BROAD, {"n_components": 9}, {}),
    "blocks": (X, {"n_components": 12, "proposal": RandomPartition(4, 0.1)}, {}),
    "given": (X, {"means_init": X[:5], "weights_init": np.full(5, 0.2)}, {}),
    "several starts": (X, {"n_init": 3, "max_iter": 10}, {}),
    "em": (X, {"algorithm": "em"}, {}),
    "em tied": (X, {"algorithm": "em", "covariance_type": "tied"}, {}),
    "em kmeans": (X, {"algorithm": "em", "init_params": "kmeans"}, {}),
    "em random": (X, {"algorithm": "em", "init_params": "random", "max_iter": 20}, {}),
    "saem": (X, {"algorithm": "saem"}, {}),
    "ssaem": (X, {"algorithm": "ssaem"}, {}),
    "tsaem": (X, {"algorithm": "tsaem"}, {}),
    "tsaem all pairs": (X, {"algorithm": "tsaem", "proposal": SearchSet(3, 1, True)}, {}),
    "mcsaem": (X, {"algorithm": "mcsaem", "max_steps": 200}, {}),
    "uniform": (X, {"proposal": "uniform", "max_steps": 200, "step_size": "paper"}, {}),
    "paper": (X, {"proposal": "uniform", "init_params": "paper", "max_steps": 99}, {}),
    "table proposal": (X, {"proposal": "table", "reuse_log_joint": True, "max_steps": 200}, {}),
    "anti": (X, {"proposal": "table-forgetting", "annealing": "anti", "max_steps": 200}, {}),
    "gaps": (GAPS, {}, {}),
    "gaps diag": (GAPS, {"covariance_type": "diag"}, {}),
    "gaps em tied": (GAPS, {"covariance_type": "tied", "algorithm": "em"}, {}),
    "gaps uniform": (GAPS, {"proposal": "uniform", "max_steps": 100}, {}),
    "noise variances": (GAPS, {}, {"noise": VARIANCES}),
    "noise diag": (GAPS, {"covariance_type": "diag"}, {"noise": VARIANCES}),
    "noise covariances": (GAPS, {}, {"noise": COVARIANCES}),
    "weights": (X, {}, {"sample_weight": WEIGHTS}),
    "weights em": (X, {"algorithm": "em"}, {"sample_weight": WEIGHTS}),
    "weights saem gaps": (GAPS, {"algorithm": "saem"}, {"sample_weight": WEIGHTS}),
    "compiled": (MANY, {"n_components": 300, "max_iter": 20}, {}),
    "compiled em": (MANY, {"n_components": 64, "algorithm": "em", "max_iter": 5}, {}),
    "compiled tsaem": (MANY, {"n_components": 300, "algorithm": "tsaem", "max_steps": 30}, {}),
    "compiled table": (MANY, {"n_components": 300, "proposal": "table", "max_steps": 60}, {}),
    "compiled diag": (MANY, {"n_components": 300, "covariance_type": "diag", "max_iter": 9}, {}),
    "compiled gaps": (with_gaps(MANY), {"n_components": 300, "max_iter": 10}, {}),
}
FAMILIES: dict[str, tuple[np.ndarray, dict[str, Any], dict[str, Any]]] = {
    "poisson": (with_gaps(KINDS[:, 2:4]), {"family": "poisson"}, {}),
    "categorical": (with_gaps(KINDS[:, 4:]), {"family": "categorical"}, {}),
    "groups": (with_gaps(KINDS), {"family": GROUPS}, {}),
    "groups complete": (KINDS, {"family": GROUPS, "reg_covar": np.full(6, 1e-3)}, {}),
    "groups em": (with_gaps(KINDS), {"family": GROUPS, "algorithm": "em"}, {}),
    "groups many": (with_gaps(KINDS), {"family": GROUPS, "n_components": 40, "max_iter": 15}, {}),
}
TABLES: dict[str, tuple[str, float, dict[str, Any]]] = {
    "dict": ("dict", 0.1, {}),
    "pandas": ("pandas", 0.1, {}),
    "pyarrow": ("pyarrow", 0.1, {}),
    "csv": ("csv", 0.1, {}),
    "parquet": ("parquet", 0.1, {}),
    "complete diag": ("dict", 0.0, {"covariance_type": "diag"}),
    "schema": ("pandas", 0.1, {"schema": {"visits": "number"}, "exclude": ["city"]}),
    "em": ("dict", 0.1, {"algorithm": "em", "max_iter": 10}),
}
DEEP: dict[str, tuple[str, dict[str, Any]]] = {
    "flow": ("FlowMixture", {"n_components": 3, **SMALL}),
    "flow blocks": ("FlowMixture", {"n_components": 6, "proposal": "partition", **SMALL}),
    "flow sgd": ("FlowMixture", {"n_components": 2, "linear": False, "algorithm": "sgd", **SMALL}),
    "network": ("SumProductTransformNetwork", {"n_children": 3}),
    "network rotations": ("SumProductTransformNetwork", {"n_children": 3, "transforms": True}),
    "network plain": ("SumProductTransformNetwork", {"n_children": 3, "transforms": False}),
    "component": ("Mixture", {"n_components": 3}),
}


class Laplace:
    """A component as users write it."""

    def init(self, key: Any, n_features: int) -> dict[str, Any]:
        """Draw parameters."""
        import jax

        median = jax.random.normal(key, (n_features,))
        return {"median": median, "log_width": 0.0 * median}

    def log_prob(self, params: dict[str, Any], x: Any) -> Any:
        """Return the log-density of a row."""
        import jax.numpy as jnp

        distance = jnp.abs(x - params["median"]) * jnp.exp(-params["log_width"])
        return -jnp.sum(distance + params["log_width"] + jnp.log(2.0))


def fitted(model: Any) -> dict[str, Any]:
    """Return what a fit leaves, without seconds."""
    values = {name: getattr(model, name) for name in FITTED.split() if hasattr(model, name)}
    trace = model.trace_
    return values | {
        f"trace/{name}": trace[name] for name in trace.dtype.names if name != "seconds"
    }


def densities(model: Any, rows: Any, **noise: Any) -> dict[str, Any]:
    """Return what a fit leaves, and what every estimator says of rows."""
    return fitted(model) | {
        "score_samples": model.score_samples(rows, **noise),
        "predict": model.predict(rows, **noise),
        "predict_proba": model.predict_proba(rows, **noise),
        "top": model.top_components(rows, 2, **noise),
        "bic": model.bic(rows),
    }


def fit_array(model: Any, rows: np.ndarray, arguments: dict[str, Any]) -> dict[str, Any]:
    """Fit rows of an array, and make every query that has an answer in closed form."""
    model.fit(rows, **arguments)
    few, noise = rows[:30], {name: arguments["noise"][:30] for name in arguments if name == "noise"}
    drawn, labels = model.sample(20, random_state=3)
    holes = with_gaps(drawn, 0.3)
    conditional = model.conditional(np.where(np.arange(rows.shape[1]) == 0, np.nan, drawn))
    tree, path = model.merge_tree(), pickmix.path(model, rows[:200], n_components=[1, 2, 3, 4])
    explanations = {"few": model.explain(few, **noise), "holes": model.explain(holes)}
    reduced = model.reduce(2, rows[:300])
    return densities(model, few, **noise) | {
        "sample": (drawn, labels),
        "conditional": (conditional.mean(), conditional.std(), conditional.mode()),
        "conditional_score": conditional.score_samples(drawn[:, [0]]),
        "conditional_sample": conditional.sample(2, random_state=1),
        "predict_columns": model.predict_columns(few, 1, return_std=True),
        "impute": (model.impute(few, **noise), model.impute(holes), model.impute(holes, "mode")),
        "impute_draw": model.impute(holes, "draw", n_draws=2, random_state=1),
        "sample_conditional": model.sample_conditional(holes, random_state=2),
        "explain": {
            f"{name}/{field}": getattr(explanation, field)
            for name, explanation in explanations.items()
            for field in ("log_density", "log_conditional", "expected", "spread", "ranked")
        },
        "marginal": model.marginal([1, 0]).score_samples(drawn[:, [1, 0]]),
        "tree": (tree.costs, tree.linkage, tree.labels(2)),
        "path": (path.log_likelihood, path.standard_error, path.bic, path.aic, path.choose()),
        "reduce": (reduced.weights_, reduced.score_samples(few)),
        "level": (model.predict(few, level=2), model.predict_proba(few, level=2)),
        "candidates": model.score_samples(drawn, n_candidates=2, exact_below=-8.0),
    }


def as_form(form: str, table: dict[str, np.ndarray], folder: Path) -> Any:
    """Return a table as another type, or as the path of a file."""
    import pandas
    import pyarrow
    import pyarrow.parquet

    frame = pandas.DataFrame(table)
    arrow = pyarrow.Table.from_pandas(frame, preserve_index=False)
    frame.to_csv(folder / "table.csv", index=False)
    pyarrow.parquet.write_table(arrow, folder / "table.parquet")
    types = {"dict": table, "pandas": frame, "pyarrow": arrow}
    return types.get(form, folder / f"table.{form}")


def fit_table(form: str, gaps: float, settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Fit a table with a column of every kind, and make every query."""
    model = TableMixture(4, random_state=0, **settings)
    model.fit(as_form(form, mixed_table(gaps=gaps), folder))
    few = as_form(form, mixed_table(30, seed=1, gaps=0.2), folder)
    tree, path, explanation = model.merge_tree(), pickmix.path(model, few), model.explain(few)
    conditional = model.conditional({"age": [35, 60, 72], "smokes": [True, False, None]})
    others = {name: [None] * 3 for name in conditional.names}
    fields = (
        "values",
        "log_density",
        "log_conditional",
        "surprise",
        "expected",
        "spread",
        "ranked",
    )
    return densities(model, few) | {
        "encoded": fitted(model.mixture_),
        "schema": (list(model.schema_.kinds.items()), str(model.schema_)),
        "sample": (model.sample(20, random_state=1), model.sample(5, 1, given={"age": 40})),
        "impute": (model.impute(few), model.impute(few, "mode")),
        "impute_draw": model.impute(few, "draw", random_state=1),
        "sample_conditional": model.sample_conditional(few, random_state=2),
        "conditional": (conditional.mean(), conditional.std(), conditional.mode()),
        "conditional_sample": conditional.sample(2, random_state=1),
        "conditional_score": conditional.score_samples(others | {"weight": [0.0, 2.0, 6.0]}),
        "predict_columns": model.predict_columns(few, ["weight", "since"], return_std=True),
        "predict_smokes": model.predict_columns(few, "smokes"),
        "predict_levels": model.predict_levels(few, "smokes"),
        "quantiles": model.predict_columns(few, "weight", quantiles=[0.1, 0.5]),
        "explain": {field: getattr(explanation, field) for field in fields},
        "text": explanation.table(0),
        "marginal": model.marginal(["since", "age"]).score_samples(few),
        "tree": (tree.costs, tree.labels(2)),
        "path": (path.log_likelihood, path.standard_error),
        "reduce": model.reduce(2, few).score_samples(few),
    }


def fit_file(form: str, folder: Path) -> dict[str, Any]:
    """Fit rows of a file: the fit begins with a sample, and then passes over chunks."""
    import pyarrow
    import pyarrow.parquet

    rows = with_gaps(LARGE, 0.05).astype(np.float32) if form == "gaps" else LARGE
    weight = 1.0 + (rows[:, 0] > 0.0) if form == "weights" else None
    columns = pyarrow.table({"a": rows[:, 0], "b": rows[:, 1]})
    pyarrow.parquet.write_table(columns, folder / "rows.parquet", row_group_size=50_000)
    np.save(folder / "rows.npy", rows)
    name = "rows.parquet" if form == "parquet" else "rows.npy"
    with pickmix.open_rows(folder / name, chunk_size=65_536) as source:
        model = GaussianMixture(6, random_state=0, max_iter=8).fit(source, sample_weight=weight)
        return fitted(model) | {
            "score_samples": model.score_samples(source)[::1000],
            "predict": model.predict(source)[::1000],
        }


def fit_deep(kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Fit by gradients, few steps in double precision."""
    settings = {"max_steps": 60, "dtype": "float64", "random_state": 0} | settings
    if kind == "Mixture":
        settings["component"] = Laplace()
    model = getattr(pickmix, kind)(**settings).fit(X[:300])
    answers = densities(model, X[:30])
    if kind != "Mixture":
        answers["sample"] = model.sample(10)
    if kind == "SumProductTransformNetwork":
        answers["trees"] = model.most_probable_trees(X[:30])
    if settings.get("transforms") is False:
        answers["marginal"] = model.score_marginal(X[:30, [0, 2]], [0, 2])
        answers["gaps"] = model.score_samples(GAPS[:30])
    return answers


def fit_batches(model: Any, rows: np.ndarray) -> dict[str, Any]:
    """Learn from batches of several sizes."""
    n = len(rows)
    for batch in np.split(rows, [n // 4, n // 3, n // 2]):
        model.partial_fit(batch)
    return densities(model, rows[:30])


def fit_chunks(folder: Path) -> dict[str, Any]:
    """Learn from the chunks of a function, and from a file of text."""
    rows = groups(6000, 6, 2)
    model = GaussianMixture(6, random_state=0)
    model.partial_fit(pickmix.open_rows(lambda: iter(np.array_split(rows, 5)), chunk_size=1000))
    np.savetxt(folder / "rows.csv", rows, delimiter=",", header="a,b", comments="")
    other = GaussianMixture(6, random_state=0, max_iter=5).fit(folder / "rows.csv")
    return {"chunks": densities(model, rows[:40]), "text": densities(other, folder / "rows.csv")}


def fit_twice(model: Any, rows: Any, few: Any, folder: Path) -> dict[str, Any]:
    """Save, load, query and continue a fit."""
    model.set_params(random_state=0, max_iter=3, warm_start=True).fit(rows)
    loaded = pickmix.load(pickmix.save(model, folder / "model.npz"))
    return {"loaded": densities(loaded, few), "continued": densities(loaded.fit(rows), few)}


def draw_known() -> dict[str, Any]:
    """Draw the mixtures of the experiments."""
    from pickmix.data import mixsim, rotated

    known = mixsim.generate(5, 3, 0.01, random_state=0), rotated.generate(5, 3, 0.1, random_state=0)
    return {"drawn": tuple((mix.means, mix.sample(20, random_state=0)) for mix in known)}


def cases(folder: Path) -> dict[str, Any]:
    """Return functions of no arguments that fit and return results, by name."""
    table, stream = mixed_table(), groups(3000)
    few = {name: column[:30] for name, column in table.items()}
    flow = {"n_components": 2, "random_state": 0, **SMALL}
    found: dict[str, Any] = {}
    for estimator, listed in ((GaussianMixture, GAUSSIANS), (FamilyMixture, FAMILIES)):
        for name, (rows, settings, arguments) in listed.items():
            model = estimator(**{"n_components": 5, "random_state": 0} | settings)
            kind = estimator.__name__.removesuffix("Mixture").lower()
            found[f"{kind} {name}"] = lambda a=(model, rows, arguments): fit_array(*a)
    for name, one in TABLES.items():
        found[f"table {name}"] = lambda a=one: fit_table(*a, folder)
    for form in ("npy", "parquet", "weights", "gaps"):
        found[f"file {form}"] = lambda form=form: fit_file(form, folder)
    for name, other in DEEP.items():
        found[f"deep {name}"] = lambda a=other: fit_deep(*a)
    streams = {
        "gaussian": (GaussianMixture(6, random_state=0), stream),
        "diag": (GaussianMixture(6, covariance_type="diag", random_state=0), stream),
        "gaps": (GaussianMixture(6, random_state=0), with_gaps(stream)),
        "groups": (FamilyMixture(GROUPS, 4, random_state=0), counts_and_levels(1500)),
        "flow": (pickmix.FlowMixture(**flow), X[:300]),
    }
    for name, pair in streams.items():
        found[f"stream {name}"] = lambda a=pair: fit_batches(*a)
    twice = {
        "default": (GaussianMixture(5), X, X[:30]),
        "em": (GaussianMixture(5, algorithm="em"), X, X[:30]),
        "proposal": (GaussianMixture(5, proposal="table"), X, X[:30]),
        "groups": (FamilyMixture(GROUPS, 4), KINDS, KINDS[:30]),
        "table": (TableMixture(4), table, few),
    }
    for name, three in twice.items():
        found[f"saved {name}"] = lambda a=three: fit_twice(*a, folder)
    return found | {"chunks": lambda: fit_chunks(folder), "known mixtures": draw_known}


def flatten(name: str, value: Any, arrays: dict[str, np.ndarray]) -> None:
    """Add a result to arrays of numbers or text, under names with slashes."""
    if isinstance(value, dict) or hasattr(value, "columns"):
        arrays[f"{name}/type"] = np.array(type(value).__name__)
    if hasattr(value, "to_pandas"):
        value = value.to_pandas()
    if hasattr(value, "columns"):
        value = {column: value[column].to_numpy() for column in value.columns}
    if isinstance(value, tuple):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, item in value.items():
            flatten(f"{name}/{key}", item, arrays)
        return
    array = np.asarray(value)
    if array.dtype.kind == "M":
        array = array.astype("M8[us]").astype(np.int64)
    if array.dtype.kind == "O":
        missing = [str(item) in ("None", "nan", "NaT", "<NA>") for item in array.ravel()]
        cells = list(zip(array.ravel(), missing, strict=True))
        try:
            plain = np.array([np.nan if gap else float(item) for item, gap in cells])
        except (TypeError, ValueError):
            plain = np.array(["" if gap else str(item) for item, gap in cells])
        array = plain.reshape(array.shape)
    arrays[name] = array


def difference(ours: np.ndarray | None, theirs: np.ndarray | None) -> float:
    """Return the largest |a - b| / (1 + |b|); infinity if arrays cannot be compared."""
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return np.inf
    if ours.dtype.kind != theirs.dtype.kind:
        return np.inf
    if ours.dtype.kind == "U":
        return 0.0 if np.array_equal(ours, theirs) else np.inf
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    equal = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    with np.errstate(invalid="ignore"):
        sizes = np.where(equal, 0.0, np.abs(ours - theirs) / (1.0 + np.abs(theirs)))
    return float(np.where(np.isnan(sizes), np.inf, sizes).max(initial=0.0))


def main() -> int:
    """Run the command that was given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("part", nargs="?", default="")
    parser.add_argument("--tolerance", type=float, default=1e-9)
    options = parser.parse_args()
    print(f"pickmix of {Path(pickmix.__file__).parent}")
    before = dict(np.load(options.file)) if options.command == "compare" else {}
    written: dict[str, np.ndarray] = {}
    n_different = 0
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = {name: fit for name, fit in cases(Path(folder)).items() if options.part in name}
        for name, fit in run.items():
            start = time.perf_counter()
            arrays: dict[str, np.ndarray] = {}
            flatten(name, fit(), arrays)
            line = f"{name:<28} {len(arrays):>4} arrays {time.perf_counter() - start:6.1f} s"
            written |= arrays
            if options.command == "compare":
                # What is new has nothing to be compared with.
                keys = {key for key in before if key.startswith(f"{name}/")}
                sizes = {key: difference(arrays.get(key), before.get(key)) for key in sorted(keys)}
                bad = [
                    key.removeprefix(f"{name}/") for key in sizes if sizes[key] > options.tolerance
                ]
                n_different += bool(bad)
                line += f"  {max(sizes.values()):8.1e}  "
                line += f"DIFFERENT: {', '.join(bad[:5])}" if bad else "equal"
            print(line, flush=True)
    if options.command == "write":
        np.savez_compressed(options.file, **written)
    else:
        print(f"{len(run)} cases, {n_different} different")
    return int(n_different > 0)


if __name__ == "__main__":
    sys.exit(main())
