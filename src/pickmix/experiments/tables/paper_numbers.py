"""The numbers that the paper prints for deep mixtures: its Tables 2, 3 and 4.

M. Papež, T. Pevný, V. Šmídl: Fitting large mixture models using stochastic component selection,
arXiv:2110.04776. Digits are as printed; only the data sets carry the names of
`pickmix.data.uci.NAMES`. Tables 2 and 4 leave out statlog-satimage, although the text counts wins
"out of 19" there. The printed ranks, which all follow from these numbers, are in the tests.

Means are over five repetitions. The speed-up is the time of SGD over that of MHSAEM-U, although the
captions say it the other way round.

`paper_numbers.csv` has them: columns `best_...` are Table 2 (the architecture with the best
validation value for each algorithm), `fixed_...` Table 3 (one architecture: K = 1024 for networks,
128 for flows), the others Table 4 (training at t95, test and validation means of Table 2).
All dictionaries have keys (data set, model) or (data set, model, algorithm).
"""

from __future__ import annotations

import csv
from pathlib import Path

from pickmix.experiments.runs import MHSAEM_U, SGD

SPTN, FLOW = "sptn", "flow"
MODELS = (SPTN, FLOW)
ALGORITHMS = (SGD, MHSAEM_U)

ByModel = dict[tuple[str, str], float]
ByAlgorithm = dict[tuple[str, str, str], float]

with open(Path(__file__).with_suffix(".csv"), encoding="utf-8", newline="") as _file:
    _ROWS = list(csv.DictReader(_file))


def _by_model(column: str) -> ByModel:
    return {(row["dataset"], row["model"]): float(row[column]) for row in _ROWS if row[column]}


def _by_algorithm(column: str) -> ByAlgorithm:
    return {
        (dataset, model, algorithm): value
        for algorithm, ending in ((SGD, "sgd"), (MHSAEM_U, "mhsaem_u"))
        for (dataset, model), value in _by_model(f"{column}_{ending}").items()
    }


BEST_SPEED_UP, FIXED_SPEED_UP = _by_model("best_speed_up"), _by_model("fixed_speed_up")
BEST_TEST, BEST_STD = _by_algorithm("best_test"), _by_algorithm("best_std")
BEST_K = _by_algorithm("best_k")
FIXED_TEST = _by_algorithm("fixed_test")
TRAIN, TEST = _by_algorithm("train"), _by_algorithm("test")
VALIDATION = _by_algorithm("validation")
