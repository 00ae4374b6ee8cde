"""Settings of deep mixtures from a Gaussian start: chosen on some UCI sets, checked on others.

For each set K is chosen on the validation rows by Gaussian mixtures, once. Then flows, or a
network, begin with these K Gaussians and are fitted with the defaults and with one setting changed
at a time: learning rates and schedules, noise, the share that stays Gaussian, larger nets. The
figure is the test log-likelihood per row of the parameters with the best validation value, less
that of the start.

    PICKMIX_DATA=... python benchmarks/deep_choices.py [--model flow] [--sets choose] [--seeds 1]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from reporting import parser_for, print_machine, print_table, write_lines

from pickmix import FlowMixture, SumProductTransformNetwork
from pickmix.data import uci
from pickmix.estimators.deep_gaussians import choose_gaussians
from pickmix.gradient.settings import Settings
from pickmix.model.frame import find_frame
from pickmix.selection.schedules import CosineRate

CHOOSE = ("ecoli", "page-blocks", "pendigits", "magic-telescope", "yeast", "ionosphere")
SETS = {"choose": CHOOSE, "check": tuple(name for name in uci.NAMES if name not in CHOOSE)}
RATES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "rate 3e-4": {"learning_rate": 3e-4},
    "rate 3e-3": {"learning_rate": 3e-3},
    "rate 1e-2": {"learning_rate": 1e-2},
    "cosine from 3e-3": {"learning_rate": CosineRate(3e-3, 4000)},
    "noise 1e-3, the Gaussians' floor": {"noise": 1e-3},
}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "flow": RATES
    | {
        "no noise": {"noise": 0.0},
        "no noise, no Gaussian share": {"noise": 0.0, "gaussian_share": 0.0},
        "hidden 32": {"hidden": 32},
        "4 layers": {"n_layers": 4},
    },
    "sptn": RATES | {"partition": {"proposal": "partition"}},
}


def make(model: str, n_components: int, **settings: Any) -> Any:
    """Flows or a network with so many Gaussians to begin with."""
    if model == "flow":
        return FlowMixture(n_components, **settings)
    return SumProductTransformNetwork([n_components, min(n_components, 4)], **settings)


def measure(model: str, name: str, seed: int, names: list[str]) -> list[dict[str, Any]]:
    """A line for each variant."""
    split = uci.load(name, "paper", random_state=seed)
    frame, settings = find_frame(split.train, "columns"), Settings(gaussian_seed=seed)
    gaussians = choose_gaussians(split.train, None, split.validation, "full", frame, settings)
    n_components = gaussians[0].n_components
    own = {"validation_data": split.validation}
    # One step of nearly no length: the start itself.
    still = make(model, n_components, random_state=seed, max_steps=1, learning_rate=1e-12)
    start = float(still.fit(split.train, **own).score(split.test))
    lines = []
    for variant in names:
        settings = VARIANTS[model][variant]
        fitted = make(model, n_components, random_state=seed, **settings).fit(split.train, **own)
        lines.append(
            {
                "model": model,
                "set": name,
                "seed": seed,
                "K": n_components,
                "variant": variant,
                "start": round(start, 3),
                "gain": round(float(fitted.score(split.test)) - start, 3),
                "steps": fitted.n_steps_,
                "seconds": round(float(fitted.trace_["seconds"][-1]), 2),
            }
        )
    return lines


def main() -> None:
    """Measure, print and write."""
    parser = parser_for(__doc__, seeds=1)
    parser.add_argument("--model", choices=tuple(VARIANTS), default="flow")
    parser.add_argument("--sets", choices=tuple(SETS), default="choose")
    parser.add_argument("--variants", nargs="*", default=None, help="some of them, by name")
    arguments = parser.parse_args()
    print_machine()
    names = ("iris", "wine") if arguments.quick else SETS[arguments.sets]
    variants = arguments.variants or list(VARIANTS[arguments.model])
    lines: list[dict[str, Any]] = []
    for name in names:
        for seed in range(arguments.seeds):
            lines += measure(arguments.model, name, seed, variants)
        for variant in variants:
            gains = [
                line["gain"] for line in lines if (line["set"], line["variant"]) == (name, variant)
            ]
            print(f"{name}, {variant}: {np.mean(gains):.2f}", flush=True)
        write_lines(arguments.out, f"deep_choices_{arguments.model}_{arguments.sets}.csv", lines)
    print_table("gain over the start, nats per row of the test part", lines)


if __name__ == "__main__":
    main()
