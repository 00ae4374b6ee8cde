"""The fitted mixture in closed form: weights and parameters of a family, and queries of arrays.

Queries take rows (N, D) of float64 or float32 with NaN for missing cells, validated by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np

from pickmix import compiled as compilation
from pickmix.checks import refuse_overflow
from pickmix.closed_form.evaluation import dense_block_rows
from pickmix.closed_form.search import draw_routes, search
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows, make_rows
from pickmix.families.base import Family, Pairs, Part, RandomSource, SeenRows
from pickmix.families.layout import Moments
from pickmix.families.registry import restrict_family
from pickmix.kernels import MOST_COMPONENTS, choose, needs_compiled
from pickmix.kernels.statistics import log_sum_exp, normalise_all
from pickmix.selection.randomness import StepRandomness
from pickmix.threads import use_threads

_SEARCH_CELL = 32  # Components per cell of an approximate search.
LEAST_WEIGHT = 1e-300  # A component of weight zero stays one that can be evaluated.


@dataclass(frozen=True, eq=False)
class MixtureModel:
    """A mixture of components of one family. Arrays must not be written."""

    family: Family
    weights: np.ndarray  # (K,), any positive total.
    parameters: dict[str, np.ndarray]  # In the user's shapes, by `Family.parameters`.
    background: int | None = None  # The component of outlying rows, if there is one.
    n_rows: float = 0.0  # Rows that the mixture was estimated from; 0 if that is not known.
    n_jobs: int | None = None  # Threads of queries, as scikit-learn counts them.

    @property
    def n_components(self) -> int:
        return int(self.weights.shape[0])

    @property
    def n_columns(self) -> int:
        return int(self.family.layout.n_columns)

    @property
    def n_parameters(self) -> int:
        K = self.n_components
        return self.family.n_parameters_of(self.parameters, K) + K - 1

    def centre(self) -> np.ndarray:
        """Mean of the mixture (D,) in the family's order of columns: the origin of coordinates."""
        centre = np.zeros(self.n_columns)
        means = self.family.moments_of(self.parameters, centre).mean
        centre[: means.shape[1]] = self.weights @ means / self.weights.sum()
        return self.family.centre(centre)

    def moments(self, centre: np.ndarray) -> Moments:
        """Moments of the components about a centre (D,), with their weights as masses."""
        moments = self.family.moments_of(self.parameters, centre)
        return moments._replace(mass=self.weights.copy())

    def parts(self) -> tuple[list[Part], np.ndarray]:
        """Groups of columns that are independent given the component, and their centre (D,)."""
        centre = self.in_order_of_columns(self.centre())
        return self.family.parts(self.parameters, centre), centre

    def in_order_of_columns(self, values: np.ndarray) -> np.ndarray:
        """Values (..., D) in the order of the user's columns."""
        return self.family.in_users_columns(values)

    def typical(self) -> np.ndarray:
        """Means, rates and most probable levels (K, D) of the components."""
        values = np.empty((self.n_components, self.n_columns))
        for part in self.parts()[0]:
            values[:, part.columns] = part.typical()
        return values

    # Densities and posteriors.

    def frozen(
        self,
        rows: np.ndarray,
        noise: np.ndarray | None = None,
        moments: Moments | None = None,
    ) -> tuple[MixtureState, ArrayRows, np.ndarray]:
        """The components (or those of `moments`), rows in their coordinates, `log_base` (N,)."""
        family = self.family
        if moments is None and np.isnan(rows).any():
            other, parameters = family.for_gaps(self.parameters)
            if other is not family:
                return replace(self, family=other, parameters=dict(parameters)).frozen(rows)
        if noise is not None and not family.takes_noise:
            raise ValueError(f"noise is for Gaussian components, got family {family.name!r}.")
        problem = family.check(rows)
        if problem is not None:
            raise ValueError(f"X: {problem}.")
        rows = family.coordinates(rows)
        centre = self.centre()
        if moments is None:
            moments = self.moments(centre)
        K = moments.mass.shape[0]
        partial = noise is not None or bool(np.isnan(rows).any())
        # A few rows with gaps are not worth kernels of their own, whatever K is.
        n_capped = min(K, MOST_COMPONENTS) if partial else K
        compiled = needs_compiled(family.layout, rows.shape[0] * max(1, K // 32), n_capped, partial)
        if compiled and partial:
            compilation.before_first_use("partial")
        prior = family.make_prior(moments, "none", float(rows.shape[0]))
        state = MixtureState(family, moments, choose(compiled), prior, LEAST_WEIGHT).require_sound()
        source = make_rows(rows, None, centre, noise)
        log_base = family.log_base(np.asarray(rows, dtype=np.float64))
        return state, source, np.zeros(rows.shape[0]) if log_base is None else log_base

    def log_joint_blocks(
        self, rows: np.ndarray, noise: np.ndarray | None = None, moments: Moments | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray, ModuleType]]:
        """Yield (log-joints (K, R), log_base (R,), backend) over the rows.

        Weights are normalised, but not those of components by `moments`.
        """
        with use_threads(self.n_jobs):
            state, source, log_base = self.frozen(rows, noise, moments)
        backend, n_rows = state.backend, dense_block_rows(state.n_components)
        shift = state.log_total()
        for first in range(0, source.n_rows, n_rows):
            block = np.arange(first, min(first + n_rows, source.n_rows))
            with use_threads(self.n_jobs):
                log_joint = backend.log_joint_all(state.layout, state.model, source.gather(block))
            log_joint -= shift
            inner = np.flatnonzero(self.family.has_inner_gaps(rows[block]))
            if inner.size:
                parameters = self.family.parameters(state.model, source.center)
                log_joint[:, inner] += self.family.log_gap_terms(parameters, rows[block[inner]])
            if moments is not None:
                log_joint += shift
            yield log_joint, log_base[block], backend

    def score_samples(
        self,
        rows: np.ndarray,
        noise: np.ndarray | None = None,
        n_candidates: int | None = None,
        exact_below: float | np.ndarray | None = None,
    ) -> np.ndarray:
        """Log-densities (N,).

        With `n_candidates` lower bounds by a search among about so many components; rows with a
        bound under `exact_below`, a number or one per row, are then evaluated exactly.
        """
        if n_candidates is None:
            parts = []
            for log_joint, log_base, _ in self.log_joint_blocks(rows, noise):
                block = log_sum_exp(log_joint)
                refuse_overflow(block)
                parts.append(block + log_base)
            return np.concatenate(parts)
        scores = self.search(rows, n_candidates, noise)[1]
        doubtful = np.flatnonzero(scores < (-np.inf if exact_below is None else exact_below))
        if doubtful.size:
            part = None if noise is None else noise[doubtful]
            scores[doubtful] = self.score_samples(rows[doubtful], part)
        return scores

    def search(
        self, rows: np.ndarray, n_candidates: int, noise: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """A likely component of each row (N,), and a lower bound of its log-density (N,)."""
        with use_threads(self.n_jobs):
            state, source, log_base = self.frozen(rows, noise)
            routes = draw_routes(
                state,
                StepRandomness(0, 0),
                cell_size=_SEARCH_CELL,
                n_probes=-(-n_candidates // _SEARCH_CELL),
                background=-1 if self.background is None else self.background,
            )
            components, bounds, _ = search(state, source, routes)
        bounds += log_base - float(np.log(self.weights.sum()))
        inner = np.flatnonzero(self.family.has_inner_gaps(rows))
        if inner.size:
            # The search does not know what such rows lack; all components are evaluated.
            components[inner] = self.top_components(rows[inner], 1)[0][:, 0]
            bounds[inner] = self.score_samples(rows[inner])
        refuse_overflow(bounds)
        return components, bounds

    def top_components(
        self, rows: np.ndarray, m: int, noise: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The m most probable components (N, m) and their posterior probabilities (N, m)."""
        components, probabilities = [], []
        for log_joint, _, backend in self.log_joint_blocks(rows, noise):
            log_density = log_sum_exp(log_joint)
            refuse_overflow(log_density)
            best = backend.top_components(log_joint.T, None, 1.0, m)[0]
            chosen = log_joint[best, np.arange(best.shape[0])[:, None]]
            components.append(best)
            probabilities.append(np.exp(chosen - log_density[:, None]))
        return np.concatenate(components), np.concatenate(probabilities)

    def posteriors(
        self, rows: np.ndarray, noise: np.ndarray | None = None, labels: np.ndarray | None = None
    ) -> Iterator[np.ndarray]:
        """Yield posterior probabilities (K, R) of components, or of clusters by `labels` (K,)."""
        if labels is not None:
            order = np.argsort(labels, kind="stable")
            starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
        for log_joint, _, _ in self.log_joint_blocks(rows, noise):
            refuse_overflow(normalise_all(log_joint, 1.0))
            if labels is not None:
                log_joint = np.add.reduceat(log_joint[order], starts, axis=0)
            yield log_joint

    def predict(
        self,
        rows: np.ndarray,
        noise: np.ndarray | None = None,
        n_candidates: int | None = None,
        labels: np.ndarray | None = None,
    ) -> np.ndarray:
        """The most probable component of each row, or its cluster by `labels` (K,), (N,)."""
        if n_candidates is not None:
            components = self.search(rows, n_candidates, noise)[0].astype(np.int64)
            return components if labels is None else np.asarray(labels[components])
        if labels is None:
            return np.asarray(self.top_components(rows, 1, noise)[0][:, 0].astype(np.int64))
        return np.concatenate([p.argmax(axis=0) for p in self.posteriors(rows, noise, labels)])

    def predict_proba(
        self,
        rows: np.ndarray,
        noise: np.ndarray | None = None,
        labels: np.ndarray | None = None,
    ) -> np.ndarray:
        """Posterior probabilities of components (N, K), or of clusters by `labels` (K,)."""
        return np.concatenate([block.T for block in self.posteriors(rows, noise, labels)])

    def expected_factors(self, rows: np.ndarray) -> np.ndarray:
        """E[z | x] (N, H) under the most probable component, for components with loadings."""
        part, points = self.family.factor_part(self.parameters), self.family.coordinates(rows)
        seen = ~np.isnan(points)
        patterns = np.unique(seen, axis=0, return_inverse=True)[1].ravel()
        pairs = Pairs(SeenRows(points, seen, patterns), np.arange(len(rows)), self.predict(rows))
        return np.asarray(part.factors(pairs))

    def sample(self, n_rows: int, random: RandomSource) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows (N, D), grouped by component, and their components (N,)."""
        counts = random.multinomial(n_rows, self.weights / self.weights.sum())
        components = np.repeat(np.arange(counts.shape[0]), counts)
        parts, centre = self.parts()
        nothing = SeenRows(centre[None], np.zeros((1, self.n_columns), dtype=bool), np.zeros(1))
        pairs = Pairs(nothing, np.zeros_like(components), components)
        rows = np.empty((n_rows, self.n_columns))
        for part in parts:
            targets = np.arange(part.columns.shape[0])
            rows[:, part.columns] = part.draw(pairs.of(part.columns), targets, random)
        return rows + centre, components

    # Other mixtures.

    def over_columns(
        self,
        columns: np.ndarray,
        weights: np.ndarray,
        parameters: Callable[[Part, np.ndarray], dict[str, np.ndarray]],
    ) -> MixtureModel:
        """A mixture over some columns; `parameters` makes those of a part, as in `parts_of`."""
        family = restrict_family(self.family, columns)
        found = [parameters(part, some) for part, some, _ in parts_of(self.parts()[0], columns)]
        joined = family.join_parameters(found)
        return replace(self, family=family, weights=weights, parameters=joined)

    def marginal(self, columns: np.ndarray) -> MixtureModel:
        """The mixture of some columns (d,), in their order."""
        return self.over_columns(
            columns, self.weights.copy(), lambda part, some: part.marginal(some)
        )


def parts_of(
    parts: Sequence[Part], targets: np.ndarray
) -> list[tuple[Part, np.ndarray, np.ndarray]]:
    """Parts with target columns, numbers of these in the part and among the ordered targets."""
    with_targets = []
    for part in parts:
        among = np.flatnonzero(np.isin(targets, part.columns))
        if among.size:
            in_order = np.argsort(part.columns)
            ranks = np.searchsorted(part.columns, targets[among], sorter=in_order)
            with_targets.append((part, in_order[ranks], among))
    return with_targets
