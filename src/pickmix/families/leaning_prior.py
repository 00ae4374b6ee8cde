"""Covariances by leave-one-out: how far each component leans on what all have in common.

A component has variances and correlations of its own. Its correlations lean on those that all
components share, by the weight under which its own rows, each left out once, are most probable
(leave_one_out.py). Its variances lean on typical ones, in logarithms, so that a narrow direction
stays narrow: by as much as the variances of different components are alike (empirical Bayes).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np

from pickmix.families.base import Prior
from pickmix.families.covariance_forms import CovarianceForm
from pickmix.families.layout import Moments
from pickmix.families.leave_one_out import Witnesses, leave_one_out_scores, told_shares

# Pseudo-rows of a component that has not been asked yet.
_FIRST_PSEUDO_ROWS = 10.0
# Stands for leaning altogether.
_ALL = 1e12
# Pseudo-rows to choose from, and weights with which common correlations lean on none.
_PSEUDO_ROWS = np.array([0.0, 0.01, 0.1, 0.3, 1.0, 3.0, 8.0, 20.0, 50.0, 150.0, 600.0, _ALL])
_DAMPINGS = np.array([0.0, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.2, 0.35, 0.6, 0.9, 1.0])
# Per parameter of a covariance at most, where rows were seen in part.
_PSEUDO_ROWS_PER_PARAMETER = 1.5
# Rows that are asked for one damping of all, where they were seen in part.
_DAMPING_ROWS = 2000
# Before rows have been asked.
_FIRST_DAMPING = 0.1
# Steps of empirical Bayes, and what every choice is given beforehand, in components.
_SHARE_STEPS = 20
_SHARE_START = 0.1
# The weight of common correlations in a component without rows, at least.
_LEAST_LEANING = 0.5
# Components that what all share is learnt from, at most.
_MOST_POOLED = 20_000
# Components of fewer effective rows lean altogether.
_LEAST_ROWS = 2.5
# Pseudo-rows of variances: before they have been compared, and their bounds.
_FIRST_FREEDOM, _FEWEST_FREEDOMS, _MOST_FREEDOMS = 2.0, 0.02, 50.0
# Stands for no variance at all.
_NO_VARIANCE = 1e-304
# Degrees of freedom at least.
_LEAST_FREEDOM = 0.5
# Pseudo-rows of a component's size.
_SIZE_ROWS = 2.0
# Standard deviations of a background, in units of the largest distance of a row from the centre.
_REACH = 0.5


@dataclass
class LeaningPrior(Prior):
    """What covariances have in common, and how far each component leans on it.

    Attributes
    ----------
    form : CovarianceForm
    n_rows : float
        Rows behind all statistics together.
    pooled : (P,) array
        A typical covariance: mean shape, geometric mean size.
    log_variances : (D,) array
        Logarithms of typical variances, relative to a component's size.
    freedoms : (D,) array
        Pseudo-rows by which variances lean on these.
    correlations : (P,) array
        Those that all share; ones on the diagonal.
    damping : float
        How far the common correlations lean on none at all.
    pseudo_rows : (K,) array
        m: a component of n rows leans on them with weight m / (n + m).
    reach : (D,) array
        Standard deviations of a background of rows that belong nowhere.
    background : int
        The component that is that background; -1 if there is none.
    undecided : bool
        Whether components must choose before the first M-step, as after `resume`.
    """

    form: CovarianceForm
    n_rows: float
    pooled: np.ndarray
    log_variances: np.ndarray
    freedoms: np.ndarray
    correlations: np.ndarray
    pseudo_rows: np.ndarray
    reach: np.ndarray
    damping: float = _FIRST_DAMPING
    background: int = -1
    undecided: bool = False

    @classmethod
    def of(cls, form: CovarianceForm, pooled: np.ndarray, n: int, n_rows: float) -> LeaningPrior:
        """The prior of n components before they have been asked."""
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

    def copy(self) -> LeaningPrior:
        """A copy that learns on its own."""
        other = copy.copy(self)
        other.pseudo_rows = self.pseudo_rows.copy()
        return other

    def take(self, components: np.ndarray) -> LeaningPrior:
        """The prior of other components, which lean as these do."""
        other = copy.copy(self)
        other.pseudo_rows = self.pseudo_rows[components]
        there = np.flatnonzero(components == self.background)
        other.background = int(there[0]) if there.shape[0] else -1
        return other

    def put(self, components: np.ndarray, other: LeaningPrior, which: np.ndarray) -> None:
        """Let components lean as the components `which` of another prior do."""
        self.pseudo_rows[components] = other.pseudo_rows[which]

    @property
    def chooses(self) -> bool:
        """Whether there are correlations to lean on."""
        return self.form.products != "diagonal"

    def allow_background(self, extent: np.ndarray) -> None:
        """Let a component become a background of rows that reach so far (D,) from the centre."""
        reaching = extent[extent > 0.0]
        # In a constant column a new row may be as far off as in the others.
        usual = float(np.median(reaching)) if reaching.shape[0] else 0.0
        self.reach = _REACH * np.where(extent > 0.0, extent, usual)

    def resume_background(self, component: int, moments: Moments) -> None:
        """Let a component be the background that its moments describe."""
        self.background = component
        self.reach = np.sqrt(self.form.variances(moments.scatter[component]))

    def resume(self) -> None:
        """Moments are those of covariances that have leaned already."""
        self.pseudo_rows = np.zeros_like(self.pseudo_rows)
        self.undecided = True

    def broad(self) -> np.ndarray:
        """The packed covariance (P,) of a background, before reg_covar."""
        return np.asarray(self.form.pack_matrices(np.diag(np.square(self.reach))[None])[0])

    def floor(self) -> np.ndarray:
        """A lower bound (P,) of the pooled covariance."""
        return pooled_floor(self.form, self.pooled)

    def _floored(self, covariances: np.ndarray) -> np.ndarray:
        """Variances (K, D) of packed covariances, which no logarithm minds."""
        i, j = self.form.layout.pairs()
        return np.asarray(
            np.maximum(covariances[:, i == j], 0.0) + (self.form.floors + _NO_VARIANCE)
        )

    # What all have in common.

    def pool(self, moments: Moments, masses: np.ndarray) -> None:
        """Let what all have in common follow the components, counted by degrees of freedom."""
        some = np.flatnonzero(masses * self.n_rows > 1.0)
        some = some[some != self.background]
        if some.shape[0] > _MOST_POOLED:
            some = some[np.linspace(0, some.shape[0] - 1, _MOST_POOLED).astype(np.int64)]
        covariances = self.form.project(moments.scatter[some])
        freedom = masses[some] * self.n_rows - 1.0
        self._pool_shapes(covariances, freedom)
        seen = freedom > 1.0
        if seen.any():
            self._pool_variances(covariances[seen], freedom[seen])
            self._pool_correlations(covariances[seen], freedom[seen])

    def _pool_shapes(self, covariances: np.ndarray, freedom: np.ndarray) -> None:
        """The mean of covariance / size, times the geometric mean size.

        Unlike the plain mean it is not ruled by the widest components.
        """
        weights = self.form.trace_weights(self.pooled + self.floor())
        sizes = covariances @ weights
        good = sizes > 1e-280
        freedom, sizes = freedom[good], sizes[good]
        total = float(freedom.sum())
        if total > 0.0:
            shape = (freedom / sizes) @ covariances[good] / total
            self.pooled = shape * float(np.exp(freedom @ np.log(sizes) / total))

    def _pool_variances(self, covariances: np.ndarray, freedom: np.ndarray) -> None:
        """Typical variances, and 2 / their variance over components as pseudo-rows.

        The logarithm of a variance from n rows varies by 2 / (n - 1) when it is estimated again.
        """
        logs = np.log(self._floored(covariances * (1.0 + 1.0 / freedom)[:, None]))
        share = freedom / freedom.sum()
        for _ in range(2):
            sizes = (logs - self.log_variances).mean(axis=1)
            # Sizes are relative to the geometric mean size.
            sizes -= share @ sizes
            self.log_variances = share @ (logs - sizes[:, None])
        rest = logs - sizes[:, None] - self.log_variances
        D = logs.shape[1]
        noise = 2.0 * logs.shape[0] / freedom.sum() * (1.0 - 1.0 / D)
        variance = share @ np.square(rest) - noise
        self.freedoms = np.clip(2.0 / np.maximum(variance, 1e-3), _FEWEST_FREEDOMS, _MOST_FREEDOMS)

    def _pool_correlations(self, covariances: np.ndarray, freedom: np.ndarray) -> None:
        i, j = self.form.layout.pairs()
        scale = 1.0 / np.sqrt(self._floored(covariances))
        share = freedom / freedom.sum()
        correlations = np.einsum("k,kp,kp,kp->p", share, covariances, scale[:, i], scale[:, j])
        self.correlations = np.where(i == j, 1.0, correlations)

    def _damped(self) -> np.ndarray:
        """Correlations (P,) that components lean on."""
        i, j = self.form.layout.pairs()
        return np.where(i == j, 1.0, (1.0 - self.damping) * self.correlations)

    # What each makes of it.

    def leanings(self, members: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """lambda (U,) of components of so many rows.

        Fewer rows than columns have no covariance, so there lambda has a lower bound, whatever
        a component has chosen, or inherited from one of more rows.
        """
        pseudo = self.pseudo_rows[members]
        missing = 1.0 - np.maximum(counts - 1.0, 0.0) / (self.form.n_features + 1.0)
        least = _LEAST_LEANING * np.maximum(missing, 0.0)
        return np.asarray(np.maximum(pseudo / (np.maximum(counts, 1e-300) + pseudo), least))

    def own_shares(self, counts: np.ndarray) -> np.ndarray:
        """How much of a covariance (K,) in use is made of a component's own rows.

        One that leans altogether still has variances of its own.
        """
        leanings = np.ones_like(counts)
        if self.form.products != "diagonal":
            leanings = self.leanings(np.arange(counts.shape[0]), counts)
        return np.asarray(1.0 - leanings * (1.0 - self._kept))

    @property
    def _kept(self) -> float:
        """How much a row changes variances, as a share of what it changes a covariance.

        A covariance of Gaussian rows has D (D + 1) / 2 parameters, variances are D or 1 of them.
        """
        D = self.form.n_features
        return 2.0 / (D * (D + 1.0)) if self.form.averages else 2.0 / (D + 1.0)

    def variances(self, covariances: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Variances in use (U, D), reg_covar included."""
        freedom = np.maximum(counts - 1.0, 0.0)[:, None]
        logs = np.log(
            self._floored(covariances * (1.0 + 1.0 / np.maximum(freedom, _LEAST_FREEDOM)))
        )
        sizes = (logs - self.log_variances).mean(axis=1, keepdims=True)
        # The size of a component of few rows leans on 1.
        sizes *= freedom / (freedom + _SIZE_ROWS)
        trust = freedom / (freedom + self.freedoms)
        return np.asarray(np.exp(trust * logs + (1.0 - trust) * (sizes + self.log_variances)))

    def shrink(
        self, covariances: np.ndarray, members: np.ndarray, counts: np.ndarray
    ) -> np.ndarray:
        """Covariances in use (U, P), before reg_covar, of components of so many rows."""
        own, target = self._parts(covariances, counts)
        leanings = self.leanings(members, counts)[:, None]
        found = own + leanings * (target - own)
        found[members == self.background] = self.broad()
        return np.asarray(found)

    def _parts(self, covariances: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Own covariances, and the variances in use with common correlations, before reg_covar."""
        i, j = self.form.layout.pairs()
        used = self.variances(covariances, counts) - self.form.floors
        used[used <= 10.0 * _NO_VARIANCE] = 0.0
        if not self.chooses:
            return used, used
        deviations = np.sqrt(used)
        target = self._damped() * deviations[:, i] * deviations[:, j]
        # Own variances stay as they are: other ones would tilt directions that are narrow.
        stretch = 1.0 + 1.0 / np.maximum(counts - 1.0, _LEAST_FREEDOM)
        return covariances * stretch[:, None], target

    def choose(self, moments: Moments, masses: np.ndarray, witnesses: Witnesses) -> None:
        """Choose how far components lean on common correlations, by rows of theirs."""
        self.undecided = False
        counts = masses * self.n_rows
        enough = counts >= _LEAST_ROWS
        self.pseudo_rows = np.where(enough, self.pseudo_rows, _ALL)
        asked = enough[witnesses.components]
        heard = asked & (witnesses.weights.sum(axis=1) >= 1.0)
        # A small batch of a stream has no rows of most components, which then stay as they are.
        if not self.chooses or not 2 * np.count_nonzero(heard) > np.count_nonzero(asked):
            return
        asked = heard
        chosen = witnesses.components[asked]
        n, weights = counts[chosen], witnesses.weights[asked]
        own, target = self._parts(moments.scatter[chosen], n)
        # In units of own deviations.
        scale = 1.0 / np.sqrt(self._floored(own))
        residuals = witnesses.residuals[asked] * scale[:, None, :]
        noise = witnesses.noise
        if noise is not None:
            noise = noise[asked] * scale[:, None, :, None] * scale[:, None, None, :]
        self._choose_damping(n, residuals, weights, noise)
        pseudo = self._allowed(self._scaled(own, scale), residuals, weights, noise)
        leanings = pseudo / (n[:, None] + pseudo)
        scores = n[:, None] * leave_one_out_scores(
            self._scaled(own, scale),
            self._scaled(target, scale),
            np.maximum(n * certainties(weights), _LEAST_ROWS),
            residuals,
            weights,
            leanings,
            self._kept,
            noise,
        )
        shares, posterior = common_shares(scores)
        enough[chosen] = False
        others = counts[enough]
        self.pseudo_rows[chosen] = _pseudo_rows((posterior * leanings).sum(axis=1), n)
        # Those that were not asked lean as the others do on average.
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

        Missing values are filled in by the covariance in use, so own covariances are drawn to it,
        and hardly differ from what they lean on. Then rows cannot show whether leaning is right,
        and there is a limit: some pseudo-rows per parameter.
        """
        if noise is None and not np.isnan(residuals).any():
            return np.broadcast_to(_PSEUDO_ROWS, (own.shape[0], _PSEUDO_ROWS.shape[0]))
        told = np.clip(told_shares(own, residuals, weights, noise), 0.01, 1.0)
        D = self.form.n_features
        most = _PSEUDO_ROWS_PER_PARAMETER * D * (D + 1.0) / 2.0
        most = most / (told * np.maximum(1.0 - told, 1e-9))
        return np.asarray(np.minimum(_PSEUDO_ROWS, most[:, None]))

    def _scaled(self, packed: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Covariances (M, D, D) of packed ones (M, P) with reg_covar, rows and columns scaled."""
        matrices = self.form.unpack(packed)
        diagonal = np.arange(self.form.n_features)
        matrices[:, diagonal, diagonal] += self.form.floors
        return np.asarray(matrices * scale[:, :, None] * scale[:, None, :])

    def _choose_damping(
        self,
        counts: np.ndarray,
        residuals: np.ndarray,
        weights: np.ndarray,
        noise: np.ndarray | None,
    ) -> None:
        """Choose how far common correlations lean on none, by all rows (M, m, D) together."""
        D = self.form.n_features
        # Residuals about means of their own are too small.
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


def certainties(weights: np.ndarray) -> np.ndarray:
    """Mean weight (M,) of the rows of components, out of weights (M, m): 1 where nothing overlaps.

    Where components overlap, a row that is left out changes the weights of others too. What is
    known of a component is as much as that many of its rows would say if they belonged to it alone.
    """
    n_rows = np.maximum(np.count_nonzero(weights, axis=1), 1)
    return np.asarray(np.minimum(weights.sum(axis=1) / n_rows, 1.0))


def _pseudo_rows(leanings: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """m with m / (n + m) = lambda."""
    return np.asarray(np.minimum(counts * leanings / np.maximum(1.0 - leanings, 1e-12), _ALL))


def pooled_floor(form: CovarianceForm, pooled: np.ndarray) -> np.ndarray:
    """A lower bound (P,) of a pooled covariance (P,)."""
    unit = form.identity()
    mean_variance = float(pooled @ unit) / float(unit @ unit)
    return form.on_diagonal(form.floors + 1e-10 * mean_variance + 1e-280)


def common_shares(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shares (L,) of the choices among components, and each component's posterior (M, L).

    Empirical Bayes: the shares under which the scores (M, L), taken as log-likelihoods, are most
    probable. Components that are alike then choose alike, though each has few rows.
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
