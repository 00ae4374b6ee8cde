"""Which categories of a table depend on each other given the component, before a fit."""

from __future__ import annotations

import numpy as np

from pickmix.estimators.family_fit import fit_family
from pickmix.estimators.fit_rows import FitRows
from pickmix.families.base import Family
from pickmix.families.column_trees import choose_parents
from pickmix.families.registry import Description, make_family

# Rows that choose, passes of the fit that they are compared with, and its components.
_MOST_ROWS = 20_000
_PASSES = 20
_MOST_COMPONENTS, _ROWS_PER_COMPONENT = 6, 100


def find_parents(
    description: Description,
    family: Family,
    data: FitRows,
    floors: float | np.ndarray,
    most_components: int | None,
    n_jobs: int | None,
) -> np.ndarray:
    """The column that each column (D,) depends on given the component, -1 if there is none.

    The pairs of categories are joined that a mixture of few components, in which they are
    independent, explains worst.
    """
    parents = np.full(data.rows.shape[1], -1, dtype=np.int64)
    everything = np.arange(data.rows.shape[1])
    groups = family.column_groups() or [(family, everything)]
    wanted = [n for n, (inner, _) in enumerate(groups) if inner.name == "categorical"]
    wanted = [n for n in wanted if groups[n][1].shape[0] > 1]
    if not wanted:
        return parents
    order = np.random.default_rng(0).permutation(data.rows.shape[0])[:_MOST_ROWS]
    rows = data.rows[order].astype(np.float64)
    weights = None if data.weights is None else data.weights[order]
    most = min(most_components or _MOST_COMPONENTS, _MOST_COMPONENTS)
    n_components = min(rows.shape[0] // _ROWS_PER_COMPONENT, most)
    mixture = None
    if n_components > 1:
        sample, alone = FitRows(rows, weights), make_family(description, rows, floors)
        mixture = fit_family(alone, sample, n_components, 0, max_iter=_PASSES, n_jobs=n_jobs)
    for number in wanted:
        inner, columns = groups[number]
        prefix = "" if inner is family else f"{inner.name}{number}_"
        levels = rows[:, columns]
        # Those of the sample. A column without a value in it has one.
        largest = np.nanmax(levels, axis=0, initial=0.0, where=~np.isnan(levels))
        n_levels = (largest + 1.0).astype(np.int64).tolist()
        known: tuple[np.ndarray, ...] = ()
        if mixture is not None:
            known = mixture.weights, mixture.parameters[f"{prefix}probabilities"]
        within = choose_parents(levels, n_levels, weights, *known)
        parents[columns] = np.where(within < 0, -1, columns[within])
    return parents
