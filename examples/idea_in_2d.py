"""The idea, seen in the plane: EM asks all components about a row, a chain asks a few.

    python examples/idea_in_2d.py [--out FOLDER]

Three spiral arms are drawn from a mixture of 90 Gaussians. The same start, 90 components as wide as
all of the data, is fitted by EM, by the paper's chain with the uniform proposal, and by random
partitions, the proposal that pickmix takes by default; then a narrow start in the same three ways,
without pictures. Two pictures are left in FOLDER:
idea-snapshots.png, the three fits on their way, and idea-chain.png, the chain of one row and the
log-likelihood against the number of components evaluated.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.collections import EllipseCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from pickmix import GaussianMixture, Proposal, RandomPartition
from pickmix.data.known_mixture import KnownMixture
from pickmix.inspection.displays.colours import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    GRID,
    INK,
    ORANGE,
    VERMILION,
)
from pickmix.selection.randomness import Stream

N_ARMS = 3
WATCHED_ROW = 0


def spirals(per_arm: int) -> KnownMixture:
    """Gaussians strung along spiral arms, each stretched along its arm."""
    place = (np.arange(per_arm) + 0.5) / per_arm
    radius = np.tile(0.15 + 0.85 * place, N_ARMS)
    turn = np.repeat(np.arange(N_ARMS) / N_ARMS, per_arm) + 0.9 * np.tile(place, N_ARMS)
    angle = 2.0 * np.pi * turn
    outwards = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    onwards = np.stack([-np.sin(angle), np.cos(angle)], axis=1)
    axes = np.stack([0.012 * outwards, 0.035 * onwards], axis=2)
    n = N_ARMS * per_arm
    means = radius[:, None] * outwards
    return KnownMixture(np.full(n, 1.0 / n), means, axes @ axes.transpose(0, 2, 1))


class WatchedUniform(Proposal):
    """The uniform proposal, which also writes down what one row was offered and what it took."""

    def __init__(self, row: int) -> None:
        self.row = row
        self.offered: list[np.ndarray] = []
        self.taken: list[np.ndarray] = []

    def propose(self, rows, current, n_draws, first_draw, random):
        """Draw every candidate uniformly from all components."""
        u = random.uniforms(Stream.PROPOSAL, rows, n_draws, first_draw)
        candidates = np.minimum((u * self.n_components).astype(np.int32), self.n_components - 1)
        self.offered.extend(candidates[rows == self.row])
        return candidates, np.zeros(candidates.shape), np.zeros(len(rows))

    def observe(self, rows, states, step_size):
        """Write down the states that the chain of the watched row went through."""
        self.taken.extend(states[rows == self.row])


@dataclass
class Fit:
    """A fitted mixture and what it looked like on the way."""

    name: str
    colour: str
    mixture: GaussianMixture
    # Steps made, evaluations per row, means and covariances.
    snapshots: list[tuple[int, float, np.ndarray, np.ndarray]]


def fit(name: str, colour: str, X: np.ndarray, steps: list[int], **parameters: Any) -> Fit:
    """Fit all steps and keep a copy of the mixture after each of `steps`."""
    snapshots = []

    def keep(info):
        if info.step in steps:
            seen = info.estimator()
            per_row = info.evaluations / len(X)
            snapshots.append((info.step, per_row, seen.means_.copy(), seen.covariances_.copy()))

    mixture = GaussianMixture(
        max_steps=steps[-1], random_state=0, callbacks=keep, **parameters
    ).fit(X)
    return Fit(name, colour, mixture, snapshots)


def start_at_rows(X: np.ndarray, n_components: int, width: float) -> dict[str, Any]:
    """Components at random rows, `width` times as wide as all of the data."""
    chosen = np.random.default_rng(0).choice(len(X), n_components, replace=False)
    precision = np.linalg.inv(width**2 * np.cov(X.T))
    return {
        "n_components": n_components,
        "weights_init": np.full(n_components, 1.0 / n_components),
        "means_init": X[chosen],
        "precisions_init": np.tile(precision, (n_components, 1, 1)),
    }


def fit_all(
    X: np.ndarray, start: dict[str, Any], effort: float
) -> tuple[list[Fit], WatchedUniform]:
    """The same start, fitted in three ways; `effort` scales the numbers of steps."""
    n_components = start["n_components"]

    def scaled(*steps: int) -> list[int]:
        return sorted({max(1, int(effort * step)) for step in steps})

    uniform = WatchedUniform(WATCHED_ROW)
    em_steps, chain_steps = scaled(1, 10, 30, 100), scaled(10, 100, 1000, 10_000)
    fits = [
        fit("EM", VERMILION, X, em_steps, algorithm="em", evaluate_every=1, **start),
        fit(
            "uniform chain",
            BLUE,
            X,
            chain_steps,
            proposal=uniform,
            n_samples=2,
            batch_size=4 * n_components,
            # Evenly spread over the logarithm, and where the snapshots are.
            evaluate_every=sorted(
                {*chain_steps, *np.geomspace(1, chain_steps[-1], 25).astype(int)}
            ),
            **start,
        ),
        fit(
            "random partitions",
            GREEN,
            X,
            em_steps,
            proposal=RandomPartition(block_size=8),
            evaluate_every=1,
            **start,
        ),
    ]
    return fits, uniform


def draw_ellipses(axes, means, covariances, colour) -> None:
    """Two standard deviations of every component."""
    values, vectors = np.linalg.eigh(covariances)
    widths = 4.0 * np.sqrt(values)
    angles = np.degrees(np.arctan2(vectors[:, 1, 1], vectors[:, 0, 1]))
    axes.add_collection(
        EllipseCollection(
            widths[:, 1],
            widths[:, 0],
            angles,
            units="xy",
            offsets=means,
            offset_transform=axes.transData,
            facecolors=to_rgba(colour, 0.03),
            edgecolors=to_rgba(colour, 0.5),
            linewidths=0.7,
        )
    )


def draw_snapshots(X: np.ndarray, fits: list[Fit], path: Path) -> None:
    """A row of pictures for each fit."""
    n_columns = max(len(one.snapshots) for one in fits)
    figure = Figure(figsize=(2.55 * n_columns, 2.75 * len(fits)), layout="constrained")
    grid = figure.subplots(len(fits), n_columns, squeeze=False)
    some = X[:1500]
    for row, one in zip(grid, fits, strict=True):
        for axes in row[len(one.snapshots) :]:
            axes.set_axis_off()
        for axes, (step, per_row, means, covariances) in zip(row, one.snapshots, strict=False):
            draw_ellipses(axes, means, covariances, one.colour)
            # On top, or wide components would hide them.
            axes.scatter(*some.T, s=1.2, color=INK, linewidths=0, zorder=3)
            steps = f"{step:,} step{'' if step == 1 else 's'}"
            cost = f"{per_row:,.{1 if per_row < 10 else 0}f} evaluations per row"
            axes.set_title(f"{steps},\n{cost}", fontsize=8, color=INK)
            axes.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), xticks=[], yticks=[], aspect="equal")
            axes.spines[:].set_color(GRID)
        row[0].set_ylabel(one.name, color=one.colour, fontsize=11)
    figure.savefig(path, dpi=90)


def draw_chain(axes, x: np.ndarray, uniform: WatchedUniform, means: np.ndarray) -> None:
    """What one row was offered and what it took, visit by visit."""
    # Components are numbered by how near to the row they ended.
    nearness = np.argsort(np.argsort(np.linalg.norm(means - x, axis=1)))
    offered, taken = nearness[np.array(uniform.offered)], nearness[np.array(uniform.taken)]
    visit = np.repeat(np.arange(1, len(taken) + 1), taken.shape[1])
    axes.scatter(visit, offered.ravel(), s=5, color=GREY, alpha=0.5, linewidths=0, label="offered")
    axes.scatter(visit, taken.ravel(), s=9, color=ORANGE, linewidths=0, label="where it was")
    axes.set_xscale("log")
    axes.set_xlabel("visit of this row", color=INK)
    axes.set_ylabel("component, by nearness at the end", color=INK)
    axes.set_title("The chain of one row, uniform proposal", loc="left", fontsize=10)
    axes.legend(loc="upper left", fontsize=8, framealpha=0.9)


def draw_likelihoods(axes, fits: list[Fit], n_rows: int, truth: float) -> None:
    """Log-likelihood against evaluations per row, as `trace_` has them."""
    for one in fits:
        trace = one.mixture.trace_
        per_row = trace["evaluations"] / n_rows
        axes.plot(per_row, trace["log_likelihood"], color=one.colour, lw=1.8, label=one.name)
    axes.axhline(truth, color=BLACK, lw=1.0, ls=":", label="true mixture")
    axes.set_xscale("log")
    axes.set_xlabel("components evaluated per row", color=INK)
    axes.set_ylabel("log-likelihood per row", color=INK)
    axes.set_title("What the evaluations bought", loc="left", fontsize=10)
    axes.grid(color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.legend(loc="upper left", fontsize=8, framealpha=0.9)


def first_reached(trace: np.ndarray, level: float) -> float:
    """Evaluations after which the log-likelihood first was at `level`; infinite if it never was."""
    reached = np.flatnonzero(trace["log_likelihood"] >= level)
    return float(trace["evaluations"][reached[0]]) if reached.size else np.inf


def report(title: str, fits: dict[str, GaussianMixture], new: np.ndarray, n_rows: int) -> None:
    """The fits in a few lines; the first is EM."""
    print(f"{title:21}{'evaluations':>12}{'until as':>12}{'log-likelihood':>16}{'on new':>9}")
    print(f"{'':21}{'per row':>12}{'good as EM':>12}{'in trace_':>16}{'rows':>9}")
    level = next(iter(fits.values())).trace_["log_likelihood"][-1]
    for name, mixture in fits.items():
        trace = mixture.trace_
        # A start that looks for clusters evaluates components too.
        start = mixture.n_start_evaluations_
        total = (mixture.n_component_evaluations_ + start) / n_rows
        until = (first_reached(trace, level) + start) / n_rows
        reached = f"{until:,.0f}" if np.isfinite(until) else "never"
        print(
            f"{name:21}{total:12,.0f}{reached:>12}{trace['log_likelihood'][-1]:16.3f}"
            f"{mixture.score(new):9.3f}"
        )
    print()


def report_chain(uniform: WatchedUniform) -> None:
    """What the chain of the watched row did, in a sentence."""
    taken = np.array(uniform.taken)
    moves = int(np.count_nonzero(np.diff(taken.ravel())))
    late = taken[len(taken) // 2 :]
    print(
        f"The watched row was visited {len(taken)} times and offered {taken.size} components; "
        f"it moved {moves} times.\nIn the second half of its visits it was at "
        f"{len(np.unique(late))} of {uniform.n_components} components."
    )


def run(out: Path, *, n_rows: int = 9000, per_arm: int = 30, effort: float = 1.0):
    """Fit, draw and report; returns the fits of both starts, the default one and the chain."""
    truth = spirals(per_arm)
    X, _ = truth.sample(n_rows, random_state=0)
    new, _ = truth.sample(n_rows, random_state=1)
    n_components = N_ARMS * per_arm
    wide, uniform = fit_all(X, start_at_rows(X, n_components, 1.0), effort)
    narrow, _ = fit_all(X, start_at_rows(X, n_components, 0.2), effort)
    default = GaussianMixture(n_components, random_state=0).fit(X)

    out.mkdir(parents=True, exist_ok=True)
    draw_snapshots(X, wide, out / "idea-snapshots.png")
    figure = Figure(figsize=(10.5, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_chain(left, X[WATCHED_ROW], uniform, wide[1].mixture.means_)
    draw_likelihoods(right, wide, n_rows, float(truth.score_samples(X).mean()))
    figure.savefig(out / "idea-chain.png", dpi=100)

    print(f"{n_rows:,} rows, {n_components} components\n")
    report("Wide start", {one.name: one.mixture for one in wide}, new, n_rows)
    report("Narrow start", {one.name: one.mixture for one in narrow}, new, n_rows)
    print(
        f"Default settings, with a start of their own: {default.score(new):.3f} on new rows after "
        f"{(default.n_component_evaluations_ + default.n_start_evaluations_) / n_rows:,.0f} "
        f"evaluations per row.\nThe true mixture: {truth.score_samples(new).mean():.3f}\n"
    )
    report_chain(uniform)
    print(f"\nPictures: {out / 'idea-snapshots.png'}, {out / 'idea-chain.png'}")
    return wide, narrow, default, uniform


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of the pictures")
    parser.add_argument("--quick", action="store_true", help="fewer rows and steps")
    options = parser.parse_args(arguments)
    if options.quick:
        run(options.out, n_rows=1500, per_arm=10, effort=0.1)
    else:
        run(options.out)


if __name__ == "__main__":
    main()
