"""Splits of components: halves and gains, against densities by scipy."""

import numpy as np
from scipy.stats import multivariate_normal

from pickmix.closed_form.chains import Chains
from pickmix.closed_form.relocation import Relocation
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows, Batches
from pickmix.families.gaussian import FullGaussian
from pickmix.families.layout import Moments
from pickmix.kernels import numpy_kernels
from pickmix.selection.randomness import StepRandomness

N = 400


def split_two_groups(distance):
    """Split a component of two groups of 200 rows; return centred rows, gain and halves."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(N, 2))
    rows[: N // 2, 0] += distance
    source = ArrayRows(rows)
    covariance = np.cov(rows.T, bias=True)[[0, 1, 1], [0, 0, 1]]
    moments = Moments(
        np.ones(1), np.full(1, 1.0 / N), np.zeros((1, 2)), covariance[None], np.zeros((1, 0))
    )
    family = FullGaussian(2, 0.0)
    prior = family.make_prior(moments, "none", float(N))
    state = MixtureState(family, moments, numpy_kernels, prior)
    chains = Chains(source, np.zeros(N, dtype=np.int32), Batches(N, N, 0))
    moves = Relocation(state, chains)
    chosen, gains, halves = moves.split_all(chains.of_step(1), 1, StepRandomness(0, 1))
    assert chosen.tolist() == [0]
    return rows - source.center, float(gains[0]), halves


def test_the_gain_of_a_split_is_that_of_the_log_likelihood():
    rows, gain, halves = split_two_groups(6.0)
    whole = multivariate_normal(np.zeros(2), np.cov(rows.T, bias=True)).logpdf(rows).sum()
    masses = halves.floored_masses / halves.floored_masses.sum()
    covariances = halves.family.unpack(halves.family.covariance_of_factor(halves.model.factor))
    densities = sum(
        mass * multivariate_normal(mean, covariance).pdf(rows)
        for mass, mean, covariance in zip(masses, halves.model.location, covariances, strict=True)
    )
    expected = np.log(densities).sum() - whole
    # Each row is left out once, which costs about a nat per new parameter; they are six.
    assert expected - 12.0 < gain < expected
    np.testing.assert_allclose(np.sort(halves.model.location[:, 0]), [-3.0, 3.0], atol=0.3)
