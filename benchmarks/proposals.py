"""Designs for selection at large K, at equal component evaluations and from the same start.

- uniform: the paper's proposal;
- table-forgetting: the paper's learnt table per row;
- neighbour graph: nine draws in ten among the 15 nearest components of the current one (and those
  that have it among theirs), the rest uniform, with the exact reverse probability;
- pooled cells: rows are put into cells of a random tree, and draw from a table of the components
  that rows of their cell stand on, mixed with a tenth of uniform draws;
- partition: random-partition Gibbs, without relocation.

The neighbour graph and the pooled cells live in this script only: they lost. Writes proposals.csv
and proposals.md.

    python benchmarks/proposals.py
"""

from __future__ import annotations

import warnings

import numpy as np
from reporting import parser_for, write_lines
from scipy.spatial import cKDTree

from pickmix import GaussianMixture, Proposal, RandomPartition
from pickmix.data import rotated
from pickmix.kernels import numpy_kernels
from pickmix.selection.randomness import StepRandomness, Stream

D, K, N = 8, 200, 20_000
BUDGETS = (100, 300, 600)
UNIFORM_SHARE = 0.1


class NeighbourGraph(Proposal):
    """Mostly neighbours of the current component, in the graph of nearest means."""

    independent = False

    def __init__(self, means: np.ndarray, n_neighbours: int = 15) -> None:
        nearest = cKDTree(means).query(means, n_neighbours + 1)[1][:, 1:]
        links = np.zeros((means.shape[0], means.shape[0]), dtype=bool)
        links[np.arange(means.shape[0])[:, None], nearest] = True
        links |= links.T
        self.lists = [np.flatnonzero(row) for row in links]
        self.degree = links.sum(axis=1)
        self.padded = np.stack([np.resize(row, self.degree.max()) for row in self.lists])
        self.links = links

    def propose(self, rows, current, n_draws, first_draw, random):
        """One draw, and log q in both directions."""
        u = random.uniforms(Stream.PROPOSAL, rows, 1, 2 * first_draw)[:, 0]
        v = random.uniforms(Stream.EXPLORATION, rows, 1, first_draw)[:, 0]
        K = self.n_components
        place = np.minimum((v * self.degree[current]).astype(int), self.degree[current] - 1)
        anywhere = np.minimum((v * K).astype(int), K - 1)
        candidates = np.where(u < UNIFORM_SHARE, anywhere, self.padded[current, place])
        linked = self.links[current, candidates]

        def log_q(source):
            return np.log(UNIFORM_SHARE / K + (1 - UNIFORM_SHARE) * linked / self.degree[source])

        return candidates[:, None], log_q(current)[:, None], log_q(candidates)


class PooledCells(Proposal):
    """The components that rows of the same cell stand on, as an independent proposal."""

    def __init__(self, X: np.ndarray, n_components: int, rows_per_cell: int = 256) -> None:
        key = StepRandomness(0, 0).key(Stream.PARTITION)
        order, offsets, _ = numpy_kernels.grow_tree(X, rows_per_cell, key, np.ones(X.shape[1]))
        self.cell = np.empty(X.shape[0], dtype=int)
        self.cell[order] = np.repeat(np.arange(offsets.shape[0] - 1), np.diff(offsets))
        self.table = np.full((offsets.shape[0] - 1, n_components), 1.0 / n_components)

    def propose(self, rows, current, n_draws, first_draw, random):
        """Draws from the table of each row's cell."""
        q = (1 - UNIFORM_SHARE) * self.table[self.cell[rows]]
        q += UNIFORM_SHARE / self.n_components
        running = np.cumsum(q / q.sum(axis=1, keepdims=True), axis=1)
        u = random.uniforms(Stream.PROPOSAL, rows, n_draws, first_draw)
        candidates = np.stack([(running < u[:, [j]]).sum(axis=1) for j in range(n_draws)], axis=1)
        candidates = np.minimum(candidates, self.n_components - 1)
        log_q = np.log(np.take_along_axis(q, candidates, axis=1))
        return candidates, log_q, np.log(q[np.arange(rows.shape[0]), current])

    def observe(self, rows, states, step_size):
        """Let the tables follow the states that their rows visited."""
        visits = np.zeros_like(self.table)
        np.add.at(visits, (np.repeat(self.cell[rows], states.shape[1]), states.ravel()), 1.0)
        seen = visits.sum(axis=1, keepdims=True)
        share = np.minimum(1.0, seen / 512.0)
        self.table += np.where(seen > 0, share * (visits / np.maximum(seen, 1.0) - self.table), 0.0)


def contenders(X: np.ndarray, means: np.ndarray) -> dict[str, dict]:
    """Settings of each design."""
    return {
        "uniform, M = 8": {"proposal": "uniform", "n_samples": 8},
        "table-forgetting, M = 8": {"proposal": "table-forgetting", "n_samples": 8},
        "neighbour graph, M = 8": {"proposal": NeighbourGraph(means), "n_samples": 8},
        "pooled cells, M = 8": {"proposal": PooledCells(X, K), "n_samples": 8},
        "partition, G = 16": {"proposal": RandomPartition(16, relocate=False)},
        "partition, G = 32": {"proposal": RandomPartition(32, relocate=False)},
    }


def run(X: np.ndarray, held_out: np.ndarray, seed: int) -> list[dict]:
    """Held-out log-likelihoods of each design as its evaluations pass the budgets."""
    start = GaussianMixture(
        K, proposal="uniform", init_params="k-means++", max_steps=1, random_state=seed
    ).fit(X)
    found = []
    for name, settings in contenders(X, start.means_).items():
        reached: dict[int, tuple[float, float]] = {}

        def watch(info, reached=reached):
            for budget in BUDGETS:
                if info.evaluations >= budget * N and budget not in reached:
                    reached[budget] = (info.estimator().score(held_out), info.seconds)
            return len(reached) == len(BUDGETS)

        GaussianMixture(
            K,
            means_init=start.means_,
            max_iter=200,
            tol=0.0,
            random_state=seed,
            callbacks=watch,
            **settings,
        ).fit(X)
        for budget, (score, seconds) in reached.items():
            line = {"design": name, "seed": seed, "evaluations_per_row": budget}
            found.append(line | {"held_out": round(score, 4), "seconds": round(seconds, 2)})
            print(found[-1], flush=True)
    return found


def main() -> None:
    """Run all designs on separated and on overlapping components."""
    arguments = parser_for(__doc__, seeds=3).parse_args()
    warnings.simplefilter("ignore")
    lines = []
    for setting, width in (("separated", 0.09), ("overlapping", 0.2)):
        truth = rotated.generate(K, D, width, random_state=0)
        X, _ = truth.sample(N, random_state=0)
        held_out, _ = truth.sample(5000, random_state=1)
        for seed in range(1 if arguments.quick else arguments.seeds):
            lines += [{"setting": setting} | line for line in run(X, held_out, seed)]
        if arguments.quick:
            print(table(lines))
            return
    write_lines(arguments.out, "proposals.csv", lines)
    (arguments.out / "proposals.md").write_text(table(lines))


def table(lines: list[dict]) -> str:
    """Medians over seeds: held-out log-likelihood (seconds of work)."""
    text = "| setting | design | " + " | ".join(f"{b} evaluations" for b in BUDGETS) + " |\n"
    text += "|---" * (2 + len(BUDGETS)) + "|\n"
    for setting in dict.fromkeys(line["setting"] for line in lines):
        for design in dict.fromkeys(line["design"] for line in lines):
            cells = []
            for budget in BUDGETS:
                own = [
                    (line["held_out"], line["seconds"])
                    for line in lines
                    if (line["setting"], line["design"]) == (setting, design)
                    and line["evaluations_per_row"] == budget
                ]
                score, seconds = np.median(np.array(own), axis=0) if own else (np.nan, np.nan)
                cells.append(f"{score:.3f} ({seconds:.1f} s)")
            text += f"| {setting} | {design} | " + " | ".join(cells) + " |\n"
    return text


if __name__ == "__main__":
    main()
