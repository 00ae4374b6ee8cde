"""The paper's 19 UCI sets with K chosen on validation rows, against scikit-learn.

Both fit Gaussian mixtures with full covariances, default settings, K in 1, 2, 4, ..., 128 as long
as there are twice as many training rows, and take the K whose mixture gives the validation rows the
highest likelihood. Protocol "paper" of `pickmix.data.uci`. Prints and writes the log-likelihood per
test row. Seeds are splits and starts.

    PICKMIX_DATA=... python benchmarks/uci_chosen.py [--seeds 3] [--sets NAME ...]
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as Rival

from pickmix import GaussianMixture
from pickmix.data import uci

COMPONENTS = (1, 2, 4, 8, 16, 32, 64, 128)


def choose(kind: Any, split: uci.Split, seed: int) -> dict[str, float]:
    """The chosen K, its test log-likelihood, and seconds of all fits."""
    best, chosen, test = -np.inf, 0, np.nan
    started = time.perf_counter()
    for n_components in COMPONENTS:
        if 2 * n_components > split.train.shape[0]:
            break
        try:
            mixture = kind(n_components, random_state=seed).fit(split.train)
        except ValueError:
            # scikit-learn has no answer where covariances are singular.
            continue
        value = float(mixture.score(split.validation))
        if value > best:
            best, chosen, test = value, n_components, float(mixture.score(split.test))
    return {"K": chosen, "test": test, "seconds": time.perf_counter() - started}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sets", nargs="*", default=list(uci.NAMES))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    lines = []
    for name in arguments.sets:
        for seed in range(arguments.seeds):
            split = uci.load(name, "paper", random_state=seed)
            for who, kind in (("pickmix", GaussianMixture), ("scikit-learn", Rival)):
                found = choose(kind, split, seed)
                rounded = {key: round(value, 3) for key, value in found.items()}
                lines.append({"set": name, "seed": seed, "who": who, **rounded})
        means = {
            who: np.mean(
                [line["test"] for line in lines if (line["set"], line["who"]) == (name, who)]
            )
            for who in ("pickmix", "scikit-learn")
        }
        print(name, {who: round(float(value), 2) for who, value in means.items()}, flush=True)
        with (arguments.out / "uci_chosen.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, lines[0])
            writer.writeheader()
            writer.writerows(lines)


if __name__ == "__main__":
    main()
