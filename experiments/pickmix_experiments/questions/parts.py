"""What parts of a default fit bring: start, relocation, step sizes, batches, block sizes.

`held_out` is the mean log-density of 20,000 new rows; evaluations are those of a component on a
row, the start's included, divided by the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pickmix import GaussianMixture, RandomPartition
from pickmix.data import rotated
from pickmix_experiments.evidence import Line, Question, timed

_ROWS = {"init_params": "random_from_data"}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "no relocation": {"proposal": RandomPartition(relocate=False)},
    "rows as start": {**_ROWS, "proposal": RandomPartition(relocate=False)},
    "rows as start, relocation": {**_ROWS, "proposal": RandomPartition(relocate=True)},
    "G = 8": {"proposal": RandomPartition(block_size=8)},
    "G = 16": {"proposal": RandomPartition(block_size=16)},
    "G = 64": {"proposal": RandomPartition(block_size=64)},
    "M = 2 partitions per visit": {"n_samples": 2},
    "gamma = 1 throughout": {"step_size": 1.0},
    "gamma = 0.3 throughout": {"step_size": 0.3},
    "gamma = t^-0.6": {"step_size": lambda t: t**-0.6},
    "batches of 10 rows per component": {"batch_size": 3_000},
    "batches of 40 rows per component": {"batch_size": 12_000},
}


def cells(quick: bool) -> Iterator[Line]:
    sizes = {"K": 40, "n_rows": 2_000} if quick else {"K": 300, "n_rows": 60_000}
    for setting in ("separated", "overlapping"):
        for variant in ("default", "no relocation", "G = 8") if quick else VARIANTS:
            for seed in range(1 if quick else 3):
                yield {"setting": setting, "variant": variant, "seed": seed, **sizes}


def measure(setting: str, variant: str, seed: int, K: int, n_rows: int) -> Iterator[Line]:
    width = 0.09 if setting == "separated" else 0.2
    truth = rotated.generate(K, 8, width, random_state=0)
    rows, new = (truth.sample(n, random_state=s)[0] for n, s in ((n_rows, 0), (20_000, 1)))
    mixture = GaussianMixture(K, random_state=seed, **VARIANTS[variant])
    _, seconds = timed(mixture.fit, rows)
    evaluations = mixture.n_component_evaluations_ + mixture.n_start_evaluations_
    yield {"held_out": mixture.score(new), **seconds, "evaluations_per_row": evaluations / n_rows}


QUESTION = Question(
    cells, measure, "setting variant", "held_out seconds cpu_seconds evaluations_per_row"
)
