"""Blocks at the edge of float32: the compiled sweep against the reference."""

import numpy as np
import pytest

from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows
from pickmix.families.gaussian import DiagonalGaussian, FullGaussian
from pickmix.families.layout import Moments
from pickmix.kernels import numba_kernels, numpy_kernels
from pickmix.selection.partitions import Partition


def swept(backend, rows, means, variance, weights):
    rows, means = np.asarray(rows, dtype=float), np.asarray(means, dtype=float)
    D = rows.shape[1]
    family = DiagonalGaussian(D, 0.0)
    parameters = {"means": means, "covariances": np.full(means.shape, variance)}
    moments = family.moments_of(parameters, np.zeros(D))._replace(mass=np.array(weights))
    state = MixtureState(family, moments, backend, family.make_prior(moments, "none", 10.0))
    done = backend.sweep(
        family.layout,
        state.model,
        ArrayRows(rows, center=np.zeros(D)),
        np.arange(len(rows)),
        np.zeros(len(rows), dtype=np.int32),
        Partition.of_blocks(np.arange(len(means)), len(means)),
        np.uint64(1),
    )
    return done.statistics


CASES = {
    # One column of two rows has a scatter, the other has none.
    "two rows, a constant column": (
        [[1.0, 5.0], [2.0, 5.0]],
        [[1.5, 5.0], [-1.5, -5.0]],
        1.0,
        [0.5, 0.5],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_statistics(case):
    expected = swept(numpy_kernels, *CASES[case])
    found = swept(numba_kernels, *CASES[case])
    has_rows = expected.mass > 1e-6
    for name in ("mass", "mean", "scatter"):
        wanted, got = getattr(expected, name)[has_rows], getattr(found, name)[has_rows]
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-7, err_msg=name)


def mixture_of(n_features, n_rows):
    """Five components with correlated columns of very unequal widths, and rows of them."""
    rng = np.random.default_rng(n_features)
    family = FullGaussian(n_features, 0.0)
    widths = np.geomspace(1.0, 1e-3, n_features)
    mixing = np.eye(n_features) + rng.normal(size=(5, n_features, n_features)) / n_features
    factors = mixing * widths[:, None]
    covariances = factors @ factors.transpose(0, 2, 1)
    means = widths * rng.normal(size=(5, n_features))
    packed = family.pack_matrices(covariances)
    moments = Moments(np.full(5, 0.2), np.full(5, 0.04), means, packed, np.zeros((5, 0)))
    prior = family.make_prior(moments, "none", float(n_rows))
    state = MixtureState(family, moments, numpy_kernels, prior).require_sound()
    chosen = np.sort(rng.integers(5, size=n_rows))
    rows = means[chosen] + np.einsum(
        "nij,nj->ni", factors[chosen], rng.normal(size=(n_rows, n_features))
    )
    return state, rows, chosen.astype(np.int32)


@pytest.mark.parametrize("n_features", [1, 3, 5, 17, 21, 22, 40])
@pytest.mark.parametrize("is_constant", [False, True])
def test_many_columns_of_unequal_widths(n_features, is_constant):
    """Few columns are evaluated by products and many by factors; constant ones lose no digits."""
    state, rows, chain = mixture_of(n_features, 700)
    if is_constant:
        rows[:, -1] = rows[0, -1]
    found, expected = (
        backend.sweep(
            state.layout,
            state.model,
            ArrayRows(rows, center=np.zeros(n_features)),
            np.arange(len(rows)),
            chain,
            Partition.of_blocks(np.arange(5), 5),
            np.uint64(1),
        )
        for backend in (numba_kernels, numpy_kernels)
    )
    np.testing.assert_allclose(found.log_sums, expected.log_sums, atol=5e-3)
    assert (found.components == expected.components).mean() > 0.99
    diagonal = np.flatnonzero(np.equal(*state.layout.pairs()))
    np.testing.assert_allclose(
        found.statistics.scatter[:, diagonal],
        expected.statistics.scatter[:, diagonal],
        rtol=2e-3,
        atol=1e-20,
    )
    np.testing.assert_allclose(found.statistics.mass, expected.statistics.mass, rtol=1e-3)
