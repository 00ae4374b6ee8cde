"""Step sizes gamma_t and inverse temperatures beta_t, as functions of the step t = 1, 2, ..."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

# For users; the rest turns what estimators are given into these.
__all__ = [
    "AntiAnnealing",
    "ConstantRate",
    "ConstantStep",
    "CosineRate",
    "PolynomialStep",
    "Schedule",
    "TwoPhaseStep",
]


class Schedule(Protocol):
    """A function of the step: `schedule(t)` is gamma_t or beta_t."""

    def __call__(self, step: int) -> float:
        """Return the value at t = step."""


def _check_step_size(name: str, value: float) -> float:
    if not 0.0 < value <= 1.0:
        raise ValueError(f"{name} must lie in (0, 1], got {value!r}.")
    return float(value)


@dataclass(frozen=True)
class ConstantStep:
    """gamma_t = gamma.

    Examples
    --------
    >>> ConstantStep(0.05)(1)
    0.05
    """

    gamma: float

    def __post_init__(self) -> None:
        _check_step_size("gamma", self.gamma)

    def __call__(self, step: int) -> float:
        """Return gamma_t."""
        return self.gamma


@dataclass(frozen=True)
class TwoPhaseStep:
    """gamma_t = 1 for the first `n_warm_up` steps, then `gamma`: the paper's schedule.

    Examples
    --------
    >>> schedule = TwoPhaseStep()
    >>> schedule(50), schedule(51)
    (1.0, 0.05)
    """

    n_warm_up: int = 50
    gamma: float = 0.05

    def __post_init__(self) -> None:
        _check_step_size("gamma", self.gamma)
        if self.n_warm_up < 0:
            raise ValueError(f"n_warm_up must be >= 0, got {self.n_warm_up!r}.")

    def __call__(self, step: int) -> float:
        """Return gamma_t."""
        return 1.0 if step <= self.n_warm_up else self.gamma


@dataclass(frozen=True)
class PolynomialStep:
    """gamma_t = (t / scale + offset)^(-power), at most 1.

    The sum of gamma_t must diverge and the sum of its squares converge (Robbins and
    Monro 1951), which holds for powers in (0.5, 1] and for no others.

    Examples
    --------
    >>> PolynomialStep(power=1.0, offset=0.0)(4)
    0.25
    >>> PolynomialStep(power=0.4)
    Traceback (most recent call last):
        ...
    ValueError: power must lie in (0.5, 1], got 0.4: ...
    """

    power: float = 0.6
    offset: float = 1.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not 0.5 < self.power <= 1.0:
            raise ValueError(
                f"power must lie in (0.5, 1], got {self.power!r}: at or below 0.5 the sum of "
                "squared step sizes diverges and the noise never averages out, above 1 the "
                "sum of step sizes converges and the fit stops short of an optimum."
            )
        if self.offset < 0.0 or not self.scale > 0.0:
            raise ValueError(
                f"offset must be >= 0 and scale > 0, got {self.offset!r} and {self.scale!r}."
            )

    def __call__(self, step: int) -> float:
        """Return gamma_t."""
        return float(min(1.0, (step / self.scale + self.offset) ** -self.power))


def automatic_step(steps_per_pass: int) -> Schedule:
    """Step size of `step_size="auto"`: gamma falls from 1 / (steps per pass), as in incremental EM.

    The statistics always average over a pass or more, so that a component loses only what a pass
    replaces, however few rows of a single batch it has.
    """
    if steps_per_pass <= 1:
        return ConstantStep(1.0)
    return _PassAveraging(steps_per_pass)


@dataclass(frozen=True)
class _PassAveraging:
    steps_per_pass: int

    def __call__(self, step: int) -> float:
        passes = step / self.steps_per_pass
        return 1.0 / (self.steps_per_pass * math.pow(max(1.0, passes / 10.0), 0.6))


def resolve_step_size(step_size: object, steps_per_pass: int) -> Schedule:
    """Turn `step_size` ("auto", "paper", a number, a callable t -> gamma_t) into a schedule."""
    if isinstance(step_size, str):
        if step_size == "auto":
            return automatic_step(steps_per_pass)
        if step_size == "paper":
            return TwoPhaseStep()
        raise ValueError(
            "step_size must be 'auto', 'paper', a number in (0, 1] or a callable t -> gamma_t, "
            f"got {step_size!r}."
        )
    if isinstance(step_size, numbers.Real) and not isinstance(step_size, bool):
        return ConstantStep(_check_step_size("step_size", float(step_size)))
    if callable(step_size):
        return CheckedSchedule(step_size, "step_size", 1.0)
    raise ValueError(
        "step_size must be 'auto', 'paper', a number in (0, 1] or a callable t -> gamma_t, "
        f"got {step_size!r}."
    )


@dataclass(frozen=True)
class CheckedSchedule:
    """A user's schedule, whose every value is checked to lie in (0, `largest`], or be `zero`."""

    schedule: Callable[[int], float]
    name: str
    largest: float
    zero: bool = False

    def __call__(self, step: int) -> float:
        """Return the schedule's value at t = step."""
        value = float(self.schedule(step))
        if not (0.0 < value <= self.largest or (self.zero and value == 0.0)):
            raise ValueError(
                f"{self.name} must return values in {'[' if self.zero else '('}0, {self.largest}], "
                f"got {value!r} at step {step}."
            )
        return value


@dataclass(frozen=True)
class AntiAnnealing:
    """beta_t: linear from `start` at t = 1 to `peak` at t = 2T/3 and on to 1 at t = T.

    The paper's schedule (after Naim and Gildea 2012), for T = `n_steps`.

    Examples
    --------
    >>> beta = AntiAnnealing(n_steps=300)
    >>> beta(1), beta(200), beta(300)
    (0.1, 1.2, 1.0)
    """

    n_steps: int
    start: float = 0.1
    peak: float = 1.2

    def __call__(self, step: int) -> float:
        """Return beta_t."""
        turn = max(1.0, 2.0 * self.n_steps / 3.0)
        if step >= self.n_steps:
            return 1.0
        if step <= turn:
            fraction = (step - 1.0) / (turn - 1.0) if turn > 1.0 else 1.0
            return self.start + fraction * (self.peak - self.start)
        fraction = (step - turn) / (self.n_steps - turn)
        return self.peak + fraction * (1.0 - self.peak)


def resolve_annealing(annealing: object, n_steps: int) -> Schedule | None:
    """Turn the estimator's `annealing` into a schedule: None, "anti" or a callable t -> beta_t."""
    if annealing is None:
        return None
    if isinstance(annealing, str) and annealing == "anti":
        return AntiAnnealing(n_steps)
    if callable(annealing):
        return CheckedSchedule(annealing, "annealing", float("inf"))
    raise ValueError(
        f"annealing must be None, 'anti' or a callable t -> beta_t, got {annealing!r}."
    )


@dataclass(frozen=True)
class CosineRate:
    """Learning rate that rises over `n_warm_up` steps and falls to zero at `n_steps` as a cosine.

    Examples
    --------
    >>> rate = CosineRate(peak=0.01, n_steps=100)
    >>> rate(1), round(rate(50), 6), rate(100)
    (0.01, 0.005079, 0.0)
    """

    peak: float
    n_steps: int
    n_warm_up: int = 0

    def __post_init__(self) -> None:
        if not self.peak > 0.0 or not 0 <= self.n_warm_up < self.n_steps:
            raise ValueError(
                "peak must be > 0 and n_warm_up in [0, n_steps), got "
                f"{self.peak!r}, {self.n_warm_up!r} and n_steps={self.n_steps!r}."
            )

    def __call__(self, step: int) -> float:
        """Return the rate of step t."""
        if step <= self.n_warm_up:
            return self.peak * step / self.n_warm_up
        length = max(1, self.n_steps - self.n_warm_up - 1)
        done = min(1.0, (step - self.n_warm_up - 1) / length)
        return 0.5 * self.peak * (1.0 + math.cos(math.pi * done))


def resolve_rate(learning_rate: object, n_steps: int) -> Schedule:
    """Turn a `learning_rate` into a schedule: a number, "cosine" or a callable t -> rate."""
    if isinstance(learning_rate, str) and learning_rate == "cosine":
        return CosineRate(1e-3, n_steps)
    number = isinstance(learning_rate, numbers.Real) and not isinstance(learning_rate, bool)
    if number and 0.0 < float(learning_rate) < math.inf:  # type: ignore[arg-type]
        return ConstantRate(float(learning_rate))  # type: ignore[arg-type]
    if isinstance(learning_rate, CosineRate):
        return learning_rate
    if callable(learning_rate):
        return CheckedSchedule(learning_rate, "learning_rate", math.inf, zero=True)
    raise ValueError(
        "learning_rate must be a number > 0, 'cosine' or a callable t -> rate, "
        f"got {learning_rate!r}."
    )


@dataclass(frozen=True)
class ConstantRate:
    """The same learning rate at every step."""

    rate: float

    def __call__(self, step: int) -> float:
        """Return the rate."""
        return self.rate
