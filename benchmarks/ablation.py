"""What each part of a partition fit brings: starts, relocation, step sizes, batches, blocks.

Held-out log-likelihood and seconds, start included, of variants of the default fit, medians over
seeds. Writes ablation.csv and ablation.md.

    python benchmarks/ablation.py
"""

from __future__ import annotations

import warnings

import numpy as np
from reporting import parser_for, timed, write_lines

from pickmix import GaussianMixture, RandomPartition
from pickmix.data import rotated

D, K, N = 8, 300, 60_000
VARIANTS = {
    "default": {},
    "no relocation": {"proposal": RandomPartition(relocate=False)},
    "rows as start": {
        "init_params": "random_from_data",
        "proposal": RandomPartition(relocate=False),
    },
    "rows as start, relocation": {
        "init_params": "random_from_data",
        "proposal": RandomPartition(relocate=True),
    },
    "G = 8": {"proposal": RandomPartition(block_size=8)},
    "G = 16": {"proposal": RandomPartition(block_size=16)},
    "G = 64": {"proposal": RandomPartition(block_size=64)},
    "M = 2 partitions per visit": {"n_samples": 2},
    "gamma = 1 throughout": {"step_size": 1.0},
    "gamma = 0.3 throughout": {"step_size": 0.3},
    "gamma = t^-0.6": {"step_size": lambda t: t**-0.6},
    "batches of 10 rows per component": {"batch_size": 10 * K},
    "batches of 40 rows per component": {"batch_size": 40 * K},
}


def main() -> None:
    """Fit every variant to separated and to overlapping components."""
    arguments = parser_for(__doc__, seeds=3).parse_args()
    n_components, n_rows, variants, n_seeds = K, N, VARIANTS, arguments.seeds
    if arguments.quick:
        n_components, n_rows, n_seeds = 40, 2_000, 1
        variants = {name: VARIANTS[name] for name in ("default", "no relocation", "G = 8")}
    warnings.simplefilter("ignore")
    lines = []
    for setting, width in (("separated", 0.09), ("overlapping", 0.2)):
        truth = rotated.generate(n_components, D, width, random_state=0)
        X, _ = truth.sample(n_rows, random_state=0)
        held_out, _ = truth.sample(20_000, random_state=1)
        for name, settings in variants.items():
            for seed in range(n_seeds):
                mixture = GaussianMixture(n_components, random_state=seed, **settings)
                _, seconds = timed(lambda m=mixture, rows=X: m.fit(rows))
                seconds -= mixture.compile_seconds_
                evaluations = mixture.n_component_evaluations_ + mixture.n_start_evaluations_
                lines.append(
                    {
                        "setting": setting,
                        "variant": name,
                        "seed": seed,
                        "held_out": round(mixture.score(held_out), 4),
                        "seconds": round(seconds, 2),
                        "evaluations_per_row": round(evaluations / n_rows),
                    }
                )
                print(lines[-1], flush=True)
    text = "| variant | separated | overlapping |\n|---|---|---|\n"
    for name in variants:
        cells = []
        for setting in ("separated", "overlapping"):
            found = [
                line for line in lines if (line["setting"], line["variant"]) == (setting, name)
            ]
            score, seconds, evaluations = (
                np.median([line[key] for line in found])
                for key in ("held_out", "seconds", "evaluations_per_row")
            )
            cells.append(f"{score:.3f} ({seconds:.1f} s, {evaluations:.0f})")
        text += f"| {name} | {cells[0]} | {cells[1]} |\n"
    print(text)
    if not arguments.quick:
        write_lines(arguments.out, "ablation.csv", lines)
        (arguments.out / "ablation.md").write_text(text)


if __name__ == "__main__":
    main()
