"""Fits of low-rank covariances: every way in, axes, and the choice of a covariance type."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from pickmix import GaussianMixture, load, save
from pickmix.estimators import fit_rows

K, D, H = 4, 24, 2


def _table(n, seed=0, turn=None):
    random = np.random.default_rng(1)
    means, loadings = 2.0 * random.normal(size=(K, D)), random.normal(size=(K, D, H))
    random = np.random.default_rng(seed)
    labels = random.integers(K, size=n)
    X = means[labels] + np.einsum("ndh,nh->nd", loadings[labels], random.normal(size=(n, H)))
    X += 0.5 * random.normal(size=X.shape)
    return X if turn is None else X @ turn


@pytest.fixture(scope="module")
def rows():
    return _table(1600)


@pytest.fixture(scope="module")
def new():
    return _table(600, seed=1)


def _mixture(**settings):
    made = {"covariance_type": "low_rank", "axes": "columns", "random_state": 0} | settings
    return GaussianMixture(K, **made)


@pytest.fixture(scope="module")
def fitted(rows):
    return _mixture().fit(rows)


@pytest.fixture(scope="module")
def reached(fitted, new):
    """What a fit to these rows reaches on new ones; others must come close."""
    assert (fitted.ranks_ >= H).all()
    return fitted.score(new)


@pytest.mark.parametrize("algorithm", ["saem", "ssaem", "tsaem", "mcsaem"])
def test_other_algorithms(rows, new, reached, algorithm):
    mixture = _mixture(algorithm=algorithm, max_steps=40).fit(rows)
    assert mixture.score(new) > reached - 0.5


def test_proposals(rows, new, reached):
    mixture = _mixture(proposal="uniform", max_steps=60).fit(rows)
    assert mixture.score(new) > reached - 0.5


def test_streams(rows, new, reached):
    mixture = _mixture(max_iter=20)
    for batch in np.split(rows, 4):
        mixture.partial_fit(batch)
    assert mixture.score(new) > reached - 0.5
    assert mixture.n_rows_seen_ == 1600


def test_rows_in_files(rows, new, reached, tmp_path, monkeypatch):
    np.save(tmp_path / "rows.npy", rows)
    monkeypatch.setattr(fit_rows, "sample_size", lambda *sizes: 600)
    mixture = _mixture().fit(str(tmp_path / "rows.npy"))
    assert mixture.score(new) > reached - 0.2


def test_checkpoints(rows, tmp_path):
    whole = _mixture(max_steps=14).fit(rows)

    def stop(info):
        if info.step >= 5:
            raise KeyboardInterrupt

    every = {"max_steps": 14, "checkpoint": tmp_path, "checkpoint_every": 0.0}
    with pytest.warns(UserWarning, match="interrupted"):
        _mixture(callbacks=stop, **every).fit(rows)
    resumed = _mixture(**every).fit(rows)
    np.testing.assert_array_equal(resumed.loadings_, whole.loadings_)


def test_continued_fits_stay(rows, new, reached):
    mixture = _mixture(warm_start=True).fit(rows)
    mixture.fit(rows)
    assert mixture.score(new) > reached - 0.05


def test_the_number_of_components_is_found(rows):
    mixture = GaussianMixture("auto", covariance_type="low_rank", axes="columns", random_state=0)
    assert mixture.fit(rows).n_components_ == K


def test_gaps(rows, new, reached):
    gaps = rows.copy()
    gaps[np.random.default_rng(0).uniform(size=gaps.shape) < 0.2] = np.nan
    mixture = _mixture().fit(gaps)
    assert mixture.score(new) > reached - 0.5
    filled = mixture.impute(gaps)
    error = np.square(filled - rows)[np.isnan(gaps)].mean()
    # Noise alone has a variance of 0.25.
    assert error < 0.5


def test_parameters_are_counted_by_rank(rows, fitted):
    ranks = fitted.ranks_
    assert ranks.min() < 12
    # Means, noise, and loadings up to a rotation; weights.
    n_free = (D * (ranks + 2) - ranks * (ranks - 1) // 2).sum() + K - 1
    log_likelihood = fitted.score_samples(rows).sum()
    assert fitted.aic(rows) == pytest.approx(2.0 * n_free - 2.0 * log_likelihood)
    assert fitted.bic(rows) == pytest.approx(np.log(1600) * n_free - 2.0 * log_likelihood)


def test_ties():
    """Columns that are constant in some clusters: as narrow as those of diagonal covariances."""
    random = np.random.default_rng(0)
    labels = random.integers(3, size=1500)
    X = 5.0 * random.normal(size=(1500, 30)) + 4.0 * labels[:, None]
    for k in range(3):
        X[np.ix_(labels == k, np.arange(8 * k, 8 * k + 8))] = 0.0
    # Outlying rows, which a background is for.
    X[::50] = random.uniform(-40.0, 40.0, (30, 30))
    scores = {}
    for kind in ("diag", "low_rank"):
        settings = {"covariance_type": kind, "axes": "columns", "random_state": 0}
        scores[kind] = np.median(
            GaussianMixture(4, **settings).fit(X[:1000]).score_samples(X[1000:])
        )
    assert scores["low_rank"] > scores["diag"] - 0.5


def test_ties_in_every_component_come_with_a_background():
    """Pictures with white borders: narrow columns are safe where a background is broad."""
    X = load_digits().data[np.random.default_rng(0).permutation(1797)]
    settings = {"covariance_type": "low_rank", "axes": "columns", "random_state": 0}
    scores = {
        rank: GaussianMixture(10, rank=rank, **settings).fit(X[:1400]).score(X[1400:])
        for rank in (0, 5)
    }
    assert scores[5] > scores[0] > -30.0


def test_constant_columns_do_not_hide_directions(rows, new):
    added = np.zeros((400, 300))
    alone = _mixture().fit(rows[:400])
    beside = _mixture().fit(np.hstack([rows[:400], added]))
    assert beside.ranks_.tolist() == alone.ranks_.tolist()
    constant = 300 * 0.5 * np.log(2.0 * np.pi * beside.reg_covar)
    reached = beside.score(np.hstack([new[:400], added])) + constant
    assert reached == pytest.approx(alone.score(new[:400]), abs=0.1)


def test_smaller_mixtures(rows, new, fitted, reached):
    assert fitted.reduce(K).score(new) == pytest.approx(reached, abs=0.3)
    smaller = fitted.reduce(2, rows)
    assert smaller.weights_.shape == (2,)
    assert smaller.score(new) < reached


def test_principal_axes(new, reached, tmp_path):
    turn = np.linalg.qr(np.random.default_rng(5).normal(size=(D, D)))[0]
    turn *= np.exp(np.random.default_rng(6).normal(size=D))
    rows, others = _table(1600, turn=turn), _table(300, seed=1, turn=turn)
    mixture = _mixture(axes="principal").fit(rows)
    assert mixture.principal_axes_.shape == (D, D)
    full = GaussianMixture(K)
    full.weights_, full.means_, full.n_features_in_ = mixture.weights_, mixture.means_, D
    full.covariances_ = mixture.covariances_
    np.testing.assert_allclose(mixture.score_samples(others), full.score_samples(others), rtol=1e-8)
    few = others[:, [3, 8]]
    np.testing.assert_allclose(
        mixture.marginal([3, 8]).score_samples(few), full.marginal([3, 8]).score_samples(few)
    )
    gaps = others[:20].copy()
    gaps[np.random.default_rng(0).uniform(size=gaps.shape) < 0.2] = np.nan
    np.testing.assert_allclose(mixture.impute(gaps), full.impute(gaps), rtol=1e-7)
    drawn = mixture.sample(4000, random_state=0)[0]
    np.testing.assert_allclose(drawn.std(axis=0), rows.std(axis=0), rtol=0.1)
    # A row is the mean, loadings times factors, and noise.
    z, own = mixture.factors(others), mixture.predict(others)
    explained = mixture.means_[own] + np.einsum("ndh,nh->nd", mixture.loadings_[own], z)
    assert np.square(others - explained).sum() < 0.5 * np.square(others - mixture.means_[own]).sum()
    save(mixture, tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.score_samples(others), mixture.score_samples(others))
    with pytest.raises(ValueError, match="columns"):
        _mixture(axes="principal").fit(gaps)


def test_the_choice_is_by_rows_held_out(rows):
    chosen = GaussianMixture(K, covariance_type="auto", max_steps=12, random_state=0).fit(rows)
    assert chosen.covariance_type_ == max(
        ("full", "low_rank", "diag"), key=chosen.covariance_scores_.__getitem__
    )
    assert chosen.covariance_scores_["diag"] < min(
        chosen.covariance_scores_["full"], chosen.covariance_scores_["low_rank"]
    )
    few = GaussianMixture(K, covariance_type="auto", max_steps=5, random_state=0).fit(rows[:150])
    assert few.covariance_type_ == "low_rank"
    assert GaussianMixture(2, covariance_type="auto").fit(rows[:, :5]).covariance_type_ == "full"


@pytest.mark.parametrize("n_rows", [1, 2, 9])
@pytest.mark.parametrize(("covariance_type", "n_columns"), [("low_rank", 3), ("auto", 20)])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_few_rows(n_rows, covariance_type, n_columns):
    X = np.random.default_rng(0).normal(size=(n_rows, n_columns))
    mixture = GaussianMixture("auto", covariance_type=covariance_type, random_state=0).fit(X)
    assert np.isfinite(mixture.score(X))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_one_value_is_singular():
    with pytest.raises(ValueError, match="singular covariance at reg_covar"):
        GaussianMixture("auto", covariance_type="low_rank", reg_covar=0.0).fit([[0.1], [np.nan]])


def test_parts_without_variance_are_named():
    rows = np.array([[4, 2], [1, 2], [7, 1], [1, 2], [7, 1], [7, 1], [3, 1]], dtype=float)
    settings = {"covariance_type": "low_rank", "reg_covar": 0.0, "background": False}
    with pytest.raises(ValueError, match="singular covariance at reg_covar=0"):
        GaussianMixture("auto", **settings, max_iter=20, random_state=0).fit(rows)


def test_rows_far_apart_are_refused_without_an_overflow():
    with pytest.raises(ValueError, match="Rescale it"):
        GaussianMixture(1, covariance_type="low_rank", axes="principal").fit([[1.3e99], [-1.3e99]])


def test_no_row_decides_the_choice_alone(rows):
    """Held-out rows that differ where others are equal count as a background would have them."""
    added = np.zeros((400, 10))
    added[np.arange(10), np.arange(10)] = 50.0
    wide = np.hstack([rows[:400], added])
    settings = {"covariance_type": "low_rank", "max_steps": 3, "random_state": 0}
    mixture = GaussianMixture(K, **settings).fit(wide)
    assert len(mixture.covariance_scores_) == 2
    assert min(mixture.covariance_scores_.values()) > -1e3


def test_full_covariances_of_more_numbers_than_rows_are_named():
    rows = np.random.default_rng(0).normal(size=(60, 40))
    with pytest.warns(UserWarning, match='"auto" compares both'):
        GaussianMixture(4, max_steps=3, random_state=0).fit(rows)


def test_what_is_refused_says_what_to_use(rows, tmp_path):
    np.save(tmp_path / "rows.npy", rows)
    for settings, options, message in (
        ({}, {"noise": np.ones_like(rows)}, '"full" or "diag"'),
        ({}, {"labels": np.zeros(len(rows))}, '"full" or "diag"'),
        ({"fixed_components": (rows[:1], np.eye(D)[None])}, {}, 'use "full"'),
        ({"axes": "rows"}, {}, "axes must be"),
    ):
        with pytest.raises(ValueError, match=message):
            _mixture(**settings).fit(rows, **options)
    for settings in ({"covariance_type": "auto"}, {"axes": "principal"}):
        with pytest.raises(ValueError, match="rows in memory"):
            _mixture(**settings).fit(str(tmp_path / "rows.npy"))
