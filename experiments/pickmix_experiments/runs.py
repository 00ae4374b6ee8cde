"""Runs: one fit each, described by values alone.

A run is its description. Equal descriptions are one run, whichever figures need it, and its hash is
the key under which the store keeps what it measured.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

# Names of the algorithms as the paper writes them, and some of our own: MHSAEM-P is its MHSAEM with
# our random partitions, the others are estimators with all defaults, their starts included.
EM, SAEM, SSAEM, TSAEM, MCSAEM = "EM", "SAEM", "SSAEM", "TSAEM", "MCSAEM"
MHSAEM_U, MHSAEM_T, MHSAEM_TF, MHSAEM_O = "MHSAEM-U", "MHSAEM-T", "MHSAEM-TF", "MHSAEM-O"
MHSAEM_P, PICKMIX, SGD = "MHSAEM-P", "pickmix", "SGD"
GAUSSIANS, FLOWS, NETWORKS = "pickmix Gaussians", "pickmix flows", "pickmix networks"
# Those of the paper's Table 1, of its study of proposals, and our estimators with all defaults.
TABLE_1 = (EM, SAEM, SSAEM, TSAEM, MCSAEM, MHSAEM_U, MHSAEM_TF)
PROPOSALS = (MHSAEM_O, MHSAEM_U, MHSAEM_T, MHSAEM_TF, MHSAEM_P)
DEFAULTS = (GAUSSIANS, FLOWS, NETWORKS)
ALGORITHMS = tuple(dict.fromkeys((*TABLE_1, *PROPOSALS, PICKMIX, SGD, *DEFAULTS)))

# Settings that do not change the work of these algorithms.
_IGNORED: dict[tuple[str, ...], dict[str, Any]] = {
    (EM, SAEM, MHSAEM_P, PICKMIX): {"M": None},
    (EM, PICKMIX): {"B": None, "first_steps": 0, "step_size": 1.0},
    (PICKMIX,): {"T": 0, "annealing": False},
}
# Raised when a change of the code makes earlier results worthless.
VERSION = 1


@dataclass(frozen=True)
class Run:
    #: As in the paper, or the name of a method of a bench.
    algorithm: str
    #: Steps, iterations for EM; 0 for fits with a stopping rule of their own.
    T: int
    #: Of the data, the split and the fit.
    seed: int

    kind: ClassVar[str] = ""

    def settings(self) -> dict[str, Any]:
        """Return what identifies this run, without the seed."""
        values = {"kind": self.kind, "version": VERSION, **asdict(self)}
        del values["seed"]
        return values

    @property
    def spec(self) -> str:
        """Hash of the settings: the same for all seeds."""
        text = json.dumps(self.settings(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def key(self) -> str:
        return f"{self.spec}-{self.seed}"

    def shortened(self, factor: float) -> Self:
        """Return the same run with fewer steps, if it counts them."""
        return replace(self, T=max(1, round(self.T * factor))) if self.T else self


@dataclass(frozen=True)
class GaussianRun(Run):
    """A Gaussian mixture on N rows of a MixSim mixture with largest pairwise overlap omega.

    gamma_t is 1 for `first_steps` steps, then `step_size`; `annealing` is the paper's.
    """

    D: int = 10
    K: int = 100
    N: int = 10_000
    omega: float = 0.1
    B: int | None = 200
    M: int | None = 2
    annealing: bool = True
    first_steps: int = 50
    step_size: float = 0.05

    kind: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        # Two descriptions of the same work would be made twice.
        for algorithms, ignored in _IGNORED.items():
            for name, value in ignored.items() if self.algorithm in algorithms else ():
                object.__setattr__(self, name, value)


@dataclass(frozen=True)
class ConvergenceRun(Run):
    """A Gaussian mixture by gradients with M = 1, and the bias of the gradient on the way.

    `step_size` is the constant learning rate, and gamma of the table proposals.
    """

    D: int = 2
    K: int = 10
    N: int = 1_000
    omega: float = 0.5
    B: int = 100
    step_size: float = 0.01

    kind: ClassVar[str] = "convergence"


@dataclass(frozen=True)
class DeepRun(Run):
    """A sum-product-transform network ("sptn") or a mixture of real NVP flows on a UCI set.

    A network has s children of a sum node, b parts of a product node and l layers; K counts flows,
    or s^l, by which the paper indexes its tables. It starts as the "paper" has it, or where a fit
    of Gaussians ended ("gaussian").
    """

    dataset: str = "iris"
    protocol: str = "paper"
    model: str = "flow"
    s: int | None = None
    b: int | None = None
    l: int | None = None  # noqa: E741
    K: int = 128
    B: int = 100
    M: int = 1
    start: str = "paper"

    kind: ClassVar[str] = "deep"


def flow(dataset: str, algorithm: str, K: int) -> DeepRun:
    """Describe K real NVP flows from the paper's start, with its steps."""
    return DeepRun(algorithm, 20_000, 0, dataset=dataset, model="flow", K=K)


def sptn(dataset: str, algorithm: str, s: int, b: int, n_layers: int) -> DeepRun:
    shape: dict[str, Any] = {"s": s, "b": b, "l": n_layers, "K": s**n_layers}
    return DeepRun(algorithm, 20_000, 0, dataset=dataset, model="sptn", **shape)


@dataclass(frozen=True)
class DefaultRun(Run):
    """An estimator with all defaults, one of `DEFAULTS`; K is chosen on validation rows."""

    dataset: str = "iris"
    protocol: str = "paper"

    kind: ClassVar[str] = "default"


@dataclass(frozen=True)
class BenchRun(Run):
    """A method of a bench; `setting` is the name of its data, with K."""

    setting: str = "small"

    kind: ClassVar[str] = "bench"


# Names of the settings of all kinds of runs.
SETTINGS = tuple(
    dict.fromkeys(
        name
        for kind in (GaussianRun, ConvergenceRun, DeepRun, DefaultRun, BenchRun)
        for name in ("kind", *kind.__dataclass_fields__)
    )
)
