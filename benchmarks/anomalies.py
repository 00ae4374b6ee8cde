"""Anomalies in the paper's 19 UCI sets: how well the density of a mixture finds them.

Models see normal rows only, 64 % of them; K is the power of two, up to 128 and half the rows, with
the highest likelihood on another 16 %. The remaining 20 % and all of the set's `easy` anomalies are
then sorted by log-density. Measured: the area under the ROC curve (1: every anomaly below every
normal row), and seconds of all fits. Columns are standardised by the rows that are fitted. Rivals:
scikit-learn's GaussianMixture, its K chosen in the same way, and its IsolationForest, which fits
the 80 % at once (it has nothing to choose). Defaults otherwise. Seeds are splits and starts.
Compilation is not in the seconds.

    PICKMIX_DATA=... python benchmarks/anomalies.py [--seeds 3] [--sets NAME ...] [--quick]
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from reporting import (
    Line,
    begin,
    medians,
    now,
    parser_for,
    print_table,
    write_lines,
)
from sklearn.ensemble import IsolationForest
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture as Rival

from pickmix import GaussianMixture
from pickmix.data import uci

COMPONENTS = (1, 2, 4, 8, 16, 32, 64, 128)
QUICK = ("ecoli", "iris", "wine")
WHO = ("pickmix", "scikit-learn", "forest")
# Areas that differ by less are a draw.
DRAW = 0.005


def load(name: str, seed: int) -> tuple[uci.Split, np.ndarray]:
    """The normal rows in three parts, and the anomalies in the units of the first part."""
    split = uci.load(name, "clean", random_state=seed)
    normal, easy = uci.read(name)
    order = np.random.default_rng(seed).permutation(normal.shape[0])
    train = normal[order[: split.train.shape[0]]]
    scale = train.std(axis=0)
    kept = scale > 1e-6
    assert kept.sum() == split.train.shape[1]
    return split, ((easy - train.mean(axis=0)) / np.where(kept, scale, 1.0))[:, kept]


def choose(kind: Any, split: uci.Split, seed: int) -> tuple[Any, int, float]:
    """The mixture with the highest likelihood on validation rows, its K, and compile seconds."""
    best, mixture, chosen, compiling = -np.inf, None, 0, 0.0
    for n_components in COMPONENTS:
        if 2 * n_components > split.train.shape[0]:
            break
        try:
            candidate = kind(n_components, random_state=seed).fit(split.train)
        except ValueError:
            # scikit-learn has no answer where covariances are singular.
            continue
        compiling += getattr(candidate, "compile_seconds_", 0.0)
        value = float(candidate.score(split.validation))
        if value > best:
            best, mixture, chosen = value, candidate, n_components
    return mixture, chosen, compiling


def measure(name: str, who: str, seed: int) -> Line:
    """Area under the ROC curve of one method on one set."""
    split, easy = load(name, seed)
    started = now()
    if who == "forest":
        rows = np.concatenate([split.train, split.validation])
        model, n_components, compiling = IsolationForest(random_state=seed).fit(rows), 0, 0.0
    else:
        kind = GaussianMixture if who == "pickmix" else Rival
        model, n_components, compiling = choose(kind, split, seed)
    seconds = now() - started - compiling
    anomalous = np.repeat([False, True], [split.test.shape[0], easy.shape[0]])
    scores = model.score_samples(np.concatenate([split.test, easy]))
    return {
        "set": name,
        "seed": seed,
        "who": who,
        "anomalies": int(easy.shape[0]),
        "K": n_components,
        "area": float(roc_auc_score(anomalous, -scores)),
        "seconds": seconds,
    }


def wins(table: list[Line], rival: str) -> str:
    """On how many sets pickmix is better than a rival, and on how many it is worse."""
    away = np.array([line["pickmix"] - line[rival] for line in table])
    won, lost = int((away > DRAW).sum()), int((away < -DRAW).sum())
    return f"pickmix against {rival}: {won} won, {lost} lost, {len(table) - won - lost} drawn"


def main() -> None:
    """Measure, print and write."""
    parser = parser_for(__doc__, seeds=3)
    parser.add_argument("--sets", nargs="*", default=list(uci.NAMES))
    arguments = begin(parser)
    sets, seeds = arguments.sets, range(arguments.seeds)
    if arguments.quick:
        sets, seeds = QUICK, range(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    lines: list[Line] = []
    for name in sets:
        for seed in seeds:
            lines += [measure(name, who, seed) for who in WHO]
        print(name, {line["who"]: round(line["area"], 3) for line in lines[-3:]}, flush=True)
    found = {
        (line["set"], line["who"]): line
        for line in medians(lines, ("set", "who"), ("area", "K", "seconds", "anomalies"))
    }
    table = [
        {"set": name, "anomalies": found[name, "pickmix"]["anomalies"]}
        | {who: found[name, who]["area"] for who in WHO}
        | {f"K {who}": found[name, who]["K"] for who in WHO[:2]}
        | {f"s {who}": found[name, who]["seconds"] for who in WHO}
        for name in sets
    ]
    mean: Line = {"set": "mean", "anomalies": float("nan")}
    mean |= {key: float(np.mean([line[key] for line in table])) for key in list(table[0])[2:]}
    print_table("Area under the ROC curve, K and seconds: medians over seeds", [*table, mean])
    for rival in WHO[1:]:
        print(wins(table, rival))
    if not arguments.quick:
        write_lines(arguments.out, "anomalies.csv", lines)


if __name__ == "__main__":
    main()
