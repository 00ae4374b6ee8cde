"""Relocation: components go where they are needed, and only if that gains."""

import numpy as np
import pytest

from pickmix.closed_form.engine import log_likelihood
from pickmix.closed_form.mixture import GaussianMixtureState
from pickmix.closed_form.relocation import Relocation
from pickmix.closed_form.start import nearest_means
from pickmix.closed_form.structures import STRUCTURES
from pickmix.data.rows import ArrayRows
from pickmix.selection.randomness import StepRandomness
from pickmix.threads import Threads

CENTRES = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0], [12.0, 12.0], [18.0, 12.0], [12.0, 18.0]])


def rows_at(centres, n_each=300, seed=0):
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(centre, 1.0, (n_each, 2)) for centre in centres])


def relocation_from(means, X, name="full", weights=None):
    source = ArrayRows(X, weights)
    structure = STRUCTURES[name](2)
    means = np.asarray(means) - source.center
    rows = source.gather(np.arange(source.n_rows))
    chain = nearest_means(rows, means, Threads())
    counts = np.bincount(chain, minlength=means.shape[0])
    scatters = np.stack([np.cov(rows[chain == k].T) for k in range(means.shape[0])])
    packed = structure.pack_matrices(scatters)
    if structure.shared:
        packed = (counts @ packed / counts.sum())[None]
    centres = np.stack([rows[chain == k].mean(axis=0) for k in range(means.shape[0])])
    state = GaussianMixtureState(
        structure,
        counts / counts.sum(),
        centres,
        packed,
        reg_covar=1e-6,
        weight_floor=1e-6,
        least_count=3.0,
        prior_count=5.0,
        n_rows=source.n_rows,
    )
    return Relocation(state, source, chain), source


def nearest_centres(relocation, source):
    means = relocation.state.model.mean + source.center
    return np.sort(((means[:, None] - CENTRES) ** 2).sum(-1).argmin(axis=1))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", STRUCTURES)
def test_a_component_too_many_goes_where_one_is_missing(name, weighted):
    X = rows_at(CENTRES)
    weights = np.full(X.shape[0], 2.5) if weighted else None
    # Two at the first centre, one between the fourth and the fifth.
    bad = np.concatenate([[[-0.5, 0.0], [0.5, 0.0]], CENTRES[1:3], [[15.0, 12.0]], CENTRES[5:]])
    relocation, source = relocation_from(bad, X, name, weights)
    everything = np.arange(source.n_rows)
    before = log_likelihood(relocation.state, source, everything).mean()
    assert relocation.round(everything, StepRandomness(0, 1)) == 1
    np.testing.assert_array_equal(nearest_centres(relocation, source), np.arange(6))
    assert log_likelihood(relocation.state, source, everything).mean() > before + 0.1
    # Chains have followed: rows stand on the component at their centre.
    means = relocation.state.model.mean[relocation.chain] + source.center
    assert (np.abs(means - np.repeat(CENTRES, 300, axis=0)).max(axis=1) < 3.0).mean() > 0.98
    assert relocation.evaluations > 0


def test_nothing_moves_where_nothing_is_to_gain():
    relocation, source = relocation_from(CENTRES, rows_at(CENTRES))
    parameters = relocation.state.remember()
    chain = relocation.chain.copy()
    assert relocation.round(np.arange(source.n_rows), StepRandomness(0, 1)) == 0
    np.testing.assert_array_equal(relocation.state.model.mean, parameters["mean"])
    np.testing.assert_array_equal(relocation.chain, chain)


def test_fewer_than_three_components_stay():
    relocation, source = relocation_from(CENTRES[:2], rows_at(CENTRES[:2]))
    assert relocation.round(np.arange(source.n_rows), StepRandomness(0, 1)) == 0


def test_rows_outside_the_batch_follow_a_merge():
    X = rows_at(CENTRES)
    bad = np.concatenate([[[-0.5, 0.0], [0.5, 0.0]], CENTRES[1:3], [[15.0, 12.0]], CENTRES[5:]])
    relocation, source = relocation_from(bad, X)
    before = relocation.chain.copy()
    assert relocation.round(np.arange(0, source.n_rows, 2), StepRandomness(0, 1)) == 1
    # Rows of the first centre stand on one component now, whether they were looked at or not.
    assert np.sort(np.bincount(before[:300]))[-1] < 200
    assert np.sort(np.bincount(relocation.chain[:300]))[-1] > 290


def test_remember_and_recall():
    relocation, source = relocation_from(CENTRES, rows_at(CENTRES))
    state = relocation.state
    everything = np.arange(source.n_rows)
    kept, before = state.remember(), log_likelihood(state, source, everything)
    relocation.round(everything, StepRandomness(0, 1), daring=True)
    state.model.mean[:] += 1.0
    state.recall(kept)
    np.testing.assert_array_equal(log_likelihood(state, source, everything), before)
