"""Made-up histories to draw, and ways to find what was drawn."""

import numpy as np

from pickmix.experiments.reproduction.history import FACTS, SERIES, History
from pickmix.experiments.reproduction.panels import CurvePanel, Figure
from pickmix.experiments.reproduction.runs import GaussianRun


def history(run, outcome="max_steps", truth=np.nan, **series):
    n_records = len(next(iter(series.values())))
    values = {name: np.full(n_records, np.nan) for name in SERIES}
    values["step"] = np.arange(n_records, dtype=float)
    values |= {name: np.asarray(column, dtype=float) for name, column in series.items()}
    facts = dict.fromkeys(FACTS, np.nan) | {"outcome": outcome, "true_log_likelihood": truth}
    return History(run, values, facts)


def gaussian(algorithm="EM", seed=0, **settings):
    return GaussianRun(algorithm, 10, seed, **settings)


def rising(run, height=0.0, factor=1.0, **more):
    """From -30 over -20.8, t95 if height is 0, to -20; seconds 0.1, 1 and 10, evaluations x 100."""
    seconds = factor * np.array([0.1, 1.0, 10.0])
    levels = np.array([-30.0, -20.8, -20.0]) + height
    given = {"seconds": seconds, "evaluations": 100.0 * seconds, "log_likelihood": levels}
    return history(run, **(given | more))


def by_key(*histories):
    return {history.run.key: history for history in histories}


def curve_figure(histories, y="log_likelihood", **settings):
    runs = tuple(history.run for history in histories)
    return Figure("Figure 0", (CurvePanel("left", y, runs, **settings),))


def labelled(axes, label):
    return [line for line in axes.lines if line.get_label() == label]


def kinds(axes, kind):
    return [found for found in axes.collections if isinstance(found, kind)]


def words(page):
    return [text.get_text() for text in page.legends[0].get_texts() if text.get_text().strip()]


def error_histories():
    """AE at t95 is 0.2 more per K step; times to t95 grow with K and with the seed."""
    histories = []
    for rank, K in enumerate((25, 50, 100)):
        for seed in range(3):
            truth = -20.0 + 0.2 * rank + 0.1 * seed
            run = gaussian("MHSAEM-P", seed, K=K)
            histories.append(rising(run, truth=truth, factor=(1 + seed) * 10.0**rank))
    return histories
