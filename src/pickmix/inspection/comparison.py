"""How well drawn rows can be told from real ones, and whether they are copies."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import ks_2samp
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold

from pickmix.checks import check_integer
from pickmix.inputs.columns import TypedTable
from pickmix.inputs.encoding import encode
from pickmix.inputs.errors import aligned, listed
from pickmix.inputs.frames import read_typed
from pickmix.inputs.inference import infer_schema
from pickmix.inputs.schema import LEVEL_KINDS, TableSchema

# Levels beyond these share a code: trees take no more.
_MOST_LEVELS = 250
_FOLDS, _BINS = 3, 10
_MOST_PAIRED = 40  # Columns whose pairs are compared.
_FEWEST_ROWS = 30
_MOST_NEAR = 1000  # Rows whose nearest real row is looked for.
_NEAR = 0.02  # Share of real rows that count as near to another.
_SHOWN = 5


@dataclass(frozen=True)
class Comparison:
    """What `compare` found. Printing it shows a summary.

    Attributes
    ----------
    c2st : float
        How well a classifier tells drawn rows from real ones (classifier two-sample test):
        1 - (2 AUC - 1), 1 if it cannot, 0 if it always can. A copy of the real rows has 1.
    c2st_held_out : float
        The same against held-out rows, where copies do not help; NaN without such rows.
    columns : dict of str to float
        Distances of single columns, 0 to 1, the worst first: of Kolmogorov and Smirnov for numbers,
        the share of rows in wrong levels for others. The share of gaps counts too.
    pairs : dict of (str, str) to float
        Distances of pairs of columns, the worst first: shares of rows in wrong cells of a table
        with both columns, numbers in ten bins.
    near_copies : float
        Share of drawn rows that are as near to a real row as the nearest 2 % of held-out rows are,
        or of the real rows to each other without them. About 0.02 is as it should be.
    copies : float
        Share of drawn rows that are equal to a real row.
    """

    c2st: float
    c2st_held_out: float
    columns: dict[str, float]
    pairs: dict[tuple[str, str], float]
    near_copies: float
    copies: float

    def __str__(self) -> str:
        lines = [("C2ST, 1 if drawn rows cannot be told from real ones", f"{self.c2st:.3f}")]
        if not np.isnan(self.c2st_held_out):
            lines.append(("C2ST against held-out rows", f"{self.c2st_held_out:.3f}"))
        worst, pairs = list(self.columns.items()), list(self.pairs.items())
        lines += [(f"distance of {name}", f"{v:.3f}") for name, v in worst[:_SHOWN]]
        lines += [(f"distance of {a} with {b}", f"{v:.3f}") for (a, b), v in pairs[:_SHOWN]]
        lines.append(("near copies of real rows (2 % by chance)", f"{self.near_copies:.1%}"))
        lines.append(("exact copies", f"{self.copies:.1%}"))
        return "\n".join(aligned(lines, 1))


def compare(real: Any, drawn: Any, held_out: Any = None, *, random_state: int = 0) -> Comparison:
    """Compare drawn rows with the real ones that a model was fitted to.

    Parameters
    ----------
    real : DataFrame of pandas or polars, Table of pyarrow, dict of arrays, or path
        The table that the model was fitted to.
    drawn : table
        Rows of the model, with the columns of `real`. Best as many as there; of the larger one a
        random part is compared.
    held_out : table, default=None
        Real rows that the model has not seen. A model that copies rows is given away by them.
    random_state : int, default=0
        Of the parts that are compared, and of the classifier.

    Returns
    -------
    comparison : Comparison
        With `c2st`, `c2st_held_out`, `columns`, `pairs`, `near_copies` and `copies`.

    References
    ----------
    D. Lopez-Paz, M. Oquab: Revisiting classifier two-sample tests, ICLR 2017. The classifier is
    scikit-learn's HistGradientBoostingClassifier, in three folds.

    Examples
    --------
    >>> import numpy as np
    >>> import pickmix
    >>> rng = np.random.default_rng(0)
    >>> real = {"x": rng.normal(size=400), "y": rng.choice(["a", "b"], 400)}
    >>> same = {"x": rng.normal(size=400), "y": rng.choice(["a", "b"], 400)}
    >>> other = {"x": rng.normal(size=400) + 5.0, "y": rng.choice(["a", "b"], 400)}
    >>> pickmix.compare(real, same).c2st > 0.8, pickmix.compare(real, other).c2st < 0.1
    (True, True)
    >>> next(iter(pickmix.compare(real, other).columns))
    'x'
    """
    check_integer("random_state", random_state, 0)
    table = read_typed(real)
    text = [name for name, c in table.columns.items() if c.storage == "text"]
    # Text of any kind is compared as levels, also identifiers.
    schema = infer_schema(table, dict.fromkeys(text, "category"), (), _MOST_LEVELS)
    rng = np.random.default_rng(random_state)
    first, second = _rows(schema, table, "real"), _rows(schema, drawn, "drawn")
    others = None if held_out is None else _rows(schema, held_out, "held_out")
    is_level = np.array([column.kind in LEVEL_KINDS for column in schema.modelled])
    names = [column.name for column in schema.modelled]
    columns = {
        name: _column_distance(first[:, d], second[:, d], bool(is_level[d]))
        for d, name in enumerate(names)
    }
    reference = first if others is None else others
    distances = _nearest(first, reference, is_level, rng, others is None)
    near = _nearest(first, second, is_level, rng, False)
    return Comparison(
        _c2st(first, second, is_level, rng),
        float("nan") if others is None else _c2st(others, second, is_level, rng),
        dict(sorted(columns.items(), key=lambda item: -item[1])),
        _pairs(first, second, is_level, names),
        float((near < max(np.quantile(distances, _NEAR), 1e-12)).mean()),
        float((near == 0.0).mean()),
    )


def _rows(schema: TableSchema, table: Any, parameter: str) -> np.ndarray:
    """Rows (N, D) of numbers and codes; levels that the real rows lack have a code of their own."""
    typed = table if isinstance(table, TypedTable) else read_typed(table)
    absent = [column.name for column in schema.modelled if column.name not in typed.columns]
    if absent:
        raise ValueError(f"{parameter} must have the columns of real, but lacks {listed(absent)}.")
    if typed.n_rows < _FEWEST_ROWS:
        raise ValueError(
            f"{parameter} must have at least {_FEWEST_ROWS} rows to compare, got {typed.n_rows}."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        rows, _ = encode(schema, typed)
    for d, column in enumerate(schema.modelled):
        if column.kind in LEVEL_KINDS:
            unseen = np.isnan(rows[:, d]) & ~typed.columns[column.name].missing
            rows[unseen, d] = max(column.codes) + 1.0
    return rows


def _c2st(
    real: np.ndarray, drawn: np.ndarray, is_level: np.ndarray, rng: np.random.Generator
) -> float:
    n = min(real.shape[0], drawn.shape[0])
    parts = [rows[rng.permutation(rows.shape[0])[:n]] for rows in (real, drawn)]
    rows, labels = np.concatenate(parts), np.repeat([0, 1], n)
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=0)
    told = []
    for fitted, judged in folds.split(rows, labels):
        classifier = HistGradientBoostingClassifier(
            learning_rate=0.3,
            max_leaf_nodes=None,
            max_depth=6,
            categorical_features=is_level,
            early_stopping=False,
            random_state=0,
        )
        classifier.fit(rows[fitted], labels[fitted])
        area = roc_auc_score(labels[judged], classifier.predict_proba(rows[judged])[:, 1])
        told.append(2.0 * max(float(area), 0.5) - 1.0)
    return float(1.0 - np.mean(told))


def _column_distance(real: np.ndarray, drawn: np.ndarray, is_level: bool) -> float:
    gaps = [np.isnan(values) for values in (real, drawn)]
    missing = abs(float(gaps[0].mean() - gaps[1].mean()))
    seen = [values[~gap] for values, gap in zip((real, drawn), gaps, strict=True)]
    if not all(values.size for values in seen):
        return missing
    if is_level:
        return max(missing, _wrong_shares(*seen))
    return max(missing, float(ks_2samp(*seen).statistic))


def _wrong_shares(real: np.ndarray, drawn: np.ndarray) -> float:
    """Half the sum of differences of shares (total variation) of equal values."""
    which = np.unique(np.concatenate([real, drawn]), return_inverse=True)[1].reshape(-1)
    shares = [
        np.bincount(part, minlength=int(which.max()) + 1) / part.shape[0]
        for part in (which[: real.shape[0]], which[real.shape[0] :])
    ]
    return float(0.5 * np.abs(shares[0] - shares[1]).sum())


def _pairs(
    real: np.ndarray, drawn: np.ndarray, is_level: np.ndarray, names: list[str]
) -> dict[tuple[str, str], float]:
    codes = []
    for d in range(min(len(names), _MOST_PAIRED)):
        columns = [rows[:, d] for rows in (real, drawn)]
        if not is_level[d]:
            seen = columns[0][~np.isnan(columns[0])]
            shares = np.arange(1, _BINS) / _BINS
            edges = np.unique(np.quantile(seen, shares)) if seen.size else np.zeros(0)
            columns = [np.where(np.isnan(c), np.nan, np.searchsorted(edges, c)) for c in columns]
        codes.append([np.where(np.isnan(column), -1.0, column) for column in columns])
    found = {
        (names[i], names[j]): _wrong_shares(
            *(a * (_MOST_LEVELS + 2.0) + b for a, b in zip(codes[i], codes[j], strict=True))
        )
        for i, j in itertools.combinations(range(len(codes)), 2)
    }
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _nearest(
    real: np.ndarray,
    rows: np.ndarray,
    is_level: np.ndarray,
    rng: np.random.Generator,
    leave_out: bool,
) -> np.ndarray:
    """Distances (n,) of some rows to the nearest real one, other than themselves if `leave_out`.

    Numbers count in standard deviations of the real rows, a different level or a gap counts 2.
    """
    spread = np.nanstd(real, axis=0)
    scale = np.where(is_level | ~(spread > 0.0), 1.0, spread)
    some = np.sort(rng.permutation(rows.shape[0])[:_MOST_NEAR])
    scaled = real / scale
    distances = np.empty(some.shape[0])
    for place, row in enumerate(some.tolist()):
        values = rows[row] / scale
        away = np.abs(scaled - values)
        gaps = np.isnan(scaled) != np.isnan(values)
        away = np.where(np.isnan(away), np.where(gaps, 2.0, 0.0), away)
        away[:, is_level] = np.where(away[:, is_level] > 0.0, 2.0, 0.0)
        sums = away.sum(axis=1)
        if leave_out:
            sums[row] = np.inf
        distances[place] = sums.min()
    return distances
