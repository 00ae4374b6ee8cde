"""Mixtures with known parameters for the questions, and what SciPy says of their columns."""

from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.special import logsumexp, softmax

from pickmix import FamilyMixture, GaussianMixture

GAUSSIANS = ("full", "tied", "diag", "spherical")
FAMILIES = (*GAUSSIANS, "poisson", "categorical", "product")
N_LEVELS = (3, 2, 4, 2)
D = 4


@dataclass
class Case:
    """A mixture; normal[k] is (mean, covariance), rates (K, D), tables[column] is (K, L)."""

    mixture: object
    kinds: list
    means: np.ndarray
    covariances: np.ndarray
    rates: np.ndarray
    tables: list

    @property
    def weights(self):
        return self.mixture.weights_

    def log_density(self, k, x, columns):
        """log p_k of the values x (d,) of some columns."""
        total = 0.0
        normal = [i for i, c in enumerate(columns) if self.kinds[c] == "number"]
        if normal:
            own = [columns[i] for i in normal]
            covariance = self.covariances[k][np.ix_(own, own)]
            total += stats.multivariate_normal(self.means[k][own], covariance).logpdf(x[normal])
        for i, c in enumerate(columns):
            if self.kinds[c] == "count":
                total += stats.poisson(self.rates[k, c]).logpmf(x[i])
            if self.kinds[c] == "level":
                total += np.log(self.tables[c][k, int(x[i])])
        return total

    def log_joints(self, row):
        """log w_k p_k of what a row has seen, (K,)."""
        seen = np.flatnonzero(~np.isnan(row))
        densities = [self.log_density(k, row[seen], list(seen)) for k in range(len(self.weights))]
        return np.log(self.weights) + np.array(densities)

    def score(self, row):
        return logsumexp(self.log_joints(row))

    def conditional(self, row, k):
        """Mean (D,) and covariance (D, D) of the normal columns of component k given a row."""
        seen = np.flatnonzero(~np.isnan(row) & (np.array(self.kinds) == "number"))
        mean, covariance = self.means[k], self.covariances[k]
        if not seen.size:
            return mean, covariance
        gain = covariance[:, seen] @ np.linalg.inv(covariance[np.ix_(seen, seen)])
        return mean + gain @ (row[seen] - mean[seen]), covariance - gain @ covariance[seen]

    def draw(self, n, seed, missing=0.0):
        """Rows of the mixture, some cells of which are NaN."""
        rng = np.random.default_rng(seed)
        rows = self.mixture.sample(n, random_state=seed)[0]
        rows[rng.uniform(size=rows.shape) < missing] = np.nan
        return rows


def make_case(name, n_components=3, seed=0, shift=0.0):
    rng = np.random.default_rng(seed)
    K = n_components
    half = np.eye(D) + 0.5 * rng.normal(size=(K, D, D))
    full = half @ half.transpose(0, 2, 1)
    variances = rng.uniform(0.3, 2.0, (K, D))
    means = rng.normal(0.0, 2.0, (K, D)) + shift
    rates = rng.uniform(0.5, 9.0, (K, D))
    tables = [rng.dirichlet(np.full(n, 0.8), K) for n in N_LEVELS]
    weights = rng.dirichlet(np.full(K, 2.0))
    if name in GAUSSIANS:
        stored, dense = {
            "full": (full, full),
            "tied": (full[0], np.repeat(full[:1], K, axis=0)),
            "diag": (variances, variances[:, :, None] * np.eye(D)),
            "spherical": (variances[:, 0], variances[:, 0, None, None] * np.eye(D)),
        }[name]
        mixture = GaussianMixture(K, covariance_type=name)
        mixture.weights_, mixture.means_, mixture.covariances_ = weights, means, stored
        mixture.n_features_in_ = D
        return Case(mixture, ["number"] * D, means, dense, rates, tables)
    limits = np.array(N_LEVELS) - 1.0
    if name == "poisson":
        description, kinds = "poisson", ["count"] * D
        parameters = {"rates": rates}
    elif name == "categorical":
        description, kinds = "categorical", ["level"] * D
        parameters = {"probabilities": np.hstack(tables)}
    else:
        description = [("categorical", [1]), ("full", [3, 0]), ("poisson", [2])]
        kinds = ["number", "level", "count", "number"]
        pair = np.ix_([3, 0], [3, 0])
        parameters = {
            "categorical0_probabilities": tables[1],
            "full1_means": means[:, [3, 0]],
            "full1_covariances": np.stack([matrix[pair] for matrix in full]),
            "poisson2_rates": rates[:, [2]],
        }
    mixture = FamilyMixture(description, K)
    mixture._fitted_description = description
    mixture.weights_, mixture.parameters_ = weights, parameters
    mixture.column_limits_, mixture.n_features_in_ = limits, D
    return Case(mixture, kinds, means, full, rates, tables)


def brute_mean_std(case, row, column):
    """Mean and standard deviation of a number or count given a row, component by component."""
    shares = softmax(case.log_joints(row))
    pairs = []
    for k in range(len(shares)):
        if case.kinds[column] == "count":
            pairs.append((case.rates[k, column], case.rates[k, column]))
        else:
            mean, covariance = case.conditional(row, k)
            pairs.append((mean[column], covariance[column, column]))
    means, variances = np.array(pairs).T
    mean = shares @ means
    return mean, np.sqrt(shares @ (variances + means**2) - mean**2)


def brute_levels(case, row, column):
    return softmax(case.log_joints(row)) @ case.tables[column]
