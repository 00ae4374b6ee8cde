"""Counts and mixed tables: how near a fit comes to the mixture that the rows were drawn from.

Poisson: 200 components, 30 columns of counts, 100,000 rows. Product: 100 components, 5 numbers with
full covariances, 3 categories of 50, 10 and 4 levels, 2 columns of counts, 100,000 rows. Held-out
log-likelihood per row on 20,000 rows, three seeds. Writes families.csv.

    python benchmarks/families.py
"""

from __future__ import annotations

import numpy as np
from reporting import parser_for, timed, write_lines
from scipy.special import gammaln, logsumexp

from pickmix import FamilyMixture
from pickmix.data.rotated import generate

N_ROWS, N_HELD_OUT = 100_000, 20_000
LEVELS = (50, 10, 4)
PRODUCT = [("full", [0, 1, 2, 3, 4]), ("categorical", [5, 6, 7]), ("poisson", [8, 9])]


def log_poisson(rows: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Log-probabilities (N, K) of counts (N, C) under rates (K, C)."""
    return rows @ np.log(rates).T - rates.sum(axis=1) - gammaln(rows + 1.0).sum(axis=1)[:, None]


def draw_counts(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of counts, and the log-density of each under the mixture that they came from."""
    rng = np.random.default_rng(seed)
    rates = np.exp(rng.normal(1.0, 1.0, (200, 30)))
    rows = rng.poisson(rates[rng.integers(200, size=n)]).astype(np.float64)
    return rows, logsumexp(log_poisson(rows, rates), axis=1) - np.log(200)


def draw_mixed(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of numbers, categories and counts, and the log-density of each."""
    rng = np.random.default_rng(seed)
    K = 100
    numbers = generate(K, 5, 0.1, random_state=seed)
    component = rng.integers(K, size=n)
    rows = np.empty((n, 10))
    factors = np.linalg.cholesky(numbers.covariances)
    noise = rng.standard_normal((n, 5))
    rows[:, :5] = numbers.means[component] + np.einsum("nij,nj->ni", factors[component], noise)
    log_joint = np.empty((n, K))
    for k in range(K):
        away = np.linalg.solve(factors[k], (rows[:, :5] - numbers.means[k]).T)
        log_determinant = np.log(np.diagonal(factors[k])).sum()
        log_joint[:, k] = -0.5 * np.square(away).sum(axis=0) - log_determinant
    log_joint -= 2.5 * np.log(2.0 * np.pi)
    for column, n_levels in enumerate(LEVELS, start=5):
        shares = rng.dirichlet(np.full(n_levels, 0.5), K)
        borders = np.cumsum(shares, axis=1)[component]
        levels = (rng.random(n)[:, None] > borders).sum(axis=1).clip(max=n_levels - 1)
        rows[:, column] = levels
        log_joint += np.log(shares[:, levels].T)
    rates = np.exp(rng.normal(1.0, 1.0, (K, 2)))
    rows[:, 8:] = rng.poisson(rates[component])
    log_joint += log_poisson(rows[:, 8:], rates)
    return rows, logsumexp(log_joint, axis=1) - np.log(K)


def main() -> None:
    """Measure, print and write."""
    arguments = parser_for(__doc__, seeds=3).parse_args()
    n_rows, n_held_out = (500, 200) if arguments.quick else (N_ROWS, N_HELD_OUT)
    lines = []
    for name, draw, family, K in (
        ("poisson", draw_counts, "poisson", 200),
        ("product", draw_mixed, PRODUCT, 100),
    ):
        for seed in range(1 if arguments.quick else arguments.seeds):
            rows, truth = draw(seed, n_rows + n_held_out)
            mixture = FamilyMixture(family, K, random_state=seed)
            _, seconds = timed(lambda m=mixture, X=rows[:n_rows]: m.fit(X))
            seconds -= mixture.compile_seconds_
            held_out, known = mixture.score(rows[n_rows:]), truth[n_rows:].mean()
            lines.append(
                {
                    "family": name,
                    "seed": seed,
                    "held_out": round(held_out, 4),
                    "known_mixture": round(float(known), 4),
                    "gap": round(float(known) - held_out, 4),
                    "seconds": round(seconds, 2),
                    "evaluations_per_row": round(mixture.n_component_evaluations_ / n_rows),
                }
            )
            print(lines[-1], flush=True)
    if not arguments.quick:
        write_lines(arguments.out, "families.csv", lines)


if __name__ == "__main__":
    main()
