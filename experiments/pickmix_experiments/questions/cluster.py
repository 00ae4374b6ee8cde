"""Two worker processes of a Dask cluster against two threads, and whether bits are the same.

Rows of rotated ellipsoids in 8 columns of float32, fitted from a file in chunks of 250,000.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

import pickmix
from pickmix.data.rotated import generate
from pickmix_experiments.evidence import Line, Question, timed

D, _CHUNK = 8, 250_000


def cells(quick: bool) -> Iterator[Line]:
    yield {"n_rows": 500_000, "K": 100} if quick else {"n_rows": 5_000_000, "K": 1000}


def measure(n_rows: int, K: int) -> Iterator[Line]:
    import dask.array as da
    from distributed import Client, LocalCluster

    truth = generate(K, D, 0.09, random_state=0)

    def fit(rows: object, **parameters: Any) -> pickmix.GaussianMixture:
        return pickmix.GaussianMixture(K, random_state=0, **parameters).fit(rows)

    def line(method: str, mixture: pickmix.GaussianMixture, seconds: Line) -> Line:
        arrays = (mixture.weights_, mixture.means_, mixture.covariances_)
        digest = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
        return {"method": method, "bits": digest[:16], **seconds}

    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/rows.npy"
        rows = np.lib.format.open_memmap(file, "w+", np.float32, (n_rows, D))
        for first in range(0, n_rows, _CHUNK):
            n = min(_CHUNK, n_rows - first)
            rows[first : first + n] = truth.sample(n, random_state=1 + first)[0]
        with pickmix.open_rows(file, chunk_size=_CHUNK) as source:
            yield line("threads of one process", *timed(fit, source))
        cluster = LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", protocol="tcp"
        )
        with cluster, Client(cluster):
            stack = da.from_array(np.load(file, mmap_mode="r"), chunks=(_CHUNK, D))
            # Workers load their kernels once.
            fit(stack[: n_rows // 2], max_iter=1, max_steps=2)
            yield line("two worker processes", *timed(fit, stack))


QUESTION = Question(cells, measure, "n_rows K method bits", "seconds")
