"""The path over the number of components, from one fit."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from pickmix.checks import check_choice, check_integer

RULES = ("one-standard-error", "best", "bic", "aic")
_ALL_UP_TO = 512  # Up to this many components every number is on the path.
_RATIO = 1.01  # Then in these steps.
_MOST_LEVELS = 3000  # Numbers at most: of each two, how their scores go together is kept.
_ALL_UP_TO_SHARED = 16  # Where parameters are shared, each number costs as much as a mixture.
_RATIO_SHARED = 1.1


@dataclass(frozen=True, eq=False, repr=False)
class ComponentPath:
    """How good the smaller mixtures are that merges make from one fit.

    Attributes
    ----------
    n_components : (G,) int array
        Numbers of components, rising.
    log_likelihood : (G,) array
        Mean log-density per validation row.
    standard_error : (G,) array
        Standard error of `log_likelihood` minus its largest value, over the validation rows. Rows
        are compared one by one, so this is far below the standard error of the mean itself.
    bic, aic : (G,) arrays
        As ``mixture.reduce(k).bic(X)`` and ``aic(X)``; lower is better. X are the fitted rows if
        they were given, else the validation rows.
    source : fitted mixture
        The mixture that was reduced.
    has_fitted_rows : bool
        Whether `bic` and `aic` are those of the fitted rows.
    """

    n_components: np.ndarray
    log_likelihood: np.ndarray
    standard_error: np.ndarray
    bic: np.ndarray
    aic: np.ndarray
    source: Any = field(repr=False)
    has_fitted_rows: bool = True

    def __repr__(self) -> str:
        last = int(self.n_components[-1])
        return f"<ComponentPath from 1 to {last:,} components; {self.choose():,} are enough>"

    def choose(self, rule: str = "one-standard-error") -> int:
        """Choose a number of components.

        Parameters
        ----------
        rule : {"one-standard-error", "best", "bic", "aic"}, default="one-standard-error"
            "best" has the highest held-out log-likelihood. "one-standard-error" is the smallest
            that is not worse by more than one standard error of the difference (Breiman and others
            1984): more components than that gain nothing that could not be chance. "bic" and "aic"
            have the lowest criterion.
        """
        check_choice("rule", rule, RULES)
        if rule in ("bic", "aic"):
            if not self.has_fitted_rows:
                warnings.warn(
                    f"rule={rule!r} is meant for the rows of the fit, and this path has the "
                    "validation rows only: pass the former as X, path(mixture, X_validation, X).",
                    UserWarning,
                    stacklevel=2,
                )
            return int(self.n_components[np.argmin(getattr(self, rule))])
        good = self.log_likelihood >= self.log_likelihood.max()
        if rule == "one-standard-error":
            good |= self.log_likelihood.max() - self.log_likelihood <= self.standard_error
        return int(self.n_components[np.argmax(good)])

    def mixture(self, n_components: int | None = None) -> Any:
        """The mixture with this number of components; by default the number that `choose` gives."""
        return self.source.reduce(self.choose() if n_components is None else n_components)


def path(
    mixture: Any,
    X_validation: Any,
    X: Any = None,
    *,
    n_components: int | Sequence[int] | None = None,
) -> ComponentPath:
    """How the likelihood of held-out rows depends on the number of components, from one fit.

    Fit more components than you may need, and let merges say how many are. All smaller mixtures of
    the merge tree are evaluated together, at about twice the cost of the mixture itself.

    Parameters
    ----------
    mixture : fitted GaussianMixture, FamilyMixture or TableMixture
    X_validation : array-like of shape (N, D), rows in files, or table
        Rows that the mixture was not fitted to.
    X : array-like or table, default=None
        The rows that it was fitted to, for `bic` and `aic`. Without them these are computed on the
        validation rows.
    n_components : sequence of int, default=None
        Numbers of components to evaluate. None means all up to 512, then steps of one percent; with
        tied covariances all up to 16, then steps of ten percent.

    Returns
    -------
    path : ComponentPath
        With `n_components`, `log_likelihood`, `bic`, `aic`, `choose()` and `mixture(k)`.

    Examples
    --------
    >>> import numpy as np
    >>> from pickmix import GaussianMixture, path
    >>> rng = np.random.default_rng(0)
    >>> X = 8.0 * rng.integers(0, [5, 2], (3000, 2)) + rng.normal(size=(3000, 2))
    >>> mixture = GaussianMixture(30, random_state=0).fit(X[:2000])
    >>> found = path(mixture, X[2000:])
    >>> found.choose()
    10
    >>> bool(found.mixture(10).score(X[2000:]) > mixture.score(X[2000:]))
    True
    """
    blocks = getattr(mixture, "_score_levels", None)
    if blocks is None:
        raise TypeError(
            "mixture must be a GaussianMixture, FamilyMixture or TableMixture, whose components "
            f"can be merged, got a {type(mixture).__module__.split('.')[0]} "
            f"{type(mixture).__name__}."
        )
    check_is_fitted(mixture)
    model = mixture.model_
    family = model.family
    levels = _levels(n_components, model.n_components, family.has_shared_parts)
    n_rows, means, errors = _scores(blocks(X_validation, levels), levels)
    n_fitted, fitted = n_rows, means
    if X is not None:
        n_fitted, fitted, _ = _scores(blocks(X, levels), levels)
    K = model.n_components
    # Components may have more or fewer parameters than their family says.
    more = (model.n_parameters - family.n_parameters(K) - K + 1) / K
    parameters = np.array([family.n_parameters(k) + k - 1 + more * k for k in levels.tolist()])
    deviance = -2.0 * n_fitted * fitted
    return ComponentPath(
        levels,
        means,
        errors,
        deviance + parameters * np.log(n_fitted),
        deviance + 2.0 * parameters,
        mixture,
        X is not None,
    )


def choose_n_components(
    mixture: Any, X_validation: Any, X: Any = None, *, rule: str = "one-standard-error"
) -> int:
    """Choose the number of components from one fit with more of them.

    The same as ``path(mixture, X_validation, X).choose(rule)``.

    Examples
    --------
    >>> import numpy as np
    >>> from pickmix import GaussianMixture, choose_n_components
    >>> rng = np.random.default_rng(0)
    >>> X = rng.permutation(np.concatenate([rng.normal(c, 1.0, (500, 2)) for c in (0, 9, 18)]))
    >>> choose_n_components(GaussianMixture(12, random_state=0).fit(X[:1000]), X[1000:])
    3
    """
    return path(mixture, X_validation, X).choose(rule)


def _levels(wanted: Any, n_components: int, shared: bool) -> np.ndarray:
    if wanted is not None:
        wanted = [wanted] if np.ndim(wanted) == 0 else list(wanted)
        numbers = [check_integer("n_components", number, 1) for number in wanted]
        if not numbers or max(numbers) > n_components:
            raise ValueError(
                f"n_components must hold numbers from 1 to {n_components}, got {wanted!r}."
            )
        given = np.unique(numbers)
        if given.shape[0] > _MOST_LEVELS:
            raise ValueError(
                f"n_components must hold at most {_MOST_LEVELS:,} numbers, got {given.shape[0]:,}."
            )
        return given
    all_up_to, ratio = (_ALL_UP_TO_SHARED, _RATIO_SHARED) if shared else (_ALL_UP_TO, _RATIO)
    levels = list(range(1, min(all_up_to, n_components) + 1))
    while levels[-1] < n_components:
        levels.append(min(max(levels[-1] + 1, round(levels[-1] * ratio)), n_components))
    return np.array(levels)


def _scores(blocks: Any, levels: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
    """Number of rows, mean scores (G,), and standard errors of their falls below the best (G,)."""
    n_rows, total = 0, 0.0
    sums, products = np.zeros(levels.shape[0]), np.zeros((levels.shape[0], levels.shape[0]))
    for scores in blocks:
        # Differences to the largest mixture, so that little cancels below.
        falls = scores - scores[-1]
        n_rows += scores.shape[1]
        total += float(scores[-1].sum())
        sums += falls.sum(axis=1)
        products += falls @ falls.T
    means = sums / n_rows
    best = int(np.argmax(means))
    spread = np.diagonal(products) + products[best, best] - 2.0 * products[best]
    variances = np.maximum(spread / n_rows - np.square(means - means[best]), 0.0)
    return n_rows, total / n_rows + means, np.sqrt(variances / max(n_rows - 1, 1))
