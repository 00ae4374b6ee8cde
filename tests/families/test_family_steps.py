"""M-steps: two implementations alike, EM that never descends, splits that pay."""

import numpy as np
import pytest
from family_cases import (
    BACKENDS,
    K,
    arrange,
    both_backends,
    draw,
    every_family,
    every_plain_family,
    known,
)
from scipy.special import logsumexp

from pickmix.closed_form.state import MixtureState
from pickmix.families.layout import Moments
from pickmix.kernels import numba_kernels, numpy_kernels
from pickmix.kernels.statistics import Statistics
from pickmix.threads import use_threads


def _em_step(state, rows):
    """One step of EM; returns the mean log-likelihood before it, base measure aside."""
    engine, n = state.backend, rows.shape[0]
    log_joint = engine.log_joint_all(state.layout, state.model, rows)
    totals = logsumexp(log_joint, axis=0)
    shares = np.exp(log_joint - totals)
    sums = engine.sums_of_all(state.layout, rows, np.ones(n), shares, state.model)
    everyone = np.arange(state.n_components, dtype=np.int32)
    failed = state.absorb(Statistics(everyone, *sums, total_weight=float(n)), 1.0)
    assert failed.size == 0
    return totals.mean()


@every_family
@both_backends
def test_em_never_descends(name, backend):
    mixture = known(name, 300)
    moments, _ = mixture.rough_moments(np.random.default_rng(1))
    state = mixture.state(BACKENDS[backend], "none", moments).require_sound()
    climbed = np.array([_em_step(state, mixture.rows) for _ in range(20)])
    assert (np.diff(climbed) > -1e-10).all()
    assert climbed[-1] > climbed[0] + 0.005
    assert state.weights.sum() == pytest.approx(1.0)


@every_family
@pytest.mark.parametrize("shrinkage", ["none", "few", "pooled"])
def test_compiled_m_step_is_the_reference(name, shrinkage):
    mixture = known(name, 60)
    results = []
    for engine in (numpy_kernels, numba_kernels):
        moments, _ = mixture.rough_moments(np.random.default_rng(2))
        state = mixture.state(engine, shrinkage, moments).require_sound()
        state.decay(0.4)
        some = np.array([5, 0, 3], dtype=np.int32)
        update = Statistics(some, *(array[some] for array in moments), total_weight=1.0)
        state.absorb(update, 0.2)
        state.pool()
        results.append([*state.model, state.scales(), state.positions()])
    for expected, found in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@every_family
@pytest.mark.parametrize("shrinkage", ["none", "few", "pooled"])
def test_updates_in_pieces_are_those_at_once(name, shrinkage, monkeypatch):
    """Also on threads, and where a component of a piece got nothing."""
    monkeypatch.setattr("pickmix.threads.MINIMUM_WORK", 1)
    mixture = known(name, 60)
    results = []
    for together in (K, 2):
        monkeypatch.setattr("pickmix.closed_form.state._TOGETHER", together)
        moments, _ = mixture.rough_moments(np.random.default_rng(2))
        with use_threads(2):
            state = mixture.state(numpy_kernels, shrinkage, moments).require_sound()
            members = np.array([5, 0, 3, 4, 1], dtype=np.int32)
            added = [array[members] for array in mixture.moments()]
            added[0][1] = 0.0
            state.absorb(Statistics(members, *added, total_weight=1.0), 0.2)
        results.append([*state.model, *state.moments])
    for expected, found in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@every_plain_family
@pytest.mark.parametrize("shrinkage", ["none", "few", "pooled"])
def test_densities_stay_normalised_after_partial_updates(name, shrinkage):
    """A model updated in parts is one whose parameters, taken as they are, give the same model."""
    mixture = known(name, 200)
    moments, _ = mixture.rough_moments(np.random.default_rng(3))
    state = mixture.state(numpy_kernels, shrinkage, moments).require_sound()
    for members in ([1, 2], [4], [0, 6, 2]):
        some = np.array(members, dtype=np.int32)
        update = Statistics(some, *(array[some] for array in mixture.moments()), total_weight=1.0)
        state.absorb(update, 0.3)
    parameters = mixture.family.parameters(state.model, mixture.centre)
    again = mixture.family.moments_of(parameters, mixture.centre)
    again = again._replace(mass=state.masses.copy())
    other = mixture.state(numpy_kernels, "none", again)
    found, expected = (
        numpy_kernels.log_joint_all(state.layout, model, mixture.rows)
        for model in (state.model, other.model)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@every_family
def test_a_prior_makes_few_rows_lean_on_the_others(name):
    """A component of hardly any rows becomes the average one, one of many rows stays itself."""
    mixture = known(name, 2000)
    moments = mixture.moments()
    moments.mass[0], moments.squares[0] = 1e-9, 1e-18 * 2000
    state = mixture.state(numpy_kernels, "pooled", moments)
    own = mixture.state(numpy_kernels, "none", mixture.moments())
    for array, other in zip(state.model[:4], own.model[:4], strict=True):
        if array.shape[0] == K and array.size:
            change = np.abs(array - other).mean(axis=1)
            # Locations of Gaussians have no prior.
            assert change[0] == 0.0 or change[0] > np.median(change[1:])
    assert np.isfinite(state.model.log_normaliser).all()


@every_family
def test_halves_of_a_split_find_two_components(name):
    mixture = known(name, 20)
    random = np.random.default_rng(9)
    family = mixture.family
    # The two components that are furthest apart.
    known_state = mixture.state(numpy_kernels)
    places = known_state.positions() / known_state.scales()
    distances = np.square(places[:, None] - places).sum(axis=2)
    pair = np.unravel_index(distances.argmax(), distances.shape)
    drawn = np.concatenate([draw(family, mixture.parameters, k, 200, random) for k in pair])
    rows = arrange(family, drawn) - mixture.centre

    def fit(moments, n_steps):
        prior = family.make_prior(moments, "none", 400.0)
        state = MixtureState(family, moments, numpy_kernels, prior)
        scores = [_em_step(state, rows) for _ in range(n_steps)]
        return state, scores[-1]

    mass, squares, mean, scatter, counts = numpy_kernels.sums_of_all(
        family.layout, rows, np.ones(400), np.ones((1, 400))
    )
    whole = Moments(mass / 400, squares / 400**2, mean, scatter / 400, counts / 400)
    state, alone = fit(whole, 1)
    uniforms = random.random((1, state.positions().shape[1]))
    one, other = family.split(state.model, state.moments, state.prior, uniforms)
    assert one.mass + other.mass == pytest.approx(state.moments.mass)
    np.testing.assert_allclose((one.mean + other.mean) / 2, state.moments.mean, atol=1e-9)
    np.testing.assert_allclose((one.counts + other.counts) / 2, state.moments.counts, atol=1e-9)
    halves = Moments(*(np.concatenate(arrays) for arrays in zip(one, other, strict=True)))
    _, halved = fit(halves, 15)
    truth = Moments(*(array[list(pair)] for array in mixture.moments()))
    truth.mass[:] = 0.5
    _, apart = fit(truth, 15)
    assert halved - alone > 0.5 * (apart - alone) > 0.0
