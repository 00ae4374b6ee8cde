"""Tables of deep mixtures and of figures: what is missing, cut, best; and the paper's numbers.

What they say of whole runs is in test_committed_results.py.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from made_rows import by_key, gaussian, row

from pickmix_experiments.catalogue import Figure, Panel
from pickmix_experiments.deep_tables import (
    PAPER,
    all_tables,
    best_tables,
    first_at_common_target,
    fixed_tables,
)
from pickmix_experiments.runs import flow
from pickmix_experiments.tables import Cell, csv_text, figure_tables, markdown, with_best, write
from pickmix_experiments.uci import NAMES

U = "MHSAEM-U"
# The rows "rank" of the paper's tables, SGD and MHSAEM-U: "1224" ranks, averaged over the sets.
_BEST = {"sptn": (1.56, 1.44), "flow": (1.83, 1.17)}
PRINTED_RANKS = {
    "fixed_test": {"sptn": (1.68, 1.32), "flow": (1.74, 1.26)},
    "train": {"sptn": (1.0, 2.0), "flow": (1.72, 1.28)},
    **dict.fromkeys(("best_test", "test", "validation"), _BEST),
}


@pytest.mark.parametrize("model", ["sptn", "flow"])
def test_the_papers_numbers_are_whole_and_give_its_ranks(model):
    of_model = PAPER.xs(model, level="model")
    for column, ranks in PRINTED_RANKS.items():
        pairs = of_model[[f"{column}_sgd", f"{column}_mhsaem_u"]].dropna()
        left_out = set() if column == "fixed_test" else {"statlog-satimage"}
        assert set(pairs.index) == set(NAMES) - left_out
        means = pairs.rank(axis=1, method="min", ascending=False).mean().round(2)
        assert tuple(means) == ranks[model]


def cells(table, name):
    rows = [{column.key: cell for column, cell in row.items()} for row in table.rows]
    (found,) = [r for r in rows + table.summaries if r["dataset"].value == name]
    return found


def example():
    """Four seeds of wine: all ends, a failure, an end that is not finite, and one not made."""
    sgd, mhsaem = ([replace(flow("wine", a, 128), seed=s) for s in range(4)] for a in ("SGD", U))
    rows = by_key(
        # t95 of -20 is -21, and the common target is -20: after 60 s, and after 2 s.
        row(sgd[0], "max_time", (-30.0, -21.0, -20.0), (0, 20, 60), test=-3.0),
        row(sgd[1], "failed: out of memory", (), ()),
        row(sgd[2], "non_finite", (-9.0, math.nan), (0, 1)),
        row(mhsaem[0], values=(-30.0, -20.5, -19.0), seconds=(0, 1, 2), test=-2.0),
        row(mhsaem[1], test=-4.0),
        row(mhsaem[2], test=-math.inf),
    )
    return [*sgd, *mhsaem], rows


def test_missing_failed_cut_and_not_finite_runs():
    runs, rows = example()
    (table,) = fixed_tables(runs, rows)
    wine, mean = cells(table, "wine"), cells(table, "geometric mean")
    assert (wine["test_sgd"].value, wine["seeds_sgd"].value) == (-3.0, 1)
    assert wine["test_sgd"].cut
    assert (wine["test_mhsaem_u"].value, wine["seeds_mhsaem_u"].value) == (-3.0, 2)
    assert wine["test_mhsaem_u"].std == pytest.approx(math.sqrt(2.0))
    # Seed 0 has both; that of seed 2 without a finite end has no common target, and t95 at 0 s.
    assert (wine["seconds_t95"].value, wine["evaluations_t95"].value) == (10.0, 10.0)
    assert wine["seconds_common"].value == 30.0
    assert mean["seconds_common"].value == pytest.approx(30.0)
    assert mean["seconds_common"].cut
    assert not mean["paper_speed_up"].cut
    assert (wine["paper_speed_up"].value, wine["paper_test_sgd"].value) == (2.05, -171.58)
    assert any("5 of 8 runs have no result" in note for note in table.notes)
    assert any("(1 by max_time" in note for note in table.notes)
    assert "**-3.00**†" in markdown([table])
    for build in (best_tables, all_tables):
        assert all(write(build(runs, rows)) for write in (markdown, csv_text))


def test_the_common_target_is_the_lower_end():
    slow, fast = np.array([-9.0, -5.0, -2.0]), np.array([-8.0, -4.0, -4.5])
    assert first_at_common_target(slow, fast) == (2, 1)
    assert first_at_common_target(slow, np.array([-8.0, math.nan])) == (-1, -1)


def test_architectures_are_chosen_by_validation():
    small, large = (flow("wine", "SGD", K) for K in (8, 32))
    runs = [small, replace(small, seed=1), large, replace(large, seed=1)]
    tests, validations = (-20.0, -22.0, -10.0, -10.0), (-1.0, -3.0, -4.0, -1.0)
    rows = [
        row(run, test=t, best_validation=v)
        for run, t, v in zip(runs, tests, validations, strict=True)
    ]
    (table,) = best_tables([*runs, flow("iris", "SGD", 8)], by_key(*rows))
    wine, iris = cells(table, "wine"), cells(table, "iris")
    assert (wine["K_sgd"].value, wine["test_sgd"].value) == (8, -21.0)
    assert math.isnan(iris["K_sgd"].value)
    assert math.isnan(cells(table, "mean rank")["test_sgd"].value)


@pytest.mark.parametrize(
    ("values", "lowest", "best"),
    [
        ((1.0, 2.0), False, [False, True]),
        ((1.0, 2.0), True, [True, False]),
        ((2.0, 2.0), False, [True, True]),
        ((math.nan, 2.0), False, [False, False]),
    ],
)
def test_best(values, lowest, best):
    cells = with_best(dict(enumerate(map(Cell, values))), lowest=lowest)
    assert [cell.best for cell in cells.values()] == best


def test_tables_of_figures(tmp_path):
    runs = [gaussian("EM"), gaussian("EM", 1), gaussian("SAEM")]
    rows = by_key(
        row(runs[0], true_log_likelihood=-19.0),
        row(runs[1], values=(-30.0, -28.0, -24.0), true_log_likelihood=-19.0),
        row(runs[2], "max_time", true_log_likelihood=-19.0),
    )
    panels = (Panel("", "log_likelihood", tuple(runs)), Panel("over K", "K", tuple(runs)))
    curves, errors = figure_tables(Figure("Figure 0", panels), rows)
    em = {column.key: cell.value for column, cell in curves.rows[0].items()}
    assert (em["final"], em["lowest"], em["highest"], em["seeds"]) == (-22.0, -24.0, -20.0, 2)
    assert (em["seconds_to_t95"], em["evaluations"]) == (5.5, 100.0)
    assert [cell.value for cell in errors.rows[1].values()][1:] == [pytest.approx(1.8), 1.0]
    assert curves.notes == ["† ended by max_time."]
    paths = write([curves, errors], tmp_path, "figure-0")
    assert "| SAEM | 1 | **-20.000**† |" in paths[0].read_text()
