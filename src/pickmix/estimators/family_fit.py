"""A fit in closed form without an estimator: rows in memory, one start, the result as arrays."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.closed_form.fit import FitResult, fit_mixture
from pickmix.estimators.compilation import compile_kernels
from pickmix.estimators.fit_rows import FitRows
from pickmix.families.base import Family
from pickmix.fitting.settings import ClosedFormSettings, resolve
from pickmix.inputs.arrays import refuse_empty_columns
from pickmix.threads import use_threads


@dataclass(eq=False, repr=False, kw_only=True)
class _Parameters(ClosedFormSettings):
    background: bool = False


def fit_family(
    family: Family,
    data: FitRows,
    n_components: int,
    seed: Any,
    **parameters: Any,
) -> FitResult:
    """The fit that an estimator with these parameters makes, whether it converges or not.

    `seed` is a number or a generator, which is not used up.
    """
    refuse_empty_columns(data.rows)
    given = _Parameters(**parameters)
    settings = resolve(
        given,
        family,
        data.rows.shape[0],
        n_components,
        start_is_given=False,
        is_partial=data.is_partial,
    )
    source = data.source(family, settings.compiled)
    draws = seed if isinstance(seed, np.random.RandomState) else np.random.RandomState(seed)
    first, second = copy.deepcopy(draws).randint(2**31 - 1, size=2).tolist()
    with use_threads(given.n_jobs), warnings.catch_warnings():
        # What this fit has not reached, those that ask for it judge.
        warnings.simplefilter("ignore")
        compile_kernels(settings, source)
        numbers = [first * 2**31 + second]
        return fit_mixture(source, family, settings, numbers, draws=draws)[0]
