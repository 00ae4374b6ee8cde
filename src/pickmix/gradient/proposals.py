"""The library's proposals, drawn ahead for whole chunks of steps.

A row's chain, and what a proposal learns of it, change only when the row is visited. So the
candidates of all steps up to a row's next visit can be drawn before the first of them is made.
Proposals see each slot of a row as a row of its own, with the children of a sum node to choose
from: the candidate tree is the product of independent choices.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import jax
import numpy as np

from pickmix.gradient.network import shape_of
from pickmix.kernels.numba_kernels.stores import Table
from pickmix.selection.proposals import Proposal, UniformProposal, propose_checked
from pickmix.selection.randomness import StepRandomness, Stream


class TreeProposal:
    """A proposal for trees, made of one for single choices.

    Slots with equally many children (`n_choices`) share one proposal; if there are several numbers,
    each has a copy of it.
    """

    def __init__(
        self,
        proposal: Proposal,
        n_rows: int,
        n_choices: tuple[int, ...],
        n_draws: int,
        seed: int,
        dtype: np.dtype,
    ) -> None:
        self.proposal = proposal
        self.n_rows = n_rows
        self.n_slots = len(n_choices)
        self.n_draws = n_draws
        self.seed = seed
        self.dtype = dtype
        self._groups: list[_Group] = []
        for number, n_children in enumerate(dict.fromkeys(n_choices)):
            slots = np.flatnonzero(np.equal(n_choices, n_children))
            shared = copy.copy(proposal) if number else proposal
            shared.table_type = Table
            shared.start(n_rows * slots.shape[0], n_children)
            self._groups.append(_Group(shared, slots))

    @property
    def is_fixed(self) -> bool:
        """Whether q never changes, so that no step has to wait for another one."""
        return type(self.proposal) is UniformProposal

    @property
    def learns(self) -> bool:
        """Whether the proposal wants to see chain states."""
        return type(self.proposal).observe is not Proposal.observe

    def propose(
        self, rows: np.ndarray, current: np.ndarray, n_draws: int, first_draw: int, step: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Candidates (B, n_draws, n_slots), log_q (B, n_draws) and log_q_current (B,)."""
        n_rows = rows.shape[0]
        candidates = np.empty((n_rows, n_draws, self.n_slots), np.int32)
        log_q = np.zeros((n_rows, n_draws))
        log_q_current = np.zeros(n_rows)
        random = StepRandomness(self.seed, step)
        for number, (proposal, slots) in enumerate(self._groups):
            shape = (n_rows, slots.shape[0])
            drawn, slot_log_q, slot_log_q_current = propose_checked(
                proposal,
                _places(rows, slots),
                np.ascontiguousarray(current[:, slots], dtype=np.int32).ravel(),
                n_draws,
                first_draw,
                random.child(number) if number else random,
            )
            candidates[:, :, slots] = drawn.reshape(*shape, n_draws).swapaxes(1, 2)
            log_q += slot_log_q.reshape(*shape, n_draws).sum(axis=1)
            log_q_current += slot_log_q_current.reshape(shape).sum(axis=1)
        return candidates, log_q.astype(self.dtype), log_q_current.astype(self.dtype)

    def propose_again(
        self, rows: jax.Array, current: jax.Array, draw: int, step: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Propose from inside a compiled step, for draws that depend on the state before them."""
        n_rows = rows.shape[0]
        results = (
            shape_of((n_rows, 1, self.n_slots), np.dtype(np.int32)),
            shape_of((n_rows, 1), self.dtype),
            shape_of((n_rows,), self.dtype),
        )

        def propose(
            rows: jax.Array, current: jax.Array, step: jax.Array
        ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            # Padding rows lie past the end of the data; whatever they get is dropped.
            real = np.minimum(np.asarray(rows), self.n_rows - 1)
            return self.propose(real, np.asarray(current), 1, draw, int(step))

        drawn: tuple[jax.Array, jax.Array, jax.Array] = jax.pure_callback(
            propose, results, rows, current, step
        )
        return drawn

    def content(self) -> dict[str, Any]:
        """What the proposals have learnt."""
        return {"groups": [group.proposal.content() for group in self._groups]}

    def restore(self, content: dict[str, Any]) -> None:
        """Continue with what others have learnt."""
        for group, learnt in zip(self._groups, content["groups"], strict=True):
            group.proposal.restore(learnt)

    def uniforms(self, rows: np.ndarray, step: int) -> np.ndarray:
        """Uniforms (B, M) for acceptance."""
        random = StepRandomness(self.seed, step)
        return random.uniforms(Stream.ACCEPTANCE, rows, self.n_draws).astype(self.dtype)

    def observe(self, rows: np.ndarray, states: np.ndarray, step_size: float) -> None:
        """Let the proposal learn from states (B, M, n_slots)."""
        for proposal, slots in self._groups:
            by_place = states[:, :, slots].swapaxes(1, 2).reshape(-1, self.n_draws)
            proposal.observe(_places(rows, slots), np.ascontiguousarray(by_place), step_size)


class _Group(NamedTuple):
    """A proposal, and the slots (n,) of a tree that it draws for."""

    proposal: Proposal
    slots: np.ndarray


def _places(rows: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """Number of each of a group's slots of each row, (B * n,)."""
    places: np.ndarray = rows[:, None] * slots.shape[0] + np.arange(slots.shape[0])
    return places.ravel()
