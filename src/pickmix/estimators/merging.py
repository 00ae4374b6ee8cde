"""Fewer components: the tree of merges, smaller mixtures, and clusters at any level."""

from __future__ import annotations

import contextlib
import copy
import zlib
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from pickmix.closed_form.evaluation import log_joint_blocks
from pickmix.closed_form.merging import Merges, find_merges
from pickmix.closed_form.merging_levels import LevelSums
from pickmix.closed_form.state import MixtureState
from pickmix.data.dask_data import is_dask
from pickmix.data.open_rows import is_source
from pickmix.estimators.closed_form_fit import make_backend
from pickmix.estimators.merge_tree import MergeTree
from pickmix.estimators.online import OnlineFitting
from pickmix.estimators.partial_tables import check_rows
from pickmix.estimators.queries import refuse_overflow
from pickmix.estimators.questions import NOT_INHERITED
from pickmix.estimators.row_sources import by_chunks, is_large, read_fitted
from pickmix.estimators.validation import check_integer, warn_about_outcome
from pickmix.families.base import Family
from pickmix.families.layout import Moments, merge_groups
from pickmix.fitting.stopping import Outcome
from pickmix.threads import Threads, resolve_n_jobs

#: Log-densities (levels, R) of rows under smaller mixtures, block by block.
PathBlocks = Iterator[np.ndarray]
# What variances grow by, relative to themselves, where a covariance has no factor.
_WIDENING = 1e-9
# Trees of more components are drawn by compiled kernels.
_COMPILED_FROM = 5000


class Merging(OnlineFitting):
    """Adds merges to a mixture in closed form."""

    warm_start: Any
    callbacks: Any
    outcome_: str
    feature_names_in_: np.ndarray
    #: The merges of the fitted components, and what identifies these components.
    _merged: tuple[int, Merges] | None = None

    def __getstate__(self) -> Any:
        # The merges can be found again, and take more room than the mixture.
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_merged"}

    def _find_merges(self) -> Merges:
        check_is_fitted(self)
        parameters = [self.weights_, *self._get_parameters().values()]
        background = self._background_of_rows()
        fingerprint = -1 if background is None else background
        for array in parameters:
            fingerprint = zlib.crc32(np.ascontiguousarray(array).data, fingerprint & 0xFFFFFFFF)
        if self._merged is None or self._merged[0] != fingerprint:
            family = self._fitted_family()
            threads = Threads(resolve_n_jobs(self.n_jobs))
            try:
                moments = self._moments(family, self._fitted_centre(family))
                # A component of weight zero can be merged like any other.
                mass = np.maximum(moments.mass / moments.mass.sum(), 1e-300)
                backend = make_backend(mass.shape[0] > _COMPILED_FROM, threads)
                merges = find_merges(family, moments._replace(mass=mass), backend, background)
            finally:
                threads.close()
            self._merged = fingerprint, merges
        return self._merged[1]

    def _background_of_rows(self) -> int | None:
        """The background, unless it explains less than one row: then it is like any other."""
        background: int | None = getattr(self, "background_", None)
        n_rows = float(getattr(self, "n_rows_seen_", 0.0))
        if background is None or (n_rows > 0.0 and self.weights_[background] * n_rows < 1.0):
            return None
        return background

    def merge_tree(self) -> MergeTree:
        """The tree of merges from all components to one, the cheapest merge first.

        Two components are merged into one with their common weight, mean and covariance (for other
        families: with the same expected features). Only neighbours are compared, so that the work
        grows as K log K. A background is merged last.

        Returns
        -------
        tree : MergeTree
            With `linkage` for `scipy.cluster.hierarchy`, `costs`, and `labels(n_clusters)`.

        References
        ----------
        A. R. Runnalls: Kullback-Leibler approach to Gaussian mixture reduction, IEEE Transactions
        on Aerospace and Electronic Systems, 2007.

        Examples
        --------
        >>> import numpy as np
        >>> from pickmix import GaussianMixture
        >>> X = np.random.default_rng(0).normal(size=(500, 2))
        >>> tree = GaussianMixture(8, random_state=0).fit(X).merge_tree()
        >>> tree.linkage.shape, tree.labels(3).shape
        ((7, 4), (8,))
        """
        merges = self._find_merges()
        K = self.weights_.shape[0]
        sizes = np.ones(2 * K - 1)
        for merge, pair in enumerate(merges.children):
            sizes[K + merge] = sizes[pair].sum()
        heights = np.maximum.accumulate(merges.costs)
        linkage = np.column_stack([merges.children, heights, sizes[K:]])
        return MergeTree(linkage, merges.costs.copy(), merges.moments.mass[:K].copy())

    def reduce(
        self,
        n_components: int,
        X: Any = None,
        *,
        sample_weight: ArrayLike | None = None,
        noise: ArrayLike | None = None,
        max_iter: int = 5,
    ) -> Self:
        """A smaller mixture: components are merged until `n_components` are left.

        Parameters
        ----------
        n_components : int
            At most the number of components of this mixture.
        X : array-like of shape (N, D), default=None
            Rows to fit the smaller mixture to, beginning with the merged components, as in `fit`.
            Without them it is the merged mixture.
        sample_weight : array-like of shape (N,), default=None
            Non-negative weights of the rows.
        noise : array-like of shape (N, D) or (N, D, D), default=None
            Variances or covariances of the noise of the rows, as in `fit`.
        max_iter : int, default=5
            Most passes over X.

        Returns
        -------
        mixture : fitted mixture of the same class
            Components are numbered by falling weight. Without X, `trace_` and other facts about a
            fit are those of the fit that was reduced.

        Examples
        --------
        >>> import numpy as np
        >>> from pickmix import GaussianMixture
        >>> rng = np.random.default_rng(0)
        >>> X = np.concatenate([rng.normal(-4, 1, (500, 2)), rng.normal(4, 1, (500, 2))])
        >>> mixture = GaussianMixture(8, random_state=0).fit(X)
        >>> np.sort(mixture.reduce(2).means_[:, 0]).round(0)
        array([-4.,  4.])
        """
        labels = self.merge_tree().labels(self._check_level("n_components", n_components))
        reduced = self._grouped(labels)
        if X is not None:
            check_integer("max_iter", max_iter, 1)
            if not is_large(X):
                # A fit would take other columns, and begin anew.
                check_rows(self, X)
            # From where the merges have led, without moving components about. Callbacks watch,
            # and keep, the fit that they were given to.
            reduced.warm_start, reduced.callbacks = True, ()
            reduced._fit(X, sample_weight, max_iter, None, noise=noise)
            reduced.warm_start, reduced.callbacks = self.warm_start, self.callbacks
            if hasattr(self, "feature_names_in_"):
                reduced.feature_names_in_ = self.feature_names_in_
            # A few passes are what was asked for.
            if reduced.outcome_ != Outcome.MAX_ITER:
                warn_about_outcome(reduced)
        return reduced

    def _grouped(self, labels: np.ndarray) -> Self:
        """The mixture whose component g is made of the components with label g."""
        family = self._fitted_family()
        centre = self._fitted_centre(family)
        moments = self._moments(family, centre)
        moments = _made_sound(family, merge_groups(family.layout, moments, labels))
        state = _state_of(family, moments).require_sound()
        reduced = copy.copy(self)
        reduced.n_components = moments.mass.shape[0]
        reduced._set_parameters(
            moments.mass / moments.mass.sum(), family.parameters(state.model, centre)
        )
        reduced._merged = None
        # What was given, or is under way, is for as many components as there were.
        for name in NOT_INHERITED:
            if hasattr(reduced, name):
                setattr(reduced, name, None)
        vars(reduced).pop("_online", None)
        background = getattr(self, "background_", None)
        if background is not None:
            alone = np.count_nonzero(labels == labels[background]) == 1
            reduced.background_ = int(labels[background]) if alone else None
        reduced._prepare_to_continue(labels)
        return reduced

    def _prepare_to_continue(self, labels: np.ndarray) -> None:
        """Give a mixture that was reduced by labels (K,) what a fit needs to continue from it."""
        K = labels.shape[0]
        known = vars(self)
        # A marginal or a conditional mixture has not been fitted, and files may hold anything.
        known.setdefault("n_steps_", 0)
        known.setdefault("n_rows_seen_", 0.0)
        known.setdefault("lower_bound_", -np.inf)
        known.setdefault("_passes", 0.0)
        known.setdefault("background_", None)
        chain = np.asarray(known.get("_chain", ()), dtype=np.int64)
        if chain.ndim != 1 or not chain.size or chain.min() < 0 or chain.max() >= K:
            chain = np.empty(0, dtype=np.int64)
        self._chain = labels[chain].astype(np.int32)
        counts = np.asarray(known.get("_effective_counts", ()), dtype=np.float64)
        if counts.shape != (K,):
            self._effective_counts = self.weights_ * max(self.n_rows_seen_, 1000.0)
        else:
            self._effective_counts = np.bincount(labels, counts)

    def _check_level(self, name: str, value: Any) -> int:
        check_is_fitted(self)
        K = self.weights_.shape[0]
        if check_integer(name, value, 1) > K:
            raise ValueError(
                f"{name} must be at most {K}, the number of components of this mixture, got "
                f"{value!r}."
            )
        return int(value)

    @by_chunks
    def predict(
        self,
        X: ArrayLike,
        *,
        level: int | None = None,
        n_candidates: int | None = None,
        noise: ArrayLike | None = None,
    ) -> np.ndarray:
        """Most probable component of each row, (N,), given its observed values.

        Parameters
        ----------
        X : array-like of shape (N, D), or rows that are not in memory
            As in `fit`.
        level : int, default=None
            Merge components until this many clusters are left, and return the most probable one:
            that whose components have the largest posterior probability together. Clusters are
            numbered by falling weight, as in `MergeTree.labels`. A background that explains rows is
            one of them, up to the last merge.
        n_candidates : int, default=None
            Evaluate about that many components per row instead of all: the most probable of those
            that a search finds.
        noise : array-like of shape (N, D) or (N, D, D), default=None
            Variances or covariances of the noise of the rows, as in `fit`.
        """
        if level is None:
            return super().predict(X, n_candidates=n_candidates, noise=noise)
        labels = self.merge_tree().labels(self._check_level("level", level))
        if n_candidates is not None:
            return np.asarray(labels[super().predict(X, n_candidates=n_candidates, noise=noise)])
        parts = [shares.argmax(axis=0) for shares in self._cluster_blocks(X, labels, noise)]
        return np.concatenate(parts)

    @by_chunks
    def predict_proba(
        self, X: ArrayLike, *, level: int | None = None, noise: ArrayLike | None = None
    ) -> np.ndarray:
        """Posterior probabilities of all components, (N, K). Large: see `top_components`.

        With `level`, those of the clusters that are left when components are merged until there
        are so many: (N, level), see `predict`.
        """
        if level is None:
            return super().predict_proba(X, noise=noise)
        labels = self.merge_tree().labels(self._check_level("level", level))
        return np.concatenate([shares.T for shares in self._cluster_blocks(X, labels, noise)])

    def _cluster_blocks(self, X: Any, labels: np.ndarray, noise: Any) -> Iterator[np.ndarray]:
        """Posterior probabilities (clusters, R) of the rows of X, block by block."""
        order = np.argsort(labels, kind="stable")
        starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
        for log_joint, _, operations in self._blocks(X, noise):
            refuse_overflow(operations.normalise_all(log_joint, 1.0))
            yield np.add.reduceat(log_joint[order], starts, axis=0)

    def _path_blocks(self, X: Any, levels: np.ndarray) -> PathBlocks:
        """Log-densities of the rows of X when `levels` (G,) components are left, rising.

        Every node of the tree is evaluated once, so that all levels together cost about as much as
        the mixture and its merges. Where components share parameters, merges change all of them,
        and each level is a mixture of its own.
        """
        if is_dask(X):
            raise TypeError("X must be rows in memory or in files, got a Dask collection.")
        if is_source(X):
            bare = copy.copy(self)
            # The columns were compared when they were chosen.
            vars(bare).pop("feature_names_in_", None)
            with contextlib.closing(read_fitted(self, X)) as chunks:
                for rows in chunks:
                    yield from bare._path_blocks(rows, levels)
            return
        if self._fitted_family().has_shared_parts:
            yield np.stack([self.reduce(level).score_samples(X) for level in levels.tolist()])
            return
        merges = self._find_merges()
        sums = LevelSums(merges.children, levels)
        threads = Threads(resolve_n_jobs(self.n_jobs))
        try:
            moments = _made_sound(self._fitted_family(), merges.moments)
            state, source, log_base = self._frozen(X, threads, moments=moments)
            # Log-joints are of normalised weights, here of all nodes together.
            shift = state.log_total()
            for block, log_joint in log_joint_blocks(state, source, np.arange(source.n_rows)):
                scores = sums(log_joint) + shift
                refuse_overflow(scores)
                yield scores + log_base[block]
        finally:
            threads.close()


def _state_of(family: Family, moments: Moments) -> MixtureState:
    """Components with these moments, as they are."""
    prior = family.make_prior(moments, "none", 1.0)
    return MixtureState(family, moments, make_backend(False, Threads(1)), prior, 1e-300)


def _made_sound(family: Family, moments: Moments) -> Moments:
    """Moments whose covariances have factors.

    Two components that are points, and far apart, are a line together, which has no density.
    """
    failed = _state_of(family, moments).failures
    if not failed.any():
        return moments
    rows, columns = family.layout.pairs()
    scatter = moments.scatter.copy()
    scatter[np.ix_(failed, rows == columns)] *= 1.0 + _WIDENING
    return moments._replace(scatter=scatter)
