"""Blocks at the edge of float32: the compiled sweep against the reference."""

import numpy as np
import pytest

from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows
from pickmix.families.gaussian import DiagonalGaussian
from pickmix.selection.partitions import Partition
from pickmix.sweep.compiled import Compiled
from pickmix.sweep.reference import Reference
from pickmix.threads import Threads


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
    expected = swept(Reference(), *CASES[case])
    found = swept(Compiled(Threads()), *CASES[case])
    has_rows = expected.mass > 1e-6
    for name in ("mass", "mean", "scatter"):
        wanted, got = getattr(expected, name)[has_rows], getattr(found, name)[has_rows]
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-7, err_msg=name)
