"""Queries of a mixture in closed form, in blocks of rows: no N x K array unless asked for."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from pickmix.closed_form.evaluation import log_joint_blocks
from pickmix.closed_form.search import draw_routes, search
from pickmix.closed_form.state import MixtureState
from pickmix.data.partial_rows import make_rows
from pickmix.data.rows import ArrayRows
from pickmix.estimators.closed_form_fit import make_backend
from pickmix.estimators.compilation import ensure_compiled
from pickmix.estimators.partial_tables import check_noise, check_rows
from pickmix.estimators.queries import DensityQueries, refuse_overflow, weighted_mean
from pickmix.estimators.row_sources import by_chunks
from pickmix.estimators.validation import RandomSeed, check_generator, check_integer
from pickmix.families.base import Family
from pickmix.families.gaussian import Gaussian
from pickmix.families.layout import Moments
from pickmix.selection.operations import Operations
from pickmix.selection.randomness import StepRandomness
from pickmix.sweep.contract import needs_compiled
from pickmix.threads import Threads, resolve_n_jobs

# Components per cell of an approximate search.
_SEARCH_CELL = 32


class ClosedFormInference(DensityQueries, abc.ABC):
    """Queries of a mixture that has weights_ and parameters of a family."""

    random_state: Any
    n_jobs: int | None
    weights_: np.ndarray

    def __sklearn_is_fitted__(self) -> bool:
        # A fit that failed has left n_features_in_ behind, which looks fitted to scikit-learn.
        return hasattr(self, "weights_")

    @abc.abstractmethod
    def _fitted_family(self) -> Family:
        """The family of the fitted parameters, without regularisation."""

    @abc.abstractmethod
    def _get_parameters(self) -> dict[str, np.ndarray]:
        """The fitted parameters of the family."""

    def _fitted_centre(self, family: Family) -> np.ndarray:
        """Mean of the fitted mixture (D,): the origin of coordinates."""
        centre = np.zeros(family.layout.n_columns)
        means = family.moments_of(self._get_parameters(), centre).mean
        centre[: means.shape[1]] = self.weights_ @ means / self.weights_.sum()
        return family.centre(centre)

    def _moments(self, family: Family, centre: np.ndarray) -> Moments:
        """Moments of the fitted components about a centre (D,), with their weights."""
        moments = family.moments_of(self._get_parameters(), centre)
        return moments._replace(mass=self.weights_.copy())

    def _frozen(
        self, X: Any, threads: Threads, noise: Any = None, moments: Moments | None = None
    ) -> tuple[MixtureState, ArrayRows, np.ndarray]:
        """The fitted mixture, the rows of X in its coordinates, and their `log_base`.

        With `moments`, about `_fitted_centre`, the components are those and not the fitted ones.
        """
        check_is_fitted(self)
        X = check_rows(self, X)
        noise = check_noise(noise, X)
        family = self._fitted_family()
        if noise is not None and not isinstance(family, Gaussian):
            raise ValueError(f"noise is for Gaussian components, got family {family.name!r}.")
        problem = family.check(X)
        if problem is not None:
            raise ValueError(f"X: {problem}.")
        rows = X if family.column_order is None else X[:, family.column_order]
        center = self._fitted_centre(family)
        if moments is None:
            moments = self._moments(family, center)
        K = moments.mass.shape[0]
        partial = noise is not None or bool(np.isnan(rows).any())
        n_visits = rows.shape[0] * max(1, K // 32)
        compiled = needs_compiled(family.layout, n_visits, K, partial)
        if compiled and partial:
            ensure_compiled("partial")
        backend = make_backend(compiled, threads)
        prior = family.make_prior(moments, "none", float(rows.shape[0]))
        # A component of weight zero stays one that can be evaluated.
        state = MixtureState(family, moments, backend, prior, 1e-300).require_sound()
        source = make_rows(rows, None, center, compiled, noise)
        log_base = family.log_base(np.asarray(rows, dtype=np.float64))
        return state, source, np.zeros(rows.shape[0]) if log_base is None else log_base

    def _search(
        self, X: Any, n_candidates: Any, noise: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """A likely component of each row, and a lower bound of its log-density."""
        n_probes = -(-check_integer("n_candidates", n_candidates, 1) // _SEARCH_CELL)
        background = getattr(self, "background_", None)
        threads = Threads(resolve_n_jobs(self.n_jobs))
        try:
            state, source, log_base = self._frozen(X, threads, noise)
            routes = draw_routes(
                state,
                StepRandomness(0, 0),
                cell_size=_SEARCH_CELL,
                n_probes=n_probes,
                background=-1 if background is None else background,
            )
            components, bounds, _ = search(state, source, routes)
        finally:
            threads.close()
        bounds += log_base - float(np.log(self.weights_.sum()))
        refuse_overflow(bounds)
        return components, bounds

    def _blocks(
        self, X: Any, noise: Any = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray, Operations]]:
        """Yield (log-joints (K, R), log_base (R,), operations) over the rows of X."""
        threads = Threads(resolve_n_jobs(self.n_jobs))
        try:
            state, source, log_base = self._frozen(X, threads, noise)
            for block, log_joint in log_joint_blocks(state, source, np.arange(source.n_rows)):
                yield log_joint, log_base[block], state.backend.operations
        finally:
            threads.close()

    @by_chunks
    def score_samples(
        self,
        X: ArrayLike,
        *,
        n_candidates: int | None = None,
        exact_below: float | None = None,
        noise: ArrayLike | None = None,
    ) -> np.ndarray:
        """Log-density of each row, (N,).

        With `n_candidates` the answer is approximate: about that many components are evaluated per
        row instead of all, and the result is a lower bound of the log-density. It is tight if the
        search found the components that matter, and can be hundreds of nats too low for rows far
        from all components. So do not compare it with a threshold of exact log-densities: most of
        the rows below the threshold may be harmless. Use `exact_below`: rows with a bound below it
        get their exact log-density, and a score is then below it exactly where the log-density is.

        Parameters
        ----------
        X : array-like of shape (N, D), or rows that are not in memory
            As in `fit`. Files and sources are read chunk by chunk; a Dask collection gives a lazy
            answer. If values are missing (NaN), it is the log-density of the observed ones; 0 if
            there are none.
        n_candidates : int, default=None
            Components to evaluate per row; None means all.
        exact_below : float, default=None
            Rows with a bound below this are evaluated again, over all components.
        noise : array-like of shape (N, D) or (N, D, D), default=None
            Variances or covariances of the noise of the rows, as in `fit`.
        """
        if n_candidates is not None:
            scores = self._search(X, n_candidates, noise)[1]
            if exact_below is not None:
                doubtful = np.flatnonzero(scores < exact_below)
                if doubtful.size:
                    rows = check_rows(self, X)
                    own = None if noise is None else np.asarray(noise)[doubtful]
                    scores[doubtful] = self._score_exactly(rows[doubtful], own)
            return scores
        return self._score_exactly(X, noise)

    def score(
        self,
        X: ArrayLike,
        y: object = None,
        sample_weight: ArrayLike | None = None,
        *,
        noise: ArrayLike | None = None,
    ) -> float:
        """Mean log-density per row, weighted by `sample_weight` if given; see `score_samples`."""
        return weighted_mean(self.score_samples(X, noise=noise), sample_weight)

    def _score_exactly(self, X: ArrayLike, noise: Any) -> np.ndarray:
        parts = []
        for log_joint, log_base, operations in self._blocks(X, noise):
            block = operations.log_sum_exp(log_joint)
            refuse_overflow(block)
            parts.append(block + log_base)
        return np.concatenate(parts)

    @by_chunks
    def predict(
        self, X: ArrayLike, *, n_candidates: int | None = None, noise: ArrayLike | None = None
    ) -> np.ndarray:
        """Most probable component of each row, (N,), given its observed values.

        With `n_candidates`: the most probable of about that many that a search meets.
        """
        if n_candidates is not None:
            return self._search(X, n_candidates, noise)[0].astype(np.int64)
        return np.asarray(self.top_components(X, 1, noise=noise)[0][:, 0].astype(np.int64))

    @by_chunks
    def predict_proba(self, X: ArrayLike, *, noise: ArrayLike | None = None) -> np.ndarray:
        """Posterior probabilities of all components, (N, K). Large: see `top_components`."""
        parts = []
        for log_joint, _, operations in self._blocks(X, noise):
            refuse_overflow(operations.normalise_all(log_joint, 1.0))
            parts.append(log_joint.T)
        return np.concatenate(parts)

    @by_chunks
    def top_components(
        self, X: ArrayLike, m: int = 1, *, noise: ArrayLike | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The m most probable components of each row and their posterior probabilities.

        Parameters
        ----------
        X : array-like of shape (N, D)
        m : int, default=1
            At most the number of components.
        noise : array-like of shape (N, D) or (N, D, D), default=None
            Variances or covariances of the noise of the rows, as in `fit`.

        Returns
        -------
        components : (N, m) int array
            Most probable first.
        probabilities : (N, m) array
            Exact posterior probabilities, so a row sums to at most one.
        """
        check_is_fitted(self)
        n_components = self.weights_.shape[0]
        if check_integer("m", m, 1) > n_components:
            raise ValueError(f"m must be at most n_components={n_components}, got {m!r}.")
        components, probabilities = [], []
        for log_joint, _, operations in self._blocks(X, noise):
            likelihood = operations.log_sum_exp(log_joint)
            refuse_overflow(likelihood)
            best = operations.top_of_all(log_joint, 1.0, m)[0]
            chosen = log_joint[best, np.arange(best.shape[0])[:, None]]
            components.append(best)
            probabilities.append(np.exp(chosen - likelihood[:, None]))
        return np.concatenate(components), np.concatenate(probabilities)

    def sample(
        self, n_samples: int = 1, random_state: RandomSeed = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows from the fitted mixture.

        Parameters
        ----------
        n_samples : int, default=1
        random_state : int, RandomState, Generator or None, default=None
            None means that of the estimator.

        Returns
        -------
        X : (n_samples, D) array
            Grouped by component.
        y : (n_samples,) array
            Components.
        """
        check_is_fitted(self)
        check_integer("n_samples", n_samples, 1)
        random = check_generator(self.random_state if random_state is None else random_state)
        counts = random.multinomial(n_samples, self.weights_ / self.weights_.sum())
        family, parameters = self._fitted_family(), self._get_parameters()
        rows = [
            family.sample(parameters, k, int(counts[k]), random)
            for k in np.flatnonzero(counts).tolist()
        ]
        X = np.concatenate(rows)
        if family.column_order is not None:
            X[:, family.column_order] = X.copy()
        return X, np.repeat(np.arange(counts.shape[0]), counts)

    def _n_parameters(self) -> int:
        n_components: int = self.weights_.shape[0]
        return self._fitted_family().n_parameters(n_components) + n_components - 1
