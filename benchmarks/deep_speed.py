"""Time of one step with deep components: MHSAEM-U against SGD, against K, and against PyTorch.

Everything in one run, in rounds that take every case in turn, so that other work on the machine
falls on all alike. Steps run in compiled chunks as in a fit; compilation is not counted. PyTorch
is optional; its step, in `deep_step_torch.py`, is checked against pickmix's before it is timed.

    python benchmarks/deep_speed.py --out benchmarks/results

On a machine that others use as well, take the processor's time on one thread:

    OMP_NUM_THREADS=1 XLA_FLAGS=--xla_cpu_multi_thread_eigen=false \\
        python benchmarks/deep_speed.py --clock cpu
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from reporting import machine

from pickmix.gradient.adam import Adam
from pickmix.gradient.algorithm import Batch, Root, State, make_chunk
from pickmix.gradient.components import ComponentMixture
from pickmix.gradient.network import Network
from pickmix.gradient.realnvp import RealNVP
from pickmix.gradient.settings import StepSettings
from pickmix.gradient.sptn import SumProductTransform
from pickmix_experiments.runner import cpu_count

N, D, B, M = 10_000, 30, 100, 1
NOISE = 1e-4
RATE = 1e-3
CHUNK = 100
CHILDREN, LAYERS = 32, 2
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def make_inputs(
    network: Network, n_rows: int = N, n_steps: int = CHUNK, dtype: str = "float32"
) -> tuple[jax.Array, State, Batch]:
    """Random data (n_rows, D), a start, and the batches of `n_steps` steps."""
    rng = np.random.default_rng(0)
    s, n_slots = network.n_children, network.n_slots
    tables = network.start(0, dtype)
    logits = jnp.zeros(s, dtype)
    state = State(
        tables,
        tuple(Adam.start(table) for table in compress(tables, network.learns)),
        Root(logits, Adam.start(logits[None])),
        jnp.asarray(rng.integers(s, size=(n_rows, n_slots)), "int32"),
        jnp.zeros(0, dtype),
    )
    batches = Batch(
        rows=jnp.asarray([rng.permutation(n_rows)[:B] for _ in range(n_steps)], "int32"),
        weights=jnp.full((n_steps, B), 1.0 / B, dtype),
        candidates=jnp.asarray(rng.integers(s, size=(n_steps, B, M, n_slots)), "int32"),
        log_q=jnp.zeros((n_steps, B, M), dtype),
        log_q_current=jnp.zeros((n_steps, B), dtype),
        uniforms=jnp.asarray(rng.random((n_steps, B, M)), dtype),
        noise=jnp.asarray(rng.normal(0.0, NOISE, (n_steps, B, D)), dtype),
        beta=jnp.ones(n_steps, dtype),
        rate=jnp.full(n_steps, RATE, dtype),
        gamma=jnp.full(n_steps, 0.01, dtype),
        step=jnp.arange(n_steps, dtype="int32"),
    )
    return jnp.asarray(rng.normal(size=(n_rows, D)), dtype), state, batches


@dataclass
class Case:
    """A kind of step: what it is called, how it is run, and the seconds it took."""

    model: str
    algorithm: str
    components: str
    evaluations: int
    run: Callable[[int], float]
    n_steps: int = 100
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Seconds per step."""
        return statistics.median(self.seconds)

    def aim_at(self, round_seconds: float) -> None:
        """Compile, and choose how many steps to make in a round."""
        self.run(1)
        self.n_steps = max(3, round(round_seconds / self.run(3)))

    def take_turn(self) -> None:
        """Time some steps, after others that wake threads and fill caches."""
        self.run(1 + self.n_steps // 4)
        self.seconds.append(self.run(self.n_steps))


def make_runner(network: Network, algorithm: str, clock: str = "wall") -> Callable[[int], float]:
    """Return a function that makes some steps and returns the seconds that one took."""
    now = CLOCKS[clock]
    data, state, batches = make_inputs(network)
    chunk = make_chunk(network, StepSettings(algorithm, n_samples=M, noise=NOISE), False)

    def run(n_steps: int) -> float:
        nonlocal state
        start = now()
        for done in range(0, n_steps, CHUNK):
            state, summary = chunk(data, state, batches, min(CHUNK, n_steps - done))
            # As a fit does: look at a chunk before the next.
            assert not summary.refused, "steps were refused: values are not finite"
        jax.block_until_ready(state)
        return (now() - start) / n_steps

    return run


def flows(n_components: int) -> ComponentMixture:
    """The paper's flows."""
    return ComponentMixture(RealNVP(), n_components, D)


def default_flows(n_components: int) -> ComponentMixture:
    """Flows behind an affine map, as `FlowMixture` makes them."""
    return ComponentMixture(RealNVP(linear=True, gaussian_share=0.01), n_components, D)


def sptn(n_partitions: int, transforms: str) -> SumProductTransform:
    return SumProductTransform(CHILDREN, n_partitions, LAYERS, D, transforms)


def evaluations_of(network: Network, algorithm: str) -> int:
    """Flows or transforms that a step evaluates: those of M + 1 trees per row, or all."""
    per_tree = network.n_slots
    everything = sum(n_rows for n_rows, _ in compress(network.shapes, network.learns))
    return B * (everything if algorithm == "sgd" else (M + 1) * per_tree)


def make_cases(clock: str) -> tuple[dict[str, Case], str]:
    """Return all cases by name, and a note on PyTorch."""
    cases: dict[str, Case] = {}

    def add(name: str, model: str, network: Network, algorithm: str, components: str) -> None:
        label = {"mhsaem": "MHSAEM-U", "sgd": "SGD"}[algorithm]
        evaluations = evaluations_of(network, algorithm)
        run = make_runner(network, algorithm, clock)
        cases[name] = Case(model, label, components, evaluations, run)

    for k in (128, 1024, 16384):
        add(f"flows {k} mhsaem", "flows", flows(k), "mhsaem", f"{k}")
        if k <= 1024:
            add(f"flows {k} sgd", "flows", flows(k), "sgd", f"{k}")
            for algorithm in ("mhsaem", "sgd"):
                name = f"default flows {k} {algorithm}"
                add(name, "flows, default", default_flows(k), algorithm, f"{k}")
    for b in (1, 2, 8):
        for transforms in ("triangular", "rotations"):
            network = sptn(b, transforms)
            for algorithm in ("mhsaem", "sgd"):
                trees = f"{CHILDREN}^{network.n_slots}"
                name = f"{transforms} {b} {algorithm}"
                add(name, f"SPTN, {transforms}, b = {b}", network, algorithm, trees)
    if clock != "wall":
        return cases, "Times are the processor's, summed over threads. PyTorch is left out."
    try:
        import deep_step_torch
    except ImportError as error:
        return cases, f"PyTorch's steps are left out: {error}."
    differences = []
    for name, network in (("flows 128", flows(128)), ("rotations 1", sptn(1, "rotations"))):
        differences.append(deep_step_torch.check(network))
        steps = deep_step_torch.Steps(network, *make_inputs(network))
        like = cases[f"{name} mhsaem"]
        for n_threads in sorted({1, cpu_count()}):
            label = f"MHSAEM-U, eager PyTorch, {n_threads} thread{'s' * (n_threads > 1)}"
            cases[f"{name} torch {n_threads}"] = Case(
                like.model,
                label,
                like.components,
                like.evaluations,
                lambda n_steps, steps=steps, n_threads=n_threads: steps.run(n_steps, n_threads),
            )
    return cases, (
        "PyTorch's steps were checked: after three steps from the same start, chains are equal and "
        f"parameters differ by {max(differences):.0e} at most (float64)."
    )


def make_ratios(cases: dict[str, Case]) -> list[tuple[str, float, str]]:
    """Ratios of medians, each with its target: (name, ratio, target)."""

    def ratio(above: str, below: str) -> float:
        return cases[above].median / cases[below].median

    rows = [
        ("flows, K = 1024: SGD / MHSAEM-U", ratio("flows 1024 sgd", "flows 1024 mhsaem"), ">= 50"),
        ("flows, K = 128: SGD / MHSAEM-U", ratio("flows 128 sgd", "flows 128 mhsaem"), ">= 6"),
        (
            "flows, MHSAEM-U: K = 16384 / K = 128",
            ratio("flows 16384 mhsaem", "flows 128 mhsaem"),
            "<= 2",
        ),
    ]
    for k, target in ((1024, ">= 70"), (128, ">= 9")):
        speed_up = ratio(f"default flows {k} sgd", f"default flows {k} mhsaem")
        rows.append((f"flows, default, K = {k}: SGD / MHSAEM-U", speed_up, target))
    for b in (1, 2, 8):
        triangular, rotations = f"triangular {b} mhsaem", f"rotations {b} mhsaem"
        label = f"SPTN, s^l = 1024, b = {b}"
        speed_up = ratio(f"triangular {b} sgd", triangular)
        rows.append((f"{label}, triangular: SGD / MHSAEM-U", speed_up, ">= 50"))
        speed_up = ratio(f"rotations {b} sgd", rotations)
        rows.append((f"{label}, rotations: SGD / MHSAEM-U", speed_up, ">= 50" if b == 1 else ""))
        steps = ratio(rotations, triangular)
        rows.append((f"{label}, MHSAEM-U: rotations / triangular", steps, ">= 3"))
    torch_cases = (("flows 128", "flows, K = 128"), ("rotations 1", "SPTN, rotations, b = 1"))
    for name, label in torch_cases:
        torches = [case for case in cases if case.startswith(f"{name} torch")]
        if torches:
            best = min(torches, key=lambda case: cases[case].median)
            rows.append(
                (
                    f"{label}, MHSAEM-U: eager PyTorch / pickmix",
                    ratio(best, f"{name} mhsaem"),
                    ">= 4",
                )
            )
    return rows


def is_met(ratio: float, target: str) -> str:
    if not target:
        return ""
    bound = float(target[2:])
    return "yes" if (ratio >= bound if target.startswith(">") else ratio <= bound) else "no"


def write_table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def report(cases: dict[str, Case], note: str, n_rounds: int) -> str:
    times = [
        [
            case.model,
            case.components,
            case.algorithm,
            f"{case.evaluations:,}",
            f"{1e3 * case.median:.2f}",
            f"{1e3 * min(case.seconds):.2f}",
        ]
        for case in cases.values()
    ]
    ratios = [
        [name, f"{ratio:.1f}", target.replace(">=", "≥").replace("<=", "≤"), is_met(ratio, target)]
        for name, ratio, target in make_ratios(cases)
    ]
    return (
        "# Time of one step with deep components\n\n"
        f"Written by `benchmarks/deep_speed.py`. N = {N:,} standard normal rows, D = {D}, B = {B}, "
        f"M = {M}, float32. SPTN: s = {CHILDREN}, l = {LAYERS}. Median and minimum over {n_rounds} "
        "rounds; ratios are of medians.\n\n"
        f"{machine('jax', 'jaxlib', 'numpy', 'torch')}\n\n{note}\n\n"
        + write_table(
            [
                "model",
                "components or trees",
                "step",
                "flows or transforms evaluated",
                "median ms",
                "min ms",
            ],
            times,
        )
        + "\n"
        + write_table(["ratio", "measured", "target", "met"], ratios)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.3, help="per case and round")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    cases, note = make_cases(arguments.clock)
    for case in cases.values():
        case.aim_at(arguments.seconds)
    for _ in range(arguments.rounds):
        for case in cases.values():
            case.take_turn()
    text = report(cases, note, arguments.rounds)
    print(text)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "deep_speed.md").write_text(text)


if __name__ == "__main__":
    main()
