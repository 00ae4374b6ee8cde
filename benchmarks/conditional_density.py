"""Log-densities of a target given the other columns, by mixtures of all columns as they come.

The UCI regression sets of `uci-regression/*.npz` in the folder that PICKMIX_DATA names, with their
published splits. `TableMixture()` is fitted to the training rows, all columns alike; the density of
the target given the others is the ratio of two densities. Published values of regressors on the
same splits are about: concrete -3.0, energy -1.2, kin8nm 1.1, power-plant -2.8.

Targets of few values or with atoms have probabilities instead (`kind`, `atoms`), which are not
comparable with densities.

    PICKMIX_DATA=... python benchmarks/conditional_density.py [--seeds 5] [--quick]
"""

from __future__ import annotations

import warnings

import numpy as np
from reporting import Line, begin, data_folder, medians, now, parser_for, print_table, write_lines

from pickmix import TableMixture

SETS = ("concrete", "energy", "kin8nm", "power-plant")


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


def main() -> None:
    parser = parser_for(__doc__, seeds=5)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=SETS)
    arguments = begin(parser)
    lines: list[Line] = []
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
