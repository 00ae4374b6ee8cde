"""Find unusual rows: a detector made of small mixtures, each of a part of the rows."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self

import narwhals
import numpy as np
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils.validation import check_is_fitted

from pickmix.checks import (
    RandomSeed,
    check_flag,
    check_integer,
    check_n_jobs,
    check_number,
    check_randomness,
)
from pickmix.estimators.part_mixtures import MOST_ROWS, PartMixtures
from pickmix.estimators.row_sources import by_chunks, learn_names, open_for, read_chunks
from pickmix.estimators.table_columns import TableColumns
from pickmix.estimators.table_mixture import TableMixture
from pickmix.families.registry import Description
from pickmix.inputs.arrays import read_numbers
from pickmix.inputs.columns import TypedTable
from pickmix.inputs.encoding import encode
from pickmix.inputs.frames import read_typed
from pickmix.inputs.inference import infer_schema
from pickmix.inputs.open_rows import is_dask, is_source
from pickmix.inputs.readers import is_arrow
from pickmix.inputs.schema import TableSchema
from pickmix.model.columns import is_frame
from pickmix.model.explanation import Explanation, explain_rows, rank_columns
from pickmix.model.rows import QueryRows
from pickmix.model.scales import Tails

_N_MIXTURES = 8
_MOST_SAMPLED = 2 * _N_MIXTURES * MOST_ROWS  # Rows that mixtures are drawn from.
_MOST_REFERENCE = 20_000  # Rows that tail probabilities are estimated from.
_MOST_RECENT = 2000  # Rows of a stream that are kept for that.
_LAST_ROWS = 10  # Rows that the tail of the final score is fitted to.


class _FittedDetector(OutlierMixin, BaseEstimator):  # type: ignore[misc]
    schema_: TableSchema
    offset_: float
    _parts: dict[str, Any]
    _cached: PartMixtures | None = None


@dataclass(eq=False, repr=False)
class MixtureDetector(_FittedDetector):
    """Detector of unusual rows in numbers or tables, by mixtures at several scales.

    Eight small mixtures are fitted, each to a part of the rows. A row is scored by those that were
    fitted without it, also if it was in the fit: anomalies cannot hide in a component of their own.
    Log-densities are taken at several scales: with few or many components, left by merging, with
    little or much smoothing, and of each column by itself. At each scale they become tail
    probabilities among such scores of the fitted rows; the smallest counts, and is calibrated once
    more. So `score_samples` is the logarithm of the share of fitted rows that are as unusual.

    Parameters
    ----------
    contamination : float, default=0.05
        Share of unusual rows to expect, at most 0.5: so many of the fitted rows are flagged.
    n_components : int or "auto", default="auto"
        Most components of each mixture. "auto": one for 15 rows, 32 at most.
    novelty : bool, default=False
        Whether the rows of the fit are known to be normal. Set it then: the rows do not tell. They
        are scored by all mixtures, also by those that were fitted to them, as what equals a normal
        row is rather normal. `contamination` is then the largest share of new normal rows to flag.
    schema : dict, default=None
        Kinds of columns of tables that were found wrongly, as in `TableMixture`.
    exclude : sequence of str, default=()
        Columns of tables to leave out.
    random_state : int, RandomState, Generator or None, default=None
    n_jobs : int, default=None
        Threads, as scikit-learn counts them.

    Attributes
    ----------
    offset_ : float
        Rows with a lower score are unusual; ``decision_function = score_samples - offset_``.
    decision_scores_ : (N,) array
        Scores of the fitted rows, high for unusual ones, as PyOD has them: ``-score_samples``. Of a
        stream: those of the last batch.
    labels_ : (N,) array
        1 for unusual rows of the fit, else 0, as PyOD has them.
    threshold_ : float
        ``-offset_``; rows with a higher decision score are unusual.
    n_components_ : int
        Components of each mixture.
    scales_ : list of str
        What the scales are.
    schema_ : TableSchema
        Kinds, levels and scales of the columns, of tables only.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Notes
    -----
    Numbers are divided by their standard deviation. Columns that have one value are left out. Gaps
    are allowed: a row with gaps has the score that is expected of it given its other cells.

    Examples
    --------
    >>> import numpy as np
    >>> from pickmix import MixtureDetector
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(-4, 1, (300, 2)), rng.normal(4, 1, (300, 2)), [[-4, 4]]])
    >>> detector = MixtureDetector(contamination=0.01, random_state=0).fit(X)
    >>> int(detector.score_samples(X).argmin()), detector.predict([[4.0, 4.0], [4.0, -4.0]])
    (600, array([ 1, -1]))
    """

    contamination: float = 0.05
    _: KW_ONLY
    n_components: int | str = "auto"
    novelty: bool = False
    schema: Mapping[str, str] | None = None
    exclude: Sequence[str] = ()
    random_state: RandomSeed = None
    n_jobs: int | None = None

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "offset_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def __getstate__(self) -> Any:
        # It is made again when it is needed.
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_cached"}

    @property
    def _takes_sources(self) -> bool:
        return not hasattr(self, "schema_")

    def _check_parameters(self) -> None:
        check_number("contamination", self.contamination, 0.0, strict=True)
        if self.contamination > 0.5:
            raise ValueError(f"contamination must be at most 0.5, got {self.contamination!r}.")
        if self.n_components != "auto":
            check_integer("n_components", self.n_components, 1)
        check_flag("novelty", self.novelty)
        check_n_jobs(self.n_jobs)

    # Fits.

    def fit(self, X: Any, y: object = None) -> Self:
        """Fit the detector.

        Parameters
        ----------
        X : array-like of shape (N, D), table, or rows that are not in memory
            Numbers with NaN for gaps; or a data frame, dict of arrays or path to a text or Parquet
            file with columns of any kind, as for `TableMixture`; or a source of rows of numbers, as
            for `GaussianMixture`, which is read chunk by chunk: at most 64,000 rows are learnt
            from, and all are scored.
        y : ignored

        Returns
        -------
        self
        """
        self._check_parameters()
        random = check_randomness(self.random_state)
        rows, family, floors, limits = self._learn_columns(X, random)
        seeds = random.randint(2**31 - 1, size=_N_MIXTURES).tolist()
        parts = PartMixtures.fit(
            rows, family, floors, limits, self.n_components, seeds, self.n_jobs
        )
        self.n_components_, self.scales_ = parts.n_components, parts.scales
        self._recent = rows[random.permutation(rows.shape[0])[:_MOST_RECENT]]
        reference = np.arange(rows.shape[0])
        if rows.shape[0] > _MOST_REFERENCE:
            reference = random.permutation(rows.shape[0])[:_MOST_REFERENCE]
        if rows.shape[0] < _MOST_SAMPLED:
            scores = self._calibrate(parts, rows, reference)
        else:
            # There may be more rows than these.
            self._calibrate(parts, rows[reference], np.arange(reference.shape[0]))
            scores = self.score_samples(X)
            if not self.novelty:
                self.offset_ = float(np.percentile(scores, 100.0 * self.contamination))
        self._set_labels(scores)
        return self

    def partial_fit(self, X: Any, y: object = None) -> Self:
        """Learn from one batch of a stream; some recent rows are kept for the threshold.

        The first batch is fitted as by `fit`, so it should have some hundred rows.

        Parameters
        ----------
        X : array-like of shape (B, D) or table
            As in `fit`.
        y : ignored

        Returns
        -------
        self
        """
        if not hasattr(self, "_parts"):
            return self.fit(X)
        self._check_parameters()
        rows = self._read(X)
        if is_dask(X) or (self._takes_sources and is_source(X)):
            raise TypeError("partial_fit takes one batch at a time: an array, a frame or a table.")
        # The older half of what was kept goes first, a random part of it.
        n_kept = max(_MOST_RECENT - rows.shape[0], _MOST_RECENT // 2)
        random = check_randomness(self.random_state)
        kept = np.sort(random.permutation(self._recent.shape[0])[:n_kept])
        newest = rows[-(_MOST_RECENT - min(n_kept, kept.shape[0])) :]
        self._recent = np.concatenate([self._recent[kept], newest])
        parts = self._part_mixtures.learn(rows)
        self._calibrate(parts, self._recent, np.arange(self._recent.shape[0]))
        self._set_labels(self._scores(rows))
        return self

    def _learn_columns(
        self, X: Any, random: np.random.RandomState
    ) -> tuple[np.ndarray, Description, Any, np.ndarray]:
        """Learn what the columns of X are.

        Returns its rows, or some of very many, the family, floors of variances, and limits.
        """
        for name in ("schema_", "feature_names_in_"):
            self.__dict__.pop(name, None)
        if self._is_table(X):
            table = read_typed(X)
            self.schema_ = infer_schema(table, self.schema, self.exclude)
            self.feature_names_in_ = np.array(list(self.schema_.columns), dtype=object)
            self.n_features_in_ = len(self.schema_)
            rows, _ = encode(self.schema_, table)
            shell = TableMixture()
            shell.schema_ = self.schema_
            limits = np.nanmax(rows, axis=0)
            return _some_of(rows, random), shell._description(), shell._floors(0), limits
        if is_dask(X):
            raise TypeError("X must be rows in memory or in files, got a Dask collection.")
        if is_source(X):
            rows = self._sample_source(X, random)
        else:
            rows = _some_of(read_numbers(self, X, reset=True).astype(np.float64), random)
        if rows.shape[0] < 2:
            raise ValueError(f"X must have at least 2 rows, got n_samples = {rows.shape[0]}.")
        with warnings.catch_warnings():
            # Columns without a value have no mean.
            warnings.simplefilter("ignore", RuntimeWarning)
            self._mean, self._scale = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0)
        self._scale[~(self._scale > 1e-12 * np.abs(self._mean))] = 0.0
        if not self._scale.any():
            raise ValueError("X must have a column with more than one value, got none.")
        rows = self._encode(rows)
        return rows, "full", 1e-6, np.nanmax(rows, axis=0)

    def _is_table(self, X: Any) -> bool:
        """Whether X may have columns of other kinds than numbers."""
        if isinstance(X, TypedTable) or (isinstance(X, Mapping) and not hasattr(X, "tocsr")):
            return True
        if isinstance(X, str | os.PathLike):
            return not str(X).endswith((".npy", ".npz"))
        if not (is_frame(X) or is_arrow(X, "Table")):
            return False
        if self.schema is not None or len(self.exclude):
            return True
        with contextlib.suppress(TypeError):
            frame: Any = narwhals.from_native(X)
            return not all(dtype.is_numeric() for dtype in frame.collect_schema().dtypes())
        return False

    def _sample_source(self, X: Any, random: np.random.RandomState) -> np.ndarray:
        """Some rows of a source, chosen at random, in one pass."""
        source = open_for(X)
        try:
            learn_names(self, source.n_columns, source.names)
            numbers = np.sort(
                random.choice(source.n_rows, min(source.n_rows, _MOST_SAMPLED), False)
            )
            parts = []
            with contextlib.closing(read_chunks(source, allow_nan=True)) as chunks:
                for first, rows in chunks:
                    ends = np.searchsorted(numbers, [first, first + rows.shape[0]])
                    parts.append(rows[numbers[ends[0] : ends[1]] - first].astype(np.float64))
        finally:
            if source is not X:
                source.close()
        return np.concatenate(parts)

    def _encode(self, rows: np.ndarray) -> np.ndarray:
        """Rows (N, D) of numbers in units of the standard deviation, without constant columns."""
        varies = self._scale > 0.0
        return np.asarray((rows[:, varies] - self._mean[varies]) / self._scale[varies])

    def _read(self, X: Any) -> np.ndarray:
        """Rows (N, d) of the model, of an array or table in memory."""
        check_is_fitted(self)
        if hasattr(self, "schema_"):
            return TableColumns(self.schema_).read(X)[0]
        return self._encode(read_numbers(self, X).astype(np.float64))

    # Scores.

    @property
    def _part_mixtures(self) -> PartMixtures:
        if self._cached is None:
            self._cached = PartMixtures(**self._parts)
        return self._cached

    def _calibrate(
        self, parts: PartMixtures, rows: np.ndarray, reference: np.ndarray
    ) -> np.ndarray:
        """Take mixtures and learn the distributions of their scores; return scores of the rows.

        Those of the rows `reference` at all scales count, and then their smallest.
        """
        self._cached = parts
        self._parts = {name: value for name, value in vars(parts).items() if name != "scaled"}
        kinds = [parts.LEFT_OUT, parts.ALL] if self.novelty else [parts.LEFT_OUT]
        left_out, *others = parts.log_densities(rows, *kinds)
        # What is known to be normal says how scales compare, and new rows how far they go.
        scored = others[0] if self.novelty else left_out
        self._tails = vars(Tails.of(scored[:, reference]))
        surprise = Tails(**self._tails).surprise(left_out).max(axis=0)
        share = min(0.1, _LAST_ROWS / reference.shape[0])
        self._last_tail = vars(Tails.of(-surprise[None, reference], share))
        calibrated = self._calibrated(left_out)
        self.offset_ = float(np.percentile(calibrated, 100.0 * self.contamination))
        return self._calibrated(scored) if self.novelty else calibrated

    def _calibrated(self, densities: np.ndarray) -> np.ndarray:
        """Final scores (N,) of log-densities (S, N)."""
        surprise = Tails(**self._tails).surprise(densities).max(axis=0)
        return np.asarray(-Tails(**self._last_tail).surprise(-surprise[None])[0])

    def _log_densities(self, rows: np.ndarray) -> np.ndarray:
        parts = self._part_mixtures
        return parts.log_densities(rows, parts.ALL if self.novelty else parts.LEFT_OUT)[0]

    def _scores(self, rows: np.ndarray) -> np.ndarray:
        return self._calibrated(self._log_densities(rows))

    def _set_labels(self, scores: np.ndarray) -> None:
        self.decision_scores_, self.threshold_ = -scores, -self.offset_
        self.labels_ = (scores < self.offset_).astype(np.int64)

    @by_chunks
    def score_samples(self, X: Any) -> np.ndarray:
        """How usual each row is, (N,): the logarithm of a probability, lower for unusual rows.

        ``exp`` of it is about the share of the fitted rows that are at least as unusual. Rows of
        the fit are scored as if they had not been in it, unless `novelty`.

        Parameters
        ----------
        X : array-like of shape (N, D), table, or rows that are not in memory
            As in `fit`.
        """
        return self._scores(self._read(X))

    def decision_function(self, X: Any) -> np.ndarray:
        """``score_samples(X) - offset_``, (N,): negative for unusual rows.

        That is scikit-learn's sign; PyOD's is the opposite. See `decision_scores_`.
        """
        return np.asarray(self.score_samples(X) - self.offset_)

    def predict(self, X: Any) -> np.ndarray:
        """-1 for unusual rows and 1 for others, (N,)."""
        return np.where(self.decision_function(X) < 0.0, -1, 1)

    def explain(self, X: Any, top: int | None = None) -> Explanation:
        """Which cells make rows unusual, at the scale at which each of them is most unusual.

        Parameters
        ----------
        X : array-like of shape (N, D), data frame or table
            As in `fit`, in memory.
        top : int, default=None
            Rank this many columns of each row; None means all.

        Returns
        -------
        explanation : Explanation
            As of mixtures, with `scales`: the scale of each row. Densities are those of that scale,
            by one of the mixtures that were fitted without the row.

        Examples
        --------
        >>> import numpy as np
        >>> from pickmix import MixtureDetector
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=500)
        >>> X = np.column_stack([x, x + 0.1 * rng.normal(size=500), rng.normal(size=500)])
        >>> detector = MixtureDetector(random_state=0).fit(X)
        >>> explanation = detector.explain([[0.0, 0.0, 6.0]], top=1)
        >>> explanation.ranked, bool(abs(explanation.expected[0, 2]) < 0.5)
        (array([[2]]), True)
        """
        if top is not None:
            check_integer("top", top, 1)
        check_is_fitted(self)
        terms = TableColumns(self.schema_) if hasattr(self, "schema_") else None
        if terms is None:
            rows, units = self._read(X), np.zeros((1, 1))
        else:
            rows, units, in_terms = terms.explaining(X)
        units = np.broadcast_to(units, rows.shape)
        scales = Tails(**self._tails).surprise(self._log_densities(rows)).argmax(axis=0)
        mixtures = self._part_mixtures.scaled
        parts = self._part_mixtures.outside(rows).argmax(axis=0)
        weights = None if terms is None else terms.level_weights
        pieces = []
        cases = parts * len(self.scales_) + scales
        for case in np.unique(cases):
            some = np.flatnonzero(cases == case)
            model = mixtures[parts[some[0]]].at(int(scales[some[0]]))
            query = QueryRows(model, rows[some], None, weights)
            names = [""] * rows.shape[1] if terms is None else terms.all_labels
            pieces.append((some, explain_rows(query, names, None, units[some])))
        explanation = _joined(pieces)
        explanation = replace(explanation, scales=tuple(self.scales_[scale] for scale in scales))
        if terms is None:
            return self._in_numbers(explanation, X, top)
        in_units: Explanation = in_terms(explanation, top)
        return in_units

    def _in_numbers(self, explanation: Explanation, X: Any, top: int | None) -> Explanation:
        """An explanation of encoded numbers in the units and with the columns of X."""
        values = read_numbers(self, X).astype(np.float64)
        varies = np.flatnonzero(self._scale > 0.0)
        scale, mean = self._scale[varies], self._mean[varies]

        def spread_out(part: np.ndarray, empty: float = np.nan) -> np.ndarray:
            whole = np.full(values.shape, empty, dtype=part.dtype)
            whole[:, varies] = part
            return whole

        names = getattr(self, "feature_names_in_", range(self.n_features_in_))
        surprise = spread_out(explanation.surprise)
        return Explanation(
            values,
            explanation.log_density - np.log(scale).sum(),
            spread_out(explanation.log_conditional - np.log(scale)),
            spread_out(explanation.expected * scale + mean),
            spread_out(explanation.spread * scale),
            rank_columns(surprise, top),
            ("number",) * values.shape[1],
            tuple(map(str, names)),
            surprise,
            spread_out(explanation.groups, -1),
            explanation.scales,
        )


def _joined(pieces: list[tuple[np.ndarray, Explanation]]) -> Explanation:
    """Explanations of some of the rows each as one of all."""
    order = np.argsort(np.concatenate([rows for rows, _ in pieces]))
    parts = [vars(piece) for _, piece in pieces]
    arrays = [name for name, value in parts[0].items() if isinstance(value, np.ndarray)]
    joined: dict[str, Any] = {n: np.concatenate([p[n] for p in parts])[order] for n in arrays}
    return replace(pieces[0][1], **joined)


def _some_of(rows: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    if rows.shape[0] <= _MOST_SAMPLED:
        return rows
    return rows[random.permutation(rows.shape[0])[:_MOST_SAMPLED]]
