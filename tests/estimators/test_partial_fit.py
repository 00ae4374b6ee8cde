"""`partial_fit`: streams in batches against fits of all rows, and going on from anything."""

import copy
import pickle

import numpy as np
import pytest

import pickmix
from pickmix import GaussianMixture, RandomPartition
from pickmix.data.rotated import generate

N_COMPONENTS, N_FEATURES, WIDTH = 10, 3, 0.08
PARAMETERS = ("weights_", "means_", "covariances_")


@pytest.fixture(scope="module")
def truth():
    return generate(N_COMPONENTS, N_FEATURES, WIDTH, random_state=0)


@pytest.fixture(scope="module")
def X(truth):
    return truth.sample(12_000, random_state=1)[0]


@pytest.fixture(scope="module")
def held_out(truth):
    return truth.sample(4000, random_state=2)[0]


def stream(rows, batch_size, mixture=None, **settings):
    """Learn from the rows, one batch after the other."""
    if mixture is None:
        mixture = GaussianMixture(N_COMPONENTS, **({"random_state": 0} | settings))
    for start in range(0, rows.shape[0], batch_size):
        mixture.partial_fit(rows[start : start + batch_size])
    return mixture


def assert_same_mixture(one, other):
    for name in PARAMETERS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


class TestLearning:
    # A step size of t^-0.6 remembers some t^0.6 units of 1000 rows, 4400 of 12,000. A mixture of
    # P parameters fitted to n rows loses P / 2n on others: P = 99 gives 0.004 for all rows and
    # 0.011 for the stream.
    @pytest.mark.parametrize(
        ("covariance_type", "batch_size"),
        [("full", 200), ("tied", 1000), ("diag", 4000), ("spherical", 1000)],
    )
    def test_as_good_as_a_fit_of_all_rows(self, X, held_out, covariance_type, batch_size):
        whole = GaussianMixture(N_COMPONENTS, covariance_type=covariance_type, random_state=0)
        online = stream(X, batch_size, covariance_type=covariance_type)
        assert online.score(held_out) > whole.fit(X).score(held_out) - 0.02
        assert online.n_rows_seen_ == X.shape[0]
        assert np.isfinite(online.lower_bound_)
        assert online.weights_.sum() == pytest.approx(1.0)

    @pytest.mark.parametrize("batch_size", [7])
    def test_batches_smaller_than_the_number_of_components(self, X, held_out, batch_size):
        mixture = GaussianMixture(N_COMPONENTS, random_state=0).partial_fit(X[:1000])
        before = mixture.score(held_out)
        n_steps = mixture.n_steps_
        stream(X[1000:1350], batch_size, mixture)
        assert mixture.n_rows_seen_ == 1350
        assert mixture.n_steps_ == n_steps + 350 / batch_size
        # The rows are a third more: P / 2n falls from 0.05 to 0.04.
        assert mixture.score(held_out) > before
        assert np.isfinite(mixture.lower_bound_)

    def test_the_bound_is_the_batch_s_under_the_parameters_before(self, X):
        # Ten components stand in one block, so that the bound is the log-likelihood itself, up to
        # what float32 and the floor of the weights take.
        mixture = stream(X[:5000], 1000)
        before = copy.deepcopy(mixture)
        mixture.partial_fit(X[5000:6000])
        assert mixture.lower_bound_ == pytest.approx(before.score(X[5000:6000]), abs=1e-3)

    def test_abrupt_change(self, X, held_out):
        """A constant step size follows; "auto", which averages over all it has seen, hangs on."""
        later = generate(N_COMPONENTS, N_FEATURES, WIDTH, random_state=5)
        Y = later.sample(12_000, random_state=3)[0]
        new = later.sample(4000, random_state=4)[0]
        following = stream(X, 1000, step_size=0.5)
        averaging = stream(X, 1000)
        # (1 + 12)^-0.6 = 0.21 of the old is replaced with "auto", and half of it at 0.5.
        following.partial_fit(Y[:1000])
        averaging.partial_fit(Y[:1000])
        assert averaging.score(held_out) > following.score(held_out)
        assert following.score(new) > averaging.score(new)
        stream(Y[1000:], 1000, following)
        stream(Y[1000:], 1000, averaging)
        assert following.score(new) > averaging.score(new)
        # 2^-12 of the old is left. Batches at 0.5 are worth 3000 rows: P / 2n is 0.017. The rest is
        # that components which have to move far end up in another optimum.
        assert following.score(new) > later.score_samples(new).mean() - 0.15


class TestRowsAndWeights:
    def test_rows_of_zero_weight_are_rows_removed(self, X):
        strange = np.full((50, N_FEATURES), 40.0)
        plain, mixed = (GaussianMixture(N_COMPONENTS, random_state=0) for _ in range(2))
        for start in (0, 1000, 2000):
            batch = X[start : start + 1000]
            plain.partial_fit(batch, sample_weight=np.ones(1000))
            weights = np.concatenate([np.zeros(50), np.ones(1000)])
            mixed.partial_fit(np.concatenate([strange, batch]), sample_weight=weights)
        assert_same_mixture(plain, mixed)
        assert mixed.n_rows_seen_ == 3000

    def test_nothing_of_the_rows_is_kept(self, X):
        """All that a stream leaves behind has the size of the parameters."""
        sizes = [len(pickle.dumps(stream(X[:n], 2000))) for n in (4000, 12_000)]
        # Numbers such as n_rows_seen_ may take some bytes more, and the first fit's trace is equal.
        assert abs(sizes[1] - sizes[0]) < 64


class TestAgain:
    def test_same_seed_same_bits(self, X):
        one, two = (stream(X[:5000], 500) for _ in range(2))
        assert_same_mixture(one, two)
        other = stream(X[:5000], 500, random_state=1)
        assert np.abs(other.means_ - one.means_).max() > 1e-9

    def test_what_can_be_changed_between_batches(self, X, held_out):
        """Threads, blocks and reg_covar of the next batch are those that are set then."""
        mixture = stream(X[:4000], 1000, n_jobs=1)
        mixture.set_params(n_jobs=2, proposal=RandomPartition(block_size=4, relocate=False))
        evaluations = mixture.n_component_evaluations_
        mixture.partial_fit(X[4000:5000])
        # Six blocks of four components at most, instead of all ten of them six times.
        assert mixture.n_component_evaluations_ - evaluations <= 6 * 4 * 1000
        smallest = np.linalg.eigvalsh(mixture.covariances_).min()
        assert smallest < 0.01
        mixture.set_params(reg_covar=0.01, step_size=1.0).partial_fit(X[5000:6000])
        assert np.linalg.eigvalsh(mixture.covariances_).min() >= 0.01


class TestGoingOn:
    """From a fit, a file or a pickle, to a fit."""

    @staticmethod
    def through_pickle(mixture, folder):
        return pickle.loads(pickle.dumps(mixture))

    @staticmethod
    def through_file(mixture, folder):
        return pickmix.load(pickmix.save(mixture, folder / "model"))

    @pytest.mark.parametrize(
        ("way", "covariance_type"),
        [("through_pickle", "full"), ("through_file", "tied"), ("through_file", "diag")],
    )
    def test_copies_go_on(self, X, held_out, tmp_path, way, covariance_type):
        mixture = stream(X[:4000], 1000, covariance_type=covariance_type)
        again = getattr(self, way)(mixture, tmp_path)
        assert_same_mixture(again, mixture)
        stream(X[4000:6000], 1000, mixture)
        stream(X[4000:6000], 1000, again)
        assert again.n_rows_seen_ == mixture.n_rows_seen_ == 6000
        assert again.n_steps_ == mixture.n_steps_
        # How many rows stand behind the statistics is taken to be all: the prior weighs less.
        assert again.score(held_out) == pytest.approx(mixture.score(held_out), abs=2e-3)

    def test_warm_fit_goes_on(self, X, held_out):
        mixture = stream(X[:4000], 1000, warm_start=True)
        before, n_steps = mixture.score(X), mixture.n_steps_
        mixture.fit(X)
        assert mixture.n_steps_ > n_steps
        assert mixture.trace_["step"][0] > n_steps
        assert mixture.n_rows_seen_ == 16_000
        # Averages over draws leave noise of some P / 2N = 0.004.
        assert mixture.score(X) > before - 0.03
        # And the stream may go on from there.
        after = mixture.score(held_out)
        stream(X[:2000], 1000, mixture)
        assert mixture.n_rows_seen_ == 18_000
        assert mixture.score(held_out) > after - 0.01

    def test_cold_fit_starts_anew(self, X):
        mixture = stream(X[:4000], 1000)
        mixture.fit(X[:3000])
        fresh = GaussianMixture(N_COMPONENTS, random_state=0).fit(X[:3000])
        assert_same_mixture(mixture, fresh)
        assert mixture.n_rows_seen_ == 3000
        assert mixture.n_steps_ == fresh.n_steps_
        # Nothing of the old stream is used later either.
        assert_same_mixture(mixture.partial_fit(X[:1000]), fresh.partial_fit(X[:1000]))


class TestRefused:
    @pytest.mark.parametrize(
        "settings",
        [
            {"algorithm": "em"},
            {"proposal": "uniform"},
        ],
        ids=str,
    )
    def test_algorithms_that_keep_something_for_every_row(self, X, settings):
        mixture = GaussianMixture(3, **settings)
        (value,) = settings.values()
        message = f"partial_fit works with algorithm='mhsaem' and .* got .*'{value}'"
        # As scikit-learn has it: a method that cannot work is not there. The error says why.
        assert not hasattr(mixture, "partial_fit")
        with pytest.raises(AttributeError, match=message):
            mixture.partial_fit(X[:100])
        assert GaussianMixture.partial_fit.__doc__.startswith("Learn from one batch")

    def test_first_batch_without_a_row_for_every_component(self, X):
        mixture = GaussianMixture(N_COMPONENTS, random_state=0)
        with pytest.raises(ValueError, match=r"n_components must be at most .*9.*got .*=10"):
            mixture.partial_fit(X[:9])
        weights = np.ones(12)
        weights[:3] = 0.0
        with pytest.raises(ValueError, match=r"n_components must be at most .*9.*got .*=10"):
            mixture.partial_fit(X[:12], sample_weight=weights)
        # Nothing is left of the failures, not even the number of features.
        mixture.partial_fit(X[:100, :2]).partial_fit(X[100:103, :2])
        assert mixture.n_rows_seen_ == 103

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"n_components": 4}, r"n_components=10 and .*, got 4 and 'full'.* Use fit"),
            ({"n_components": 12}, r"n_components=10 and .*, got 12 and 'full'.* Use fit"),
            ({"covariance_type": "diag"}, r"covariance_type='full', got 10 and 'diag'.* Use fit"),
        ],
    )
    def test_another_mixture(self, X, change, message):
        mixture = stream(X[:3000], 1000)
        before = mixture.means_.copy()
        mixture.set_params(**change)
        with pytest.raises(ValueError, match=message):
            mixture.partial_fit(X[:1000])
        np.testing.assert_array_equal(mixture.means_, before)

    def test_refused_batches_leave_no_trace(self, X):
        mixture = stream(X[:2000], 1000)
        before = mixture.means_.copy()
        bad = X[:100].copy()
        bad[7, 1] = np.inf
        with pytest.raises(ValueError, match="contains"):
            mixture.partial_fit(bad)
        with pytest.raises(ValueError, match="spread below"):
            mixture.partial_fit(np.full((5, N_FEATURES), 1e70))
        with pytest.raises(ValueError, match=r"(?i)sample.weight"):
            mixture.partial_fit(X[:5], sample_weight=np.zeros(5))
        np.testing.assert_array_equal(mixture.means_, before)
        assert mixture.n_rows_seen_ == 2000
