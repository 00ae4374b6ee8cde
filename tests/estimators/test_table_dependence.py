"""Tables whose levels and atoms depend on each other inside components: every query is exact."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import pickmix
from pickmix import TableMixture

KINDS = {"a": list("jklmnopqrs"), "b": list("uvw"), "c": list("abcdxyz")}


def make_table(n, seed):
    """`b` says little beside `a`, `c` copies it, and `amount` is 0 where `c` is x."""
    random = np.random.default_rng(seed)
    a = random.choice(KINDS["a"], n)
    b = random.choice(KINDS["b"], n)
    c = np.array([KINDS["c"][KINDS["a"].index(level) % 7] for level in a])
    amount = np.where(c == "x", 0.0, random.gamma(2.0, 1.0, n))
    other = np.where(amount == 0.0, 0.0, amount + random.gamma(2.0, 1.0, n))
    return pd.DataFrame({"a": a, "b": b, "c": c, "amount": amount, "other": other})


@pytest.fixture(scope="module", params=[1, 3])
def mixture(request):
    return TableMixture(request.param, random_state=0).fit(make_table(1500, 0))


def test_columns_that_go_together_are_joined(mixture):
    pairs = {frozenset(pair) for pair in mixture.dependence_.items()}
    assert frozenset(("a", "c")) in pairs
    # Three components may explain by themselves which numbers are zero together.
    assert mixture.n_components > 1 or frozenset(("amount", "other")) in pairs
    assert "b" not in set(itertools.chain(*mixture.dependence_.items()))


def test_draws_keep_what_goes_together(mixture):
    drawn = mixture.sample(4000, random_state=1)
    zero = drawn["amount"] == 0.0
    assert ((drawn["c"] == "x") == zero).mean() > 0.98
    assert (zero == (drawn["other"] == 0.0)).mean() > 0.98
    independent = TableMixture(mixture.n_components, random_state=0, dependence=None)
    independent.fit(make_table(1500, 0))
    assert independent.dependence_ == {}
    assert mixture.score(make_table(1000, 2)) > independent.score(make_table(1000, 2)) + 0.1


def test_a_gap_sums_over_levels(mixture):
    table = make_table(40, 3)
    gaps = table.copy()
    gaps["c"] = None
    each = [mixture.score_samples(table.assign(c=level)) for level in KINDS["c"]]
    np.testing.assert_allclose(
        mixture.score_samples(gaps), np.logaddexp.reduce(each, axis=0), atol=1e-9
    )
    levels, probabilities = mixture.predict_levels(gaps, "c")
    expected = np.exp(np.array(each).T - np.logaddexp.reduce(each, axis=0)[:, None])
    np.testing.assert_allclose(probabilities, expected, atol=1e-9)
    assert list(levels) == KINDS["c"]
    assert (mixture.impute(gaps)["c"] == table["c"]).mean() > 0.95


def test_the_probability_of_an_atom_is_given_other_levels(mixture):
    given = mixture.conditional({"c": ["x", "y"], "a": ["n", "o"]}, "amount")
    probabilities = given.probabilities("amount")[1]
    assert probabilities[0].sum() > 0.95
    assert probabilities[1].sum() < 0.05
    medians = given.quantile(0.5)["amount"].ravel()
    assert medians[0] == 0.0
    assert medians[1] > 0.5
    np.testing.assert_array_equal(given.mode()["amount"] == 0.0, [True, False])
    alone = mixture.conditional({"c": ["x", "y"]}, "amount")
    rows = pd.DataFrame({"c": ["x", "y"], "amount": [0.0, 0.0]})
    joint = mixture.score_samples(rows.assign(a=None, b=None, other=None))
    of_c = mixture.score_samples(rows.assign(a=None, b=None, other=None, amount=None))
    found = alone.probabilities("amount")[1].sum(axis=1)
    np.testing.assert_allclose(found, np.exp(joint - of_c), rtol=1e-9)


def test_covariances_agree_with_draws(mixture):
    given = mixture.conditional({"b": ["u"]}, ["amount", "other"])
    drawn = given.sample(100_000, random_state=0)
    found = given.covariance()[0]
    expected = np.cov(drawn["amount"], drawn["other"])
    np.testing.assert_allclose(found, expected, rtol=0.06)
    means = given.mean()
    assert means["amount"][0] == pytest.approx(drawn["amount"].mean(), rel=0.02)


def test_draws_given_a_level_have_its_probabilities(mixture):
    drawn = mixture.sample(6000, random_state=4, given={"amount": 1.5})
    given = {"amount": [1.5], "b": [None], "c": [None], "other": [None]}
    levels, (expected,) = mixture.predict_levels(given, "a")
    counts = drawn["a"].value_counts().reindex(levels, fill_value=0).to_numpy()
    kept = expected * 6000 > 5
    assert counts[~kept].sum() < 60
    expected = expected[kept] / expected[kept].sum() * counts[kept].sum()
    assert stats.chisquare(counts[kept], expected).pvalue > 1e-4


def test_an_explanation_names_the_level_that_does_not_fit(mixture):
    table = make_table(20, 5)
    odd = table.copy()
    odd.loc[0, "c"] = "z" if table.loc[0, "c"] != "z" else "y"
    explanation = mixture.explain(odd)
    surprise = np.asarray(explanation.surprise)
    columns = list(explanation.names) if hasattr(explanation, "names") else list(odd.columns)
    worst = columns[int(np.nanargmax(surprise[0]))]
    assert worst in {"a", "c"}
    assert np.nanmax(surprise[0]) > np.nanmax(surprise[1:]) + 1.0


def test_log_conditionals_are_differences_of_scores(mixture):
    table = make_table(15, 6)
    explanation = mixture.explain(table)
    whole = mixture.score_samples(table)
    for number, column in enumerate(table.columns):
        rest = mixture.score_samples(table.assign(**{column: None}))
        np.testing.assert_allclose(
            np.asarray(explanation.log_conditional)[:, number], whole - rest, atol=1e-7
        )


def test_files_marginals_and_merges(mixture, tmp_path):
    table = make_table(30, 7)
    pickmix.save(mixture, tmp_path / "model")
    again = pickmix.load(tmp_path / "model")
    np.testing.assert_array_equal(again.score_samples(table), mixture.score_samples(table))
    assert again.dependence_ == mixture.dependence_
    marginal = mixture.marginal(["a", "c"])
    assert len(marginal.dependence_) == 1
    gaps = table.assign(b=None, amount=None, other=None)
    np.testing.assert_allclose(
        marginal.score_samples(table[["a", "c"]]), mixture.score_samples(gaps), atol=1e-9
    )
    pickmix.save(marginal, tmp_path / "marginal")
    loaded = pickmix.load(tmp_path / "marginal")
    assert loaded.score(table[["a", "c"]]) == marginal.score(table[["a", "c"]])
    assert np.isfinite(mixture.reduce(1).score(table))
    pickmix.report(mixture, table, path=tmp_path / "report.html")


def test_rows_with_gaps_are_fitted():
    table, random = make_table(500, 8), np.random.default_rng(9)
    for column in table.columns:
        table.loc[random.random(500) < 0.2, column] = None
    mixture = TableMixture(2, random_state=0).fit(table)
    assert mixture.dependence_
    flat = TableMixture(2, random_state=0, dependence=None).fit(table)
    assert mixture.score(make_table(1000, 10)) > flat.score(make_table(1000, 10))
