r"""Proposals for deep components, from a Gaussian start and from the paper's: time to one target.

Flows and networks with K = 32, 128 and 1,024 components make the same number of steps with each of

- "uniform", "table-forgetting", "partition" (blocks of 4) and "optimal" (exact draws from the
  posterior, which evaluate all components): as they come;
- "shadow": every component has a Gaussian beside it. Nine of ten candidates are drawn from the
  posterior of these Gaussians over a row's eight likeliest components, one of ten uniformly. From a
  Gaussian start they are the Gaussians of the start; from the paper's they are the moments of the
  rows whose chains stand on the component, taken anew after every five passes.

The target is the highest validation value that "uniform" reaches, if that is above the start. The
figures are the mean acceptance in the first and in the last tenth of the steps, and the steps and
seconds until a rule has come to the target. From the paper's start, what a shadow takes for its
posteriors is part of its seconds. Exact draws say what the best proposal could save in steps, were
it free.

    OMP_NUM_THREADS=1 XLA_FLAGS=--xla_cpu_multi_thread_eigen=false PICKMIX_DATA=... \
        python benchmarks/deep_proposals.py --clock cpu [--cases flows-32-gaussian ...]
"""

from __future__ import annotations

import types
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from deep_tables import curved_clusters
from reporting import begin, now, parser_for, print_table, write_lines

from pickmix import FlowMixture, GaussianMixture, Proposal, SumProductTransformNetwork
from pickmix.data import uci
from pickmix.fitting import loop
from pickmix.gradient.start import Gaussians
from pickmix.selection.randomness import Stream

SIZES = (32, 128, 1024)
STEPS = {32: 3000, 128: 4000, 1024: 6000}
RECORDS = 40
N_LIKELIEST = 8
UNIFORM_SHARE = 0.1
PASSES = 5
# Exact draws of 1,024 components would take most of the time of a run.
MOST_EXACT = 128
RULES = ("uniform", "table-forgetting", "partition", "optimal", "shadow")


class Shadow(Proposal):
    """Draws from the posterior of Gaussians over a row's few likeliest components."""

    def __init__(self, X: np.ndarray, gaussians: Gaussians | None) -> None:
        self.X, self.gaussians = X, gaussians
        self.seconds = 0.0

    def start(self, n_rows: int, n_components: int) -> None:
        """Begin with the Gaussians, or with all components alike."""
        super().start(n_rows, n_components)
        self.chain = np.full(n_rows, -1)
        self.likeliest, self.shares = np.zeros((n_rows, 1), np.int32), np.zeros((n_rows, 1))
        # Choices below the root of a network are drawn uniformly.
        self.is_root, self.n_visits = n_rows == self.X.shape[0], 0
        if self.gaussians is not None and self.is_root:
            self.look(self.gaussians)

    def look(self, gaussians: Gaussians) -> None:
        """Find the likeliest components of all rows, and their shares."""
        size = max(1, 4_000_000 // gaussians.n_components)
        likeliest, shares = [], []
        for begin_at in range(0, self.n_rows, size):
            scores = gaussians.log_joint(self.X[begin_at : begin_at + size])
            found = np.argpartition(-scores, N_LIKELIEST, axis=1)[:, :N_LIKELIEST]
            weights = np.take_along_axis(scores, found, axis=1)
            weights = np.exp(weights - weights.max(axis=1, keepdims=True))
            likeliest.append(found)
            shares.append(weights / weights.sum(axis=1, keepdims=True))
        self.likeliest = np.concatenate(likeliest)
        self.shares = (1.0 - UNIFORM_SHARE) * np.concatenate(shares)

    def log_q(self, rows: np.ndarray, components: np.ndarray) -> np.ndarray:
        """The log-probability of components (B,) for rows (B,)."""
        shares = self.shares[rows]
        is_it = self.likeliest[rows] == components[:, None]
        rest = (1.0 - shares.sum(axis=1)) / self.n_components
        return np.log((is_it * shares).sum(axis=1) + rest)

    def propose(self, rows, current, n_draws, first_draw, random):
        """Draw candidates, `n_draws` for each row."""
        started = now()
        u = random.uniforms(Stream.PROPOSAL, rows, n_draws, first_draw)
        running, likeliest = np.cumsum(self.shares[rows], axis=1), self.likeliest[rows]
        candidates, log_q = [], []
        for column in u.T:
            place = (running <= column[:, None]).sum(axis=1)
            is_near = place < running.shape[1]
            near = likeliest[np.arange(rows.shape[0]), np.minimum(place, running.shape[1] - 1)]
            # What is left of the draw is uniform again.
            rest = (column - running[:, -1]) / (1.0 - running[:, -1])
            far = np.minimum((rest * self.n_components).astype(int), self.n_components - 1)
            candidates.append(np.where(is_near, near, far))
            log_q.append(self.log_q(rows, candidates[-1]))
        result = np.stack(candidates, axis=1), np.stack(log_q, axis=1), self.log_q(rows, current)
        self.seconds += now() - started
        return result

    def observe(self, rows, states, step_size):
        """Note where chains stand, and take moments of that now and then."""
        started = now()
        self.chain[rows] = states[:, -1]
        self.n_visits += rows.shape[0]
        if self.gaussians is None and self.is_root and self.n_visits >= PASSES * self.n_rows:
            self.n_visits = 0
            self.look(self.moments())
        self.seconds += now() - started

    def moments(self) -> Gaussians:
        """Gaussians of the rows on each component, shrunk to those of all rows."""
        n_features, known = self.X.shape[1], self.chain >= 0
        rows, chain = self.X[known], self.chain[known]
        counts = np.bincount(chain, minlength=self.n_components)
        means = np.zeros((self.n_components, n_features))
        np.add.at(means, chain, rows)
        means = (means + rows.mean(axis=0)) / (counts + 1)[:, None]
        away = rows - means[chain]
        scatter = np.zeros((self.n_components, n_features, n_features))
        for block in np.array_split(np.arange(rows.shape[0]), 1 + rows.shape[0] // 10_000):
            outer = away[block, :, None] * away[block, None, :]
            np.add.at(scatter, chain[block], outer)
        pooled = scatter.sum(axis=0) / rows.shape[0] + 1e-6 * np.diag(rows.var(axis=0))
        covariances = scatter + n_features * pooled
        covariances /= (counts + n_features)[:, None, None]
        factors = np.linalg.inv(np.linalg.cholesky(covariances))
        return Gaussians((counts + 1.0) / (counts.sum() + counts.shape[0]), means, factors)


def gaussians_of(X: np.ndarray, n_components: int, seed: int) -> Gaussians:
    """The Gaussians that a deep fit with this seed begins with."""
    fitted = GaussianMixture(n_components, random_state=seed).fit(X)
    factors = np.linalg.inv(np.linalg.cholesky(fitted.covariances_))
    return Gaussians(fitted.weights_, fitted.means_, factors)


def rows_for(n_components: int, quick: bool) -> tuple[str, np.ndarray, np.ndarray]:
    """A table, and its rows to fit and to watch."""
    if n_components < max(SIZES):
        split = uci.load("pendigits" if n_components == 32 else "magic-telescope", "paper")
        return split.name, split.train, split.validation
    X = curved_clusters(3_000 if quick else 42_000, 0)
    return "curved clusters", X[2000:], X[:2000]


def fit(model: str, number: int, begins: str, rule: Any, data: Any, n_steps: int) -> Any:
    """Make all steps."""
    settings: dict[str, Any] = {
        "init_params": begins,
        "proposal": rule,
        "max_steps": n_steps,
        "evaluate_every": n_steps // RECORDS,
        "patience": None,
        "standardize": "columns",
        "random_state": 0,
    }
    train, watched = data
    if model == "flows":
        mixture: Any = FlowMixture(number, linear=begins == "gaussian", **settings)
    else:
        mixture = SumProductTransformNetwork([number, 4], **settings)
    return mixture.fit(train, validation_data=watched)


def reached(trace: np.ndarray, start: float, target: float) -> tuple[float, float]:
    """Steps and seconds at which a fit has come to the target; NaN if it has not."""
    values = np.maximum.accumulate(np.append(start, trace["validation"]))
    if not values[-1] >= target:
        return np.nan, np.nan
    last = max(1, int(np.argmax(values >= target)))
    low, high = values[last - 1], values[last]
    part = 1.0 if high <= low else float(np.clip((target - low) / (high - low), 0.0, 1.0))
    found = []
    for name in ("step", "seconds"):
        before = trace[name][last - 2] if last > 1 else 0
        found.append(float(before + part * (trace[name][last - 1] - before)))
    return found[0], found[1]


def measure(model: str, number: int, begins: str, quick: bool) -> list[dict[str, Any]]:
    """A line for every rule."""
    name, *data = rows_for(number, quick)
    n_steps = 400 if quick else STEPS[number]
    lines, target = [], np.nan
    for rule in RULES:
        if rule == "optimal" and number > MOST_EXACT:
            continue
        proposal: Any = rule
        if rule == "shadow":
            known = gaussians_of(data[0], number, 0) if begins == "gaussian" else None
            proposal = Shadow(data[0], known)
        mixture = fit(model, number, begins, proposal, data, n_steps)
        trace, tenth = mixture.trace_, max(1, RECORDS // 10)
        if rule == "uniform":
            highest = float(trace["validation"].max())
            target = highest if highest > mixture.start_validation_ else np.nan
        steps, seconds = reached(trace, mixture.start_validation_, target)
        lines.append(
            {
                "model": model,
                "K": number,
                "start": begins,
                "table": name,
                "rule": rule,
                "accepted first": float(trace["acceptance"][:tenth].mean()),
                "accepted last": float(trace["acceptance"][-tenth:].mean()),
                "begin": mixture.start_validation_,
                "best": float(trace["validation"].max()),
                "steps to target": steps,
                "seconds to target": seconds,
                "seconds": float(trace["seconds"][-1]),
            }
        )
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Measure, print and write."""
    parser = parser_for(__doc__, seeds=1)
    parts = product(("flows", "networks"), SIZES, ("gaussian", "paper"))
    cases = ["-".join(map(str, part)) for part in parts]
    parser.add_argument("--cases", nargs="*", default=cases)
    arguments = begin(parser)
    # Seconds of steps by the clock that was chosen.
    vars(loop)["time"] = types.SimpleNamespace(perf_counter=now)
    lines: list[dict[str, Any]] = []
    path = arguments.out / "deep_proposals.csv"
    for case in arguments.cases:
        model, number, begins = case.split("-")
        lines = pd.read_csv(path).to_dict("records") if path.exists() else []
        new = measure(model, int(number), begins, arguments.quick)
        keys = {(line["model"], line["K"], line["start"]) for line in new}
        kept = [each for each in lines if (each["model"], each["K"], each["start"]) not in keys]
        lines = kept + new
        write_lines(arguments.out, path.name, lines)
    print_table("proposals", lines)


if __name__ == "__main__":
    main()
