"""`partial_fit` of deep mixtures: streams against fits, the same bits, and going on."""

import pickle

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import pickmix
from pickmix import FlowMixture, RandomPartition, SumProductTransformNetwork
from pickmix.gradient.algorithm import make_chunk
from pickmix.gradient.settings import N_PASSES, StepSettings
from pickmix.inputs.files import write_table

SMALL = {"batch_size": 20, "random_state": 0, "init_params": "gaussian"}


CENTRES = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 7.0]])
ROOTS = np.array([[[1.0, 0.0], [0.8, 0.6]], [[0.3, 0.0], [0.0, 2.0]], [[1.0, 0.0], [-0.9, 0.4]]])


def draw(n_rows, seed, shift=0.0):
    """Rows of three Gaussians, and their log-densities."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=n_rows)
    rows = CENTRES[labels] + np.einsum("nij,nj->ni", ROOTS[labels], rng.normal(size=(n_rows, 2)))
    distances = np.linalg.solve(ROOTS[:, None], (rows - CENTRES[:, None])[..., None])[..., 0]
    log_joint = -0.5 * (distances**2).sum(axis=2) - np.linalg.slogdet(ROOTS)[1][:, None]
    density = np.log(np.exp(log_joint).mean(axis=0)) - np.log(2.0 * np.pi)
    return rows + shift, density


def flow(**settings):
    return FlowMixture(4, hidden=3, **SMALL | settings)


def gaussians(**settings):
    """A network of one layer is a mixture of Gaussians."""
    return SumProductTransformNetwork(3, 1, 1, **SMALL | settings)


def stream(mixture, rows, batch_size):
    for start in range(0, rows.shape[0], batch_size):
        mixture.partial_fit(rows[start : start + batch_size])
    return mixture


def bits(mixture):
    names = ("weights_", "center_", "scale_", "n_steps_", "n_rows_seen_", "_passes", "_split_seed")
    arrays = [getattr(mixture, name) for name in names] + list(mixture.tables_)
    for adam in mixture._moments:
        arrays += adam
    return [np.asarray(array).tobytes() for array in arrays]


class TestLearning:
    # A mixture of P = 17 parameters fitted to n rows loses P / 2n on others in the mean: 0.034 of a
    # batch of 250. The loss is about chi-squared of P degrees over 2n: hardly ever twice its mean.
    # What went before can only help.
    @pytest.mark.slow
    def test_as_good_as_a_fit_and_as_the_truth(self):
        rows, _ = draw(2000, 0)
        held_out, density = draw(3000, 1)
        mixture = stream(gaussians(), rows, 250)
        score = mixture.score(held_out)
        assert score > density.mean() - 2.0 * 17 / (2 * 250)
        whole = gaussians(max_steps=300).fit(rows)
        assert score > whole.score(held_out) - 2.0 * 17 / (2 * 250)
        assert mixture.n_rows_seen_ == 2000
        assert mixture.n_steps_ == N_PASSES * 8 * 13
        assert np.isfinite(mixture.lower_bound_)

    @pytest.mark.slow
    @pytest.mark.parametrize("weight_update", ["gradient", "closed_form"])
    def test_two_calls_are_one_run_of_adam(self, weight_update):
        """With all rows in a step nothing is drawn: moments, weights and steps go on exactly."""
        rows, _ = draw(90, 0)
        settings = {"algorithm": "em", "batch_size": None, "noise": 0.0, "dtype": "float64"}
        settings |= {"learning_rate": lambda t: 0.01 / t, "weight_update": weight_update}
        # Not at an optimum of EM, where Adam would make steps of rounding errors.
        settings |= {"step_size": lambda t: 1.0 / (1.0 + t), "init_params": "paper"}
        online = gaussians(**settings).partial_fit(rows).partial_fit(rows).partial_fit(rows)
        settings |= {"max_steps": 3 * N_PASSES, "validation_fraction": None, "patience": None}
        whole = gaussians(**settings).fit(rows)
        for one, other in zip(online.tables_, whole.tables_, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(online.weights_, whole.weights_, rtol=1e-9)
        assert online.n_steps_ == whole.n_steps_
        np.testing.assert_array_equal(online.trace_["step"], [3 * N_PASSES])
        assert online.lower_bound_ == pytest.approx(whole.lower_bound_, abs=1e-8)

    @pytest.mark.slow
    def test_the_first_batch_chooses_the_number_of_components(self):
        mixture = SumProductTransformNetwork("auto", 1, 1, **SMALL)
        mixture.partial_fit(draw(400, 0)[0])
        n_chosen = mixture.weights_.shape[0]
        # With a background, unless the Gaussians of the start have one.
        assert {n_chosen, n_chosen - 1} & {2, 4, 8, 16}
        mixture.partial_fit(draw(400, 1)[0])
        assert mixture.weights_.shape == (n_chosen,)
        held_out, density = draw(1000, 2)
        # One Gaussian is 1.8 below.
        assert mixture.score(held_out) > density.mean() - 0.3


CASES = {
    "gaussians": gaussians,
    "partition": lambda **s: gaussians(proposal=RandomPartition(block_size=2), **s),
    "flow": flow,
    "table": lambda **s: flow(proposal="table", n_samples=2, weight_update="closed_form", **s),
    "network": lambda **s: SumProductTransformNetwork(
        2, 2, 2, transforms=False, reuse_log_joint=True, **SMALL | s
    ),
}


class TestSameBits:
    @pytest.mark.parametrize(
        "case",
        [
            *("gaussians", "partition"),
            *(pytest.param(name, marks=pytest.mark.slow) for name in ("flow", "table", "network")),
        ],
    )
    def test_again_and_after_a_pause(self, case, tmp_path):
        """Twice the same calls; and saved, pickled and loaded on the way."""
        rows, make = draw(150, 0)[0], CASES[case]
        expected = stream(make(), rows, 50)
        assert bits(stream(make(), rows, 50)) == bits(expected)
        paused = make().partial_fit(rows[:50])
        saved = pickmix.save(paused, tmp_path / "model.npz")
        paused = pickmix.load(saved).partial_fit(rows[50:100])
        paused = pickle.loads(pickle.dumps(paused)).partial_fit(rows[100:])
        assert bits(paused) == bits(expected)

    def test_rows_of_zero_weight_are_rows_removed(self):
        rows = draw(100, 0)[0]
        strange = np.full((10, 2), 40.0)
        plain, mixed = gaussians(), gaussians()
        for batch in (rows[:50], rows[50:]):
            plain.partial_fit(batch, sample_weight=np.ones(50))
            weights = np.concatenate([np.zeros(10), np.ones(50)])
            mixed.partial_fit(np.concatenate([strange, batch]), sample_weight=weights)
        assert bits(plain) == bits(mixed)

    def test_chunks_of_a_file_are_batches(self, tmp_path):
        rows = draw(100, 0)[0]
        write_table(tmp_path / "X.csv", {"a": rows[:, 0], "b": rows[:, 1]})
        with pickmix.open_rows(tmp_path / "X.csv", chunk_size=50) as source:
            found = gaussians().partial_fit(source)
        assert bits(found) == bits(stream(gaussians(), rows, 50))
        assert found.feature_names_in_.tolist() == ["a", "b"]


class TestGoingOn:
    def test_after_a_fit(self):
        rows = draw(450, 0)[0]
        mixture = gaussians(max_steps=20).fit(rows[:200])
        n_evaluations = mixture.n_component_evaluations_
        mixture.partial_fit(rows[200:])
        assert mixture.n_rows_seen_ == 450
        assert mixture.n_steps_ == 20 + 13 * N_PASSES
        # Chains from all three, then a candidate and the current one at each visit.
        assert mixture.n_component_evaluations_ - n_evaluations == 250 * 3 + 250 * N_PASSES * 2

    @pytest.mark.slow
    def test_a_warm_fit_goes_on_with_chains_that_fit(self):
        """Frozen, a fit after a stream accepts as often as the posterior does, from the start."""
        rows = draw(400, 0)[0]
        mixture = stream(gaussians(), rows, 200)
        posterior = mixture.predict_proba(rows)
        # A uniform candidate is accepted with probability min(1, p_candidate / p_current).
        expected = np.minimum(posterior[:, :, None], posterior[:, None, :]).sum(axis=(1, 2)) / 3
        mixture.set_params(
            warm_start=True, learning_rate=1e-12, max_steps=20, validation_fraction=None
        ).fit(rows)
        assert mixture.n_steps_ == 20 * N_PASSES + 20
        # A pass over 400 rows: each acceptance has a variance of at most a quarter.
        spread = np.sqrt(0.25 / 400)
        assert mixture.trace_["acceptance"][0] == pytest.approx(expected.mean(), abs=4 * spread)

    @pytest.mark.slow
    def test_a_cold_fit_starts_anew(self):
        rows = draw(200, 0)[0]
        mixture = gaussians(max_steps=20).partial_fit(rows[:100]).fit(rows)
        fresh = gaussians(max_steps=20).fit(rows)
        assert mixture.n_rows_seen_ == fresh.n_rows_seen_ == 200
        np.testing.assert_array_equal(mixture.score_samples(rows), fresh.score_samples(rows))
        fresh.partial_fit(rows[:50])
        assert bits(mixture.partial_fit(rows[:50])) == bits(fresh)

    def test_nothing_of_the_rows_is_kept(self):
        rows = draw(800, 0)[0]
        sizes = [len(pickle.dumps(stream(gaussians(), rows[:n], 200))) for n in (400, 800)]
        assert abs(sizes[1] - sizes[0]) < 64

    @pytest.mark.slow
    def test_batches_of_about_the_same_size_share_a_program(self):
        rows = draw(64, 0)[0]
        mixture = gaussians().partial_fit(rows[:60])
        chunk = make_chunk(mixture._network(2), StepSettings("mhsaem", noise=mixture.noise), False)
        n_programs = chunk._cache_size()
        assert n_programs > 0
        for size in (61, 40, 55, 33, 64):
            mixture.partial_fit(rows[:size])
        assert chunk._cache_size() == n_programs

    @pytest.mark.slow
    def test_callbacks_see_the_steps_of_the_stream(self):
        rows, seen = draw(100, 0)[0], []

        def watch(info):
            seen.append((info.step, info.epoch, info.estimator().score(rows)))
            return len(seen) == 3

        mixture = gaussians(callbacks=watch, evaluate_every=25).partial_fit(rows).partial_fit(rows)
        assert [step for step, *_ in seen] == [25, 50, 75]
        assert [epoch for _, epoch, _ in seen] == [5.0, 10.0, 15.0]
        assert mixture.outcome_ == "callback"
        assert mixture.n_steps_ == 75
        assert seen[2][2] == pytest.approx(mixture.score(rows))


class TestRefused:
    def refuse(self, mixture, message, *batch, error=ValueError, **settings):
        before = bits(mixture)
        with pytest.raises(error, match=message):
            mixture.set_params(**settings).partial_fit(*batch)
        assert bits(mixture) == before

    def test_other_batches_leave_no_trace(self):
        rows = draw(100, 0)[0]
        mixture = gaussians().partial_fit(rows[:50])
        self.refuse(mixture, "X has 3 features, but .* is expecting 2", np.ones((9, 3)))
        bad = rows[50:].copy()
        bad[7, 1] = np.inf
        self.refuse(mixture, "infinity", bad)
        bad[7, 1] = np.nan
        self.refuse(mixture, r"NaN in row 7, column 1. GaussianMixture, TableMixture", bad)
        self.refuse(mixture, "(?i)sample.weight", rows[50:], None, np.zeros(50))
        # And it goes on as if nothing had been.
        mixture.partial_fit(rows[50:])
        assert bits(mixture) == bits(stream(gaussians(), rows, 50))

    def test_other_parameters(self):
        rows = draw(50, 0)[0]
        message = "has 3 components and .* ask for 5 components .* Use fit to start again"
        self.refuse(gaussians().partial_fit(rows), message, rows, n_children=5)
        message = "3 components and .* numbers.* ask for 3 components and"
        self.refuse(gaussians().partial_fit(rows), message, rows, transforms=False)
        message = "learning_rate must be a number or a callable for partial_fit.*'cosine'"
        self.refuse(gaussians().partial_fit(rows), message, rows, learning_rate="cosine")

    def test_a_failed_beginning_is_none(self):
        mixture = gaussians()
        with pytest.raises(ValueError, match="NaN"):
            mixture.partial_fit(np.full((30, 3), np.nan))
        rows = draw(50, 0)[0]
        assert bits(mixture.partial_fit(rows)) == bits(gaussians().partial_fit(rows))

    def test_a_batch_out_of_reach_leaves_the_model_as_it_was(self):
        rows = draw(100, 0)[0]
        mixture = gaussians().partial_fit(rows[:50])
        before = bits(mixture)
        with pytest.warns(ConvergenceWarning, match="not finite"):
            mixture.partial_fit(1e30 * rows[50:])
        assert mixture.outcome_ == "non_finite"
        assert bits(mixture) == before

    def test_dask(self):
        array = pytest.importorskip("dask.array").from_array(draw(50, 0)[0], chunks=25)
        with pytest.raises(TypeError, match="X must not be a Dask"):
            gaussians().partial_fit(array)
