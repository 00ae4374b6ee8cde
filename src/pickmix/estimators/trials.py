"""What short fits to some rows choose before a fit: covariances, axes, and pairs of categories."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone

from pickmix.estimators.family_fit import fit_family
from pickmix.estimators.fit_rows import FitRows
from pickmix.estimators.row_sources import is_large
from pickmix.families.base import Family
from pickmix.families.column_trees import choose_parents
from pickmix.families.registry import Description, make_family
from pickmix.families.shrinkage import background_reach
from pickmix.inputs.arrays import read_numbers
from pickmix.selection.partitions import RandomPartition

_FEW_COLUMNS = 16  # Up to so many, "auto" is "full".
_MOST_FULL = 256  # Columns beyond which full covariances are not tried.
_MOST_AXES = 1000  # Columns beyond which axes are not tried.
_ROWS = 6_000  # Of trials, at most.
_AXES_ROWS = 20_000  # Of principal axes.
_FEW_ROWS = 20  # With fewer, axes are not tried.
_HELD_OUT = 5  # Every so many of them is not fitted to.
_STEPS = 30
_SOME_COMPONENTS = 8  # Of trials for n_components="auto".
_LEAST_VARIANCE = 1e-8  # Of an axis, relative to the largest.
# Rows that choose pairs of categories, passes of the fit that they are compared with, and its
# components.
_PAIRED_ROWS = 20_000
_PAIRED_PASSES = 20
_PAIRED_COMPONENTS, _ROWS_PER_COMPONENT = 6, 100


def choose_covariances(mixture: Any, X: Any, sample_weight: Any, columns: Any) -> None:
    """Set `covariance_type_`, `covariance_scores_` and `principal_axes_` before a fit."""
    for name in ("covariance_type_", "principal_axes_"):
        mixture.__dict__.pop(name, None)
    mixture.covariance_scores_ = {}
    wanted, axes = mixture.covariance_type, mixture.axes
    if wanted not in ("auto", "low_rank"):
        mixture.covariance_type_ = wanted
        return
    unread = columns is not None or is_large(X)
    if axes == "auto" and (mixture.algorithm == "em" or mixture.rank == 0):
        # What these are compared with has columns.
        axes = "columns"
    if unread and (wanted == "auto" or axes == "principal"):
        name = 'covariance_type="auto"' if wanted == "auto" else 'axes="principal"'
        raise ValueError(
            f"{name} is chosen from rows in memory. Choose it with an array of some rows, and give "
            "what was chosen for all."
        )
    if unread or (wanted == "low_rank" and axes == "columns"):
        mixture.covariance_type_ = "low_rank"
        return
    rows = read_numbers(mixture, X, reset=True)
    if axes == "auto" and rows.shape[0] < _FEW_ROWS:
        axes = "columns"
    trial = _Trial(mixture, rows, sample_weight)
    if wanted == "auto":
        mixture.covariance_type_ = trial.best_type()
    else:
        mixture.covariance_type_ = "low_rank"
    if mixture.covariance_type_ == "low_rank" and axes != "columns":
        found = trial.best_axes(axes == "principal")
        if found is not None:
            mixture.principal_axes_ = found
    mixture.covariance_scores_ = trial.scores


class _Trial:
    """Fits with as many rows per component as the whole has."""

    def __init__(self, mixture: Any, rows: np.ndarray, sample_weight: Any) -> None:
        self.mixture = mixture
        self.has_gaps = bool(np.isnan(rows).any())
        self.scores: dict[str, float] = {}
        weights = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        some = np.arange(rows.shape[0]) if weights is None else np.flatnonzero(weights > 0.0)
        random = np.random.Generator(np.random.Philox(key=rows.shape[1]))
        more = random.permutation(some)[:_AXES_ROWS]
        some = more[:_ROWS]
        # A single row is fitted to as well.
        is_new = np.arange(some.shape[0]) % _HELD_OUT == 0
        is_old = ~is_new | (some.shape[0] == 1)
        self.rows, self.new = rows[some[is_old]], rows[some[is_new]]
        #: With those of the fit, for axes.
        self.other_rows = rows[more[_ROWS:]]
        self.n_components = min(_SOME_COMPONENTS, self.rows.shape[0])
        if not isinstance(mixture.n_components, str):
            share = self.rows.shape[0] / rows.shape[0]
            self.n_components = max(1, round(mixture.n_components * share))
        self.fitted: dict[str, Any] = {}
        #: Log-densities of new rows in a background, which a whole fit may have.
        self.broad = _background_log_joints(self.rows, self.new)

    def best_type(self) -> str:
        """The covariance type under which held-out rows are most probable."""
        D = self.rows.shape[1]
        if D <= _FEW_COLUMNS:
            return "full"
        names = ["full"] if D <= _MOST_FULL else []
        for name in (*names, "low_rank", "diag"):
            self._fit(name, name)
        return max(self.scores, key=self.scores.__getitem__)

    def best_axes(self, must: bool) -> np.ndarray | None:
        """Principal axes (D, D) of rows about their components, if they are better or a must."""
        if must and self.has_gaps:
            raise ValueError(
                'axes="principal" is for rows without missing values, got some. Use axes="columns".'
            )
        if not must and (self.has_gaps or self.rows.shape[1] > _MOST_AXES):
            return None
        if "low_rank" not in self.fitted:
            self._fit("low_rank", "low_rank")
        columns = self.fitted["low_rank"]
        rows = np.concatenate([self.rows, self.other_rows])
        residuals = rows - columns.means_[columns.predict(rows)]
        variances, vectors = np.linalg.eigh(residuals.T @ residuals / residuals.shape[0])
        least = _LEAST_VARIANCE * variances.max() + 1e-280
        axes = vectors[:, ::-1] / np.sqrt(np.maximum(variances[::-1], least))
        if must:
            return np.asarray(axes)
        self._fit("low_rank, principal axes", "low_rank", axes)
        better = self.scores["low_rank, principal axes"] > self.scores["low_rank"]
        return np.asarray(axes) if better else None

    def _fit(self, name: str, kind: str, axes: np.ndarray | None = None) -> None:
        made = clone(self.mixture).set_params(
            n_components=self.n_components,
            proposal=RandomPartition(relocate=False),
            algorithm="mhsaem",
            n_samples="auto",
            init_params="auto",
            max_steps=_STEPS,
            weights_init=None,
            means_init=None,
            precisions_init=None,
            fixed_components=None,
            n_init=1,
            verbose=0,
            callbacks=(),
            checkpoint=None,
            warm_start=False,
            random_state=0,
            covariance_type=kind,
            axes="columns",
        )
        made.principal_axes_ = axes
        made._fit(self.rows, None, chosen=True)
        self.fitted[name] = made
        self.scores[name] = float(np.logaddexp(made.score_samples(self.new), self.broad).mean())


def _background_log_joints(rows: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Log-joints of new rows (n,) with a background of the weight of one of the rows (N, D)."""
    seen = ~np.isnan(rows)
    centre = np.where(seen, rows, 0.0).sum(axis=0) / np.maximum(seen.sum(axis=0), 1)
    extent = np.where(seen, np.abs(rows - centre), 0.0).max(axis=0)
    deviations = background_reach(extent) + 1e-100
    # A background of one row is a point, and squares of distances from it have no end.
    away = np.clip((new - centre) / deviations, -1e150, 1e150)
    terms = np.square(away) + 2.0 * np.log(deviations)
    terms = np.where(np.isnan(new), 0.0, terms + np.log(2.0 * np.pi))
    return np.asarray(-0.5 * terms.sum(axis=1) - np.log(rows.shape[0]))


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
    order = np.random.default_rng(0).permutation(data.rows.shape[0])[:_PAIRED_ROWS]
    rows = data.rows[order].astype(np.float64)
    weights = None if data.weights is None else data.weights[order]
    most = min(most_components or _PAIRED_COMPONENTS, _PAIRED_COMPONENTS)
    n_components = min(rows.shape[0] // _ROWS_PER_COMPONENT, most)
    mixture = None
    if n_components > 1:
        sample, alone = FitRows(rows, weights), make_family(description, rows, floors)
        passes = _PAIRED_PASSES
        mixture = fit_family(alone, sample, n_components, 0, max_iter=passes, n_jobs=n_jobs)
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
