"""Runs: one fit each, described by values alone.

A run is its description. Equal descriptions are one run, whichever figures ask for it, and its hash
is the key under which the store keeps what it measured.
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
# Those of the paper's Table 1, of its study of proposals, and our estimators as they come.
TABLE_1 = (EM, SAEM, SSAEM, TSAEM, MCSAEM, MHSAEM_U, MHSAEM_TF)
PROPOSALS = (MHSAEM_O, MHSAEM_U, MHSAEM_T, MHSAEM_TF, MHSAEM_P)
DEFAULTS = (GAUSSIANS, FLOWS, NETWORKS)
ALGORITHMS = tuple(dict.fromkeys((*TABLE_1, *PROPOSALS, PICKMIX, SGD, *DEFAULTS)))

# Whose work does not depend on the number of samples M, on the batch size B, on steps.
_IGNORED: dict[tuple[str, ...], dict[str, Any]] = {
    (EM, SAEM, MHSAEM_P, PICKMIX): {"M": None},
    (EM, PICKMIX): {"B": None, "first_steps": 0, "step_size": 1.0},
    (PICKMIX,): {"T": 0, "annealing": False},
}

# Changes when a change of the code makes earlier results worthless.
VERSION = 1


@dataclass(frozen=True)
class Run:
    """What all runs share.

    The algorithm is named as in the paper, or as a rival. T are steps, iterations for EM, and 0 for
    fits with a stopping rule of their own. The seed is that of the data, the split and the fit.
    """

    algorithm: str
    T: int
    seed: int

    kind: ClassVar[str] = ""
    needs_jax: ClassVar[bool] = True

    def settings(self) -> dict[str, Any]:
        """What identifies this run, without the seed."""
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
        """Hash of settings and seed."""
        return f"{self.spec}-{self.seed}"

    def with_seed(self, seed: int) -> Self:
        """The same with another seed."""
        return replace(self, seed=seed)

    def shortened(self, factor: float) -> Self:
        """The same with fewer steps, if it counts them."""
        return replace(self, T=max(1, round(self.T * factor))) if self.T else self


@dataclass(frozen=True)
class GaussianRun(Run):
    """A Gaussian mixture on rows of a MixSim mixture.

    D columns, K components of the truth and of the model, N rows, largest pairwise overlap omega;
    B rows per step and M samples per row, where the algorithm has them; the paper's anti-annealing
    over T steps; gamma_t is 1 for `first_steps` steps, then `step_size`.
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
    needs_jax: ClassVar[bool] = False

    def __post_init__(self) -> None:
        # What an algorithm does not look at must not make two runs of one.
        for algorithms, ignored in _IGNORED.items():
            for name, value in ignored.items() if self.algorithm in algorithms else ():
                object.__setattr__(self, name, value)


@dataclass(frozen=True)
class ConvergenceRun(Run):
    """A Gaussian mixture by gradients, with the bias of the gradient on the way.

    As in `GaussianRun`, with M = 1; `step_size` is the constant learning rate, and gamma of the
    table proposals.
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

    Data set and protocol are as in `pickmix.data.uci.load`. A network has s children of a sum node,
    b parts of a product node and l layers; K counts flows, or s^l, by which the paper indexes its
    tables. The start is "paper", or "gaussian": where a fit of Gaussians ended.
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

    @property
    def architecture(self) -> str:
        """What identifies a model among those of its family."""
        return f"K={self.K}" if self.model == "flow" else f"s={self.s} b={self.b} l={self.l}"


def flow(dataset: str, algorithm: str, K: int, T: int = 20_000, seed: int = 0) -> DeepRun:
    """K real NVP flows from the paper's start."""
    return DeepRun(algorithm, T, seed, dataset=dataset, model="flow", K=K)


def sptn(
    dataset: str, algorithm: str, s: int, b: int, n_layers: int, T: int = 20_000, seed: int = 0
) -> DeepRun:
    """A network from the paper's start."""
    shape: dict[str, Any] = {"s": s, "b": b, "l": n_layers, "K": s**n_layers}
    return DeepRun(algorithm, T, seed, dataset=dataset, model="sptn", **shape)


@dataclass(frozen=True)
class DefaultRun(Run):
    """An estimator as it comes, one of `DEFAULTS`, on a UCI set; K is chosen on validation rows."""

    dataset: str = "iris"
    protocol: str = "paper"

    kind: ClassVar[str] = "default"


@dataclass(frozen=True)
class BenchRun(Run):
    """A rival of a bench; `setting` is the name of its data, with K."""

    setting: str = "small"

    kind: ClassVar[str] = "bench"
    needs_jax: ClassVar[bool] = False


_KINDS = {k.kind: k for k in (GaussianRun, ConvergenceRun, DeepRun, DefaultRun, BenchRun)}


def run_of(settings: str, seed: int) -> Run | None:
    """Make a run again from its settings as JSON; None if they are of another version.

    Settings that were not known when the JSON was written have their defaults.
    """
    values = json.loads(settings)
    kind, version = _KINDS.get(values.pop("kind")), values.pop("version")
    return None if kind is None or version != VERSION else kind(**values, seed=seed)
