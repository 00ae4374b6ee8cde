import numpy as np
import pytest

from pickmix.selection.schedules import (
    AntiAnnealing,
    PolynomialStep,
    TwoPhaseStep,
    automatic_step,
    resolve_annealing,
    resolve_step_size,
)


def test_two_phases_are_the_papers():
    schedule = TwoPhaseStep()
    assert [schedule(t) for t in (1, 50, 51, 20_000)] == [1.0, 1.0, 0.05, 0.05]


@pytest.mark.parametrize("power", [0.5, 0.0, -1.0, 1.01, float("nan")])
def test_polynomial_powers_outside_the_robbins_monro_range_are_refused(power):
    with pytest.raises(ValueError, match=r"power must lie in \(0.5, 1\]"):
        PolynomialStep(power=power)


def test_polynomial_values():
    schedule = PolynomialStep(power=0.75, offset=2.0, scale=4.0)
    assert schedule(8) == pytest.approx((8 / 4 + 2) ** -0.75)
    assert PolynomialStep(power=1.0, offset=0.0, scale=10.0)(1) == 1.0


def test_anti_annealing_is_linear_between_the_papers_knots():
    n_steps = 20_001
    beta = AntiAnnealing(n_steps)
    steps = np.arange(1, n_steps + 1)
    expected = np.interp(steps, [1.0, 2 * n_steps / 3, n_steps], [0.1, 1.2, 1.0])
    np.testing.assert_allclose([beta(t) for t in steps], expected, rtol=1e-12)


def test_automatic_steps_average_over_a_pass_and_then_over_more():
    schedule = automatic_step(50)
    gammas = np.array([schedule(t) for t in range(1, 50_001)])
    assert gammas[0] == pytest.approx(1 / 50)
    assert (np.diff(gammas) <= 0.0).all()
    assert gammas[-1] < gammas[0] / 10
    assert automatic_step(1)(7) == 1.0


@pytest.mark.parametrize("bad", ["fast", 0.0, -0.1, 1.5, None, True, [0.1]])
def test_bad_step_sizes_are_named(bad):
    with pytest.raises(ValueError, match="step_size"):
        resolve_step_size(bad, 10)


def test_a_users_schedule_is_checked_at_every_step():
    schedule = resolve_step_size(lambda t: 1.0 / t if t < 3 else 2.0, 10)
    assert schedule(2) == 0.5
    with pytest.raises(ValueError, match=r"step_size must return values in .* got 2.0 at step 3"):
        schedule(3)


def test_annealing_choices():
    assert resolve_annealing(None, 100) is None
    assert resolve_annealing("anti", 100)(100) == 1.0
    assert resolve_annealing(lambda t: 2.0, 100)(1) == 2.0
    with pytest.raises(ValueError, match="annealing must be None, 'anti' or a callable"):
        resolve_annealing("cold", 100)
