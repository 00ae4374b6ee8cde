"""Histories with made-up numbers, and ways to find what was drawn of them."""

import numpy as np

from pickmix_experiments.catalogue import Figure, Panel
from pickmix_experiments.runs import BenchRun, GaussianRun
from pickmix_experiments.store import make_history


def history(run, outcome="max_steps", values=(-3.0, -2.0, -1.0), seconds=None, **facts):
    """Log-likelihoods with these values, a step and a second apart; evaluations are ten times."""
    seconds = range(1, len(values) + 1) if seconds is None else seconds
    records = [
        {"step": number, "seconds": second, "evaluations": 10.0 * second, "log_likelihood": value}
        for number, (second, value) in enumerate(zip(seconds, values, strict=True))
    ]
    return make_history(run, records, {"outcome": outcome, **facts})


def drawn(run, outcome="max_steps", truth=np.nan, **series):
    """A history with these series."""
    records = [dict(zip(series, row, strict=True)) for row in zip(*series.values(), strict=True)]
    return make_history(run, records, {"outcome": outcome, "true_log_likelihood": truth})


def gaussian(algorithm="EM", seed=0, **settings):
    return GaussianRun(algorithm, 10, seed, **settings)


def rising(run, height=0.0, factor=1.0, outcome="max_steps", truth=np.nan, **more):
    """From -30 over -20.8, t95 if height is 0, to -20; seconds 0.1, 1 and 10, evaluations x 100."""
    seconds = factor * np.array([0.1, 1.0, 10.0])
    levels = np.array([-30.0, -20.8, -20.0]) + height
    given = {"seconds": seconds, "evaluations": 100.0 * seconds, "log_likelihood": levels}
    return drawn(run, outcome, truth, **(given | more))


def error_histories():
    """AE at t95 is 0.2 more per K step; times to t95 grow with K and with the seed."""
    return [
        rising(
            gaussian("MHSAEM-P", seed, K=K),
            truth=-20.0 + 0.2 * rank + 0.1 * seed,
            factor=(1 + seed) * 10.0**rank,
        )
        for rank, K in enumerate((25, 50, 100))
        for seed in range(3)
    ]


def bench(setting, rival, seed=0, test=None, seconds=1.0, curve=(), **facts):
    """A run of a bench that came to an end with `test`, or to none."""
    records = [
        dict(zip(("seconds", "evaluations", "validation"), row, strict=True)) for row in curve
    ]
    known = {"outcome": "timed out after 5 s", "threads": 2, "versions": "pickmix 1; numpy 2"}
    if test is not None:
        records.append({"evaluations": 1234.0, "live_components": 80, "validation": test + 0.1})
        records[-1]["seconds"] = seconds
        known |= {"outcome": "converged", "test": test}
    return make_history(BenchRun(rival, 0, seed, setting=setting), records, known | facts)


def by_key(*histories):
    return {history.run.key: history for history in histories}


def figure_of(histories, shows="log_likelihood", marks="", **settings):
    runs = tuple(history.run for history in histories)
    return Figure("Figure 0", (Panel("left", shows, runs, marks),), **settings)


def labelled(axes, label):
    return [line for line in axes.lines if line.get_label() == label]


def kinds(axes, kind):
    return [found for found in axes.collections if isinstance(found, kind)]


def words(page):
    return [text.get_text() for text in page.legends[0].get_texts() if text.get_text().strip()]
