"""Cost of one MHSAEM-U step: against an EM iteration of scikit-learn, and against K.

1. Steps in the time of one EM iteration of scikit-learn, at the paper's setting (D, K, N, omega, B,
   M) = (10, 100, 10k, 0.1, 200, 2), in alternation. How all algorithms fare there is
   `pickmix reproduce figure-2`. Writes paper_speed.csv.
2. The same step for K = 100 to 100,000, which must not matter: same B, M and D, a fit that starts
   at rows, medians over alternating fits. Writes step_cost.csv.

    python benchmarks/step_cost.py [--components 100 100000] [--rounds 5] [--quick]
"""

from __future__ import annotations

import warnings

import numpy as np
from reporting import Line, begin, parser_for, timed, write_lines
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as Baseline
from threadpoolctl import threadpool_limits

from pickmix import GaussianMixture
from pickmix.data import mixsim

D, K, N, OMEGA, B, M = 10, 100, 10_000, 0.1, 200, 2


def iteration_seconds(X: np.ndarray) -> float:
    """Seconds per EM iteration of scikit-learn, by the difference of a long and a short run."""

    def run(n_iterations: int) -> float:
        settings = {"tol": 0.0, "init_params": "random_from_data", "random_state": 0}
        return timed(lambda: Baseline(K, max_iter=n_iterations, **settings).fit(X))[1]

    return (run(11) - run(1)) / 10


def step_seconds(X: np.ndarray, n_components: int, n_steps: int, init_params: str) -> float:
    """Seconds of work per step in the second half of a fit."""
    mixture = GaussianMixture(
        n_components,
        proposal="uniform",
        batch_size=B,
        n_samples=M,
        step_size="paper",
        init_params=init_params,
        evaluate_every=[n_steps // 2, n_steps],
        max_steps=n_steps,
        tol=0.0,
        random_state=0,
    ).fit(X)
    first, last = mixture.trace_[-2:]
    return float((last["seconds"] - first["seconds"]) / (last["step"] - first["step"]))


def against_sklearn(rounds: int, n_steps: int) -> list[Line]:
    X, _ = mixsim.generate(K, D, OMEGA, random_state=0).sample(N, random_state=0)
    step_seconds(X, K, n_steps, "paper")  # compile
    lines: list[Line] = []
    for threads in (None, 1):
        with threadpool_limits(threads):
            pairs = [
                (iteration_seconds(X), step_seconds(X, K, n_steps, "paper")) for _ in range(rounds)
            ]
        iteration, step = np.median(pairs, axis=0)
        line: Line = {"blas_threads": "default" if threads is None else "1"}
        line |= {"sklearn_iteration_seconds": iteration, "step_seconds": step}
        lines.append(line | {"ratio": float(np.median([a / b for a, b in pairs]))})
        print(lines[-1], flush=True)
    return lines


def against_components(components: list[int], rounds: int, n_steps: int) -> list[Line]:
    rng = np.random.default_rng(0)
    rows = {}
    for n_components in components:
        means = rng.random((n_components, D))
        # Components are as wide as their distance to the next ones, whatever K.
        width = 0.3 * n_components ** (-1.0 / D)
        labels = rng.integers(0, n_components, max(20 * N, 2 * n_components))
        rows[n_components] = means[labels] + width * rng.normal(size=(len(labels), D))
    times: dict[int, list[float]] = {n_components: [] for n_components in components}
    for _ in range(rounds):
        for n_components, X in rows.items():
            times[n_components].append(step_seconds(X, n_components, n_steps, "random_from_data"))
    medians = {n_components: float(np.median(values)) for n_components, values in times.items()}
    lines = []
    for n_components, seconds in medians.items():
        ratio = seconds / medians[components[0]]
        lines.append({"components": n_components, "step_seconds": seconds, "ratio": ratio})
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Measure, print and write."""
    parser = parser_for(__doc__, seeds=1)
    parser.add_argument("--components", type=int, nargs="+", default=[100, 1000, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = begin(parser)
    warnings.simplefilter("ignore", ConvergenceWarning)
    rounds, n_steps, components = arguments.rounds, 2000, arguments.components
    if arguments.quick:
        rounds, n_steps, components = 1, 100, [100, 1000]
    paper = against_sklearn(rounds, n_steps)
    lines = against_components(components, rounds, n_steps)
    if not arguments.quick:
        write_lines(arguments.out, "paper_speed.csv", paper)
        write_lines(arguments.out, "step_cost.csv", lines)


if __name__ == "__main__":
    main()
