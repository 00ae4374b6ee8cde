"""Queries that only sum-product-transform networks have."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_array, check_is_fitted

from pickmix.estimators.deep_inference import DeepInference, require_jax
from pickmix.estimators.queries import refuse_overflow
from pickmix.estimators.reading_numbers import naming_cells
from pickmix.estimators.validation import check_randomness

if TYPE_CHECKING:
    from pickmix.gradient.sptn import SumProductTransform


class TreeInference(DeepInference):
    """Trees, marginals and conditionals of a fitted network."""

    transforms: str | bool
    standardize: str | bool

    @abc.abstractmethod
    def _network(self, n_features: int, n_children: int | None = None) -> SumProductTransform:
        """The network that the tables belong to."""

    @property
    def n_trees_(self) -> int:
        """Number of trees, the components of the mixture that the network is."""
        check_is_fitted(self)
        return self._network(self.center_.shape[0]).n_trees

    @property
    def n_children_(self) -> tuple[int, ...]:
        """Children of a sum node of each layer, from the root down."""
        check_is_fitted(self)
        return self._network(self.center_.shape[0]).children

    @property
    def n_paths_(self) -> int:
        """s^l."""
        check_is_fitted(self)
        return self._network(self.center_.shape[0]).n_evaluated_by_all

    def most_probable_trees(self, X: Any) -> np.ndarray:
        """Most probable tree of each row: the child chosen at every sum node that it reaches.

        Parameters
        ----------
        X : array-like of shape (N, D)

        Returns
        -------
        choices : (N, n_slots) int array
            The choice at the root first, then layer by layer, part by part.
        """
        from pickmix.gradient.sptn import SumProductTransform
        from pickmix.gradient.trees import most_probable_trees

        network, rows = self._prepare(X)
        assert isinstance(network, SumProductTransform)
        return most_probable_trees(network, self.tables_, self._log_weights(), rows, self.dtype)

    def score_marginal(self, X: Any, columns: Sequence[int]) -> np.ndarray:
        """Log-density of some columns, the others integrated out, (N,).

        Exact for networks without transforms; a transform mixes the columns of its scope.

        Parameters
        ----------
        X : array-like of shape (N, len(columns))
            Values of those columns.
        columns : list of int
        """
        from pickmix.gradient.trees import score_marginal

        network, rows, observed = self._prepare_marginal(X, columns)
        scores = score_marginal(
            network, self.tables_, self._log_weights(), rows, observed, self.dtype
        )
        refuse_overflow(scores)
        return scores - float(np.log(self.scale_[observed]).sum())

    def score_conditional(self, X: Any, columns: Sequence[int]) -> np.ndarray:
        """Log-density of the other columns, given some, (N,).

        Exact for networks without transforms.

        Parameters
        ----------
        X : array-like of shape (N, D)
            All columns.
        columns : list of int
            Columns that are given.
        """
        with naming_cells(X):
            X = check_array(X, dtype=[np.float64, np.float32])
        given = X[:, np.asarray(columns, dtype=np.intp)]
        scores: np.ndarray = self.score_samples(X) - self.score_marginal(given, columns)
        return scores

    def sample_conditional(self, X: Any, columns: Sequence[int]) -> np.ndarray:
        """Draw the other columns, given some: one full row for each row of X.

        Exact for networks without transforms.

        Parameters
        ----------
        X : array-like of shape (N, len(columns))
            Values of those columns.
        columns : list of int

        Returns
        -------
        rows : (N, D) array
        """
        from pickmix.gradient.trees import sample_conditional

        network, rows, observed = self._prepare_marginal(X, columns)
        random = check_randomness(self.random_state)
        uniforms = random.random_sample((rows.shape[0], network.n_slots))
        seed = int(random.randint(2**31 - 1))
        drawn = sample_conditional(
            network, self.tables_, self._log_weights(), rows, observed, uniforms, seed, self.dtype
        )
        full = np.asarray(drawn * self.scale_ + self.center_)
        # To the last bit what was given.
        full[:, np.asarray(columns, dtype=np.intp)] = np.asarray(X)
        return full

    def _prepare_marginal(
        self, X: Any, columns: Sequence[int]
    ) -> tuple[SumProductTransform, np.ndarray, np.ndarray]:
        """Check columns, and put X (N, len(columns)) into rows (N, D) of the model's frame."""
        require_jax()
        check_is_fitted(self)
        n_features = self.center_.shape[0]
        network = self._network(n_features)
        if n_features > 1 and (self.transforms or self.whitening_ is not None):
            raise ValueError(
                "Marginals and conditionals are exact only without transforms across columns: fit "
                "with transforms=False and standardize='columns' (or 'auto'), got "
                f"transforms={self.transforms!r} and standardize={self.standardize!r}."
            )
        places = np.asarray(columns)
        if places.ndim != 1 or places.size == 0 or not np.issubdtype(places.dtype, np.integer):
            raise ValueError(f"columns must be a list of column numbers, got {columns!r}.")
        if (
            places.min() < 0
            or places.max() >= n_features
            or len(set(places.tolist())) < len(places)
        ):
            raise ValueError(
                f"columns must be different numbers in [0, {n_features}), got {columns!r}."
            )
        with naming_cells(X):
            X = check_array(X, dtype=[np.float64, np.float32])
        if X.shape[1] != places.size:
            raise ValueError(
                f"X must have one column for each of the {places.size} columns asked for, "
                f"got {X.shape[1]}."
            )
        rows = np.zeros((X.shape[0], n_features))
        rows[:, places] = (X.astype(np.float64) - self.center_[places]) / self.scale_[places]
        observed = np.zeros(n_features, dtype=bool)
        observed[places] = True
        return network, rows, observed
