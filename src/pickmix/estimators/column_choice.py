"""How a table's numbers are modelled, by what short fits say of rows that they have not seen."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.special import ndtri
from sklearn.exceptions import ConvergenceWarning

from pickmix.estimators.family_mixture import FamilyMixture
from pickmix.families.registry import Description
from pickmix.inputs.columns import TypedTable
from pickmix.inputs.encoding import encode
from pickmix.inputs.maps import cells_of, is_ordinal, maps_of, spread_ties, without_scores
from pickmix.inputs.schema import TableSchema

# Rows that choose between maps of numbers, a third of which judge; passes and rows per component of
# the fits that are judged.
_MOST_JUDGED, _FEWEST_JUDGED = 3_000, 60
_PASSES, _ROWS_PER_COMPONENT = 20, 60
# Rows from which maps are learnt with a mixture, in so many rounds, and standard errors that they
# must gain. Where fewer rows have neither gaps nor atoms, short fits take as long as the fit. The
# distribution of a mixture is known at points of a grid.
_FEWEST_LEARNT, _MOST_LEARNT, _LEARNT_CELLS, _COMPLETE = 2_000, 20_000, 300_000, 0.9
_ROUNDS, _ERRORS = 3, 2.0
_GRID, _BEYOND, _NO_SHARE, _LEAST_RISE = 1000, 1.0, 1e-15, 1e-9
# The same for columns of rounded numbers, or levels. Levels need many rows per component to pay,
# numbers pay where components are many, as of measurements with the hour and the day. Tables of
# many columns take fewer rows. The most uneven columns are tried first as levels, last as numbers.
_LEVEL_ROWS, _FEWEST_LEVEL_ROWS, _LEVEL_PASSES = 20_000, 2_000, 10
_ROWS_PER_LEVEL_COMPONENT, _ROWS_PER_NUMBER_COMPONENT = 600, 20
_FEWEST_LEVELS, _MOST_LEVELS = 20, 150
_LEVEL_CELLS, _MOST_TRIED, _MOST_FAILURES = 300_000, 5, 2
_FEWEST_COMPONENTS = 8  # With fewer, starts matter more than columns.
_LEAST_GAIN = 0.01  # Nats per row, and at least a standard error.


def choose_scores(
    schema: TableSchema, rows: np.ndarray, covariance_type: str, n_jobs: int | None
) -> TableSchema:
    """Normal scores, or numbers as they are, of natural rows (N, D), or maps that a mixture learns.

    Scores suit skewed and bounded columns, and make curves of straight lines. Any map gives a valid
    density, so that rows count alike here and in `choose_levels`, whatever their weights in the
    fit.
    """
    numbers = [d for d, column in enumerate(schema.modelled) if column.knots]
    if not numbers:
        return schema
    plain = without_scores(schema)
    seen = rows[~np.isnan(rows[:, numbers]).all(axis=1)]
    most = max(_MOST_JUDGED, min(_MOST_LEARNT, _LEARNT_CELLS // len(numbers)))
    seen = seen[np.random.default_rng(0).permutation(seen.shape[0])[:most]]
    # Rows of atoms only have no numbers.
    seen = seen[~np.isnan(_number_scores(schema, seen, numbers)[0]).all(axis=1)]
    if min(seen.shape[0], _MOST_JUDGED) * 2 // 3 < _FEWEST_JUDGED:
        return plain
    settings = (_PASSES, _ROWS_PER_COMPONENT, n_jobs)

    def judge(candidate: TableSchema, rows: np.ndarray) -> tuple[FamilyMixture, np.ndarray]:
        """Fit to two thirds of natural rows; return log-densities of the others."""
        scores, log_slopes = _number_scores(candidate, rows, numbers)
        n_fitted = rows.shape[0] * 2 // 3
        mixture = _fitted(covariance_type, scores[:n_fitted], *settings)
        return mixture, mixture.score_samples(scores[n_fitted:]) + log_slopes[n_fitted:]

    few = seen[:_MOST_JUDGED]
    chosen = schema if judge(schema, few)[1].mean() >= judge(plain, few)[1].mean() else plain
    complete = seen[~np.isnan(_number_scores(chosen, seen, numbers)[0]).any(axis=1)]
    if complete.shape[0] < max(_FEWEST_LEARNT, _COMPLETE * seen.shape[0]):
        return chosen
    mixture, before = judge(chosen, complete)
    learnt, fitting = chosen, complete[: complete.shape[0] * 2 // 3]
    mixture.set_params(warm_start=True)
    for number in range(_ROUNDS):
        if number:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                mixture.fit(_number_scores(learnt, fitting, numbers)[0])
        learnt = _learnt(schema, learnt, mixture, _number_scores(learnt, fitting, numbers)[0])
    return learnt if _gains(judge(learnt, complete)[1], before, _ERRORS) else chosen


def _number_scores(
    schema: TableSchema, rows: np.ndarray, numbers: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Latent numbers (N, d) of natural rows, and log-slopes (N,)."""
    maps = maps_of(schema)
    assert maps is not None
    latent, log_slopes = maps.forward(spread_ties(schema, rows))
    return latent[:, numbers], log_slopes[:, numbers].sum(axis=1)


def _learnt(
    schema: TableSchema, used: TableSchema, mixture: FamilyMixture, scores: np.ndarray
) -> TableSchema:
    """Maps under which single columns of a mixture have the distribution of the table's.

    The mixture is of latent numbers (N, d) of the maps in `used`; `schema` has normal scores.
    """
    part = mixture.model_.parts()[0][0]
    # Those of the rows: weights of the fit are means over steps.
    shares = mixture.predict_proba(scores).mean(axis=0)
    columns = dict(used.columns)
    for d, name in enumerate(column.name for column in used.modelled if column.knots):
        low, high = scores[:, d].min(), scores[:, d].max()
        grid = np.linspace(low - _BEYOND, high + _BEYOND, _GRID)
        below = part.distribution(d, shares).cumulative(grid)
        x, normal = np.array(schema[name].knots)
        z = np.interp(normal, ndtri(np.clip(below, _NO_SHARE, 1.0 - _NO_SHARE)), grid)
        rising = np.append(True, np.diff(z) > _LEAST_RISE)
        knots = (tuple(x[rising].tolist()), tuple(z[rising].tolist()))
        columns[name] = replace(schema[name], knots=knots)
    return TableSchema(list(columns.values()), schema.origin)


def choose_levels(
    schema: TableSchema,
    table: TypedTable,
    infer: Callable[[dict[str, str]], TableSchema],
    describe: Callable[[TableSchema], Description],
    dependence: str | None,
    n_jobs: int | None,
) -> TableSchema:
    """Columns of rounded numbers with 20 to 150 values as levels, if left-out rows pay for it.

    `infer` makes a schema with kinds of columns that are not given. A rounded number has
    the probability of its cell, as a level has.
    """
    n_rows = min(_LEVEL_ROWS, _LEVEL_CELLS // len(schema.columns))
    order = np.random.default_rng(0).permutation(table.n_rows)[:n_rows]
    if order.shape[0] < _FEWEST_LEVEL_ROWS:
        return schema
    part = table.take(order)
    kinds, unevenness = {}, {}
    for name, column in schema.columns.items():
        as_number = column.kind == "integer"
        if as_number or (len(column.levels) >= _FEWEST_LEVELS and column.step is not None):
            observed = table.columns[name].observed
            if is_ordinal(observed, _MOST_LEVELS):
                kinds[name] = "ordinal" if as_number else "integer"
                unevenness[name] = _unevenness(observed) * (-1.0 if as_number else 1.0)
    changed = infer(kinds)
    numbers, levels = (
        [n for n in sorted(kinds, key=unevenness.__getitem__) if kinds[n] == changed[n].kind == k]
        for k in ("integer", "ordinal")
    )
    if not numbers + levels:
        return schema
    # The last level of each column must be among the fitted rows.
    fitting = np.arange(order.shape[0]) < order.shape[0] * 2 // 3
    for each in (schema, changed):
        fitting[np.nan_to_num(encode(each, part)[0], nan=-np.inf).argmax(axis=0)] = True

    def score(candidate: TableSchema, rows_each: int) -> np.ndarray:
        maps = maps_of(candidate)
        assert maps is not None
        rows, log_units = encode(candidate, part)
        latent, log_slopes = maps.forward(spread_ties(candidate, rows))
        log_units += log_slopes
        for d, column in enumerate(candidate.modelled):
            if column.name in kinds and column.kind == "integer":
                # An atom has a probability already.
                low, high = cells_of(column, rows[:, d])
                log_units[:, d] += np.log(np.where(high > low, (high - low) * column.scale, 1.0))
        settings = (_LEVEL_PASSES, rows_each, n_jobs, dependence, _FEWEST_COMPONENTS)
        mixture = _fitted(describe(candidate), latent[fitting], *settings)
        scores = mixture.score_samples(latent[~fitting])
        return np.asarray(scores + log_units[~fitting].sum(axis=1))

    def changes(names: list[str]) -> TableSchema:
        columns = [changed[n] if n in names else column for n, column in schema.columns.items()]
        return TableSchema(columns, schema.origin)

    best: np.ndarray | None = None
    for names, rows_each in (
        (levels, _ROWS_PER_LEVEL_COMPONENT),
        (numbers, _ROWS_PER_NUMBER_COMPONENT),
    ):
        if not names:
            continue
        # One column is compared with none, as starts differ by as much as a column gains.
        before, chosen = score(schema, rows_each), list[str]()
        best = before if best is None or before.mean() > best.mean() else best
        for number, name in enumerate(names[:_MOST_TRIED]):
            if _gains(score(changes([name]), rows_each), before):
                chosen.append(name)
            elif number + 1 - len(chosen) == _MOST_FAILURES:
                break
        if chosen:
            candidate = changes(chosen)
            values = score(candidate, rows_each)
            if _gains(values, best):
                schema, best = candidate, values
    return schema


def _gains(values: np.ndarray, others: np.ndarray, n_errors: float = 1.0) -> bool:
    gains = values - others
    return bool(gains.mean() > max(_LEAST_GAIN, n_errors * gains.std() / np.sqrt(gains.shape[0])))


def _unevenness(values: np.ndarray) -> float:
    """Return how much the shares of neighbouring values (N,) differ, in total."""
    counts = np.unique(values, return_counts=True)[1]
    return float(np.abs(np.diff(counts)).sum() / values.shape[0])


def _fitted(
    description: Description,
    rows: np.ndarray,
    n_passes: int,
    rows_each: int,
    n_jobs: int | None,
    dependence: str | None = None,
    least: int = 1,
) -> FamilyMixture:
    n_components = max(least, rows.shape[0] // rows_each)
    mixture = FamilyMixture(description, n_components, random_state=0, dependence=dependence)
    mixture.set_params(max_iter=n_passes, n_jobs=n_jobs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return mixture.fit(rows)
