"""Log-densities of a target given the other columns, by mixtures of all columns as they come.

The UCI regression sets of `uci-regression/*.npz` in the folder that PICKMIX_DATA names, with their
published splits. `TableMixture()` is fitted to the training rows, all columns alike; the density of
the target given the others is the ratio of two densities. Published values of regressors on the
same splits are about: concrete -3.0, energy -1.2, kin8nm 1.1, power-plant -2.8.

Targets of few values or with atoms have probabilities instead (`kind`, `atoms`), which are not
comparable with densities.

With --tables: held-out log-densities of whole tables (`tables/*.npz`, `synthetic/*.csv`), before
(`column_transform=None, dependence=None`) and after. At most 8,000 rows to fit and 4,000 others to
judge. A column with a step has the probability of its step in both: that of a level or an atom, or
the mean density at random points of the step. Tables with atoms or levels in a column without a
step are left out.

    PICKMIX_DATA=... python benchmarks/conditional_density.py [--seeds 5] [--quick] [--tables]
"""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
from reporting import Line, begin, data_folder, medians, now, parser_for, print_table, write_lines
from scipy.special import logsumexp

from pickmix import TableMixture

SETS = ("concrete", "energy", "kin8nm", "power-plant")
TABLES = ("skin", "cytometry", "adult", "bike", "shuttle", "kdd-log", "kegg-directed", "beijing")
TABLES += ("elevators", "magic", "tamielectric", "uk-accidents", "kin40k", "mammography")
N_FITTED, N_JUDGED, N_POINTS = 8000, 4000, 16
BEFORE = {"column_transform": None, "dependence": None}


def measure(name: str, split: int, transform: str | None) -> Line:
    with np.load(data_folder() / "uci-regression" / f"{name}.npz", allow_pickle=True) as arrays:
        data = arrays["data"].astype(float)
        features, target = arrays["features"].astype(int), int(arrays["target"])
        train, test = (arrays[f"{part}_{split}"].astype(int) for part in ("train", "test"))
    columns = {f"x{d}": data[:, d] for d in features.tolist()} | {"y": data[:, target]}
    mixture = TableMixture(random_state=0, column_transform=transform)
    started = now()
    mixture.fit({key: values[train] for key, values in columns.items()})
    seconds = now() - started
    rows = {key: values[test] for key, values in columns.items()}
    given = {key: values for key, values in rows.items() if key != "y"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logs = mixture.score_samples(rows) - mixture.score_samples(given)
    schema = mixture.schema_["y"]
    return {
        "set": name,
        "split": split,
        "transform": transform or "none",
        "kind": schema.kind,
        "atoms": len(schema.atoms),
        "K": mixture.n_components_,
        "log_density": float(np.mean(logs)),
        "seconds": seconds,
    }


def read_table(name: str) -> pd.DataFrame:
    path = data_folder() / "synthetic" / f"{name}-train.csv"
    if path.is_file():
        return pd.read_csv(path)
    with np.load(data_folder() / "tables" / f"{name}.npz") as arrays:
        # The digits that are shown: 0.1 of 32 bits is another number in 64.
        values = arrays["X"].astype(str).astype(np.float64)
    return pd.DataFrame(values, columns=[f"x{d:02d}" for d in range(values.shape[1])])


def log_masses(mixture: TableMixture, rows: pd.DataFrame) -> np.ndarray:
    """Log-densities (N,), with probabilities in columns with a step: means over their cells."""
    stepped = [c for c in mixture.schema_.modelled if c.step is not None and c.kind == "integer"]
    rng, log_steps, logs = np.random.default_rng(0), np.zeros(len(rows)), []
    widths = {}
    for c in stepped:
        is_atom = np.isin(rows[c.name], np.array(c.atoms) + c.origin)
        log_steps += np.where(is_atom, 0.0, np.log(c.step))
        widths[c.name] = np.where(is_atom, 0.0, c.step)
    for _ in range(N_POINTS):
        moved = {n: rows[n] + w * (rng.random(len(rows)) - 0.5) for n, w in widths.items()}
        logs.append(mixture.score_samples(rows.assign(**moved)))
    return np.asarray(logsumexp(logs, axis=0) - np.log(N_POINTS) + log_steps)


def measure_table(name: str) -> list[Line]:
    frame = read_table(name)
    order = np.random.default_rng(0).permutation(len(frame))
    n_fitted = min(N_FITTED, len(frame) * 2 // 3)
    train, test = frame.iloc[order[:n_fitted]], frame.iloc[order[n_fitted:][:N_JUDGED]]
    lines: list[Line] = []
    logs: list[np.ndarray] = []
    for which, options in (("before", BEFORE), ("after", {})):
        started = now()
        mixture = TableMixture(random_state=0, **options).fit(train)
        seconds = now() - started
        logs.append(log_masses(mixture, test))
        facts = {"K": mixture.n_components_, "log_density": float(logs[-1].mean())}
        lines.append({"set": name, "which": which, "seconds": seconds} | facts)
    columns = mixture.schema_.modelled
    if any((c.atoms or c.kind == "ordinal") and c.step is None for c in columns):
        print(name, "has columns that are not comparable", flush=True)
        return []
    gains = logs[1] - logs[0]
    more = {
        "levels": sum(column.kind == "ordinal" for column in columns),
        "atoms": sum(bool(column.atoms) for column in columns),
        "gain": float(gains.mean()),
        "error": float(gains.std() / np.sqrt(len(gains))),
    }
    return [line | more for line in lines]


def main() -> None:
    parser = parser_for(__doc__, seeds=5)
    parser.add_argument("--sets", nargs="*", choices=(*SETS, *TABLES), default=SETS)
    parser.add_argument("--tables", action="store_true", help="densities of whole tables")
    arguments = begin(parser)
    lines: list[Line] = []
    if arguments.tables:
        warnings.simplefilter("ignore")
        for name in TABLES if arguments.sets == SETS else arguments.sets:
            lines += measure_table(name)
            print(*lines[-2:], sep="\n", flush=True)
            write_lines(arguments.out, "table_density.csv", lines)
        return
    for name in arguments.sets:
        for transform in ("auto", None):
            for split in range(1 if arguments.quick else arguments.seeds):
                lines.append(measure(name, split, transform))
                print(lines[-1], flush=True)
    if not arguments.quick:
        write_lines(arguments.out, "conditional_density.csv", lines)
    values = ("K", "log_density", "seconds")
    print_table("log p(y | x), medians of splits", medians(lines, ("set", "transform"), values))


if __name__ == "__main__":
    main()
