"""MixtureDetector: thresholds on generated rows, and fits to files of many rows.

Thresholds: rows of ten overlapping groups (MixSim), 5 % of the fitted ones planted: uniform over
twice the range of the columns. `flagged` is the share of fitted rows that are flagged with
contamination=0.05, `hits` that of planted ones, `alarms` that of 20,000 new clean rows. `clean` and
`novelty` are fits without planted rows: by default, and with novelty=True.

    python benchmarks/detector.py [--seeds 5] [--rows 10000000 --folder DIR]
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np
from reporting import Line, begin, medians, now, parser_for, print_table, write_lines

from pickmix import MixtureDetector
from pickmix.data.mixsim import generate

SIZES = (200, 1000, 10_000)
D, SHARE, CHUNK = 5, 0.05, 500_000


def thresholds(n_rows: int, seed: int) -> list[Line]:
    mixture = generate(10, D, 0.05, random_state=seed)
    rng = np.random.default_rng(seed)
    clean, new = (mixture.sample(n, random_state=rng)[0] for n in (n_rows, 20_000))
    n_planted = round(SHARE * n_rows)
    low, high = clean.min(axis=0), clean.max(axis=0)
    planted = rng.uniform(1.5 * low - 0.5 * high, 1.5 * high - 0.5 * low, (n_planted, D))
    contaminated = np.concatenate([planted, clean[n_planted:]])
    cases: list[tuple[str, np.ndarray, dict[str, Any]]] = [
        ("planted", contaminated, {}),
        ("clean", clean, {}),
        ("novelty", clean, {"novelty": True}),
    ]
    lines = []
    for case, rows, options in cases:
        detector = MixtureDetector(SHARE, random_state=seed, **options).fit(rows)
        hits = detector.labels_[:n_planted].mean() if case == "planted" else np.nan
        line = {"case": case, "rows": n_rows, "seed": seed, "flagged": detector.labels_.mean()}
        lines.append(line | {"hits": hits, "alarms": np.mean(detector.predict(new) == -1)})
    return lines


def large(n_rows: int, folder: Path) -> list[Line]:
    """A fit to a file of generated rows, all of which are scored."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "rows.npy"
    mixture = generate(50, 10, 0.05, random_state=0)
    rows = np.lib.format.open_memmap(file, "w+", np.float32, (n_rows, 10))
    for first in range(0, n_rows, CHUNK):
        n = min(CHUNK, n_rows - first)
        rows[first : first + n] = mixture.sample(n, random_state=first)[0]
    rows.flush()
    del rows
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, now()
    detector = MixtureDetector(0.001, random_state=0).fit(file)
    seconds = now() - started
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024.0
    flagged = int(detector.labels_.sum())
    return [{"rows": n_rows, "seconds": seconds, "peak_MB": peak, "flagged": flagged}]


def main() -> None:
    parser = parser_for(__doc__, seeds=5)
    parser.add_argument("--rows", type=int, help="fit to a file of so many rows instead")
    parser.add_argument("--folder", type=Path, default=Path("pickmix-rows"), help="of that file")
    arguments = begin(parser)
    if arguments.rows is not None:
        lines = large(arguments.rows, arguments.folder)
        print_table("Rows in a file", lines)
        write_lines(arguments.out, "detector_rows.csv", lines)
        return
    sizes = SIZES[:1] if arguments.quick else SIZES
    seeds = range(1 if arguments.quick else arguments.seeds)
    lines = [line for n in sizes for seed in seeds for line in thresholds(n, seed)]
    print_table("Medians", medians(lines, ("case", "rows"), ("flagged", "hits", "alarms")))
    write_lines(arguments.out, "detector_thresholds.csv", lines)


if __name__ == "__main__":
    main()
