"""Proposal distributions q(z | z_bar) of the Metropolis-Hastings chain over components.

A proposal is *independent* when q does not depend on z_bar; then all M candidates of a
visit are drawn, and their log-joints evaluated, at once.
"""

from __future__ import annotations

import abc

import numpy as np

from pickmix.compiled import kernel, part
from pickmix.selection.randomness import StepRandomness, Stream, uniform


class Proposal(abc.ABC):
    """Where the chain of each row may go next. Subclass it to bring your own.

    A subclass draws candidates for a batch of rows and says how likely they were. All
    randomness should come from `random`, so that results do not depend on threads.

    Examples
    --------
    A walk on a ring of components, which prefers neighbours:

    >>> class Ring(Proposal):
    ...     independent = False
    ...     def propose(self, rows, current, n_draws, first_draw, random):
    ...         u = random.uniforms(Stream.PROPOSAL, rows, 1, first_draw)
    ...         step = np.where(u < 0.5, -1, 1)
    ...         candidates = (current[:, None] + step) % self.n_components
    ...         log_q = np.zeros(candidates.shape)      # symmetric
    ...         return candidates, log_q, log_q[:, 0]
    """

    #: True if q(z | z_bar) = q(z): `propose` may be asked for several draws at once.
    independent: bool = True
    #: True spares the check of every candidate. A wrong candidate of a trusted proposal crashes.
    trusted: bool = False

    def start(self, n_rows: int, n_components: int) -> None:
        """Begin a fit: forget everything learnt about rows."""
        self.n_rows = n_rows
        self.n_components = n_components

    @abc.abstractmethod
    def propose(
        self,
        rows: np.ndarray,
        current: np.ndarray,
        n_draws: int,
        first_draw: int,
        random: StepRandomness,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw candidates.

        Parameters
        ----------
        rows : (B,) int array
            Row numbers.
        current : (B,) int array
            z_bar of each row.
        n_draws, first_draw : int
            How many candidates per row (1 unless `independent`), and the number of the first.
        random : StepRandomness
            The randomness of this step.

        Returns
        -------
        candidates : (B, n_draws) int array
        log_q : (B, n_draws) array
            log q(candidate | current), up to a constant shared with the next.
        log_q_current : (B,) array
            log q(current | candidate).
        """

    def observe(self, rows: np.ndarray, states: np.ndarray, step_size: float) -> None:  # noqa: B027
        """Learn from the chain states (B, M) that the rows visited. Does nothing by default."""


def propose_checked(
    proposal: Proposal,
    rows: np.ndarray,
    current: np.ndarray,
    n_draws: int,
    first_draw: int,
    random: StepRandomness,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ask a proposal, and check what it says unless it is ours: kernels trust indices."""
    candidates, log_q, log_q_current = proposal.propose(rows, current, n_draws, first_draw, random)
    if proposal.trusted:
        return candidates, log_q, log_q_current
    name = type(proposal).__name__
    shape = (rows.shape[0], n_draws)
    n_components = proposal.n_components
    candidates = np.asarray(candidates)
    if candidates.shape != shape or not np.issubdtype(candidates.dtype, np.integer):
        raise ValueError(
            f"{name}.propose must return integer candidates of shape {shape}, got "
            f"{candidates.dtype} of shape {candidates.shape}."
        )
    if candidates.min() < 0 or candidates.max() >= n_components:
        raise ValueError(
            f"{name}.propose must return candidates in [0, {n_components}), got values from "
            f"{candidates.min()} to {candidates.max()}."
        )
    if not (np.isfinite(log_q).all() and np.isfinite(log_q_current).all()):
        raise ValueError(f"{name}.propose must return finite log q, got NaN or infinity.")
    log_q = np.ascontiguousarray(np.broadcast_to(log_q, shape), dtype=np.float64)
    log_q_current = np.array(np.broadcast_to(log_q_current, shape[:1]), dtype=np.float64)
    return np.ascontiguousarray(candidates, dtype=np.int32), log_q, log_q_current


@kernel()
def _draw_uniformly(rows, n_components, key, first_draw, candidates):
    for i in range(candidates.shape[0]):
        for j in range(candidates.shape[1]):
            k = int(uniform(key, rows[i], first_draw + j) * n_components)
            candidates[i, j] = min(k, n_components - 1)


class UniformProposal(Proposal):
    """q(z) = 1/K (the paper's U): free, but accepted about once in K draws."""

    trusted = True

    def propose(self, rows, current, n_draws, first_draw, random):
        """Draw every candidate uniformly from all components."""
        candidates = np.empty((rows.shape[0], n_draws), dtype=np.int32)
        key = random.key(Stream.PROPOSAL)
        _draw_uniformly(rows, self.n_components, key, first_draw, candidates)
        return candidates, np.zeros(candidates.shape), np.zeros(rows.shape[0])


@part()
def _find(entry_component, entry_next, entry, component):
    while entry >= 0 and entry_component[entry] != component:
        entry = entry_next[entry]
    return entry


@kernel()
def _draw_from_table(
    rows,
    current,
    n_components,
    head,
    excess_total,
    entry_component,
    entry_excess,
    entry_next,
    key,
    first_draw,
    candidates,
    log_q,
    log_q_current,
):
    """Sample n_k / sum n: mass 1 spread uniformly, plus the excess of the stored entries."""
    start_value = 1.0 / n_components
    for i in range(rows.shape[0]):
        row = rows[i]
        total = 1.0 + excess_total[row]
        entry = _find(entry_component, entry_next, head[row], current[i])
        value = start_value + (entry_excess[entry] if entry >= 0 else 0.0)
        log_q_current[i] = np.log(value / total)
        for j in range(candidates.shape[1]):
            target = uniform(key, row, first_draw + j) * total
            if target < 1.0:
                k = min(int(target * n_components), n_components - 1)
                entry = _find(entry_component, entry_next, head[row], k)
            else:
                target -= 1.0
                entry = head[row]
                # Rounding may carry the target past the last entry: then it is the last.
                while entry_next[entry] >= 0 and target >= entry_excess[entry]:
                    target -= entry_excess[entry]
                    entry = entry_next[entry]
                k = entry_component[entry]
            value = start_value + (entry_excess[entry] if entry >= 0 else 0.0)
            candidates[i, j] = k
            log_q[i, j] = np.log(value / total)


@kernel()
def _update_table(
    rows, states, n_used, decay, gain, head, excess_total, entry_component, entry_excess, entry_next
):
    """excess <- decay * excess + gain for every visited (row, component), adding new entries."""
    for i in range(rows.shape[0]):
        row = rows[i]
        for j in range(states.shape[1]):
            k = states[i, j]
            entry = _find(entry_component, entry_next, head[row], k)
            if entry < 0:
                entry = n_used
                n_used += 1
                entry_component[entry] = k
                entry_excess[entry] = 0.0
                entry_next[entry] = head[row]
                head[row] = entry
            updated = decay * entry_excess[entry] + gain
            excess_total[row] += updated - entry_excess[entry]
            entry_excess[entry] = updated
    return n_used


class _TableProposal(Proposal):
    """q(z) = n_z / sum_k n_k with a table n per row, n_k = 1/K before the first visit.

    Both of the paper's tables only ever raise an entry above its start value, so n is the
    uniform distribution plus a non-negative *excess* on visited components. Only visited
    entries are stored, as a linked list per row in one growing pool.
    """

    trusted = True

    def start(self, n_rows: int, n_components: int) -> None:
        """Begin a fit with empty tables."""
        super().start(n_rows, n_components)
        self._head = np.full(n_rows, -1, dtype=np.int64)
        self._excess_total = np.zeros(n_rows)
        self._n_used = 0
        self._component = np.empty(0, dtype=np.int32)
        self._excess = np.empty(0)
        self._next = np.empty(0, dtype=np.int64)
        self._reserve(max(1024, n_rows))

    def _reserve(self, capacity: int) -> None:
        component = np.empty(capacity, dtype=np.int32)
        excess = np.empty(capacity)
        following = np.empty(capacity, dtype=np.int64)
        component[: self._n_used] = self._component[: self._n_used]
        excess[: self._n_used] = self._excess[: self._n_used]
        following[: self._n_used] = self._next[: self._n_used]
        self._component, self._excess, self._next = component, excess, following

    @property
    def n_stored(self) -> int:
        """Number of table entries that left their start value."""
        return self._n_used

    def propose(self, rows, current, n_draws, first_draw, random):
        """Draw from the rows' own tables."""
        candidates = np.empty((rows.shape[0], n_draws), dtype=np.int32)
        log_q = np.empty(candidates.shape)
        log_q_current = np.empty(rows.shape[0])
        _draw_from_table(
            rows,
            current,
            self.n_components,
            self._head,
            self._excess_total,
            self._component,
            self._excess,
            self._next,
            random.key(Stream.PROPOSAL),
            first_draw,
            candidates,
            log_q,
            log_q_current,
        )
        return candidates, log_q, log_q_current

    def _raise_visited(
        self, rows: np.ndarray, states: np.ndarray, decay: float, gain: float
    ) -> None:
        needed = self._n_used + states.size
        if needed > self._component.shape[0]:
            self._reserve(max(needed, 2 * self._component.shape[0]))
        self._n_used = _update_table(
            rows,
            states,
            self._n_used,
            decay,
            gain,
            self._head,
            self._excess_total,
            self._component,
            self._excess,
            self._next,
        )


class TableProposal(_TableProposal):
    """q(z) = running mean of the row's visits, one uniform visit included (the paper's T).

    It proposes where the chain has been, so it sticks. Kept for the paper's comparison.
    """

    def observe(self, rows, states, step_size):
        """Count the visits."""
        self._raise_visited(rows, states, 1.0, 1.0)


class TableForgettingProposal(_TableProposal):
    """The paper's TF: n_z <- (1 - gamma) n_z + gamma for the visited z, n_k = 1/K at the start."""

    def observe(self, rows, states, step_size):
        """Move the visited entries towards one."""
        gain = step_size * (1.0 - 1.0 / self.n_components)
        self._raise_visited(rows, states, 1.0 - step_size, gain)
