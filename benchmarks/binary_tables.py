"""Binary tables of the circuits' benchmark: flat mixtures, with and without trees of columns.

Three tables and their splits are those of `debd/*.npz` in the folder that PICKMIX_DATA names (DEBD,
on which sum-product networks and other circuits are compared). For each number of components, and
for "auto", `FamilyMixture("categorical")` is fitted to the training rows with dependence=None and
"tree"; the number is chosen by the validation rows. Measured: mean log-likelihood of validation and
test rows in nats, seconds. Published values: LearnSPN nltcs -6.11, plants -12.98; ID-SPN -6.02,
-12.54, jester -52.86; EiNet -6.02, -13.68, -52.56.

    PICKMIX_DATA=... python benchmarks/binary_tables.py [--tables NAME ...] [--quick]
"""

from __future__ import annotations

import warnings

import numpy as np
from reporting import Line, begin, data_folder, now, parser_for, print_table, write_lines
from sklearn.exceptions import ConvergenceWarning

from pickmix import FamilyMixture

TABLES = ("nltcs", "plants", "jester")
NUMBERS: tuple[int | str, ...] = (20, 100, 300, "auto")


def measure(name: str, K: int | str, dependence: str | None, seed: int) -> Line:
    with np.load(data_folder() / "debd" / f"{name}.npz") as arrays:
        train, valid, test = (arrays[part].astype(int) for part in ("train", "valid", "test"))
    mixture = FamilyMixture("categorical", K, dependence=dependence, random_state=seed)
    started = now()
    mixture.fit(train)
    return {
        "table": name,
        "K": K,
        "dependence": dependence or "none",
        "seed": seed,
        "components": mixture.n_components_,
        "valid": round(float(mixture.score(valid)), 3),
        "test": round(float(mixture.score(test)), 3),
        "seconds": round(now() - started, 1),
    }


def main() -> None:
    parser = parser_for(__doc__, seeds=1)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    arguments = begin(parser)
    warnings.simplefilter("ignore", ConvergenceWarning)
    numbers = NUMBERS[:1] if arguments.quick else NUMBERS
    names = arguments.tables[:1] if arguments.quick else arguments.tables
    lines: list[Line] = []
    for name in names:
        for dependence in (None, "tree"):
            for seed in range(arguments.seeds):
                made = [measure(name, K, dependence, seed) for K in numbers]
                best = max(made, key=lambda line: line["valid"])
                lines += [line | {"chosen": line is best} for line in made]
        print_table(name, [line for line in lines if line["table"] == name])
    write_lines(arguments.out, "binary_tables.csv", lines)


if __name__ == "__main__":
    main()
