r"""Random partitions against uniform proposals for deep mixtures, at equal component evaluations.

    PICKMIX_DATA=... python benchmarks/deep_partition.py [--evaluations 240000] [--seeds 1]
    python benchmarks/deep_partition.py --name deep_partition_long --evaluations 2400000 --seeds 3 \
        --held steps --rules "uniform, M = 1; partition, G = 2, weights; partition, G = 4, weights"

A mixture of 64 flows and a sum-product-transform network (s = 16, b = 2, l = 2) on two sets of the
same size: page-blocks (protocol "clean") and bent clusters. Uniform proposals evaluate M + 1
components per row, partitions the G of a block; either all G are weighed by the posterior within
the block, or the one that the chain moves to is taken. Every fit spends the same evaluations, in
two ways: with batches of 100 rows, so that rules that evaluate more make fewer steps ("batch"), or
in equally many steps with fewer rows ("steps"). The parameters with the best validation
log-likelihood are tested. A tenth of the evaluations more than planned at most goes into locations.

Writes results/<name>.csv and results/<name>.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from reporting import machine, write_lines

from pickmix import FlowMixture, RandomPartition, SumProductTransformNetwork
from pickmix.data import uci
from pickmix.gradient import algorithm
from pickmix.gradient.algorithm import make_chunk

RESULTS = Path(__file__).parent / "results"
BATCH = 100
# Of fits whose number of steps is held.
EVALUATIONS_PER_STEP = 2 * BATCH
MODELS = {
    "flows, K = 64": (FlowMixture, {"n_components": 64}),
    "network, s = 16": (
        SumProductTransformNetwork,
        {"n_children": 16, "n_partitions": 2, "n_layers": 2},
    ),
}
#: Name, evaluations per visit, settings, and whether one draw stands for the block.
RULES = [
    ("uniform, M = 1", 2, {"n_samples": 1}, False),
    ("uniform, M = 3", 4, {"n_samples": 3}, False),
    *[
        (
            f"partition, G = {size}, {kind}",
            size,
            {"proposal": RandomPartition(size)},
            kind == "draw",
        )
        for size, kind in product((2, 4, 8), ("weights", "draw"))
    ],
]
COLUMNS = ["model", "set", "held", "rule", "seed", "steps", "batch", "evaluations"]
COLUMNS += ["test", "validation", "seconds"]


@contextmanager
def one_draw_per_block(wanted: bool) -> Iterator[None]:
    """Let gradients see the drawn component only: the rule that pickmix itself does not use."""
    weighted = algorithm.SELECTION_RULES["partition"]

    def drawn_only(network, options, state, batch, x):
        selection = weighted(network, options, state, batch, x)
        return selection._replace(
            trees=selection.states,
            weights=jnp.ones(selection.states.shape[:2], x.dtype),
        )

    algorithm.SELECTION_RULES["partition"] = drawn_only if wanted else weighted
    make_chunk.cache_clear()
    try:
        yield
    finally:
        algorithm.SELECTION_RULES["partition"] = weighted
        make_chunk.cache_clear()


def bent_clusters(like: uci.Split) -> uci.Split:
    """Forty clusters, each bent along a direction of its own, with as many rows as `like`."""
    rng = np.random.default_rng(1)
    n_features = like.train.shape[1]
    centres = 3.0 * rng.normal(size=(40, n_features))
    shapes = rng.normal(size=(40, n_features, n_features)) / np.sqrt(n_features)
    bends = rng.normal(size=(40, n_features))
    bends /= np.linalg.norm(bends, axis=1, keepdims=True)

    def draw(n_rows):
        labels = rng.integers(40, size=n_rows)
        z = rng.normal(size=(n_rows, n_features))
        rows = np.einsum("nij,nj->ni", shapes[labels], z)
        return centres[labels] + rows + bends[labels] * z[:, :1] ** 2

    sizes = (like.train.shape[0], like.validation.shape[0], like.test.shape[0])
    return uci.Split("bent clusters", "clean", *map(draw, sizes))


def fit(split: uci.Split, model: str, rule: tuple, held: str, evaluations: int, seed: int) -> dict:
    name, per_visit, settings, draws = rule
    batch = BATCH if held == "batch" else EVALUATIONS_PER_STEP // per_visit
    steps = evaluations // (batch * per_visit)
    estimator, shape = MODELS[model]
    with one_draw_per_block(draws):
        mixture = estimator(
            **shape,
            **settings,
            batch_size=batch,
            max_steps=steps,
            learning_rate="cosine",
            standardize="columns",
            evaluate_every=max(1, steps // 10),
            patience=None,
            random_state=seed,
        ).fit(split.train, validation_data=split.validation)
    return {
        "model": model,
        "held": held,
        "rule": name,
        "seed": seed,
        "steps": steps,
        "batch": batch,
        "evaluations": mixture.n_component_evaluations_,
        "test": mixture.score(split.test),
        "validation": mixture.best_validation_,
        "seconds": float(mixture.trace_["seconds"][-1]),
    }


def facts(evaluations: int, seeds: int) -> str:
    return (
        f"Written by `benchmarks/deep_partition.py`: {evaluations:,} component evaluations per "
        f"fit; test log-likelihood per row, mean over {seeds} seed(s) (validation chooses the "
        f"parameters), and median work time. {machine('jax', 'numpy')}."
    )


def summarise(rows: list[dict], head: str) -> str:
    cells = list(dict.fromkeys((row["model"], row["set"]) for row in rows))
    lines = ["# Random partitions for deep mixtures", "", head, ""]
    for held, title in (
        ("batch", "Batches of 100 rows; rules that evaluate more make fewer steps"),
        ("steps", "Equally many steps; rules that evaluate more see fewer rows"),
    ):
        rules = list(dict.fromkeys(row["rule"] for row in rows if row["held"] == held))
        if not rules:
            continue
        lines += [f"## {title}", ""]
        lines.append("| rule | " + " | ".join(", ".join(cell) for cell in cells) + " |")
        lines.append("|---" * (1 + len(cells)) + "|")
        for rule in rules:
            line = [rule]
            for cell in cells:
                found = [
                    row
                    for row in rows
                    if (row["model"], row["set"], row["held"], row["rule"]) == (*cell, held, rule)
                ]
                test = statistics.mean(row["test"] for row in found)
                seconds = statistics.median(row["seconds"] for row in found)
                line.append(f"{test:.2f} in {seconds:.1f} s")
            lines.append("| " + " | ".join(line) + " |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--evaluations", type=int, default=240_000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--held", default="batch;steps", help="what is held, of 'batch;steps'")
    parser.add_argument("--rules", default=";".join(rule[0] for rule in RULES))
    parser.add_argument("--name", default="deep_partition")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    pages = uci.load("page-blocks", "clean", random_state=0)
    sets = {"page-blocks": pages, "bent clusters": bent_clusters(pages)}
    started = time.perf_counter()
    rows = []
    # Sets and seeds inside: they share compiled programs.
    wanted = [name.strip() for name in arguments.rules.split(";")]
    rules = [rule for rule in RULES if rule[0] in wanted]
    ways = arguments.held.split(";")
    for model, rule, held in product(MODELS, rules, ways):
        if held == "steps" and "batch" in ways and rule[1] * BATCH == EVALUATIONS_PER_STEP:
            # The same fits once more.
            rows += [row | {"held": held} for row in rows[-len(sets) * arguments.seeds :]]
            continue
        for name, seed in product(sets, range(arguments.seeds)):
            row = fit(sets[name], model, rule, held, arguments.evaluations, seed)
            rows.append(row | {"set": name})
            elapsed = time.perf_counter() - started
            print(f"{elapsed:4.0f} s  {model}, {name}, {held}, {rule[0]}: {row['test']:.3f}")
    lines = [{name: row[name] for name in COLUMNS} for row in rows]
    write_lines(arguments.out, f"{arguments.name}.csv", lines)
    text = summarise(rows, facts(arguments.evaluations, arguments.seeds))
    (arguments.out / f"{arguments.name}.md").write_text(text)


if __name__ == "__main__":
    main()
