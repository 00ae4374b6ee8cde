"""Choosing M (n_samples), B (batch_size) and the proposal: a small grid, measured on new rows.

    python examples/choosing.py [--out FOLDER]

All fits but one begin at the same random rows and may evaluate as many components, so that what
differs is how they spend them; the last one has default settings. A picture of the log-likelihood
of rows held out against evaluations is left in FOLDER/choosing.png.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pickmix import GaussianMixture, RandomPartition
from pickmix.data import rotated
from pickmix.inspection.displays.colours import (
    BLACK,
    BLUE,
    GREEN,
    GRID,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
)

N_RECORDS = 12
WIDTH = 0.12


@dataclass(frozen=True)
class Setting:
    """A name, parameters of GaussianMixture, and evaluations per visit of a row."""

    name: str
    parameters: dict[str, Any]
    per_visit: int
    colour: str
    line: str = "-"


@dataclass(frozen=True)
class Curve:
    """Evaluations per row and log-likelihood of held-out rows; seconds of work, all told."""

    evaluations: np.ndarray
    scores: np.ndarray
    seconds: float
    acceptance: float


def uniform(n_samples: int, batch_size: int, colour: str, line: str = "-") -> Setting:
    parameters = {"proposal": "uniform", "n_samples": n_samples, "batch_size": batch_size}
    name = f"uniform, M = {n_samples}, B = {batch_size}"
    return Setting(name, parameters, n_samples + 1, colour, line)


def settings_for(n_components: int, n_rows: int) -> list[Setting]:
    """The grid: M at one B, B at one M, then other proposals."""
    usual = 4 * n_components
    blocks = [
        Setting(
            f"partition, G = {size}",
            {"proposal": RandomPartition(block_size=size)},
            min(size, n_components),
            GREEN,
            line,
        )
        for size, line in ((8, "--"), (32, "-"))
    ]
    return [
        uniform(1, usual, SKY),
        uniform(2, usual, BLUE),
        uniform(8, usual, PURPLE),
        uniform(2, n_components, BLUE, ":"),
        uniform(2, n_rows // 2, BLUE, "--"),
        Setting(
            f"table-forgetting, M = 2, B = {usual}",
            {"proposal": "table-forgetting", "n_samples": 2, "batch_size": usual},
            3,
            ORANGE,
        ),
        *blocks,
        Setting("all components, B = N (EM)", {"algorithm": "em"}, n_components, VERMILION),
    ]


def fit_within(setting: Setting, n_components: int, X, held_out, budget: float, seed: int) -> Curve:
    """Fit until `budget` components have been evaluated per row."""
    batch_size = setting.parameters.get("batch_size", len(X))
    # The same number of batches for every pass, as the library divides them.
    steps_per_pass = -(-len(X) // batch_size)
    n_steps = max(1, round(budget / setting.per_visit * steps_per_pass))
    scores = []
    mixture = GaussianMixture(
        n_components,
        init_params="random_from_data",
        max_steps=n_steps,
        evaluate_every=np.unique(np.geomspace(1, n_steps, N_RECORDS).astype(int)).tolist(),
        callbacks=lambda info: scores.append(info.estimator().score(held_out)),
        random_state=seed,
        **setting.parameters,
    ).fit(X)
    trace = mixture.trace_
    return Curve(
        trace["evaluations"] / len(X),
        np.array(scores),
        float(trace["seconds"][-1]),
        float(trace["acceptance"][-1]),
    )


def fit_default(n_components: int, X, held_out, seed: int) -> Curve:
    """Default settings: their own start, which counts, and their own end."""
    scores = []
    mixture = GaussianMixture(
        n_components,
        callbacks=lambda info: scores.append(info.estimator().score(held_out)),
        random_state=seed,
    ).fit(X)
    trace = mixture.trace_
    evaluations = (trace["evaluations"] + mixture.n_start_evaluations_) / len(X)
    return Curve(evaluations, np.array(scores), float(trace["seconds"][-1]), 1.0)


def measure(
    n_components: int, n_features: int, n_rows: int, budget: float, seeds: int
) -> tuple[dict[str, list[Curve]], list[Setting], float]:
    """All settings with all seeds: a new mixture and new rows for each seed."""
    settings = settings_for(n_components, n_rows)
    curves: dict[str, list[Curve]] = {setting.name: [] for setting in settings}
    curves["default"] = []
    best = []
    for seed in range(seeds):
        truth = rotated.generate(n_components, n_features, WIDTH, random_state=seed)
        X, _ = truth.sample(n_rows, random_state=seed)
        held_out, _ = truth.sample(5000, random_state=1000 + seed)
        best.append(truth.score_samples(held_out).mean())
        for setting in settings:
            curve = fit_within(setting, n_components, X, held_out, budget, seed)
            curves[setting.name].append(curve)
        curves["default"].append(fit_default(n_components, X, held_out, seed))
    return curves, settings, float(np.mean(best))


def score_at(curves: list[Curve], evaluations: float) -> float:
    """Mean over seeds of the last score that cost at most so many evaluations per row."""
    found = [c.scores[c.evaluations <= 1.02 * evaluations] for c in curves]
    return float(np.mean([scores[-1] if scores.size else np.nan for scores in found]))


def print_table(curves: dict[str, list[Curve]], best: float, budget: float) -> None:
    """Log-likelihoods of rows held out, mean over seeds, and what they cost."""
    print(
        f"{'':32}{budget / 5:>7.0f} ev.{budget:>7.0f} ev.{'lowest':>9}{'highest':>9}"
        f"{'accepted':>10}{'seconds':>9}"
    )
    for name, found in curves.items():
        last = [c.scores[-1] for c in found]
        if name == "default":
            end = np.mean([c.evaluations[-1] for c in found])
            early, late = "", f"{np.mean(last):.3f}"
            name = f"default ({end:,.0f} ev. with start)"
        else:
            early = f"{score_at(found, budget / 5):.3f}".replace("nan", "-")
            late = f"{np.mean(last):.3f}"
        accepted = np.mean([c.acceptance for c in found])
        share = "-" if np.isnan(accepted) else f"{accepted:.1%}"
        # The shortest: in the first fit of its kind a kernel may still have to be compiled.
        seconds = min(c.seconds for c in found)
        print(
            f"{name:32}{early:>11}{late:>11}{min(last):9.3f}{max(last):9.3f}"
            f"{share:>10}{seconds:9.2f}"
        )
    print(f"{'true mixture':32}{'':11}{best:11.3f}\n")


def draw(axes, curves, settings: list[Setting], best: float, title: str) -> None:
    """Held-out log-likelihood against evaluations, the mean over seeds."""
    for setting in settings:
        found = curves[setting.name]
        axes.plot(
            np.mean([c.evaluations for c in found], axis=0),
            np.mean([c.scores for c in found], axis=0),
            color=setting.colour,
            ls=setting.line,
            lw=1.7,
            marker="o",
            ms=2.5,
            label=setting.name,
        )
    default = curves["default"]
    axes.plot(
        [c.evaluations[-1] for c in default],
        [c.scores[-1] for c in default],
        "*",
        ms=9,
        color=BLACK,
        label="default, at its end",
    )
    axes.axhline(best, color=BLACK, lw=1.0, ls=":", label="true mixture")
    axes.set_xscale("log")
    # The first steps from the start would squeeze the rest.
    ends = [c.scores[-1] for found in curves.values() for c in found]
    lowest = min(c.scores.min() for found in curves.values() for c in found)
    room = max(best, *ends) - min(ends)
    axes.set_ylim(max(lowest, min(ends) - room) - 0.05 * room, max(best, *ends) + 0.1 * room)
    axes.set_xlabel("components evaluated per row", color=INK)
    axes.set_ylabel("log-likelihood of held-out rows", color=INK)
    axes.set_title(title, loc="left", fontsize=10)
    axes.grid(color=GRID, lw=0.8)
    axes.set_axisbelow(True)


def run(out: Path, *, sizes=((200, 5, 10_000, 200), (20, 5, 4000, 100)), seeds: int = 2):
    """Measure, print and draw, for each (K, D, N, evaluations per row) of `sizes`."""
    figure = Figure(figsize=(6.0 * len(sizes), 5.8), layout="constrained")
    results = []
    for axes, (K, D, N, budget) in zip(
        figure.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True
    ):
        curves, settings, best = measure(K, D, N, budget, seeds)
        print(f"K = {K}, D = {D}, N = {N:,}, mean of {seeds} seeds; ev.: evaluations per row\n")
        print_table(curves, best, budget)
        draw(axes, curves, settings, best, f"K = {K}, {N:,} rows in {D} columns")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, fontsize=7.5)
        results.append((curves, best))
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "choosing.png", dpi=100)
    print(f"Picture: {out / 'choosing.png'}")
    return results


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of the picture")
    parser.add_argument("--quick", action="store_true", help="fewer components, rows and seeds")
    options = parser.parse_args(arguments)
    if options.quick:
        run(options.out, sizes=((20, 3, 1000, 40),), seeds=1)
    else:
        run(options.out)


if __name__ == "__main__":
    main()
