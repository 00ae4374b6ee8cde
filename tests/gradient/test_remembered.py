"""Parameters are better than others if they are so by more than chance."""

import numpy as np
import pytest
from scipy import stats

from pickmix.gradient.engine import rises


@pytest.mark.parametrize("shift", [-0.2, 0.0, 0.1, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_paired_statistic_above_some_errors(shift, seed):
    rng = np.random.default_rng(seed)
    before = rng.normal(size=30) * 5.0
    scores = before + rng.normal(size=30) + shift
    statistic = stats.ttest_rel(scores, before).statistic
    assert rises(scores, before) == (statistic > 1.0)
    assert rises(scores, before, True) == (statistic > 3.0)


def test_rows_that_the_others_could_not_explain():
    assert rises(np.zeros(3), np.array([0.0, -np.inf, 0.0]))


def test_nothing_to_compare():
    assert not rises(None, np.zeros(3))
    assert not rises(np.ones(3), np.zeros(2))
    assert rises(np.ones(1), np.zeros(1))
    assert not rises(np.zeros(1), np.zeros(1))
