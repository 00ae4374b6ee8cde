"""How many components? The path over K from one fit with too many, against fits with the right K.

Generated mixtures and BIRCH1 have a true K: 2 K components are fitted, the path over the merge tree
chooses a number on validation rows, and what comes of it is compared on test rows with a fit that
knows K. Real tables have no true K: there the chosen number is compared with the best of fits with
8, 16, ..., 256 components, chosen on the same validation rows.

"merged" is the chosen mixture as merges made it, "refitted" the same after five passes over the
training rows, "scratch" a fit from its own start. Columns of real tables are standardised.

    PICKMIX_DATA=... python benchmarks/path.py [--quick] [--seeds 1] [--only NAME ...]
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from reporting import (
    Line,
    data_folder,
    parser_for,
    print_machine,
    print_table,
    set_clock,
    timed,
    write_lines,
)
from sklearn.exceptions import ConvergenceWarning

from pickmix import GaussianMixture, path
from pickmix.data import rotated

TABLES = (
    "shuttle",
    "cytometry",
    "bike",
    "mammography",
    "skin",
    "tamielectric",
    "uk-accidents",
    "kin40k",
)
POWERS = (8, 16, 32, 64, 128, 256)
MOST_ROWS = 30_000


def thirds(rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training, validation and test rows: 60, 20 and 20 percent."""
    shuffled = np.random.default_rng(seed).permutation(rows)
    cuts = [int(0.6 * len(rows)), int(0.8 * len(rows))]
    train, validation, test = np.split(shuffled, cuts)
    return train, validation, test


def known_cases(quick: bool, seed: int) -> dict[str, tuple[int, np.ndarray]]:
    """Rows with a known number of groups."""
    cases = {}
    for K, width in ((50, 0.09), (50, 0.2), (300, 0.09), (300, 0.2)):
        truth = rotated.generate(K, 8, width, random_state=seed)
        rows, _ = truth.sample((100 if quick else 333) * K, random_state=seed + 1)
        spread = "separate" if width < 0.1 else "overlapping"
        cases[f"rotated, K = {K}, {spread}"] = (K, rows)
    birch = np.loadtxt(data_folder() / "birch" / "birch1.txt")
    cases["birch1"] = (100, birch[:: 5 if quick else 1] / 1e5)
    return cases


def load_table(name: str, seed: int) -> np.ndarray:
    """Some rows of a real table, columns standardised."""
    with np.load(data_folder() / "tables" / f"{name}.npz") as file:
        rows = np.concatenate([file[key] for key in file.files if file[key].ndim == 2])
    rows = rows[:, rows.std(axis=0) > 1e-9].astype(np.float64)
    some = np.random.default_rng(seed).permutation(len(rows))[:MOST_ROWS]
    return (rows[some] - rows[some].mean(axis=0)) / rows[some].std(axis=0)


def follow(mixture: Any, train: np.ndarray, validation: np.ndarray, test: np.ndarray) -> Line:
    """The path of a fitted mixture, and what comes of its choice."""
    _, tree_seconds = timed(mixture.merge_tree)
    found, path_seconds = timed(lambda: path(mixture, validation, train))
    K = found.choose()
    merged, reduce_seconds = timed(lambda: mixture.reduce(K))
    refitted, refit_seconds = timed(lambda: mixture.reduce(K, train))
    return {
        "all": mixture.score(test),
        "chosen": K,
        "best": found.choose("best"),
        "bic": found.choose("bic"),
        "aic": found.choose("aic"),
        "merged": merged.score(test),
        "refitted": refitted.score(test),
        "tree s": tree_seconds,
        "path s": path_seconds,
        "reduce s": reduce_seconds,
        "refit s": refit_seconds,
    }


def known(name: str, K: int, rows: np.ndarray, seed: int) -> Line:
    """A case with a known number of groups."""
    train, validation, test = thirds(rows, seed)
    mixture, seconds = timed(lambda: GaussianMixture(2 * K, random_state=seed).fit(train))
    line = {"case": name, "seed": seed, "rows": len(train), "true K": K, "fit 2K s": seconds}
    line |= follow(mixture, train, validation, test)
    right, seconds = timed(lambda: GaussianMixture(K, random_state=seed).fit(train))
    merged = mixture.reduce(K)
    refitted, refit_seconds = timed(lambda: mixture.reduce(K, train))
    return line | {
        "true K: scratch": right.score(test),
        "true K: merged": merged.score(test),
        "true K: refitted": refitted.score(test),
        "scratch s": seconds,
        "true K refit s": refit_seconds,
    }


def real(name: str, seed: int) -> Line:
    """A real table: the path of 256 components against fits with powers of two."""
    train, validation, test = thirds(load_table(name, seed), seed)
    largest = max(K for K in POWERS if len(train) >= 20 * K)
    mixture, seconds = timed(lambda: GaussianMixture(largest, random_state=seed).fit(train))
    line = {"case": name, "seed": seed, "rows": len(train), "K": largest, "fit s": seconds}
    line |= follow(mixture, train, validation, test)
    at_chosen = GaussianMixture(line["chosen"], random_state=seed).fit(train)
    values, all_seconds = [], 0.0
    for K in POWERS:
        if largest < K:
            break
        fitted, took = timed(lambda K=K: GaussianMixture(K, random_state=seed).fit(train))
        all_seconds += took
        values.append((fitted.score(validation), K, fitted.score(test)))
    _, K, score = max(values)
    return line | {
        "scratch": at_chosen.score(test),
        "powers: K": K,
        "powers: test": score,
        "powers s": all_seconds,
    }


def main() -> None:
    """Measure, print and write."""
    parser = parser_for(__doc__, seeds=1)
    parser.add_argument("--only", nargs="*", help="names of cases and tables")
    arguments = parser.parse_args()
    set_clock(arguments.clock)
    warnings.simplefilter("ignore", ConvergenceWarning)
    print_machine()
    # Compilation is not what is measured.
    GaussianMixture(300, max_iter=2).fit(np.random.default_rng(0).normal(size=(40_000, 8)))
    lines: list[Line] = []
    for seed in range(arguments.seeds):
        for name, (K, rows) in known_cases(arguments.quick, seed).items():
            if not arguments.only or name in arguments.only:
                lines.append(known(name, K, rows, seed))
                print_table(name, lines[-1:])
    if lines:
        write_lines(arguments.out, "path_known.csv", lines)
    lines = []
    for seed in range(arguments.seeds):
        for name in TABLES:
            if not arguments.only or name in arguments.only:
                lines.append(real(name, seed))
                print_table(name, lines[-1:])
    if lines:
        write_lines(arguments.out, "path_tables.csv", lines)


if __name__ == "__main__":
    main()
