"""A fit in closed form without an estimator: rows in memory, one start, the result as arrays."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.closed_form.fit import FitResult, fit_mixture
from pickmix.closed_form.growth import grow, most_components
from pickmix.estimators.compilation import compile_kernels
from pickmix.estimators.fit_rows import FitRows
from pickmix.families.base import Family
from pickmix.fitting.settings import ClosedFormSettings, resolve
from pickmix.inputs.arrays import refuse_empty_columns
from pickmix.threads import use_threads

_SOME_COMPONENTS = 64  # The number that decides whether growth is compiled.


@dataclass(eq=False, repr=False, kw_only=True)
class _Parameters(ClosedFormSettings):
    background: bool = False


def fit_family(
    family: Family,
    data: FitRows,
    n_components: int | str,
    seed: Any,
    **parameters: Any,
) -> FitResult:
    """The fit that an estimator with these parameters makes, whether it converges or not.

    `n_components` may be "auto". `seed` is a number or a generator, which is not used up.
    """
    refuse_empty_columns(data.rows)
    given = _Parameters(**parameters)
    n_rows, start = data.rows.shape[0], None
    most = most_components(family, n_rows, given.max_components)
    number = min(_SOME_COMPONENTS, most) if isinstance(n_components, str) else n_components
    known: dict[str, Any] = {"start_is_given": False, "is_partial": data.is_partial}
    settings = resolve(given, family, n_rows, number, **known)
    source = data.source(family, settings.compiled)
    draws = seed if isinstance(seed, np.random.RandomState) else np.random.RandomState(seed)
    first, second = copy.deepcopy(draws).randint(2**31 - 1, size=2).tolist()
    numbers = [first * 2**31 + second]
    with use_threads(given.n_jobs), warnings.catch_warnings():
        # What this fit has not reached, those that ask for it judge.
        warnings.simplefilter("ignore")
        compile_kernels(settings, source)
        if isinstance(n_components, str):
            growth = grow(family, source, settings, numbers[0], most)
            settings = resolve(given, family, n_rows, growth.n_components, **known)
            compile_kernels(settings, source)
            start = growth.start
        return fit_mixture(source, family, settings, numbers, start=start, draws=draws)[0]
