"""A stream of ten million rows through `partial_fit`, an abrupt change, and approximate queries.

1. The stream (K = 300 overlapping ellipsoids, D = 8) in batches of 50,000 rows, against a batch fit
   on a tenth of it and against the true mixture, on held-out rows; with the peak memory.
2. The same with a constant step size while the distribution changes half-way.
3. Error and time of `score_samples` and `predict` with few candidates, against the exact answer.

Writes online.csv.

    python benchmarks/online.py
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings
from pathlib import Path

import numpy as np
from reporting import write_lines

from pickmix import GaussianMixture
from pickmix.data import rotated

D, K, BATCH = 8, 300, 50_000


def memory() -> float:
    """Peak memory so far in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> None:
    """Run the three parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    lines: list[dict] = []

    def tell(what: str, value: float) -> None:
        lines.append({"what": what, "value": round(value, 4)})
        print(f"{what}: {value:.4f}", flush=True)

    truth = rotated.generate(K, D, 0.2, random_state=0)
    held_out, _ = truth.sample(20_000, random_state=1)
    tell("true mixture", float(truth.score_samples(held_out).mean()))
    mixture = GaussianMixture(K, random_state=0)
    seconds, n_batches = 0.0, arguments.rows // BATCH
    for batch in range(n_batches):
        X, _ = truth.sample(BATCH, random_state=1000 + batch)
        started = time.perf_counter()
        mixture.partial_fit(X)
        seconds += time.perf_counter() - started
        if batch == 4:
            tell("peak memory after 5 batches, MB", memory())
        if batch + 1 in (1, 10, 50, n_batches):
            tell(f"stream, held out after {(batch + 1) * BATCH} rows", mixture.score(held_out))
    tell("stream, seconds in all", seconds)
    tell("peak memory after the stream, MB", memory())
    X, _ = truth.sample(arguments.rows // 10, random_state=5)
    started = time.perf_counter()
    batch_fit = GaussianMixture(K, random_state=0).fit(X)
    tell(f"batch fit on {X.shape[0]} rows, seconds", time.perf_counter() - started)
    tell(f"batch fit on {X.shape[0]} rows, held out", batch_fit.score(held_out))

    changed = rotated.generate(K, D, 0.2, random_state=7)
    held_out_changed, _ = changed.sample(20_000, random_state=1)
    mixture = GaussianMixture(K, step_size=0.2, random_state=0)
    for batch in range(30):
        mixture.partial_fit(truth.sample(BATCH, random_state=1000 + batch)[0])
    tell("constant step 0.2, before the change", mixture.score(held_out))
    tell("constant step 0.2, the other distribution", mixture.score(held_out_changed))
    for batch in range(30):
        mixture.partial_fit(changed.sample(BATCH, random_state=2000 + batch)[0])
        if batch + 1 in (1, 5, 10, 30):
            tell(f"{batch + 1} batches after the change", mixture.score(held_out_changed))
    tell("true mixture after the change", float(changed.score_samples(held_out_changed).mean()))

    for name, model in (("K = 300", batch_fit), ("K = 3000", large_model())):
        rows = held_out if name == "K = 300" else model.sample(20_000)[0]
        started = time.perf_counter()
        exact, best = model.score_samples(rows), model.predict(rows)
        both = time.perf_counter() - started
        for n_candidates in (64, 128, 256, 512):
            started = time.perf_counter()
            bound = model.score_samples(rows, n_candidates=n_candidates)
            found = model.predict(rows, n_candidates=n_candidates)
            ratio = (time.perf_counter() - started) / both
            case = f"{name}, {n_candidates} candidates"
            tell(f"{case}, mean error of the log-density", float(np.mean(exact - bound)))
            tell(f"{case}, share of equal predictions", float(np.mean(found == best)))
            tell(f"{case}, time / exact time", ratio)
    write_lines(arguments.out, "online.csv", lines)


def large_model() -> GaussianMixture:
    """A known mixture of 3,000 components, as if fitted."""
    truth = rotated.generate(3000, D, 0.12, random_state=0)
    model = GaussianMixture(3000, random_state=0)
    model.weights_, model.means_ = truth.weights, truth.means
    model.covariances_ = truth.covariances
    model.n_features_in_ = D
    return model


if __name__ == "__main__":
    main()
