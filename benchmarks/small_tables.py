"""Small tables: processor seconds and held-out log-likelihood of the default, EM and scikit-learn.

Four small tables at K = 1, 3, 8, 32 (iris, wine and breast cancer of scikit-learn; breastw, 683 x 9
with ten levels per column, from adbench/4_breastw.npz) and the paper's 19 UCI sets at K = 1, 4, 16,
64. Five random splits 80/20, columns standardised by the training rows. One thread. A K is left out
where it is more than half of the training rows. A fit before the clock starts compiles kernels.

    PYTHONPATH=OTHER/src python benchmarks/small_tables.py --small --out /tmp/before.jsonl
    python benchmarks/small_tables.py --small --out /tmp/after.jsonl
    python benchmarks/small_tables.py --show /tmp/before.jsonl /tmp/after.jsonl

PYTHONPATH chooses the code: only public names are used. Files get a line of JSON for each fit; the
table has medians over splits. With --show, no fit is made, and files are shown beside each other.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sklearn.datasets
import sklearn.mixture
from threadpoolctl import threadpool_limits

import pickmix

SMALL, UCI = (1, 3, 8, 32), (1, 4, 16, 64)
METHODS: dict[str, Callable[[int, int], Any]] = {
    "default": lambda K, seed: pickmix.GaussianMixture(K, random_state=seed, n_jobs=1),
    "em": lambda K, seed: pickmix.GaussianMixture(K, algorithm="em", random_state=seed, n_jobs=1),
    "scikit-learn": lambda K, seed: sklearn.mixture.GaussianMixture(
        K, reg_covar=1e-6, n_init=1, random_state=seed
    ),
}


def small_tables() -> Iterator[tuple[str, np.ndarray]]:
    for name in ("iris", "wine", "breast_cancer"):
        yield name.replace("_", "-"), getattr(sklearn.datasets, f"load_{name}")().data
    path = Path(os.environ.get("PICKMIX_DATA", ""), "adbench", "4_breastw.npz")
    if path.is_file():
        yield "breastw", np.load(path)["X"].astype(float)
    else:
        print(f"breastw is left out: no file {path}")


def uci_tables() -> Iterator[tuple[str, np.ndarray]]:
    from pickmix.data import uci

    for name in uci.NAMES:
        try:
            yield f"uci-{name}", uci.read(name)[0]
        except FileNotFoundError as error:
            print(f"{name} is left out: {error}")


def split(rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return 80 % of the rows to fit and 20 % held out, without columns constant in the first."""
    order = np.random.default_rng(seed).permutation(len(rows))
    train, held_out = np.split(rows[order], [round(0.8 * len(rows))])
    kept = train.std(axis=0) > 1e-9
    mean, scale = train[:, kept].mean(axis=0), train[:, kept].std(axis=0)
    return (train[:, kept] - mean) / scale, (held_out[:, kept] - mean) / scale


def measure(rows: np.ndarray, K: int, method: str, seed: int) -> dict[str, float]:
    train, held_out = split(rows, seed)
    mixture = METHODS[method](K, seed)
    started = time.process_time()
    mixture.fit(train)
    seconds = time.process_time() - started
    return {
        "seconds": seconds,
        "held_out": float(mixture.score(held_out)),
        "train": float(mixture.score(train)),
    }


def show(frame: pd.DataFrame) -> None:
    """Print medians over splits, a line per table and K."""
    order = {name: list(dict.fromkeys(frame[name])) for name in ("table", "method")}
    for value, digits in (("seconds", 4), ("held_out", 3)):
        wide = frame.pivot_table(value, ["table", "K"], "method", "median")
        wide = wide.reindex(order["table"], level=0)[order["method"]]
        print(f"\n{value}, medians over {frame['seed'].nunique()} splits")
        print(wide.to_string(float_format=lambda x, d=digits: f"{x:.{d}f}"), flush=True)
    sums = frame.groupby(["method", "table"])["seconds"].sum().groupby("method").sum()
    print(f"\nseconds in all\n{sums[order['method']].to_string(float_format='{:.2f}'.format)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="the four small tables only")
    parser.add_argument("--quick", action="store_true", help="iris, one split")
    parser.add_argument("--seeds", type=int, default=5, help="splits 0, 1, ..., so many")
    parser.add_argument("--out", type=Path, default=Path("small_tables.jsonl"))
    parser.add_argument("--show", type=Path, nargs="+", metavar="FILE", help="show files; no fits")
    arguments = parser.parse_args()
    if arguments.show:
        frames = [pd.read_json(path, lines=True) for path in arguments.show]
        for path, frame in zip(arguments.show, frames, strict=True):
            if len(frames) > 1:
                frame["method"] += f", {path.stem}"
        show(pd.concat(frames))
        return
    warnings.simplefilter("ignore")
    threadpool_limits(1)
    tables = [(name, rows, SMALL) for name, rows in small_tables()]
    if not (arguments.small or arguments.quick):
        tables += [(name, rows, UCI) for name, rows in uci_tables()]
    if arguments.quick:
        tables, arguments.seeds = tables[:1], 1
    facts = {"pickmix": pickmix.__version__, "scikit-learn": sklearn.__version__}
    facts |= {"python": platform.python_version(), "source": str(Path(pickmix.__file__).parent)}
    lines = []
    with arguments.out.open("w", encoding="utf-8") as file:
        for name, rows, numbers in tables:
            for K in (K for K in numbers if 0.4 * len(rows) >= K):
                for method in METHODS:
                    measure(rows, K, method, 0)
                # Methods take turns: a machine that gets slower slows all of them.
                for seed in range(arguments.seeds):
                    for method in METHODS:
                        line = {"table": name, "K": K, "method": method, "seed": seed}
                        line |= measure(rows, K, method, seed)
                        line |= {"load_average": os.getloadavg()[0], **facts}
                        lines.append(line)
                        print(json.dumps(line), file=file, flush=True)
    show(pd.DataFrame(lines))


if __name__ == "__main__":
    main()
