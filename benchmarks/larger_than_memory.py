"""Rows on disk: a fit to hundreds of millions of rows that are never in memory together.

    python benchmarks/larger_than_memory.py --folder DISK [--rows N] [--components K] [--parquet]

1. Draws rows of a known mixture (8 columns, float32) into one .npy file, unless it is there.
2. Fits it from disk; prints held-out log-likelihood beside the true mixture's, seconds, visits per
   second, and the largest resident memory above the interpreter's (anonymous pages, so without the
   page cache).
3. Fits a tenth of the rows in memory, as an array, for the cost of a visit there.
4. With --parquet writes the same rows as Parquet files, converts them (rows per second), and fits.

Every fit runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

D = 8
WIDTH = 0.09
BATCH = 4_000_000
HELD_OUT = 20_000


def mixture(n_components: int):
    from pickmix.data.rotated import generate

    return generate(n_components, D, WIDTH, random_state=0)


def draw(path: Path, n_rows: int, n_components: int) -> None:
    if path.exists() and path.stat().st_size >= n_rows * D * 4:
        return
    known = mixture(n_components)
    started = time.perf_counter()
    out = np.lib.format.open_memmap(path, "w+", np.float32, (n_rows, D))
    for number, first in enumerate(range(0, n_rows, BATCH)):
        n = min(BATCH, n_rows - first)
        out[first : first + n] = known.sample(n, random_state=number + 1)[0]
    out.flush()
    print(f"drew {n_rows:,} rows in {time.perf_counter() - started:.0f} s", flush=True)


def write_parquet(path: Path, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = np.load(path, mmap_mode="r")
    folder.mkdir(exist_ok=True)
    per_file = 10 * BATCH
    for number, first in enumerate(range(0, rows.shape[0], per_file)):
        file = folder / f"part-{number:03d}.parquet"
        if file.exists():
            continue
        schema = pa.schema([(f"x{d}", pa.float32()) for d in range(D)])
        with pq.ParquetWriter(file, schema, use_dictionary=False) as writer:
            for start in range(first, min(first + per_file, rows.shape[0]), BATCH):
                part = np.array(rows[start : start + BATCH])
                table = pa.table({f"x{d}": part[:, d] for d in range(D)}, schema)
                writer.write_table(table, row_group_size=1_000_000)


class Memory:
    """The largest amount of anonymous memory of this process, looked at ten times a second."""

    def __init__(self) -> None:
        self.before = self.largest = self.now()
        threading.Thread(target=self._watch, daemon=True).start()

    @staticmethod
    def now() -> int:
        """Bytes now."""
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) * 1024
        return 0

    def _watch(self) -> None:
        while True:
            self.largest = max(self.largest, self.now())
            time.sleep(0.1)


def one_fit(what: str, path: str, n_rows: int, n_components: int) -> None:
    import pickmix
    from pickmix.estimators.compilation import ensure_compiled

    ensure_compiled("partition")
    held_out = mixture(n_components).sample(HELD_OUT, random_state=10**6)[0]
    memory = Memory()
    started = time.perf_counter()
    if what == "memory":
        X = np.array(np.load(path, mmap_mode="r")[: n_rows // 10])
    else:
        X = pickmix.open_rows(path)
    opened = time.perf_counter()
    fit = pickmix.GaussianMixture(n_components, random_state=0, verbose=2).fit(X)
    seconds = time.perf_counter() - opened
    trace = fit.trace_
    result = {
        "what": what,
        "rows": len(X) if what == "memory" else X.n_rows,
        "components": n_components,
        "open_seconds": opened - started,
        "seconds": seconds,
        "start_seconds": fit.start_seconds_,
        "work_seconds": float(trace["seconds"][-1]),
        "evaluations": int(fit.n_component_evaluations_),
        "ns_per_evaluation": 1e9 * float(trace["seconds"][-1]) / fit.n_component_evaluations_,
        "outcome": fit.outcome_,
        "passes": float(trace["epoch"][-1]),
        "memory_above_gb": (memory.largest - memory.before) / 1e9,
        "held_out": float(fit.score(held_out)),
    }
    print("RESULT " + json.dumps(result), flush=True)


def run(what: str, path: Path, n_rows: int, n_components: int) -> dict:
    command = [sys.executable, __file__, "--one", what, "--folder", str(path)]
    command += ["--rows", str(n_rows), "--components", str(n_components)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    result = {}
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("RESULT "):
            result = json.loads(line[7:])
        else:
            print("  " + line.rstrip(), flush=True)
    process.wait()
    print({k: round(v, 3) if isinstance(v, float) else v for k, v in result.items()}, flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=300_000_000)
    parser.add_argument("--components", type=int, default=10_000)
    parser.add_argument("--parquet", action="store_true")
    parser.add_argument("--one")
    options = parser.parse_args()
    sizes = options.rows, options.components
    if options.one:
        one_fit(options.one, str(options.folder), *sizes)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / f"rows-{sizes[0]}-{sizes[1]}.npy"
    draw(path, *sizes)
    known = mixture(options.components)
    held_out = known.sample(HELD_OUT, random_state=10**6)[0]
    print(f"true mixture, held-out: {known.score_samples(held_out).mean():.4f}", flush=True)
    disk = run("disk", path, *sizes)
    memory = run("memory", path, *sizes)
    ratio = disk["ns_per_evaluation"] / memory["ns_per_evaluation"]
    print(f"cost per visited component, disk / memory: {ratio:.2f}")
    if options.parquet:
        folder = options.folder / f"parquet-{sizes[0]}-{sizes[1]}"
        write_parquet(path, folder)
        result = run("parquet", folder, *sizes)
        rate = result["rows"] / result["open_seconds"]
        print(f"conversion of Parquet: {rate:,.0f} rows per second")


if __name__ == "__main__":
    main()
