"""Deep mixtures on a UCI set: densities of new rows, and anomalies by low density.

    python examples/deep_uci.py [--out FOLDER] [--set magic-telescope] [--split 0]

A mixture of Gaussians, a mixture of real NVP flows and a sum-product-transform network are fitted
to the training part of a set's normal rows. The validation part decides how many Gaussians there
are and when the deep ones have been trained enough; the test part is scored. Then the set's
anomalies are told from the test rows by their density. A picture is left in FOLDER/deep-uci.png.

The set's two files are looked for in the folder that the environment variable PICKMIX_DATA names,
then in the cache, and then downloaded.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from sklearn.metrics import roc_auc_score, roc_curve

from pickmix import FlowMixture, GaussianMixture, SumProductTransformNetwork
from pickmix.data import uci
from pickmix.experiments.colours import BLUE, GREEN, GRID, INK, VERMILION
from pickmix.selection.schedules import CosineRate


@dataclass(frozen=True)
class Parts:
    """Rows of a set, in units of the training part."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    anomalies: np.ndarray


@dataclass(frozen=True)
class Result:
    """A fitted model and how it did."""

    name: str
    colour: str
    model: Any
    validation: float
    test: float
    # Minus the log-density: test rows first, then anomalies.
    scores: np.ndarray
    labels: np.ndarray

    @property
    def auc(self) -> float:
        """Chance that an anomaly scores above a normal row."""
        return float(roc_auc_score(self.labels, self.scores))


def load(name: str, split: int) -> Parts:
    """Split the normal rows as `uci.load` does, and bring the anomalies to the same units."""
    normal, anomalies = uci.read(name)
    n = len(normal)
    order = np.random.default_rng(split).permutation(n)
    parts = np.split(normal[order], [(64 * n + 50) // 100, (80 * n + 50) // 100])
    # Means and widths of the training part only: the rest must not leak into what is learnt.
    mean, width = parts[0].mean(axis=0), parts[0].std(axis=0)
    kept = width > 1e-6
    return Parts(*((rows - mean)[:, kept] / width[kept] for rows in (*parts, anomalies)))


def fit_gaussians(parts: Parts, sizes: tuple[int, ...]) -> GaussianMixture:
    """As many components as the validation rows like best."""
    # Components with few rows need some width of their own in a set with repeated values.
    fitted = [
        GaussianMixture(K, reg_covar=1e-3, random_state=0).fit(parts.train)
        for K in sizes
        if len(parts.train) >= 10 * K
    ]
    return max(fitted, key=lambda mixture: mixture.score(parts.validation))


def fit_flows(parts: Parts, n_components: int, max_steps: int) -> FlowMixture:
    """Flows, until the validation rows have not gained for a while."""
    mixture = FlowMixture(
        n_components,
        max_steps=max_steps,
        learning_rate=CosineRate(3e-3, max_steps),
        random_state=0,
    )
    return mixture.fit(parts.train, validation_data=parts.validation)


def fit_network(parts: Parts, n_children: int, max_steps: int) -> SumProductTransformNetwork:
    """A network, likewise; random partitions suit networks better than the uniform proposal."""
    network = SumProductTransformNetwork(
        n_children,
        2,
        2,
        proposal="partition",
        max_steps=max_steps,
        learning_rate=CosineRate(1e-2, max_steps),
        random_state=0,
    )
    return network.fit(parts.train, validation_data=parts.validation)


def judge(name: str, colour: str, model: Any, parts: Parts) -> Result:
    """Score the test rows and the anomalies."""
    normal = model.score_samples(parts.test)
    strange = model.score_samples(parts.anomalies)
    labels = np.concatenate([np.zeros(len(normal)), np.ones(len(strange))])
    scores = -np.concatenate([normal, strange])
    return Result(
        name, colour, model, model.score(parts.validation), float(normal.mean()), scores, labels
    )


def print_table(results: list[Result]) -> None:
    """Log-likelihoods per row, AUC, steps and seconds of work."""
    print(f"{'':26}{'validation':>11}{'test':>9}{'AUC':>8}{'steps':>8}{'seconds':>9}  ended by")
    for result in results:
        model = result.model
        print(
            f"{result.name:26}{result.validation:11.3f}{result.test:9.3f}{result.auc:8.3f}"
            f"{model.n_steps_:8,}{model.trace_['seconds'][-1]:9.1f}  {model.outcome_}"
        )


def print_verdict(results: list[Result]) -> None:
    """Say which model did best at what."""
    densest = max(results, key=lambda result: result.test)
    sharpest = max(result.auc for result in results)
    # Other splits move an AUC by about a hundredth.
    alike = [result.name for result in results if result.auc > sharpest - 0.01]
    print(f"\nHighest log-likelihood of the test rows: {densest.name}")
    print(f"Best at telling anomalies from them, or within 0.01 of it: {', '.join(alike)}")


def draw(results: list[Result], path: Path) -> None:
    """Validation log-likelihood on the way, and the ROC curves."""
    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for result in results:
        trace = result.model.trace_
        if np.isfinite(trace["validation"]).any():
            left.plot(
                trace["step"], trace["validation"], color=result.colour, lw=1.8, label=result.name
            )
        else:
            # Gaussians are fitted without validation rows; these chose among finished fits.
            left.axhline(result.validation, color=result.colour, lw=1.5, ls="--", label=result.name)
        false, true, _ = roc_curve(result.labels, result.scores)
        label = f"{result.name}: {result.auc:.3f}"
        right.plot(false, true, color=result.colour, lw=1.8, label=label)
    ends = [result.validation for result in results]
    # The first steps would squeeze the rest.
    left.set_ylim(min(ends) - 2.0 * (max(ends) - min(ends)), max(ends) + 0.3)
    left.set_xlabel("step", color=INK)
    left.set_ylabel("log-likelihood of validation rows", color=INK)
    left.set_title("Training, watched on rows not learnt from", loc="left", fontsize=10)
    right.plot([0, 1], [0, 1], color=INK, lw=0.8, ls=":")
    right.set_xlabel("share of normal rows called anomalies", color=INK)
    right.set_ylabel("share of anomalies found", color=INK)
    right.set_title("Anomalies by low density, area under the curve", loc="left", fontsize=10)
    for axes in (left, right):
        axes.grid(color=GRID, lw=0.8)
        axes.set_axisbelow(True)
        axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=100)


def run(
    out: Path,
    *,
    name: str = "magic-telescope",
    split: int = 0,
    sizes: tuple[int, ...] = (1, 4, 16, 64, 256),
    n_flows: int = 32,
    n_children: int = 16,
    max_steps: int = 5000,
) -> list[Result]:
    """Fit the three models, print and draw."""
    parts = load(name, split)
    print(
        f"{name}, split {split}: {len(parts.train):,} training, {len(parts.validation):,} "
        f"validation, {len(parts.test):,} test rows and {len(parts.anomalies):,} anomalies "
        f"in {parts.train.shape[1]} columns\n"
    )
    gaussians = fit_gaussians(parts, sizes)
    flows = fit_flows(parts, n_flows, max_steps)
    network = fit_network(parts, n_children, max_steps)
    plural = "" if gaussians.n_components == 1 else "s"
    results = [
        judge(f"{gaussians.n_components} Gaussian{plural}", VERMILION, gaussians, parts),
        judge(f"{n_flows} flows", BLUE, flows, parts),
        judge(f"network of {network.n_trees_:,} trees", GREEN, network, parts),
    ]
    print_table(results)
    print_verdict(results)
    out.mkdir(parents=True, exist_ok=True)
    draw(results, out / "deep-uci.png")
    print(f"\nPicture: {out / 'deep-uci.png'}")
    return results


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of the picture")
    parser.add_argument("--set", default="magic-telescope", choices=uci.NAMES, metavar="NAME")
    parser.add_argument("--split", type=int, default=0, help="seed of the split")
    parser.add_argument("--quick", action="store_true", help="small models and few steps")
    options = parser.parse_args(arguments)
    sizes: dict[str, Any] = {}
    if options.quick:
        sizes = {"sizes": (1, 4), "n_flows": 4, "n_children": 4, "max_steps": 200}
    try:
        run(options.out, name=options.set, split=options.split, **sizes)
    except FileNotFoundError as error:
        # The message says where the files were looked for and what to do.
        sys.exit(str(error))


if __name__ == "__main__":
    main()
