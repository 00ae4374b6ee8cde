"""Missing values in networks without transforms: integrals, the same bits, and better fits."""

import numpy as np
import pytest
from missing_cases import clusters, with_gaps
from scipy import stats
from scipy.special import logsumexp

import pickmix
from pickmix import FlowMixture, SumProductTransformNetwork
from pickmix.inputs.files import write_table

SETTINGS = {"transforms": False, "batch_size": 50, "max_steps": 40, "evaluate_every": 20}
SETTINGS |= {"random_state": 0}


def network(n_children=4, n_partitions=2, n_layers=2, **settings):
    return SumProductTransformNetwork(n_children, n_partitions, n_layers, **SETTINGS | settings)


def flat(**settings):
    """A network of one layer: a mixture of Gaussians with independent columns."""
    return network(4, 1, 1, **settings)


def expected_log_joint(mixture, X):
    """log p(what was seen, child) of a network of one layer, by scipy, in the data's units."""
    named = mixture._network(X.shape[1]).kinds[0].unflatten(mixture.tables_[0])
    scale, shift = (np.asarray(named[name], np.float64) for name in ("log_scale", "shift"))
    deviation = np.exp(-scale)
    mean = -shift * deviation
    mean, deviation = mean * mixture.scale_ + mixture.center_, deviation * mixture.scale_
    by_cell = stats.norm.logpdf(X[:, None], mean, deviation)
    return np.where(np.isnan(X)[:, None], 0.0, by_cell).sum(axis=2) + np.log(mixture.weights_)


@pytest.fixture(scope="module")
def fitted():
    return flat(dtype="float64").fit(clusters() * [1.0, 50.0, 0.02])


class TestQueries:
    def test_densities_and_posteriors_of_what_was_seen(self, fitted):
        X = with_gaps(clusters(50, seed=1), 0.4) * [1.0, 50.0, 0.02]
        X[3] = np.nan
        expected = expected_log_joint(fitted, X)
        score = logsumexp(expected, axis=1)
        np.testing.assert_allclose(fitted.score_samples(X), score, rtol=1e-9, atol=1e-9)
        assert fitted.score_samples(X)[3] == pytest.approx(0.0, abs=1e-12)
        posterior = np.exp(expected - score[:, None])
        np.testing.assert_allclose(fitted.predict_proba(X), posterior, atol=1e-9)
        np.testing.assert_array_equal(fitted.predict(X), posterior.argmax(axis=1))
        components, probabilities = fitted.top_components(X, 2)
        np.testing.assert_array_equal(components[:, 0], posterior.argmax(axis=1))
        np.testing.assert_allclose(probabilities, -np.sort(-posterior, axis=1)[:, :2], atol=1e-9)
        np.testing.assert_array_equal(fitted.most_probable_trees(X)[:, 0], fitted.predict(X))

    def test_one_pattern_is_a_marginal(self, fitted):
        X = clusters(20, seed=1) * [1.0, 50.0, 0.02]
        gap = X.copy()
        gap[:, 1] = np.nan
        marginal = fitted.score_marginal(X[:, [0, 2]], [0, 2])
        np.testing.assert_allclose(fitted.score_samples(gap), marginal, rtol=1e-10)

    def test_files(self, fitted, tmp_path):
        X = with_gaps(clusters(50, seed=1), 0.4)
        write_table(tmp_path / "X.csv", {name: X[:, i] for i, name in enumerate("abc")})
        np.testing.assert_allclose(
            fitted.score_samples(tmp_path / "X.csv"),
            fitted.score_samples(X),
            rtol=1e-12,
            atol=1e-12,
        )


class TestFits:
    # Rows are given to a fit of complete rows, to one of rows with gaps, and to one of rows whose
    # gaps are filled with means. The first is what can be reached.
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "settings", [{}, {"proposal": "partition"}, {"algorithm": "em"}], ids=str
    )
    def test_better_than_filling_with_means(self, settings):
        X, held_out = clusters(600), clusters(2000, seed=7)
        gaps = with_gaps(X, 0.2)
        filled = np.where(np.isnan(gaps), np.nanmean(gaps, axis=0), gaps)
        score = {
            name: flat(**settings).fit(rows).score(held_out)
            for name, rows in (("whole", X), ("gaps", gaps), ("filled", filled))
        }
        # 27 parameters and 480 cells of each column: 27 / 2n is 0.03 on either side.
        assert score["gaps"] > score["whole"] - 0.06
        assert score["gaps"] > score["filled"] + 0.5

    def test_steps_gain_from_what_was_seen(self):
        """From a start that does not look at the rows, gradients of seen cells alone lead on."""
        gaps, held_out = with_gaps(clusters(600), 0.2), clusters(2000, seed=7)
        settings = {"init_params": "paper", "learning_rate": 0.02, "max_steps": 1}
        before = flat(**settings).fit(gaps).score(held_out)
        after = flat(**settings | {"max_steps": 800}).fit(gaps)
        assert after.score(held_out) > before + 1.0
        # What is watched is the density of what was seen, in the data's units.
        assert after.lower_bound_ == pytest.approx(after.score(gaps), abs=0.2)

    @pytest.mark.slow
    def test_the_record_is_in_the_units_of_the_data(self):
        gaps = with_gaps(clusters(300), 0.3) * [1.0, 50.0, 0.02]
        validation = with_gaps(clusters(200, seed=3), 0.3) * [1.0, 50.0, 0.02]
        mixture = flat(learning_rate=1e-12).fit(gaps, validation_data=validation)
        assert mixture.best_validation_ == pytest.approx(mixture.score(validation), abs=1e-4)
        assert mixture.lower_bound_ == pytest.approx(mixture.score(gaps), abs=1e-4)

    @pytest.mark.slow
    @pytest.mark.parametrize("start", ["gaussian", "data"])
    def test_starts_of_several_layers(self, start):
        gaps, held_out = with_gaps(clusters(600), 0.2), clusters(2000, seed=7)
        mixture = network(init_params=start, max_steps=100).fit(gaps)
        one = network(1, 1, 1, max_steps=1).fit(gaps)
        assert mixture.score(held_out) > one.score(held_out) + 0.5

    @pytest.mark.slow
    def test_streams_take_gaps(self, tmp_path):
        gaps, held_out = with_gaps(clusters(600), 0.2), clusters(2000, seed=7)
        mixture = flat().partial_fit(gaps[:300])
        first = mixture.score(held_out)
        again = pickmix.load(pickmix.save(mixture, tmp_path / "model"))
        mixture.partial_fit(gaps[300:])
        assert mixture.score(held_out) > first - 0.02
        np.testing.assert_array_equal(again.partial_fit(gaps[300:]).tables_[0], mixture.tables_[0])
        # A batch of nothing teaches nothing.
        tables, seen = mixture.tables_[0].copy(), mixture.n_rows_seen_
        with pytest.warns(UserWarning, match=r"5 row\(s\) of X hold missing values only"):
            mixture.partial_fit(np.full((5, 3), np.nan))
        np.testing.assert_array_equal(mixture.tables_[0], tables)
        assert mixture.n_rows_seen_ == seen

    @pytest.mark.slow
    def test_rows_of_nothing_have_no_say(self):
        gaps = with_gaps(clusters(200), 0.2)
        more = np.concatenate([gaps, np.full((3, 3), np.nan)])
        with pytest.warns(UserWarning, match=r"3 row\(s\) of X hold missing values only"):
            found = flat().fit(more)
        np.testing.assert_array_equal(found.tables_[0], flat().fit(gaps).tables_[0])


class TestRefused:
    def test_estimators_that_need_all_columns(self):
        gaps = with_gaps(clusters(100), 0.2)
        row, column = np.argwhere(np.isnan(gaps))[0]
        where = f"NaN in row {row}, column {column}. GaussianMixture, TableMixture and Sum"
        triangular = network(2, 1, 1, transforms="triangular", init_params="paper")
        for mixture in (
            FlowMixture(2, n_layers=1, hidden=2, max_steps=2, init_params="paper"),
            network(2, 1, 1, standardize="whiten", init_params="paper"),
            triangular,
        ):
            with pytest.raises(ValueError, match=where):
                mixture.fit(gaps)

    def test_columns_without_a_value(self):
        gaps = clusters(100)
        gaps[:, 1] = np.nan
        with pytest.raises(ValueError, match=r"a value in every column.*column 1"):
            flat().fit(gaps)
        with pytest.raises(ValueError, match="infinity"):
            flat().fit(np.full((20, 2), np.inf))
