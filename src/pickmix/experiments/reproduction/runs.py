"""Runs: one fit each, described by values alone.

A run is its description. Equal descriptions are one run, whichever figures ask for it, and its hash
is the key under which the store keeps what it measured.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

# Names of the algorithms as the paper writes them, and two of our own: MHSAEM-P is its MHSAEM with
# our random partitions, `pickmix` is GaussianMixture with all defaults, its start included.
EM, SAEM, SSAEM, TSAEM, MCSAEM = "EM", "SAEM", "SSAEM", "TSAEM", "MCSAEM"
MHSAEM_U, MHSAEM_T, MHSAEM_TF, MHSAEM_O = "MHSAEM-U", "MHSAEM-T", "MHSAEM-TF", "MHSAEM-O"
MHSAEM_P, PICKMIX = "MHSAEM-P", "pickmix"
SGD = "SGD"
ALGORITHMS = (
    *(EM, SAEM, SSAEM, TSAEM, MCSAEM, MHSAEM_U, MHSAEM_T, MHSAEM_TF, MHSAEM_O),
    *(MHSAEM_P, PICKMIX, SGD),
)

# Whose work does not depend on the number of samples M, or on the batch size B.
WITHOUT_SAMPLES = (EM, SAEM, MHSAEM_P, PICKMIX)
WITHOUT_BATCHES = (EM, PICKMIX)
WITHOUT_STEPS = (PICKMIX,)

# Changes when a change of the code makes results of before worthless.
VERSION = 1


@dataclass(frozen=True)
class Run:
    """What all runs share.

    Attributes
    ----------
    algorithm : str
        As the paper writes it.
    T : int
        Steps; iterations for EM.
    seed : int
        Of the data, the split and the fit.
    """

    algorithm: str
    T: int
    seed: int

    kind: ClassVar[str] = ""
    needs_jax: ClassVar[bool] = True

    def settings(self) -> dict[str, str | int | float | bool | None]:
        """What tells this run from others, the seed left out."""
        values = asdict(self)
        del values["seed"]
        return {"kind": self.kind, "version": VERSION, **values}

    @property
    def spec(self) -> str:
        """Hash of the settings: the same for all seeds."""
        text = json.dumps(self.settings(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def key(self) -> str:
        """Hash of settings and seed.

        Examples
        --------
        >>> run = GaussianRun("EM", 10, 0, D=2, K=3, N=100, omega=0.1)
        >>> run.key == GaussianRun("EM", 10, 0, D=2, K=3, N=100, omega=0.1).key
        True
        >>> run.key == run.with_seed(1).key, run.spec == run.with_seed(1).spec
        (False, True)
        """
        return f"{self.spec}-{self.seed}"

    def with_seed(self, seed: int) -> Run:
        """The same with another seed."""
        return replace(self, seed=seed)

    def shortened(self, factor: float) -> Run:
        """The same with fewer steps."""
        if self.algorithm in WITHOUT_STEPS:
            return self
        return replace(self, T=max(1, round(self.T * factor)))


@dataclass(frozen=True)
class GaussianRun(Run):
    """A Gaussian mixture on rows of a MixSim mixture.

    Attributes
    ----------
    D, K, N, omega : int, int, int, float
        Columns, components (of the truth and of the model), rows, largest pairwise overlap.
    B, M : int or None
        Rows per step and samples per row, where the algorithm has them.
    annealing : bool
        The paper's anti-annealing over T steps.
    first_steps, step_size : int, float
        gamma_t is 1 for so many steps, then `step_size`.
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
        if self.algorithm in WITHOUT_SAMPLES:
            object.__setattr__(self, "M", None)
        if self.algorithm in WITHOUT_BATCHES:
            object.__setattr__(self, "B", None)
            object.__setattr__(self, "first_steps", 0)
            object.__setattr__(self, "step_size", 1.0)
        if self.algorithm in WITHOUT_STEPS:
            object.__setattr__(self, "T", 0)
            object.__setattr__(self, "annealing", False)


@dataclass(frozen=True)
class ConvergenceRun(Run):
    """A Gaussian mixture by gradients, with the bias of the gradient on the way.

    Attributes
    ----------
    D, K, N, omega, B
        As in `GaussianRun`; M is 1.
    step_size : float
        Learning rate, and gamma of the table proposals; constant.
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
    """A sum-product-transform network or a mixture of real NVP flows on a UCI set.

    Attributes
    ----------
    dataset, protocol : str
        As in `pickmix.data.uci.load`.
    model : {"sptn", "flow"}
    s, b, l : int or None
        Children of a sum node, parts of a product node and layers of a network.
    K : int
        Flows; of a network s^l, by which the paper indexes its tables.
    B, M : int
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

    kind: ClassVar[str] = "deep"

    @property
    def architecture(self) -> str:
        """What tells models of one family apart.

        Examples
        --------
        >>> sptn("iris", "SGD", 32, 2, 2).architecture, flow("iris", "SGD", 8).architecture
        ('s=32 b=2 l=2', 'K=8')
        """
        if self.model == "flow":
            return f"K={self.K}"
        return f"s={self.s} b={self.b} l={self.l}"


def flow(dataset: str, algorithm: str, K: int, T: int = 20_000, seed: int = 0) -> DeepRun:
    """A mixture of K real NVP flows."""
    return DeepRun(algorithm, T, seed, dataset=dataset, model="flow", K=K)


def sptn(
    dataset: str,
    algorithm: str,
    s: int,
    b: int,
    l: int,  # noqa: E741
    T: int = 20_000,
    seed: int = 0,
) -> DeepRun:
    """A sum-product-transform network of s children, b parts and l layers."""
    return DeepRun(algorithm, T, seed, dataset=dataset, model="sptn", s=s, b=b, l=l, K=s**l)
