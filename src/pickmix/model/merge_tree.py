"""The tree of merges of a mixture, as users see it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pickmix.checks import check_integer


@dataclass(frozen=True, eq=False, repr=False)
class MergeTree:
    """From K components to one, two at a time, the cheapest merge first.

    Attributes
    ----------
    linkage : (K - 1, 4) array
        As `scipy.cluster.hierarchy` knows it: row i joins two clusters into cluster K + i; the
        components are clusters 0, ..., K - 1. Columns: the two clusters, the height, the number of
        components. The height is the largest cost so far, so heights never fall.
    costs : (K - 1,) array
        What each merge costs, in nats per row: a bound on how much the Kullback-Leibler divergence
        from the fitted mixture grows (Runnalls 2007). Their sum over the first merges bounds what
        a smaller mixture loses.
    weights : (K,) array
        Weights of the components; they sum to one.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.cluster.hierarchy import fcluster
    >>> from pickmix import GaussianMixture
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(centre, 1.0, (300, 2)) for centre in (0, 2, 20, 22)])
    >>> tree = GaussianMixture(4, random_state=0).fit(X).merge_tree()
    >>> tree.n_components, tree.costs.shape
    (4, (3,))
    >>> bool(tree.costs[-1] > 5 * tree.costs[-2])           # two groups that are far apart
    True
    >>> len(set(fcluster(tree.linkage, 2, "maxclust")))
    2
    """

    linkage: np.ndarray
    costs: np.ndarray
    weights: np.ndarray

    def __repr__(self) -> str:
        total = float(self.costs.sum())
        return f"<MergeTree of {self.n_components:,} components; merges cost {total:.4g} nats>"

    @property
    def n_components(self) -> int:
        """K."""
        return int(self.weights.shape[0])

    def labels(self, n_clusters: int) -> np.ndarray:
        """Cluster of each component, (K,), when `n_clusters` are left.

        Clusters are numbered 0, 1, ... by falling weight. ``mixture.reduce(n_clusters)`` has them
        as components, and ``mixture.predict(X, level=n_clusters)`` returns their numbers.
        """
        K = self.n_components
        check_integer("n_clusters", n_clusters, 1)
        if n_clusters > K:
            raise ValueError(
                f"n_clusters must be at most {K}, the number of components, got {n_clusters!r}."
            )
        n_merges = K - int(n_clusters)
        cluster = np.arange(K + n_merges)
        children = self.linkage[:n_merges, :2].astype(np.int64)
        # From the last merge down: a cluster hands its number to its parts.
        for merge in range(n_merges - 1, -1, -1):
            cluster[children[merge]] = cluster[K + merge]
        _, labels = np.unique(cluster[:K], return_inverse=True)
        by_weight = np.argsort(-np.bincount(labels, self.weights), kind="stable")
        number = np.empty_like(by_weight)
        number[by_weight] = np.arange(by_weight.shape[0])
        return np.asarray(number[labels])

    def order(self) -> np.ndarray:
        """Components (K,) in the order of the leaves, so that clusters stand together."""
        K = self.n_components
        if K == 1:
            return np.zeros(1, dtype=np.int64)
        # Where the leaves of each cluster begin; a cluster's parts are adjacent.
        sizes = np.concatenate([np.ones(K), self.linkage[:, 3]]).astype(np.int64)
        start = np.zeros(2 * K - 1, dtype=np.int64)
        for merge in range(K - 2, -1, -1):
            one, other = self.linkage[merge, :2].astype(np.int64)
            start[one] = start[K + merge]
            start[other] = start[K + merge] + sizes[one]
        return np.argsort(start[:K], kind="stable")
