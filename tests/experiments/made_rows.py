"""Rows of a store with made-up numbers."""

from pickmix_experiments.runs import BenchRun, GaussianRun
from pickmix_experiments.store import make_row

CURVE = {"values": (-30.0, -20.8, -20.0), "seconds": (0.1, 1.0, 10.0)}


def row(run, outcome="max_steps", values=CURVE["values"], seconds=CURVE["seconds"], **facts):
    """Log-likelihoods and seconds of a fit; t95 of those by default is the second record."""
    records = [
        {"seconds": second, "evaluations": 10.0 * second, "log_likelihood": value}
        for second, value in zip(seconds, values, strict=True)
    ]
    return make_row(run, records, {"outcome": outcome, **facts})


def gaussian(algorithm="EM", seed=0, **settings):
    return GaussianRun(algorithm, 10, seed, **settings)


def bench(setting, rival, seed=0, test=None, seconds=1.0, curve=(), **facts):
    """A run of a bench that came to an end with `test`, or to none."""
    names = ("seconds", "evaluations", "validation")
    records = [dict(zip(names, values, strict=True)) for values in curve]
    known = {"outcome": "timed out after 5 s", "threads": 2, "versions": "pickmix 1; numpy 2"}
    if test is not None:
        end = {"seconds": seconds, "evaluations": 1234.0, "validation": test + 0.1}
        records.append(end | {"live_components": 80})
        known |= {"outcome": "converged", "test": test}
    return make_row(BenchRun(rival, 0, seed, setting=setting), records, known | facts)


def by_key(*rows):
    return {f"{row['spec']}-{row['seed']}": row for row in rows}
