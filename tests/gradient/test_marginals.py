"""Networks without transforms and rows with gaps: enumerated trees by scipy, gradients by JAX."""

import jax.numpy as jnp
import numpy as np
import pytest
from explicit_trees import every_tree, log_softmax
from quick_jit import quick_jit
from scipy import stats
from scipy.special import logsumexp

from pickmix.gradient.compilation import precision
from pickmix.gradient.queries import Fitted
from pickmix.gradient.sptn import PartialSumProduct, SumProductTransform

# Scopes (3) and (2, 1): padded places, 3 * 2^2 trees; one layer; parts that are not divided.
SHAPES = [((3, 2), 2, 2, 3), (4, 2, 1, 2), ((2, 2), 1, 2, 2)]


@pytest.fixture(params=SHAPES, ids=str, scope="module")
def networks(request):
    complete = SumProductTransform(*request.param, transforms=False)
    return complete, PartialSumProduct(complete)


def make(network, n_rows=40, seed=0):
    rng = np.random.default_rng(seed)
    tables = tuple(0.7 * rng.normal(size=shape) for shape in network.shapes)
    logits = rng.normal(size=network.n_children)
    rows = rng.normal(size=(n_rows, network.n_features))
    gone = rng.random(rows.shape) < 0.4
    gone[0], gone[1] = False, True
    return tables, log_softmax(logits), np.where(gone, np.nan, rows)


def leaves_of(network, tables, tree):
    """Log-weight below the root, means (D,) and standard deviations (D,) of a tree's leaves."""
    named = network.unpack(
        [table[row] for table, row in zip(tables, network.rows(tree[None]), strict=True)]
    )
    log_weight, place = 0.0, 1
    for depth in range(1, len(network.slots)):
        layer, logits = network.layers[depth], np.asarray(named[depth - 1]["logits"][0])
        for parent, part in zip(layer.parents, layer.parts, strict=True):
            log_weight += log_softmax(logits[parent, part])[tree[place]]
            place += 1
    last = network.layers[-1]
    scale, shift = (np.asarray(named[-1][name][0]) for name in ("log_scale", "shift"))
    scale, shift = np.exp(scale[last.real]), shift[last.real]
    return log_weight, -shift / scale, 1.0 / scale


def expected_log_joint(network, tables, log_weights, rows):
    """log p(what was seen, tree) of all trees, (N, n_trees), by scipy, cell by cell."""
    values = []
    for tree in every_tree(network):
        log_weight, mean, deviation = leaves_of(network, tables, tree)
        by_cell = stats.norm.logpdf(rows, mean, deviation)
        by_row = np.where(np.isnan(rows), 0.0, by_cell).sum(axis=1)
        values.append(by_row + log_weight + log_weights[tree[0]])
    return np.array(values).T


def test_every_tree_and_their_sum(networks):
    complete, partial = networks
    tables, log_weights, rows = make(partial)
    expected = expected_log_joint(partial, tables, log_weights, rows)
    trees = every_tree(partial)
    # Every row with every tree.
    each, repeated = np.tile(trees, (len(rows), 1)), np.repeat(rows, len(trees), axis=0)
    with precision(np.float64):
        parameters = partial.gather(tuple(map(jnp.asarray, tables)), each)
        found = np.asarray(quick_jit(partial.log_density)(parameters, each, repeated))
    found = found.reshape(len(rows), -1) + log_weights[trees[:, 0]]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    found = Fitted(partial, tables, log_weights, np.float64).score_samples(rows)
    np.testing.assert_allclose(found, logsumexp(expected, axis=1), rtol=1e-12, atol=1e-12)
    # Nothing was seen of the second row: its density is one.
    assert found[1] == pytest.approx(0.0, abs=1e-12)
    # And for the first, of which all was, it is what the other network says.
    whole = Fitted(complete, tables, log_weights, np.float64).score_samples(rows[:1])
    assert found[0] == pytest.approx(whole[0], rel=1e-13)


def test_chains_are_drawn_from_the_posterior_of_what_was_seen(networks):
    _, partial = networks
    tables, log_weights, rows = make(partial)
    trees = every_tree(partial)
    n_draws = 4000
    for row in rows[[0, 1, 3]]:
        log_joint = expected_log_joint(partial, tables, log_weights, row[None])[0]
        posterior = np.exp(log_joint - logsumexp(log_joint))
        repeated = np.repeat(row[None], n_draws, axis=0)
        drawn = Fitted(partial, tables, log_weights, np.float64).draw_chain(repeated, 5)
        numbers = np.ravel_multi_index(drawn.T, partial.n_choices)
        counts = np.bincount(numbers, minlength=trees.shape[0])
        # Rare trees together, so that the normal approximation holds.
        common = posterior * n_draws >= 10.0
        assert common.any()
        spread = np.sqrt(n_draws * posterior * (1.0 - posterior))[common]
        assert (np.abs(counts - n_draws * posterior)[common] < 5.0 * spread + 1.0).all()


def test_networks_with_transforms_are_refused():
    with pytest.raises(TypeError, match="transforms=False, got 'triangular'"):
        PartialSumProduct(SumProductTransform(2, 2, 2, 3))
