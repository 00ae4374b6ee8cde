"""What mixtures of Gaussians have of low-rank covariances, in place of an array of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from pickmix.checks import check_choice, check_integer
from pickmix.estimators.online import OnlineFitting
from pickmix.families.low_rank import MOST_NUMBERS, ranks

LOW_RANK = "low_rank"


def check_low_rank(mixture: Any) -> None:
    check_choice("axes", mixture.axes, ("auto", "columns", "principal"))
    if mixture.rank != "auto":
        check_integer("rank", mixture.rank, 0)


class _Matrices:
    """Covariances (K, D, D) of a mixture that holds loadings; others hold the array."""

    def __get__(self, mixture: Any, owner: type) -> Any:
        if mixture is None:
            return self
        if "loadings_" not in vars(mixture):
            raise AttributeError("covariances_ is there after a fit.")
        K, D, _ = mixture.loadings_.shape
        if K * D * D > MOST_NUMBERS:
            raise AttributeError(
                f"covariances_ would hold {K * D * D:,} numbers. Use covariance(k) for one "
                "component, or loadings_ and noise_variances_ for all."
            )
        return np.stack([mixture.covariance(k) for k in range(K)])


class LowRankCovariances(OnlineFitting):
    """Ranks and factors, and covariances that are made when they are asked for."""

    rank: int | str
    covariances_ = _Matrices()

    @property
    def ranks_(self) -> np.ndarray:
        """Ranks (K,) of the loadings of low-rank covariances."""
        if not hasattr(self, "loadings_"):
            raise AttributeError('ranks_ is of covariance_type="low_rank", after a fit.')
        return ranks(self.loadings_)

    def factors(self, X: Any) -> np.ndarray:
        """Expected factors of rows, under the most probable component of each.

        For `covariance_type="low_rank"`: a row of component k is
        means_[k] + loadings_[k] @ z + noise, with standard normal factors z. These are E[z | x].

        Parameters
        ----------
        X : array-like of shape (N, D)
            NaN is a missing value.

        Returns
        -------
        factors : array of shape (N, H)
            Zero beyond the rank of the component, which `predict` names.

        Examples
        --------
        >>> import numpy as np
        >>> from pickmix import GaussianMixture
        >>> random = np.random.default_rng(0)
        >>> X = random.normal(size=(500, 1)) * np.ones(20) + 0.1 * random.normal(size=(500, 20))
        >>> mixture = GaussianMixture(1, covariance_type="low_rank", random_state=0).fit(X)
        >>> z = mixture.factors(X)
        >>> z.shape, bool(abs(np.corrcoef(z[:, 0], X.mean(axis=1))[0, 1]) > 0.99)
        ((500, 1), True)
        """
        check_is_fitted(self)
        if not self._is_low_rank():
            raise ValueError(
                'factors is for covariance_type="low_rank": other covariances have no loadings.'
            )
        rows = self._read(X, None)[0]
        return np.asarray(self.model_.expected_factors(rows))

    def _is_low_rank(self) -> bool:
        return (self._fitted_description or self._description()) == LOW_RANK
