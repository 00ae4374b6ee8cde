"""Trees of categories: all queries against the joint distribution written out."""

import itertools

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from pickmix import FamilyMixture
from pickmix.families.base import LeftOutPairs, Pairs, SeenRows
from pickmix.families.column_trees import TreeOfColumnsError, choose_parents, restricted_parents
from pickmix.families.layout import Moments
from pickmix.families.tree import TreeCategorical
from pickmix.model.conditional import level_probabilities
from pickmix.model.mixture import MixtureModel
from pickmix.model.rows import QueryRows

N_LEVELS = (2, 3, 2, 4, 2, 3)
PARENTS = (1, -1, 1, 2, 2, -1)  # 1 has the children 0 and 2, 2 has 3 and 4; 5 stands alone.
ORDER = (1, 0, 2, 3, 4, 5)
K = 3


@pytest.fixture(scope="module")
def model():
    random = np.random.default_rng(0)
    family = TreeCategorical(N_LEVELS, PARENTS)
    given = [
        random.dirichlet(np.full(n, 0.6), (K, N_LEVELS[p])) if p >= 0 else None
        for n, p in zip(N_LEVELS, PARENTS, strict=True)
    ]
    levels: dict = {}
    for q in ORDER:
        levels[q] = (
            random.dirichlet(np.ones(N_LEVELS[q]), K)
            if given[q] is None
            else np.einsum("ka,kab->kb", levels[PARENTS[q]], given[q])
        )
    parameters = {
        "probabilities": np.hstack([levels[q] for q in range(6)]),
        "conditionals": np.hstack([t.reshape(K, -1) for t in given if t is not None]),
    }
    return MixtureModel(family, np.array([0.5, 0.3, 0.2]), parameters)


@pytest.fixture(scope="module")
def cells():
    return np.array(list(itertools.product(*map(range, N_LEVELS))), dtype=float)


@pytest.fixture(scope="module")
def joint(model, cells):
    """Probabilities (K, all rows) of component and row, by the definition."""
    family, parameters = model.family, model.parameters
    starts = np.cumsum(N_LEVELS) - N_LEVELS
    found = np.repeat(model.weights[:, None], len(cells), axis=1)
    for q, parent in enumerate(PARENTS):
        level = cells[:, q].astype(int)
        if parent < 0:
            found *= parameters["probabilities"][:, starts[q] + level]
        else:
            table = family.table_of(parameters["conditionals"], q)
            found *= table[:, cells[:, parent].astype(int), level]
    return found


def with_gaps(n, seed=1):
    random = np.random.default_rng(seed)
    rows = np.stack([random.integers(n, size=60) for n in N_LEVELS], axis=1).astype(float)
    rows[random.random(rows.shape) < n] = np.nan
    return rows[~np.isnan(rows).all(axis=1)]


def agrees(row, cells):
    seen = ~np.isnan(row)
    return (cells[:, seen] == row[seen]).all(axis=1)


def test_the_joint_distribution_sums_to_one(joint):
    assert joint.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6])
def test_densities_of_rows_with_gaps_are_sums(model, cells, joint, share):
    rows = with_gaps(share)
    expected = np.array([np.log(joint[:, agrees(row, cells)].sum()) for row in rows])
    np.testing.assert_allclose(model.score_samples(rows), expected, atol=1e-11)
    np.testing.assert_allclose(
        model.score_samples(rows, n_candidates=2, exact_below=np.inf), expected, atol=1e-11
    )


def test_a_search_finds_the_component_of_rows_with_gaps(model, cells, joint):
    rows = with_gaps(0.5)
    expected = [joint[:, agrees(row, cells)].sum(axis=1).argmax() for row in rows]
    np.testing.assert_array_equal(model.predict(rows), expected)
    inner = model.family.has_inner_gaps(rows)
    assert inner.sum() > 10
    np.testing.assert_array_equal(
        model.predict(rows, n_candidates=1)[inner], np.array(expected)[inner]
    )


def test_conditionals_of_levels_are_those_of_the_joint(model, cells, joint):
    part = model.parts()[0][0]
    rows = with_gaps(0.5)
    seen = ~np.isnan(rows)
    everything = SeenRows(rows, seen, np.zeros(len(rows)))
    which, components = np.divmod(np.arange(len(rows) * K), K)
    pairs = Pairs(everything, which, components)
    for q, n in enumerate(N_LEVELS):
        shares = part.level_shares(pairs, q)
        for pair in range(0, len(which), 7):
            kept = joint[components[pair]] * agrees(rows[which[pair]], cells)
            expected = np.bincount(cells[:, q].astype(int), kept, n) / kept.sum()
            np.testing.assert_allclose(shares[pair], expected, atol=1e-12)


def test_pairs_of_levels_are_those_of_the_joint(model, cells, joint):
    part = model.parts()[0][0]
    row = np.array([1.0, np.nan, np.nan, np.nan, 0.0, np.nan])
    pairs = Pairs(
        SeenRows(row[None], ~np.isnan(row[None]), np.zeros(1)), np.zeros(K, int), np.arange(K)
    )
    found = part.joint_shares(pairs, 1, 3)
    for k in range(K):
        kept = joint[k] * agrees(row, cells)
        expected = np.zeros((3, 4))
        np.add.at(expected, (cells[:, 1].astype(int), cells[:, 3].astype(int)), kept)
        np.testing.assert_allclose(found[k], expected / kept.sum(), atol=1e-12)


def test_a_left_out_cell_is_given_the_others(model, cells, joint):
    part = model.parts()[0][0]
    row = np.array([1.0, 2.0, np.nan, 3.0, 0.0, 1.0])
    left_out = part.leave_out(SeenRows(row[None], ~np.isnan(row[None]), np.zeros(1)))
    for m, q in enumerate(np.flatnonzero(~np.isnan(row))):
        others = row.copy()
        others[q] = np.nan
        for k in range(K):
            kept = joint[k] * agrees(others, cells)
            expected = np.bincount(cells[:, q].astype(int), kept, N_LEVELS[q]) / kept.sum()
            np.testing.assert_allclose(left_out.levels(m)[k, 0], expected, atol=1e-12)
            of_row = left_out.log_densities[k, 0, m]
            assert of_row == pytest.approx(np.log(expected[int(row[q])]), abs=1e-10)


@pytest.mark.parametrize("given", [None, [np.nan, np.nan, np.nan, 2.0, np.nan, 1.0]])
def test_draws_have_the_frequencies_of_the_joint(model, cells, joint, given):
    random = np.random.default_rng(5)
    n = 20_000
    if given is None:
        drawn, chances = model.sample(n, random)[0], joint.sum(axis=0)
    else:
        part = model.parts()[0][0]
        row = np.array(given)[None]
        pairs = Pairs(SeenRows(row, ~np.isnan(row), np.zeros(1)), np.zeros(n, int), np.ones(n, int))
        drawn = part.draw(pairs, np.arange(6), random)
        chances = joint[1] * agrees(row[0], cells)
        chances = chances / chances.sum()
    codes = np.ravel_multi_index(drawn.astype(int).T, N_LEVELS)
    counts = np.bincount(codes, minlength=len(cells))
    assert counts[chances == 0.0].sum() == 0
    common = n * chances > 5
    expected = np.append(n * chances[common], n * chances[~common].sum())
    observed = np.append(counts[common], counts[~common].sum())
    kept = expected > 0
    assert stats.chisquare(observed[kept], expected[kept]).pvalue > 1e-4


@pytest.mark.parametrize("columns", [[1, 3], [4, 2, 5], [0, 1, 2, 3, 4], [3, 0], [5]])
def test_marginals_are_sums(model, cells, joint, columns):
    marginal = model.marginal(np.array(columns))
    rows = np.unique(cells[:, columns], axis=0)
    expected = [joint[:, (cells[:, columns] == row).all(axis=1)].sum() for row in rows]
    np.testing.assert_allclose(np.exp(marginal.score_samples(rows)), expected, atol=1e-12)


def test_columns_that_are_no_tree_are_refused(model):
    with pytest.raises(TreeOfColumnsError, match="column 2"):
        model.marginal(np.array([3, 4, 1]))
    assert restricted_parents(PARENTS, [3, 4, 2]) == [-1, 2, 0]


def test_overlaps_are_sums_of_roots(model, joint):
    part = model.parts()[0][0]
    first, second = np.array([0, 0, 1]), np.array([1, 2, 2])
    rows = joint / model.weights[:, None]
    expected = [
        -np.log(np.sqrt(rows[a] * rows[b]).sum()) for a, b in zip(first, second, strict=True)
    ]
    np.testing.assert_allclose(part.bhattacharyya(first, second), expected, atol=1e-12)


def test_parameters_that_are_no_tree_are_refused():
    with pytest.raises(ValueError, match="own ancestor"):
        TreeCategorical([2, 2], [1, 0])
    with pytest.raises(ValueError, match="from -1 to 1"):
        TreeCategorical([2, 2], [-1, 2])


def test_negative_entropy_is_the_mean_log_density_of_a_component(model, joint):
    family = model.family
    moments = family.moments_of(model.parameters, np.zeros(6))
    rows = joint / model.weights[:, None]
    expected = np.where(rows > 0, rows * np.log(np.maximum(rows, 1e-300)), 0.0).sum(axis=1)
    np.testing.assert_allclose(family.negative_entropy(moments, np.zeros(0)), expected, atol=1e-10)


def test_a_component_of_few_rows_is_shrunk_to_the_common_interaction():
    """The pair (1, 1) occurs and (0, 1) does not, over all; a component without such rows."""
    random = np.random.default_rng(2)
    family = TreeCategorical([2, 2], [-1, 0])
    first = random.random((5000, 30)) < random.random(30)
    # The second is the first, or 0 in a third of the rows.
    second = first & (random.random(first.shape) < 2 / 3)
    groups = [np.column_stack([first[:, k], second[:, k]]).astype(float) for k in range(30)]
    groups.append(np.zeros((2, 2)))
    counts = np.zeros((31, family.layout.n_levels))
    for k, rows in enumerate(groups):
        codes = family.coordinates(rows).astype(int) + family.layout.offsets[:-1]
        counts[k] = np.bincount(codes.ravel(), minlength=counts.shape[1]) / len(rows)
    mass = np.array([len(rows) for rows in groups], dtype=float)
    nothing = np.zeros((31, 0))
    moments = Moments(mass / mass.sum(), mass / mass.sum() ** 2, nothing, nothing, counts)
    prior = family.make_prior(moments, "pooled", mass.sum())
    model = family.empty_model(31)
    assert not family.maximise(moments, np.arange(31), prior, model, False).any()
    table = family.table_of(family.parameters(model, np.zeros(2))["conditionals"], 1)
    assert table[30, 0, 1] < 0.01
    assert table[30, 1, 1] > 0.3


def test_missing_levels_change_no_other_statistics():
    """A fit of rows with gaps in leaves only maximises the likelihood of what was seen."""
    random = np.random.default_rng(4)
    rows = random.integers(0, 2, (190, 2)).astype(float)
    rows[:, 1] = np.where(random.random(190) < 0.9, rows[:, 0], 1 - rows[:, 0])
    rows[random.random(190) < 0.3, 1] = np.nan
    mixture = FamilyMixture("categorical", 1, dependence="tree", algorithm="em", random_state=0)
    mixture.fit(rows)
    # The child is the column whose parent is the other one.
    (child,) = np.flatnonzero(mixture.column_parents_ >= 0)
    both = rows[~np.isnan(rows).any(axis=1)].astype(int)
    table = mixture.parameters_["conditionals"].reshape(2, 2)
    for level in (0, 1):
        of_level = both[both[:, 1 - child] == level, child]
        assert table[level, 1] == pytest.approx(of_level.mean(), abs=1e-6)


def test_the_worst_pairs_are_joined():
    random = np.random.default_rng(6)
    group = random.random(4000) < 0.5
    # All columns depend on the group, and two on each other.
    rows = (random.random((4000, 4)) < np.where(group, 0.85, 0.15)[:, None]).astype(float)
    rows[:, 3] = np.where(random.random(4000) < 0.7, rows[:, 1], rows[:, 3])
    tables = np.stack([rows[group].mean(axis=0), rows[~group].mean(axis=0)])
    probabilities = np.stack([1 - tables, tables], axis=2).reshape(2, -1)
    parents = choose_parents(rows, [2] * 4, None, np.array([0.5, 0.5]), probabilities)
    assert sorted(parents[[1, 3]].tolist()) in ([-1, 1], [-1, 3])
    assert (parents[[0, 2]] == -1).all()
    # Without the mixture all pairs seem to depend on each other.
    assert (choose_parents(rows, [2] * 4) >= 0).sum() == 3


def test_a_tree_explains_what_independent_columns_do_not():
    random = np.random.default_rng(8)

    def draw(n):
        rows = random.integers(0, 3, (n, 6)).astype(float)
        for q in range(1, 6):
            rows[:, q] = np.where(random.random(n) < 0.8, rows[:, q - 1], rows[:, q])
        return rows

    train, test = draw(2000), draw(2000)
    flat = FamilyMixture("categorical", 4, random_state=0).fit(train)
    tree = FamilyMixture("categorical", 4, random_state=0, dependence="tree").fit(train)
    truth = -np.log(3) + 5 * (0.8667 * np.log(0.8667) + 0.1333 * np.log(0.0667))
    assert tree.score(test) > flat.score(test) + 0.3
    assert tree.score(test) == pytest.approx(truth, abs=0.08)


def test_a_tree_is_saved_and_loaded_and_continued(tmp_path):
    import pickmix

    rows = with_gaps(0.1, seed=3)
    rows[:, 2] = np.where(np.isnan(rows[:, 1]), rows[:, 2], np.minimum(rows[:, 1], 1))
    mixture = FamilyMixture("categorical", 2, random_state=0, dependence="tree").fit(rows)
    assert (mixture.column_parents_ >= 0).any()
    path = tmp_path / "model"
    pickmix.save(mixture, path)
    again = pickmix.load(path)
    np.testing.assert_array_equal(again.score_samples(rows), mixture.score_samples(rows))
    np.testing.assert_array_equal(again.column_parents_, mixture.column_parents_)
    before = mixture.score(rows)
    mixture.partial_fit(rows)
    assert np.isfinite(mixture.score(rows))
    assert mixture.reduce(1).score(rows) < before + 1e-9


def test_dependence_is_checked():
    with pytest.raises(ValueError, match="dependence must be 'tree' or None, got 'forest'"):
        FamilyMixture("categorical", 2, dependence="forest").fit(np.zeros((10, 2)))


def test_conditional_queries_of_arrays(model, cells, joint):
    rows = with_gaps(0.4, seed=9)
    rows[:, 3] = np.nan
    query = QueryRows(model, rows)
    ((part, (target,), _),) = query.parts_of(np.array([3]))
    found = level_probabilities(query, part, int(target))
    for row, shares in zip(rows, found, strict=True):
        kept = joint.sum(axis=0) * agrees(row, cells)
        expected = np.bincount(cells[:, 3].astype(int), kept, 4) / kept.sum()
        np.testing.assert_allclose(shares, expected, atol=1e-11)
    assert logsumexp(model.score_samples(cells)) == pytest.approx(0.0, abs=1e-10)


def test_leaving_out_a_row_is_what_the_others_give():
    """On average over the rows of a component, with the prior as it is."""
    random = np.random.default_rng(1)
    family = TreeCategorical([2, 3, 2, 4], [-1, 0, 1, 1])
    places, n_levels = family.layout.offsets[:-1], family.layout.n_levels

    def draw(n):
        chances = random.random(3)
        first = random.random(n) < chances[0]
        second = np.where(random.random(n) < 0.6, first * 2, random.integers(0, 3, n))
        third = np.where(random.random(n) < chances[1], second > 0, random.integers(0, 2, n))
        fourth = np.minimum(3, random.poisson(3 * chances[2], n) + second)
        return np.column_stack([first, second, third, fourth]).astype(float)

    groups = [draw(n) for n in [200] * 20 + [10, 20, 40]]

    def shares(rows):
        codes = family.coordinates(rows).astype(int) + places
        return np.bincount(codes.ravel(), minlength=n_levels) / len(rows)

    def moments(counts, mass):
        nothing = np.zeros((len(mass), 0))
        return Moments(mass / total, mass / total**2, nothing, nothing, counts)

    counts, mass = np.stack([shares(rows) for rows in groups]), np.array([*map(len, groups)], float)
    total = mass.sum()
    prior = family.make_prior(moments(counts, mass), "pooled", total)
    model = family.empty_model(len(groups))
    family.maximise(moments(counts, mass), np.arange(len(groups)), prior, model, False)
    for k in (0, 20, 21, 22):
        rows, n = groups[k], len(groups[k])
        codes = family.coordinates(rows)
        pairs = LeftOutPairs(
            np.full(n, k), np.zeros(n), codes, np.arange(n), np.ones(n), np.full(n, mass[k])
        )
        falls = family.left_out_falls(model, prior, pairs)
        expected = np.empty(n)
        for i in range(n):
            others, fewer = counts.copy(), mass.copy()
            others[k], fewer[k] = shares(np.delete(rows, i, axis=0)), n - 1.0
            without = family.empty_model(len(groups))
            family.maximise(moments(others, fewer), np.array([k]), prior, without, False)
            at = places + codes[i].astype(int)
            expected[i] = (model.tables[k, at] - without.tables[k, at]).sum()
        assert falls.mean() == pytest.approx(expected.mean(), rel=0.2)
