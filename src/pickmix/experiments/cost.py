"""About how long runs take: for budgets, and for the time that is left.

Seconds of one core of a small machine, from a handful of timed runs. They are right to a factor of
two or three, which is enough to cut a grid to a budget and to weigh its runs against each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from pickmix.data import uci
from pickmix.experiments import runs
from pickmix.experiments.runs import ConvergenceRun, DeepRun, DefaultRun, GaussianRun, Run

# Shares of the paper's steps that a budget may cut to.
SHARES = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01)
_COMPILATION = 5.0
# A network with more, s = 128, b = 8 and l = 4 say, is refused for want of memory before it begins.
_MOST_PARAMETERS = 1e9


def seconds(run: Run, limit_seconds: float | None = None) -> float:
    """About how long a run takes under a limit of work, with measuring and compilation."""
    limit = math.inf if limit_seconds is None else limit_seconds
    if isinstance(run, GaussianRun):
        return 1.0 + min(limit, _of_gaussian(run))
    if isinstance(run, DefaultRun):
        return _COMPILATION + min(limit, 2.0 + 2e-4 * math.prod(uci.SIZES[run.dataset]))
    if isinstance(run, DeepRun):
        # A Gaussian start takes seconds.
        return _COMPILATION + min(limit, _of_deep(run)) + 5.0 * (run.start == "gaussian")
    assert isinstance(run, ConvergenceRun)
    return _COMPILATION + min(limit, 1e-3 * run.T)


def _of_gaussian(run: GaussianRun) -> float:
    evaluation = 1e-9 * (15.0 + 1.5 * run.D + 0.12 * run.D**2)
    measuring = 60 * min(run.N, 2e9 / (run.K * run.D**2)) * run.K * evaluation
    if run.algorithm == runs.PICKMIX:
        return measuring + 400.0 * run.N * evaluation
    B, M = run.B or run.N, run.M or 1
    tables = dict.fromkeys((runs.MHSAEM_T, runs.MHSAEM_TF), 2 * M + 2)
    per_row = {runs.MHSAEM_U: M + 1, runs.TSAEM: M * M, **tables}.get(run.algorithm, run.K)
    updated = min(run.K, B * M)
    step = 1e-4 + 1.5 * B * (per_row + 2.0 * M) * evaluation + updated * 3e-10 * run.D**3
    return measuring + run.T * step


def _of_deep(run: DeepRun) -> float:
    n_features = uci.SIZES[run.dataset][1]
    if run.model == "flow":
        evaluated, each = float(run.K), 0.45e-6 + 0.022e-6 * n_features
        selected = 3e-4 + 1e-5 * n_features
    else:
        s, b, n_layers = run.s or 1, run.b or 1, run.l or 1
        nodes, width, evaluated, each = 1, float(n_features), 0.0, 5e-9
        for _ in range(n_layers):
            evaluated += nodes * s * max(1.0, width) ** 2
            nodes, width = nodes * s * b, width / b
        if evaluated > _MOST_PARAMETERS:
            return 0.0
        selected = 3e-4 + 8e-5 * n_features
    if run.algorithm == runs.SGD:
        return run.T * (3e-4 + run.B * evaluated * each)
    return run.T * selected * (2.5 if run.algorithm == runs.MHSAEM_P else 1.0)


def share_within(budget: float, make_runs: Callable[[float], Iterable[Run]]) -> float:
    """The largest of `SHARES` whose runs fit into a budget of seconds, or the smallest."""
    fitting = (s for s in SHARES if sum(map(seconds, make_runs(s))) <= budget)
    return next(fitting, SHARES[-1])
