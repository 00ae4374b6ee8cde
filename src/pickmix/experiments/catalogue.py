"""Figures and tables as lists of runs: what is asked for, and how much of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeVar

from pickmix.data import uci
from pickmix.experiments import runs
from pickmix.experiments.runs import MHSAEM_P, MHSAEM_U, PICKMIX, SGD, TABLE_1, DeepRun, Run

Value = TypeVar("Value")
# A flow needs so many training rows to start from a Gaussian.
_ROWS_EACH = 2


@dataclass(frozen=True)
class Scale:
    """How much of an experiment is made.

    The number of seeds (None: the paper's), the share of the paper's steps T, and the data sets of
    tables (None: all). `quick` takes few values of each parameter, `reduced_grid` fewer
    architectures in the search for the best.
    """

    repetitions: int | None = None
    step_factor: float = 1.0
    quick: bool = False
    sets: tuple[str, ...] | None = None
    reduced_grid: bool = False


PAPER = Scale()
QUICK = Scale(1, step_factor=0.02, quick=True, sets=("iris", "wine"), reduced_grid=True)


@dataclass(frozen=True)
class Panel:
    """What a part of a figure shows, without how it is drawn; runs of one algorithm are one line.

    It shows a name of `store.SERIES` against time and against component evaluations, and may mark
    "t95" or the "ends" of lines. Or it shows "K", "B" or "M", an attribute of the runs that changes
    along a line: AE at t95 against the time to t95. Of an algorithm without it, all runs have None,
    and the line is a point.
    """

    title: str
    shows: str
    runs: tuple[Run, ...]
    marks: str = ""

    @property
    def errors(self) -> bool:
        """Whether it shows errors over a parameter."""
        return len(self.shows) == 1


@dataclass(frozen=True)
class Figure:
    """A title, panels, and the percentiles of the bands around medians."""

    title: str
    panels: tuple[Panel, ...]
    percentiles: tuple[float, float] = (1.0, 99.0)


@dataclass(frozen=True)
class Experiment:
    """A figure or a table: what it shows, its place in the paper, the paper's repetitions.

    `make` gives the panels of a figure, or the runs of a table, with seed 0 and the paper's steps.
    """

    name: str
    title: str
    paper: str
    repetitions: int
    make: Callable[[Scale], list[Any]]
    percentiles: tuple[float, float] = (1.0, 99.0)

    @property
    def draws(self) -> bool:
        """Whether it is a figure."""
        return self.name.startswith("figure")

    def figure(self, scale: Scale) -> Figure:
        """Its panels, with seeds and steps as the scale has them."""
        panels = [replace(p, runs=self._scaled(p.runs, scale)) for p in self.make(scale)]
        return Figure(self.title, tuple(panels), self.percentiles)

    def runs(self, scale: Scale) -> tuple[Run, ...]:
        """All runs, a seed after the other: what is stopped early has fewer of them."""
        if not self.draws:
            return self._scaled(self.make(scale), scale)
        found = [run for panel in self.figure(scale).panels for run in panel.runs]
        return tuple(sorted(dict.fromkeys(found), key=lambda run: run.seed))

    def _scaled(self, runs: Iterable[Run], scale: Scale) -> tuple[Run, ...]:
        once = list(dict.fromkeys(run.shortened(scale.step_factor) for run in runs))
        seeds = range(scale.repetitions or self.repetitions)
        return tuple(run.with_seed(seed) for seed in seeds for run in once)


def _few(values: tuple[Value, ...], scale: Scale) -> tuple[Value, ...]:
    return values[:2] if scale.quick else values


def _gaussian(algorithm: str, T: int, em_batch: int, **settings: Any) -> Run:
    """A run with the paper's settings; EM makes as many passes as the others at B = em_batch."""
    if algorithm == runs.EM:
        T = max(1, T * em_batch // settings["N"])
    return runs.GaussianRun(algorithm, T, 0, **settings)


def _at_figure_2(algorithms: Iterable[str], **changes: Any) -> tuple[Run, ...]:
    settings = {"D": 10, "K": 100, "N": 10_000, "omega": 0.1, "B": 200, "M": 2, **changes}
    return tuple(_gaussian(algorithm, 20_000, 200, **settings) for algorithm in algorithms)


def _convergence(scale: Scale) -> list[Panel]:
    some = tuple(runs.ConvergenceRun(algorithm, 4_000, 0) for algorithm in runs.PROPOSALS)
    titles = {"log_likelihood": "training log-likelihood", "bias": "error of the gradient"}
    titles["acceptance"] = "acceptance"
    return [Panel(title, shows, some) for shows, title in titles.items()]


def _likelihood(scale: Scale) -> list[Panel]:
    return [Panel("", "log_likelihood", _at_figure_2((*TABLE_1, MHSAEM_P, PICKMIX)), "t95")]


def _annealing(scale: Scale) -> list[Panel]:
    titles = {False: "without annealing", True: "with anti-annealing"}
    some = {on: _at_figure_2((*TABLE_1, MHSAEM_P), annealing=on) for on in titles}
    return [Panel(titles[on], "log_likelihood", some[on], "t95") for on in titles]


def _sensitivity(scale: Scale) -> list[Panel]:
    panels = []
    grid = {"K": (25, 50, 100, 200), "B": (50, 100, 200, 400), "M": (1, 2, 4, 8)}
    for name, values in grid.items():
        some = product((*TABLE_1, PICKMIX), _few(values, scale))
        found = [run for who, value in some for run in _at_figure_2([who], **{name: value})]
        panels.append(Panel(f"over {name}", name, tuple(found)))
    return panels


def _over_K(name: str, *values: int) -> Callable[[Scale], list[Panel]]:
    """Panels for values of one setting, K along the lines; (2, K, 20k, 0.001, 400, 8, 40k)."""

    def panels(scale: Scale) -> list[Panel]:
        found = []
        for value in _few(values, scale):
            settings = {"D": 2, "N": 20_000, "omega": 0.001, "B": 400, "M": 8, name: value}
            # A component has 5,150 parameters at D = 100, and N rows have to do for all.
            numbers = (10, 20) if settings["D"] == 100 else (10, 20, 40, 80)
            some = product((*TABLE_1, PICKMIX), _few(numbers, scale))
            panel = tuple(_gaussian(who, 40_000, 400, K=K, **settings) for who, K in some)
            found.append(Panel(f"{name} = {value}", "K", panel))
        return found

    return panels


def _proposals(scale: Scale) -> list[Panel]:
    changes = {"D": 2, "K": 10, "M": 1, "annealing": False, "first_steps": 500, "step_size": 0.1}
    some = _at_figure_2(runs.PROPOSALS, **changes)
    likelihood = Panel("training log-likelihood", "log_likelihood", some)
    return [Panel("acceptance", "acceptance", some), likelihood]


def _sets(scale: Scale) -> tuple[str, ...]:
    return scale.sets or tuple(uci.NAMES)


def _fixed_pair(name: str, algorithm: str) -> tuple[DeepRun, DeepRun]:
    # s^l = 1024, which none of the paper's s and l give but s = 32, l = 2.
    return runs.flow(name, algorithm, 128), runs.sptn(name, algorithm, 32, 2, 2)


def _fixed(scale: Scale) -> list[Run]:
    # Cheap runs first: under a limit on time there is something of all sets early.
    defaults = product(runs.DEFAULTS, _sets(scale))
    found: list[Run] = [runs.DefaultRun(who, 0, 0, dataset=name) for who, name in defaults]
    for algorithm, name in product((MHSAEM_U, MHSAEM_P, SGD), _sets(scale)):
        found += _fixed_pair(name, algorithm)
    return found


def _start(scale: Scale) -> list[Run]:
    """The pairs of the fixed table, from a Gaussian start and from the paper's."""
    found: list[Run] = []
    for algorithm, name in product((MHSAEM_U, SGD), _sets(scale)):
        flows, network = _fixed_pair(name, algorithm)
        n_train = (64 * uci.SIZES[name][0] + 50) // 100
        K = max(1, min(flows.K, n_train // _ROWS_EACH))
        found += [replace(flows, K=K, start="gaussian"), replace(network, start="gaussian")]
        found += [flows, network]
    return found


def _best(scale: Scale) -> list[Run]:
    shapes = list(product((8, 32, 128), (2, 4, 6, 8), (2, 3, 4)))
    if scale.reduced_grid:
        shapes = [(8, 2, 2), (8, 4, 2), (8, 2, 3), (32, 2, 2)]
    found: list[Run] = []
    for algorithm, name in product((MHSAEM_U, SGD), _sets(scale)):
        found += [runs.flow(name, algorithm, K) for K in _few((8, 32, 128), scale)]
        found += [runs.sptn(name, algorithm, *shape) for shape in _few(tuple(shapes), scale)]
    return found


_ERROR, _SUPPLEMENT = "Absolute error against time", "supplement, section 9."
_GRADIENTS = "Convergence by gradients: likelihood, error of the gradient, acceptance"
_ANNEALED = "Training log-likelihood without and with anti-annealing"
_DIMENSIONS = f"{_ERROR} for dimensions, those the paper wished for too"
_PROPOSED = "Acceptance and likelihood of the proposals"
_ONE = "One architecture for all sets, SGD and MHSAEM-U; our defaults"
_STARTS = "SGD and MHSAEM-U from a Gaussian start and from the paper's"
_ALL = (
    Experiment("figure-1", _GRADIENTS, "Figure 1", 50, _convergence),
    Experiment("figure-2", "Training log-likelihood of all algorithms", "Figure 2", 5, _likelihood),
    Experiment("figure-3", f"{_ERROR} over K, B and M", "Figure 3", 5, _sensitivity),
    Experiment("figure-annealing", _ANNEALED, f"{_SUPPLEMENT}1", 5, _annealing),
    *(
        Experiment(f"figure-{name}", title, f"{_SUPPLEMENT}2", 5, make)
        for name, title, make in (
            ("batchsize", f"{_ERROR} for batch sizes", _over_K("B", 200, 300, 400)),
            ("samples", f"{_ERROR} for numbers of samples", _over_K("M", 2, 4, 8)),
            ("dimension", _DIMENSIONS, _over_K("D", 1, 2, 4, 8, 10, 100)),
        )
    ),
    Experiment("figure-proposals", _PROPOSED, f"{_SUPPLEMENT}3", 10, _proposals, (25.0, 75.0)),
    Experiment(
        "table-best", "The best architecture of each set, SGD and MHSAEM-U", "Table 2", 5, _best
    ),
    Experiment("table-fixed", _ONE, "Table 3", 5, _fixed),
    Experiment("table-all", "Training, validation and test values of Table 2", "Table 4", 5, _best),
    Experiment("table-start", _STARTS, "ours", 5, _start),
)
EXPERIMENTS = {experiment.name: experiment for experiment in _ALL}
