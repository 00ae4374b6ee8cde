"""Fits by random-partition Gibbs from within: early rows, trials, choices on the way."""

import numpy as np
import pytest
from known_states import both_backends, fleet_of, in_use, state_of
from scipy.spatial.distance import cdist

from pickmix.closed_form.partition_engine import PartitionEngine
from pickmix.selection.randomness import StepRandomness
from pickmix.selection.settings import RandomPartition

# Six groups, eight deviations apart.
CENTRES = 8.0 * np.array(list(np.ndindex(3, 2)), dtype=float)
K, D = 6, 2


def rows_at(n, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(K, size=n)
    return CENTRES[labels] + rng.normal(size=(n, D)), labels


def engine_of(
    X,
    means,
    block_size=32,
    n_steps=30,
    relocates=True,
    backend="reference",
    shrinkage="pooled",
    reg_covar=1e-6,
    step_size=None,
):
    """Components with the moments of the rows that are nearest to `means`."""
    chain = cdist(X, means).argmin(axis=1)
    own = [X[chain == k] for k in range(len(means))]
    state = state_of(
        "full",
        np.bincount(chain, minlength=len(means)) / X.shape[0],
        np.stack([rows.mean(axis=0) for rows in own]) - X.mean(axis=0),
        np.stack([np.cov(rows.T, bias=True) for rows in own]),
        reg_covar=reg_covar,
        floor=1e-7,
        shrinkage=shrinkage,
        n_rows=X.shape[0],
        backend=backend,
    )
    fleet = fleet_of(state.backend, X, chain)
    return PartitionEngine(
        state,
        fleet.source,
        fleet,
        RandomPartition(block_size),
        1,
        step_size,
        None,
        3,
        np.arange(X.shape[0]),
        last_step=n_steps,
        relocates=relocates,
    )


def everything(state):
    """All that a state knows, as arrays."""
    prior = {name: np.array(value) for name, value in vars(state.prior).items() if name != "form"}
    return {**state.moments._asdict(), **state.model._asdict(), **prior}


def copied(state):
    return {name: array.copy() for name, array in everything(state).items()}


class TestEarlyRows:
    @pytest.mark.parametrize("block_size", [3, 32])
    @both_backends
    def test_all_rows_find_their_component_in_the_end(self, backend, block_size):
        """240 rows per component are enough at first; two components begin between the groups."""
        n = 5000
        X, labels = rows_at(n)
        means = CENTRES + 0.5
        means[:2] = CENTRES[2:4] - 0.5
        engine = engine_of(X, means, block_size, backend=backend)
        early = engine._sweeps.fleet
        assert early is not engine.fleet
        assert early.n_rows == 30 * (D + 6) * K
        engine.step(1)
        # Only those rows take part, and stand behind the statistics.
        assert engine.counters.rows == early.n_rows
        assert engine.state.prior.n_rows == early.n_rows
        for t in range(2, 31):
            engine.step(t)
        assert engine._sweeps.fleet is engine.fleet
        assert engine._relocation is None
        # Groups that are eight deviations apart: a component each, and every row on its own.
        found = engine.state.model.location + engine.source.center
        nearest = cdist(CENTRES, found).argmin(axis=1)
        assert np.unique(nearest).size == K
        assert (engine.fleet.chain == nearest[labels]).mean() > 0.998
        assert engine.state.prior.n_rows == pytest.approx(n)
        np.testing.assert_allclose(engine.state.weights[nearest], np.bincount(labels) / n, 1e-2)
        for k in range(K):
            matrix = np.cov(X[labels == k].T)
            np.testing.assert_allclose(in_use(engine.state)[nearest[k]], matrix, atol=0.05)

    @pytest.mark.parametrize(("n", "early"), [(2159, False), (2160, True)])
    def test_rows_are_left_for_later_only_if_they_are_many(self, n, early):
        X, _ = rows_at(n)
        engine = engine_of(X, CENTRES)
        assert (engine._sweeps.fleet is not engine.fleet) == early
        # Nor are they without relocation.
        engine = engine_of(X, CENTRES, relocates=False)
        assert engine._sweeps.fleet is engine.fleet

    def test_a_given_step_size_is_for_all_rows(self):
        X, _ = rows_at(5000)
        engine = engine_of(X, CENTRES, step_size=lambda t: 1.0 / t)
        assert engine._sweeps.fleet is engine.fleet

    @pytest.mark.parametrize(("n_components", "early"), [(2, False), (3, True)])
    def test_two_components_have_all_rows(self, n_components, early):
        X, _ = rows_at(5000)
        engine = engine_of(X, CENTRES[[0, 3, 5]][:n_components])
        assert (engine._sweeps.fleet is not engine.fleet) == early

    def test_rows_that_did_not_take_part_are_led_to_their_component(self):
        """Their chains stood on components that have moved meanwhile."""
        X, labels = rows_at(5000)
        engine = engine_of(X, CENTRES, block_size=3)
        engine.step(1)
        engine.fleet.chain[:] = 0
        own = engine._sweeps.fleet.snapshot()
        numbers = engine._sweeps.fleet._numbers
        engine._go_on_with_all(1, StepRandomness(3, 1))
        assert (engine.fleet.chain == labels).mean() > 0.97
        # Those that did have kept theirs.
        np.testing.assert_array_equal(engine.fleet.chain[numbers], own)


class TestTrials:
    """Two components share a group, one has two: the first survey moves one of them."""

    MEANS = np.concatenate(
        [CENTRES[:1] - 0.5, CENTRES[:1] + 0.5, CENTRES[1:4], CENTRES[4:].mean(0)[None]]
    )

    def begun(self, monkeypatch, values, backend):
        """An engine whose mixtures are worth `values` in turn, before its first trial."""
        X, _ = rows_at(1500)
        engine = engine_of(X, self.MEANS, backend=backend)
        assert engine._sweeps.fleet is engine.fleet
        values = iter(values)
        monkeypatch.setattr(engine, "_left_out_log_likelihood", lambda: next(values))
        before = {}
        begin = engine._try

        def recorded(*arguments):
            before["state"], before["chain"] = copied(engine.state), engine.fleet.snapshot()
            return begin(*arguments)

        monkeypatch.setattr(engine, "_try", recorded)
        for t in (1, 2, 3):
            engine.step(t)
        assert engine._trial is not None
        # Something has moved.
        assert (engine.fleet.chain != before["chain"]).any()
        assert (everything(engine.state)["location"] != before["state"]["location"]).any()
        return engine, before

    @both_backends
    def test_what_fails_is_taken_back_bit_by_bit(self, monkeypatch, backend):
        engine, before = self.begun(monkeypatch, [-3.0, -3.001], backend)
        engine._sweeps.step(4, 1.0, 1.0, StepRandomness(3, 1))
        split = engine._relocation.split
        assert engine._judge_trial(engine._relocation)
        for name, array in everything(engine.state).items():
            np.testing.assert_array_equal(array, before["state"][name], err_msg=name)
        np.testing.assert_array_equal(engine.fleet.chain, before["chain"])
        # The survey is that of this state, but what has failed is not tried again.
        assert engine._survey is not None
        np.testing.assert_array_equal(np.flatnonzero(engine._relocation.avoided), split)
        assert engine._failures == 1

    def test_what_gains_stays(self, monkeypatch):
        engine, before = self.begun(monkeypatch, [-3.0, -2.5], "reference")
        after, chain = copied(engine.state), engine.fleet.snapshot()
        assert engine._judge_trial(engine._relocation)
        for name, array in everything(engine.state).items():
            np.testing.assert_array_equal(array, after[name], err_msg=name)
        np.testing.assert_array_equal(engine.fleet.chain, chain)
        assert (engine.fleet.chain != before["chain"]).any()
        assert engine._survey is None
        assert not engine._relocation.avoided.any()
        assert engine._failures == 0
        assert engine._value == -2.5

    def test_small_gains_count_as_failures_of_which_six_are_the_end(self, monkeypatch):
        engine, _ = self.begun(monkeypatch, [-3.0, -2.999, -2.998], "reference")
        assert engine._judge_trial(engine._relocation)
        assert engine._failures == 1
        engine._failures = 5
        engine._trial = object()
        assert not engine._judge_trial(engine._relocation)

    def test_a_trial_is_judged_before_the_end(self, monkeypatch):
        engine, before = self.begun(monkeypatch, [-3.0, -4.0], "reference")
        engine._stop_relocating(StepRandomness(3, 1))
        np.testing.assert_array_equal(engine.fleet.chain, before["chain"])
        assert engine._relocation is None
        assert engine._trial is None

    def test_the_trial_finds_the_groups(self):
        X, _ = rows_at(1500)
        engine = engine_of(X, self.MEANS)
        for t in range(1, 31):
            engine.step(t)
        found = engine.state.model.location + engine.source.center
        np.testing.assert_allclose(np.sort(cdist(CENTRES, found).min(axis=1)), 0.0, atol=0.3)
        assert engine.counters.refused == 0


def test_components_choose_on_the_way():
    X, _ = rows_at(1500)
    engine = engine_of(X, CENTRES, relocates=False)
    first = engine.state.prior.pseudo_rows.copy()
    engine.step(1)
    assert (engine.state.prior.pseudo_rows != first).all()
    chosen = engine.state.prior.pseudo_rows.copy()
    engine.step(2)
    engine.step(3)
    assert (engine.state.prior.pseudo_rows != chosen).any()


@both_backends
def test_singular_halves_do_not_end_a_fit(monkeypatch, backend):
    """The rows of one group stand in four places: the component is sound, its halves are not."""
    X, labels = rows_at(1500)
    corners = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, -1.0], [-1.0, 0.0]])
    own = np.flatnonzero(labels == 2)
    X[own] = CENTRES[2] + corners[np.arange(own.shape[0]) % 4]
    engine = engine_of(X, CENTRES, backend=backend, shrinkage="none", reg_covar=0.0)
    surveys = []
    survey = engine._relocation.survey
    monkeypatch.setattr(
        engine._relocation, "survey", lambda *given: surveys.append(survey(*given)) or surveys[-1]
    )
    for t in range(1, 13):
        engine.step(t)
    assert surveys[0].gains[2] == -np.inf
    assert np.isfinite(surveys[0].gains[[0, 1, 3, 4, 5]]).all()
    assert engine.counters.refused == 0
    assert np.isfinite(engine.log_likelihood())
    assert (engine.fleet.chain == labels).mean() > 0.99


FAR = np.array([[90.0, -80.0], [-70.0, 100.0], [-90.0, -90.0]])


def fitted_with_far_rows(n_far):
    """A fit of one component more than groups, and of rows that are far from all."""
    X = np.concatenate([rows_at(1500)[0], FAR[:n_far]])
    engine = engine_of(X, np.concatenate([CENTRES, CENTRES[:1] + 0.5]))
    engine.state.prior.allow_background(engine.source.extent())
    for t in range(1, 31):
        engine.step(t)
    return engine


@pytest.mark.parametrize("n_far", [0, 3])
def test_a_fit_lays_a_background_for_far_rows_alone(n_far):
    engine = fitted_with_far_rows(n_far)
    background = engine.state.prior.background
    assert (background >= 0) == (n_far > 0)
    if n_far:
        np.testing.assert_array_equal(engine.state.model.location[background], 0.0)
        on_it = np.flatnonzero(engine.fleet.chain == background)
        assert (on_it >= 1500).all()
        assert on_it.shape[0] >= 2


def test_a_single_far_row_does_not_keep_a_component_for_itself():
    engine = fitted_with_far_rows(3)
    found = engine.state.model.location + engine.source.center
    np.testing.assert_allclose(cdist(CENTRES, found).min(axis=1), 0.0, atol=0.3)
