"""Rows with gaps of deep mixtures: exact where components are Gaussians, else by weighted draws.

Missing cells are drawn from the conditional distributions of Gaussians that are like the components
(`DeepModel.gaussians`). A draw has the weight p(row) / q(missing | observed), so the mean weight is
the density of the observed cells, and weighted draws are the conditional distribution of the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

from pickmix.families.base import LeftOut, Pairs, Part, RandomSource, SeenRows
from pickmix.inputs.errors import warn_caller
from pickmix.model.conditional import latent_draws
from pickmix.model.rows import Posterior, QueryRows, log_sum_exp

if TYPE_CHECKING:
    from pickmix.model.deep import DeepModel

# Draws for each row; more for those whose effective number is below what is enough.
_DRAWS, _ENOUGH = (256, 1024, 4096), 50.0
_TOO_FEW = 20.0  # Effective draws below which a warning names the row.
_BLOCK_NUMBERS = 4_000_000  # Numbers in the draws, or the posteriors, that are held at a time.


class GaussianRows(QueryRows):
    """Rows (n, d) of a deep mixture of Gaussians. `names` (n,) number them in messages."""

    is_family = False

    def __init__(self, deep: DeepModel, rows: np.ndarray, names: np.ndarray | None = None) -> None:
        model = deep.gaussians[0]
        super().__init__(model if deep.columns is None else model.marginal(deep.columns), rows)
        self.deep, self._names = deep, names

    def with_rows(self, rows: np.ndarray, noise: np.ndarray | None) -> QueryRows:
        return type(self)(self.deep, rows)

    def weights(self) -> np.ndarray:
        return np.asarray(np.add.reduceat(super().weights(), self.deep.gaussians[1], axis=1))


class _Drawn(NamedTuple):
    """Rows of the network and their weighted draws."""

    numbers: np.ndarray  # (R,)
    values: np.ndarray  # (R, S, D)
    log_densities: np.ndarray  # (R, S) Of the draws.
    log_means: np.ndarray  # (R,) Logarithms of mean weights: densities of what was observed.
    weights: np.ndarray  # (R, S) With a sum of one for each row.


class DrawnRows(GaussianRows):
    """Rows (n, d) of a deep mixture whose missing cells are drawn.

    Answers come from the same points for every row and call; only draws for users are random.
    """

    takes_events = False

    def __init__(self, deep: DeepModel, rows: np.ndarray, names: np.ndarray | None = None) -> None:
        super().__init__(deep, rows, names)
        self.parts, self.centre = [_DrawnPart(deep.n_columns)], np.zeros(deep.n_columns)

    def _blocks(
        self, width: int = 1, n_wanted: int = 1, random: RandomSource | None = None
    ) -> Iterator[_Drawn]:
        """Yield all rows with enough draws; arrays of `width` numbers per draw stay small."""
        rows, D = self.deep.whole(self.rows), self.deep.n_features
        has_gaps, effective = np.isnan(rows).any(axis=1), np.full(rows.shape[0], np.inf)
        left, whole = np.flatnonzero(has_gaps), np.flatnonzero(~has_gaps)
        if whole.size:
            yield self._draw(whole, rows[whole], 1, random)
        # Many draws for users must not be the same few.
        times = 2 ** max(0, (n_wanted - 1).bit_length() - 5)
        for n_draws in [times * number for number in _DRAWS]:
            size = max(1, _BLOCK_NUMBERS // (n_draws * max(width, D)))
            lacking = [left[:0]]
            for some in np.split(left, range(size, left.size, size)) if left.size else []:
                drawn = self._draw(some, rows[some], n_draws, random)
                effective[some] = 1.0 / np.square(drawn.weights).sum(axis=1)
                lacks = effective[some] < max(_ENOUGH, 4.0 * n_wanted)
                lacks &= n_draws < times * _DRAWS[-1]
                lacking.append(some[lacks])
                if not lacks.all():
                    yield _Drawn(*(array[~lacks] for array in drawn))
            left = np.concatenate(lacking)
        few = np.flatnonzero(effective < _TOO_FEW)
        if few.size:
            names = ", ".join(map(str, (few if self._names is None else self._names[few])[:10]))
            warn_caller(
                f"Answers about {few.size} row(s) with missing values are rough: fewer than "
                f"{_TOO_FEW:g} of {n_draws:,} draws count for row {names} (`effective_draws` has "
                "all numbers). Give more columns of them, or ask a GaussianMixture, which is exact."
            )

    def _draw(self, numbers: np.ndarray, rows: np.ndarray, n_draws: int, random: Any) -> _Drawn:
        model, D = self.deep.gaussians[0], rows.shape[1]
        proposal = QueryRows(model, rows)
        random = random or _Points(n_draws, D)
        values = latent_draws(proposal, np.arange(D), n_draws, random)
        values = np.where(np.isnan(rows)[:, None], values, rows[:, None])
        flat, shape = values.reshape(-1, D), (-1, n_draws)
        scores = self.deep.score_whole(flat).reshape(shape)
        proposed = model.score_samples(flat).reshape(shape) - proposal.log_densities()[:, None]
        log_sums = log_sum_exp((scores - proposed).T)
        weights = np.exp(scores - proposed - log_sums[:, None])
        return _Drawn(numbers, values, scores, log_sums - np.log(n_draws), weights)

    def effective_draws(self) -> np.ndarray:
        found = super().effective_draws()
        for drawn in self._blocks():
            if drawn.weights.shape[1] > 1:
                found[drawn.numbers] = 1.0 / np.square(drawn.weights).sum(axis=1)
        return found

    def log_densities(self) -> np.ndarray:
        found = np.empty(self.rows.shape[0])
        for drawn in self._blocks():
            found[drawn.numbers] = drawn.log_means
        found[~self.seen.any(axis=1)] = 0.0
        return found

    def weights(self) -> np.ndarray:
        weights = np.empty((self.rows.shape[0], self.deep.n_components))
        for drawn in self._blocks(weights.shape[1]):
            shares = self.deep.posterior_whole(drawn.values.reshape(-1, self.deep.n_features))
            shares = shares.reshape(*drawn.weights.shape, -1)
            weights[drawn.numbers] = np.einsum("rs,rsk->rk", drawn.weights, shares)
        weights[~self.seen.any(axis=1)] = self.deep.weights
        return weights

    def posteriors(self, width: int = 1) -> Iterator[Posterior]:
        return map(self._as_posterior, self._blocks(width))

    def posteriors_to_draw(self, n_draws: int, random: RandomSource) -> Iterator[Posterior]:
        return map(self._as_posterior, self._blocks(1, n_draws, random))

    def _as_posterior(self, drawn: _Drawn) -> Posterior:
        """Draws in the place of components."""
        R, S, D = drawn.values.shape
        values = self.deep.of_columns(drawn.values.reshape(-1, D))
        rows = SeenRows(values, np.ones(values.shape, dtype=np.bool_), np.zeros(R * S))
        every, starts = np.arange(R * S), np.arange(R) * S
        best = starts + drawn.log_densities.argmax(axis=1)
        pairs = Pairs(rows, every // S, every)
        return Posterior(drawn.numbers, pairs, drawn.weights.ravel(), starts, best)


class _DrawnPart(Part):
    """Columns of draws: each "component" is one draw, and has no spread."""

    kind = "number"

    def __init__(self, n_columns: int) -> None:
        self.columns = np.arange(n_columns)

    def moments(self, pairs: Pairs, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values = pairs.rows.values[pairs.components[:, None], targets]
        return values, np.zeros_like(values)

    def draw(self, pairs: Pairs, targets: np.ndarray, random: RandomSource) -> np.ndarray:
        return self.moments(pairs, targets)[0]

    def leave_out(self, rows: SeenRows) -> LeftOut:
        raise TypeError("Draws do not explain rows.")

    def quantiles(
        self,
        weights: np.ndarray,
        means: np.ndarray,
        variances: np.ndarray,
        starts: np.ndarray,
        share: float,
        pairs: Pairs | None = None,
    ) -> np.ndarray:
        which = np.searchsorted(starts, np.arange(weights.shape[0]), side="right") - 1
        order = np.lexsort((means, which))
        # Sums of each row go on from those of the row before.
        sums = np.cumsum(weights[order])
        marks = np.append(0.0, sums)[starts] + share
        return np.asarray(means[order[np.minimum(np.searchsorted(sums, marks), sums.size - 1)]])


class _Points:
    """Evenly spread points (n, D + 1), the same for every row, in the place of random numbers."""

    def __init__(self, n_points: int, n_columns: int) -> None:
        # Inside of (0, 1): points are multiples of 2^-30.
        points = qmc.Sobol(n_columns + 1, seed=0).random(n_points) + 2.0**-32
        self._uniforms, self._normals = points[:, 0], ndtri(points[:, 1:])

    def uniform(self, size: Any) -> np.ndarray:
        return np.broadcast_to(self._uniforms, size)

    def standard_normal(self, size: Any) -> np.ndarray:
        return np.tile(self._normals, (size[0] // self._normals.shape[0], 1))
