"""Runs are their descriptions, and experiments are lists of them."""

import math

import pytest

from pickmix_experiments import uci
from pickmix_experiments.catalogue import (
    EXPERIMENTS,
    PAPER,
    QUICK,
    SHARES,
    Scale,
    seconds,
    share_within,
)
from pickmix_experiments.runs import GaussianRun


def runs_of(name, scale=PAPER):
    return EXPERIMENTS[name].runs(scale)


class TestRuns:
    def test_what_an_algorithm_does_not_look_at_makes_no_second_run(self):
        assert GaussianRun("EM", 400, 0, B=100, M=1) == GaussianRun("EM", 400, 0, B=200, M=8)
        assert GaussianRun("SAEM", 400, 0, M=1) == GaussianRun("SAEM", 400, 0, M=8)
        assert GaussianRun("SAEM", 400, 0, B=100) != GaussianRun("SAEM", 400, 0, B=200)
        assert GaussianRun("MHSAEM-U", 400, 0, M=1) != GaussianRun("MHSAEM-U", 400, 0, M=8)
        assert GaussianRun("pickmix", 400, 0) == GaussianRun("pickmix", 9, 0, annealing=False)

    def test_every_setting_changes_the_key(self):
        run = GaussianRun("MHSAEM-U", 100, 0)
        others = [
            GaussianRun("MHSAEM-T", 100, 0),
            GaussianRun("MHSAEM-U", 101, 0),
            GaussianRun("MHSAEM-U", 100, 1),
            *(GaussianRun("MHSAEM-U", 100, 0, **{name: 7}) for name in ("D", "K", "N", "B", "M")),
            GaussianRun("MHSAEM-U", 100, 0, omega=0.2),
            GaussianRun("MHSAEM-U", 100, 0, annealing=False),
            GaussianRun("MHSAEM-U", 100, 0, first_steps=7),
            GaussianRun("MHSAEM-U", 100, 0, step_size=0.7),
        ]
        keys = {run.key, *(other.key for other in others)}
        assert len(keys) == 1 + len(others)

    def test_shortening(self):
        assert GaussianRun("SAEM", 20_000, 0).shortened(0.25).T == 5_000
        assert GaussianRun("EM", 3, 0).shortened(0.01).T == 1
        assert GaussianRun("pickmix", 0, 0).shortened(0.5) == GaussianRun("pickmix", 0, 0)


class TestExperiments:
    def test_figure_2_is_the_papers(self):
        runs = runs_of("figure-2")
        assert {run.seed for run in runs} == set(range(5))
        algorithms = {run.algorithm for run in runs}
        assert algorithms >= {"EM", "SAEM", "SSAEM", "TSAEM", "MCSAEM", "MHSAEM-U", "MHSAEM-TF"}
        assert algorithms >= {"MHSAEM-P", "pickmix"}
        uniform = next(run for run in runs if run.algorithm == "MHSAEM-U")
        sizes = (uniform.D, uniform.K, uniform.N, uniform.omega, uniform.B, uniform.M, uniform.T)
        assert sizes == (10, 100, 10_000, 0.1, 200, 2, 20_000)
        assert (uniform.first_steps, uniform.step_size, uniform.annealing) == (50, 0.05, True)
        # As many passes over the rows as the others make: 20,000 batches of 200.
        assert next(run for run in runs if run.algorithm == "EM").T == 400

    def test_figures_share_runs(self):
        of_figure_2 = {run for run in runs_of("figure-2") if run.algorithm != "pickmix"}
        assert of_figure_2 < set(runs_of("figure-annealing"))
        shared = {run for run in of_figure_2 if run.algorithm != "MHSAEM-P"}
        assert shared < set(runs_of("figure-3"))

    def test_fixed_table(self):
        runs = [run for run in runs_of("table-fixed") if run.kind == "deep"]
        assert {run.dataset for run in runs} == set(uci.NAMES)
        assert {(run.model, run.K) for run in runs} == {("flow", 128), ("sptn", 1024)}
        assert {run.algorithm for run in runs} >= {"SGD", "MHSAEM-U"}
        assert {(run.B, run.T, run.M, run.start) for run in runs} == {(100, 20_000, 1, "paper")}

    def test_start_table_has_pairs_from_both_starts_and_shares_the_papers(self):
        runs = runs_of("table-start", Scale(repetitions=1))
        papers = {run for run in runs if run.start == "paper"}
        assert papers < set(runs_of("table-fixed", Scale(repetitions=1)))
        ours = {(run.dataset, run.model, run.algorithm): run for run in set(runs) - papers}
        assert len(ours) == 19 * 2 * 2 == len(papers)
        for (name, model, _), run in ours.items():
            assert run.start == "gaussian"
            # Two training rows for each flow.
            n_train = round(0.64 * uci.SIZES[name][0])
            expected = min(128, n_train // 2) if model == "flow" else 1024
            assert expected == run.K

    def test_best_table_has_the_papers_grid(self):
        runs = runs_of("table-best", Scale(repetitions=1, sets=("iris",)))
        networks = {(run.s, run.b, run.l) for run in runs if run.model == "sptn"}
        assert len(networks) == 36
        assert {run.K for run in runs if run.model == "flow"} == {8, 32, 128}
        assert runs == runs_of("table-all", Scale(repetitions=1, sets=("iris",)))

    @pytest.mark.parametrize("name", EXPERIMENTS)
    def test_quick_is_small_and_of_every_name(self, name):
        runs = runs_of(name, QUICK)
        assert 0 < len(runs) < 50
        assert {run.seed for run in runs} == {0}
        assert all(run.T <= 800 for run in runs)

    @pytest.mark.parametrize("name", EXPERIMENTS)
    def test_runs_are_distinct_and_a_seed_after_the_other(self, name):
        runs = runs_of(name, Scale(repetitions=2, sets=("iris",), reduced_grid=True))
        assert len(set(runs)) == len(runs)
        assert [run.seed for run in runs] == sorted(run.seed for run in runs)


class TestBudget:
    def test_a_larger_budget_cuts_less(self):
        def runs(share):
            return EXPERIMENTS["figure-2"].runs(Scale(repetitions=1, step_factor=share))

        total = sum(seconds(run) for run in runs(1.0))
        assert share_within(2.0 * total, runs) == 1.0
        assert share_within(0.3 * total, runs) < 0.5
        assert share_within(1e-9, runs) == min(SHARES)

    def test_every_run_has_a_cost(self):
        for experiment in EXPERIMENTS.values():
            for run in experiment.runs(Scale(repetitions=1)):
                assert 0.0 < seconds(run) < math.inf
