"""Seconds and memory of the merge tree for many components, and what neighbours miss.

Components are full Gaussians in 8 columns: means uniform in the unit cube, rotated ellipsoids (see
`pickmix.data.rotated`). Each size runs in a process of its own; memory is the most that it had,
less what it had with the mixture before the tree. SciPy's linkage of the means (Ward), which needs
all pairs, is there to compare with.

    python benchmarks/merge_tree.py [--sizes 1000 10000 100000]
"""

from __future__ import annotations

import multiprocessing
import resource

import numpy as np
from reporting import (
    Line,
    begin,
    parser_for,
    print_table,
    timed,
    write_lines,
)
from scipy.cluster.hierarchy import linkage

from pickmix import GaussianMixture
from pickmix.data import rotated

# SciPy keeps all distances: 8 bytes times K^2 / 2.
MOST_FOR_SCIPY = 20_000


def megabytes() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def measure(n_components: int) -> Line:
    """One tree."""
    truth = rotated.generate(n_components, 8, 0.2, random_state=0)
    mixture = GaussianMixture(n_components)
    mixture.weights_, mixture.means_ = truth.weights, truth.means
    mixture.covariances_, mixture.n_features_in_ = truth.covariances, 8
    # Kernels are loaded, or compiled, beside the clock.
    warm = GaussianMixture(6000, covariance_type="spherical")
    warm.weights_, warm.means_ = np.full(6000, 1 / 6000), np.random.default_rng(0).random((6000, 8))
    warm.covariances_ = np.ones(6000)
    warm.n_features_in_ = 8
    warm.merge_tree()
    before = megabytes()
    tree, seconds = timed(mixture.merge_tree)
    line: Line = {
        "components": n_components,
        "seconds": seconds,
        "MB": megabytes() - before,
        "cost of half": float(tree.costs[: n_components // 2].sum()),
        "scipy s": float("nan"),
        "scipy MB": float("nan"),
    }
    if n_components <= MOST_FOR_SCIPY:
        before = megabytes()
        _, line["scipy s"] = timed(lambda: linkage(truth.means, "ward"))
        line["scipy MB"] = megabytes() - before
    return line


def main() -> None:
    """Measure, print and write."""
    parser = parser_for(__doc__, seeds=1)
    parser.add_argument("--sizes", nargs="*", type=int, default=[1000, 10_000, 100_000])
    arguments = begin(parser)
    lines = []
    for size in arguments.sizes:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            lines.append(pool.apply(measure, (size,)))
    print_table("Merge trees, D = 8", lines)
    write_lines(arguments.out, "merge_tree.csv", lines)


if __name__ == "__main__":
    main()
