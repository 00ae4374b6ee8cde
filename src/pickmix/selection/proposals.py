"""Proposal distributions q(z | z_bar) of the Metropolis-Hastings chain over components."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np

from pickmix.selection.randomness import StepRandomness, Stream, draw_uniformly


class Proposal(abc.ABC):
    """How candidates for the next component of each row are drawn. Subclass it to write your own.

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
    #: The class of tables by row, of the kernels in use; set before `start` by what runs the fit.
    table_type: type

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

    def content(self) -> dict[str, Any]:
        """What a checkpoint keeps of the proposal: its attributes.

        They must be arrays, numbers, texts, or lists, tuples and dictionaries of them. A subclass
        that learns anything else overrides this, and takes it back in `restore`.
        """
        return {name: value for name, value in vars(self).items() if name != "table_type"}

    def restore(self, content: dict[str, Any]) -> None:
        """Continue with the content of a checkpoint, after `start`."""
        vars(self).update(content)


def propose_checked(
    proposal: Proposal,
    rows: np.ndarray,
    current: np.ndarray,
    n_draws: int,
    first_draw: int,
    random: StepRandomness,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Call a proposal and check the candidates of untrusted ones, because kernels trust indices."""
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


class UniformProposal(Proposal):
    """q(z) = 1/K (the paper's U): free, but accepted about once in K draws."""

    trusted = True

    def propose(
        self,
        rows: np.ndarray,
        current: np.ndarray,
        n_draws: int,
        first_draw: int,
        random: StepRandomness,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        key = random.key(Stream.PROPOSAL)
        candidates = draw_uniformly(rows, self.n_components, key, first_draw, n_draws)
        return candidates, np.zeros(candidates.shape), np.zeros(rows.shape[0])


class _TableProposal(Proposal):
    """q(z) = n_z / sum_k n_k with a table n per row, n_k = 1/K before the first visit."""

    trusted = True

    def start(self, n_rows: int, n_components: int) -> None:
        super().start(n_rows, n_components)
        self.table = self.table_type(n_rows, n_components)

    def propose(
        self,
        rows: np.ndarray,
        current: np.ndarray,
        n_draws: int,
        first_draw: int,
        random: StepRandomness,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        key = random.key(Stream.PROPOSAL)
        candidates, log_q, log_q_current = self.table.draw(rows, current, key, first_draw, n_draws)
        return candidates, log_q, log_q_current

    def content(self) -> dict[str, Any]:
        return dict(self.table.content())

    def restore(self, content: dict[str, Any]) -> None:
        self.table.restore(content)


class TableProposal(_TableProposal):
    """The paper's T: q(z) = running mean of the row's visits and one uniform visit. It sticks."""

    def observe(self, rows: np.ndarray, states: np.ndarray, step_size: float) -> None:
        self.table.raise_visited(rows, states, 1.0, 1.0)


class TableForgettingProposal(_TableProposal):
    """The paper's TF: n_z <- (1 - gamma) n_z + gamma for the visited z, n_k = 1/K at the start."""

    def observe(self, rows: np.ndarray, states: np.ndarray, step_size: float) -> None:
        gain = step_size * (1.0 - 1.0 / self.n_components)
        self.table.raise_visited(rows, states, 1.0 - step_size, gain)
