"""One table of families with known components. A new family is one row in it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats
from scipy.special import softmax

from pickmix.closed_form.state import MixtureState
from pickmix.families.base import Family
from pickmix.families.categorical import Categorical
from pickmix.families.gaussian import (
    DiagonalGaussian,
    FullGaussian,
    SphericalGaussian,
    TiedGaussian,
)
from pickmix.families.layout import Moments
from pickmix.families.low_rank import LowRankGaussian
from pickmix.families.poisson import Poisson
from pickmix.families.product import Product
from pickmix.families.tree import TreeCategorical
from pickmix.kernels import numba_kernels, numpy_kernels
from pickmix.model.mixture import MixtureModel

K = 7


@dataclass(frozen=True)
class Case:
    """A family, its parameters for K components, and what SciPy says of them.

    parameters(random) is a dict, log_density(parameters, k, rows) has shape (n,) and
    mean(parameters, k) has shape (D,).
    """

    family: Callable[[], Family]
    parameters: Callable
    log_density: Callable
    mean: Callable


def _means(random):
    return 1.2 * random.standard_normal((K, 3))


def _matrices(random, n):
    factors = 0.5 * np.tril(random.standard_normal((n, 3, 3))) + np.eye(3)
    return factors @ factors.transpose(0, 2, 1)


def _gaussian(family, covariances, as_matrix):
    """`as_matrix` (covariances, k) is what SciPy takes for covariances in the user's shape."""
    return Case(
        family=lambda: family(3, reg_covar=0.0),
        parameters=lambda random: {"means": _means(random), "covariances": covariances(random)},
        log_density=lambda p, k, rows: stats.multivariate_normal(
            p["means"][k], as_matrix(p["covariances"], k)
        ).logpdf(rows),
        mean=lambda p, k: p["means"][k],
    )


_N_LEVELS = (2, 4, 3)


def _tables(probabilities):
    return np.split(probabilities, np.cumsum(_N_LEVELS)[:-1])


def _probabilities(random):
    tables = [random.dirichlet(np.full(n, 0.7), K) for n in _N_LEVELS]
    return {"probabilities": np.hstack(tables)}


def _log_levels(p, k, rows):
    tables = _tables(p["probabilities"][k])
    return sum(
        stats.rv_discrete(values=(np.arange(len(t)), t)).logpmf(rows[:, q])
        for q, t in enumerate(tables)
    )


_PARENTS = (1, -1, 1)


def _tree_tables(p, k):
    """p(level | level of the parent) of each column, (n of the parent, n); one row for the root."""
    levels = _tables(p["probabilities"][k])
    first, last = np.split(p["conditionals"][k], [_N_LEVELS[1] * _N_LEVELS[0]])
    return [
        first.reshape(_N_LEVELS[1], _N_LEVELS[0]),
        levels[1][None],
        last.reshape(_N_LEVELS[1], _N_LEVELS[2]),
    ]


def _tree_parameters(random):
    root = random.dirichlet(np.full(_N_LEVELS[1], 0.9), K)
    first, last = (random.dirichlet(np.full(_N_LEVELS[q], 0.7), (K, 4)) for q in (0, 2))
    of_first, of_last = (np.einsum("ka,kab->kb", root, table) for table in (first, last))
    return {
        "probabilities": np.hstack([of_first, root, of_last]),
        "conditionals": np.hstack([first.reshape(K, -1), last.reshape(K, -1)]),
    }


def _log_tree(p, k, rows):
    tables, rows = _tree_tables(p, k), rows.astype(int)
    above = [rows[:, parent] if parent >= 0 else 0 for parent in _PARENTS]
    return sum(np.log(table[above[q], rows[:, q]]) for q, table in enumerate(tables))


def _product(*parts):
    """A product of cases, given as (case, columns) each."""

    def label(number):
        return f"{parts[number][0].family().name}{number}_"

    def own(p, number):
        start = label(number)
        return {name.removeprefix(start): v for name, v in p.items() if name.startswith(start)}

    def mean(p, k):
        out = np.empty(sum(len(columns) for _, columns in parts))
        for number, (case, columns) in enumerate(parts):
            out[columns] = case.mean(own(p, number), k)
        return out

    return Case(
        family=lambda: Product([(case.family(), columns) for case, columns in parts]),
        parameters=lambda random: {
            label(number) + name: values
            for number, (case, _) in enumerate(parts)
            for name, values in case.parameters(random).items()
        },
        log_density=lambda p, k, rows: sum(
            case.log_density(own(p, number), k, rows[:, columns])
            for number, (case, columns) in enumerate(parts)
        ),
        mean=mean,
    )


CASES = {
    "full": _gaussian(FullGaussian, lambda r: _matrices(r, K), lambda c, k: c[k]),
    "tied": _gaussian(TiedGaussian, lambda r: _matrices(r, 1)[0], lambda c, k: c),
    "diag": _gaussian(
        DiagonalGaussian, lambda r: r.uniform(0.3, 2.0, (K, 3)), lambda c, k: np.diag(c[k])
    ),
    "spherical": _gaussian(
        SphericalGaussian, lambda r: r.uniform(0.3, 2.0, K), lambda c, k: c[k] * np.eye(3)
    ),
    "poisson": Case(
        family=lambda: Poisson(3),
        parameters=lambda random: {"rates": random.gamma(3.0, 1.5, (K, 3))},
        log_density=lambda p, k, rows: stats.poisson(p["rates"][k]).logpmf(rows).sum(axis=1),
        mean=lambda p, k: p["rates"][k],
    ),
    "categorical": Case(
        family=lambda: Categorical(_N_LEVELS),
        parameters=_probabilities,
        log_density=_log_levels,
        mean=lambda p, k: np.array([t @ np.arange(len(t)) for t in _tables(p["probabilities"][k])]),
    ),
}
CASES["tree"] = Case(
    family=lambda: TreeCategorical(_N_LEVELS, _PARENTS),
    parameters=_tree_parameters,
    log_density=_log_tree,
    mean=CASES["categorical"].mean,
)
CASES["mixed_tree"] = _product((CASES["tree"], [4, 0, 3]), (CASES["full"], [5, 1, 2]))
CASES["mixed"] = _product(
    (CASES["categorical"], [7, 0, 3]), (CASES["full"], [5, 1, 8]), (CASES["poisson"], [2, 4, 6])
)
CASES["mixed_tied"] = _product((CASES["diag"], [5, 3, 1]), (CASES["tied"], [0, 2, 4]))
CASES["low_rank"] = Case(
    family=lambda: LowRankGaussian(3, 0.0, 2, monotone=True),
    parameters=lambda random: {
        "means": _means(random),
        "loadings": random.standard_normal((K, 3, 2)),
        "noise_variances": random.uniform(0.3, 1.0, (K, 3)),
    },
    log_density=lambda p, k, rows: stats.multivariate_normal(
        p["means"][k],
        p["loadings"][k] @ p["loadings"][k].T + np.diag(p["noise_variances"][k]),
    ).logpdf(rows),
    mean=lambda p, k: p["means"][k],
)
CASES["mixed_low_rank"] = _product(
    (CASES["low_rank"], [5, 1, 8]), (CASES["tree"], [7, 0, 3]), (CASES["poisson"], [2, 4, 6])
)
CASES["mixed_spherical"] = _product(
    (CASES["spherical"], [0, 1, 2]), (CASES["categorical"], [3, 4, 5])
)

BACKENDS = {"reference": numpy_kernels, "compiled": numba_kernels}
every_family = pytest.mark.parametrize("name", CASES)
# Moments of low rank are along the directions of a model, and of so many of them only.
every_plain_family = pytest.mark.parametrize("name", [n for n in CASES if "low_rank" not in n])
both_backends = pytest.mark.parametrize("backend", BACKENDS)


class Source:
    """Rows that are all in memory, centred, with weights; see `pickmix.kernels.statistics.Rows`."""

    def __init__(self, rows, weights=None):
        self.rows = np.ascontiguousarray(rows)
        self.weights = np.ones(rows.shape[0]) if weights is None else weights

    def gather(self, rows):
        return self.rows[rows]

    def gather_about(self, rows, origin):
        return (self.rows[rows] - origin).astype(np.float32)

    def patterns_of(self, rows):
        return None

    def weights_of(self, rows):
        return self.weights[rows], self.weights.mean() * rows.shape[0]

    def features(self, make, size):
        return make(self.rows)


@dataclass(frozen=True)
class Known:
    """A mixture with known components, and rows of it: the user's, and the sweep's."""

    case: Case
    family: Family
    parameters: dict
    weights: np.ndarray
    raw: np.ndarray
    rows: np.ndarray
    centre: np.ndarray

    def moments(self):
        """Moments that the parameters are made from, with the weights as masses."""
        moments = self.family.moments_of(self.parameters, self.centre)
        return moments._replace(mass=self.weights.copy(), squares=1e-3 * self.weights)

    def state(self, backend, shrinkage="none", moments=None):
        """The mixture as an engine holds it."""
        moments = self.moments() if moments is None else moments
        prior = self.family.make_prior(moments, shrinkage, float(self.raw.shape[0]))
        return MixtureState(self.family, moments, backend, prior)

    def log_joints(self, rows):
        """log p(x, k) of the user's rows by SciPy, (K, n)."""
        densities = [self.case.log_density(self.parameters, k, rows) for k in range(K)]
        return np.stack(densities) + np.log(self.weights)[:, None]

    def rough_moments(self, random):
        """Moments of groups that are half right, half random, and the shares (K, N) of rows."""
        n = self.rows.shape[0]
        posterior = softmax(self.log_joints(self.raw), axis=0)
        chosen = 0.5 * posterior + 0.5 * random.dirichlet(np.full(K, 0.3), n).T
        layout = self.family.layout
        mass, squares, mean, *sums = numpy_kernels.sums_of_all(
            layout, self.rows, np.ones(n), chosen
        )
        scatter, counts = (array / mass[:, None] for array in sums)
        return Moments(mass / n, squares / n**2, mean, scatter, counts), chosen


def draw(family, parameters, k, n, random):
    """Rows (n, D) of component k, columns in the user's order."""
    return MixtureModel(family, np.eye(K)[k], parameters).sample(n, random)[0]


def arrange(family, rows):
    """Rows with their columns in the order of the sweep."""
    return family.coordinates(rows)


def known(name, n_rows=500, seed=3):
    """A mixture of a family in the table, with rows drawn from it."""
    random = np.random.default_rng(seed)
    case = CASES[name]
    family = case.family()
    parameters = case.parameters(random)
    weights = random.dirichlet(np.full(K, 5.0))
    model = MixtureModel(family, weights, parameters)
    raw = model.sample(n_rows, random)[0][random.permutation(n_rows)]
    arranged = arrange(family, raw)
    centre = family.centre(arranged.mean(axis=0))
    rows = np.ascontiguousarray(arranged - centre)
    return Known(case, family, parameters, weights, raw, rows, centre)
