"""Time of one visit of one row against K, and evaluations per second against a matrix product.

A pass of a partition fit (partition, sweep, update of all components) over the same rows for
K = 10^3 to 10^6, diagonal covariances, D = 8; and for K = 1,000 the rate of evaluations with their
statistics beside that of the same multiply-adds in a plain float32 matrix product of NumPy
(features (N, F) times parameters (F, G), and its transpose for the statistics), on one thread.
Fits start at the components that the rows come from. Writes visit_cost.csv. With --parts one thread
makes one step's partition, sweep and update by themselves, each several times, and the least times
go to visit_parts.csv: with --clock cpu these mean something on a busy machine too.

    python benchmarks/visit_cost.py [--components 1000 1000000] [--rows 4000000] [--quick]
    python benchmarks/visit_cost.py --parts --clock cpu --rows 1000000
"""

from __future__ import annotations

import numpy as np
from reporting import Line, begin, parser_for, timed, write_lines
from threadpoolctl import threadpool_limits

from pickmix import GaussianMixture, RandomPartition
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows
from pickmix.families.gaussian import GAUSSIANS
from pickmix.families.layout import Moments
from pickmix.kernels import numba_kernels
from pickmix.selection.partitions import draw_partition
from pickmix.selection.randomness import StepRandomness, Stream

G = 32


def make(
    n_components: int, n_features: int, n_rows: int
) -> tuple[np.ndarray, float, np.ndarray, np.ndarray]:
    """Means of components, their width, rows, and the components that these come from."""
    rng = np.random.default_rng(0)
    means = rng.random((n_components, n_features))
    # Components are about as wide as half their distance.
    width = 0.3 * n_components ** (-1.0 / n_features)
    labels = rng.integers(n_components, size=n_rows)
    X = means[labels] + width * rng.standard_normal((n_rows, n_features))
    return means, width, X.astype(np.float32), labels.astype(np.int32)


def parts(n_components: int, n_rows: int, n_steps: int) -> dict[str, float]:
    """Least seconds per row of the parts of a step on one thread, diagonal, D = 8."""
    K = n_components
    means, width, X, labels = make(K, 8, n_rows)
    source, family = ArrayRows(X), GAUSSIANS["diag"](8)
    scatter, counts = np.full((K, 8), width**2), np.zeros((K, 0))
    moments = Moments(
        np.full(K, 1.0 / K), np.full(K, 1.0 / K / n_rows), means - source.center, scatter, counts
    )
    prior = family.make_prior(moments, "pooled", n_rows)
    state = MixtureState(family, moments, numba_kernels, prior)
    random = StepRandomness(0, 1)
    given = state.layout, state.model, source, np.arange(n_rows), labels
    least: dict[str, float] = {}
    for _ in range(n_steps):
        at = state.positions(), G, 0.02, random, numba_kernels, state.scales()
        partition, drawing = timed(lambda at=at: draw_partition(*at))
        key = random.key(Stream.POSTERIOR)
        sweep = (*given, partition, key, 1.0, True, False)
        swept, sweeping = timed(lambda sweep=sweep: numba_kernels.sweep(*sweep))
        statistics = swept.statistics
        _, updating = timed(lambda statistics=statistics: state.absorb(statistics, 1.0))
        found = {"partition": drawing, "sweep": sweeping, "update": updating}
        least = {name: min(found[name], least.get(name, np.inf)) for name in found}
    return {name: seconds / n_rows for name, seconds in least.items()}


def rates(
    name: str, n_components: int, n_features: int, n_rows: int, n_steps: int, n_jobs: int | None
) -> tuple[float, float]:
    """Least seconds per row visit and most evaluations per second, over the passes of a fit."""
    means, width, X, _ = make(n_components, n_features, n_rows)
    precisions = np.full((n_components, n_features), width**-2.0)
    if name == "full":
        precisions = precisions[:, :, None] * np.eye(n_features)
    mixture = GaussianMixture(
        n_components,
        covariance_type=name,
        proposal=RandomPartition(block_size=G, relocate=False),
        weights_init=np.full(n_components, 1.0 / n_components),
        means_init=means,
        precisions_init=precisions,
        batch_size=n_rows,
        step_size=1.0,
        evaluate_every=1,
        max_steps=n_steps + 1,
        tol=0.0,
        n_jobs=n_jobs,
        random_state=0,
    ).fit(X)
    seconds = np.diff(mixture.trace_["seconds"])
    evaluations = np.diff(mixture.trace_["evaluations"])
    return float(seconds.min()) / n_rows, float((evaluations / seconds).max())


def matrix_product(name: str, n_features: int, n_rows: int = 200_000) -> float:
    """Evaluations per second of a matrix product with as many multiply-adds."""
    squares = n_features * (n_features + 1) // 2 if name == "full" else n_features
    features = np.random.default_rng(0).random((n_rows, squares + n_features), dtype=np.float32)
    parameters = np.random.default_rng(1).random((squares + n_features, G), dtype=np.float32)
    with threadpool_limits(1):
        times = [timed(lambda: (features @ parameters).T @ features)[1] for _ in range(7)]
    return n_rows * G / min(times)


def main() -> None:
    """Measure, print and write."""
    parser = parser_for(__doc__, seeds=1)
    parser.add_argument("--components", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--parts", action="store_true", help="of a step, on one thread")
    arguments = begin(parser)
    components, n_rows, shapes = arguments.components, arguments.rows, [("full", 8), ("full", 16)]
    shapes += [("full", 32), ("diag", 8), ("diag", 32)]
    if arguments.quick:
        components, n_rows, shapes = [300, 1000], 20_000, [("diag", 8)]
    lines: list[Line] = []

    def add(what: str, value: float) -> None:
        lines.append({"what": what, "value": value})
        print(f"{what}: {value:.4g}", flush=True)

    for K in components if arguments.parts else []:
        found = parts(K, n_rows, arguments.steps)
        for name, seconds in (found | {"all": sum(found.values())}).items():
            add(f"{name}, diag, D = 8, K = {K}", 1e9 * seconds)
    if arguments.parts:
        if not arguments.quick:
            write_lines(arguments.out, "visit_parts.csv", lines)
        return
    for K in components:
        seconds, _ = rates("diag", K, 8, n_rows, arguments.steps, None)
        add(f"visit, diag, D = 8, K = {K}", 1e9 * seconds)
    ratio = lines[-1]["value"] / lines[0]["value"]
    add(f"visit, K = {components[-1]} / K = {components[0]}", ratio)
    for name, n_features in shapes:
        what = f"{name}, D = {n_features}"
        _, rate = rates(name, 1000, n_features, min(n_rows, 200_000), 6, 1)
        add(f"million evaluations per second, {what}", rate / 1e6)
        add(f"the same in matrix products, {what}", matrix_product(name, n_features) / 1e6)
    if not arguments.quick:
        write_lines(arguments.out, "visit_cost.csv", lines)


if __name__ == "__main__":
    main()
