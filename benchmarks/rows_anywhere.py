"""Rows on disk, in files, on a cluster: the same bits everywhere, killed or not.

    python benchmarks/rows_anywhere.py bits     # array, memmap, Parquet, function, Dask; threads
    python benchmarks/rows_anywhere.py killed   # SIGKILL at random moments, resumed, 50 times
    python benchmarks/rows_anywhere.py dask     # two worker processes against two threads
    python benchmarks/rows_anywhere.py workers  # a worker killed at random moments, 10 times
    python benchmarks/rows_anywhere.py bytes    # what a step sends, K = 100,000

Each prints what it saw; `--quick` cuts sizes to a tenth.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

D = 8
WIDTH = 0.09


def rows_of(n_components: int, n_rows: int) -> np.ndarray:
    from pickmix.data.rotated import generate

    known = generate(n_components, D, WIDTH, random_state=0)
    parts = range(0, n_rows, 2_000_000)
    return np.concatenate(
        [
            known.sample(min(2_000_000, n_rows - first), random_state=1 + first)[0].astype(
                np.float32
            )
            for first in parts
        ]
    )


def bits_of(mixture) -> str:
    arrays = (mixture.weights_, mixture.means_, mixture.covariances_)
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]


def make_mixture(n_components: int, **parameters):
    from pickmix import GaussianMixture

    return GaussianMixture(n_components, random_state=0, **parameters)


def cluster(n_workers: int):
    from distributed import Client, LocalCluster

    # Threads of linear algebra would only get into each other's way.
    made = LocalCluster(
        n_workers=n_workers, threads_per_worker=1, dashboard_address=":0", protocol="tcp"
    )
    return made, Client(made)


def show(name: str, seconds: float, mixture) -> None:
    print(
        f"{name:28s} {bits_of(mixture)}  {seconds:6.1f} s  log-likelihood "
        f"{mixture.lower_bound_:.4f}  {mixture.outcome_}",
        flush=True,
    )


def timed_fit(name: str, rows, n_components: int, **parameters):
    started = time.perf_counter()
    mixture = make_mixture(n_components, **parameters).fit(rows)
    show(name, time.perf_counter() - started, mixture)
    return mixture, time.perf_counter() - started


def compare_bits(scale: float) -> None:
    import dask.array as da
    import pyarrow as pa
    import pyarrow.parquet as pq

    import pickmix

    K, n_rows, chunk = 300, int(2_000_000 * scale), int(100_000 * max(scale, 0.2))
    X = rows_of(K, n_rows)
    found = {}
    # Kernels that this process compiles may round differently from those that it loads.
    make_mixture(K, max_steps=2).fit(X[:100_000])
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/rows.npy", X)
        pq.write_table(pa.table({f"x{d}": X[:, d] for d in range(D)}), f"{folder}/rows.parquet")

        def batches():
            for first in range(0, n_rows, 77_777):
                yield X[first : first + 77_777]

        kinds = {
            "array": X,
            "memmap": np.load(f"{folder}/rows.npy", mmap_mode="r"),
            "npy": f"{folder}/rows.npy",
            "parquet": f"{folder}/rows.parquet",
            "function": batches,
        }
        for name, rows in kinds.items():
            with pickmix.open_rows(rows, chunk_size=chunk) as source:
                found[name] = bits_of(timed_fit(name, source, K)[0])
        for n_jobs in (1, 3):
            source = pickmix.open_rows(X, chunk_size=chunk)
            found[f"{n_jobs} threads"] = bits_of(
                timed_fit(f"{n_jobs} threads", source, K, n_jobs=n_jobs)[0]
            )
        for n_workers in (1, 2):
            made, client = cluster(n_workers)
            with made, client:
                stack = da.from_array(
                    np.load(f"{folder}/rows.npy", mmap_mode="r"), chunks=(chunk, D)
                )
                name = f"dask, {n_workers} worker(s)"
                found[name] = bits_of(timed_fit(name, stack, K)[0])
    print(f"different results: {len(set(found.values()))} of {len(found)} ways")


FIT = """
import json, sys
sys.path.insert(0, {here!r})
from rows_anywhere import bits_of, make_mixture
import pickmix
mixture = make_mixture({K}, checkpoint={folder!r}, checkpoint_every={every}).fit(
    pickmix.open_rows({path!r}, chunk_size={chunk}))
print(bits_of(mixture))
"""


def kill_and_resume(scale: float, n_times: int = 50) -> None:
    K, n_rows = 100, int(600_000 * scale)
    generator = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        path, checkpoints = f"{folder}/rows.npy", f"{folder}/checkpoints"
        np.save(path, rows_of(K, n_rows))
        text = FIT.format(
            here=str(Path(__file__).parent),
            K=K,
            folder=checkpoints,
            every=0.05,
            path=path,
            chunk=max(1, n_rows // 20),
        )
        command = [sys.executable, "-W", "ignore", "-c", text]
        started = time.perf_counter()
        whole = text.replace(f"checkpoint={checkpoints!r}", "checkpoint=None")
        expected = subprocess.check_output([*command[:-1], whole], text=True).strip()
        seconds = time.perf_counter() - started
        print(f"uninterrupted: {expected} in {seconds:.1f} s", flush=True)
        equal = kills = while_writing = 0
        while kills < n_times:
            shutil.rmtree(checkpoints, ignore_errors=True)
            aims_at_writing = generator.random() < 0.3
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            moment = time.perf_counter() + generator.uniform(0.2, 0.95) * seconds
            killed = False
            while process.poll() is None:
                late = time.perf_counter() > moment
                writing = any(Path(checkpoints).glob(".checkpoint*")) if aims_at_writing else True
                if late and writing:
                    process.kill()
                    killed = True
                    break
                time.sleep(0.0005)
            process.communicate()
            if not killed:
                continue
            kills += 1
            while_writing += any(Path(checkpoints).glob(".checkpoint*"))
            resumed = subprocess.run(command, capture_output=True, text=True, check=True)
            equal += resumed.stdout.strip() == expected
        print(
            f"{kills} fits killed ({while_writing} while a checkpoint was written) and resumed: "
            f"{equal} of {kills} with the bits of the uninterrupted one"
        )


def compare_with_threads(scale: float) -> None:
    import dask.array as da

    import pickmix

    K, n_rows, chunk = 1000, int(5_000_000 * scale), 250_000
    X = rows_of(K, n_rows)
    make_mixture(K, max_steps=2).fit(X[:200_000])
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/rows.npy", X)
        mapped = np.load(f"{folder}/rows.npy", mmap_mode="r")
        source = pickmix.open_rows(f"{folder}/rows.npy", chunk_size=chunk)
        local, local_seconds = timed_fit("two threads, from disk", source, K)
        made, client = cluster(2)
        with made, client:
            stack = da.from_array(mapped, chunks=(chunk, D))
            # Workers load their kernels once.
            make_mixture(K, max_iter=1, max_steps=2).fit(stack[:1_000_000])
            other, seconds = timed_fit("two worker processes", stack, K)
    print(f"ratio {seconds / local_seconds:.2f}, same bits: {bits_of(local) == bits_of(other)}")


def kill_workers(scale: float, n_times: int = 10) -> None:
    import dask.array as da

    K, n_rows, chunk = 300, int(2_000_000 * scale), int(100_000 * max(scale, 0.2))
    X = rows_of(K, n_rows)
    generator = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/rows.npy", X)
        mapped = np.load(f"{folder}/rows.npy", mmap_mode="r")
        made, client = cluster(2)
        with made, client:
            stack = da.from_array(mapped, chunks=(chunk, D))
            make_mixture(K).fit(stack)
            expected, seconds = timed_fit("nobody killed", stack, K)
            equal = 0
            for number in range(n_times):
                victims = [
                    info["pid"] for info in client.run(lambda: {"pid": os.getpid()}).values()
                ]
                delay = generator.uniform(0.05, 0.95) * seconds

                def kill(pid=victims[number % 2], delay=delay):
                    time.sleep(delay)
                    os.kill(pid, signal.SIGKILL)

                killer = threading.Thread(target=kill)
                killer.start()
                fit, _ = timed_fit(f"worker killed after {delay:.1f} s", stack, K)
                killer.join()
                equal += bits_of(fit) == bits_of(expected)
                client.wait_for_workers(2)
        print(f"{equal} of {n_times} with the same bits")


def count_bytes(scale: float) -> None:
    import dask.array as da

    from pickmix.closed_form.dask_chunks import DaskChunks
    from pickmix.estimators import large

    K, n_rows, chunk = int(100_000 * scale), int(4_000_000 * scale), 500_000
    # A sample of half of the rows, so that passes follow.
    large._SAMPLE_BYTES = n_rows // 2 * D * 4
    sent: list[int] = []
    models: list[object] = [None]
    run = DaskChunks.run

    def counted(self, task, chunks, shared, states, add):
        answer = run(self, task, chunks, shared, states, add)
        # A model is sent once; chain states go to the workers, results and sums come back.
        model = shared if shared is not models[-1] else None
        models[-1] = shared
        sent.append(len(pickle.dumps((model, states, answer))))
        largest = client.run_on_scheduler(
            lambda dask_scheduler: sorted(
                (task.nbytes, len(task.who_has or ()))
                for task in dask_scheduler.tasks.values()
                if task.nbytes and task.nbytes > 0
            )[-3:]
        )
        print(
            f"  run of {len(chunks)} partitions: {sent[-1] / 1e6:.1f} MB; largest values on "
            f"the cluster (MB, copies): {[(round(b / 1e6, 1), n) for b, n in largest]}",
            flush=True,
        )
        return answer

    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/rows.npy", rows_of(K // 10, n_rows))
        mapped = np.load(f"{folder}/rows.npy", mmap_mode="r")
        made, client = cluster(2)
        DaskChunks.run = counted
        with made, client:
            stack = da.from_array(mapped, chunks=(chunk, D))
            mixture = make_mixture(K, covariance_type="diag", max_iter=3, tol=1.0)
            started = time.perf_counter()
            mixture.fit(stack)
            print(f"{time.perf_counter() - started:.0f} s, {mixture.outcome_}")
        DaskChunks.run = run
    print(json.dumps({"bytes per run": sent}))


WHAT = {
    "bits": compare_bits,
    "killed": kill_and_resume,
    "dask": compare_with_threads,
    "workers": kill_workers,
    "bytes": count_bytes,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=list(WHAT))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    WHAT[options.what](0.1 if options.quick else 1.0)


if __name__ == "__main__":
    main()
