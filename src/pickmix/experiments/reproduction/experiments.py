"""The paper's figures and tables as lists of runs: what is asked for, and how much of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeVar

from pickmix.data import uci
from pickmix.experiments.reproduction.panels import CurvePanel, ErrorPanel, Figure, Panel
from pickmix.experiments.reproduction.runs import (
    EM,
    MCSAEM,
    MHSAEM_O,
    MHSAEM_P,
    MHSAEM_T,
    MHSAEM_TF,
    MHSAEM_U,
    PICKMIX,
    SAEM,
    SGD,
    SSAEM,
    TSAEM,
    ConvergenceRun,
    DeepRun,
    GaussianRun,
    Run,
    flow,
    sptn,
)

Value = TypeVar("Value")
TABLE_1 = (EM, SAEM, SSAEM, TSAEM, MCSAEM, MHSAEM_U, MHSAEM_TF)
PROPOSALS = (MHSAEM_O, MHSAEM_U, MHSAEM_T, MHSAEM_TF, MHSAEM_P)
DEEP = (SGD, MHSAEM_U)
# Sets with which --quick touches the tables, and those of the reduced search for architectures.
QUICK_SETS = ("iris", "wine")
SIX_SETS = ("ecoli", "iris", "page-blocks", "pima-indians", "wine", "yeast")


@dataclass(frozen=True)
class Scale:
    """How much of an experiment is made.

    Attributes
    ----------
    repetitions : int or None
        Seeds 0, 1, ...; None is the paper's number.
    step_factor : float
        Share of the paper's steps T.
    quick : bool
        Few values of each parameter, two data sets and short fits: to see that all works.
    sets : tuple of str or None
        Data sets of the tables; None takes all.
    reduced_grid : bool
        Fewer architectures in the search for the best.
    """

    repetitions: int | None = None
    step_factor: float = 1.0
    quick: bool = False
    sets: tuple[str, ...] | None = None
    reduced_grid: bool = False


PAPER = Scale()
QUICK = Scale(repetitions=1, step_factor=0.02, quick=True, sets=QUICK_SETS, reduced_grid=True)


@dataclass(frozen=True)
class Experiment:
    """A figure or a table of the paper.

    Attributes
    ----------
    name : str
    paper : str
        Where it is in the paper.
    title : str
    repetitions : int
        The paper's.
    runs : callable scale -> tuple of runs
        With seeds and steps as the scale has them.
    figure : callable scale -> Figure, or None for tables
    """

    name: str
    paper: str
    title: str
    repetitions: int
    runs: Callable[[Scale], tuple[Run, ...]]
    figure: Callable[[Scale], Figure] | None = None


def _scaled(runs: Iterable[Run], scale: Scale, repetitions: int) -> tuple[Run, ...]:
    """All seeds, a seed after the other: what is stopped early has fewer of them."""
    once = list(dict.fromkeys(run.shortened(scale.step_factor) for run in runs))
    seeds = range(scale.repetitions or repetitions)
    return tuple(run.with_seed(seed) for seed in seeds for run in once)


def _make_figure(
    name: str,
    paper: str,
    title: str,
    repetitions: int,
    panels: Callable[[Scale], list[Panel]],
    percentiles: tuple[float, float] = (1.0, 99.0),
) -> Experiment:
    def figure(scale: Scale) -> Figure:
        scaled = [
            replace(panel, runs=_scaled(panel.runs, scale, repetitions)) for panel in panels(scale)
        ]
        return Figure(title, tuple(scaled), percentiles)

    def runs(scale: Scale) -> tuple[Run, ...]:
        found = [run for panel in figure(scale).panels for run in panel.runs]
        return tuple(sorted(dict.fromkeys(found), key=lambda run: run.seed))

    return Experiment(name, paper, title, repetitions, runs, figure)


def _few(values: tuple[Value, ...], scale: Scale) -> tuple[Value, ...]:
    return values[:2] if scale.quick else values


# -- Gaussian mixtures ------------------------------------------------------------------------


def _gaussian(algorithm: str, T: int, **settings: Any) -> GaussianRun:
    """A run with the paper's settings; EM makes as many passes as the others at B = 200 or 400."""
    if algorithm == EM:
        B = settings.pop("em_batch")
        T = max(1, T * B // settings["N"])
    else:
        settings.pop("em_batch")
    return GaussianRun(algorithm, T, 0, **settings)


def _at_figure_2(algorithm: str, **changes: Any) -> GaussianRun:
    settings = {"D": 10, "K": 100, "N": 10_000, "omega": 0.1, "B": 200, "M": 2, "em_batch": 200}
    return _gaussian(algorithm, 20_000, **{**settings, **changes})


def _convergence(scale: Scale) -> list[Panel]:
    runs = tuple(ConvergenceRun(algorithm, 4_000, 0) for algorithm in PROPOSALS)
    return [
        CurvePanel("training log-likelihood", "log_likelihood", runs),
        CurvePanel("error of the gradient", "bias", runs),
        CurvePanel("acceptance", "acceptance", runs),
    ]


def _likelihood(scale: Scale) -> list[Panel]:
    algorithms = (*TABLE_1, MHSAEM_P, PICKMIX)
    runs = tuple(_at_figure_2(algorithm) for algorithm in algorithms)
    return [CurvePanel("", "log_likelihood", runs, marks_t95=True)]


def _annealing(scale: Scale) -> list[Panel]:
    algorithms = (*TABLE_1, MHSAEM_P)
    return [
        CurvePanel(
            "with anti-annealing" if annealing else "without annealing",
            "log_likelihood",
            tuple(_at_figure_2(algorithm, annealing=annealing) for algorithm in algorithms),
            marks_t95=True,
        )
        for annealing in (False, True)
    ]


def _sensitivity(scale: Scale) -> list[Panel]:
    panels: list[Panel] = []
    for name, values in (
        ("K", (25, 50, 100, 200)),
        ("B", (50, 100, 200, 400)),
        ("M", (1, 2, 4, 8)),
    ):
        runs = tuple(
            _at_figure_2(algorithm, **{name: value})
            for algorithm in (*TABLE_1, PICKMIX)
            for value in _few(values, scale)
        )
        panels.append(ErrorPanel(f"over {name}", name, runs))
    return panels


def _over_K(scale: Scale, name: str, values: tuple[int, ...]) -> list[Panel]:
    """Panels for values of one setting, K along the lines; (2, K, 20k, 0.001, 400, 8, 40k)."""
    panels: list[Panel] = []
    for value in _few(values, scale):
        settings = {"D": 2, "N": 20_000, "omega": 0.001, "B": 400, "M": 8, "em_batch": 400}
        settings[name] = value
        # A component has 5,150 parameters at D = 100, and N rows have to do for all.
        numbers = (10, 20) if settings["D"] == 100 else (10, 20, 40, 80)
        runs = tuple(
            _gaussian(algorithm, 40_000, K=K, **settings)
            for algorithm in (*TABLE_1, PICKMIX)
            for K in _few(numbers, scale)
        )
        panels.append(ErrorPanel(f"{name} = {value}", "K", runs))
    return panels


def _proposals(scale: Scale) -> list[Panel]:
    changes: dict[str, Any] = {"D": 2, "K": 10, "M": 1, "annealing": False}
    changes |= {"first_steps": 500, "step_size": 0.1}
    runs = tuple(_at_figure_2(algorithm, **changes) for algorithm in PROPOSALS)
    return [
        CurvePanel("acceptance", "acceptance", runs),
        CurvePanel("training log-likelihood", "log_likelihood", runs),
    ]


# -- deep mixtures ----------------------------------------------------------------------------


def _sets(scale: Scale) -> tuple[str, ...]:
    return scale.sets or tuple(uci.NAMES)


def _fixed(scale: Scale) -> tuple[Run, ...]:
    # Cheap runs first: under a limit on time there is something of all sets early.
    runs = [
        make(name, algorithm)
        for algorithm in (MHSAEM_U, MHSAEM_P, SGD)
        for name in _sets(scale)
        for make in (_fixed_flow, _fixed_sptn)
    ]
    return _scaled(runs, scale, 5)


def _fixed_flow(name: str, algorithm: str) -> DeepRun:
    return flow(name, algorithm, 128)


def _fixed_sptn(name: str, algorithm: str) -> DeepRun:
    # s^l = 1024, which none of the paper's s and l give but s = 32, l = 2.
    return sptn(name, algorithm, 32, 2, 2)


def _best(scale: Scale) -> tuple[Run, ...]:
    shapes = list(product((8, 32, 128), (2, 4, 6, 8), (2, 3, 4)))
    if scale.reduced_grid:
        shapes = [(8, 2, 2), (8, 4, 2), (8, 2, 3), (32, 2, 2)]
    if scale.quick:
        shapes = shapes[:2]
    flows = (8, 32) if scale.quick else (8, 32, 128)
    runs: list[Run] = []
    for algorithm in (MHSAEM_U, SGD):
        for name in _sets(scale):
            runs += [flow(name, algorithm, K) for K in flows]
            runs += [sptn(name, algorithm, *shape) for shape in shapes]
    return _scaled(runs, scale, 5)


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        _make_figure(
            "figure-1",
            "Figure 1",
            "Convergence by gradients: likelihood, error of the gradient, acceptance",
            50,
            _convergence,
        ),
        _make_figure(
            "figure-2", "Figure 2", "Training log-likelihood of all algorithms", 5, _likelihood
        ),
        _make_figure(
            "figure-3", "Figure 3", "Absolute error against time over K, B and M", 5, _sensitivity
        ),
        _make_figure(
            "figure-annealing",
            "supplement, section 9.1",
            "Training log-likelihood without and with anti-annealing",
            5,
            _annealing,
        ),
        _make_figure(
            "figure-batchsize",
            "supplement, section 9.2",
            "Absolute error against time for batch sizes",
            5,
            lambda scale: _over_K(scale, "B", (200, 300, 400)),
        ),
        _make_figure(
            "figure-samples",
            "supplement, section 9.2",
            "Absolute error against time for numbers of samples",
            5,
            lambda scale: _over_K(scale, "M", (2, 4, 8)),
        ),
        _make_figure(
            "figure-dimension",
            "supplement, section 9.2",
            "Absolute error against time for dimensions, those the paper wished for too",
            5,
            lambda scale: _over_K(scale, "D", (1, 2, 4, 8, 10, 100)),
        ),
        _make_figure(
            "figure-proposals",
            "supplement, section 9.3",
            "Acceptance and likelihood of the proposals",
            10,
            _proposals,
            (25.0, 75.0),
        ),
        Experiment(
            "table-best", "Table 2", "The best architecture of each set, SGD and MHSAEM-U", 5, _best
        ),
        Experiment(
            "table-fixed", "Table 3", "One architecture for all sets, SGD and MHSAEM-U", 5, _fixed
        ),
        Experiment(
            "table-all", "Table 4", "Training, validation and test values of Table 2", 5, _best
        ),
    )
}


def find_experiments(names: Iterable[str]) -> list[Experiment]:
    """The experiments of these names, in the paper's order, each once.

    Examples
    --------
    >>> [experiment.paper for experiment in find_experiments(["table-best", "figure-2"])]
    ['Figure 2', 'Table 2']
    """
    wanted = list(names)
    for name in wanted:
        if name not in EXPERIMENTS:
            raise ValueError(f"name must be one of {', '.join(EXPERIMENTS)}; got {name!r}")
    return [experiment for name, experiment in EXPERIMENTS.items() if name in wanted]
