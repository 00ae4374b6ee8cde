"""Random-partition Gibbs as the default of `GaussianMixture`: settings, starts, quality."""

import numpy as np
import pytest
from short_fits import COVARIANCE_TYPES, assert_identical
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as ExactMixture

from pickmix import GaussianMixture, RandomPartition
from pickmix.data.rotated import generate

N_COMPONENTS, N_FEATURES = 12, 3


@pytest.fixture(scope="module")
def truth():
    return generate(N_COMPONENTS, N_FEATURES, 0.06, random_state=0)


@pytest.fixture(scope="module")
def X(truth):
    return truth.sample(2400, random_state=1)[0]


def fitted(X, n_components=N_COMPONENTS, **settings):
    return GaussianMixture(n_components, **({"random_state": 0} | settings)).fit(X)


class TestProposal:
    def test_it_is_the_default(self, X):
        default = fitted(X)
        assert default.proposal_ == "partition"
        assert_identical(default, fitted(X, proposal="partition"))
        assert_identical(default, fitted(X, proposal=RandomPartition()))
        assert fitted(X, proposal="uniform", max_steps=3).proposal_ == "uniform"

    def test_settings_are_used(self, X):
        """A visit costs at most a block's worth of evaluations."""
        evaluations = {}
        for block_size in (2, 4, 12, 32):
            settings = RandomPartition(block_size=block_size, relocate=False)
            mixture = fitted(X, proposal=settings, max_steps=10)
            assert mixture.proposal_ == "partition"
            evaluations[block_size] = mixture.n_component_evaluations_
            assert evaluations[block_size] <= 10 * X.shape[0] * min(block_size, N_COMPONENTS)
        assert evaluations[2] < evaluations[4] < evaluations[12] == evaluations[32]
        # 12 components in one block are all of them.
        assert evaluations[12] == 10 * X.shape[0] * N_COMPONENTS

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"block_size": 1}, r"block_size must lie in \[2, 4096\], got 1"),
            ({"block_size": 5000}, r"block_size must lie in \[2, 4096\], got 5000"),
            ({"block_size": 8.0}, r"block_size must be an integer >= 2, got 8.0"),
            ({"block_size": True}, r"block_size must be an integer >= 2, got True"),
            ({"block_size": "all"}, r"block_size must be an integer >= 2, got 'all'"),
            ({"shuffle": -0.1}, r"shuffle must lie in \[0, 1\], got -0.1"),
            ({"shuffle": 1.1}, r"shuffle must lie in \[0, 1\], got 1.1"),
            ({"shuffle": np.nan}, r"shuffle must lie in \[0, 1\], got nan"),
            ({"relocate": "yes"}, r"relocate must be True, False or 'auto', got 'yes'"),
            ({"relocate": None}, r"relocate must be True, False or 'auto', got None"),
        ],
        ids=str,
    )
    def test_bad_settings(self, settings, message):
        with pytest.raises(ValueError, match=message):
            RandomPartition(**settings)


class TestQuality:
    @pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
    def test_held_out_rows_against_exact_em(self, covariance_type):
        truth = generate(25, 3, 0.05, random_state=0)
        X = truth.sample(2500, random_state=1)[0]
        held_out = truth.sample(5000, random_state=2)[0]
        ours = fitted(X, 25, covariance_type=covariance_type)
        exact = ExactMixture(25, covariance_type=covariance_type, random_state=0).fit(X)
        assert ours.converged_
        # Twenty sweeps of draws, averaged over the last, leave some P / 2N / 10 = 0.005 of noise;
        # starts differ by more than that, for either of them.
        assert ours.score(held_out) > exact.score(held_out) - 0.02

    @pytest.mark.slow
    def test_thousands_of_components(self):
        """Beyond 2000 components the start is made within cells; hardly any is left without rows.

        Ten rows per component: a share of exp(-10) of them would be empty by chance.
        """
        n_components = 2100
        X = np.random.default_rng(0).uniform(size=(10 * n_components, 2))
        with pytest.warns(ConvergenceWarning):
            mixture = fitted(X, n_components, covariance_type="diag", max_iter=2)
        assert np.isfinite(mixture.means_).all()
        assert (mixture.covariances_ > 0.0).all()
        assert mixture.trace_["live_components"][-1] > 0.99 * n_components
        # Means are spread over the square as the rows are: binomial counts in 16 cells.
        counts = np.histogram2d(*mixture.means_.T, bins=4, range=[[0, 1], [0, 1]])[0]
        assert (np.abs(counts - n_components / 16) < 5.0 * np.sqrt(n_components / 16)).all()
        # A square of side 1 has the log-density 0; so many components must not lose it.
        assert mixture.score(X) > -0.05
        assert mixture.n_start_evaluations_ <= 10 * 32 * len(X)
        assert mixture.n_component_evaluations_ <= 2 * 32 * len(X)


class TestRelocation:
    """Components that are hardly needed move to where rows are badly explained."""

    GRID = np.array([(i, j) for i in range(5) for j in range(5)], dtype=float)

    def n_matched(self, mixture):
        """Count those of the 25 clusters that have a mean of their own."""
        distances = np.linalg.norm(self.GRID[:, None] - mixture.means_, axis=2)
        return int((distances.min(axis=1) < 0.1).sum())

    @staticmethod
    def three_clusters():
        rng = np.random.default_rng(0)
        centres = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
        return np.repeat(centres, 200, axis=0) + 0.2 * rng.normal(size=(600, 2)), centres

    def test_given_starts_are_left_alone(self):
        """Two components on one cluster and one between the others: EM stays there."""
        X, _ = self.three_clusters()
        start = np.array([[0.0, 0.0], [0.02, 0.0], [2.0, 2.0]])
        for relocate in ("auto", False):
            settings = RandomPartition(relocate=relocate)
            mixture = fitted(X, 3, means_init=start, proposal=settings)
            np.testing.assert_allclose(mixture.means_[2], [2.0, 2.0], atol=0.1)
            assert (np.abs(mixture.means_[:2]) < 0.2).all()

    def test_starts_of_its_own_are_moved(self, X):
        auto, always = (
            fitted(X, max_steps=15, proposal=RandomPartition(relocate=relocate))
            for relocate in ("auto", True)
        )
        assert_identical(auto, always)
        never = fitted(X, max_steps=15, proposal=RandomPartition(relocate=False))
        # Splits and merges are evaluations too.
        assert never.n_component_evaluations_ < auto.n_component_evaluations_

    @pytest.mark.parametrize("seed", range(2))
    def test_bad_starts_are_mended(self, seed):
        """Five clusters with two components each, five with none."""
        rng = np.random.default_rng(seed)
        X = np.repeat(self.GRID, 40, axis=0) + 0.05 * rng.normal(size=(1000, 2))
        start = self.GRID + 0.1 * rng.normal(size=self.GRID.shape)
        order = rng.permutation(25)
        start[order[:5]] = self.GRID[order[5:10]] + 0.02 * rng.normal(size=(5, 2))
        moved, left = (
            fitted(
                X,
                25,
                means_init=start,
                random_state=seed,
                proposal=RandomPartition(relocate=relocate),
            )
            for relocate in (True, False)
        )
        assert self.n_matched(left) < 23
        assert self.n_matched(moved) == 25
        assert moved.score(X) > left.score(X) + 0.1


class TestPhases:
    """Exploration of some rows with relocation, all rows, and a background for rows far away."""

    CENTRES = 8.0 * np.array(list(np.ndindex(3, 2)), dtype=float)
    FAR = np.array([[90.0, -80.0], [-70.0, 100.0], [-90.0, -90.0]])

    def rows(self, n):
        rng = np.random.default_rng(0)
        labels = rng.integers(6, size=n)
        return self.CENTRES[labels] + rng.normal(size=(n, 2)), labels

    def distances(self, mixture):
        """Distance of each centre from the next mean."""
        return np.linalg.norm(self.CENTRES[:, None] - mixture.means_, axis=2).min(axis=1)

    def test_few_rows_per_component_are_enough_at_first(self):
        X, labels = self.rows(5000)
        mixture = fitted(X, 6, evaluate_every=1)
        # 240 rows per component, and relocation evaluates more.
        first = mixture.trace_["evaluations"][0]
        assert first < 2 * 6 * 240 * 6 < 5000 * 6
        assert np.diff(mixture.trace_["evaluations"])[-1] == 5000 * 6
        assert (self.distances(mixture) < 0.2).all()
        # Groups that are eight deviations apart: a component each.
        pairs = np.unique(np.stack([labels, mixture.predict(X)]), axis=1, return_counts=True)[1]
        assert np.sort(pairs)[-6:].sum() > 0.998 * 5000
        for settings in ({"step_size": 0.5}, {"proposal": RandomPartition(relocate=False)}):
            whole = fitted(X, 6, evaluate_every=1, max_steps=2, **settings)
            assert whole.trace_["evaluations"][0] >= 5000 * 6

    @pytest.mark.parametrize("n_far", [0, 3])
    def test_rows_far_away_have_a_background(self, n_far):
        X = np.concatenate([self.rows(1500)[0], self.FAR[:n_far]])
        mixture = fitted(X, 7)
        assert (mixture.background_ is not None) == (n_far > 0)
        if n_far:
            on_it = np.flatnonzero(mixture.predict(X) == mixture.background_)
            assert on_it.size > 0
            assert (on_it >= 1500).all()
            variances = np.diagonal(mixture.covariances_[mixture.background_])
            assert (np.sqrt(variances) > 30.0).all()
            assert fitted(X, 7, background=False).background_ is None

    def test_a_group_whose_halves_are_singular_does_not_end_a_fit(self):
        """The rows of one group have four distinct values."""
        X, labels = self.rows(1500)
        corners = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, -1.0], [-1.0, 0.0]])
        degenerate = np.flatnonzero(labels == 2)
        X[degenerate] = self.CENTRES[2] + corners[np.arange(degenerate.shape[0]) % 4]
        proposal = RandomPartition(relocate=True)
        mixture = fitted(X, 6, reg_covar=0.0, means_init=self.CENTRES, proposal=proposal)
        assert mixture.converged_
        assert (self.distances(mixture) < 0.3).all()


class TestSchedules:
    @pytest.mark.parametrize("batch_size", [60, 600])
    def test_batches(self, truth, X, batch_size):
        mixture = fitted(X, batch_size=batch_size)
        assert mixture.converged_
        steps_per_pass = len(X) // batch_size
        assert mixture.n_iter_ == -(-mixture.n_steps_ // steps_per_pass)
        # P / 2N = 0.025 is what a fit gains on its own rows, less what shrinkage costs.
        assert mixture.score(X) > truth.score_samples(X).mean() - 0.01


class TestCounts:
    def test_of_evaluations_and_rows(self, X):
        mixture = fitted(X, max_steps=6, proposal=RandomPartition(relocate=False))
        n_evaluations = len(X) * N_COMPONENTS
        assert mixture.n_component_evaluations_ == 6 * n_evaluations
        # Ten sweeps of a soft k-means and one with the covariances that are wanted.
        assert mixture.n_start_evaluations_ == 10 * n_evaluations
        assert mixture.n_rows_seen_ == len(X)


def test_columns_that_are_constant_in_components_bring_a_background():
    """A value that is new in a cluster costs some ten nats, not hundreds of thousands."""
    random = np.random.default_rng(0)
    label = random.integers(12, size=2400)
    places = 3.0 * random.normal(size=(12, 2))[label] + 0.003 * random.normal(size=(2400, 2))
    X = np.column_stack([places, label % 2])
    mixture = GaussianMixture(16, random_state=0).fit(X)
    changed = X[:50].copy()
    changed[:, 2] = 1.0 - changed[:, 2]
    assert mixture.score_samples(changed).min() > -50.0
