"""Splits of components: their gains, and steps that end once they bring nothing."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from pickmix.closed_form import relocation
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
    """Split a component of two groups of 200 rows; return gain, evaluations and means of halves."""
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
    return rows - source.center, float(gains[0]), moves.evaluations, halves


def test_the_gain_of_a_split_is_that_of_the_log_likelihood():
    rows, gain, _, halves = split_two_groups(6.0)
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


def test_steps_end_once_they_bring_nothing(monkeypatch):
    few = split_two_groups(12.0)
    monkeypatch.setattr(relocation, "_LEAST_RISE", -np.inf)
    every = split_two_groups(12.0)
    assert few[2] < every[2]
    assert few[1] == pytest.approx(every[1], abs=0.01 * N)
    # Where groups overlap more steps bring something.
    monkeypatch.undo()
    assert split_two_groups(3.0)[2] > few[2]
