import dataclasses
import warnings

import numpy as np
import pytest

from pickmix import GaussianMixture
from pickmix.data.rotated import generate
from pickmix.experiments.other_libraries import gaussians_of_clusters
from pickmix.experiments.rivals import RIVALS, YARDSTICKS
from pickmix.experiments.scoring import record_nothing

EVERYWHERE = [name for name, rival in RIVALS.items() if rival.needs is None]
EXTRA = [name for name, rival in RIVALS.items() if rival.needs is not None]


@pytest.fixture(scope="module")
def rows():
    # Four clusters far apart, so that every rival finds them.
    truth = generate(4, 2, 0.03, random_state=3)
    return truth.sample(400, random_state=0)[0], truth


def check_fit(name, rows):
    X, truth = rows
    fitted = RIVALS[name].fit(X, 4, 0, record_nothing)
    assert fitted.parameters.means.shape == (4, 2)
    best = truth.score_samples(X).mean()
    assert abs(fitted.score_samples(X).mean() - best) < 0.1
    assert fitted.parameters.live_components(400) == 4
    return fitted


@pytest.mark.parametrize("name", EVERYWHERE)
def test_every_rival_finds_clusters_and_counts(name, rows):
    fitted = check_fit(name, rows)
    # A pass at least, and all of one for those that take no batches.
    assert fitted.evaluations >= 400
    if name == "em" or name.startswith("sklearn"):
        assert fitted.evaluations % (4 * 400) == 0


@pytest.mark.parametrize("name", EXTRA)
def test_rivals_of_the_extra_find_clusters(name, rows):
    pytest.importorskip(RIVALS[name].needs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_fit(name, rows)


def test_plain_is_plain(rows):
    X, _ = rows
    ours = GaussianMixture(n_components=4, random_state=7).fit(X)
    fitted = RIVALS["pickmix"].fit(X, 4, 7, record_nothing)
    np.testing.assert_array_equal(fitted.parameters.means, ours.means_)
    assert fitted.evaluations == ours.n_component_evaluations_
    assert fitted.work_seconds > 0.0


def test_curves_of_ours_are_recorded_on_the_way(rows):
    X, _ = rows
    seen = []

    def record(evaluations, parameters):
        seen.append((evaluations, parameters().score_samples(X).mean()))

    fitted = RIVALS["em"].fit(X, 4, 0, record)
    assert len(seen) >= 2
    assert np.all(np.diff([evaluations for evaluations, _ in seen]) > 0)
    # EM never falls, and the last record is the end.
    scores = [score for _, score in seen]
    assert np.all(np.diff(scores) > -1e-9)
    assert seen[-1] == (fitted.evaluations, pytest.approx(fitted.score_samples(X).mean()))


def test_threads_of_blas_change_the_time_only(rows):
    X, _ = rows
    for many, one in YARDSTICKS:
        first, second = (RIVALS[name].fit(X, 4, 1, record_nothing) for name in (many, one))
        assert first.evaluations == second.evaluations
        np.testing.assert_allclose(first.parameters.means, second.parameters.means, atol=1e-9)


def test_clusters_become_gaussians_shrunk_by_one_row():
    X = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0], [9.0, 9.0]])
    parameters = gaussians_of_clusters(X, np.array([0, 0, 0, 0, 1]), np.full((3, 2), 7.0))
    np.testing.assert_allclose(parameters.weights, [0.8, 0.2, 0.0])
    np.testing.assert_allclose(parameters.means, [[1, 1], [9, 9], [7, 7]])
    # The scatter of all clusters is 4 per column, over five rows.
    pooled = 0.8 * np.eye(2)
    expected = [(4 * np.eye(2) + pooled) / 5, pooled / 2, pooled]
    np.testing.assert_allclose(parameters.covariances, np.array(expected) + 1e-6 * np.eye(2))


def test_missing_libraries_are_noticed():
    rival = dataclasses.replace(RIVALS["em"], needs="no_such_library")
    assert not rival.installed
    assert RIVALS["em"].installed
