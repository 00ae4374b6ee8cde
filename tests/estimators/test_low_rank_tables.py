"""Tables of numbers with low-rank covariances beside categories and counts."""

import copy

import numpy as np
import pytest
from scipy import stats

from pickmix import FamilyMixture, TableMixture, load, report, save
from pickmix.data.rows import make_rows
from pickmix.families.categorical import Categorical
from pickmix.families.gaussian import DiagonalGaussian
from pickmix.families.low_rank import LowRankGaussian
from pickmix.families.poisson import Poisson
from pickmix.families.product import Product
from pickmix.kernels import numpy_kernels
from pickmix.model.mixture import MixtureModel
from pickmix.selection.partitions import Partition

K, D, H = 3, 12, 2
NAMES = [f"x{number:02d}" for number in range(D)]
PLAIN = {"column_transform": None, "dependence": None, "schema": {"visits": "count"}}


def _table(n, seed=0, gaps=0.0):
    random = np.random.default_rng(seed)
    known = np.random.default_rng(10)
    means, loadings = known.normal(size=(K, D)), known.normal(size=(K, D, H))
    k = random.integers(K, size=n)
    rows = means[k] + np.einsum("ndh,nh->nd", loadings[k], random.normal(size=(n, H)))
    rows += 0.3 * random.normal(size=rows.shape)
    kept = np.where(random.random(n) < 0.8, k, random.integers(K, size=n))
    table = dict(zip(NAMES, rows.T, strict=True))
    table["colour"] = np.array(["red", "green", "blue"], dtype=object)[kept]
    table["owner"] = random.random(n) < 0.2 + 0.6 * (k == 1)
    table["visits"] = random.poisson(1.0 + 4.0 * k).astype(np.float64)
    for name in [*NAMES[:4], "visits", "colour"] if gaps else []:
        table[name][random.random(n) < gaps] = None if name == "colour" else np.nan
    return table


def _mixture(**settings):
    given = {"covariance_type": "low_rank", "rank": H, "axes": "columns", "random_state": 0}
    return TableMixture(K, **PLAIN | given | settings)


@pytest.fixture(scope="module")
def fitted():
    return _mixture().fit(_table(900))


def _dense(mixture):
    """The same mixture with full covariances, whose queries are tested elsewhere."""
    made, known = copy.copy(mixture), dict(mixture.parameters_)
    made._fitted_description = [
        ("full" if name == "low_rank" else name, columns)
        for name, columns in mixture._fitted_description
    ]
    loadings = known.pop("low_rank0_loadings")
    noise, axes = known.pop("low_rank0_noise_variances"), known.pop("low_rank0_axes", np.eye(D))
    back = np.linalg.inv(axes)
    covariances = loadings @ loadings.transpose(0, 2, 1)
    covariances += back.T @ (noise[:, :, None] * np.eye(D)) @ back
    known |= {"full0_means": known.pop("low_rank0_means"), "full0_covariances": covariances}
    made.parameters_, made._merged = known, None
    return made


def test_densities_are_sums_of_parts(fitted):
    table, known = _table(50, seed=1), fitted.parameters_
    schema = fitted.schema_.columns
    levels = {name: list(schema[name].levels) for name in ("colour", "owner")}
    offsets = {"colour": 0, "owner": len(levels["colour"])}
    joint = np.log(fitted.weights_)[:, None] * np.ones(50)
    for k in range(K):
        loadings, noise = known["low_rank0_loadings"][k], known["low_rank0_noise_variances"][k]
        rows = np.stack([table[n] / schema[n].scale for n in NAMES], axis=1)
        units = sum(np.log(schema[n].scale) for n in NAMES)
        joint[k] += stats.multivariate_normal(
            known["low_rank0_means"][k], loadings @ loadings.T + np.diag(noise)
        ).logpdf(rows)
        joint[k] -= units
        for name, its in levels.items():
            places = [its.index(value) for value in table[name].tolist()]
            table_of = known["categorical1_probabilities"][k, offsets[name] :]
            joint[k] += np.log(table_of[places])
        joint[k] += stats.poisson(known["poisson2_rates"][k, 0]).logpmf(table["visits"])
    np.testing.assert_allclose(
        fitted.score_samples(table), np.logaddexp.reduce(joint), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("axes", ["columns", "principal"])
@pytest.mark.parametrize("gaps", [0.0, 0.3])
def test_answers_are_those_of_full_covariances(axes, gaps):
    low = _mixture(axes=axes).fit(_table(600))
    assert ("low_rank0_axes" in low.parameters_) == (axes == "principal")
    full, table = _dense(low), _table(40, seed=2, gaps=gaps)
    close = {"rtol": 1e-9, "atol": 1e-9}
    for name in ("score_samples", "predict_proba"):
        np.testing.assert_allclose(getattr(low, name)(table), getattr(full, name)(table), **close)
    for columns in (["x07", "colour", "x02", "x09"], ["visits", "x03"], ["x01"]):
        part = {name: table[name] for name in columns}
        one, other = low.marginal(columns), full.marginal(columns)
        np.testing.assert_allclose(one.score_samples(part), other.score_samples(part), **close)
    given = {"x00": 0.5, "colour": "red", "visits": 2.0}
    one, other = low.conditional(given), full.conditional(given)
    for name in ("x05", "owner"):
        np.testing.assert_allclose(one.mean()[name], other.mean()[name], **close)
    explained, expected = low.explain(table), full.explain(table)
    for name in ("log_density", "log_conditional"):
        np.testing.assert_allclose(getattr(explained, name), getattr(expected, name), **close)
    if gaps:
        one, other = low.impute(table), full.impute(table)
        np.testing.assert_array_equal(one["colour"], other["colour"])
        for name in (*NAMES, "visits"):
            np.testing.assert_allclose(one[name], other[name], **close)


def test_rank_zero_is_diagonal():
    table, settings = _table(400), {"algorithm": "em", "max_iter": 30, "tol": 0.0}
    low = _mixture(rank=0, **settings).fit(table)
    diagonal = _mixture(covariance_type="diag", **settings).fit(table)
    np.testing.assert_allclose(
        low.parameters_["low_rank0_noise_variances"],
        diagonal.parameters_["diag0_covariances"],
        rtol=1e-8,
    )
    np.testing.assert_allclose(low.score_samples(table), diagonal.score_samples(table), rtol=1e-9)


@pytest.mark.parametrize("gaps", [0.0, 0.2])
def test_em_never_descends(gaps):
    table = _table(500, gaps=gaps)
    mixture = _mixture(algorithm="em", max_steps=40, evaluate_every=1).fit(table)
    values = mixture.trace_["log_likelihood"]
    assert len(values) == 40
    assert np.diff(values).min() > -1e-9
    assert values[-1] > values[0] + 1.0


def _product(numbers):
    """Numbers first in the sweep, and last in the user's rows."""
    return Product([(numbers, [3, 4, 5]), (Categorical([2, 3]), [0, 2]), (Poisson(1), [1])])


def _rows_with_gaps(random, n):
    rows = np.column_stack(
        [
            random.integers(2, size=n),
            random.poisson(4.0, n),
            random.integers(3, size=n),
            random.normal(size=(n, 3)) * [1.0, 3.0, 0.5],
        ]
    )
    rows[random.random(rows.shape) < 0.3] = np.nan
    return rows[~np.isnan(rows).all(axis=1)]


@pytest.mark.parametrize("with_gaps", [False, True])
def test_sweeps_of_rank_zero_are_those_of_diagonal_covariances(with_gaps):
    """Log-joints, draws and statistics of counts, levels and numbers, with gaps in all of them."""
    random = np.random.default_rng(0)
    rows = _rows_with_gaps(random, 300)
    rows = rows if with_gaps else rows[~np.isnan(rows).any(axis=1)]
    others = {
        "categorical1_probabilities": np.hstack(
            [random.dirichlet(np.ones(n), K) for n in (2, 3)],
        ),
        "poisson2_rates": random.gamma(4.0, 1.0, (K, 1)),
    }
    means, variances = random.normal(size=(K, 3)), random.uniform(0.3, 2.0, (K, 3))
    low = others | {
        "low_rank0_means": means,
        "low_rank0_loadings": np.zeros((K, 3, 1)),
        "low_rank0_noise_variances": variances,
    }
    plain = others | {"diag0_means": means, "diag0_covariances": variances}
    weights, results = np.array([0.2, 0.5, 0.3]), []
    for family, parameters in (
        (_product(LowRankGaussian(3, 0.0, 1)), low),
        (_product(DiagonalGaussian(3, 0.0)), plain),
    ):
        model = MixtureModel(family, weights, parameters)
        state, source, _ = model.frozen(rows)
        source = make_rows(family.coordinates(rows), random.uniform(size=len(rows)), source.center)
        random = np.random.default_rng(1)
        source.weights = random.uniform(0.5, 2.0, len(rows))
        numbers, chain = np.arange(len(rows)), np.zeros(len(rows), dtype=np.int32)
        everything = Partition.of_blocks(np.arange(K), K)
        settings = state.layout, state.model, source, numbers, chain, everything, np.uint64(3)
        results.append((numpy_kernels.sweep(*settings), state, source.gather(numbers)))
    (found, state, gathered), (expected, other, _) = results
    np.testing.assert_allclose(found.log_sums, expected.log_sums, atol=1e-4)
    assert (found.components == expected.components).mean() > 0.99
    for name in ("mass", "squares", "mean", "counts"):
        one, two = (getattr(swept.statistics, name) for swept in (found, expected))
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(
        found.statistics.scatter[:, :3], expected.statistics.scatter, rtol=2e-3, atol=1e-2
    )
    candidates = np.broadcast_to(np.arange(K, dtype=np.int32), (len(rows), K))
    for name in ("log_joint_all", "log_joint", "condition_pairs"):
        more = () if name == "log_joint_all" else (candidates,)
        one, two = (
            getattr(numpy_kernels, name)(each.layout, each.model, gathered, *more)
            for each in (state, other)
        )
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9)


def test_levels_decide_which_components_are_evaluated_exactly():
    """Numbers are for the second component by 100 nats, a level is for the first by 138."""
    family = Product([(LowRankGaussian(2, 0.0, 1), [0, 1]), (Categorical([2]), [2])])
    parameters = {
        "low_rank0_means": np.array([[0.0, 0.0], [0.0141, 0.0], [4.0, 3.0]]),
        "low_rank0_loadings": np.zeros((3, 2, 1)),
        "low_rank0_noise_variances": np.full((3, 2), 1e-6),
        "categorical1_probabilities": np.array([[0.5, 0.5], [1.0, 1e-60], [0.5, 0.5]]),
    }
    model = MixtureModel(family, np.full(3, 1.0 / 3.0), parameters)
    rows = np.column_stack([np.full(20, 0.0141), np.linspace(-1e-3, 1e-3, 20), np.ones(20)])
    state, source, _ = model.frozen(rows)
    swept = numpy_kernels.sweep(
        state.layout,
        state.model,
        source,
        np.arange(20),
        np.zeros(20, dtype=np.int32),
        Partition.of_blocks(np.arange(3), 3),
        np.uint64(3),
    )
    exact = model.score_samples(rows) + state.log_total()
    np.testing.assert_allclose(swept.log_sums, exact, atol=0.02)


def test_shrinkage_of_a_block_is_chosen_by_rows_left_out(fitted):
    """Choices of the low-rank block are choices of the whole prior, other blocks as they are."""
    state, _, _ = fitted.model_.frozen(np.zeros((1, D + 3)))
    moments = state.moments
    prior = state.family.make_prior(moments, "pooled", 900.0)
    choices = prior.choices()
    assert len(choices) > 1
    assert len({choice.parts[0].pseudo_rows for choice in choices}) == len(choices)
    assert all(choice.parts[1:] == prior.parts[1:] for choice in choices)


def test_correlations_and_levels_are_both_used(fitted):
    new = _table(600, seed=3)
    diagonal = _mixture(covariance_type="diag").fit(_table(900))
    numbers = {name: values for name, values in _table(900).items() if name in NAMES}
    alone = _mixture(schema=None).fit(numbers)
    assert fitted.score(new) > diagonal.score(new) + 3.0
    numbers = {name: new[name] for name in NAMES}
    assert fitted.marginal(NAMES).score(numbers) == pytest.approx(alone.score(numbers), abs=0.3)
    known = {name: values for name, values in new.items() if name != "owner"}
    assert (fitted.predict_columns(known, "owner") == new["owner"]).mean() > 0.7


def test_what_is_around_a_fit(fitted, tmp_path):
    table = _table(200, seed=4, gaps=0.2)
    save(fitted, tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.score_samples(table), fitted.score_samples(table))
    few = fitted.marginal(["x01", "owner"])
    save(few, tmp_path / "few")
    part = {"x01": table["x01"], "owner": table["owner"]}
    np.testing.assert_array_equal(
        load(tmp_path / "few").score_samples(part), few.score_samples(part)
    )
    drawn, seen = fitted.sample(4000, random_state=0), _table(4000, seed=5)
    for name in (*NAMES, "visits"):
        assert drawn[name].std() == pytest.approx(seen[name].std(), rel=0.15)
    assert report(fitted, table, tmp_path / "report.html").exists()
    assert fitted.reduce(2, _table(300)).weights_.shape == (2,)
    continued = copy.copy(fitted).set_params(warm_start=True, max_steps=2).fit(_table(300))
    assert continued.n_steps_ == fitted.n_steps_ + 2
    mixture = fitted.mixture_
    rows = np.column_stack([np.zeros((3, D)), np.ones((3, 2)), np.ones(3)])
    assert np.isfinite(mixture.score_samples(rows)).all()


def test_threads_do_not_change_bits():
    one, two = (_mixture(n_jobs=n, max_steps=6).fit(_table(2000, gaps=0.1)) for n in (1, 2))
    for name, values in one.parameters_.items():
        np.testing.assert_array_equal(values, two.parameters_[name])


def test_axes_are_chosen_for_the_numbers():
    table = _table(900)
    turn = np.linalg.qr(np.random.default_rng(5).normal(size=(D, D)))[0]
    turn *= np.exp(np.random.default_rng(6).normal(size=D))
    rows = np.stack([table[name] for name in NAMES], axis=1) @ turn
    turned = table | dict(zip(NAMES, rows.T, strict=True))
    mixture = _mixture(axes="auto", rank=1).fit(turned)
    assert mixture.principal_axes_.shape == (D, D)
    assert "low_rank0_axes" in mixture.parameters_
    centre = mixture.model_.parts()[1][mixture._fitted_description[0][1]]
    expected = mixture.weights_ @ mixture.parameters_["low_rank0_means"]
    np.testing.assert_allclose(centre, expected, atol=1e-9)
    # Gaps leave columns.
    again = mixture.fit(_table(300, gaps=0.1))
    assert not hasattr(again, "principal_axes_")
    assert "low_rank0_axes" not in again.parameters_


def test_arrays_have_low_rank_groups():
    random = np.random.default_rng(0)
    rows = random.normal(size=(300, 1)) * np.ones(8) + 0.2 * random.normal(size=(300, 8))
    rows = np.column_stack([rows, random.integers(3, size=300)])
    mixture = FamilyMixture([("low_rank", range(8)), ("categorical", [8])], 2, random_state=0)
    assert mixture.fit(rows).parameters_["low_rank0_loadings"].shape[:2] == (2, 8)
    mixture.partial_fit(rows[:100])
    assert mixture.n_rows_seen_ == 400.0


def test_what_is_refused_says_what_to_use():
    for settings, message in (
        ({"rank": -1}, "rank must be"),
        ({"axes": "rows"}, "axes must be"),
        ({"covariance_type": "auto"}, '"low_rank" or "diag"'),
    ):
        with pytest.raises(ValueError, match=message):
            _mixture(**settings).fit(_table(50))
    with pytest.raises(ValueError, match="column 'x00'"):
        _mixture(axes="principal").fit(_table(50, gaps=0.3))
    for groups in (
        [("categorical", [2]), ("low_rank", [0, 1])],
        [("low_rank", [0, 1]), ("diag", [2])],
    ):
        with pytest.raises(ValueError, match="must be the first group"):
            FamilyMixture(groups, 2).fit(np.zeros((9, 3)))
