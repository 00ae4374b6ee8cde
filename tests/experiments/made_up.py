"""Results that nobody measured, for tables and pictures."""

from pickmix.experiments.results import Results, Run


def made_up(path):
    """Three rivals on two seeds; rows of seed 1 are all one higher. One rival failed."""
    results = Results(path)
    for seed in (0, 1):
        facts = {"true_held_out": 0.0 + seed, "true_held_out_some": 0.1 + seed, "cpu_count": 2}
        facts |= {"load_average": 0.5 + seed, "versions": "pickmix 1; numpy 2"}

        def end(held_out, seconds, seed=seed, facts=facts, **more):
            return {
                **facts,
                "kind": "end",
                "outcome": "converged",
                "held_out": held_out + seed,
                "held_out_some": held_out + seed + 0.1,
                "seconds": seconds * (1 + seed),
                "evaluations_per_row": 1234.0,
                "live_components": 80,
                "peak_megabytes": 12.4,
                **more,
            }

        results.add(Run("small", "sklearn-kmeans", seed), [end(-0.2, 8.0)])
        results.add(Run("small", "sklearn-kmeans-one-thread", seed), [end(-0.2, 4.0)])
        results.add(Run("small", "sklearn-k-means++", seed), [end(-0.3, 1.0)])
        curve = [
            {
                **facts,
                "kind": "curve",
                "seconds": s * (1 + seed),
                "evaluations_per_row": e,
                "held_out_some": value + seed,
            }
            for s, e, value in ((0.01, 10.0, -5.0), (0.1, 100.0, -0.3))
        ]
        results.add(Run("small", "em", seed), [*curve, end(-0.1, 0.5)])
        results.add(Run("small", "faiss-kmeans", seed), [end(-0.4, 0.2, evaluations_per_row=None)])
        results.add(
            Run("small", "gmmx", seed), [{"kind": "end", "outcome": "failed: a | b", **facts}]
        )
    return results
