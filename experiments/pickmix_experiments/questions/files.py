"""Rows on disk that are never in memory together, and rows of a million cells and more.

`rows`: ellipsoids in 8 columns of float32, fitted from a .npy file, from Parquet, and a tenth of
them from an array; `ns` is the time of a visit of a component. `cells`: 20 markers of 30
populations of unequal size, four of them rare (one cell in 2,000), fitted and labelled chunk by
chunk; `rand` compares 200,000 labels, by `predict(level=30)`, with the populations. `detector`:
`MixtureDetector` on a file. Memory is the largest amount of anonymous pages above what was there,
so without the page cache. Files lie in the folder that TMPDIR names: 10 GB at full size.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.metrics import adjusted_rand_score

import pickmix
from pickmix.data.rotated import generate
from pickmix_experiments.evidence import Line, Question, timed

_CHUNK = 500_000
_POPULATIONS, _MARKERS, _RARE = 30, 20, 4


@contextlib.contextmanager
def watch() -> Iterator[Line]:
    """Look at anonymous memory ten times a second: the most above what was there (Linux)."""

    def now() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("RssAnon")))

    def look() -> None:
        while not ended.wait(0.1):
            found["megabytes"] = max(found["megabytes"], (now() - before) / 1e6)

    found, before, ended = {"megabytes": 0.0}, now(), threading.Event()
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def cells(quick: bool) -> Iterator[Line]:
    full = (("rows", 3 * 10**8, 10_000), ("cells", 4 * 10**7, 60), ("detector", 10**7, 50))
    small = (("rows", 200_000, 100), ("cells", 100_000, 30))
    for case, n_rows, K in small if quick else full:
        yield {"case": case, "n_rows": n_rows, "K": K}


def measure(case: str, n_rows: int, K: int) -> Iterator[Line]:
    with tempfile.TemporaryDirectory() as folder:
        measures = {"rows": _rows, "cells": _cells, "detector": _detector}
        yield from measures[case](Path(folder), n_rows, K)


def _draw(mixture: Any, file: Path, n_rows: int, D: int) -> np.ndarray:
    rows = np.lib.format.open_memmap(file, "w+", np.float32, (n_rows, D))
    for first in range(0, n_rows, _CHUNK):
        n = min(_CHUNK, n_rows - first)
        rows[first : first + n] = mixture.sample(n, random_state=first + 1)[0]
    rows.flush()
    return rows


def _rows(folder: Path, n_rows: int, K: int) -> Iterator[Line]:
    truth, D = generate(K, 8, 0.09, random_state=0), 8
    rows = _draw(truth, folder / "rows.npy", n_rows, D)
    schema = pa.schema([(f"x{d}", pa.float32()) for d in range(D)])
    with pq.ParquetWriter(folder / "rows.parquet", schema, use_dictionary=False) as writer:
        for first in range(0, n_rows, _CHUNK):
            part = np.array(rows[first : first + _CHUNK])
            writer.write_table(pa.table({f"x{d}": part[:, d] for d in range(D)}, schema))
    new = truth.sample(20_000, random_state=10**6)[0]
    known = float(truth.score_samples(new).mean())
    for method in ("rows.npy", "rows.parquet", "array"):
        with watch() as memory:
            X = np.array(rows[: n_rows // 10]) if method == "array" else folder / method
            mixture, seconds = timed(pickmix.GaussianMixture(K, random_state=0).fit, X)
        work = float(mixture.trace_["seconds"][-1])
        line = {"method": method, "held_out": mixture.score(new), "truth": known, **seconds}
        line |= {"ns": 1e9 * work / mixture.n_component_evaluations_}
        yield line | memory


def _cells(folder: Path, n_rows: int, K: int) -> Iterator[Line]:
    rng = np.random.default_rng(0)
    centres = rng.choice([0.5, 2.0, 4.0], (_POPULATIONS, _MARKERS), p=[0.6, 0.2, 0.2])
    factors = rng.normal(0.0, 0.15, (_POPULATIONS, _MARKERS, _MARKERS)) + 0.4 * np.eye(_MARKERS)
    shares = rng.dirichlet(np.full(_POPULATIONS, 2.0))
    shares[:_RARE] = 1.0 / 2000.0
    file, populations = folder / "cells.npy", np.empty(n_rows, dtype=np.int8)
    rows = np.lib.format.open_memmap(file, "w+", np.float32, (n_rows, _MARKERS))
    for first in range(0, n_rows, _CHUNK):
        n = min(_CHUNK, n_rows - first)
        which = rng.choice(_POPULATIONS, n, p=shares / shares.sum())
        noise = rng.normal(size=(n, _MARKERS))
        for k in range(_POPULATIONS):
            noise[which == k] = noise[which == k] @ factors[k]
        rows[first : first + n] = centres[which] + noise
        populations[first : first + n] = which
    rows.flush()
    labels = np.empty(n_rows, dtype=np.int32)

    def label(mixture: pickmix.GaussianMixture) -> None:
        with pickmix.open_rows(file) as source:
            for first in range(0, n_rows, _CHUNK):
                last = min(first + _CHUNK, n_rows)
                part = source.read(first, last)
                labels[first:last] = mixture.predict(part, level=_POPULATIONS)

    with watch() as memory:
        mixture, seconds = timed(pickmix.GaussianMixture(K, random_state=0).fit, file)
        _, labelling = timed(label, mixture)
    some = np.random.default_rng(1).choice(n_rows, min(200_000, n_rows), False)
    rand = float(adjusted_rand_score(populations[some], labels[some]))
    line = {"method": "fit and label", **seconds, "label_seconds": labelling["seconds"]}
    yield line | {"rand": rand} | memory


def _detector(folder: Path, n_rows: int, K: int) -> Iterator[Line]:
    from pickmix.data.mixsim import generate as overlapping

    _draw(overlapping(K, 10, 0.05, random_state=0), folder / "rows.npy", n_rows, 10)
    detector = pickmix.MixtureDetector(0.001, random_state=0)
    with watch() as memory:
        _, seconds = timed(detector.fit, folder / "rows.npy")
    flagged = int(detector.labels_.sum())
    yield {"method": "fit", "flagged": flagged, **seconds, **memory}


VALUES = "held_out truth seconds ns label_seconds rand flagged megabytes"
QUESTION = Question(cells, measure, "case n_rows K method", VALUES)
