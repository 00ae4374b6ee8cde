"""What fitted deep mixtures answer: densities that integrate, and draws that follow them."""

import copy
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from pickmix import FlowMixture, Mixture, SumProductTransformNetwork

SETTINGS = {"batch_size": 50, "max_steps": 40, "evaluate_every": 20, "random_state": 0}
SETTINGS["learning_rate"] = 0.02
SIGNIFICANCE = 1e-4


def rows(n_columns=2):
    """Clusters whose columns depend on one another, in units of their own."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2)) + 4.0 * rng.integers(0, 3, size=(200, 1))
    return (X * [1.0, 5.0] + [0.0, 100.0])[:, :n_columns]


@dataclass(frozen=True)
class DiagonalGaussian:
    def init(self, key, n_features):
        return {"mean": jax.random.normal(key, (n_features,)), "log_width": jnp.zeros(n_features)}

    def log_prob(self, params, x):
        distance = (x - params["mean"]) * jnp.exp(-params["log_width"])
        return -jnp.sum(0.5 * distance**2 + params["log_width"] + 0.5 * jnp.log(2.0 * jnp.pi))

    def sample(self, params, key):
        noise = jax.random.normal(key, params["mean"].shape, params["mean"].dtype)
        return params["mean"] + jnp.exp(params["log_width"]) * noise


FAMILIES = {
    "flow": FlowMixture(4, hidden=3),
    "network": SumProductTransformNetwork(3, 2, 2),
    "plain-network": SumProductTransformNetwork(3, 2, 2, transforms=False),
    "mixture": Mixture(DiagonalGaussian(), 4),
    "flow-of-one-column": FlowMixture(4, hidden=3),
}


@cache
def fitted(name):
    X = rows(1 if name.endswith("one-column") else 2)
    # Learnt in float32, as other tests do, and asked in float64.
    return FAMILIES[name].set_params(**SETTINGS).fit(X).set_params(dtype="float64")


@pytest.fixture(
    scope="module",
    params=[
        *list(FAMILIES)[:-1],
        pytest.param("flow-of-one-column", marks=pytest.mark.slow),
    ],
)
def model(request):
    return fitted(request.param)


@pytest.fixture(scope="module")
def plain():
    return fitted("plain-network")


def grid_of(X, n_points, margin):
    """Points, and the volume of a cell of a grid around the rows."""
    low, high = X.min(axis=0), X.max(axis=0)
    low, high = low - margin * (high - low), high + margin * (high - low)
    axes = [np.linspace(a, b, n_points) for a, b in zip(low, high, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    return points, float(np.prod([axis[1] - axis[0] for axis in axes]))


class TestDensities:
    def test_integrate_to_one(self, model):
        X = rows(model.n_features_in_)
        points, volume = grid_of(X, 801 if X.shape[1] == 1 else 201, 1.5)
        scores = model.score_samples(points.reshape(-1, X.shape[1]))
        assert np.exp(scores).sum() * volume == pytest.approx(1.0, abs=1e-4)

    def test_posteriors_agree(self, model):
        X = rows(model.n_features_in_)
        posterior = model.predict_proba(X)
        n_components = model.weights_.size
        assert posterior.shape == (200, n_components)
        np.testing.assert_allclose(posterior.sum(axis=1), 1.0, atol=1e-12)
        components, probabilities = model.top_components(X, n_components)
        np.testing.assert_array_equal(np.sort(components, axis=1)[0], np.arange(n_components))
        assert (np.diff(probabilities, axis=1) <= 0.0).all()
        np.testing.assert_array_equal(
            probabilities, np.take_along_axis(posterior, components, axis=1)
        )
        np.testing.assert_array_equal(model.predict(X), components[:, 0])
        np.testing.assert_array_equal(model.predict(X), posterior.argmax(axis=1))
        two, _ = model.top_components(X, 2)
        np.testing.assert_array_equal(two, components[:, :2])
        # The weights are the mean posterior of rows that the model itself has drawn.
        drawn = model.predict_proba(model.sample(5000)[0]).mean(axis=0)
        np.testing.assert_allclose(drawn, model.weights_, atol=0.04)

    def test_draws_follow_the_density(self, model):
        """Counts in cells of a grid against the cells' probabilities."""
        X = rows(model.n_features_in_)
        n_cells, n_inside = (40, 21) if X.shape[1] == 1 else (12, 15)
        points, volume = grid_of(X, n_cells * n_inside, 0.5)
        density = np.exp(model.score_samples(points.reshape(-1, X.shape[1])))
        shape = (n_cells, n_inside) * X.shape[1]
        inside = tuple(range(1, len(shape), 2))
        probability = (density * volume).reshape(shape).sum(axis=inside)
        drawn, components = model.set_params(random_state=5).sample(5000)
        assert drawn.shape == (5000, X.shape[1])
        # Cells of the midpoint rule: each point stands for the space around it.
        edges = []
        for column in range(X.shape[1]):
            values = np.unique(points[..., column])
            half = 0.5 * (values[1] - values[0])
            edges.append(np.append(values[::n_inside] - half, values[-1] + half))
        counts, _ = np.histogramdd(drawn, edges)
        expected = 5000 * probability.ravel()
        counts, seldom = counts.ravel(), expected < 5.0
        # Cells that hardly anything falls into are one cell, together with all beyond the grid.
        expected = np.append(expected[~seldom], 5000 - expected[~seldom].sum())
        counts = np.append(counts[~seldom], 5000 - counts[~seldom].sum())
        assert counts.size > 15
        assert chisquare(counts, expected).pvalue > SIGNIFICANCE
        # Components come as often as they weigh, and in order.
        assert (np.diff(components) >= 0).all()
        shares = np.bincount(components, minlength=model.weights_.size)
        weights = model.weights_ / model.weights_.sum()
        assert chisquare(shares, 5000 * weights).pvalue > SIGNIFICANCE

    def test_draws_depend_on_the_seed_alone(self, model):
        first, second = (model.set_params(random_state=5).sample(5000)[0] for _ in range(2))
        np.testing.assert_array_equal(first, second)
        assert not np.array_equal(first, model.set_params(random_state=6).sample(5000)[0])

    def test_criteria_and_scores(self, model):
        X = rows(model.n_features_in_)
        scores = model.score_samples(X)
        assert model.score(X) == pytest.approx(scores.mean())
        weights = np.arange(200.0)
        expected = weights @ scores / weights.sum()
        assert model.score(X, sample_weight=weights) == pytest.approx(expected)
        n_parameters = (model.aic(X) + 2.0 * scores.sum()) / 2.0
        assert model.bic(X) == pytest.approx(-2.0 * scores.sum() + n_parameters * np.log(200))
        # All parameters count but one weight; networks leave padding out.
        assert 0 < round(n_parameters) <= sum(t.size for t in model.tables_) + model.weights_.size
        assert n_parameters == pytest.approx(round(n_parameters))

    def test_other_columns_are_refused(self, model):
        n_columns = model.n_features_in_
        name = type(model).__name__
        message = f"X has {n_columns + 1} features, but {name} is expecting {n_columns} features"
        for ask in (model.score_samples, model.predict, model.predict_proba, model.top_components):
            with pytest.raises(ValueError, match=message):
                ask(np.zeros((3, n_columns + 1)))

    def test_rows_out_of_reach_are_named(self, model):
        with pytest.raises(ValueError, match=r"got 1 row\(s\) beyond that"):
            model.score_samples([[0.0] * model.n_features_in_, [1e300] * model.n_features_in_])


def test_the_number_of_parameters():
    # A mean and a width of two columns each, and all weights but one.
    mixture = fitted("mixture")
    assert mixture.aic(rows()) + 2.0 * mixture.score_samples(rows()).sum() == pytest.approx(
        2.0 * (4 * 4 + 3)
    )
    # Two layers: at the root 3 weights; below, 3 x 2 sum nodes with 3 leaves each.
    plain = fitted("plain-network")
    n_leaves = 3 * 2 * 3
    assert plain.aic(rows()) + 2.0 * plain.score_samples(rows()).sum() == pytest.approx(
        2.0 * (2 * n_leaves + 2 + 3 * 2 * 2)
    )


def test_components_that_cannot_draw():
    class Silent:
        init, log_prob = DiagonalGaussian.init, DiagonalGaussian.log_prob

    mixture = copy.copy(fitted("mixture")).set_params(component=Silent())
    with pytest.raises(TypeError, match=r"needs a component with a method sample\(params, key\)"):
        mixture.sample(3)


class TestTrees:
    def test_counts(self, plain):
        # A choice at the root and one for each of the two columns below.
        assert plain.n_trees_ == 3**3
        assert plain.n_paths_ == 3**2
        assert plain.most_probable_trees(rows()).shape == (200, 3)

    @pytest.mark.parametrize("name", ["plain-network", "network"])
    def test_the_most_probable_tree_is_the_best_of_all(self, name):
        network = fitted(name)
        X = rows()[:50]
        joint = tree_scores(network, X)
        # The sum over all trees is the density.
        total = np.logaddexp.reduce(joint, axis=1)
        np.testing.assert_allclose(total, network.score_samples(X), atol=1e-9)
        best = network.most_probable_trees(X)
        found = joint[np.arange(50), np.ravel_multi_index(best.T, (3, 3, 3))]
        np.testing.assert_allclose(found, joint.max(axis=1), atol=1e-9)
        # The root's choice need not be the most probable child, which sums over trees.
        assert (best[:, 0] == network.predict(X)).mean() > 0.8

    @pytest.mark.parametrize("columns", [[0], [1]])
    def test_marginals_are_integrals(self, plain, columns):
        X = rows()
        other = 1 - columns[0]
        values = X[:, other].mean() + 12.0 * X[:, other].std() * np.linspace(-1.0, 1.0, 4001)
        given = X[:7, columns]
        expected = []
        for value in given[:, 0]:
            points = np.empty((4001, 2))
            points[:, columns[0]], points[:, other] = value, values
            density = np.exp(plain.score_samples(points))
            expected.append(np.log(density.sum() * (values[1] - values[0])))
        np.testing.assert_allclose(plain.score_marginal(given, columns), expected, atol=1e-6)

    def test_marginals_of_all_columns_in_any_order(self, plain):
        X = rows()
        np.testing.assert_allclose(
            plain.score_marginal(X[:, ::-1], [1, 0]), plain.score_samples(X), atol=1e-9
        )

    def test_conditionals_are_what_marginals_leave(self, plain):
        X = rows()
        np.testing.assert_allclose(
            plain.score_conditional(X, [1]),
            plain.score_samples(X) - plain.score_marginal(X[:, [1]], [1]),
            atol=1e-12,
        )

    def test_conditional_draws_follow_the_conditional_density(self, plain):
        X = rows()
        given = np.full((10_000, 1), np.median(X[:, 1]) + 0.123)
        drawn = plain.set_params(random_state=3).sample_conditional(given, [1])
        assert drawn.shape == (10_000, 2)
        np.testing.assert_array_equal(drawn[:, [1]], given)
        grid = X[:, 0].mean() + 12.0 * X[:, 0].std() * np.linspace(-1.0, 1.0, 4001)
        points = np.column_stack([grid, np.full(4001, given[0, 0])])
        cumulative = np.exp(plain.score_conditional(points, [1])).cumsum() * (grid[1] - grid[0])
        assert cumulative[-1] == pytest.approx(1.0, abs=1e-4)
        test = kstest(drawn[:, 0], lambda x: np.interp(x, grid, cumulative))
        assert test.pvalue > SIGNIFICANCE
        # The condition matters: the marginal is another distribution.
        marginal = np.exp(plain.score_marginal(grid[:, None], [0])).cumsum() * (grid[1] - grid[0])
        assert kstest(drawn[:, 0], lambda x: np.interp(x, grid, marginal)).pvalue < 1e-10

    def test_mixed_columns_have_no_exact_marginals(self, plain):
        whitened = copy.copy(plain)
        whitened.standardize, whitened.whitening_ = "whiten", np.eye(2)
        for network, transforms in ((fitted("network"), "'triangular'"), (whitened, "False")):
            for ask in (network.score_marginal, network.sample_conditional):
                message = f"fit with transforms=False.*got transforms={transforms}"
                with pytest.raises(ValueError, match=message):
                    ask(rows()[:, :1], [0])

    @pytest.mark.parametrize(
        ("X", "columns", "message"),
        [
            (np.zeros((2, 1)), [2], r"columns must be different numbers in \[0, 2\), got \[2\]"),
            (np.zeros((2, 2)), [0, 0], r"columns must be different numbers in .* got \[0, 0\]"),
            (np.zeros((2, 1)), [-1], r"columns must be different numbers in .* got \[-1\]"),
            (np.zeros((2, 1)), [0.5], r"columns must be a list of column numbers, got \[0\.5\]"),
            (np.zeros((2, 1)), [], r"columns must be a list of column numbers, got \[\]"),
            (np.zeros((2, 2)), [0], r"one column for each of the 1 columns asked for, got 2"),
        ],
    )
    def test_columns_are_checked(self, plain, X, columns, message):
        with pytest.raises(ValueError, match=message):
            plain.score_marginal(X, columns)


def tree_scores(network, X):
    """log p(x, tree) of all 27 trees, (N, 27), each by itself."""
    fitted, points = network.model_.in_frame(X)
    model = fitted.network
    trees = np.array(np.unravel_index(np.arange(27), (3, 3, 3))).T.astype(np.int32)
    trees = np.tile(trees, (len(points), 1))

    @jax.jit
    def evaluate(tables, points):
        records = [table[row] for table, row in zip(tables, model.rows(trees), strict=True)]
        return model.log_density(model.unpack(records), trees, points)

    tables = [table.astype(np.float64) for table in network.tables_]
    with jax.enable_x64(True):
        values = np.asarray(evaluate(tables, np.repeat(points, 27, axis=0)))
    values = values + np.log(network.weights_[trees[:, 0]]) + network._frame.log_volume()
    return values.reshape(-1, 27)
