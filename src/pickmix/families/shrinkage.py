"""Priors of Gaussian covariances: how far each component is shrunk towards what all share.

`ShrinkagePrior` is that of most fits. A component's correlations are shrunk to those that all
components share, with the weight under which its rows, each left out once, are most probable. Its
variances are shrunk to typical ones, in logarithms, so that a narrow direction stays narrow: by as
much as the variances of different components are alike (empirical Bayes).

For a component of n rows with residuals r about their mean, S their covariance (divisor n), a
target T and a weight lambda, the covariance in use is

    G = (1 - lambda) n / (n - 1) S + lambda T.

Without one row of weight w it is G - b w r r', b = (1 - lambda) n / (n - 1)^2, and the mean moves
away from that row by the factor n / (n - w). With d = r' G^-1 r the log-density of the row under
the component estimated from the others is, up to a constant,

    -1/2 [ log|G| + log(1 - b w d) + (n / (n - w))^2 d / (1 - b w d) ]

(after Hoffbeck and Landgrebe 1996, and Theiler 2012). Its sum over the rows is maximised over
lambda. S and T have a common eigenbasis, so that all lambdas cost little more than one.
"""

from __future__ import annotations

import abc
import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pickmix.families.base import NO_MASS, HeldOutRows, Prior
from pickmix.families.layout import SCALE, SQUARE_SCALE, Moments

if TYPE_CHECKING:
    from pickmix.families.gaussian import Gaussian

_FIRST_PSEUDO_ROWS = 10.0  # Pseudo-rows before shrinkage has been estimated.
_ALL = 1e12  # Stands for complete shrinkage.
# Pseudo-rows to choose from, and shrinkage of shared correlations to none.
_PSEUDO_ROWS = np.array([0.0, 0.01, 0.1, 0.3, 1.0, 3.0, 8.0, 20.0, 50.0, 150.0, 600.0, _ALL])
_DAMPINGS = np.array([0.0, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.2, 0.35, 0.6, 0.9, 1.0])
_PSEUDO_ROWS_PER_PARAMETER = 1.5  # Of a covariance at most, where rows are partial.
_DAMPING_ROWS = 2000  # Rows from which damping is estimated, where rows are partial.
_FIRST_DAMPING = 0.1  # Before it has been estimated.
_SHARE_STEPS = 20  # Steps of empirical Bayes.
_SHARE_START = 0.1  # Prior count of every choice, in components.
_LEAST_SHRINKAGE = 0.5  # The weight of common correlations in a component without rows, at least.
_MOST_POOLED = 20_000  # Components from which shared parameters are learnt, at most.
_LEAST_ROWS = 2.5  # Components of fewer effective rows are shrunk completely.
# Pseudo-rows of variances: before they have been compared, and their bounds.
_FIRST_FREEDOM, _FEWEST_FREEDOMS, _MOST_FREEDOMS = 2.0, 0.02, 50.0
_NO_VARIANCE = 1e-304  # Stands for no variance at all.
_LEAST_VARIANCE = 1e-200  # The same, relative to the usual variance.
_LEAST_FREEDOM = 0.5  # Degrees of freedom at least.
_SIZE_ROWS = 2.0  # Pseudo-rows of a component's size.
_REACH = 0.5  # Standard deviation of a background / largest distance from the centre.
_MOST_LEVERAGE = 0.98  # A row that makes up this much of a covariance, or more, has all of it.
_WHOLE = 1.0 - 1e-9  # Leverage of a row without which there is no covariance.
_LEAST_REST = 0.05  # Effective rows that a component keeps at least when one is left out.
# A column is constant in a component with a variance below so many times its floor, and varies
# among all rows if that of a background is far above it.
_EQUAL, _VARIES = 10.0, 1e3
_FEW_TIES = 0.01  # Of variances.
FEWEST_ROWS = 0.5  # With fewer effective rows there is no component.
NOTHING = 1e4  # Decrease of its log-density then.
_FIRMNESS = 1e-10  # Added to targets, whose variances are about one.

_BLOCK = 256  # Matrices decomposed at a time.
_PARTIAL_NUMBERS = 2_000_000  # Numbers in matrices of partial rows.
_LEAST_COUNT = 2.5  # Effective rows of a component at least, of which little was seen.


def background_reach(extent: np.ndarray) -> np.ndarray:
    """Standard deviations (D,) of a background for rows up to `extent` (D,) from its centre."""
    reaching = extent[extent > 0.0]
    # In a constant column a new row may be as far off as in the others.
    usual = float(np.median(reaching)) if reaching.shape[0] else 0.0
    return np.asarray(_REACH * np.where(extent > 0.0, extent, usual))


@dataclass
class CovariancePrior(Prior):
    """What priors of Gaussian components have in common."""

    form: Gaussian
    n_rows: float  # Rows behind all statistics together.
    pooled: np.ndarray  # (P,) Covariance that the components have in common.

    @property
    def allows_background(self) -> bool:
        return False

    def lower_bound(self) -> np.ndarray:
        """A lower bound (P,) of the pooled covariance."""
        unit = self.form.identity()
        mean_variance = float(self.pooled @ unit) / float(unit @ unit)
        return self.form.on_diagonal(self.form.floors + 1e-10 * mean_variance + 1e-280)

    def sample_shares(self, members: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Share (U,) of a covariance in use that comes from the component's rows, so many."""
        return np.zeros_like(counts)

    @abc.abstractmethod
    def shrink(self, moments: Moments, members: np.ndarray, decay: np.ndarray) -> np.ndarray:
        """Covariances in use (U, P) of some components, before reg_covar."""


@dataclass
class GaussianPrior(CovariancePrior):
    """The pooled covariance, towards which components of few rows are shrunk."""

    least_count: float  # Components of fewer effective rows are shrunk; 0: none.
    #: Sum of mass times covariance, and sums of mass, squared weights and degrees of freedom,
    #: each with forgetting: what the pooled covariance comes from without pseudo-rows.
    scatter: np.ndarray
    totals: np.ndarray
    is_shared: bool  # Whether the pooled covariance is that of every component.

    def pool(self, moments: Moments, masses: np.ndarray) -> None:
        """The pooled covariance is learnt from updates."""

    def shrink(self, moments: Moments, members: np.ndarray, decay: np.ndarray) -> np.ndarray:
        covariances = self.form.project(moments.scatter[members])
        if self.least_count == 0.0:
            return covariances
        masses = moments.mass[members] * decay[SCALE]
        spread = moments.squares[members] * decay[SQUARE_SCALE] * self.least_count
        ratio = np.divide(masses**2, spread, out=np.zeros_like(masses), where=spread > 0.0)
        trust = np.minimum(1.0, ratio)[:, None]
        return np.asarray(trust * covariances + (1.0 - trust) * self.pooled)

    @property
    def needs_gains(self) -> bool:
        return 0.0 < self.least_count < np.inf or self.is_shared

    def absorb(
        self, kept: float, mass: float, squares: float, freedom: float, scatter: np.ndarray
    ) -> None:
        self.scatter = kept * self.scatter + self.form.project(scatter[None])[0]
        self.totals = np.array([kept, kept * kept, kept]) * self.totals + [mass, squares, freedom]
        trust, divisor = 1.0, self.totals[0]
        if self.least_count > 0.0:
            divisor = self.totals[2]
            spread = self.totals[1] * self.least_count
            trust = min(1.0, self.totals[0] * self.totals[2] / spread) if spread > 0.0 else 0.0
        if divisor > NO_MASS and trust > 0.0:
            self.pooled = trust * self.scatter / divisor + (1.0 - trust) * self.pooled


@dataclass
class ShrinkagePrior(CovariancePrior):
    """Shared covariance structure, and the shrinkage of each component towards it."""

    # The pooled covariance has a mean shape and a geometric mean size.
    log_variances: np.ndarray  # (D,) Logarithms of typical variances, relative to size.
    freedoms: np.ndarray  # (D,) Pseudo-rows of the shrinkage of variances to these.
    correlations: np.ndarray  # (P,) Shared correlations; ones on the diagonal.
    pseudo_rows: np.ndarray  # (K,) m: a component of n rows is shrunk by m / (n + m).
    reach: np.ndarray  # (D,) Standard deviations of a background of outlying rows.
    damping: float = _FIRST_DAMPING  # Shrinkage of shared correlations to none.
    background: int = -1  # Its component; -1 if there is none.
    has_ties: bool = False  # Whether columns that vary are constant in components.
    undecided: bool = False  # Whether `choose` is due before the first M-step.

    @classmethod
    def of(cls, form: Gaussian, pooled: np.ndarray, n: int, n_rows: float) -> ShrinkagePrior:
        """Initial prior of n components, before shrinkage has been estimated."""
        i, j = form.layout.pairs()
        D = form.n_features
        return cls(
            form=form,
            n_rows=n_rows,
            pooled=pooled,
            log_variances=np.log(np.maximum(pooled[i == j], 0.0) + form.floors + _NO_VARIANCE),
            freedoms=np.full(D, _FIRST_FREEDOM),
            correlations=(i == j).astype(np.float64),
            pseudo_rows=np.full(n, _FIRST_PSEUDO_ROWS),
            reach=np.zeros(D),
        )

    def copy(self) -> ShrinkagePrior:
        other = copy.copy(self)
        other.pseudo_rows = self.pseudo_rows.copy()
        return other

    def take(self, components: np.ndarray) -> ShrinkagePrior:
        other = copy.copy(self)
        other.pseudo_rows = self.pseudo_rows[components]
        there = np.flatnonzero(components == self.background)
        other.background = int(there[0]) if there.shape[0] else -1
        return other

    def put(self, components: np.ndarray, other: ShrinkagePrior, which: np.ndarray) -> None:
        self.pseudo_rows[components] = other.pseudo_rows[which]

    @property
    def estimates_shrinkage(self) -> bool:
        return self.form.products != "diagonal"

    @property
    def allows_background(self) -> bool:
        return bool((self.reach > 0.0).any())

    @property
    def lacks_background(self) -> bool:
        return self.allows_background and self.background < 0 and self.has_ties

    def allow_background(self, extent: np.ndarray) -> None:
        self.reach = background_reach(extent)

    def resume_background(self, component: int, moments: Moments) -> None:
        self.background = component
        self.reach = np.sqrt(self.form.variances(moments.scatter[component]))

    def resume(self) -> None:
        self.pseudo_rows = np.zeros_like(self.pseudo_rows)
        self.undecided = True

    def broad(self) -> np.ndarray:
        """The packed covariance (P,) of a background, before reg_covar."""
        return np.asarray(self.form.pack_matrices(np.diag(np.square(self.reach))[None])[0])

    def _floored(self, covariances: np.ndarray, stretch: np.ndarray | float = 1.0) -> np.ndarray:
        """Variances (K, D) times `stretch`, bounded so that their logarithm is finite."""
        variances = covariances.take(self.form.diagonal, axis=1) * stretch
        return np.asarray(np.maximum(variances, 0.0) + (self.form.floors + self._least()))

    def _least(self) -> np.ndarray:
        """Variances (D,) that stand for none: their inverses can still be squared."""
        usual = self.pooled[self.form.diagonal]
        return np.asarray(np.maximum(_LEAST_VARIANCE * usual, _NO_VARIANCE))

    # Shared parameters.

    def pool(self, moments: Moments, masses: np.ndarray) -> None:
        some = np.flatnonzero(masses * self.n_rows > 1.0)
        some = some[some != self.background]
        if some.shape[0] > _MOST_POOLED:
            some = some[np.linspace(0, some.shape[0] - 1, _MOST_POOLED).astype(np.int64)]
        covariances = self.form.project(moments.scatter[some])
        freedom = masses[some] * self.n_rows - 1.0
        self._pool_shapes(covariances, freedom)
        variances, floors = covariances[:, self.form.diagonal], self.form.floors
        varied = np.square(self.reach) > _VARIES * floors
        n_tied = int(((variances < _EQUAL * floors) & varied).sum())
        self.has_ties = n_tied > _FEW_TIES * variances.size
        seen = freedom > 1.0
        if not seen.all():
            covariances, freedom = covariances[seen], freedom[seen]
        if seen.any():
            self._pool_variances(covariances, freedom)
            self._pool_correlations(covariances, freedom)

    def _pool_shapes(self, covariances: np.ndarray, freedom: np.ndarray) -> None:
        """Mean covariance / size, times the geometric mean size: no wide component dominates."""
        weights = self.form.trace_weights(self.pooled + self.lower_bound())
        sizes = covariances @ weights
        good = sizes > 1e-280
        freedom, sizes = freedom[good], sizes[good]
        total = float(freedom.sum())
        if total > 0.0:
            shape = (freedom / sizes) @ covariances[good] / total
            self.pooled = shape * float(np.exp(freedom @ np.log(sizes) / total))

    def _pool_variances(self, covariances: np.ndarray, freedom: np.ndarray) -> None:
        logs = np.log(self._floored(covariances, (1.0 + 1.0 / freedom)[:, None]))
        self.log_variances, self.freedoms = typical_variances(logs, freedom, self.log_variances)

    def _pool_correlations(self, covariances: np.ndarray, freedom: np.ndarray) -> None:
        i, j = self.form.layout.pairs()
        scale = 1.0 / np.sqrt(self._floored(covariances))
        share = freedom / freedom.sum()
        correlations = share @ (covariances * (scale.take(i, axis=1) * scale.take(j, axis=1)))
        self.correlations = np.where(i == j, 1.0, correlations)

    def _damped(self) -> np.ndarray:
        """Correlations (P,) towards which components are shrunk."""
        i, j = self.form.layout.pairs()
        return np.where(i == j, 1.0, (1.0 - self.damping) * self.correlations)

    # Shrinkage of each component.

    def shrinkages(self, members: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Shrinkage lambda (U,) of components of so many rows.

        Fewer rows than columns have no covariance, so lambda has a lower bound there, whatever has
        been estimated for a component or inherited from a larger one.
        """
        pseudo = self.pseudo_rows[members]
        missing = 1.0 - np.maximum(counts - 1.0, 0.0) / (self.form.n_features + 1.0)
        least = _LEAST_SHRINKAGE * np.maximum(missing, 0.0)
        return np.asarray(np.maximum(pseudo / (np.maximum(counts, 1e-300) + pseudo), least))

    def sample_shares(self, members: np.ndarray, counts: np.ndarray) -> np.ndarray:
        if self.form.products != "diagonal":
            return np.asarray(1.0 - self.shrinkages(members, counts) * (1.0 - self._kept))
        # As `shrunk_variances`: each variance follows the rows by its trust, and what is left of it
        # by the size, which all columns have in common.
        freedom = np.maximum(counts - 1.0, 0.0)
        trust = (freedom[..., None] / (freedom[..., None] + self.freedoms)).mean(axis=-1)
        sizes = freedom / (freedom + _SIZE_ROWS) / (1 if self.form.averages else len(self.freedoms))
        return np.asarray(self._kept * (trust + (1.0 - trust) * sizes))

    @property
    def _kept(self) -> float:
        """Effect of a row on variances relative to that on a covariance.

        A covariance of Gaussian rows has D (D + 1) / 2 parameters, variances are D or 1 of them.
        """
        D = self.form.n_features
        return 2.0 / (D * (D + 1.0)) if self.form.averages else 2.0 / (D + 1.0)

    def shrink(self, moments: Moments, members: np.ndarray, decay: np.ndarray) -> np.ndarray:
        counts = moments.mass[members] * (decay[SCALE] * self.n_rows)
        own, target = self._parts(self.form.project(moments.scatter[members]), counts)
        used = own
        if self.estimates_shrinkage:
            used = own + self.shrinkages(members, counts)[:, None] * (target - own)
        if self.background >= 0:
            used[members == self.background] = self.broad()
        if not self.form.floors.all():
            # Such a component is singular: it keeps the parameters that it has.
            diagonal = self.form.diagonal
            vanished = used[:, diagonal] <= self._least()
            used[:, diagonal] = np.where(vanished, 0.0, used[:, diagonal])
        return np.asarray(used)

    def _parts(self, covariances: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sample covariances, and variances in use with shared correlations, before reg_covar."""
        i, j = self.form.layout.pairs()
        freedom = np.maximum(counts - 1.0, 0.0)[:, None]
        stretch = 1.0 + 1.0 / np.maximum(freedom, _LEAST_FREEDOM)
        logs = np.log(self._floored(covariances, stretch))
        used = shrunk_variances(logs, freedom, self.log_variances, self.freedoms)
        used = used - self.form.floors
        used[used <= 10.0 * self._least()] = 0.0
        if not self.estimates_shrinkage:
            return used, used
        deviations = np.sqrt(used)
        target = self._damped() * (deviations.take(i, axis=1) * deviations.take(j, axis=1))
        # Own variances stay as they are: other ones would tilt directions that are narrow.
        return covariances * stretch, target

    def estimate_shrinkage(
        self, moments: Moments, masses: np.ndarray, held_out: HeldOutRows
    ) -> None:
        self.undecided = False
        counts = masses * self.n_rows
        enough = counts >= _LEAST_ROWS
        self.pseudo_rows = np.where(enough, self.pseudo_rows, _ALL)
        eligible = enough[held_out.components]
        informed = eligible & (held_out.weights.sum(axis=1) >= 1.0)
        # A small batch of a stream has no rows of most components, which then stay as they are.
        if not self.estimates_shrinkage or not 2 * np.count_nonzero(informed) > np.count_nonzero(
            eligible
        ):
            return
        eligible = informed
        chosen = held_out.components[eligible]
        n, weights = counts[chosen], held_out.weights[eligible]
        own, target = self._parts(moments.scatter[chosen], n)
        # In units of each component's deviations.
        scale = 1.0 / np.sqrt(self._floored(own))
        residuals = held_out.residuals[eligible] * scale[:, None, :]
        noise = held_out.noise
        if noise is not None:
            noise = noise[eligible] * scale[:, None, :, None] * scale[:, None, None, :]
        self._estimate_damping(n, residuals, weights, noise)
        pseudo = self._allowed(self._scaled(own, scale), residuals, weights, noise)
        shrinkages = pseudo / (n[:, None] + pseudo)
        scores = n[:, None] * leave_one_out_scores(
            self._scaled(own, scale),
            self._scaled(target, scale),
            np.maximum(n * certainties(weights), _LEAST_ROWS),
            residuals,
            weights,
            shrinkages,
            self._kept,
            noise,
        )
        shares, posterior = common_shares(scores)
        enough[chosen] = False
        others = counts[enough]
        self.pseudo_rows[chosen] = _pseudo_rows((posterior * shrinkages).sum(axis=1), n)
        # The others get the average shrinkage.
        typical = pseudo.mean(axis=0)
        usual = (typical / (others[:, None] + typical)) @ shares
        self.pseudo_rows[enough] = _pseudo_rows(usual, others)

    def _allowed(
        self,
        own: np.ndarray,
        residuals: np.ndarray,
        weights: np.ndarray,
        noise: np.ndarray | None,
    ) -> np.ndarray:
        """Pseudo-rows (M, L) to choose from.

        Missing values are filled in by the covariance in use, which draws sample covariances to it,
        so that rows cannot show whether shrinkage is right: pseudo-rows per parameter are limited
        then.
        """
        if noise is None and not np.isnan(residuals).any():
            return np.broadcast_to(_PSEUDO_ROWS, (own.shape[0], _PSEUDO_ROWS.shape[0]))
        observed = np.clip(observed_information(own, residuals, weights, noise), 0.01, 1.0)
        D = self.form.n_features
        most = _PSEUDO_ROWS_PER_PARAMETER * D * (D + 1.0) / 2.0
        most = most / (observed * np.maximum(1.0 - observed, 1e-9))
        return np.asarray(np.minimum(_PSEUDO_ROWS, most[:, None]))

    def _scaled(self, packed: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Covariances (M, D, D) of packed ones (M, P) plus reg_covar, rows and columns scaled."""
        matrices = self.form.unpack(packed)
        diagonal = np.arange(self.form.n_features)
        matrices[:, diagonal, diagonal] += self.form.floors
        return np.asarray(matrices * scale[:, :, None] * scale[:, None, :])

    def _estimate_damping(
        self,
        counts: np.ndarray,
        residuals: np.ndarray,
        weights: np.ndarray,
        noise: np.ndarray | None,
    ) -> None:
        """Choose the shrinkage of shared correlations to none, by all rows (M, m, D)."""
        D = self.form.n_features
        # Residuals about their components' means are too small.
        stretched = residuals * np.sqrt(counts / (counts - 1.0))[:, None, None]
        rows, row_weights = stretched.reshape(-1, D), weights.ravel()
        some = np.arange(rows.shape[0])
        if noise is not None or np.isnan(rows).any():
            # Every one takes long, and some are enough for one number.
            some = np.flatnonzero(row_weights > 0.0)
            some = some[:: max(1, some.shape[0] // _DAMPING_ROWS)]
        scores = leave_one_out_scores(
            self.form.unpack(self.correlations[None]),
            np.eye(D)[None],
            np.maximum((counts - 1.0).sum(keepdims=True), 2.0),
            rows[None, some],
            row_weights[None, some],
            _DAMPINGS[None],
            noise=None if noise is None else noise.reshape(1, -1, D, D)[:, some],
        )
        self.damping = float(_DAMPINGS[scores[0].argmax()])


def typical_variances(
    logs: np.ndarray, freedom: np.ndarray, log_variances: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Typical logarithms (D,) of variances (K, D), and 2 / their variance as pseudo-rows (D,).

    The logarithm of a variance from n rows has the variance 2 / (n - 1). `log_variances` (D,) are
    typical ones to begin with.
    """
    share = freedom / freedom.sum()
    for _ in range(2):
        sizes = (logs - log_variances).mean(axis=1)
        # Sizes are relative to the geometric mean size.
        sizes -= share @ sizes
        log_variances = share @ (logs - sizes[:, None])
    rest = logs - sizes[:, None] - log_variances
    D = logs.shape[1]
    noise = 2.0 * logs.shape[0] / freedom.sum() * (1.0 - 1.0 / D)
    variance = share @ np.square(rest) - noise
    freedoms = np.clip(2.0 / np.maximum(variance, 1e-3), _FEWEST_FREEDOMS, _MOST_FREEDOMS)
    return log_variances, freedoms


def shrunk_variances(
    logs: np.ndarray, freedom: np.ndarray, log_variances: np.ndarray, freedoms: np.ndarray
) -> np.ndarray:
    """Variances (K, D) of components with `freedom` (K, 1), shrunk to typical ones."""
    sizes = (logs - log_variances).mean(axis=1, keepdims=True)
    # The size of a component of few rows is shrunk to 1.
    sizes *= freedom / (freedom + _SIZE_ROWS)
    trust = freedom / (freedom + freedoms)
    return np.asarray(np.exp(trust * logs + (1.0 - trust) * (sizes + log_variances)))


def certainties(weights: np.ndarray) -> np.ndarray:
    """Mean weight (M,) of the rows of components, out of weights (M, m): 1 without overlap.

    Where components overlap, leaving out a row changes the weights of others too. A component then
    has the information of so many of its rows.
    """
    n_rows = np.maximum(np.count_nonzero(weights, axis=1), 1)
    return np.asarray(np.minimum(weights.sum(axis=1) / n_rows, 1.0))


def _pseudo_rows(shrinkages: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """m with m / (n + m) = lambda."""
    return np.asarray(np.minimum(counts * shrinkages / np.maximum(1.0 - shrinkages, 1e-12), _ALL))


def common_shares(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shares (L,) of the choices among components, and each component's posterior (M, L).

    Empirical Bayes: the shares under which the scores (M, L), taken as log-likelihoods, are most
    probable, so that similar components of few rows choose alike.
    """
    likelihood = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares = np.full(scores.shape[1], 1.0 / scores.shape[1])
    posterior = likelihood
    for _ in range(_SHARE_STEPS):
        posterior = likelihood * shares
        posterior /= posterior.sum(axis=1, keepdims=True)
        shares = posterior.sum(axis=0) + _SHARE_START
        shares /= shares.sum()
    return shares, posterior


def without_row(
    distances: np.ndarray,
    weights: np.ndarray,
    counts: np.ndarray,
    own: np.ndarray,
    most: float = _MOST_LEVERAGE,
) -> np.ndarray:
    """Decrease of the log-density of a row when its component is estimated without it.

    distances d = r' G^-1 r, weights w of the rows in the component, its effective rows n, and the
    share 1 - lambda of the sample covariance; all broadcast. No row has more leverage than `most`.

    >>> float(without_row(np.array(0.0), np.array(1.0), np.array(1e9), np.array(1.0))) < 1e-8
    True
    """
    leverage, without = left_out_distances(distances, weights, counts, own, most)
    fall = 0.5 * (np.log1p(-leverage) + (without - distances))
    # Without its only row a component is not there.
    return np.asarray(np.where(counts - weights > FEWEST_ROWS, fall, NOTHING))


def left_out_distances(
    distances: np.ndarray,
    weights: np.ndarray,
    counts: np.ndarray,
    own: np.ndarray,
    most: float = _MOST_LEVERAGE,
) -> tuple[np.ndarray, np.ndarray]:
    """Leverages b w d of rows, and their distances when components are estimated without them."""
    rest = np.maximum(counts - weights, _LEAST_REST)
    moved = np.square(counts / rest)
    shares = own * counts / np.square(np.maximum(counts - 1.0, _LEAST_REST)) * weights
    leverage = np.minimum(shares * distances, most)
    return leverage, distances * (moved / (1.0 - leverage))


def leave_one_out_scores(
    covariances: np.ndarray,
    targets: np.ndarray,
    counts: np.ndarray,
    residuals: np.ndarray,
    weights: np.ndarray,
    shrinkages: np.ndarray,
    kept: float = 0.0,
    noise: np.ndarray | None = None,
) -> np.ndarray:
    """Mean log-density (M, L) of left-out rows, for each shrinkage, up to a constant.

    covariances (M, D, D) are n / (n - 1) S, targets (M, D, D) have variances of about one, counts
    (M,) are n > 1, residuals (M, m, D) have weights (M, m), 0 for padding; noise is (M, m, D, D).
    `kept` is the effect of a row on a target made of the same rows, relative to that on their
    covariance.
    """
    n_components, m, D = residuals.shape
    is_partial = noise is not None or bool(np.isnan(residuals).any())
    size = max(1, _PARTIAL_NUMBERS // max(1, m * D * D)) if is_partial else _BLOCK
    # A little more on the diagonal, as correlations that all share may be singular.
    targets = targets + _FIRMNESS * np.eye(D)
    scores = np.empty(shrinkages.shape)
    for start in range(0, n_components, size):
        part = slice(start, start + size)
        n, w = counts[part], weights[part]
        arguments = covariances[part], targets[part], residuals[part], shrinkages[part]
        if is_partial:
            part_noise = None if noise is None else noise[part]
            observed = observed_information(targets[part], residuals[part], w, part_noise)
            n = np.maximum(n * observed, _LEAST_COUNT)
            distances, log_determinants = _partial_distances(*arguments, part_noise)
        else:
            distances, log_determinants = _complete_distances(*arguments)
        own, n, w = 1.0 - shrinkages[part][:, None, :], n[:, None, None], w[:, :, None]
        falls = without_row(distances, w, n, own + (1.0 - own) * kept, _WHOLE)
        densities = -0.5 * (log_determinants + distances) - falls
        # A row without which there is no covariance rules the choice out.
        densities[own * n / np.square(n - 1.0) * w * distances >= _WHOLE] = -NOTHING
        scores[part] = np.einsum("kml,km->kl", densities, weights[part])
    return np.asarray(scores / np.maximum(weights.sum(axis=1), 1e-300)[:, None])


def _complete_distances(
    covariances: np.ndarray, targets: np.ndarray, residuals: np.ndarray, shrinkages: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Distances d (M, m, L) of rows and log|G| (M, 1, L), for all shrinkages."""
    basis, variances = _common_axes(covariances, targets, shrinkages)
    squares = np.square(residuals @ basis)
    distances = squares @ (1.0 / variances).transpose(0, 2, 1)
    return distances, np.log(variances).sum(axis=2)[:, None, :]


def _partial_distances(
    covariances: np.ndarray,
    targets: np.ndarray,
    residuals: np.ndarray,
    shrinkages: np.ndarray,
    noise: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Distances d and log|G| (M, m, L) of the seen cells: NaN is missing, and values have noise.

    Rows completed by a component's expectation would speak for the component as it is.
    """
    M, m, D = residuals.shape
    seen = ~np.isnan(residuals).reshape(-1, D)
    away, of = np.where(seen, residuals.reshape(-1, D), 0.0), np.repeat(np.arange(M), m)
    # Rows of a component with the same gaps have one matrix, unless their noise differs.
    first, which = np.arange(M * m), np.arange(M * m)
    if noise is None:
        keys = np.column_stack([of, np.packbits(seen, axis=1)])
        _, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        which = which.reshape(-1)
    both = seen[first, :, None] & seen[first, None, :]
    # A value that was not seen has a row and column of the unit matrix, and no distance.
    rest = np.eye(D) * ~seen[first, None, :]
    if noise is not None:
        rest = rest + np.where(both, noise.reshape(-1, D, D), 0.0)
    targets, covariances = (
        np.where(both, matrices[of[first]], 0.0) + rest for matrices in (targets, covariances)
    )
    basis, variances = _common_axes(covariances, targets, shrinkages[of[first]])
    squares = np.square(np.matmul(away[:, None, :], basis[which])[:, 0])
    distances = np.matmul(1.0 / variances[which], squares[:, :, None])[..., 0]
    log_determinants = np.log(variances).sum(axis=2)[which]
    # Of the targets, which the axes are relative to.
    log_determinants += np.linalg.slogdet(targets)[1][which, None]
    return distances.reshape(M, m, -1), log_determinants.reshape(M, m, -1)


def _common_axes(
    covariances: np.ndarray, targets: np.ndarray, shrinkages: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Axes (M, D, D) in which targets are the unit matrix, and variances (M, L, D) along them."""
    whitener = np.linalg.inv(np.linalg.cholesky(targets))
    white = whitener @ covariances @ whitener.transpose(0, 2, 1)
    eigenvalues, vectors = np.linalg.eigh(white)
    shrinkages = shrinkages[:, :, None]
    variances = (1.0 - shrinkages) * np.maximum(eigenvalues, 0.0)[:, None, :] + shrinkages
    # A covariance of few rows may be singular.
    return whitener.transpose(0, 2, 1) @ vectors, np.maximum(variances, 1e-14)


def observed_information(
    covariances: np.ndarray,
    residuals: np.ndarray,
    weights: np.ndarray,
    noise: np.ndarray | None,
) -> np.ndarray:
    """Observed information (M,) of rows (M, m, D) on a covariance, relative to complete rows.

    It is the share of pairs of columns that were seen, less for values with wide noise.
    """
    observed = (~np.isnan(residuals)).astype(np.float64)
    if noise is not None:
        own = np.diagonal(covariances, axis1=1, axis2=2)[:, None, :]
        observed *= own / (own + np.diagonal(noise, axis1=2, axis2=3))
    pairs = np.square(observed.sum(axis=2))
    total = np.maximum(weights.sum(axis=1) * residuals.shape[2] ** 2, 1e-300)
    return np.asarray((pairs * weights).sum(axis=1) / total)
