"""Fewer components of a mixture of tables."""

from __future__ import annotations

import copy
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from pickmix.estimators.family_mixture import FamilyMixture
from pickmix.estimators.merge_tree import MergeTree
from pickmix.estimators.merging import PathBlocks


class TableMerging:
    """Merges of a mixture that keeps its mixture of encoded rows as `mixture_`."""

    mixture_: FamilyMixture

    def merge_tree(self) -> MergeTree:
        """The tree of merges from all components to one; see `GaussianMixture.merge_tree`.

        Columns are compared as the mixture knows them: numbers in units of their standard
        deviation, categories by their probabilities.
        """
        check_is_fitted(self)
        return self.mixture_.merge_tree()

    def reduce(
        self,
        n_components: int,
        X: Any = None,
        *,
        sample_weight: ArrayLike | None = None,
        max_iter: int = 5,
    ) -> Self:
        """A smaller mixture: components are merged until `n_components` are left.

        With a table X it is then fitted by at most `max_iter` passes, beginning with the merged
        components; see `GaussianMixture.reduce`. Kinds, levels and scales of columns stay.
        """
        check_is_fitted(self)
        rows = None if X is None else self._encode(X)[0]  # type: ignore[attr-defined]
        reduced = copy.copy(self)
        reduced.mixture_ = self.mixture_.reduce(
            n_components, rows, sample_weight=sample_weight, max_iter=max_iter
        )
        reduced.n_components = int(n_components)  # type: ignore[attr-defined]
        reduced.checkpoint = None  # type: ignore[attr-defined]
        return reduced

    def predict(self, X: Any, *, level: int | None = None) -> np.ndarray:
        """Most probable component of each row, (N,), by what was seen of it.

        With `level`, the most probable cluster when components are merged until there are so many;
        see `GaussianMixture.predict`.
        """
        check_is_fitted(self)
        rows = self._encode(X)[0]  # type: ignore[attr-defined]
        return np.asarray(self.mixture_.predict(rows, level=level))

    def predict_proba(self, X: Any, *, level: int | None = None) -> np.ndarray:
        """Posterior probabilities of all components, (N, K), or of clusters, (N, level). Large."""
        check_is_fitted(self)
        rows = self._encode(X)[0]  # type: ignore[attr-defined]
        return np.asarray(self.mixture_.predict_proba(rows, level=level))

    def _path_blocks(self, X: Any, levels: np.ndarray) -> PathBlocks:
        rows, log_units = self._encode(X)  # type: ignore[attr-defined]
        units = log_units.sum(axis=1)
        first = 0
        for scores in self.mixture_._path_blocks(rows, levels):
            last = first + scores.shape[1]
            yield scores + units[first:last]
            first = last
