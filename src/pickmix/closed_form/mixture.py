"""A Gaussian mixture as the closed-form engine holds it: parameters that are their statistics.

For a component with s0 = sum of weights, the mean and the covariance about it carry the same
information as the sums of x and x x', and nothing cancels for data far from the origin. The
common factor (1 - gamma) of a stochastic-approximation step leaves means and covariances alone,
so it is applied to the masses only, as one global scale: a lazy but exact decay.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np

from pickmix.closed_form import statistics
from pickmix.closed_form.operations import LOG_FLOOR, LOG_SCALE, SCALE, SQUARE_SCALE
from pickmix.closed_form.structures import CovarianceStructure
from pickmix.threads import Threads

# Below this the lazy scale is folded into the masses, long before it could underflow.
_SMALLEST_SCALE = 1e-100
# Pseudo-rows of the prior on covariances before the components have been asked.
PRIOR_COUNT = 10.0
# Components that tell how much a prior on covariances should weigh, and how often they are asked.
_JUDGED = 200
_POOLINGS_PER_CHOICE = 5


class SingularCovarianceError(ValueError):
    """A covariance has no factorisation."""

    def __init__(self, reg_covar: float, count: int) -> None:
        super().__init__(
            f"{count} component(s) have a singular covariance at reg_covar={reg_covar!r}: too few "
            "distinct rows per component, or constant or dependent columns. Increase reg_covar, "
            "or decrease n_components."
        )


class GaussianMixtureState:
    """Masses, means and covariances of K Gaussian components, with factors ready to evaluate.

    Parameters
    ----------
    structure : CovarianceStructure
    weights : (K,) array
    means : (K, D) array
        In coordinates centred on the data.
    covariances : (K, P) or (1, P) array
        Packed; `reg_covar` is added to their diagonals where they are used.
    reg_covar : float
    weight_floor : float
        No component weighs less than this, so that a missed one can still be selected.
    effective_counts : (K,) array, optional
        Effective number of rows behind each component's start.
    least_count : float
        Components with fewer effective rows lean on the pooled covariance; 0 switches that off.
    prior_count : float
        Pseudo-rows with the shape of the pooled covariance, in the component's own size, that are
        added to every covariance. If there are any, `least_count` is not used, and the pooled
        covariance and the number of pseudo-rows follow the components when `pool` is called.
    n_rows : float
        Rows behind all statistics together; for the prior only.
    """

    def __init__(
        self,
        structure: CovarianceStructure,
        weights: np.ndarray,
        means: np.ndarray,
        covariances: np.ndarray,
        reg_covar: float,
        weight_floor: float = 0.0,
        effective_counts: np.ndarray | None = None,
        least_count: float = 0.0,
        threads: Threads | None = None,
        prior_count: float = 0.0,
        n_rows: float = 0.0,
    ) -> None:
        self.structure = structure
        self.least_count = least_count
        self.prior_count = prior_count
        self.n_rows = n_rows
        self.reg_covar = reg_covar
        self.n_components, self.n_features = means.shape
        self.n_factors = 1 if structure.shared else self.n_components
        self.layout = structure.layout_class(self.n_features)
        self.threads = threads if threads is not None else Threads()
        counts = effective_counts
        if counts is None:
            counts = np.full(self.n_components, self.n_features + 1.0)
        with np.errstate(divide="ignore"):
            log_mass = np.log(weights)
            log_floor = float(np.log(weight_floor))
        self.model: Any = structure.model_class(
            mean=np.array(means, dtype=np.float64, order="C"),
            covariance=np.array(covariances, dtype=np.float64, order="C"),
            factor=np.empty((self.n_factors, structure.packed_size)),
            log_normaliser=np.empty(self.n_factors),
            mass=np.array(weights, dtype=np.float64),
            squares=np.square(weights) / np.maximum(counts, 1e-300),
            log_mass=log_mass,
            clock=np.array([1.0, 1.0, 0.0, log_floor]),
        )
        mass, squares = self.model.mass, self.model.squares
        freedom = mass - np.divide(squares, mass, out=np.zeros_like(mass), where=mass > 0.0)
        self._pooled_totals = np.array([mass.sum(), squares.sum(), freedom.sum()])
        if structure.shared:
            self.pooled = self.model.covariance[0]
        else:
            self.pooled = mass @ self.model.covariance / mass.sum()
        self._pooled_scatter = self.pooled * self._pooled_totals[2 if least_count > 0.0 else 0]
        self._trace_weights = np.ones(structure.packed_size)
        self._pooled_times = 0
        if prior_count > 0.0:
            self.pool()
        self._factorise_all()

    def pool(self) -> None:
        """Let the pooled covariance follow the components', by shape (see `pool_shapes`)."""
        if self.structure.shared or self.prior_count == 0.0:
            return
        unit = self.structure.pack_matrices(np.eye(self.n_features)[None])[0]
        # No direction in which all components are flat.
        floor = self.reg_covar + 1e-10 * float(self.pooled @ unit) / float(unit @ unit) + 1e-280
        self._trace_weights = self.structure.trace_weights(self.pooled + floor * unit)
        pooled = np.empty_like(self.pooled)
        masses = self.model.mass * self.model.clock[SCALE]
        if statistics.pool_shapes(
            self.model.covariance, masses, self.n_rows, self._trace_weights, pooled
        ):
            self.pooled = pooled
            self._trace_weights = self.structure.trace_weights(pooled + floor * unit)
            self._choose_prior_count(floor * unit)

    def _choose_prior_count(self, floor: np.ndarray) -> None:
        """Empirical Bayes: the pseudo-rows under which the covariances are most probable.

        Few if components have shapes of their own, many if they are alike.
        """
        self._pooled_times += 1
        if self._pooled_times % _POOLINGS_PER_CHOICE != 1:
            return
        masses = self.model.mass * self.model.clock[SCALE]
        some = np.linspace(0, self.n_components - 1, min(_JUDGED, self.n_components)).astype(int)
        counts = masses[some] * self.n_rows - 1.0
        some, counts = some[counts > 1.0], counts[counts > 1.0]
        if some.shape[0] < 3:
            return
        covariances = self.model.covariance[some] * (1.0 + 1.0 / counts)[:, None] + floor
        sizes = covariances @ self._trace_weights
        targets = sizes[:, None] * (self.pooled + floor)
        candidates = self.structure.prior_counts()
        evidence = [
            self.structure.log_evidence(covariances, counts, targets, candidate)
            for candidate in candidates
        ]
        self.prior_count = float(candidates[int(np.argmax(evidence))])

    def prior_arguments(self) -> tuple[np.ndarray, tuple[float, float], np.ndarray]:
        """The prior on covariances, as kernels take it."""
        return self.pooled, (float(self.prior_count), float(self.n_rows)), self._trace_weights

    def _factorise_all(self) -> None:
        failures = np.empty(self.n_factors, dtype=np.int64)
        work = float(self.n_factors * self.structure.packed_size * self.n_features)
        self.threads.run(
            statistics.factorise_components,
            self.n_factors,
            work,
            self.model,
            *self.prior_arguments(),
            self.reg_covar,
            failures,
        )
        if failures.any():
            raise SingularCovarianceError(self.reg_covar, int(failures.sum()))

    @property
    def floored_masses(self) -> np.ndarray:
        """Masses in use, (K,): what `log_joint` counts as mixture weights, unnormalised."""
        clock = self.model.clock
        return np.maximum(self.model.mass * clock[SCALE], np.exp(clock[LOG_FLOOR]))

    @property
    def weights(self) -> np.ndarray:
        """Mixture weights (K,), normalised."""
        masses = self.floored_masses
        return masses / masses.sum()

    def effective_counts(self) -> np.ndarray:
        """Effective number of rows behind each component: (sum w)^2 / sum w^2."""
        clock = self.model.clock
        mass = self.model.mass * clock[SCALE]
        squares = self.model.squares * clock[SQUARE_SCALE]
        return np.divide(mass * mass, squares, out=np.zeros_like(mass), where=squares > 0.0)

    def covariances_in_use(self) -> np.ndarray:
        """Packed covariances that the factors stand for, reg_covar included."""
        return self.structure.covariance_of_factor(self.model.factor)

    def like(
        self, weights: np.ndarray, means: np.ndarray, covariances: np.ndarray
    ) -> GaussianMixtureState:
        """Other components under the same prior, weight floor and pooled covariance.

        Their weights are as they are, in units of this mixture's.
        """
        other = copy.copy(self)
        other.n_components = means.shape[0]
        other.n_factors = 1 if self.structure.shared else other.n_components
        with np.errstate(divide="ignore"):
            log_mass = np.log(weights)
        other.model = self.structure.model_class(
            mean=np.ascontiguousarray(means),
            covariance=covariances.copy(),
            factor=np.empty((other.n_factors, self.structure.packed_size)),
            log_normaliser=np.empty(other.n_factors),
            mass=weights.copy(),
            squares=np.square(weights) / max(self.n_rows, 1.0),
            log_mass=log_mass,
            clock=np.array([1.0, 1.0, 0.0, self.model.clock[LOG_FLOOR]]),
        )
        # A shared covariance is the pooled one: the same memory.
        other.pooled = other.model.covariance[0] if self.structure.shared else self.pooled.copy()
        other._pooled_scatter = self._pooled_scatter.copy()
        other._pooled_totals = self._pooled_totals.copy()
        other._factorise_all()
        return other

    def remember(self) -> dict[str, np.ndarray]:
        """Everything that `recall` needs to come back to the present parameters."""
        kept = {name: getattr(self.model, name).copy() for name in self.model._fields}
        kept["pooled"] = self.pooled.copy()
        return kept

    def recall(self, kept: dict[str, np.ndarray]) -> None:
        """Come back to the parameters of a former `remember`."""
        for name in self.model._fields:
            getattr(self.model, name)[...] = kept[name]
        self.pooled[...] = kept["pooled"]

    def pooled_matrix(self) -> np.ndarray:
        """The pooled covariance in use, (D, D)."""
        matrix = self.structure.unpack_pooled(self.pooled)
        return matrix + self.reg_covar * np.eye(self.n_features)

    def widths(self) -> np.ndarray:
        """Typical widths of a component along the columns, (D,)."""
        diagonal = np.diagonal(self.pooled_matrix())
        return np.sqrt(np.maximum(diagonal, 1e-12 * diagonal.max() + 1e-280))

    def take(self, components: np.ndarray, other: GaussianMixtureState, which: np.ndarray) -> None:
        """Let `components` become the components `which` of another mixture."""
        own, its = self.model, other.model
        own.mean[components] = its.mean[which]
        if not self.structure.shared:
            for name in ("covariance", "factor", "log_normaliser"):
                getattr(own, name)[components] = getattr(its, name)[which]
        own.mass[components] = its.mass[which] * its.clock[SCALE] / own.clock[SCALE]
        squares = its.squares[which] * its.clock[SQUARE_SCALE]
        own.squares[components] = squares / own.clock[SQUARE_SCALE]
        with np.errstate(divide="ignore"):
            own.log_mass[components] = np.log(own.mass[components])

    def decay(self, step_size: float) -> None:
        """Forget: multiply every mass by (1 - step_size), at the cost of one number."""
        clock = self.model.clock
        if step_size >= 1.0:
            self.model.mass[:] = 0.0
            self.model.squares[:] = 0.0
            self.model.log_mass[:] = -np.inf
            clock[[SCALE, SQUARE_SCALE, LOG_SCALE]] = 1.0, 1.0, 0.0
            return
        scale = float(clock[SCALE]) * (1.0 - step_size)
        clock[SCALE] = scale
        clock[SQUARE_SCALE] *= (1.0 - step_size) ** 2
        clock[LOG_SCALE] = math.log(scale)
        if scale < _SMALLEST_SCALE:
            self._fold_scale()

    def _fold_scale(self) -> None:
        clock = self.model.clock
        np.multiply(self.model.mass, clock[SCALE], out=self.model.mass)
        np.multiply(self.model.squares, clock[SQUARE_SCALE], out=self.model.squares)
        with np.errstate(divide="ignore"):
            np.log(self.model.mass, out=self.model.log_mass)
        clock[[SCALE, SQUARE_SCALE, LOG_SCALE]] = 1.0, 1.0, 0.0

    def absorb(self, increment: Increment, step_size: float) -> int:
        """SA-step and M-step: s <- (1 - gamma) s + gamma s_batch for the touched components.

        Returns the number of updates that had to be refused as singular.
        """
        total_weight = increment.total_weight
        if not total_weight > 0.0:
            return 0
        self.decay(step_size)
        n_slots = increment.n_slots
        failures = increment.failures[:n_slots]
        share = step_size / total_weight
        per_slot = self.structure.packed_size * (self.n_features + 10.0)
        self.threads.run(
            statistics.absorb,
            n_slots,
            n_slots * per_slot,
            self.model,
            increment.slot_component,
            increment.sums,
            share,
            self.pooled,
            self.least_count,
            *self.prior_arguments()[1:],
            self.reg_covar,
            increment.freedom_gains,
            failures,
        )
        if self.prior_count > 0.0 and not self.structure.shared:
            return int(np.count_nonzero(failures))
        before = self.pooled.copy() if self.structure.shared else self.pooled
        statistics.absorb_pooled(
            increment.sums,
            increment.freedom_gains,
            n_slots,
            share,
            1.0 - step_size,
            self.least_count,
            self._pooled_scatter,
            self._pooled_totals,
            self.pooled,
        )
        n_failures = int(np.count_nonzero(failures))
        if self.structure.shared:
            failed = np.empty(1, dtype=np.int64)
            statistics.factorise_components(
                self.model, *self.prior_arguments(), self.reg_covar, failed, 0, 1
            )
            if failed[0]:
                self.pooled[:] = before
                n_failures += 1
        return n_failures


class Increment:
    """The additive, sparse update of one batch: moments of the selected pairs, per component.

    Blocks of rows add to it one after another, and what it costs is proportional to the number
    of components touched, never to K.
    """

    def __init__(self, state: GaussianMixtureState, n_slots: int) -> None:
        self.state = state
        self.capacity = min(n_slots, state.n_components)
        self.slot_of = np.full(state.n_components, -1, dtype=np.int32)
        self.slot_component = np.empty(self.capacity, dtype=np.int32)
        self.sums = (
            np.zeros(self.capacity),
            np.zeros(self.capacity),
            np.empty((self.capacity, state.n_features)),
            np.empty((self.capacity, state.structure.packed_size)),
        )
        self._offsets = np.empty(self.capacity + 2, dtype=np.int64)
        self._pair_row = np.empty(0, dtype=np.int64)
        self._pair_weight = np.empty(0)
        self.freedom_gains = np.empty(self.capacity)
        self.failures = np.empty(self.capacity, dtype=np.int64)
        self.n_slots = 0
        self.total_weight = 0.0

    def clear(self) -> None:
        """Begin a new batch."""
        statistics.clear_slots(self.slot_of, self.slot_component, self.sums, self.n_slots)
        self.n_slots = 0
        self.total_weight = 0.0

    def add_pairs(
        self,
        rows: np.ndarray,
        row_weights: np.ndarray,
        total_weight: float,
        components: np.ndarray,
        weights: np.ndarray,
    ) -> None:
        """Add the pairs (row, components[row, j], weights[row, j]); component -1 is no pair.

        rows (B, D), row_weights (B,) of which as many rows weigh total_weight on average,
        components and weights (B, W).
        """
        if self._pair_row.shape[0] < components.size:
            self._pair_row = np.empty(components.size, dtype=np.int64)
            self._pair_weight = np.empty(components.size)
        self.n_slots = statistics.group_by_component(
            components,
            weights,
            row_weights,
            self.slot_of,
            self.slot_component,
            self.n_slots,
            self._offsets,
            self._pair_row,
            self._pair_weight,
        )
        work = components.size * (self.state.structure.packed_size + 3.0 * self.state.n_features)
        self.state.threads.run(
            statistics.accumulate_pairs,
            self.n_slots,
            work,
            self.state.layout,
            rows,
            self._offsets,
            self._pair_row,
            self._pair_weight,
            self.sums,
        )
        self.total_weight += total_weight

    def add_all(
        self,
        columns: np.ndarray,
        row_weights: np.ndarray,
        total_weight: float,
        responsibilities: np.ndarray,
    ) -> None:
        """Add every row to every component, weighted by responsibilities (K, R)."""
        if self.n_slots == 0:
            self.n_slots = self.state.n_components
            self.slot_component[:] = np.arange(self.n_slots)
            self.slot_of[:] = self.slot_component
        self.state.threads.run(
            statistics.accumulate_all,
            self.n_slots,
            float(responsibilities.size * self.state.structure.packed_size),
            self.state.layout,
            columns,
            row_weights,
            responsibilities,
            self.sums,
        )
        self.total_weight += total_weight

    def add_moments(self, members: np.ndarray, moments: Any, total_weight: float) -> None:
        """Add moments (mass, squares, mean, scatter) that stand in the order of `members`."""
        self.n_slots = statistics.add_moments(
            self.state.layout,
            members,
            moments,
            self.slot_of,
            self.slot_component,
            self.n_slots,
            self.sums,
        )
        self.total_weight += total_weight

    def gathered(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Mass (K,), squares (K,), mean (K, D) and scatter (K, P); zero where nothing was added."""
        n_components = self.state.n_components
        touched = self.slot_component[: self.n_slots]
        dense = []
        for values in self.sums:
            out = np.zeros((n_components, *values.shape[1:]))
            out[touched] = values[: self.n_slots]
            dense.append(out)
        return tuple(dense)  # type: ignore[return-value]
