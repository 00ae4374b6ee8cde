import math

import pytest
from paper_ranks import BEST_RANK, FIXED_RANK, TEST_RANK, TRAIN_RANK, VALIDATION_RANK
from scipy.stats import rankdata

from pickmix.data.uci import NAMES
from pickmix.experiments.measures import geometric_mean
from pickmix.experiments.tables import paper_numbers as paper

LEFT_OUT = "statlog-satimage"
BEST_SETS = [name for name in NAMES if name != LEFT_OUT]


def pairs(values, model):
    sets = {name for name, its_model, _ in values if its_model == model}
    return [[values[name, model, a] for a in paper.ALGORITHMS] for name in sorted(sets)]


def test_every_set_is_there():
    for numbers, sets in (
        (paper.FIXED_TEST, NAMES),
        (paper.BEST_TEST, BEST_SETS),
        (paper.BEST_STD, BEST_SETS),
        (paper.BEST_K, BEST_SETS),
        (paper.TRAIN, BEST_SETS),
        (paper.TEST, BEST_SETS),
        (paper.VALIDATION, BEST_SETS),
    ):
        wanted = {(s, m, a) for s in sets for m in paper.MODELS for a in paper.ALGORITHMS}
        assert numbers.keys() == wanted
        assert all(math.isfinite(value) for value in numbers.values())
    for numbers, sets in ((paper.FIXED_SPEED_UP, NAMES), (paper.BEST_SPEED_UP, BEST_SETS)):
        assert numbers.keys() == {(s, m) for s in sets for m in paper.MODELS}
        assert all(value > 0.0 for value in numbers.values())


@pytest.mark.parametrize("model", paper.MODELS)
@pytest.mark.parametrize(
    ("values", "ranks"),
    [
        (paper.FIXED_TEST, FIXED_RANK),
        (paper.BEST_TEST, BEST_RANK),
        (paper.TRAIN, TRAIN_RANK),
        (paper.TEST, TEST_RANK),
        (paper.VALIDATION, VALIDATION_RANK),
    ],
)
def test_printed_ranks_follow_from_the_printed_numbers(values, ranks, model):
    per_set = [rankdata([-value for value in pair], "min") for pair in pairs(values, model)]
    for place, algorithm in enumerate(paper.ALGORITHMS):
        mean = sum(rank[place] for rank in per_set) / len(per_set)
        assert round(mean, 2) == ranks[model, algorithm]


@pytest.mark.parametrize(
    ("values", "model", "count"),
    [
        (paper.FIXED_TEST, paper.SPTN, 13),
        (paper.FIXED_TEST, paper.FLOW, 14),
        # The text says 10 of 19; the table has 18 sets.
        (paper.BEST_TEST, paper.SPTN, 10),
        (paper.BEST_TEST, paper.FLOW, 15),
        (paper.TRAIN, paper.SPTN, 0),
        (paper.TRAIN, paper.FLOW, 13),
    ],
)
def test_sets_where_mhsaem_is_higher(values, model, count):
    assert sum(mhsaem > sgd for sgd, mhsaem in pairs(values, model)) == count


def test_geometric_means_of_speed_ups():
    def mean(numbers, wanted):
        return geometric_mean([value for (_, model), value in numbers.items() if model == wanted])

    assert mean(paper.FIXED_SPEED_UP, paper.SPTN) == pytest.approx(24.65, abs=0.005)
    assert mean(paper.FIXED_SPEED_UP, paper.FLOW) == pytest.approx(8.57, abs=0.005)
    assert mean(paper.BEST_SPEED_UP, paper.SPTN) == pytest.approx(4.23, abs=0.005)
    assert mean(paper.BEST_SPEED_UP, paper.FLOW) == pytest.approx(4.87, abs=0.005)


def test_tables_2_and_4_have_the_same_test_values():
    assert paper.TEST == paper.BEST_TEST


def test_best_flows_of_the_fixed_size_have_the_values_of_the_fixed_table():
    same = [key for key, K in paper.BEST_K.items() if key[1] == paper.FLOW and K == 128]
    assert len(same) == 21
    assert all(paper.BEST_TEST[key] == paper.FIXED_TEST[key] for key in same)


def test_numbers_of_components_are_those_of_the_tried_architectures():
    networks = {s**layers for s in (8, 32, 128) for layers in (2, 3, 4)}
    for (_, model, _), K in paper.BEST_K.items():
        assert K in (networks if model == paper.SPTN else {8, 32, 128})
