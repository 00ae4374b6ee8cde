"""A mixture as the engine holds it: moments, and the model that their M-step made.

Moments are per unit of mass. The factor (1 - gamma) of a stochastic-approximation step then changes
the masses only, by one number for all components: a lazy but exact decay.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from pickmix.checks import check_restored
from pickmix.families.base import NO_MASS, Family, HeldOutRows, Prior
from pickmix.families.layout import (
    LOG_FLOOR,
    LOG_SCALE,
    SCALE,
    SQUARE_SCALE,
    Layout,
    Model,
    Moments,
    log_weights,
    merge_pairs,
)
from pickmix.kernels.statistics import Statistics
from pickmix.threads import run

# Components updated at a time. Temporary arrays of so many stay in the cache; those of all
# components would be new memory in every step.
_TOGETHER = 4096
_SMALLEST_SCALE = 1e-100  # Below this the lazy scale is folded into the masses.


class SingularCovarianceError(ValueError):
    """A component has no estimate: its covariance has no factorisation."""

    def __init__(self, reg_covar: float, count: int) -> None:
        super().__init__(
            f"{count} component(s) have a singular covariance at reg_covar={reg_covar!r}: too few "
            "distinct rows per component, or constant or dependent columns. Increase reg_covar, "
            "or decrease n_components."
        )


@dataclass(frozen=True)
class FrozenMixture:
    """The components of a mixture and their backend, as `search` needs them."""

    family: Family
    model: Model
    backend: ModuleType

    @property
    def layout(self) -> Layout:
        return self.family.layout


class MixtureState:
    """K components of a family under a prior. The state owns the moments, whose masses are weights.

    No component weighs less than `weight_floor`, so that a missed one can still be selected.
    """

    def __init__(
        self,
        family: Family,
        moments: Moments,
        backend: ModuleType,
        prior: Prior,
        weight_floor: float = 0.0,
    ) -> None:
        self.family = family
        self.moments = moments
        self.backend = backend
        self.prior = prior
        self.n_components = moments.mass.shape[0]
        self.model = family.empty_model(self.n_components)
        with np.errstate(divide="ignore"):
            self.model.log_mass[:] = family.layout.log_masses(moments)
            self.model.decay[LOG_FLOOR] = np.log(weight_floor)
        self.prior.pool(moments, moments.mass)
        all_components = np.arange(self.n_components, dtype=np.int32)
        #: Components that had no estimate when the state was made, (K,).
        self.failures = self._maximise(all_components)

    @property
    def layout(self) -> Layout:
        return self.family.layout

    @property
    def surveyed_columns(self) -> int:
        """Columns that relocation counts: so many rows per component it looks at."""
        most = self.family.most_surveyed
        return self.layout.n_columns if most is None else min(most, self.layout.n_columns)

    def _maximise(self, members: np.ndarray) -> np.ndarray:
        failures = np.empty(members.shape[0], dtype=np.bool_)

        def maximise(piece: slice) -> None:
            failures[piece] = self.family.maximise(
                self.moments, members[piece], self.prior, self.model, self.backend.COMPILED
            )

        self._run_pieces(maximise, members.shape[0])
        return failures

    def _run_pieces(self, work: Callable[[slice], None], n_members: int) -> None:
        """Call `work` on pieces of so many components, on threads if they are many."""
        if n_members <= _TOGETHER:
            work(slice(0, n_members))
            return

        def run_range(start: int, stop: int) -> None:
            for begin in range(_TOGETHER * start, min(_TOGETHER * stop, n_members), _TOGETHER):
                work(slice(begin, min(begin + _TOGETHER, n_members)))

        run(run_range, -(-n_members // _TOGETHER), 2.0 * n_members * self.layout.work())

    def require_sound(self) -> MixtureState:
        """Return the state, or raise if a component had no estimate when it was made."""
        if self.failures.any():
            reg_covar = self.family.reg_covar
            raise SingularCovarianceError(reg_covar, int(self.failures.sum()))
        return self

    @property
    def masses(self) -> np.ndarray:
        """Masses (K,), the decay applied."""
        return np.asarray(self.moments.mass * self.model.decay[SCALE])

    @property
    def floored_masses(self) -> np.ndarray:
        """Masses in use (K,): mixture weights of log-joints, unnormalised."""
        return np.asarray(np.exp(log_weights(self.model)))

    @property
    def weights(self) -> np.ndarray:
        """Mixture weights (K,), normalised."""
        masses = self.floored_masses
        return np.asarray(masses / masses.sum())

    def log_total(self) -> float:
        """Logarithm of the sum of the weights in use; log-joints exceed normalised ones by this."""
        return float(np.log(self.floored_masses.sum()))

    def effective_counts(self) -> np.ndarray:
        """Effective number of rows (K,) of components: (sum w)^2 / sum w^2."""
        mass = self.masses
        squares = self.moments.squares * self.model.decay[SQUARE_SCALE]
        counts = np.zeros_like(mass)
        return np.asarray(np.divide(mass * mass, squares, out=counts, where=squares > 0.0))

    def effective_rows(self, some: Any = slice(None)) -> np.ndarray:
        """Rows that each of some components accounts for, out of all rows."""
        return np.asarray(self.moments.mass[some] * self.model.decay[SCALE] * self.prior.n_rows)

    def positions(self) -> np.ndarray:
        """Positions (K, d) of the components for trees and cells."""
        return self.family.positions(self.model)

    def scales(self) -> np.ndarray:
        """Typical scales (d,) of a component along its positions."""
        return self.family.scales(self.prior)

    def pool(self) -> None:
        """Re-estimate the prior from the components."""
        self.prior.pool(self.moments, self.masses)

    def estimate_shrinkage(self, held_out: HeldOutRows) -> None:
        """Estimate the shrinkage of components."""
        self.prior.estimate_shrinkage(self.moments, self.masses, held_out)

    def with_components(self, moments: Moments, like: np.ndarray) -> MixtureState:
        """Other components, with the shrinkage of the components `like` (K',) of this state."""
        other = copy.copy(self)
        other.moments = moments
        other.prior = self.prior.take(like)
        other.n_components = moments.mass.shape[0]
        other.model = self.family.empty_model(other.n_components)
        with np.errstate(divide="ignore"):
            other.model.log_mass[:] = self.layout.log_masses(moments)
        other.model.decay[LOG_FLOOR] = self.model.decay[LOG_FLOOR]
        other.failures = other._maximise(np.arange(other.n_components, dtype=np.int32))
        return other

    def with_prior(self, prior: Prior) -> MixtureState:
        """The same components under another prior."""
        other = copy.copy(self)
        other.model = self.family.empty_model(self.n_components)
        other.model.log_mass[:], other.model.decay[:] = self.model.log_mass, self.model.decay
        other.take_prior(prior)
        return other

    def take_prior(self, prior: Prior) -> None:
        """Continue under another prior."""
        self.prior = prior
        self._maximise(np.arange(self.n_components, dtype=np.int32))

    def moments_at(self, components: np.ndarray) -> Moments:
        """Moments of some components, the decay applied."""
        moments = self.moments
        return Moments(
            moments.mass[components] * self.model.decay[SCALE],
            moments.squares[components] * self.model.decay[SQUARE_SCALE],
            moments.mean[components],
            self.layout.take(moments.scatter, components),
            moments.counts[components],
        )

    def merged(self, first: np.ndarray, second: np.ndarray) -> Moments:
        """Moments of pairs of components, each pair in one."""
        return merge_pairs(self.layout, self.moments_at(first), self.moments_at(second))

    def content(self) -> dict[str, Any]:
        """The state as arrays and numbers, not copied."""
        prior = self.prior.content()
        return {"moments": list(self.moments), "model": list(self.model), "prior": prior}

    def copied_content(self) -> dict[str, Any]:
        """The state as arrays and numbers of its own, to come back to."""
        moments, model = ([array.copy() for array in part] for part in (self.moments, self.model))
        return {"moments": moments, "model": model, "prior": self.prior.copy().content()}

    def restore(self, content: dict[str, Any]) -> None:
        """Take back the content of a state of as many components."""
        for name, part in (("moments", self.moments), ("model", self.model)):
            for array, kept in zip(part, content[name], strict=True):
                array[...] = check_restored(name, kept, array)
        self.prior = self.prior.copy()
        self.prior.restore(content["prior"])
        if not -1 <= self.prior.background < self.n_components:
            raise ValueError(f"background: expected a component, got {self.prior.background}")

    @classmethod
    def of_content(
        cls, family: Family, backend: ModuleType, shrinkage: str, content: dict[str, Any]
    ) -> MixtureState:
        """The state that had this content; `shrinkage` as in `Family.make_prior`."""
        K = np.shape(content["moments"][0])[0]
        empty, layout = family.empty_model(K), family.layout
        sizes = (K,), (K,), (K, layout.n_coordinates), empty.tables.shape
        mass, squares, mean, counts = (np.zeros(size) for size in sizes)
        scatter = np.zeros((K, layout.n_products))
        like = Moments(mass, squares, mean, scatter, counts)
        given = zip(content["moments"], like, strict=True)
        moments = Moments(*(check_restored("moments", a, b).copy() for a, b in given))
        prior = family.make_prior(moments, shrinkage, 1.0)
        state = cls(family, moments, backend, prior)
        state.restore(content)
        return state

    def with_content(self, content: dict[str, Any]) -> MixtureState:
        """The state with other components that had this content; see `with_components`."""
        moments = Moments(*(array.copy() for array in content["moments"]))
        other = self.with_components(moments, np.zeros(moments.mass.shape[0], dtype=np.int64))
        other.restore(content)
        return other

    def copy_from(self, components: np.ndarray, other: MixtureState, which: np.ndarray) -> None:
        """Replace `components` by the components `which` of another mixture."""
        own, its = self.model, other.model
        # All fields but the masses and their decay.
        for mine, theirs in zip(own[:-2], its[:-2], strict=True):
            # A shared factor is not copied; a family without a linear part has none.
            if mine.shape[0] == self.n_components and theirs.shape[0] == other.n_components:
                mine[components] = theirs[which]
        taken = other.moments_at(which)
        for mine, theirs in zip(self.moments[2:], taken[2:], strict=True):
            mine[components] = theirs
        self.moments.mass[components] = taken.mass / own.decay[SCALE]
        self.moments.squares[components] = taken.squares / own.decay[SQUARE_SCALE]
        self.prior.put(components, other.prior, which)
        with np.errstate(divide="ignore"):
            own.log_mass[components] = self.layout.log_masses(self.moments, components)

    def weigh(self, components: np.ndarray, mass: float) -> None:
        """Give components a mass, and parameters from their moments."""
        self.moments.mass[components] = mass / self.model.decay[SCALE]
        self.moments.squares[components] = mass * mass / self.model.decay[SQUARE_SCALE]
        self.model.log_mass[components] = self.layout.log_masses(self.moments, components)
        self._maximise(components.astype(np.int32))

    def decay(self, step_size: float) -> None:
        """Forget: multiply every mass by (1 - step_size), at the cost of one number."""
        decay = self.model.decay
        if step_size >= 1.0:
            self.moments.mass[:] = 0.0
            self.moments.squares[:] = 0.0
            self.model.log_mass[:] = -np.inf
            decay[[SCALE, SQUARE_SCALE, LOG_SCALE]] = 1.0, 1.0, 0.0
            return
        scale = float(decay[SCALE]) * (1.0 - step_size)
        decay[SCALE] = scale
        decay[SQUARE_SCALE] *= (1.0 - step_size) ** 2
        decay[LOG_SCALE] = math.log(scale)
        if scale < _SMALLEST_SCALE:
            self.moments.mass[:] *= scale
            self.moments.squares[:] *= decay[SQUARE_SCALE]
            with np.errstate(divide="ignore"):
                self.model.log_mass[:] = self.layout.log_masses(self.moments)
            decay[[SCALE, SQUARE_SCALE, LOG_SCALE]] = 1.0, 1.0, 0.0

    def absorb(self, statistics: Statistics, step_size: float) -> np.ndarray:
        """SA-step and M-step: s <- (1 - gamma) s + gamma s_batch for the components touched.

        Returns the components whose update had no estimate; their old parameters stay.
        """
        if not statistics.total_weight > 0.0:
            return np.empty(0, dtype=np.int32)
        share = step_size / statistics.total_weight
        self.decay(step_size)
        needs_gains = self.prior.needs_gains
        pieces: dict[int, tuple[np.ndarray, Any]] = {}

        def blend(piece: slice) -> None:
            added = statistics.at(piece)
            if not np.minimum.reduce(added.mass, initial=np.inf) * share > NO_MASS:
                added = added.at(np.flatnonzero(share * added.mass > NO_MASS))
            gains = self.backend.blend(
                self.layout, self.moments, self.model, added, share, needs_gains
            )
            pieces[piece.start] = added.members, gains

        self._run_pieces(blend, statistics.members.shape[0])
        # In a fixed order, whichever thread was first.
        touched, gains = zip(*(pieces[start] for start in sorted(pieces)), strict=True)
        if needs_gains:
            mass, squares, freedom, scatter = map(sum, zip(*gains, strict=True))
            self.prior.absorb(1.0 - step_size, mass, squares, freedom, np.asarray(scatter))
        members = np.concatenate(touched)
        failures = self._maximise(members)
        return members[failures] if failures.any() else members[:0]
