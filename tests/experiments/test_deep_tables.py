"""Tables of deep mixtures, against numbers by hand and those that the paper prints."""

import math
from dataclasses import replace

import numpy as np
import pytest
from made_histories import history as made_up

from pickmix_experiments.deep_tables import (
    PAPER,
    all_tables,
    best_tables,
    fixed_tables,
    start_tables,
)
from pickmix_experiments.runs import DeepRun, DefaultRun, flow, sptn
from pickmix_experiments.store import at_common_target
from pickmix_experiments.tables import csv_text, markdown
from pickmix_experiments.uci import NAMES

U, P = "MHSAEM-U", "MHSAEM-P"
# The rows "rank" of the paper's tables, SGD and MHSAEM-U: "1224" ranks, averaged over the sets.
_BEST = {"sptn": (1.56, 1.44), "flow": (1.83, 1.17)}
PRINTED_RANKS = {
    "fixed_test": {"sptn": (1.68, 1.32), "flow": (1.74, 1.26)},
    "train": {"sptn": (1.0, 2.0), "flow": (1.72, 1.28)},
    **dict.fromkeys(("best_test", "test", "validation"), _BEST),
}


def printed(column, model):
    """The paper's pairs of SGD and MHSAEM-U, without the sets that it leaves out."""
    of_model = PAPER.xs(model, level="model")
    return of_model[[f"{column}_sgd", f"{column}_mhsaem_u"]].dropna()


@pytest.mark.parametrize("model", ["sptn", "flow"])
def test_the_papers_numbers_are_whole_and_give_its_ranks(model):
    assert PAPER.index.is_unique
    for column, ranks in PRINTED_RANKS.items():
        pairs = printed(column, model)
        left_out = set() if column == "fixed_test" else {"statlog-satimage"}
        assert set(pairs.index) == set(NAMES) - left_out
        means = pairs.rank(axis=1, method="min", ascending=False).mean().round(2)
        assert tuple(means) == ranks[model]
    np.testing.assert_array_equal(printed("test", model), printed("best_test", model))
    sizes = {s**n for s in (8, 32, 128) for n in (2, 3, 4)} if model == "sptn" else {8, 32, 128}
    assert set(printed("best_k", model).to_numpy().ravel()) <= sizes
    assert (printed("best_std", model) >= 0.0).all(axis=None)


def history(run, test, *, values=(-200.0, -104.0, -100.0), seconds=(0.0, 1.0, 2.0), **facts):
    """A made-up record; t95 of the default values is its second point."""
    facts = {"outcome": "max_steps", "test": test, "best_validation": test, **facts}
    return made_up(run, values=values, seconds=seconds, **facts)


def by_key(*histories):
    return {h.run.key: h for h in histories}, [h.run for h in histories]


def rows_of(table):
    return [{column.key: cell for column, cell in row.items()} for row in table.rows]


def row(table, name):
    (found,) = [r for r in rows_of(table) + table.summaries if r["dataset"].value == name]
    return found


def fixed_example():
    """Two seeds of wine, one of iris, flows."""
    sgd, mhsaem = (lambda s, a=a: flow("wine", a, 128, seed=s) for a in ("SGD", U))
    slow = (-200.0, -110.0, -104.0, -90.0)
    return by_key(
        # t95 of -90 is at -94.5: after 40 s and 60 s. The target is -100, reached then too.
        history(sgd(0), -10.0, values=slow, seconds=(0, 10, 20, 40)),
        history(sgd(1), -13.0, values=slow, seconds=(0, 10, 20, 60)),
        # t95 of -100 is at -105: after 4 s and 2 s. The target is reached after 8 s and 4 s.
        history(mhsaem(0), -4.0, seconds=(0, 4, 8)),
        history(mhsaem(1), -4.0, seconds=(0, 2, 4)),
        history(flow("iris", "SGD", 128), -1.0, seconds=(0, 8, 16)),
        history(flow("iris", U, 128), -2.0, seconds=(0, 4, 4)),
    )


def test_fixed_values_speed_ups_and_the_papers():
    histories, runs = fixed_example()
    (table,) = fixed_tables(runs, histories)
    assert table.name == "flow"
    assert [c.key for c in table.columns][:3] == ["dataset", "test_sgd", "test_mhsaem_u"]
    # In the order of the sets' names.
    assert [r["dataset"].value for r in rows_of(table)] == ["iris", "wine"]
    wine = row(table, "wine")
    assert wine["test_sgd"].value == -11.5
    assert wine["test_sgd"].std == pytest.approx(math.sqrt(4.5))
    assert (wine["test_mhsaem_u"].value, wine["test_mhsaem_u"].std) == (-4.0, 0.0)
    assert (wine["test_sgd"].best, wine["test_mhsaem_u"].best) == (False, True)
    assert (wine["seeds_sgd"].value, wine["seeds_mhsaem_u"].value) == (2, 2)
    # Seeds: 40 / 4 and 60 / 2; 40 / 8 and 60 / 4.
    assert wine["seconds_t95"].value == wine["evaluations_t95"].value == 20.0
    assert wine["seconds_common"].value == wine["evaluations_common"].value == 10.0
    assert wine["paper_speed_up"].value == 2.05
    assert wine["paper_test_sgd"].value == -171.58
    assert (wine["paper_test_mhsaem_u"].value, wine["paper_test_mhsaem_u"].best) == (-25.57, True)
    iris = row(table, "iris")
    assert (iris["seconds_t95"].value, iris["seconds_common"].value) == (2.0, 4.0)
    assert math.isnan(iris["test_sgd"].std)
    assert iris["test_sgd"].best


def test_fixed_summaries():
    histories, runs = fixed_example()
    (table,) = fixed_tables(runs, histories)
    ranks, higher, means = table.summaries
    assert ranks["test_sgd"].value == ranks["test_mhsaem_u"].value == 1.5
    assert ranks["test_sgd"].best
    assert (ranks["paper_test_sgd"].value, ranks["paper_test_mhsaem_u"].value) == (2, 1)
    assert (higher["test_sgd"].value, higher["test_mhsaem_u"].value) == (1, 1)
    assert higher["paper_test_mhsaem_u"].value == 2
    assert means["seconds_t95"].value == pytest.approx(math.sqrt(2.0 * 20.0))
    assert means["seconds_common"].value == pytest.approx(math.sqrt(4.0 * 10.0))
    # Over the sets that are shown, so that like is compared with like.
    assert means["paper_speed_up"].value == pytest.approx(math.sqrt(2.05 * 1.45))
    assert not any("no result" in note or "†" in note for note in table.notes)


def test_missing_failed_and_not_finite_runs():
    wine = [flow("wine", a, 128, seed=s) for a in ("SGD", U) for s in range(4)]
    empty = history(wine[1], math.nan, values=(), seconds=(), outcome="failed: out of memory")
    histories, _ = by_key(
        history(wine[0], -3.0, seconds=(0, 6, 8)),
        empty,
        history(wine[2], math.nan, values=(-9.0, math.nan), seconds=(0, 1), outcome="non_finite"),
        history(wine[4], -2.0, seconds=(0, 2, 4)),
        history(wine[5], -4.0),
        history(wine[6], -math.inf),
    )
    tables = fixed_tables(wine, histories)
    cells = row(tables[0], "wine")
    assert (cells["test_sgd"].value, cells["seeds_sgd"].value) == (-3.0, 1)
    assert (cells["test_mhsaem_u"].value, cells["seeds_mhsaem_u"].value) == (-3.0, 2)
    # Seed 0 has both; that of seed 2 without a finite end has no common target, and t95 at 0 s.
    assert (cells["seconds_t95"].value, cells["seconds_common"].value) == (3.0, 2.0)
    assert any("5 of 8 runs have no result" in note for note in tables[0].notes)
    for build in (fixed_tables, best_tables, all_tables):
        built = build(wine, histories)
        assert all(write(built) for write in (markdown, csv_text))


def test_no_common_target_with_an_end_that_is_not_a_number():
    good = history(flow("wine", "SGD", 8), -1.0)
    bad = history(flow("wine", U, 8), -1.0, values=(-9.0, math.nan), seconds=(0, 1))
    none = history(flow("wine", U, 8), -1.0, values=(), seconds=())
    for pair in ((good, bad), (bad, good), (good, none), (none, good)):
        assert at_common_target(*pair) == [-1, -1]


def test_cut_runs_are_marked():
    histories, runs = by_key(
        history(flow("iris", "SGD", 128), -2.0, outcome="max_time"),
        history(flow("iris", U, 128), -1.0),
        history(flow("wine", "SGD", 128), -2.0),
        history(flow("wine", U, 128), -1.0),
    )
    (table,) = fixed_tables(runs, histories)
    iris, wine = row(table, "iris"), row(table, "wine")
    assert iris["test_sgd"].cut
    assert not iris["test_mhsaem_u"].cut
    assert iris["seconds_t95"].cut
    assert not any(cell.cut for key, cell in wine.items() if key != "dataset")
    assert row(table, "geometric mean")["seconds_t95"].cut
    assert not row(table, "geometric mean")["paper_speed_up"].cut
    (note,) = [note for note in table.notes if "†" in note]
    assert "1 by max_time" in note
    assert "-2.00†" in markdown([table])


def best_example():
    small, large = (lambda a, s, K=K: sptn("wine", a, K, 2, 2, seed=s) for K in (8, 32))
    return by_key(
        # SGD: the small one is better by validation, although not by test.
        history(small("SGD", 0), -20.0, best_validation=-1.0, seconds=(0, 3, 6)),
        history(small("SGD", 1), -22.0, best_validation=-3.0, seconds=(0, 5, 6)),
        history(large("SGD", 0), -10.0, best_validation=-4.0),
        history(large("SGD", 1), -10.0, best_validation=-1.0),
        # MHSAEM-U: the large one, of which one seed has no validation value.
        history(small(U, 0), -1.0, best_validation=-9.0),
        history(large(U, 0), -8.0, best_validation=-7.0, seconds=(0, 2, 3)),
        history(large(U, 1), -6.0, best_validation=math.nan),
    )


def test_best_architecture_is_chosen_by_validation():
    histories, runs = best_example()
    (table,) = best_tables(runs, histories)
    cells = row(table, "wine")
    assert (cells["architecture_sgd"].value, cells["K_sgd"].value) == ("s=8 b=2 l=2", 64)
    assert (cells["architecture_mhsaem_u"].value, cells["K_mhsaem_u"].value) == (
        "s=32 b=2 l=2",
        1024,
    )
    assert (cells["test_sgd"].value, cells["test_mhsaem_u"].value) == (-21.0, -7.0)
    assert (cells["seeds_sgd"].value, cells["seeds_mhsaem_u"].value) == (2, 2)
    # 3 / 2 and 5 / 1; 6 / 3 and 6 / 2.
    assert cells["seconds_t95"].value == pytest.approx(3.25)
    assert cells["seconds_common"].value == pytest.approx(2.5)
    assert (cells["paper_test_sgd"].value, cells["paper_test_sgd"].std) == (-25.99, 0.44)
    assert (cells["paper_K_sgd"].value, cells["paper_speed_up"].value) == (1024, 75.42)
    ranks, higher, means = table.summaries
    assert (ranks["test_sgd"].value, ranks["test_mhsaem_u"].value) == (2, 1)
    assert higher["test_mhsaem_u"].value == 1
    assert means["paper_speed_up"].value == pytest.approx(75.42)


def test_a_set_that_the_paper_leaves_out_or_nobody_finished():
    histories, runs = by_key(history(flow("statlog-satimage", "SGD", 8), -2.0))
    runs.append(flow("wine", "SGD", 8))
    (table,) = best_tables(runs, histories)
    satimage, wine = row(table, "statlog-satimage"), row(table, "wine")
    assert math.isnan(satimage["paper_speed_up"].value)
    assert math.isnan(satimage["paper_K_sgd"].value)
    assert (satimage["K_sgd"].value, satimage["test_sgd"].value) == (8, -2.0)
    assert math.isnan(wine["K_sgd"].value)
    assert math.isnan(wine["test_sgd"].value)
    assert "architecture_sgd" not in [c.key for c in table.columns]
    # The paper's numbers of both sets count, ours of none: there is no pair.
    assert math.isnan(row(table, "mean rank")["test_sgd"].value)
    assert row(table, "mean rank")["paper_test_sgd"].value == 2
    networks = best_tables([sptn("wine", "SGD", 8, 2, 2)], {})
    assert row(networks[0], "wine")["architecture_sgd"].value == ""
    assert "| wine | – | – | – | 0 |" in markdown(networks)


def test_runs_that_cannot_share_a_table():
    with pytest.raises(ValueError, match="expected one architecture"):
        fixed_tables([flow("iris", "SGD", 8), flow("iris", "SGD", 32)], {})
    other = DeepRun("SGD", 20_000, 0, dataset="iris", protocol="clean", K=8)
    with pytest.raises(ValueError, match="two runs for one cell"):
        best_tables([flow("iris", "SGD", 8), other], {})
    # The same run twice is one.
    run = flow("iris", "SGD", 8)
    (table,) = fixed_tables([run, run], by_key(history(run, -1.0))[0])
    assert row(table, "iris")["seeds_sgd"].value == 1


def test_starts_are_compared_within_and_beside_each_other():
    runs = {(a, s): flow("wine", a, 128, seed=s) for a in ("SGD", U) for s in (0, 1)}
    histories = {}
    for (a, seed), run in runs.items():
        ours = replace(run, start="gaussian", K=34)
        sgd = a == "SGD"
        # The target of the Gaussian start is -100: after 20 s or 40 s and after 2 s.
        seconds = (0, 10, 20 * (1 + seed)) if sgd else (0, 1, 2)
        cut = {"outcome": "max_time"} if sgd and seed else {}
        one = history(ours, -2.0 - sgd, seconds=seconds, **cut)
        # From the paper's it is -100 as well: after 2 s each.
        histories |= by_key(one, history(run, -5.0 + sgd))[0]
    asked = [h.run for h in histories.values()]
    (table,) = start_tables(asked, histories)
    wine = row(table, "wine")
    assert (wine["gaussian_test_sgd"].value, wine["gaussian_test_mhsaem_u"].value) == (-3.0, -2.0)
    assert wine["gaussian_test_mhsaem_u"].best
    assert (wine["paper_test_sgd"].value, wine["paper_test_mhsaem_u"].value) == (-4.0, -5.0)
    assert wine["gaussian_to_target_sgd"].value == 30.0
    assert wine["gaussian_to_target_mhsaem_u"].value == 2.0
    assert (wine["gaussian_seconds"].value, wine["paper_seconds"].value) == (15.0, 1.0)
    assert wine["gaussian_seconds"].cut
    assert not wine["paper_seconds"].cut
    _, higher, means = table.summaries
    assert (higher["gaussian_test_mhsaem_u"].value, higher["paper_test_mhsaem_u"].value) == (1, 0)
    assert means["gaussian_seconds"].value == pytest.approx(15.0)
    assert means["paper_evaluations"].value == pytest.approx(1.0)
    assert any("1 by max_time" in note for note in table.notes)


def test_defaults_stand_beside_the_papers_best():
    tests = {"Gaussians": (-11.0, -13.0), "flows": (-9.0, -9.5), "networks": (-30.0, -12.0)}
    validations = {"Gaussians": (-5.0, -5.0), "flows": (-4.0, -6.0), "networks": (-7.0, -7.0)}
    histories = [
        history(
            DefaultRun(f"pickmix {name}", 0, seed, dataset="wine"),
            tests[name][seed],
            best_validation=validations[name][seed],
            seconds=(0.0, 1.0, 2.0 + seed),
            n_components=8,
        )
        for name in tests
        for seed in (0, 1)
    ]
    known, runs = by_key(*histories)
    (table,) = fixed_tables(runs, known)
    wine = row(table, "wine")
    assert wine["test_gaussians"].value == -12.0
    assert (wine["test_flows"].value, wine["test_flows"].best) == (-9.25, True)
    # Seed 0 takes the flows, seed 1 the Gaussians.
    assert wine["test_chosen"].value == -11.0
    # Table 2 prints -13.27, of a network by MHSAEM-U.
    assert wine["paper_best"].value == -13.27
    assert (wine["seconds_flows"].value, wine["components_flows"].value) == (2.5, 8)
    assert wine["seeds_networks"].value == 2
    (above,) = table.summaries
    counts = [above[f"test_{name}"].value for name in ("gaussians", "flows", "networks", "chosen")]
    assert counts == [1, 1, 0, 1]
