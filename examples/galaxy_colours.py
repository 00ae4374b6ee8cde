"""Known noise: two colours of generated galaxies, fitted with their errors and without.

    python examples/galaxy_colours.py [--out FOLDER]

Measured colours have errors that differ from galaxy to galaxy, and some lack one colour. A fit that
knows of the errors describes the colours behind them. A picture of both fits is left in
FOLDER/galaxy-colours.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from pickmix import GaussianMixture
from pickmix.inspection.displays.colours import BLUE, GRID, INK, VERMILION


def galaxies(n: int, rng: np.random.Generator) -> np.ndarray:
    """Colours (n, 2) without errors: a narrow red sequence and a broad blue cloud."""
    red = rng.random(n) < 0.4
    first = np.where(red, rng.normal(0.78, 0.03, n), rng.normal(0.45, 0.09, n))
    second = np.where(red, 0.38, 0.2 + 0.45 * (first - 0.45)) + rng.normal(0.0, 0.02, n)
    return np.column_stack([first, second])


def measure(colours: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Colours with errors, and the errors' standard deviations; a fifth lack the second one."""
    n = colours.shape[0]
    errors = 0.02 * 10.0 ** rng.uniform(0.0, 1.0, (n, 1)) * [1.0, 1.3]
    measured = colours + errors * rng.normal(size=colours.shape)
    measured[rng.random(n) < 0.2, 1] = np.nan
    return measured, errors


def draw(axes, rows: np.ndarray, mixture: GaussianMixture, title: str, colour: str) -> None:
    """Rows, and each component as the ellipse at two standard deviations."""
    axes.plot(rows[:, 0], rows[:, 1], ".", color=GRID, ms=2.0, rasterized=True)
    for mean, covariance in zip(mixture.means_, mixture.covariances_, strict=True):
        variances, directions = np.linalg.eigh(covariance)
        angle = np.degrees(np.arctan2(directions[1, 1], directions[0, 1]))
        width, height = 4.0 * np.sqrt(variances[::-1])
        shape = {"angle": angle, "fill": False, "color": colour, "lw": 2.0, "zorder": 3}
        axes.add_patch(Ellipse(mean, width, height, **shape))
    axes.set(xlim=(0.0, 1.2), ylim=(-0.2, 0.7), xlabel="first colour", title=title)
    axes.title.set_color(INK)


def run(out: Path, *, n_rows: int = 3000) -> tuple[GaussianMixture, GaussianMixture, np.ndarray]:
    """Fit, print and draw; return the fit with noise, that without, and their scores."""
    rng = np.random.default_rng(0)
    colours, clean = galaxies(n_rows, rng), galaxies(n_rows, rng)
    measured, errors = measure(colours, rng)
    # The errors are wider than the components, so EM climbs slowly.
    settings = {"algorithm": "em", "tol": 1e-5, "max_iter": 1000, "random_state": 0}
    behind = GaussianMixture(2, **settings).fit(measured, noise=errors**2)
    as_seen = GaussianMixture(2, **settings).fit(measured)
    scores = np.array([behind.score(clean), as_seen.score(clean)])
    print("log-likelihood per galaxy of new ones without errors")
    print(f"  fit with errors     {scores[0]:.3f}")
    print(f"  fit without errors  {scores[1]:.3f}")
    figure = Figure(figsize=(10.0, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3, sharey=True)
    draw(left, measured, as_seen, "as measured, errors ignored", VERMILION)
    draw(middle, measured, behind, "as measured, errors known", BLUE)
    draw(right, colours, behind, "the truth, and the same fit", BLUE)
    left.set_ylabel("second colour")
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "galaxy-colours.png", dpi=90)
    print(f"Picture: {out / 'galaxy-colours.png'}")
    return behind, as_seen, scores


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of the picture")
    run(parser.parse_args(arguments).out)


if __name__ == "__main__":
    main()
