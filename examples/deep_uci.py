"""Deep mixtures on a UCI set: densities of new rows, and anomalies by low density.

    python examples/deep_uci.py [--out FOLDER] [--set page-blocks] [--split 0]

A mixture of Gaussians, a mixture of real NVP flows and a sum-product-transform network are fitted
to the training part of a set's normal rows, with default settings. The validation part decides how
many Gaussians there are, with which of them the deep models begin, and when these have been trained
enough; the test part is scored. Then the set's anomalies are told from the test rows by their
density. A picture is left in FOLDER/deep-uci.png.

The set's two files are looked for in the folder that the environment variable PICKMIX_DATA names,
then in the cache, and then downloaded.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from sklearn.metrics import roc_auc_score, roc_curve

from pickmix import FlowMixture, GaussianMixture, SumProductTransformNetwork
from pickmix.data import uci
from pickmix.inspection.displays.colours import BLUE, GREEN, GRID, INK, VERMILION


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
    # Of all that led to the model, without compilation.
    seconds: float

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
    fitted = [
        GaussianMixture(K, random_state=0).fit(parts.train)
        for K in sizes
        if len(parts.train) >= 2 * K
    ]
    return max(fitted, key=lambda mixture: mixture.score(parts.validation))


def fit_flows(parts: Parts, **settings: Any) -> FlowMixture:
    """Flows that begin as Gaussians, until the validation rows have not gained for a while."""
    mixture = FlowMixture(random_state=0, **settings)
    return mixture.fit(parts.train, validation_data=parts.validation)


def fit_network(parts: Parts, **settings: Any) -> SumProductTransformNetwork:
    """A network, likewise."""
    network = SumProductTransformNetwork(random_state=0, **settings)
    return network.fit(parts.train, validation_data=parts.validation)


def judge(fit: Callable[[], Any], name: Callable[[Any], str], colour: str, parts: Parts) -> Result:
    """Fit a model, and score the test rows and the anomalies."""
    started = time.perf_counter()
    model = fit()
    seconds = time.perf_counter() - started - getattr(model, "compile_seconds_", 0.0)
    normal = model.score_samples(parts.test)
    strange = model.score_samples(parts.anomalies)
    labels = np.concatenate([np.zeros(len(normal)), np.ones(len(strange))])
    scores = -np.concatenate([normal, strange])
    validation, test = model.score(parts.validation), float(normal.mean())
    return Result(name(model), colour, model, validation, test, scores, labels, seconds)


def print_table(results: list[Result]) -> None:
    """Log-likelihoods per row, AUC, steps of the model that was kept, and seconds."""
    print(f"{'':26}{'validation':>11}{'test':>9}{'AUC':>8}{'steps':>8}{'seconds':>9}  ended by")
    for result in results:
        model = result.model
        print(
            f"{result.name:26}{result.validation:11.3f}{result.test:9.3f}{result.auc:8.3f}"
            f"{model.n_steps_:8,}{result.seconds:9.1f}  {model.outcome_}"
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
    """What training adds to the Gaussians of the start, and the ROC curves."""
    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for result in results:
        if isinstance(result.model, GaussianMixture):
            left.axhline(0.0, color=result.colour, lw=1.5, ls="--", label="Gaussians of the start")
        else:
            trace, start = result.model.trace_, result.model.start_validation_
            steps = np.concatenate([[0], trace["step"]])
            gains = np.concatenate([[0.0], trace["validation"] - start])
            left.plot(steps, gains, color=result.colour, lw=1.8, label=result.name)
        false, true, _ = roc_curve(result.labels, result.scores)
        label = f"{result.name}: {result.auc:.3f}"
        right.plot(false, true, color=result.colour, lw=1.8, label=label)
    left.set_xlabel("step", color=INK)
    left.set_ylabel("gain in log-likelihood, validation rows", color=INK)
    left.set_title("What training adds, on rows not learnt from", loc="left", fontsize=10)
    right.plot([0, 1], [0, 1], color=INK, lw=0.8, ls=":")
    right.set_xlabel("share of normal rows called anomalies", color=INK)
    right.set_ylabel("share of anomalies found", color=INK)
    right.set_title("Anomalies by low density, area under the curve", loc="left", fontsize=10)
    for axes in (left, right):
        axes.grid(color=GRID, lw=0.8)
        axes.set_axisbelow(True)
        axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=100)


def count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def run(
    out: Path,
    *,
    name: str = "page-blocks",
    split: int = 0,
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128),
    of_flows: dict[str, Any] | None = None,
    of_networks: dict[str, Any] | None = None,
) -> list[Result]:
    """Fit the three models, print and draw. Settings of the deep ones are their defaults."""
    parts = load(name, split)
    print(
        f"{name}, split {split}: {len(parts.train):,} training, {len(parts.validation):,} "
        f"validation, {len(parts.test):,} test rows and {len(parts.anomalies):,} anomalies "
        f"in {parts.train.shape[1]} columns\n"
    )
    results = [
        judge(
            lambda: fit_gaussians(parts, sizes),
            lambda model: count(model.n_components, "Gaussian"),
            VERMILION,
            parts,
        ),
        judge(
            lambda: fit_flows(parts, **of_flows or {}),
            lambda model: count(model.n_components_, "flow"),
            BLUE,
            parts,
        ),
        judge(
            lambda: fit_network(parts, **of_networks or {}),
            lambda model: f"network of {model.n_trees_:,} trees",
            GREEN,
            parts,
        ),
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
    parser.add_argument("--set", default="page-blocks", choices=uci.NAMES, metavar="NAME")
    parser.add_argument("--split", type=int, default=0, help="seed of the split")
    parser.add_argument("--quick", action="store_true", help="small models and few steps")
    options = parser.parse_args(arguments)
    sizes: dict[str, Any] = {}
    if options.quick:
        sizes = {
            "sizes": (1, 4),
            "of_flows": {"n_components": 4, "n_layers": 1, "hidden": 8, "max_steps": 100},
            "of_networks": {"n_children": 4, "n_layers": 1, "max_steps": 100},
        }
    try:
        run(options.out, name=options.set, split=options.split, **sizes)
    except FileNotFoundError as error:
        # The message says where the files were looked for and what to do.
        sys.exit(str(error))


if __name__ == "__main__":
    main()
