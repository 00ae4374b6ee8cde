"""Figures and tables as lists of runs, and about how long runs take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeVar

from pickmix_experiments import runs, uci
from pickmix_experiments.runs import (
    MHSAEM_P,
    MHSAEM_U,
    PICKMIX,
    SGD,
    TABLE_1,
    DeepRun,
    DefaultRun,
    GaussianRun,
    Run,
)
from pickmix_experiments.store import Rows, frame_of

Value = TypeVar("Value")
# A flow needs so many training rows to start from a Gaussian.
_ROWS_EACH = 2


@dataclass(frozen=True)
class Scale:
    #: Number of seeds; None: the paper's.
    repetitions: int | None = None
    #: Share of the paper's steps T.
    step_factor: float = 1.0
    #: Few values of each parameter.
    quick: bool = False
    #: Data sets of tables; None: all.
    sets: tuple[str, ...] | None = None
    #: Fewer architectures in the search for the best.
    reduced_grid: bool = False


PAPER = Scale()
QUICK = Scale(1, step_factor=0.02, quick=True, sets=("iris", "wine"), reduced_grid=True)


@dataclass(frozen=True)
class Panel:
    """What a part of a figure shows, without how it is drawn; runs of one algorithm are one line.

    It shows a name of `store.SERIES` against time and against component evaluations, and may mark
    "t95" or the "ends" of lines. Or it shows "K", "B" or "M", a setting that changes along a line:
    AE at t95 against the time to t95. An algorithm without this setting is a point.
    """

    title: str
    shows: str
    #: None: all runs that were measured.
    runs: tuple[Run, ...] | None = None
    marks: str = ""

    @property
    def errors(self) -> bool:
        return len(self.shows) == 1

    def frame(self, rows: Rows) -> Any:
        return frame_of(rows, self.runs)


@dataclass(frozen=True)
class Figure:
    """A title, panels, and the percentiles of the bands around medians."""

    title: str
    panels: tuple[Panel, ...]
    percentiles: tuple[float, float] = (1.0, 99.0)


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    #: Its place in the paper.
    paper: str
    #: The paper's number of seeds.
    repetitions: int
    #: Gives the panels of a figure or the runs of a table, with seed 0 and the paper's steps.
    make: Callable[[Scale], list[Any]]
    percentiles: tuple[float, float] = (1.0, 99.0)

    @property
    def draws(self) -> bool:
        return self.name.startswith("figure")

    def figure(self, scale: Scale) -> Figure:
        """Return its panels, with seeds and steps as the scale has them."""
        panels = [replace(p, runs=self._scaled(p.runs or (), scale)) for p in self.make(scale)]
        return Figure(self.title, tuple(panels), self.percentiles)

    def runs(self, scale: Scale) -> tuple[Run, ...]:
        """Return all runs, one seed after the other: stopped early, all have fewer seeds."""
        if not self.draws:
            return self._scaled(self.make(scale), scale)
        every = [run for panel in self.figure(scale).panels for run in panel.runs or ()]
        return tuple(sorted(dict.fromkeys(every), key=lambda run: run.seed))

    def _scaled(self, runs: Iterable[Run], scale: Scale) -> tuple[Run, ...]:
        once = list(dict.fromkeys(run.shortened(scale.step_factor) for run in runs))
        seeds = range(scale.repetitions or self.repetitions)
        return tuple(replace(run, seed=seed) for seed in seeds for run in once)


def _few(values: tuple[Value, ...], scale: Scale) -> tuple[Value, ...]:
    return values[:2] if scale.quick else values


def _gaussian(algorithm: str, T: int, em_batch: int, **settings: Any) -> Run:
    """Describe the paper's run; EM makes as many passes as the others at B = em_batch."""
    if algorithm == runs.EM:
        T = max(1, T * em_batch // settings["N"])
    return GaussianRun(algorithm, T, 0, **settings)


def _at_figure_2(algorithms: Iterable[str], **changes: Any) -> tuple[Run, ...]:
    settings = {"D": 10, "K": 100, "N": 10_000, "omega": 0.1, "B": 200, "M": 2, **changes}
    return tuple(_gaussian(algorithm, 20_000, 200, **settings) for algorithm in algorithms)


def _convergence(scale: Scale) -> list[Panel]:
    all_runs = tuple(runs.ConvergenceRun(algorithm, 4_000, 0) for algorithm in runs.PROPOSALS)
    titles = {"log_likelihood": "training log-likelihood", "bias": "error of the gradient"}
    titles["acceptance"] = "acceptance"
    return [Panel(title, shows, all_runs) for shows, title in titles.items()]


def _likelihood(scale: Scale) -> list[Panel]:
    return [Panel("", "log_likelihood", _at_figure_2((*TABLE_1, MHSAEM_P, PICKMIX)), "t95")]


def _annealing(scale: Scale) -> list[Panel]:
    return [
        Panel(title, "log_likelihood", _at_figure_2((*TABLE_1, MHSAEM_P), annealing=on), "t95")
        for on, title in ((False, "without annealing"), (True, "with anti-annealing"))
    ]


def _sensitivity(scale: Scale) -> list[Panel]:
    panels = []
    grid = {"K": (25, 50, 100, 200), "B": (50, 100, 200, 400), "M": (1, 2, 4, 8)}
    for name, values in grid.items():
        pairs = product((*TABLE_1, PICKMIX), _few(values, scale))
        along = [run for who, value in pairs for run in _at_figure_2([who], **{name: value})]
        panels.append(Panel(f"over {name}", name, tuple(along)))
    return panels


def _over_K(name: str, *values: int) -> Callable[[Scale], list[Panel]]:
    """Return panels for values of one setting, K along their lines."""

    def panels(scale: Scale) -> list[Panel]:
        made = []
        for value in _few(values, scale):
            settings = {"D": 2, "N": 20_000, "omega": 0.001, "B": 400, "M": 8, name: value}
            # A component has 5,150 parameters at D = 100, and N rows have to do for all.
            numbers = (10, 20) if settings["D"] == 100 else (10, 20, 40, 80)
            pairs = product((*TABLE_1, PICKMIX), _few(numbers, scale))
            along = tuple(_gaussian(who, 40_000, 400, K=K, **settings) for who, K in pairs)
            made.append(Panel(f"{name} = {value}", "K", along))
        return made

    return panels


def _proposals(scale: Scale) -> list[Panel]:
    changes = {"D": 2, "K": 10, "M": 1, "annealing": False, "first_steps": 500, "step_size": 0.1}
    all_runs = _at_figure_2(runs.PROPOSALS, **changes)
    likelihood = Panel("training log-likelihood", "log_likelihood", all_runs)
    return [Panel("acceptance", "acceptance", all_runs), likelihood]


def _sets(scale: Scale) -> tuple[str, ...]:
    return scale.sets or tuple(uci.NAMES)


def _fixed_pair(name: str, algorithm: str) -> tuple[DeepRun, DeepRun]:
    # s^l = 1024, which none of the paper's s and l give but s = 32, l = 2.
    return runs.flow(name, algorithm, 128), runs.sptn(name, algorithm, 32, 2, 2)


def _fixed(scale: Scale) -> list[Run]:
    # Cheap runs first: under a limit on time all sets have some results early.
    defaults = product(runs.DEFAULTS, _sets(scale))
    made: list[Run] = [DefaultRun(who, 0, 0, dataset=name) for who, name in defaults]
    for algorithm, name in product((MHSAEM_U, MHSAEM_P, SGD), _sets(scale)):
        made += _fixed_pair(name, algorithm)
    return made


def _start(scale: Scale) -> list[Run]:
    """Return the pairs of the fixed table, from a Gaussian start and from the paper's."""
    made: list[Run] = []
    for algorithm, name in product((MHSAEM_U, SGD), _sets(scale)):
        flows, network = _fixed_pair(name, algorithm)
        n_train = (64 * uci.SIZES[name][0] + 50) // 100
        K = max(1, min(flows.K, n_train // _ROWS_EACH))
        made += [replace(flows, K=K, start="gaussian"), replace(network, start="gaussian")]
        made += [flows, network]
    return made


def _best(scale: Scale) -> list[Run]:
    shapes = list(product((8, 32, 128), (2, 4, 6, 8), (2, 3, 4)))
    if scale.reduced_grid:
        shapes = [(8, 2, 2), (8, 4, 2), (8, 2, 3), (32, 2, 2)]
    made: list[Run] = []
    for algorithm, name in product((MHSAEM_U, SGD), _sets(scale)):
        made += [runs.flow(name, algorithm, K) for K in _few((8, 32, 128), scale)]
        made += [runs.sptn(name, algorithm, *shape) for shape in _few(tuple(shapes), scale)]
    return made


_ERROR, _9 = "Absolute error against time", "supplement, section 9."
_GRADIENTS = "Convergence by gradients: likelihood, error of the gradient, acceptance"
_ANNEALED = "Training log-likelihood without and with anti-annealing"
_DIMENSIONS = f"{_ERROR} for dimensions, those the paper wished for too"
_PROPOSED, _BEST = "Acceptance and likelihood of the proposals", "The best architecture of each set"
_ONE = "One architecture for all sets, SGD and MHSAEM-U; our defaults"
_STARTS = "SGD and MHSAEM-U from a Gaussian start and from the paper's"
_ALL: tuple[tuple[Any, ...], ...] = (
    ("figure-1", _GRADIENTS, "Figure 1", 50, _convergence),
    ("figure-2", "Training log-likelihood of all algorithms", "Figure 2", 5, _likelihood),
    ("figure-3", f"{_ERROR} over K, B and M", "Figure 3", 5, _sensitivity),
    ("figure-annealing", _ANNEALED, f"{_9}1", 5, _annealing),
    ("figure-batchsize", f"{_ERROR} for batch sizes", f"{_9}2", 5, _over_K("B", 200, 300, 400)),
    ("figure-samples", f"{_ERROR} for numbers of samples", f"{_9}2", 5, _over_K("M", 2, 4, 8)),
    ("figure-dimension", _DIMENSIONS, f"{_9}2", 5, _over_K("D", 1, 2, 4, 8, 10, 100)),
    ("figure-proposals", _PROPOSED, f"{_9}3", 10, _proposals, (25.0, 75.0)),
    ("table-best", f"{_BEST}, SGD and MHSAEM-U", "Table 2", 5, _best),
    ("table-fixed", _ONE, "Table 3", 5, _fixed),
    ("table-all", "Training, validation and test values of Table 2", "Table 4", 5, _best),
    ("table-start", _STARTS, "ours", 5, _start),
)
EXPERIMENTS = {arguments[0]: Experiment(*arguments) for arguments in _ALL}

# Shares of the paper's steps that a budget may cut to.
SHARES = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01)
# A network with more (s = 128, b = 8 and l = 4, for one) is refused before it takes the memory.
_MOST_PARAMETERS = 1e9


def share_within(budget: float, make_runs: Callable[[float], Iterable[Run]]) -> float:
    """Return the largest of `SHARES` whose runs fit into a budget of seconds, or the smallest."""
    affordable = (share for share in SHARES if sum(map(seconds, make_runs(share))) <= budget)
    return next(affordable, SHARES[-1])


def seconds(run: Run) -> float:
    """Return about how long a run takes on one core of a small machine, measuring included.

    From a handful of timed runs, right to a factor of two or three: enough to cut to a budget.
    """
    if isinstance(run, GaussianRun):
        evaluation = 1e-9 * (15.0 + 1.5 * run.D + 0.12 * run.D**2)
        measuring = 1.0 + 60 * min(run.N, 2e9 / (run.K * run.D**2)) * run.K * evaluation
        if run.algorithm == PICKMIX:
            return measuring + 400.0 * run.N * evaluation
        B, M = run.B or run.N, run.M or 1
        per_row = dict.fromkeys((runs.MHSAEM_T, runs.MHSAEM_TF), 2 * M + 2)
        per_row |= {MHSAEM_U: M + 1, runs.TSAEM: M * M}
        evaluations = 1.5 * B * (per_row.get(run.algorithm, run.K) + 2.0 * M)
        step = 1e-4 + evaluations * evaluation + min(run.K, B * M) * 3e-10 * run.D**3
        return measuring + run.T * step
    compilation = 5.0
    if isinstance(run, DefaultRun):
        return compilation + 2.0 + 2e-4 * math.prod(uci.SIZES[run.dataset])
    if not isinstance(run, DeepRun):
        return compilation + 1e-3 * run.T
    D = uci.SIZES[run.dataset][1]
    if run.model == "flow":
        dense, step = run.K * (0.45e-6 + 0.022e-6 * D), 3e-4 + 1e-5 * D
    else:
        s, b, n_layers = run.s or 1, run.b or 1, run.l or 1
        # Layer by layer there are s b times as many nodes, b times as narrow.
        parts = [s * (s * b) ** layer * max(1.0, D / b**layer) ** 2 for layer in range(n_layers)]
        if sum(parts) > _MOST_PARAMETERS:
            return compilation
        dense, step = 5e-9 * sum(parts), 3e-4 + 8e-5 * D
    if run.algorithm == SGD:
        return compilation + run.T * (3e-4 + run.B * dense)
    return compilation + run.T * step * (2.5 if run.algorithm == MHSAEM_P else 1.0)
