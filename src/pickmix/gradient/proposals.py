"""The library's proposals, asked ahead for whole chunks of steps.

A row's chain, and what a proposal learns of it, change only when the row is visited. So the
candidates of all steps up to a row's next visit can be drawn before the first of them is made.
Proposals see each slot of a row as a row of its own, with the children of a sum node to choose
from: the candidate tree is the product of independent choices.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from pickmix.gradient.network import shape_of
from pickmix.selection.compiled_operations import CompiledOperations
from pickmix.selection.proposals import Proposal, UniformProposal, propose_checked
from pickmix.selection.randomness import StepRandomness, Stream
from pickmix.threads import Threads


class TreeProposal:
    """A proposal for trees, made of one for single choices.

    Parameters
    ----------
    proposal : Proposal
    n_rows, n_slots, n_children : int
    n_draws : int
        M.
    seed : int
    dtype : dtype
    """

    def __init__(
        self,
        proposal: Proposal,
        n_rows: int,
        n_slots: int,
        n_children: int,
        n_draws: int,
        seed: int,
        dtype: np.dtype,
    ) -> None:
        self.proposal = proposal
        self.n_rows = n_rows
        self.n_slots = n_slots
        self.n_children = n_children
        self.n_draws = n_draws
        self.seed = seed
        self.dtype = dtype
        proposal.operations = CompiledOperations(Threads())
        proposal.start(n_rows * n_slots, n_children)

    @property
    def is_fixed(self) -> bool:
        """Whether q never changes, so that no step has to wait for another one."""
        return type(self.proposal) is UniformProposal

    @property
    def learns(self) -> bool:
        """Whether the proposal wants to see chain states."""
        return type(self.proposal).observe is not Proposal.observe

    def _places(self, rows: np.ndarray) -> np.ndarray:
        """Number of each slot of each row, (B * n_slots,)."""
        return (rows[:, None] * self.n_slots + np.arange(self.n_slots)).ravel()

    def propose(
        self, rows: np.ndarray, current: np.ndarray, n_draws: int, first_draw: int, step: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Candidates (B, n_draws, n_slots), log_q (B, n_draws) and log_q_current (B,)."""
        shape = (rows.shape[0], self.n_slots)
        candidates, log_q, log_q_current = propose_checked(
            self.proposal,
            self._places(rows),
            np.ascontiguousarray(current, dtype=np.int32).ravel(),
            n_draws,
            first_draw,
            StepRandomness(self.seed, step),
        )
        return (
            candidates.reshape(*shape, n_draws).swapaxes(1, 2),
            log_q.reshape(*shape, n_draws).sum(axis=1).astype(self.dtype),
            log_q_current.reshape(shape).sum(axis=1).astype(self.dtype),
        )

    def propose_again(
        self, rows: jax.Array, current: jax.Array, draw: int, step: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Ask from inside a compiled step, for draws that depend on the state before them."""
        n_rows = rows.shape[0]
        results = (
            shape_of((n_rows, 1, self.n_slots), np.dtype(np.int32)),
            shape_of((n_rows, 1), self.dtype),
            shape_of((n_rows,), self.dtype),
        )

        def ask(
            rows: jax.Array, current: jax.Array, step: jax.Array
        ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            # Rows that fill the batch up lie beyond the data; whatever they get is dropped.
            real = np.minimum(np.asarray(rows), self.n_rows - 1)
            return self.propose(real, np.asarray(current), 1, draw, int(step))

        drawn: tuple[jax.Array, jax.Array, jax.Array] = jax.pure_callback(
            ask, results, rows, current, step
        )
        return drawn

    def export(self) -> dict[str, Any]:
        """What the proposal has learnt: its attributes, but for how it does its work."""
        return {name: value for name, value in vars(self.proposal).items() if name != "operations"}

    def take_up(self, learnt: dict[str, Any]) -> None:
        """Go on with what another one has learnt."""
        vars(self.proposal).update(learnt)

    def uniforms(self, rows: np.ndarray, step: int) -> np.ndarray:
        """Uniforms (B, M) for acceptance."""
        random = StepRandomness(self.seed, step)
        return random.uniforms(Stream.ACCEPTANCE, rows, self.n_draws).astype(self.dtype)

    def observe(self, rows: np.ndarray, states: np.ndarray, step_size: float) -> None:
        """Let the proposal learn from states (B, M, n_slots)."""
        by_place = states.swapaxes(1, 2).reshape(-1, self.n_draws)
        self.proposal.observe(self._places(rows), np.ascontiguousarray(by_place), step_size)
