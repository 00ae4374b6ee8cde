"""Deep mixtures asked about rows with gaps: integrals on grids, exact Gaussians, rejection."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from deep_cases import network, rows
from scipy import stats

import pickmix
from pickmix import FlowMixture, GaussianMixture, Mixture
from pickmix.inputs.files import write_table
from pickmix.model import deep_rows
from pickmix.model.deep_rows import DrawnRows, GaussianRows

GRID = np.linspace(-2.0, 2.0, 4001)
NAN = np.nan


def ring(n_rows=600):
    rng = np.random.default_rng(0)
    angle = rng.uniform(0.0, 2.0 * np.pi, n_rows)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1) + 0.1 * rng.normal(size=(n_rows, 2))


@pytest.fixture(scope="module")
def bent():
    X = ring()
    flows = FlowMixture(3, hidden=5, max_steps=150, learning_rate=1e-2, random_state=0)
    flows.fit(X[:500], validation_data=X[500:])
    assert flows.best_validation_ > flows.start_validation_ + 0.1
    assert not flows.model_.gaussians[2]
    return flows


@pytest.fixture(scope="module")
def kept():
    """Flows that have not left their start, and Gaussians that are the same."""
    X = rows(300)
    flows = FlowMixture(3, max_steps=1, learning_rate=1e-12, validation_fraction=0.1)
    flows.set_params(random_state=0).fit(X[:270], validation_data=X[270:])
    return flows, GaussianMixture(3, random_state=0).fit(X[:270])


def on_grid(mixture, value):
    """Posteriors (K, G) times densities of the second column on a grid, given the first."""
    X = np.column_stack([np.full_like(GRID, value), GRID])
    joint = np.exp(mixture.score_samples(X))[:, None] * mixture.predict_proba(X)
    return joint.T * (GRID[1] - GRID[0])


GIVEN = np.array([-1.05, -0.6, 0.0, 0.4, 0.9])


class TestQuadrature:
    def test_density_and_posterior(self, bent):
        gaps = np.column_stack([GIVEN, np.full(5, NAN)])
        joints = np.stack([on_grid(bent, value).sum(axis=1) for value in GIVEN])
        densities = joints.sum(axis=1)
        np.testing.assert_allclose(bent.score_samples(gaps), np.log(densities), atol=0.06)
        posterior = joints / densities[:, None]
        np.testing.assert_allclose(bent.predict_proba(gaps), posterior, atol=0.04)
        np.testing.assert_allclose(bent.predict_proba(gaps).sum(axis=1), 1.0, atol=1e-6)
        components, shares = bent.top_components(gaps, 2)
        np.testing.assert_array_equal(components[:, 0], bent.predict(gaps))
        np.testing.assert_allclose(shares, -np.sort(-bent.predict_proba(gaps))[:, :2], atol=1e-12)

    def test_conditionals(self, bent):
        answers = bent.conditional({0: GIVEN})
        quantiles = answers.quantile([0.1, 0.5, 0.9])[:, 0]
        for number, value in enumerate(GIVEN):
            density = on_grid(bent, value).sum(axis=0)
            density /= density.sum()
            mean = density @ GRID
            deviation = np.sqrt(density @ (GRID - mean) ** 2)
            assert answers.mean()[number, 0] == pytest.approx(mean, abs=0.12 * deviation)
            assert answers.std()[number, 0] == pytest.approx(deviation, rel=0.12)
            below = np.interp(quantiles[number], GRID, np.cumsum(density))
            np.testing.assert_allclose(below, [0.1, 0.5, 0.9], atol=0.06)
            likely = density[np.searchsorted(GRID, answers.mode()[number, 0])]
            assert likely > 0.8 * density.max()
            # Of all columns known, the density is that of the network.
            Y = np.full((5, 1), GRID[2600])
            expected = np.log(density[2600] / (GRID[1] - GRID[0]))
            assert answers.score_samples(Y)[number] == pytest.approx(expected, abs=0.06)
        np.testing.assert_allclose(answers.covariance()[:, 0], answers.std() ** 2)
        np.testing.assert_allclose(answers.weights().sum(axis=1), 1.0, atol=1e-6)

    def test_regression_and_filling_are_conditional_means(self, bent):
        means = bent.conditional({0: GIVEN}).mean()
        np.testing.assert_array_equal(bent.predict_columns(GIVEN[:, None], 1), means[:, 0])
        X = np.column_stack([GIVEN, np.full(5, NAN)])
        filled = bent.impute(X)
        np.testing.assert_array_equal(filled[:, 0], GIVEN)
        np.testing.assert_array_equal(filled[:, 1], means[:, 0])


class TestDraws:
    def test_against_rejection(self, bent):
        drawn = bent.sample(200_000, random_state=1)[0]
        for value in (0.0, 0.9):
            near = drawn[np.abs(drawn[:, 0] - value) < 0.02, 1]
            gaps = np.tile([value, NAN], (1500, 1))
            found = bent.sample_conditional(gaps, random_state=2)
            np.testing.assert_array_equal(found[:, 0], value)
            assert stats.ks_2samp(found[:, 1], near).pvalue > 1e-3
            # Many draws of one row are not the same few.
            many = bent.conditional({0: value}).sample(1500, random_state=3)[0, :, 0]
            assert stats.ks_2samp(many, near).pvalue > 1e-4
            assert np.unique(many).size > 1000

    def test_random_state(self, bent):
        gaps = np.tile([0.4, NAN], (5, 1))
        first = bent.impute(gaps, "draw", n_draws=2, random_state=5)
        np.testing.assert_array_equal(bent.impute(gaps, "draw", n_draws=2, random_state=5), first)
        assert np.unique(first[:, :, 1]).size == 10

    def test_rows_alone_and_among_others(self, bent):
        gaps = ring(30)
        gaps[::3, 0] = gaps[1::3, 1] = NAN
        scores, filled = bent.score_samples(gaps), bent.impute(gaps)
        for number in range(6):
            alone = gaps[[number]]
            np.testing.assert_allclose(bent.score_samples(alone)[0], scores[number], rtol=1e-5)
            np.testing.assert_allclose(bent.impute(alone)[0], filled[number], rtol=1e-5)


class TestEffectiveDraws:
    def test_exact_answers_are_infinitely_many(self, bent, kept):
        gaps = np.array([[0.3, NAN], [0.3, 0.9], [NAN, NAN]])
        assert (kept[0].effective_draws(gaps) == np.inf).all()
        found = bent.effective_draws(gaps)
        assert found[1] == np.inf
        assert 50.0 < found[0] < 4096.0

    def test_it_says_how_far_off_an_estimate_is(self, bent):
        """Estimates by independent draws spread as their effective number says."""
        gaps = np.array([[0.9, NAN]])
        query = bent.model_.query_rows(gaps)
        random = np.random.default_rng(0)
        drawn = [query._draw(np.array([0]), gaps, 256, random) for _ in range(60)]
        estimates = [each.log_means[0] for each in drawn]
        number = np.mean([1.0 / np.square(each.weights).sum() for each in drawn])
        expected = np.sqrt(1.0 / number - 1.0 / 256)
        assert 0.6 * expected < np.std(estimates) < 1.6 * expected

    def test_a_warning_names_rows(self, bent, monkeypatch):
        monkeypatch.setattr(deep_rows, "_TOO_FEW", 1e4)
        gaps = ring(5)
        gaps[3, 1] = NAN
        for ask in (bent.score_samples, bent.impute):
            with pytest.warns(UserWarning, match=r"about 1 row\(s\).*count for row 3 "):
                ask(gaps)

    def test_more_draws_where_too_few_count(self, bent, monkeypatch):
        gaps = np.array([[0.4, NAN]])
        few = bent.effective_draws(gaps)[0]
        monkeypatch.setattr(deep_rows, "_ENOUGH", few + 1.0)
        assert bent.effective_draws(gaps)[0] > 2.0 * few


def straight(**parameters):
    """Flows with affine maps that have moved; layers shift and scale, but do not bend."""
    flows = FlowMixture(2, hidden=2, max_steps=1, random_state=0, **parameters)
    flows.fit(rows())
    net = flows._network(2)
    params = jax.tree.map(np.array, net.params_of(tuple(jnp.asarray(t) for t in flows.tables_)))
    rng = np.random.default_rng(0)
    for layer in params["layers"] if flows.linear else params:
        for name in ("translation", "log_scale"):
            layer[name]["last"][:] = 0.0
            layer[name]["last_bias"][:] = 0.3 * rng.normal(size=layer[name]["last_bias"].shape)
    if flows.linear:
        params["affine"]["shift"][:] = rng.normal(size=(2, 2))
        params["affine"]["factor"][:] = 0.3 * np.tril(rng.normal(size=(2, 2, 2)))
    flows.tables_ = [np.asarray(table) for table in net.tables_of(params, "float32")]
    return flows


MIXTURES = {
    "affine flows": lambda: straight(gaussian_share=0.2),
    "layers alone": lambda: straight(linear=False, init_params="data"),
    "triangular network": lambda: network(max_steps=5).fit(rows()),
    "whitened": lambda: network(max_steps=5, standardize="whiten").fit(rows()),
    "plain network": lambda: network(max_steps=5, transforms=False).fit(rows()),
}


class TestExact:
    @pytest.mark.parametrize("name", MIXTURES)
    def test_gaussians_are_the_mixture(self, name):
        mixture = MIXTURES[name]()
        (gaussians, _, are_exact), X = mixture.model_.gaussians, rows(50)
        assert are_exact
        found = gaussians.score_samples(X)
        np.testing.assert_allclose(found, mixture.score_samples(X), rtol=1e-4, atol=1e-4)
        shares = GaussianRows(mixture.model_, X).weights()
        np.testing.assert_allclose(shares, mixture.predict_proba(X), atol=1e-3)
        gaps = X.copy()
        gaps[::2, 0] = gaps[1::4, 1] = NAN
        expected = gaussians.score_samples(gaps)
        np.testing.assert_allclose(mixture.score_samples(gaps), expected, rtol=1e-4, atol=1e-4)
        answers = mixture.conditional({0: X[:5, 0]})
        np.testing.assert_allclose(answers.weights().sum(axis=1), 1.0)
        assert answers.mean().shape == (5, 1)

    def test_as_the_gaussian_mixture_of_the_start(self, kept):
        flows, gaussians = kept
        gaps = rows(40)
        gaps[::2, 0] = gaps[1::4, 1] = NAN
        for ask in ("score_samples", "predict_proba", "impute"):
            found, expected = getattr(flows, ask)(gaps), getattr(gaussians, ask)(gaps)
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
        found, expected = (m.conditional({1: [0.0, 4.0]}) for m in kept)
        np.testing.assert_allclose(found.quantile(0.3), expected.quantile(0.3), atol=1e-3)
        np.testing.assert_allclose(found[1].mean(), expected.mean()[1:], atol=1e-3)
        drawn = flows.sample_conditional([[NAN, 1.0]] * 20, random_state=0, where={0: "> 0.5"})
        assert (drawn[:, 0] > 0.5).all()

    def test_the_estimate_is_within_its_error(self, kept):
        model = kept[0].model_
        gaps = rows(60)
        gaps[::2, 0] = gaps[1::2, 1] = NAN
        exact, drawn = (kind(model, gaps) for kind in (GaussianRows, DrawnRows))
        error = 1.0 / np.sqrt(drawn.effective_draws())
        away = drawn.log_densities() - exact.log_densities()
        assert np.abs(away / error).max() < 3.0
        np.testing.assert_allclose(drawn.weights(), exact.weights(), atol=0.1)


class TestMarginals:
    @pytest.mark.parametrize("which", ["bent", "kept"])
    def test_it_is_the_density_of_some_columns(self, which, request, tmp_path):
        mixture = request.getfixturevalue(which)
        mixture = mixture[0] if which == "kept" else mixture
        X = ring(20)
        second = mixture.marginal(1)
        gaps = np.column_stack([np.full(20, NAN), X[:, 1]])
        expected = mixture.score_samples(gaps)
        np.testing.assert_allclose(second.score_samples(X[:, 1:]), expected, rtol=1e-9)
        np.testing.assert_allclose(second.predict_proba(X[:, 1:]), mixture.predict_proba(gaps))
        swapped = mixture.marginal([1, 0])
        np.testing.assert_allclose(swapped.score_samples(X[:, ::-1]), mixture.score_samples(X))
        found = swapped.conditional({1: [0.5]})
        expected = mixture.conditional({0: [0.5]})
        np.testing.assert_allclose(found.mean(), expected.mean())
        np.testing.assert_allclose(found.mode(), expected.mode())
        inner = swapped.marginal([1]).score_samples(X[:, :1])
        np.testing.assert_allclose(inner, mixture.marginal(0).score_samples(X[:, :1]))
        drawn = second.sample(5, random_state=0)[0]
        np.testing.assert_array_equal(drawn, mixture.sample(5, random_state=0)[0][:, 1:])
        again = pickmix.load(pickmix.save(swapped, tmp_path / "model"))
        np.testing.assert_array_equal(
            again.score_samples(X[:, ::-1]), swapped.score_samples(X[:, ::-1])
        )

    def test_a_fit_begins_anew(self, kept):
        swapped = kept[0].marginal([1, 0]).set_params(warm_start=True)
        with pytest.raises(ValueError, match="Use fit to start again"):
            swapped.partial_fit(rows(50))
        X = rows(100)
        again = swapped.fit(X)
        np.testing.assert_allclose(again.score_samples(X), again.model_.score_whole(X))

    def test_names(self, kept):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(rows(60), columns=["a", "b"])
        flows = FlowMixture(2, max_steps=1, learning_rate=1e-12, random_state=0).fit(frame)
        assert flows.marginal("b").score_samples(frame[["b"]]).shape == (60,)
        frame.loc[3, "b"] = NAN
        filled = flows.impute(frame)
        assert filled.loc[3, "b"] == flows.conditional({"a": frame.loc[3, "a"]}).mean()[0, 0]


class TestRowsOfNothing:
    def test_they_say_nothing(self, bent, kept):
        for mixture in (bent, kept[0]):
            nothing = np.full((1, 2), NAN)
            assert mixture.score_samples(nothing)[0] == pytest.approx(0.0, abs=1e-12)
            np.testing.assert_allclose(mixture.predict_proba(nothing)[0], mixture.weights_)

    def test_files(self, bent, tmp_path):
        X = ring(20)
        X[::4, 1] = NAN
        write_table(tmp_path / "X.csv", {"a": X[:, 0], "b": X[:, 1]})
        found = bent.score_samples(tmp_path / "X.csv")
        np.testing.assert_allclose(found, bent.score_samples(X), rtol=1e-5)


class Narrow:
    def init(self, key, n_features):
        return jax.random.normal(key, (n_features,))

    def log_prob(self, params, x):
        return -jnp.sum(jnp.abs(x - params) + jnp.log(2.0))


class Drawn(Narrow):
    def sample(self, params, key):
        return params + jax.random.laplace(key, params.shape)


class TestOtherComponents:
    def test_one_that_can_be_drawn_from(self):
        mixture = Mixture(Drawn(), 2, max_steps=5, random_state=0).fit(rows())
        gaps = np.column_stack([GIVEN, np.full(5, NAN)])
        marginal = mixture.marginal(0).score_samples(GIVEN[:, None])
        np.testing.assert_allclose(mixture.score_samples(gaps), marginal)
        grid = np.linspace(-30.0, 30.0, 20_001)
        X = np.column_stack([np.full_like(grid, 0.4), grid])
        expected = np.log(np.exp(mixture.score_samples(X)).sum() * (grid[1] - grid[0]))
        assert marginal[3] == pytest.approx(expected, abs=0.1)

    def test_one_that_cannot(self):
        mixture = Mixture(Narrow(), 2, max_steps=5, random_state=0).fit(rows())
        for ask in (mixture.score_samples, mixture.impute, mixture.effective_draws):
            with pytest.raises(TypeError, match=r"Narrow has none. Answers about missing"):
                ask(np.array([[1.0, NAN]]))


class TestRefused:
    def test_what_draws_cannot_do(self, bent):
        with pytest.raises(ValueError, match="where must be None for deep components that bend"):
            bent.sample_conditional([[NAN, 1.0]], where={0: "> 0"})
        with pytest.raises(ValueError, match="noise must be None for deep mixtures"):
            bent.impute([[NAN, 1.0]], noise=np.ones((1, 2)))

    def test_trees_of_rows_with_gaps(self):
        mixture = network(max_steps=5).fit(rows())
        swapped = mixture.marginal([1, 0])
        np.testing.assert_array_equal(
            swapped.most_probable_trees(rows()[:, ::-1]), mixture.most_probable_trees(rows())
        )
        with pytest.raises(ValueError, match="NaN in row 0, column 1"):
            mixture.most_probable_trees([[1.0, NAN]])

    def test_fits(self):
        X = rows()
        X[4, 1] = NAN
        with pytest.raises(ValueError, match=r"in row 4, column 1.*fill them by Gauss"):
            FlowMixture(2).fit(X)
