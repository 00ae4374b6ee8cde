"""The contract of a family: what a component is, in closed form."""

from __future__ import annotations

import abc
import copy
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from pickmix.checks import check_restored
from pickmix.families.conditioning import Part
from pickmix.families.layout import Layout, Model, Moments
from pickmix.families.leave_one_out import Witnesses
from pickmix.threads import Threads

NO_MASS = 1e-140  # Masses at or below this are none: their squares would leave float64.

Parameters = Mapping[str, np.ndarray]
RandomSource = np.random.Generator | np.random.RandomState


def check_not_negative(name: str, values: np.ndarray) -> None:
    """Raise if a parameter has a negative value."""
    if (values < 0.0).any():
        raise ValueError(
            f"{name} must not be negative, got a smallest value of {float(values.min())!r}."
        )


class Prior(abc.ABC):
    """Parameters that components share, and the shrinkage of each component towards them."""

    n_rows: float  # Rows behind all statistics together.
    background: int = -1  # The component of outlying rows; -1 if there is none.
    undecided: bool = False  # Whether `choose` is due before the first M-step.

    @property
    def needs_gains(self) -> bool:
        """Whether `absorb` must be called after every update."""
        return False

    @property
    def chooses(self) -> bool:
        """Whether `choose` has an effect."""
        return False

    def allow_background(self, extent: np.ndarray) -> None:
        """Allow a background component, for rows up to `extent` (D,) from the centre."""
        return

    def resume(self) -> None:
        """Take moments as they are: those of parameters that have been shrunk already."""
        return

    def resume_background(self, component: int, moments: Moments) -> None:
        """Make a component the background that its moments describe."""
        self.background = component

    @abc.abstractmethod
    def pool(self, moments: Moments, masses: np.ndarray) -> None:
        """Re-estimate the shared parameters from components of masses (K,), shares of all."""

    def absorb(
        self, kept: float, mass: Any, squares: Any, freedom: Any, scatter: np.ndarray
    ) -> None:
        """Add the totals of an update, which kept the share `kept` of the past."""
        raise TypeError(f"{type(self).__name__} learns nothing from a single update.")

    def choose(self, moments: Moments, masses: np.ndarray, witnesses: Witnesses) -> None:
        """Estimate the shrinkage of each component from rows assigned to it."""
        return

    def copy(self) -> Self:
        """An independent copy. Arrays are replaced, never written."""
        return copy.copy(self)

    def content(self) -> dict[str, Any]:
        """What has been learnt, as arrays and numbers."""
        kept = (np.ndarray, np.generic, bool, int, float)
        return {name: value for name, value in vars(self).items() if isinstance(value, kept)}

    def restore(self, content: dict[str, Any]) -> None:
        """Take back the content of a prior of as many components."""
        for name in vars(self).keys() | {"n_rows", "background", "undecided"}:
            value = getattr(self, name)
            if isinstance(value, np.ndarray):
                setattr(self, name, check_restored(name, content[name], value).copy())
            elif name in content:
                setattr(self, name, type(value)(content[name]))

    def take(self, components: np.ndarray) -> Self:
        """The prior of these components, with their shrinkage."""
        return self.copy()

    def put(self, components: np.ndarray, other: Self, which: np.ndarray) -> None:
        """Give components the shrinkage that the components `which` have under another prior."""
        return


class Family(abc.ABC):
    """A feature map and an M-step: all knowledge about a family is in its file."""

    name: str  # The user's name for it.
    shared: bool = False  # True if all components share one factor.
    layout: Layout
    #: Column i of the sweep's rows is column column_order[i] of the user's; None if all are in
    #: place. `check` takes the user's rows, everything else the sweep's.
    column_order: np.ndarray | None = None

    # Features.

    def centre(self, mean: np.ndarray) -> np.ndarray:
        """Origin (D,) of the coordinates that the sweep sees, for rows with this mean."""
        return mean

    def check(self, rows: np.ndarray, columns: Sequence[int] | None = None) -> str | None:
        """The first invalid cell of rows (N, D) as text, or None; `columns` (D,) are numbers."""
        return None

    def log_base(self, rows: np.ndarray) -> np.ndarray | None:
        """The part of log p(x) without parameters, (N,), of uncentred rows; None if 0."""
        return None

    def row_places(self, rows: np.ndarray) -> np.ndarray:
        """Positions (B, d) of rows (B, D) for trees and cells."""
        return rows

    def limits(self) -> np.ndarray:
        """Largest values of the user's columns (D,) that parameters depend on, else 0.

        Together with `name` they identify the family: a constructor in the registry makes it again.
        """
        return np.zeros(self.layout.n_columns)

    def column_groups(self) -> list[tuple[Family, np.ndarray]] | None:
        """Families of groups of the user's columns, if this is a product."""
        return None

    @property
    def takes_noise(self) -> bool:
        """Whether rows may have Gaussian noise of known covariance."""
        return False

    # Components.

    @abc.abstractmethod
    def places(self, model: Model) -> np.ndarray:
        """Positions (K, d) of components for trees and cells."""

    @abc.abstractmethod
    def widths(self, prior: Prior) -> np.ndarray:
        """Typical scales (d,) of a component along its positions."""

    @abc.abstractmethod
    def make_prior(self, moments: Moments, shrinkage: str, n_rows: float) -> Prior:
        """Prior for components with these moments.

        `shrinkage` is "none" (maximum likelihood), "few" (components of few rows are shrunk towards
        the others) or "pooled" (all are, by as much as they have in common).
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

        Returns flags (U,) of components without an estimate; their old parameters stay. With
        `threads` the work is compiled and spread over them, otherwise done in NumPy.
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
        """Decrease of log p(x | k) when component k is estimated without the row.

        counts (K,) are effective rows; components, log_densities and weights have one shape. By
        default a component's parameters cost one nat each, spread over its rows.
        """
        own = self.n_parameters(2) - self.n_parameters(1)
        return np.asarray(own * weights / np.maximum(counts[components], 1.0))

    def has_background(self, prior: Prior) -> bool:
        """Whether a component may become a background of outlying rows."""
        return False

    def background_log_densities(self, prior: Prior, rows: np.ndarray) -> np.ndarray:
        """log p(x | background) of rows (N, D), (N,)."""
        raise TypeError(f"{self.name!r} has no background.")

    @abc.abstractmethod
    def split(
        self, model: Model, moments: Moments, prior: Prior, uniforms: np.ndarray
    ) -> tuple[Moments, Moments]:
        """Moments of two halves of every component, of half its mass, along its widest direction.

        `uniforms` (K, d) serve families that have no such direction.
        """

    # Costs of merges.

    @abc.abstractmethod
    def negative_entropy(self, moments: Moments, shared: np.ndarray) -> np.ndarray:
        """Mean log-density (n,) of components with these moments under themselves.

        Without terms that are linear in the moments, whose sum a merge keeps. A merge of components
        of weights w_1 and w_2 costs w_1 S_1 + w_2 S_2 - (w_1 + w_2) S_merged, where S is this
        function (Runnalls 2007, for Gaussians). `shared` (P,) is the covariance that all components
        share, if any.
        """

    @property
    def has_shared_parts(self) -> bool:
        """Whether parameters depend on other components: merges then change them all."""
        return self.shared

    # Parameters and draws in the user's terms.

    @abc.abstractmethod
    def parameters(self, model: Model, centre: np.ndarray) -> dict[str, np.ndarray]:
        """The parameters in use, in the user's shapes."""

    @abc.abstractmethod
    def moments_of(self, parameters: Parameters, centre: np.ndarray) -> Moments:
        """Moments, of mass 1, from which `maximise` without shrinkage makes these parameters."""

    def join_parameters(self, parts: Sequence[Parameters]) -> dict[str, np.ndarray]:
        """Join the parameters of all groups of columns."""
        (parameters,) = parts
        return dict(parameters)

    def parameter_shapes(self, n_components: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters of K components, by name."""
        with np.errstate(all="ignore"):
            model, centre = self.empty_model(n_components), np.zeros(self.layout.n_columns)
            return {name: array.shape for name, array in self.parameters(model, centre).items()}

    def check_parameters(self, parameters: Parameters, prefix: str = "") -> None:
        """Raise a ValueError that names an invalid parameter; `prefix` begins its name.

        Shapes and finiteness are checked before.
        """
        return

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
        layout = self.layout
        C, K = layout.n_coordinates, n_components
        n_factors = 1 if self.shared else K
        return Model(
            location=np.zeros((K, C)),
            factor=np.zeros((n_factors, layout.n_products)),
            linear=np.zeros((0, C)),
            constants=np.zeros((0, C)),
            tables=np.zeros((K, layout.n_levels)),
            log_normaliser=np.zeros(n_factors),
            log_mass=np.zeros(K),
            decay=np.array([1.0, 1.0, 0.0, -np.inf]),
        )
