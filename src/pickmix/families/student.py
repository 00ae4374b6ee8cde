"""Student-t components: heavy tails, by degrees of freedom of each component."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import digamma, gammaln, polygamma

from pickmix.families.base import (
    HeldOutRows,
    LeftOut,
    LeftOutPairs,
    Pairs,
    Parameters,
    Part,
    Prior,
    RandomSource,
    SeenRows,
)
from pickmix.families.cholesky import unpack_symmetric
from pickmix.families.distributions import (
    Distribution,
    Inverse,
    StudentMixture,
    normal_within,
    student_quantiles,
)
from pickmix.families.gaussian import FullGaussian, check_positive_definite
from pickmix.families.gaussian_parts import DensePart
from pickmix.families.layout import Layout, Model, Moments
from pickmix.families.shrinkage import (
    FEWEST_ROWS,
    NOTHING,
    CovariancePrior,
    ShrinkagePrior,
    left_out_distances,
)

FIRST_DEGREES = 6.0  # Degrees of freedom that components start with.
# Their bounds: with two or less there is no variance, and with so many a t is a Gaussian.
LEAST_DEGREES, MOST_DEGREES = 2.1, 1000.0
_PSEUDO_ROWS = 50.0  # Of the degrees of freedom that components have in common.
_NEWTON_STEPS = 4
_LONGEST = 8.0  # Steps to degrees of freedom, in units of those of EM, at most.
_HALF_LOG_2PI = 0.5 * float(np.log(2.0 * np.pi))


def log_gap(degrees: np.ndarray | float) -> np.ndarray:
    """log E u - E log u of u from Gamma(nu / 2, nu / 2), which falls with nu."""
    return np.asarray(np.log(0.5 * np.asarray(degrees)) - digamma(0.5 * np.asarray(degrees)))


def degrees_of_gap(gap: np.ndarray) -> np.ndarray:
    """The degrees of freedom within bounds whose `log_gap` this is (Minka 2002).

    >>> float(degrees_of_gap(log_gap(np.array(7.0))).round(9))
    7.0
    """
    gap = np.clip(gap, log_gap(MOST_DEGREES), log_gap(LEAST_DEGREES))
    half = (3.0 - gap + np.sqrt(np.square(gap - 3.0) + 24.0 * gap)) / (12.0 * gap)
    for _ in range(_NEWTON_STEPS):
        slope = 1.0 / half - polygamma(1, half)
        rise = (np.log(half) - digamma(half) - gap) / (np.square(half) * slope)
        half = 1.0 / (1.0 / half + rise)
    return np.asarray(np.clip(2.0 * half, LEAST_DEGREES, MOST_DEGREES))


def log_constant(degrees: np.ndarray, n_columns: int | np.ndarray) -> np.ndarray:
    """Log-density at the location of a t with a scale matrix of one."""
    constant = gammaln(0.5 * (degrees + n_columns)) - gammaln(0.5 * degrees)
    return np.asarray(constant - 0.5 * n_columns * np.log(np.pi * degrees))


def gaps_of(counts: np.ndarray) -> np.ndarray:
    """`log_gap` (K,) by the counts of moments."""
    return np.asarray(-np.log(counts[:, 0]) - counts[:, 1] / counts[:, 0])


class StudentLayout(Layout):
    """The layout of Gaussians. Statistics have expected precisions u times the weights.

    Beside them, in place of levels, are two counts: weights, and weights times expected logarithms
    of u. Tables hold the degrees of freedom.
    """

    @property
    def kernels(self) -> str:
        return "student"

    def log_masses(self, moments: Moments, components: np.ndarray | None = None) -> np.ndarray:
        shares = moments.counts[:, 0] if components is None else moments.counts[components, 0]
        return np.asarray(super().log_masses(moments, components) + np.log(shares))


@dataclass
class StudentPrior(ShrinkagePrior):
    """Scale matrices are shrunk as covariances are, degrees of freedom to common ones."""

    gap: float = float(log_gap(FIRST_DEGREES))

    def pool(self, moments: Moments, masses: np.ndarray) -> None:
        super().pool(moments, masses)
        rows = masses * moments.counts[:, 0]
        gaps = np.clip(gaps_of(moments.counts), log_gap(MOST_DEGREES), log_gap(LEAST_DEGREES))
        self.gap = float(rows @ gaps / rows.sum())

    def estimate_shrinkage(
        self, moments: Moments, masses: np.ndarray, held_out: HeldOutRows
    ) -> None:
        k, residuals = held_out.components, np.nan_to_num(held_out.residuals)
        degrees = degrees_of_gap(gaps_of(moments.counts[k]))[:, None]
        floors = self.form.on_diagonal(self.form.floors) + self.lower_bound()
        matrices = unpack_symmetric(moments.scatter[k] + floors, residuals.shape[2])
        white = np.linalg.solve(matrices, residuals.transpose(0, 2, 1))
        squares = np.einsum("kmd,kdm->km", residuals, white)
        n_seen = np.count_nonzero(~np.isnan(held_out.residuals), axis=2)
        weights = held_out.weights * (degrees + n_seen) / (degrees + squares)
        super().estimate_shrinkage(moments, masses, held_out._replace(weights=weights))


class StudentT(FullGaussian):
    """t with a location, a scale matrix and degrees of freedom per component.

    p(x | k) ~ (1 + q / nu)^-(nu + D)/2 with q = (x - mean)' scale^-1 (x - mean). M-steps are those
    of EM with expected precisions, in the version that divides by their sum (Liu, Rubin and Wu
    1998); with `reg_covar` 0 and no shrinkage the likelihood never falls.
    """

    name = "student_t"
    takes_noise = False

    def __init__(self, n_columns: int, reg_covar: float | np.ndarray = 1e-6) -> None:
        super().__init__(n_columns, reg_covar)
        self.layout: Layout = StudentLayout(*self.layout)

    def empty_model(self, n_components: int) -> Model:
        return super().empty_model(n_components)._replace(tables=np.ones((n_components, 2)))

    def make_prior(self, moments: Moments, shrinkage: str, n_rows: float) -> CovariancePrior:
        prior = super().make_prior(moments, shrinkage, n_rows)
        if not isinstance(prior, ShrinkagePrior):
            return prior
        return StudentPrior.of(self, prior.pooled, moments.mass.shape[0], n_rows)

    def maximise(
        self,
        moments: Moments,
        members: np.ndarray,
        prior: Prior,
        model: Model,
        compiled: bool,
    ) -> np.ndarray:
        failures = super().maximise(moments, members, prior, model, compiled)
        good = members[~failures]
        counts = moments.counts[good]
        gaps = gaps_of(counts)
        if isinstance(prior, StudentPrior):
            rows = moments.mass[good] * counts[:, 0] * (model.decay[0] * prior.n_rows)
            gaps += _PSEUDO_ROWS / (rows + _PSEUDO_ROWS) * (prior.gap - gaps)
        degrees = degrees_of_gap(gaps)
        model.tables[good, 0] = degrees
        model.tables[good, 1] = 1.0
        if isinstance(prior, StudentPrior):
            model.tables[good, 1] = _lengthening(degrees, self.n_features)
        constants = log_constant(degrees, self.n_features) + self.n_features * _HALF_LOG_2PI
        model.log_normaliser[good] += constants
        return failures

    def self_scores(self, model: Model, moments: Moments) -> np.ndarray:
        degrees = model.tables[:, 0]
        return np.asarray(model.log_normaliser - _mean_tail(degrees, self.n_features))

    def negative_entropy(self, moments: Moments, shared: np.ndarray) -> np.ndarray:
        degrees = degrees_of_gap(gaps_of(moments.counts))
        constants = log_constant(degrees, self.n_features) - _mean_tail(degrees, self.n_features)
        return np.asarray(super().negative_entropy(moments, shared) + constants)

    def left_out_falls(self, model: Model, prior: Prior, pairs: LeftOutPairs) -> np.ndarray:
        assert isinstance(prior, CovariancePrior)
        k, D = pairs.components, self.n_features
        degrees, n = model.tables[k, 0], pairs.counts
        half = 0.5 * (degrees + D)
        tails = np.maximum(model.log_normaliser[k] - pairs.log_densities, 0.0)
        distances = degrees * np.expm1(np.minimum(tails / half, 600.0))
        # A row that is left out changes the precisions of the others, by this much more.
        weights = pairs.weights * (2.0 * half + 2.0) / (degrees + distances)
        own = prior.sample_shares(k, n)
        leverage, without = left_out_distances(distances, weights, n, own)
        falls = 0.5 * np.log1p(-leverage) + half * np.log1p(without / degrees) - tails
        return np.where(n - pairs.weights > FEWEST_ROWS, falls, NOTHING)

    def n_parameters(self, n_components: int) -> int:
        return super().n_parameters(n_components) + n_components

    # Parameters.

    def parameters(self, model: Model, centre: np.ndarray) -> dict[str, np.ndarray]:
        found = super().parameters(model, centre)
        degrees = model.tables[:, 0].copy()
        return {
            "means": found["means"],
            "scales": found["covariances"],
            "degrees_of_freedom": degrees,
        }

    def parameter_shapes(self, n_components: int) -> dict[str, tuple[int, ...]]:
        D = self.n_features
        shapes = (n_components, D), (n_components, D, D), (n_components,)
        return dict(zip(("means", "scales", "degrees_of_freedom"), shapes, strict=True))

    def check_parameters(self, parameters: Parameters, prefix: str = "") -> None:
        check_positive_definite(f"{prefix}scales", parameters["scales"], self.name)
        degrees = parameters["degrees_of_freedom"]
        if (degrees < LEAST_DEGREES).any():
            raise ValueError(
                f"{prefix}degrees_of_freedom must be at least {LEAST_DEGREES}, got "
                f"{float(degrees.min())!r}."
            )

    def moments_of(self, parameters: Parameters, centre: np.ndarray) -> Moments:
        gaussian = {"means": parameters["means"], "covariances": parameters["scales"]}
        moments = super().moments_of(gaussian, centre)
        gaps = log_gap(parameters["degrees_of_freedom"])
        return moments._replace(counts=np.stack([np.ones_like(gaps), -gaps], axis=1))

    def parts(self, parameters: Parameters, centre: np.ndarray) -> list[Part]:
        return [StudentPart(np.arange(self.n_features), parameters, centre)]


def _lengthening(degrees: np.ndarray, n_columns: int) -> np.ndarray:
    """How much longer than an EM step is the way to the most probable degrees of freedom.

    That is the information of precisions on them, relative to that of rows (Lange, Little and
    Taylor 1989).
    """
    both = degrees + n_columns
    of_precisions = 0.25 * (polygamma(1, 0.5 * degrees) - 2.0 / degrees)
    of_rows = 0.25 * (polygamma(1, 0.5 * degrees) - polygamma(1, 0.5 * both))
    of_rows -= n_columns * (both + 4.0) / (2.0 * degrees * both * (both + 2.0))
    return np.asarray(np.minimum(of_precisions / np.maximum(of_rows, 1e-300), _LONGEST))


def _mean_tail(degrees: np.ndarray, n_columns: int) -> np.ndarray:
    """Expected fall of the log-density of a t below that at its location."""
    half = 0.5 * (degrees + n_columns)
    return np.asarray(half * (digamma(half) - digamma(0.5 * degrees)))


class StudentPart(DensePart):
    """t columns. With seen cells S, q = (x - mean)' scale^-1 (x - mean) of these, the others are t
    with nu + |S| degrees of freedom, the mean of a Gaussian, and its matrix times (nu + q) / (nu +
    |S|).
    """

    def __init__(self, columns: np.ndarray, parameters: Parameters, centre: np.ndarray) -> None:
        super().__init__(columns, parameters["means"], parameters["scales"], centre)
        self.parameters = dict(parameters)
        self.degrees = parameters["degrees_of_freedom"]
        self.variances = self.variances * (self.degrees / (self.degrees - 2.0))[:, None]

    def marginal(self, targets: np.ndarray) -> dict[str, np.ndarray]:
        found = super().marginal(targets)
        return _named(found, self.degrees.copy())

    def conditional(self, rows: SeenRows, targets: np.ndarray) -> dict[str, np.ndarray]:
        components = np.arange(self.degrees.shape[0])
        pairs = Pairs(rows, np.zeros_like(components), components)
        found = super().conditional(rows, targets)
        # Covariances are those of t here.
        degrees = self._degrees(pairs)
        found["covariances"] = found["covariances"] * ((degrees - 2.0) / degrees)[:, None, None]
        return _named(found, degrees)

    def moments(self, pairs: Pairs, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        means, variances = super().moments(pairs, targets)
        return means, variances * self._inflation(pairs)[:, None]

    def covariances(self, pairs: Pairs, targets: np.ndarray) -> np.ndarray:
        found = super().covariances(pairs, targets)
        return np.asarray(found * self._inflation(pairs)[:, None, None])

    def draw(self, pairs: Pairs, targets: np.ndarray, random: RandomSource) -> np.ndarray:
        drawn = super().draw(pairs, targets, random)
        means, _ = super().moments(pairs, targets)
        chances = random.chisquare(self._degrees(pairs))
        scale = np.sqrt((self.degrees[pairs.components] + self._distances(pairs)) / chances)
        return np.asarray(means + scale[:, None] * (drawn - means))

    def leave_out(self, rows: SeenRows) -> LeftOut:
        found = super().leave_out(rows)
        seen = np.flatnonzero(rows.seen[0])
        away = rows.values[:, seen] - self.means[:, None, seen]
        white = away @ self._whitener(seen, None).transpose(0, 2, 1)
        whole = np.square(white).sum(axis=2, keepdims=True)
        alone = np.square(rows.values[:, seen] - found.means) / found.variances
        degrees = self.degrees[:, None, None]
        # Of the other cells.
        rest = degrees + np.maximum(whole - alone, 0.0)
        half = 0.5 * (degrees + seen.shape[0])
        log_densities = gammaln(half) - gammaln(half - 0.5) - 0.5 * np.log(np.pi * found.variances)
        log_densities = log_densities - 0.5 * np.log(rest) - half * np.log1p(alone / rest)
        variances = found.variances * rest / (2.0 * half - 3.0)
        return LeftOut(log_densities, found.means, variances)

    def quantiles(
        self,
        weights: np.ndarray,
        means: np.ndarray,
        variances: np.ndarray,
        starts: np.ndarray,
        share: float,
        pairs: Pairs | None = None,
    ) -> np.ndarray:
        assert pairs is not None
        degrees = self._degrees(pairs)
        scales = np.sqrt(variances * (degrees - 2.0) / degrees)
        return student_quantiles(weights, means, scales, degrees, starts, share)

    def within(
        self, pairs: Pairs, target: int, low: np.ndarray, high: np.ndarray
    ) -> tuple[np.ndarray, Inverse]:
        means, variances = self.moments(pairs, np.array([target]))
        degrees = self._degrees(pairs)[:, None]
        scales = np.sqrt(variances * (degrees - 2.0) / degrees)
        return normal_within(means, scales, low, high, degrees)

    def distribution(self, column: int, weights: np.ndarray) -> Distribution:
        scales = np.sqrt(self.matrices[:, column, column])
        return StudentMixture(weights, self.typical()[:, column], scales, self.degrees)

    def _degrees(self, pairs: Pairs) -> np.ndarray:
        """Degrees of freedom (P,) given the seen cells."""
        n_seen = np.count_nonzero(pairs.rows.seen, axis=1)
        return np.asarray(self.degrees[pairs.components] + n_seen[pairs.which])

    def _inflation(self, pairs: Pairs) -> np.ndarray:
        """Variances (P,) given the seen cells, in units of those of a Gaussian."""
        above = self.degrees[pairs.components] + self._distances(pairs)
        return np.asarray(above / (self._degrees(pairs) - 2.0))

    def _distances(self, pairs: Pairs) -> np.ndarray:
        """Squared distances (P,) of the seen cells."""
        rows, which, components = pairs
        squares, patterns = np.zeros(which.shape[0]), rows.patterns[which]
        for pattern in np.unique(patterns).tolist():
            some = np.flatnonzero(patterns == pattern)
            seen = np.flatnonzero(rows.seen[which[some[0]]])
            if not seen.size:
                continue
            whitener = self._whitener(seen, None)
            order = some[np.argsort(components[some], kind="stable")]
            ends = np.flatnonzero(np.diff(components[order], prepend=-1, append=-1))
            for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
                these = order[first:last]
                k = int(components[these[0]])
                away = rows.values[which[these][:, None], seen] - self.means[k, seen]
                squares[these] = np.square(away @ whitener[k].T).sum(axis=1)
        return squares


def _named(found: dict[str, np.ndarray], degrees: np.ndarray) -> dict[str, np.ndarray]:
    means, scales = found["means"], found["covariances"]
    return {"means": means, "scales": scales, "degrees_of_freedom": degrees}
