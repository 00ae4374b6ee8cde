"""Mixtures that follow a stream."""

import numpy as np
import pytest
from known_states import both_backends, state_of
from scipy import stats

from pickmix.closed_form.stream import OnlineMixture, automatic_gamma
from pickmix.data.rows import ArrayRows
from pickmix.selection.settings import RandomPartition


def test_step_sizes_of_a_stream():
    # A batch that is enough to learn all from replaces what was there, but for the past.
    assert automatic_gamma(5000, 0.0, 10) == 1.0
    assert automatic_gamma(5000, 5000.0, 10) == pytest.approx(2.0**-0.6)
    # Ten batches of a tenth forget as much as one that is ten times as large, to first order.
    assert automatic_gamma(100, 0.0, 10) == pytest.approx(0.1)
    sizes = [automatic_gamma(1000, 1000.0 * t, 10) for t in range(1000)]
    # What Robbins and Monro ask for: sums diverge, sums of squares do not.
    assert (np.diff(sizes) < 0).all()
    assert sum(sizes) > 30.0
    assert np.sum(np.square(sizes[500:])) < 0.5


@both_backends
def test_a_stream_of_batches_learns_what_all_rows_say(backend):
    """Two far groups: masses, means and covariances are those of all rows, by 1/t averaging."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(4000, 2)) * [1.0, 2.0] + 30.0 * (rng.random((4000, 1)) < 0.3)
    state = state_of(
        "full",
        [0.5, 0.5],
        np.array([[1.0, -1.0], [28.0, 31.0]]),
        [np.eye(2)] * 2,
        reg_covar=1e-6,
        floor=1e-5,
        shrinkage="few",
        n_rows=4000.0,
        backend=backend,
    )
    # Masses need not sum to one.
    state.decay(0.4)
    online = OnlineMixture(state, RandomPartition(), np.zeros(2), 0, 0.0, 0)
    bounds = []
    for t, batch in enumerate(np.split(X, 20), start=1):
        source = ArrayRows(batch, center=np.zeros(2))
        bound, refused = online.learn(source, 1.0 / t, relocates=False)
        bounds.append(bound)
        assert refused == 0
    assert online.n_seen == 4000.0
    assert online.n_batches == 20
    for k, own in enumerate([X[X[:, 0] < 15], X[X[:, 0] >= 15]]):
        assert state.weights[k] == pytest.approx(own.shape[0] / 4000, rel=1e-4)
        np.testing.assert_allclose(state.model.location[k], own.mean(axis=0), atol=1e-3)
        matrix = np.cov(own.T, bias=True)[[0, 1, 1], [0, 0, 1]]
        np.testing.assert_allclose(state.moments.scatter[k], matrix, atol=5e-3)
    # Bounds are of the batch before it is learnt from, under normalised weights.
    first = stats.norm.logpdf(X[:200, None] - [[1.0, -1.0], [28.0, 31.0]]).sum(axis=2)
    assert bounds[0] == pytest.approx(
        np.logaddexp.reduce(first - np.log(2), axis=1).mean(), rel=1e-4
    )
    truth = 0.0
    for k, own in enumerate([X[X[:, 0] < 15], X[X[:, 0] >= 15]]):
        density = stats.multivariate_normal(own.mean(axis=0), np.cov(own.T, bias=True))
        last = X[3800:][(X[3800:, 0] >= 15) == k]
        truth += (density.logpdf(last) + np.log(own.shape[0] / 4000)).sum()
    assert bounds[-1] == pytest.approx(truth / 200, abs=0.02)
