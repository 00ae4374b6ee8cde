"""Selection rules: which (row, component, weight) pairs update the model.

Every algorithm of the paper's Table 1 is the same loop with another rule:

| algorithm     | rule                   | evaluated per row           | pairs kept   |
|---------------|------------------------|-----------------------------|--------------|
| EM, SAEM      | `ExactPosterior`       | K                           | K            |
| SSAEM         | `TopComponents`        | K                           | top M        |
| TSAEM         | `TruncatedSearch`      | the row's search set        | top M        |
| MCSAEM        | `PosteriorDraws`       | K                           | M draws      |
| MHSAEM        | `MetropolisHastings`   | M proposals + the current   | M states     |

A rule sees a frozen mixture only through an `Evaluator` bound to a batch of rows. What it returns
is the whole of what a step may use.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from pickmix.checks import check_restored
from pickmix.closed_form.state import MixtureState
from pickmix.fitting.settings import FitSettings
from pickmix.kernels.statistics import (
    count_states,
    draw_from_posterior,
    log_sum_exp,
    normalise_all,
)
from pickmix.selection.partitions import SearchSet
from pickmix.selection.proposals import (
    Proposal,
    TableForgettingProposal,
    TableProposal,
    UniformProposal,
    propose_checked,
)
from pickmix.selection.randomness import StepRandomness, Stream


class Evaluator:
    """log p(x_i, k) under a frozen mixture, for a block of B rows (B, D)."""

    def __init__(self, state: MixtureState, rows: np.ndarray) -> None:
        self._state = state
        self.rows = rows
        self.n_components = state.n_components
        self.backend = state.backend

    def log_joint(self, candidates: np.ndarray) -> np.ndarray:
        """log p(x_i, candidates[i, j]) as (B, C), for a (B, C) array; -inf where candidate < 0."""
        state = self._state
        return np.asarray(self.backend.log_joint(state.layout, state.model, self.rows, candidates))

    def log_joint_all(self) -> np.ndarray:
        """log p(x_i, k) of all components, (K, B), which the caller may overwrite."""
        state = self._state
        return np.asarray(self.backend.log_joint_all(state.layout, state.model, self.rows))

    def nearest_components(self, n_neighbours: int) -> np.ndarray:
        """Each component's nearest, (K, n_neighbours) int32, beginning with itself."""
        places = self._state.positions()
        squares = np.einsum("kd,kd->k", places, places)
        distances = squares[:, None] - 2.0 * places @ places.T + squares
        np.fill_diagonal(distances, -np.inf)
        return np.argsort(distances, axis=1, kind="stable")[:, :n_neighbours].astype(np.int32)


@dataclass
class SelectedPairs:
    """The pairs that a rule selected for a batch of B rows, and what it learnt on the way."""

    #: (B, W) Selected components, distinct within a row, -1 where a row has fewer than W. None
    #: means all K, with `weights` of shape (K, B).
    components: np.ndarray | None
    weights: np.ndarray  # (B, W) Weights, summing to one per row.
    evaluations: int  # Component evaluations made.
    acceptance: float = float("nan")  # Mean acceptance probability; NaN without draws.
    log_likelihood: np.ndarray | None = None  # (B,) log p(x_i), if all are evaluated.


class SelectionRule(abc.ABC):
    """One row of Table 1. Holds the state per row, if any, that the next visit needs."""

    evaluates_all: bool = False  # True if every component is evaluated on every row.

    def start(  # noqa: B027
        self, chain: np.ndarray, n_components: int, backend: ModuleType
    ) -> None:
        """Begin a fit. `chain` (N,) holds the component of each row's chain."""

    def content(self) -> dict[str, Any]:
        """What the rule has learnt, as arrays and numbers, but for the chain."""
        return {}

    def restore(self, content: dict[str, Any]) -> None:  # noqa: B027
        """Continue with the content of an earlier rule, after `start`."""

    @abc.abstractmethod
    def select(
        self,
        evaluate: Evaluator,
        rows: np.ndarray,
        beta: float,
        step_size: float,
        random: StepRandomness,
    ) -> SelectedPairs:
        """Select pairs for the batch `rows` (B,) at inverse temperature beta."""


class ExactPosterior(SelectionRule):
    """All K components with their responsibilities: the E-step of EM and SAEM."""

    evaluates_all = True

    def select(
        self,
        evaluate: Evaluator,
        rows: np.ndarray,
        beta: float,
        step_size: float,
        random: StepRandomness,
    ) -> SelectedPairs:
        log_joint = evaluate.log_joint_all()
        log_likelihood = normalise_all(log_joint, beta)
        return SelectedPairs(None, log_joint, log_joint.size, log_likelihood=log_likelihood)


class TopComponents(SelectionRule):
    """The M largest responsibilities, renormalised: the sparse E-step of SSAEM."""

    evaluates_all = True

    def __init__(self, n_kept: int) -> None:
        self.n_kept = n_kept

    def select(
        self,
        evaluate: Evaluator,
        rows: np.ndarray,
        beta: float,
        step_size: float,
        random: StepRandomness,
    ) -> SelectedPairs:
        log_joint = evaluate.log_joint_all()
        components, weights = evaluate.backend.top_components(log_joint.T, None, beta, self.n_kept)
        likelihood = log_sum_exp(log_joint)
        return SelectedPairs(components, weights, log_joint.size, log_likelihood=likelihood)


class PosteriorDraws(SelectionRule):
    """M independent draws from the posterior: MCSAEM, or MHSAEM with the optimal proposal."""

    evaluates_all = True

    def __init__(self, n_draws: int) -> None:
        self.n_draws = n_draws

    def start(self, chain: np.ndarray, n_components: int, backend: ModuleType) -> None:
        self.chain = chain

    def select(
        self,
        evaluate: Evaluator,
        rows: np.ndarray,
        beta: float,
        step_size: float,
        random: StepRandomness,
    ) -> SelectedPairs:
        log_joint = evaluate.log_joint_all()
        key = random.key(Stream.POSTERIOR)
        states = draw_from_posterior(log_joint, beta, rows, key, self.n_draws)
        self.chain[rows] = states[:, -1]
        likelihood = log_sum_exp(log_joint)
        components, weights, _ = count_states(states, np.ones(rows.shape[0]))
        return SelectedPairs(components, weights, log_joint.size, 1.0, likelihood)


class MetropolisHastings(SelectionRule):
    """The paper's S-step: M Metropolis-Hastings moves of each row's chain per visit.

    `reuse_log_joint` takes log p(x, z_bar) from the row's last visit instead of evaluating it at
    the present parameters: M evaluations per visit instead of M + 1, and another algorithm.
    """

    def __init__(self, proposal: Proposal, n_draws: int, reuse_log_joint: bool = False) -> None:
        self.proposal = proposal
        self.n_draws = n_draws
        self.reuse_log_joint = reuse_log_joint

    def start(self, chain: np.ndarray, n_components: int, backend: ModuleType) -> None:
        self.chain = chain
        self.proposal.table_type = backend.Table
        self.proposal.start(chain.shape[0], n_components)
        # NaN: never visited.
        self._last_log_joint = np.full(chain.shape[0] if self.reuse_log_joint else 0, np.nan)

    def select(
        self,
        evaluate: Evaluator,
        rows: np.ndarray,
        beta: float,
        step_size: float,
        random: StepRandomness,
    ) -> SelectedPairs:
        n_rows = rows.shape[0]
        # Set z^0_{i,t} := z^M_{i,t-1}.
        current = self.chain.take(rows)
        log_joint_current = self._remembered(rows)
        evaluations = 0
        states = np.empty((n_rows, self.n_draws), dtype=np.int32)
        acceptance = np.zeros(n_rows)
        accept_key = random.key(Stream.ACCEPTANCE)
        # An independent q needs no z_bar: all M candidates are drawn and evaluated at once,
        # together with log p(x, z_bar) at today's parameters.
        together = self.n_draws if self.proposal.independent else 1
        for first in range(0, self.n_draws, together):
            # Sample z ~ q(z | z_bar).
            candidates, log_q, log_q_current = propose_checked(
                self.proposal, rows, current, together, first, random
            )
            if log_joint_current is None:
                both = np.empty((n_rows, together + 1), dtype=np.int32)
                both[:, 0] = current
                both[:, 1:] = candidates
                evaluated = evaluate.log_joint(both)
                log_joint_current, log_joint = evaluated[:, 0].copy(), evaluated[:, 1:]
            else:
                log_joint = evaluated = evaluate.log_joint(candidates)
            evaluations += evaluated.size
            # Sample u, compute alpha(z_bar, z), accept z or stay at z_bar.
            evaluate.backend.accept_or_stay(
                current,
                candidates,
                log_joint_current,
                log_joint,
                log_q_current,
                log_q,
                beta,
                rows,
                accept_key,
                first,
                states[:, first : first + together],
                acceptance,
            )
        # Set z_{i,t} := (z^1_{i,t}, ..., z^M_{i,t}).
        self.chain[rows] = current
        if self.reuse_log_joint:
            self._last_log_joint[rows] = log_joint_current
        self.proposal.observe(rows, states, step_size)
        components, weights, accepted = count_states(states, acceptance)
        return SelectedPairs(components, weights, evaluations, accepted / states.size)

    def content(self) -> dict[str, Any]:
        return {"proposal": self.proposal.content(), "log_joint": self._last_log_joint}

    def restore(self, content: dict[str, Any]) -> None:
        self.proposal.restore(content["proposal"])
        last = self._last_log_joint
        self._last_log_joint = check_restored("log_joint", content["log_joint"], last)

    def _remembered(self, rows: np.ndarray) -> np.ndarray | None:
        """Log-joints (B,) of the last visits; None if not reused or incomplete."""
        if not self.reuse_log_joint:
            return None
        remembered = self._last_log_joint[rows]
        return None if np.isnan(remembered).any() else remembered


class TruncatedSearch(SelectionRule):
    """The M best components of each row's search set, renormalised: TSAEM.

    Truncated variational EM in its sublinear form (Forster and Luecke 2018; Hirschberger, Forster
    and Luecke 2022): a row keeps M components, and its search set is the union of their lists of G
    nearest components and E uniform draws. Distances are learnt from log-joints that are evaluated
    anyway, d(c, k) = mean over the rows that c wins of log p(x, c) - log p(x, k).
    `first_neighbours` (K, G): nearest components to start from, each list beginning with itself.
    """

    def __init__(self, n_kept: int, search: SearchSet, first_neighbours: np.ndarray) -> None:
        self.n_kept = n_kept
        self.search = search
        self.first_neighbours = first_neighbours

    def start(self, chain: np.ndarray, n_components: int, backend: ModuleType) -> None:
        self.chain = chain
        self.held = np.full((chain.shape[0], self.n_kept), -1, dtype=np.int32)
        self.held[:, 0] = chain
        self.neighbours = backend.Neighbours(self.first_neighbours)

    def content(self) -> dict[str, Any]:
        return {"held": self.held, "neighbours": self.neighbours.content()}

    def restore(self, content: dict[str, Any]) -> None:
        K = self.first_neighbours.shape[0]
        self.held = check_restored("held", content["held"], self.held, K)
        self.neighbours.restore(content["neighbours"])

    def select(
        self,
        evaluate: Evaluator,
        rows: np.ndarray,
        beta: float,
        step_size: float,
        random: StepRandomness,
    ) -> SelectedPairs:
        search, neighbours = self.search, self.neighbours
        if search.all_pairs:
            neighbours.lists = evaluate.nearest_components(neighbours.lists.shape[1])
        candidates, n_evaluated = neighbours.collect(
            rows, self.held[rows], search.n_explore, random.key(Stream.EXPLORATION)
        )
        log_joint = evaluate.log_joint(candidates)
        components, weights = evaluate.backend.top_components(
            log_joint, candidates, beta, self.n_kept
        )
        winners = components[:, 0]
        if not search.all_pairs:
            neighbours.learn(candidates, log_joint, winners)
        # A row that no candidate explains (all log-joints -inf) keeps what it held.
        found = winners >= 0
        self.held[rows[found]] = components[found]
        self.chain[rows[found]] = winners[found]
        return SelectedPairs(components, weights, n_evaluated)


def make_rule(settings: FitSettings, means: np.ndarray) -> SelectionRule:
    """Selection rule of an algorithm of the paper's Table 1, for a start at `means` (K, D)."""
    algorithm, proposal, n_samples = settings.algorithm, settings.proposal, settings.n_samples
    n_kept = min(n_samples, means.shape[0])
    if algorithm in ("em", "saem"):
        return ExactPosterior()
    if algorithm == "ssaem":
        return TopComponents(n_kept)
    if algorithm == "tsaem":
        search = proposal if isinstance(proposal, SearchSet) else SearchSet()
        return TruncatedSearch(n_kept, search, nearest_components(means, search.n_neighbours))
    if algorithm == "mcsaem" or proposal == "optimal":
        return PosteriorDraws(n_samples)
    named: dict[str, Callable[[], Proposal]] = {
        "uniform": UniformProposal,
        "table": TableProposal,
        "table-forgetting": TableForgettingProposal,
    }
    chosen = named[proposal]() if isinstance(proposal, str) else proposal
    assert isinstance(chosen, Proposal)
    return MetropolisHastings(chosen, n_samples, bool(settings.reuse_log_joint))


def nearest_components(means: np.ndarray, n_neighbours: int) -> np.ndarray:
    """The nearest components of each by distance of means, itself first, (K, G) int32."""
    n_components = means.shape[0]
    n_neighbours = min(n_neighbours, n_components)
    nearest = cKDTree(means).query(means, k=n_neighbours)[1].reshape(n_components, n_neighbours)
    nearest = nearest.astype(np.int32)
    # Coinciding means may push a component off the head of its own list.
    for k in np.flatnonzero(nearest[:, 0] != np.arange(n_components)):
        others = nearest[k][nearest[k] != k][: n_neighbours - 1]
        nearest[k] = np.concatenate(([k], others))
    return np.asarray(nearest)
