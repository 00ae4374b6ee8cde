"""Learning rates of deep mixtures from a Gaussian start: chosen on some UCI sets, tried on others.

For each set K is chosen on the validation rows by Gaussian mixtures, once. Then flows, or a
network, begin with these K Gaussians and are fitted with several rates and schedules. The test
log-likelihood per row is that of the parameters with the best validation value, less that of the
start.

    PICKMIX_DATA=... python benchmarks/deep_rates.py [--model flow] [--sets choose] [--seeds 1]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from reporting import parser_for, print_machine, print_table, write_lines

from pickmix import FlowMixture, SumProductTransformNetwork
from pickmix.data import uci
from pickmix.estimators.deep_frame import find_frame
from pickmix.estimators.deep_gaussians import GaussianFits
from pickmix.selection.schedules import CosineRate

SETS = {
    "choose": ("ecoli", "page-blocks", "pendigits", "magic-telescope", "yeast", "ionosphere"),
    "check": tuple(
        name
        for name in uci.NAMES
        if name
        not in ("ecoli", "page-blocks", "pendigits", "magic-telescope", "yeast", "ionosphere")
    ),
}
STEPS = 20_000
RATES: dict[str, Any] = {
    "3e-4": 3e-4,
    "1e-3": 1e-3,
    "3e-3": 3e-3,
    "1e-2": 1e-2,
    "cosine from 3e-3 over 4,000": CosineRate(3e-3, 4000),
}


def make(model: str, n_components: int, **settings: Any) -> Any:
    """Flows or a network with so many Gaussians to begin with."""
    if model == "flow":
        return FlowMixture(n_components, **settings)
    return SumProductTransformNetwork(n_components, **settings)


def measure(model: str, name: str, seed: int) -> list[dict[str, Any]]:
    """A line for each rate."""
    split = uci.load(name, "paper", random_state=seed)
    fits = GaussianFits(find_frame(split.train, "columns"), "full", 1e-6, seed)
    n_components = fits.choose(split.train, None, split.validation)[0].n_components
    settings: dict[str, Any] = {"max_steps": STEPS, "random_state": seed}
    own = {"validation_data": split.validation}
    # One step of nearly no length: the start itself.
    still = make(model, n_components, **settings | {"max_steps": 1, "learning_rate": 1e-12})
    start = still.fit(split.train, **own).score(split.test)
    lines = []
    for rate, value in RATES.items():
        fitted = make(model, n_components, learning_rate=value, **settings).fit(split.train, **own)
        lines.append(
            {
                "model": model,
                "set": name,
                "seed": seed,
                "K": n_components,
                "rate": rate,
                "start": round(float(start), 3),
                "gain": round(float(fitted.score(split.test)) - float(start), 3),
                "steps": fitted.n_steps_,
                "seconds": round(float(fitted.trace_["seconds"][-1]), 2),
            }
        )
    return lines


def main() -> None:
    """Measure, print and write."""
    parser = parser_for(__doc__, seeds=1)
    parser.add_argument("--model", choices=("flow", "sptn"), default="flow")
    parser.add_argument("--sets", choices=tuple(SETS), default="choose")
    arguments = parser.parse_args()
    print_machine()
    names = ("iris", "wine") if arguments.quick else SETS[arguments.sets]
    lines: list[dict[str, Any]] = []
    for name in names:
        for seed in range(arguments.seeds):
            lines += measure(arguments.model, name, seed)
        gains = {
            rate: np.mean(
                [line["gain"] for line in lines if (line["set"], line["rate"]) == (name, rate)]
            )
            for rate in RATES
        }
        print(name, {rate: round(float(gain), 2) for rate, gain in gains.items()}, flush=True)
    print_table("gain over the start, nats per row of the test part", lines)
    write_lines(arguments.out, f"deep_rates_{arguments.model}_{arguments.sets}.csv", lines)


if __name__ == "__main__":
    main()
