"""Deep mixtures learn, by every algorithm and option, and what they learn obeys laws."""

import copy
from functools import cache

import numpy as np
import pytest
from deep_cases import flow, network, rows, small
from scipy.stats import norm

from pickmix import Proposal, RandomPartition
from pickmix.estimators import deep_fit
from pickmix.gradient.start import find_clusters
from pickmix.selection.randomness import Stream
from pickmix.selection.schedules import AntiAnnealing, CosineRate

FROZEN = {"learning_rate": 1e-12}


def assert_same_bits(one, other):
    np.testing.assert_array_equal(one.weights_, other.weights_)
    for first, second in zip(one.tables_, other.tables_, strict=True):
        np.testing.assert_array_equal(first, second)
    for name in ("step", "evaluations", "log_likelihood", "validation", "acceptance"):
        np.testing.assert_array_equal(one.trace_[name], other.trace_[name], err_msg=name)


def is_learnt(fitted, n_rows):
    """Which rows were learnt from; a tenth is watched."""
    order = np.random.default_rng([fitted._split_seed, 2]).permutation(n_rows)
    return np.isin(np.arange(n_rows), order[n_rows // 10 :])


def assert_improves(make, X, shape=None, by=0.1, **settings):
    """Fit, and expect a better score than that of the parameters where the fit began."""
    common = shape or {}
    begin = make(max_steps=1, **common, **FROZEN).fit(X)
    end = make(**{"max_steps": 100, "learning_rate": 0.02} | common | settings).fit(X)
    assert end.n_steps_ == end.max_steps
    assert end.score(X) > begin.score(X) + by
    assert end.weights_.sum() == pytest.approx(1.0, abs=1e-5)
    return end


class Ring(Proposal):
    """A walk to neighbours, so that a candidate depends on where the chain stands."""

    independent = False

    def propose(self, rows, current, n_draws, first_draw, random):
        u = random.uniforms(Stream.PROPOSAL, rows, 1, first_draw)
        candidates = (current[:, None] + np.where(u < 0.5, -1, 1)) % self.n_components
        log_q = np.zeros(candidates.shape)
        return candidates, log_q, log_q[:, 0]


class TestLearning:
    @pytest.mark.parametrize(
        ("make", "algorithm"),
        [(flow, "mcsaem"), (flow, "em"), (network, "mhsaem"), (network, "sgd")],
    )
    def test_every_algorithm(self, make, algorithm):
        assert_improves(make, rows(), algorithm=algorithm)

    @pytest.mark.slow
    def test_blocks_and_locations_are_counted(self):
        fitted = flow(8, proposal=RandomPartition(block_size=3), max_steps=40).fit(rows())
        # 45 rows a step and blocks of 3, 3 and 2; 8 locations every four passes of four steps.
        assert fitted.n_component_evaluations_ == 40 * 45 * 3 + 3 * 8
        assert (fitted.trace_["acceptance"] == 1.0).all()

    def test_a_learning_proposal_for_every_choice_of_a_tree(self):
        assert_improves(network, rows(), proposal="table-forgetting")

    @pytest.mark.slow
    def test_starts_that_look_at_more_are_better(self):
        X = rows()
        for make in (flow, network):
            scores = [
                make(init_params=start, max_steps=1, **FROZEN).fit(X).score(X)
                for start in ("gaussian", "data", "paper", "auto")
            ]
            assert scores[0] > scores[1] > scores[2] + 0.1
            assert scores[3] == scores[0]

    @pytest.mark.slow
    def test_more_components_than_rows_and_all_rows_at_once(self):
        X = rows(60)
        settings = {"n_components": 70, "batch_size": None, "validation_fraction": None}
        fitted = assert_improves(flow, X, settings)
        # One step is one pass over the rows.
        assert fitted.trace_["epoch"][-1] == fitted.n_steps_
        assert fitted.n_component_evaluations_ == fitted.n_steps_ * 60 * 2
        assert fitted.predict_proba(X).shape == (60, 70)


class TestSameBits:
    @pytest.mark.parametrize("algorithm", ["mhsaem", "em"])
    def test_same_seed(self, algorithm):
        first, second = (flow(algorithm=algorithm).fit(rows()) for _ in range(2))
        assert_same_bits(first, second)
        other = flow(algorithm=algorithm, random_state=1).fit(rows())
        assert not np.array_equal(first.tables_[0], other.tables_[0])

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ({"proposal": "optimal"}, {"algorithm": "mcsaem"}),
            ({"learning_rate": 1e-3}, {"learning_rate": lambda step: 1e-3}),
            ({"learning_rate": "cosine"}, {"learning_rate": CosineRate(1e-3, 40)}),
            ({"annealing": "anti"}, {"annealing": AntiAnnealing(40)}),
            ({"annealing": None}, {"annealing": lambda step: 1.0}),
            ({"init_params": "auto"}, {"init_params": "gaussian"}),
            ({"init_params": "auto", "linear": False}, {"init_params": "data", "linear": False}),
            ({"proposal": "partition"}, {"proposal": RandomPartition(block_size=4)}),
        ],
        ids=["optimal", "rate", "cosine", "anti", "no annealing", "start", "layers", "partition"],
    )
    def test_two_names_of_one_thing(self, one, other):
        first, second = flow(**one).fit(rows()), flow(**other).fit(rows())
        if "proposal" in one:
            assert first.proposal_ == second.proposal_ == one["proposal"]
        assert_same_bits(first, second)

    def test_a_fit_does_not_depend_on_fits_before(self):
        X = rows()
        first = flow().fit(X)
        again = flow().fit(X[::-1]).fit(X)
        assert_same_bits(first, again)


@cache
def torn(make):
    """A model on its way to the data, whose components still overlap."""
    settings = {"algorithm": "em", "learning_rate": 0.02, "max_steps": 100}
    return make(validation_fraction=None, **settings).fit(rows(180))


class TestChains:
    """With parameters that do not move, chains must come to the exact posterior."""

    @pytest.mark.parametrize(
        ("make", "settings"),
        [
            (flow, {}),
            pytest.param(flow, {"proposal": "table-forgetting"}, marks=pytest.mark.slow),
            (small, {"proposal": Ring(), "n_samples": 2}),
            pytest.param(flow, {"reuse_log_joint": True, "n_samples": 3}, marks=pytest.mark.slow),
            (small, {"proposal": RandomPartition(block_size=2, shuffle=0.2)}),
        ],
        ids=["uniform", "table-forgetting", "ring", "reuse", "partition"],
    )
    def test_states_follow_the_posterior(self, make, settings):
        X = rows(180)
        model = copy.copy(torn(make))
        posterior = model.predict_proba(X)
        # Some rows are torn between components, others are not; and all begin where few belong.
        spread = (posterior * (1.0 - posterior)).sum(axis=0)
        assert spread.min() > 1.0
        assert spread.sum() > 20.0
        assert (posterior > 0.9).any(axis=1).mean() > 0.1
        model._chain = np.full_like(model._chain, model.weights_.argmin())
        # Passes that share a partition do not add up: with one for every four, look less often.
        n_steps = 200 if isinstance(settings.get("proposal"), RandomPartition) else 40
        settings = {"algorithm": "mhsaem", "warm_start": True, "max_steps": 5 * n_steps} | settings
        model.set_params(**settings | FROZEN).fit(X)
        np.testing.assert_allclose(model.predict_proba(X), posterior, atol=1e-5)
        states = [model._chain[:, 0]]
        # A proposal of one's own is compiled in each fit; for the others look again, ten passes on.
        for _ in range(0 if isinstance(model.proposal, Ring) else 5):
            states.append(model.set_params(max_steps=n_steps).fit(X)._chain[:, 0])
        n_looks = len(states)
        counts = np.bincount(np.concatenate(states), minlength=posterior.shape[1])
        z = (counts - n_looks * posterior.sum(axis=0)) / np.sqrt(n_looks * spread)
        assert np.abs(z).max() < norm.isf(1e-5)
        # Rows as well as sums: how often each is at its own most probable component.
        own = np.mean(np.stack(states) == posterior.argmax(axis=1), axis=0)
        expected = posterior.max(axis=1)
        variance = (expected * (1.0 - expected)).sum() / n_looks
        assert abs((own - expected).sum()) / np.sqrt(variance) < norm.isf(1e-5)

    def test_weights_in_closed_form_are_mean_responsibilities(self):
        X = rows(180)
        settings = {"weight_update": "closed_form", "step_size": 0.02, "max_steps": 500}
        settings["init_params"] = "data"
        model = small(validation_fraction=None, **FROZEN, **settings).fit(X)
        shares = model.predict_proba(X).mean(axis=0)
        assert shares.std() > 0.05
        np.testing.assert_allclose(model.weights_, shares, atol=0.03)


class TestUnits:
    @pytest.mark.parametrize("start", ["auto", "paper"])
    def test_scores_are_densities_of_the_data_as_they_came(self, start):
        X = rows()
        plain = flow(init_params=start).fit(X)
        # A power of two changes no digit.
        scaled = flow(init_params=start).fit(4.0 * X)
        expected = plain.score_samples(X) - 2.0 * np.log(4.0)
        # But `reg_covar` of a Gaussian start is in the units of the data.
        atol = {"paper": 1e-12, "auto": 1e-4}[start]
        np.testing.assert_allclose(scaled.score_samples(4.0 * X), expected, rtol=0.0, atol=atol)
        np.testing.assert_allclose(
            scaled.predict_proba(4.0 * X), plain.predict_proba(X), rtol=0.0, atol=atol
        )
        assert scaled.best_validation_ == pytest.approx(plain.best_validation_ - 2 * np.log(4.0))

    @pytest.mark.parametrize("make", [flow, network], ids=["flow", "network"])
    def test_each_column_has_its_unit_and_origin(self, make):
        X = rows()
        factor, shift = np.array([1e3, 1e-3]), np.array([1e8, -50.0])
        moved = X * factor + shift
        plain, fitted = (make(init_params="auto").fit(data) for data in (X, moved))
        expected = plain.score(X) - np.log(factor).sum()
        assert fitted.score(moved) == pytest.approx(expected, abs=1e-3)
        assert fitted.best_validation_ == pytest.approx(
            plain.best_validation_ - np.log(factor).sum(), abs=1e-3
        )

    @pytest.mark.parametrize("kind", ["columns", "whiten"])
    def test_the_model_sees_what_the_attributes_say(self, kind):
        X = rows()
        fitted = flow(standardize=kind).fit(X)
        seen = (X - fitted.center_) / fitted.scale_
        learnt = seen[is_learnt(fitted, 200)]
        np.testing.assert_allclose(learnt.mean(axis=0), 0.0, atol=1e-12)
        np.testing.assert_allclose(learnt.std(axis=0), 1.0)
        log_volume = -np.log(fitted.scale_).sum()
        if kind == "whiten":
            correlation = np.corrcoef(seen.T)[0, 1]
            seen = seen @ fitted.whitening_
            log_volume += np.linalg.slogdet(fitted.whitening_)[1]
            # Shrunk, as few rows do not tell exactly.
            assert abs(np.corrcoef(seen.T)[0, 1]) < 0.1 * correlation
        else:
            assert fitted.whitening_ is None
        raw = flow(standardize=False).fit(seen)
        assert not raw.center_.any()
        assert (raw.scale_ == 1.0).all()
        assert raw.whitening_ is None
        expected = raw.score_samples(seen) + log_volume
        np.testing.assert_allclose(fitted.score_samples(X), expected, atol=1e-4)
        assert fitted.best_validation_ == pytest.approx(raw.best_validation_ + log_volume, abs=1e-4)

    @pytest.mark.parametrize("kind", ["whiten", "auto"])
    def test_watched_rows_do_not_shape_what_the_model_sees(self, kind):
        X = rows()
        settings = {"standardize": kind, "init_params": "data", "max_steps": 1}
        fitted = flow(**settings).fit(X)
        moved = X.copy()
        moved[~is_learnt(fitted, 200)] *= 100.0
        again = flow(**settings).fit(moved)
        np.testing.assert_array_equal(again.center_, fitted.center_)
        np.testing.assert_array_equal(again.scale_, fitted.scale_)
        np.testing.assert_array_equal(again.whitening_, fitted.whitening_)
        np.testing.assert_array_equal(again._chain, fitted._chain)

    @pytest.mark.parametrize(
        ("settings", "n_searches"),
        [
            ({}, 2),
            ({"standardize": "columns"}, 1),
            ({"standardize": False}, 1),
            ({"init_params": "paper"}, 0),
        ],
        ids=["two frames", "columns", "as they are", "paper"],
    )
    def test_clusters_are_searched_once_in_every_frame(self, settings, n_searches, monkeypatch):
        searches = []

        def search(rows, n_centres, seed):
            searches.append(rows.shape)
            return find_clusters(rows, n_centres, seed)

        monkeypatch.setattr(deep_fit, "find_clusters", search)
        flow(**{"init_params": "data", "max_steps": 1} | settings).fit(rows())
        # Of the rows that are learnt from.
        assert searches == n_searches * [(180, 2)]

    @pytest.mark.parametrize("make", [flow, network], ids=["flow", "network"])
    def test_a_constant_column(self, make):
        X = rows()
        X[:, 1] = 1e9
        fitted = make(init_params="auto").fit(X)
        assert np.isfinite(fitted.score_samples(X)).all()
        assert fitted.scale_[1] == 1.0
        assert fitted.center_[1] == 1e9

    def test_a_single_row(self):
        X = rows(1)
        fitted = small(max_steps=5, init_params="auto").fit(X)
        assert np.isfinite(fitted.score_samples(X)).all()
        # Below 20 rows none is set apart.
        assert np.isnan(fitted.best_validation_)


class TestWeights:
    def test_zero_weight_removes_the_row_bit_by_bit(self):
        X, weights = rows(220), np.ones(220)
        weights[::11] = 0.0
        weighted = flow().fit(X, sample_weight=weights)
        removed = flow().fit(X[weights > 0.0], sample_weight=weights[weights > 0.0])
        assert_same_bits(weighted, removed)

    def test_only_ratios_matter(self):
        X = rows()
        weights = np.random.default_rng(1).uniform(0.5, 2.0, 200)
        one, eight = (flow().fit(X, sample_weight=f * weights) for f in (1.0, 8.0))
        assert_same_bits(one, eight)
        unweighted, ones = flow().fit(X), flow().fit(X, sample_weight=np.ones(200))
        np.testing.assert_allclose(ones.tables_[0], unweighted.tables_[0], atol=1e-4)
        assert np.abs(one.tables_[0] - unweighted.tables_[0]).max() > 1e-3

    def test_a_heavy_cluster_is_learnt_better(self):
        X = rows()
        heavy = X.mean(axis=1) < 2.0
        settings = {"max_steps": 200, "learning_rate": 0.02}
        plain = flow(**settings).fit(X)
        weighted = flow(**settings).fit(X, sample_weight=np.where(heavy, 10.0, 1.0))
        assert weighted.score(X[heavy]) > plain.score(X[heavy]) + 0.1
        weights = np.where(heavy, 10.0, 1.0)
        assert weighted.score(X, sample_weight=weights) > plain.score(X, sample_weight=weights)
