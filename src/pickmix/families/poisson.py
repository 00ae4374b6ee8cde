"""Counts: independent Poisson columns given the component."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, pdtr, pdtrik, xlogy

from pickmix.families.base import (
    Family,
    LeftOut,
    Pairs,
    Parameters,
    Part,
    Prior,
    RandomSource,
    SeenRows,
    check_not_negative,
    describe_wrong_cell,
)
from pickmix.families.distributions import CountMixture, Distribution, Inverse, poisson_quantiles
from pickmix.families.layout import (
    SCALE,
    Model,
    Moments,
    halves,
    make_layout,
    moments_of_mass_one,
)

_LEAST_RATE = 1e-10  # No rate is smaller: its logarithm must be finite.
# Pseudo-rows of the prior at least, and at most in units of the mean component's rows. Columns in
# which components do not differ yet would get infinitely many, and could then never part.
_LEAST_PRIOR = 1e-3
_MOST_PRIOR = 1.0
_SPLIT_DISTANCE = 0.8  # Standard deviations of halves from the rates of the whole, in all.
_SPLIT_REST = 0.1  # Share of each rate that halves keep.
_ANSCOMBE = 0.375  # Positions are 2 sqrt(x + 3/8), of variance 1 (Anscombe 1948).


@dataclass
class PoissonPrior(Prior):
    """Gamma priors of the rates of each column, by empirical Bayes."""

    n_rows: float  # Rows behind all statistics together.
    rates: np.ndarray  # (C,) Mean rates a / b.
    counts: np.ndarray  # (C,) Pseudo-rows b of these rates per component; 0: no prior.
    learns: bool  # False leaves `counts` at 0: maximum likelihood.

    def pool(self, moments: Moments, masses: np.ndarray) -> None:
        if not self.learns:
            return
        rows = np.maximum(masses * self.n_rows, 0.0)
        total = float(rows.sum())
        n_used = int(np.count_nonzero(rows > 0.0))
        if n_used < 2:
            return
        self.rates = rows @ moments.mean / total
        spread = rows @ np.square(moments.mean - self.rates)
        real = spread - self.rates * (n_used - 1)
        real /= max(total - float(rows @ rows) / total, 1e-12 * total)
        most = _MOST_PRIOR * total / n_used
        wished = np.full_like(self.rates, most)
        np.divide(self.rates, real, out=wished, where=real * most > self.rates)
        self.counts = np.maximum(wished, min(_LEAST_PRIOR, most))


class Poisson(Family):
    """Counts with a rate per component and column.

    log p(x | k) = sum_c x_c log(rate) - rate - log x_c!. The last term is the base measure.

    >>> family = Poisson(2)
    >>> print(family.check(np.array([[3.0, 0.0], [1.0, 2.5]])))
    column 1 must hold counts, that is whole numbers from 0 on, but row 1 holds 2.5
    """

    name = "poisson"
    has_linear = True

    def __init__(self, n_columns: int) -> None:
        self.n_features = n_columns
        self.layout = make_layout([("linear", n_columns)])

    def centre(self, mean: np.ndarray) -> np.ndarray:
        return np.zeros_like(mean)

    def check(self, rows: np.ndarray, columns: Sequence[int] | None = None) -> str | None:
        sound = (rows >= 0.0) & (rows == np.floor(rows)) & np.isfinite(rows)
        expected = "counts, that is whole numbers from 0 on"
        return describe_wrong_cell(rows, sound, columns, lambda column: expected)

    def log_base(self, rows: np.ndarray) -> np.ndarray | None:
        return -np.asarray(np.where(np.isnan(rows), 0.0, gammaln(rows + 1.0)).sum(axis=1))

    def positions(self, model: Model) -> np.ndarray:
        return 2.0 * np.exp(0.5 * model.linear)

    def row_positions(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(2.0 * np.sqrt(rows + _ANSCOMBE))

    def scales(self, prior: Prior) -> np.ndarray:
        return np.ones(self.n_features)

    def make_prior(self, moments: Moments, shrinkage: str, n_rows: float) -> PoissonPrior:
        nothing = np.zeros(self.n_features)
        prior = PoissonPrior(float(n_rows), nothing, nothing, shrinkage != "none")
        prior.pool(moments, moments.mass / moments.mass.sum())
        return prior

    def maximise(
        self,
        moments: Moments,
        members: np.ndarray,
        prior: Prior,
        model: Model,
        compiled: bool,
    ) -> np.ndarray:
        assert isinstance(prior, PoissonPrior)
        rates = moments.mean[members]
        if prior.counts.any():
            rows = (moments.mass[members] * (model.decay[SCALE] * prior.n_rows))[:, None]
            rates = rates + prior.counts / (rows + prior.counts) * (prior.rates - rates)
        failures = ~np.isfinite(rates).all(axis=1)
        good, rates = members[~failures], np.maximum(rates[~failures], _LEAST_RATE)
        logarithms = np.log(rates)
        model.location[good] = rates
        model.linear[good] = logarithms
        model.constants[good] = rates * logarithms - rates
        model.log_normaliser[good] = model.constants[good].sum(axis=1)
        return np.asarray(failures)

    def split(
        self, model: Model, moments: Moments, prior: Prior, uniforms: np.ndarray
    ) -> tuple[Moments, Moments]:
        deviation = np.sqrt(np.maximum(moments.mean, 0.0) / self.n_features)
        shift = np.minimum(_SPLIT_DISTANCE * deviation, (1.0 - _SPLIT_REST) * moments.mean)
        shift = np.where(uniforms < 0.5, -shift, shift)
        return halves(moments, mean=shift)

    def negative_entropy(self, moments: Moments, shared: np.ndarray) -> np.ndarray:
        return np.asarray(xlogy(moments.mean, moments.mean).sum(axis=1))

    def parameters(self, model: Model, centre: np.ndarray) -> dict[str, np.ndarray]:
        return {"rates": model.location + centre}

    def moments_of(self, parameters: Parameters, centre: np.ndarray) -> Moments:
        return moments_of_mass_one(mean=np.array(parameters["rates"] - centre))

    def check_parameters(self, parameters: Parameters, prefix: str = "") -> None:
        check_not_negative(f"{prefix}rates", parameters["rates"])

    def n_parameters(self, n_components: int) -> int:
        return n_components * self.n_features

    def parts(self, parameters: Parameters, centre: np.ndarray) -> list[Part]:
        return [CountPart(np.arange(self.n_features), parameters["rates"])]


class CountPart(Part):
    """Poisson counts of rates (K, d)."""

    kind = "count"

    def __init__(self, columns: np.ndarray, rates: np.ndarray) -> None:
        self.columns, self.parameters = columns, {"rates": rates}
        self.means = self.variances = np.maximum(rates, _LEAST_RATE)

    def modes(self, pairs: Pairs, targets: np.ndarray) -> np.ndarray:
        return np.asarray(np.floor(super().modes(pairs, targets)))

    def draw(self, pairs: Pairs, targets: np.ndarray, random: RandomSource) -> np.ndarray:
        rates, _ = self.moments(pairs, targets)
        return np.asarray(random.poisson(rates), dtype=np.float64)

    def within(
        self, pairs: Pairs, target: int, low: np.ndarray, high: np.ndarray
    ) -> tuple[np.ndarray, Inverse]:
        rates, _ = self.moments(pairs, np.array([target]))
        low, high = np.maximum(np.ceil(low), 0.0), np.floor(high)
        below = np.where(low > 0.0, pdtr(np.maximum(low - 1.0, 0.0), rates), 0.0)
        shares = np.maximum(
            np.where(high < 0.0, 0.0, pdtr(np.maximum(high, 0.0), rates)) - below, 0.0
        )

        def inverse(uniforms: np.ndarray) -> np.ndarray:
            marks = below + uniforms * shares
            counts = np.nan_to_num(np.ceil(pdtrik(marks, rates)))
            # Where the root was rounded up.
            counts -= (counts > 0.0) & (pdtr(np.maximum(counts - 1.0, 0.0), rates) >= marks)
            return np.asarray(np.clip(counts, low, high))

        return shares, inverse

    def leave_out(self, rows: SeenRows) -> LeftOut:
        seen = np.flatnonzero(rows.seen[0])
        rates, counts = self.means[:, None, seen], rows.values[:, seen]
        log_densities = counts * np.log(rates) - rates - gammaln(counts + 1.0)
        return LeftOut(log_densities, rates, rates)

    def quantiles(
        self,
        weights: np.ndarray,
        means: np.ndarray,
        variances: np.ndarray,
        starts: np.ndarray,
        share: float,
        pairs: Pairs | None = None,
    ) -> np.ndarray:
        return poisson_quantiles(weights, means, starts, share)

    def distribution(self, column: int, weights: np.ndarray) -> Distribution:
        return CountMixture(weights, self.means[:, column])

    def positions(self) -> np.ndarray:
        return np.asarray(2.0 * np.sqrt(self.means))

    def bhattacharyya(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        roots = np.sqrt(self.means)
        return np.asarray(0.5 * np.square(roots[first] - roots[second]).sum(axis=1))

    @staticmethod
    def baseline(values: np.ndarray) -> float:
        rate = max(float(values.mean()), 1e-300)
        return float((values * math.log(rate) - rate - gammaln(values + 1.0)).sum())
