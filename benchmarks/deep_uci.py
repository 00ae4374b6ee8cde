"""Deep mixtures on UCI sets: test log-likelihood and time of mhsaem and sgd, and of two floors.

    PICKMIX_DATA=... python benchmarks/deep_uci.py [--sets iris,wine] [--splits 5] [--steps 1000]

For each set, data protocol and split (64/16/20 by seed): a mixture of 128 flows and a
sum-product-transform network with s^l = 1024 (s = 32, b = 2, l = 2), each by mhsaem and by sgd at
the same number of steps; for two splits of the protocol "clean" also by mhsaem at five times as
many, from our start and from the paper's. The parameters with the best validation log-likelihood
are tested. Floors: one Gaussian with full covariance, and a Gaussian mixture whose number of
components, covariance type and regularisation are chosen on the validation rows.

Rows are appended to results/deep_uci.csv as they come, and what is there is not run again; the
tables in results/deep_uci.md are made from it.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from itertools import product
from pathlib import Path

import numpy as np

from pickmix import FlowMixture, GaussianMixture, SumProductTransformNetwork
from pickmix.data import uci

RESULTS = Path(__file__).parent / "results"
SETS = ("ecoli", "iris", "page-blocks", "pima-indians", "wine", "yeast")
PROTOCOLS = ("paper", "clean")
COLUMNS = ["set", "protocol", "split", "model", "algorithm", "start", "steps"]
COLUMNS += ["test", "validation", "train", "seconds", "evaluations", "best_step"]
MODELS = {
    "flow": (FlowMixture, {"n_components": 128}),
    "sptn": (SumProductTransformNetwork, {"n_children": 32, "n_partitions": 2, "n_layers": 2}),
}


def fit_deep(split: uci.Split, model: str, algorithm: str, start: str, steps: int, seed: int):
    estimator, shape = MODELS[model]
    mixture = estimator(
        **shape,
        algorithm=algorithm,
        init_params=start,
        max_steps=steps,
        evaluate_every=max(1, steps // 40),
        patience=None,
        random_state=seed,
    ).fit(split.train, validation_data=split.validation)
    best = int(np.nanargmax(mixture.trace_["validation"]))
    return {
        "test": mixture.score(split.test),
        "validation": mixture.best_validation_,
        "train": float(mixture.trace_["log_likelihood"][best]),
        "seconds": float(mixture.trace_["seconds"][-1]),
        "evaluations": mixture.n_component_evaluations_,
        "best_step": int(mixture.trace_["step"][best]),
    }


def fit_floor(split: uci.Split, model: str, seed: int):
    """One Gaussian, or the Gaussian mixture that the validation rows like best."""
    settings = [(1, "full", 1e-3)]
    if model == "gaussian mixture":
        most = max(1, split.train.shape[0] // 10)
        sizes = [k for k in (1, 2, 4, 8, 16, 32) if k <= most]
        settings = list(product(sizes, ("full", "diag"), (1e-1, 1e-2, 1e-3)))
    fitted = [
        GaussianMixture(
            k, covariance_type=kind, algorithm="em", reg_covar=regular, random_state=seed
        ).fit(split.train)
        for k, kind, regular in settings
    ]
    best = max(fitted, key=lambda mixture: mixture.score(split.validation))
    return {
        "test": best.score(split.test),
        "validation": best.score(split.validation),
        "train": best.score(split.train),
        "seconds": float(sum(mixture.trace_["seconds"][-1] for mixture in fitted)),
        "evaluations": sum(mixture.n_component_evaluations_ for mixture in fitted),
        "best_step": best.n_components,
    }


def plan(sets, splits, steps):
    # Splits outside: a run that is stopped has fewer of them, not fewer sets.
    for seed, name, protocol in product(range(splits), sets, PROTOCOLS):
        for model in ("gaussian", "gaussian mixture"):
            yield name, protocol, seed, model, "em", "-", 0
        for model in MODELS:
            yield name, protocol, seed, model, "mhsaem", "auto", steps
            yield name, protocol, seed, model, "sgd", "auto", steps
            if protocol == "clean" and seed < 2:
                yield name, protocol, seed, model, "mhsaem", "auto", 5 * steps
                yield name, protocol, seed, model, "mhsaem", "paper", 5 * steps


def read(path: Path) -> list[dict]:
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def key(row) -> tuple:
    return tuple(str(row[column]) for column in COLUMNS[:7])


def summarise(rows: list[dict]) -> str:
    """Median and range over splits, one table per protocol."""
    lines = []
    for protocol in PROTOCOLS:
        here = [row for row in rows if row["protocol"] == protocol]
        systems = sorted(
            {(r["model"], r["algorithm"], r["start"], int(r["steps"])) for r in here},
            key=lambda s: (not s[0].startswith("gaussian"), s),
        )
        names = sorted({row["set"] for row in here})
        lines += [f"## Protocol `{protocol}`", ""]
        titles = [
            m if m.startswith("gaussian") else f"{m} {a}, start {s}, {t:,} steps"
            for m, a, s, t in systems
        ]
        lines.append("| set | " + " | ".join(titles) + " |")
        lines.append("|---" * (len(systems) + 1) + "|")
        for name in names:
            cells = []
            for system in systems:
                found = [
                    row
                    for row in here
                    if row["set"] == name
                    and (row["model"], row["algorithm"], row["start"], int(row["steps"])) == system
                ]
                if not found:
                    cells.append("-")
                    continue
                test = np.array([float(row["test"]) for row in found])
                seconds = np.mean([float(row["seconds"]) for row in found])
                spread = f"{test.min():.2f} to {test.max():.2f}"
                cells.append(f"{np.median(test):.2f} ({spread}), {seconds:.1f} s")
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    table = RESULTS / "deep_uci.csv"
    rows = read(table)
    known = {key(row) for row in rows}
    for task in plan(options.sets.split(","), options.splits, options.steps):
        row = dict(zip(COLUMNS, task, strict=False))
        if key(row) in known:
            continue
        split = uci.load(row["set"], row["protocol"], random_state=row["split"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if row["model"].startswith("gaussian"):
                row |= fit_floor(split, row["model"], row["split"])
            else:
                row |= fit_deep(
                    split, row["model"], row["algorithm"], row["start"], row["steps"], row["split"]
                )
        new = not table.exists()
        with open(table, "a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if new:
                writer.writeheader()
            writer.writerow(row)
        print(*(row[column] for column in COLUMNS[:11]), flush=True)
    text = f"# {__doc__.splitlines()[0]}\n\n"
    text += "Median test log-likelihood (lowest to highest split), mean work time.\n\n"
    (RESULTS / "deep_uci.md").write_text(text + summarise(read(table)))


if __name__ == "__main__":
    main()
