"""Draws under conditions: against rejection by brute force, and against enumeration of levels."""

import numpy as np
import pytest
from scipy.stats import chi2, chi2_contingency

from pickmix import FamilyMixture, GaussianMixture, TableMixture
from pickmix.inputs.conditions import parse_conditions, split_condition
from pickmix.inputs.errors import InputError

N = 4000
LEAST = 1e-4  # Chance of a false alarm of one comparison.


@pytest.fixture(scope="module")
def weather():
    """Atoms, steps, skew, levels that share codes and depend on each other, dates."""
    rng = np.random.default_rng(0)
    wet = rng.random(1500) < 0.4
    rain = np.where(wet, rng.gamma(2.0, 3.0, 1500), 0.0).round(1)
    sky = np.where(wet & (rng.random(1500) < 0.8), "grey", rng.choice(["clear", "fog"], 1500))
    place = rng.choice(list("abcdefgh"), 1500, p=[0.4, 0.3, 0.1, 0.06, 0.05, 0.04, 0.03, 0.02])
    table = {
        "rain": rain,
        "wind": rng.normal(5.0, 2.0, 1500) + 0.3 * rain,
        "sky": sky,
        "fog": (sky == "fog") ^ (rng.random(1500) < 0.1),
        "place": place,
        "hour": rng.integers(0, 12, 1500) + 6 * wet,
        "day": np.datetime64("2024-01-01") + rng.integers(0, 366, 1500),
    }
    return TableMixture(4, max_levels=5, random_state=0, tol=0.1).fit(table)


def same_distribution(first, second):
    """Whether two samples of a column have one distribution, by a chi-square test."""
    both = np.concatenate([first, second])
    if both.dtype.kind in "fiM":
        numbers = both.astype(np.float64)
        both = np.searchsorted(
            np.unique(np.quantile(numbers, np.linspace(0, 1, 11)[1:-1])), numbers
        )
    values, codes = np.unique(both.astype(str), return_inverse=True)
    if values.shape[0] == 1:
        return True
    which = np.repeat([0, 1], [len(first), len(second)])
    counts = np.zeros((2, values.shape[0]))
    np.add.at(counts, (which, codes), 1.0)
    kept = counts.sum(axis=0) >= 10
    return not kept.sum() > 1 or chi2_contingency(counts[:, kept])[1] > LEAST


CASES = {
    "a range": ({"wind": "in [6, 8]"}, lambda t: (t["wind"] >= 6) & (t["wind"] <= 8)),
    "no atom": ({"rain": "> 0"}, lambda t: t["rain"] > 0),
    "an atom": ({"rain": "= 0"}, lambda t: t["rain"] == 0),
    "atom and more": ({"rain": "< 3"}, lambda t: t["rain"] < 3),
    "levels": ({"sky": "in {fog, clear}"}, lambda t: np.isin(t["sky"], ["fog", "clear"])),
    "rare levels": ({"place": ["f", "h", "a"]}, lambda t: np.isin(t["place"], ["f", "h", "a"])),
    "an ordinal": ({"hour": "in (9, 15)"}, lambda t: (t["hour"] > 9) & (t["hour"] < 15)),
    "dates": (
        {"day": "in [2024-03-01, 2024-04-30]"},
        lambda t: (
            (t["day"] >= np.datetime64("2024-03-01")) & (t["day"] <= np.datetime64("2024-04-30"))
        ),
    ),
    "several of one group": (
        {"rain": "> 0", "wind": "> 7", "sky": "in {grey, fog}", "fog": "in {False}"},
        lambda t: (t["rain"] > 0) & (t["wind"] > 7) & (t["sky"] != "clear") & ~t["fog"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rejection_by_brute_force(weather, name):
    where, holds = CASES[name]
    drawn = weather.sample(N, random_state=1, where=where)
    assert holds(drawn).all()
    assert len(drawn["wind"]) == N
    plain = weather.sample(60_000, random_state=2)
    kept = holds(plain)
    for column, values in drawn.items():
        assert same_distribution(values, plain[column][kept]), column
    # Pairs of columns, too.
    pair = [f"{a:.0f} {b}" for a, b in zip(drawn["rain"] > 2, drawn["sky"], strict=True)]
    rain, sky = plain["rain"][kept] > 2, plain["sky"][kept]
    other = [f"{a:.0f} {b}" for a, b in zip(rain, sky, strict=True)]
    assert same_distribution(np.array(pair), np.array(other))


def test_enumeration_of_levels():
    rng = np.random.default_rng(0)
    levels = rng.integers(0, 3, (400, 3))
    levels[:, 1] = np.where(rng.random(400) < 0.7, levels[:, 0], levels[:, 1])
    for dependence in (None, "tree"):
        mixture = FamilyMixture("categorical", 3, random_state=0, dependence=dependence).fit(levels)
        every = np.stack(np.meshgrid(*[range(3)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
        shares = np.exp(mixture.score_samples(every)) * (every[:, 0] > 0) * (every[:, 1] != 1)
        gaps = np.full((N, 3), np.nan)
        drawn = mixture.sample_conditional(gaps, 0, where={0: "> 0", 1: [0, 2]})
        counts = np.bincount(drawn.astype(int) @ [9, 3, 1], minlength=27)
        expected = N * shares / shares.sum()
        assert (counts[expected == 0] == 0).all()
        seen = expected > 0
        distance = (np.square(counts - expected)[seen] / expected[seen]).sum()
        assert chi2.sf(distance, seen.sum() - 1) > LEAST


def test_counts_have_the_truncated_distribution():
    counts = np.random.default_rng(0).poisson([3.0, 8.0], (500, 2))
    mixture = FamilyMixture("poisson", 2, random_state=0).fit(counts)
    drawn = mixture.sample_conditional(np.full((N, 2), np.nan), 0, where={0: "in [5, 7]"})[:, 0]
    shares = np.exp(mixture.marginal([0]).score_samples([[5.0], [6.0], [7.0]]))
    expected = N * shares / shares.sum()
    observed = np.array([(drawn == value).sum() for value in (5, 6, 7)])
    assert observed.sum() == N
    assert chi2.sf((np.square(observed - expected) / expected).sum(), 2) > LEAST


def test_values_and_conditions_together():
    rng = np.random.default_rng(0)
    X = rng.multivariate_normal([0, 0, 0], [[1, 0.8, 0.5], [0.8, 1, 0.3], [0.5, 0.3, 1]], 3000)
    mixture = GaussianMixture(2, random_state=0).fit(X)
    drawn = mixture.conditional({0: [1.0, -1.0]}).sample(N, 0, where={1: "> 1", 2: "< 0"})
    assert drawn.shape == (2, N, 2)
    assert (drawn[:, :, 0] > 1.0).all()
    assert (drawn[:, :, 1] < 0.0).all()
    plain = mixture.conditional({0: [1.0, -1.0]}).sample(200_000, 1)
    for row in range(2):
        kept = plain[row][(plain[row, :, 0] > 1.0) & (plain[row, :, 1] < 0.0)]
        for column in range(2):
            assert same_distribution(drawn[row, :, column], kept[:, column])
    # Conditions may be on columns that are not wanted.
    only = mixture.conditional({0: 1.0}, 2).sample(N, 0, where={1: "> 2"})
    assert only.shape == (1, N, 1)
    assert same_distribution(only[0, :, 0], plain[0][plain[0, :, 0] > 2.0][:, 1])


def test_rare_conditions_are_drawn_at_once():
    rng = np.random.default_rng(0)
    mixture = GaussianMixture(1, random_state=0).fit(rng.normal(size=(1000, 2)))
    drawn = mixture.sample_conditional(np.full((200, 2), np.nan), 0, where={0: "> 5"})
    assert drawn[:, 0].min() > 5.0
    assert drawn[:, 0].mean() < 5.4
    with pytest.raises(ValueError, match=r"probability of 1e-08 or more"):
        mixture.sample_conditional([[np.nan, np.nan]], 0, where={0: "> 9"})
    correlated = np.repeat(rng.normal(size=(1000, 1)), 2, axis=1) + 0.01 * rng.normal(
        size=(1000, 2)
    )
    mixture = GaussianMixture(1, random_state=0).fit(correlated)
    with pytest.raises(ValueError, match=r"got none among 2\d,\d+ draws \(1 of 1 rows\)"):
        mixture.sample_conditional([[np.nan, np.nan]], 0, where={0: "> 1", 1: "< 0.8"})


def test_what_is_refused(weather):
    for where, message in [
        ({"wind": "5"}, "must be a condition such as"),
        ({"wind": "> fast"}, "must hold numbers"),
        ({"sky": "> fog"}, "must be a set of levels"),
        ({"sky": "in {blue}"}, "must be a level that the fit has seen"),
        ({"rain": "> 1000"}, "must be a condition that a value meets"),
    ]:
        with pytest.raises(InputError, match=r"where\[.*" + message):
            weather.sample(1, where=where)
    with pytest.raises(InputError, match="must be about a column without values"):
        weather.sample(1, given={"wind": 5.0}, where={"wind": "> 1"})
    with pytest.raises(ValueError, match="where must be a dict"):
        weather.sample(1, where="wind > 5")


def test_texts():
    assert split_condition("0 < x y <= 5", ["x", "x y"]) == ("x y", "in (0, 5]")
    assert split_condition("x in {a, b}", ["x"]) == ("x", "in {a, b}")
    assert split_condition("x>=3", ["x"]) == ("x", ">=3")
    assert split_condition("indoor=3", ["x"]) is None
    assert parse_conditions({"x": "= a > b"})["x"].values == ["a > b"]
