"""The contract of a family: what a component is, in closed form."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from pickmix.families.layout import Layout, Model, Moments
from pickmix.threads import Threads

# Masses at or below this are none: their squares would leave float64.
NO_MASS = 1e-140

Parameters = Mapping[str, np.ndarray]
RandomSource = np.random.Generator | np.random.RandomState


class Prior(Protocol):
    """What components have in common, learnt from all of them (empirical Bayes)."""

    #: Rows behind all statistics together.
    n_rows: float

    @property
    def needs_gains(self) -> bool:
        """Whether `absorb` is to be told of every update."""
        ...

    def pool(self, moments: Moments, masses: np.ndarray) -> None:
        """Let the prior follow the components, whose masses (K,) are given as shares of all."""
        ...

    def absorb(
        self, kept: float, mass: Any, squares: Any, freedom: Any, scatter: np.ndarray
    ) -> None:
        """Take in the totals that an update added; it kept the share `kept` of the past."""
        ...

    def copy(self) -> Prior:
        """A copy that learns on its own."""
        ...


class Family(abc.ABC):
    """A feature map and an M-step. Everything that knows a family stands in its file."""

    #: What users call it.
    name: str
    #: True if all components share one factor.
    shared: bool = False
    layout: Layout
    #: Column i of the sweep's rows is column column_order[i] of the user's; None if all are in
    #: place. `check` speaks of the user's rows, everything else of the sweep's.
    column_order: np.ndarray | None = None

    # What the features are.

    def centre(self, mean: np.ndarray) -> np.ndarray:
        """Origin (D,) of the coordinates that the sweep sees, for rows with this mean."""
        return mean

    def check(self, rows: np.ndarray, columns: Sequence[int] | None = None) -> str | None:
        """What is wrong with the user's rows (N, D), or None; `columns` (D,) are their numbers."""
        return None

    def log_base(self, rows: np.ndarray) -> np.ndarray | None:
        """The part of log p(x) that no parameter changes, (N,), of uncentred rows; None if 0."""
        return None

    def row_places(self, rows: np.ndarray) -> np.ndarray:
        """Rows (B, D) where random trees look for them, (B, d)."""
        return rows

    # What the components are.

    @abc.abstractmethod
    def places(self, model: Model) -> np.ndarray:
        """Components where random trees look for them, (K, d)."""

    @abc.abstractmethod
    def widths(self, prior: Prior) -> np.ndarray:
        """Typical widths of a component along its places, (d,)."""

    @abc.abstractmethod
    def make_prior(self, moments: Moments, shrinkage: str, n_rows: float) -> Prior:
        """Prior for components with these moments.

        `shrinkage` is "none" (maximum likelihood), "few" (components of few rows lean on the
        others) or "pooled" (all do, by as much as they have in common).
        """

    @abc.abstractmethod
    def maximise(
        self,
        moments: Moments,
        members: np.ndarray,
        prior: Prior,
        model: Model,
        threads: Threads | None,
    ) -> np.ndarray:
        """M-step: write the rows `members` (U,) of the model from their moments.

        Returns flags (U,) of components that have no estimate; their old parameters stay. With
        `threads` the work is compiled and spread over them, without it is done in NumPy.
        """

    def self_scores(self, model: Model, moments: Moments) -> np.ndarray:
        """Mean log-density (K,) of a component's own rows, up to a constant of the family."""
        scores = np.einsum("kl,kl->k", model.tables, moments.counts) + model.log_normaliser
        if model.linear.shape[0]:
            scores += np.einsum("kc,kc->k", model.linear, moments.mean - model.location)
        return np.asarray(scores)

    @abc.abstractmethod
    def split(
        self, model: Model, moments: Moments, prior: Prior, uniforms: np.ndarray
    ) -> tuple[Moments, Moments]:
        """Moments of two halves of every component, apart along its widest direction.

        `uniforms` (K, d), for families that have no such direction. Each half has half the mass.
        """

    # What users see.

    @abc.abstractmethod
    def parameters(self, model: Model, centre: np.ndarray) -> dict[str, np.ndarray]:
        """The parameters in use, in the shapes that users know."""

    @abc.abstractmethod
    def moments_of(self, parameters: Parameters, centre: np.ndarray) -> Moments:
        """Moments from which `maximise` without shrinkage makes these parameters; mass 1 each."""

    @abc.abstractmethod
    def n_parameters(self, n_components: int) -> int:
        """Free parameters of K components, weights aside."""

    @abc.abstractmethod
    def sample(
        self, parameters: Parameters, component: int, n: int, random: RandomSource
    ) -> np.ndarray:
        """Draw n rows (n, D) of one component."""

    def empty_model(self, n_components: int) -> Model:
        """Arrays for K components."""
        layout = self.layout
        C, K = layout.n_coordinates, n_components
        n_factors = 1 if self.shared else K
        return Model(
            location=np.zeros((K, C)),
            factor=np.zeros((n_factors, layout.n_products)),
            linear=np.zeros((0, C)),
            tables=np.zeros((K, layout.n_levels)),
            log_normaliser=np.zeros(n_factors),
            log_mass=np.zeros(K),
            decay=np.array([1.0, 1.0, 0.0, -np.inf]),
        )
