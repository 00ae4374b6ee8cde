"""What a fitted Gaussian mixture answers, in blocks of rows: no N x K array unless asked."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted, validate_data

from pickmix.closed_form.engine import log_joint_blocks
from pickmix.closed_form.mixture import GaussianMixtureState
from pickmix.closed_form.stream import draw_search_partitions, search
from pickmix.closed_form.structures import STRUCTURES, CovarianceStructure
from pickmix.data.rows import ArrayRows
from pickmix.estimators.queries import DensityQueries, refuse_overflow
from pickmix.estimators.validation import check_integer, check_randomness
from pickmix.selection.kernels import log_sum_exp, normalise_all, top_of_all
from pickmix.selection.randomness import StepRandomness, Stream
from pickmix.threads import Threads, resolve_n_jobs

# Components per block of an approximate search.
_SEARCH_BLOCK = 32


class GaussianInference(DensityQueries):
    """Queries of a mixture that has weights_, means_ and covariances_."""

    covariance_type: str
    random_state: Any
    n_jobs: int | None
    weights_: np.ndarray
    means_: np.ndarray
    covariances_: np.ndarray

    def __sklearn_is_fitted__(self) -> bool:
        # A fit that failed has left n_features_in_ behind, which looks fitted to scikit-learn.
        return hasattr(self, "covariances_")

    def _structure(self) -> CovarianceStructure:
        return STRUCTURES[self.covariance_type](self.means_.shape[1])

    def _frozen(self, X: Any, threads: Threads) -> tuple[GaussianMixtureState, ArrayRows]:
        """The fitted mixture, and the rows of X in its coordinates."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        structure = self._structure()
        center = self.weights_ @ self.means_
        state = GaussianMixtureState(
            structure,
            self.weights_,
            self.means_ - center,
            structure.pack(self.covariances_),
            reg_covar=0.0,
            threads=threads,
        )
        return state, ArrayRows(X, center=center)

    def _search(self, X: Any, n_candidates: Any) -> tuple[np.ndarray, np.ndarray]:
        """A likely component of each row, and a lower bound of its log-density."""
        n_partitions = -(-check_integer("n_candidates", n_candidates, 1) // _SEARCH_BLOCK)
        n_routes = max(1, n_partitions * 3 // 4)
        threads = Threads(resolve_n_jobs(self.n_jobs))
        try:
            state, source = self._frozen(X, threads)
            partitions = draw_search_partitions(state, n_partitions, _SEARCH_BLOCK, seed=0)
            key = StepRandomness(0, 0).key(Stream.POSTERIOR)
            components, bounds, _ = search(state, source, partitions, n_routes, key)
        finally:
            threads.close()
        refuse_overflow(bounds)
        return components, bounds - float(np.log(self.weights_.sum()))

    def _blocks(self, X):
        """Yield (slice of rows, log-joints (K, R), threads) over the rows of X."""
        threads = Threads(resolve_n_jobs(self.n_jobs))
        try:
            state, source = self._frozen(X, threads)
            for block, log_joint in log_joint_blocks(state, source, np.arange(source.n_rows)):
                yield block, log_joint, threads
        finally:
            threads.close()

    def score_samples(self, X, *, n_candidates=None):
        """Log-density of each row, (N,).

        With `n_candidates` about that many components are evaluated per row instead of all: the
        result is a lower bound of the log-density, and how close it is grows with the number.
        `benchmarks/approximate.py` measures it.
        """
        if n_candidates is not None:
            return self._search(X, n_candidates)[1]
        scores = []
        for _, log_joint, threads in self._blocks(X):
            block = np.empty(log_joint.shape[1])
            threads.run(log_sum_exp, block.shape[0], 15.0 * log_joint.size, log_joint, block)
            refuse_overflow(block)
            scores.append(block)
        return np.concatenate(scores)

    def predict(self, X, *, n_candidates=None):
        """Most probable component of each row, (N,).

        With `n_candidates`: the most probable of about that many that a search meets.
        """
        if n_candidates is not None:
            return self._search(X, n_candidates)[0].astype(np.int64)
        return super().predict(X)

    def predict_proba(self, X):
        """Posterior probabilities of all components, (N, K). Large: see `top_components`."""
        parts = []
        for _, log_joint, threads in self._blocks(X):
            scores = np.empty(log_joint.shape[1])
            threads.run(
                normalise_all, scores.shape[0], 20.0 * log_joint.size, log_joint, 1.0, scores
            )
            refuse_overflow(scores)
            parts.append(log_joint.T)
        return np.concatenate(parts)

    def top_components(self, X, m=1):
        """The m most probable components of each row and their posterior probabilities.

        Parameters
        ----------
        X : array-like of shape (N, D)
        m : int, default=1
            At most the number of components.

        Returns
        -------
        components : (N, m) int array
            Most probable first.
        probabilities : (N, m) array
            Exact posterior probabilities, so a row sums to at most one.
        """
        check_is_fitted(self)
        n_components = self.means_.shape[0]
        if check_integer("m", m, 1) > n_components:
            raise ValueError(f"m must be at most n_components={n_components}, got {m!r}.")
        components, probabilities = [], []
        for _, log_joint, threads in self._blocks(X):
            n_rows = log_joint.shape[1]
            likelihood = np.empty(n_rows)
            threads.run(log_sum_exp, n_rows, 15.0 * log_joint.size, log_joint, likelihood)
            refuse_overflow(likelihood)
            best = np.empty((n_rows, m), dtype=np.int32)
            unused = np.empty((n_rows, m))
            threads.run(top_of_all, n_rows, 3.0 * log_joint.size, log_joint, 1.0, best, unused)
            chosen = log_joint[best, np.arange(n_rows)[:, None]]
            components.append(best)
            probabilities.append(np.exp(chosen - likelihood[:, None]))
        return np.concatenate(components), np.concatenate(probabilities)

    def sample(self, n_samples=1):
        """Draw rows from the fitted mixture.

        Returns
        -------
        X : (n_samples, D) array
            Grouped by component.
        y : (n_samples,) array
            Components.
        """
        check_is_fitted(self)
        check_integer("n_samples", n_samples, 1)
        random = check_randomness(self.random_state)
        weights = self.weights_ / self.weights_.sum()
        counts = random.multinomial(n_samples, weights)
        labels = np.repeat(np.arange(counts.shape[0]), counts)
        noise = random.standard_normal((n_samples, self.means_.shape[1]))
        structure = self._structure()
        ends = np.cumsum(counts)
        rows = np.empty_like(noise)
        for k in np.flatnonzero(counts).tolist():
            part = slice(ends[k] - counts[k], ends[k])
            rows[part] = self.means_[k] + structure.scale_noise(self.covariances_, k, noise[part])
        return rows, labels

    @property
    def precisions_(self):
        """Inverses of the covariances."""
        check_is_fitted(self)
        return self._structure().invert(self.covariances_)

    @property
    def precisions_cholesky_(self):
        """Factors of the precisions, in scikit-learn's shapes."""
        check_is_fitted(self)
        structure = self._structure()
        state = GaussianMixtureState(
            structure,
            self.weights_,
            self.means_,
            structure.pack(self.covariances_),
            reg_covar=0.0,
        )
        return structure.unpack_factor(state.model.factor)

    def _n_parameters(self) -> int:
        n_components, n_features = self.means_.shape
        covariances = self._structure().n_parameters(n_components)
        return covariances + n_components * n_features + n_components - 1
