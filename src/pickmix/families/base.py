"""The contract of a family: what a component is, in closed form."""

from __future__ import annotations

import abc
import copy
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from pickmix.families.conditioning import Part
from pickmix.families.layout import Layout, Model, Moments
from pickmix.families.leave_one_out import Witnesses
from pickmix.threads import Threads

# Masses at or below this are none: their squares would leave float64.
NO_MASS = 1e-140

Parameters = Mapping[str, np.ndarray]
RandomSource = np.random.Generator | np.random.RandomState


class Prior(abc.ABC):
    """What components have in common, learnt from all of them, and how far each leans on it."""

    #: Rows behind all statistics together.
    n_rows: float
    #: The component that explains rows that belong nowhere; -1 if there is none.
    background: int = -1
    #: Whether components must choose before the first M-step, as after `resume`.
    undecided: bool = False

    @property
    def needs_gains(self) -> bool:
        """Whether `absorb` must be called after every update."""
        return False

    @property
    def chooses(self) -> bool:
        """Whether `choose` has a choice."""
        return False

    def allow_background(self, extent: np.ndarray) -> None:
        """Let a component become a background, of rows that reach so far (D,) from the centre."""
        return

    def resume(self) -> None:
        """Take moments as they are: parameters of components that have leaned already."""
        return

    def resume_background(self, component: int, moments: Moments) -> None:
        """Let a component be the background that its moments describe."""
        self.background = component

    @abc.abstractmethod
    def pool(self, moments: Moments, masses: np.ndarray) -> None:
        """Let the prior follow the components, whose masses (K,) are given as shares of all."""

    def absorb(
        self, kept: float, mass: Any, squares: Any, freedom: Any, scatter: np.ndarray
    ) -> None:
        """Take in the totals that an update added; it kept the share `kept` of the past."""
        raise TypeError(f"{type(self).__name__} learns nothing from a single update.")

    def choose(self, moments: Moments, masses: np.ndarray, witnesses: Witnesses) -> None:
        """Choose how far each component leans on the prior, by rows of its own; or all alike."""
        return

    def copy(self) -> Self:
        """A copy that learns on its own. Arrays are replaced, never written."""
        return copy.copy(self)

    def take(self, components: np.ndarray) -> Self:
        """The prior of other components, which lean on it as these do."""
        return self.copy()

    def put(self, components: np.ndarray, other: Self, which: np.ndarray) -> None:
        """Let components lean as the components `which` under another prior do."""
        return


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
        """Rows (B, D) where trees and cells look for them, (B, d)."""
        return rows

    # What the components are.

    @abc.abstractmethod
    def places(self, model: Model) -> np.ndarray:
        """Components where trees and cells look for them, (K, d)."""

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

    def falls(
        self,
        model: Model,
        prior: Prior,
        counts: np.ndarray,
        components: np.ndarray,
        log_densities: np.ndarray,
        weights: np.ndarray,
    ) -> np.ndarray:
        """What log p(x | k) falls by when component k is estimated without the row.

        counts (K,) are the effective rows of all components; components, log_densities and weights
        have one shape. By default a component's parameters cost one nat each, spread over its rows.
        """
        own = self.n_parameters(2) - self.n_parameters(1)
        return np.asarray(own * weights / np.maximum(counts[components], 1.0))

    def has_background(self, prior: Prior) -> bool:
        """Whether a component may become a background of rows that belong nowhere."""
        return False

    def background_log_densities(self, prior: Prior, rows: np.ndarray) -> np.ndarray:
        """log p(x | background) of rows (N, D), (N,)."""
        raise TypeError(f"{self.name!r} has no background.")

    @abc.abstractmethod
    def split(
        self, model: Model, moments: Moments, prior: Prior, uniforms: np.ndarray
    ) -> tuple[Moments, Moments]:
        """Moments of two halves of every component, apart along its widest direction.

        `uniforms` (K, d), for families that have no such direction. Each half has half the mass.
        """

    # What merging components costs.

    @abc.abstractmethod
    def negative_entropy(self, moments: Moments, shared: np.ndarray) -> np.ndarray:
        """Mean log-density (n,) of components with these moments under themselves.

        Terms that are linear in the moments are left out: a merge keeps their sum. So a merge of
        components with weights w_1 and w_2 costs w_1 S_1 + w_2 S_2 - (w_1 + w_2) S_merged, where S
        is what this function returns (Runnalls 2007, for Gaussians). `shared` (P,) is the
        covariance that all components share, for families with one.
        """

    @property
    def has_shared_parts(self) -> bool:
        """Whether parameters of a component depend on the others: merges then change them all."""
        return self.shared

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

    @abc.abstractmethod
    def parts(self, parameters: Parameters, centre: np.ndarray) -> list[Part]:
        """Groups of the user's columns that are independent given the component.

        `centre` (D,), in the order of the user's columns, is the origin of what parts return.
        """

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
