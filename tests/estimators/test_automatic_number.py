"""`n_components="auto"`: the number that growth chooses, and how it goes with the rest of a fit."""

import numpy as np
import pytest

import pickmix
from pickmix import FamilyMixture, GaussianMixture, TableMixture
from pickmix.data.mixsim import generate

RNG = np.random.default_rng(0)
THREE = RNG.permutation(np.concatenate([RNG.normal(c, 1.0, (120, 3)) for c in (-6.0, 0.0, 6.0)]))
COUNTS = np.concatenate([RNG.poisson(rate, (120, 4)) for rate in (2.0, 20.0)])
LEVELS = (RNG.random((240, 8)) < np.repeat([[0.1], [0.9]], 120, axis=0)).astype(int)
GAPS = np.where(RNG.random(THREE.shape) < 0.15, np.nan, THREE)
GAPS = GAPS[~np.isnan(GAPS).all(axis=1)]


def auto(**settings):
    return GaussianMixture("auto", random_state=0, **settings)


@pytest.mark.parametrize(
    ("mixture", "rows", "number"),
    [
        *((auto(covariance_type=name), THREE, 3) for name in ("full", "tied", "diag", "spherical")),
        (auto(), GAPS, 3),
        (auto(), RNG.normal(size=(360, 2)), 1),
        (auto(max_components=2), THREE, 2),
        (FamilyMixture("poisson", "auto", random_state=0), COUNTS, 2),
        (FamilyMixture("categorical", "auto", random_state=0), LEVELS, 2),
        (TableMixture(random_state=0), {"x": THREE[:, 0], "sign": THREE[:, 1] > 3.0}, 3),
    ],
)
def test_finds_the_number_of_groups(mixture, rows, number):
    mixture.fit(rows)
    assert mixture.n_components_ == number == mixture.weights_.shape[0]
    growth = mixture.growth_
    assert growth["n_components"][growth["chosen"]].tolist() == [number]
    # The smallest within a standard error of the best.
    near = growth["log_likelihood"] + growth["standard_error"] >= growth["log_likelihood"].max()
    assert growth["n_components"][near].min() == number


@pytest.mark.slow
def test_is_as_good_as_the_best_of_many_fits():
    truth = generate(20, 4, max_overlap=0.05, random_state=1)
    rows = truth.sample(6000, random_state=0)[0]
    rows = np.random.default_rng(0).permutation(rows)
    train, held_out = rows[:3000], rows[3000:]
    grid = [GaussianMixture(k, random_state=0).fit(train) for k in (4, 16, 64)]
    best = max(mixture.score(held_out) for mixture in grid)
    mixture = auto().fit(train)
    assert 16 <= mixture.n_components_ <= 26
    assert mixture.score(held_out) > best - 0.02


@pytest.mark.parametrize("n_rows", [1, 2, 5, 30])
def test_few_rows(n_rows):
    mixture = auto().fit(THREE[:n_rows])
    assert 1 <= mixture.n_components_ <= max(1, n_rows // 2)
    assert np.isfinite(mixture.score(THREE))


def test_does_not_depend_on_threads():
    one, two = (auto(n_jobs=n).fit(THREE) for n in (1, 2))
    np.testing.assert_array_equal(one.means_, two.means_)


def test_rows_without_weight_do_not_count():
    weights = np.where(THREE[:, 0] < -3.0, 0.0, 1.0)
    weighted, without = auto().fit(THREE, sample_weight=weights), auto().fit(THREE[weights > 0.0])
    np.testing.assert_allclose(weighted.means_, without.means_, rtol=1e-9)


def test_fits_that_continue_keep_the_number(tmp_path):
    mixture = auto(warm_start=True).fit(THREE)
    growth = mixture.growth_
    assert mixture.fit(THREE[:240]).n_components_ == 3
    assert mixture.growth_ is growth
    stream = auto().partial_fit(THREE)
    assert stream.partial_fit(THREE[180:]).n_components_ == 3
    assert mixture.reduce(2).n_components_ == 2
    pickmix.save(mixture, tmp_path / "model")
    loaded = pickmix.load(tmp_path / "model")
    assert loaded.n_components_ == 3
    np.testing.assert_array_equal(loaded.growth_, growth)


def test_rows_in_a_file(tmp_path):
    np.save(tmp_path / "rows.npy", THREE)
    assert auto().fit(tmp_path / "rows.npy").n_components_ == 3


def test_resumes_from_a_checkpoint(tmp_path):
    whole = auto(tol=0.0, max_iter=40).fit(THREE)

    def stop(info):
        return info.step >= 10

    settings = {"tol": 0.0, "max_iter": 40, "checkpoint": tmp_path, "checkpoint_every": 0.0}
    first = auto(callbacks=stop, **settings).fit(THREE)
    assert first.outcome_ == "callback"
    resumed = auto(**settings).fit(THREE)
    np.testing.assert_array_equal(resumed.means_, whole.means_)
    assert resumed.growth_["n_components"].tolist() == whole.growth_["n_components"].tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "em"}, "got algorithm='em'"),
        ({"proposal": "uniform"}, "got proposal='uniform'"),
        ({"init_params": "kmeans"}, "got init_params='kmeans'"),
        ({"means_init": np.zeros((1, 3))}, "got means_init=..."),
        ({"max_components": 0}, "max_components must be an integer >= 1, got 0"),
        ({"n_components": "many"}, "n_components must be 'auto' or an integer >= 1, got 'many'"),
    ],
)
def test_refuses_what_growth_cannot_use(settings, message):
    with pytest.raises(ValueError, match=message):
        GaussianMixture(**{"n_components": "auto"} | settings).fit(THREE)


def test_time_for_growth_counts():
    mixture = auto(max_time=1e-9).fit(RNG.normal(size=(2000, 4)))
    # Time is up after the first round, and no start with more components is tried.
    assert len(mixture.growth_) == 1
    assert mixture.outcome_ == "max_time"


def test_shows_rounds(capsys):
    auto(verbose=2, max_components=4).fit(THREE[:300])
    assert "components 2  left-out -" in capsys.readouterr().out
