"""Why a row is unusual: each cell given the other cells of its row."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pickmix.estimators.conditional_mixtures import ConditionalMixtures
from pickmix.estimators.queries import refuse_overflow
from pickmix.estimators.questions_rows import AskedRows, log_sum_exp
from pickmix.families.conditioning import LevelPart, Part
from pickmix.families.conditioning_dense import DensePart, as_dense
from pickmix.threads import Threads, resolve_n_jobs

# Numbers in the largest arrays, one per component, row and column: 1 MB stays in the cache.
_BLOCK_NUMBERS = 150_000
# Cells that are asked about again, at a time.
_AGAIN = 100_000
# log p_k(x) - log p_k(x_j | x_-j) has lost digits if both are below this. Where such a component
# matters without x_j, or might by what rounding did, the cell is asked about again.
_FAR = -1e5
_SLACK = 40.0
_ROUNDING = 1e-13
# Numbers of covariances to factorise that take NumPy about four seconds.
_MUCH_WORK = 2e8
# Rows in the printed form.
_MOST_SHOWN = 3


@dataclass(frozen=True)
class Explanation:
    """How surprising each cell of some rows is, given the other cells of its row.

    Attributes
    ----------
    values : (N, D) array
        The rows.
    log_density : (N,) array
        log p(x) of the observed cells.
    log_conditional : (N, D) array
        ``log p(x_j | x_-j) = log p(x) - log p(x_-j)``. A low value is a surprise. NaN for
        missing cells.
    expected : (N, D) array
        The mean of x_j given the others. For a category: the most probable level.
    spread : (N, D) array
        The standard deviation of x_j given the others. For a category: the probability of the
        expected level.
    ranked : (N, M) int array
        Numbers of columns, the most surprising first; -1 after the last observed cell.
    kinds : tuple of str
        "number", "count" or "level", for each column.
    names : tuple of str
        Names of the columns, or their numbers as text.
    """

    values: np.ndarray
    log_density: np.ndarray
    log_conditional: np.ndarray
    expected: np.ndarray
    spread: np.ndarray
    ranked: np.ndarray
    kinds: tuple[str, ...]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return int(self.values.shape[0])

    @property
    def surprise(self) -> np.ndarray:
        """``-log p(x_j | x_-j)``, (N, D)."""
        return -self.log_conditional

    def table(self, i: int, top: int | None = None) -> str:
        """A text table of row i: its cells, the most surprising first."""
        lines = [("column", "value", "expected", "spread", "log p(value | others)")]
        for column in self._shown(i)[:top]:
            is_level = self.kinds[column] == "level"
            expected = f"{self.expected[i, column]:.6g}"
            spread = f"{self.spread[i, column]:.3g}"
            lines.append(
                (
                    self.names[column],
                    f"{self.values[i, column]:.6g}",
                    expected,
                    f"(p = {spread})" if is_level else f"+- {spread}",
                    f"{self.log_conditional[i, column]:.3f}",
                )
            )
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        shown = [
            "  ".join(
                [line[0].ljust(widths[0])]
                + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
            ).rstrip()
            for line in lines
        ]
        return "\n".join([f"row {i}: log p(row) = {self.log_density[i]:.3f}", *shown])

    def to_frame(self) -> Any:
        """A pandas frame with a line per row and ranked column."""
        # Here, as pandas is no requirement.
        pandas = importlib.import_module("pandas")
        rows, ranks = np.nonzero(self.ranked >= 0)
        columns = self.ranked[rows, ranks]
        return pandas.DataFrame(
            {
                "row": rows,
                "rank": ranks,
                "column": [self.names[column] for column in columns],
                "value": self.values[rows, columns],
                "expected": self.expected[rows, columns],
                "spread": self.spread[rows, columns],
                "log_conditional": self.log_conditional[rows, columns],
                "log_density": self.log_density[rows],
            }
        )

    def __str__(self) -> str:
        shown = [self.table(i) for i in range(min(len(self), _MOST_SHOWN))]
        if len(self) > _MOST_SHOWN:
            shown.append(f"... and {len(self) - _MOST_SHOWN} more rows")
        return "\n\n".join(shown)

    def _shown(self, i: int) -> list[int]:
        return [int(column) for column in self.ranked[i] if column >= 0]


class _Answers(NamedTuple):
    """Answers for each cell, (N, D) each; `doubtful` ones lost digits."""

    log_conditional: np.ndarray
    expected: np.ndarray
    spread: np.ndarray
    doubtful: np.ndarray


def explain_rows(asked: AskedRows, names: list[str], top: int | None) -> Explanation:
    """Explain all rows, a block at a time.

    p(x_-j) = sum_k w_k p_k(x) / p_k(x_j | x_-j), and all p_k(x_j | x_-j) of a row and a component
    come from one precision matrix.
    """
    shape = asked.rows.shape
    parts = asked.parts if asked.noise is None else [as_dense(part) for part in asked.parts]
    threads = Threads(resolve_n_jobs(asked.mixture.n_jobs))
    compiled = [part for part in parts if isinstance(part, DensePart) and _is_much(asked, part)]
    plain = [part for part in parts if part not in compiled]
    log_density = np.zeros(shape[0])
    log_conditional, expected, spread = (np.full(shape, np.nan) for _ in range(3))
    answers = _Answers(log_conditional, expected, spread, np.zeros(shape, dtype=bool))
    for numbers, log_joint in asked.log_joints():
        log_density[numbers] = log_sum_exp(log_joint)
        for part in compiled:
            _explain_compiled(asked, part, numbers, log_joint, log_density, answers, threads)
        for some in _alike(asked, numbers) if plain else ():
            _explain_block(asked, plain, numbers[some], log_joint[:, some], log_density, answers)
    threads.close()
    refuse_overflow(log_density)
    log_density[~asked.seen.any(axis=1)] = 0.0
    _ask_again(asked, log_density, answers)
    ranked = np.argsort(np.where(asked.seen, log_conditional, np.inf), axis=1, kind="stable")
    ranked[np.arange(shape[1]) >= asked.seen.sum(axis=1)[:, None]] = -1
    return Explanation(
        asked.rows.copy(),
        log_density,
        log_conditional,
        expected,
        spread,
        ranked[:, :top],
        tuple(asked.kinds()),
        tuple(names),
    )


def _ask_again(asked: AskedRows, log_density: np.ndarray, answers: _Answers) -> None:
    """Answer for the doubtful cells by densities of their rows without them."""
    all_rows, all_columns = np.nonzero(answers.doubtful)
    for first in range(0, all_rows.shape[0], _AGAIN):
        cells = tuple(some[first : first + _AGAIN] for some in (all_rows, all_columns))
        rows = asked.rows[cells[0]]
        rows[np.arange(rows.shape[0]), cells[1]] = np.nan
        noise = None if asked.noise is None else asked.noise[cells[0]]
        again = AskedRows(asked.mixture, rows, noise, asked.level_weights)
        answers.log_conditional[cells] = log_density[cells[0]] - again.log_densities()
        if noise is not None:
            # Noise may tie cells together, which the values behind it do not know.
            continue
        targets, which = np.unique(cells[1], return_inverse=True)
        means, deviations = ConditionalMixtures(asked.mixture, again, targets).describe()
        answers.expected[cells] = means[np.arange(rows.shape[0]), which]
        answers.spread[cells] = deviations[np.arange(rows.shape[0]), which]


def _is_much(asked: AskedRows, part: DensePart) -> bool:
    """Whether the work is worth a kernel, which takes some seconds to compile the first time."""
    n_rows, d = asked.rows.shape[0], part.columns.shape[0]
    n_factors = n_rows if asked.noise is not None else int(asked.patterns.max()) + 1
    # Factors for a pattern take NumPy some six times as long as what rows of it take then.
    return bool((n_factors + n_rows / 6.0) * asked.n_components * d * d > _MUCH_WORK)


def _explain_compiled(
    asked: AskedRows,
    part: DensePart,
    numbers: np.ndarray,
    log_joint: np.ndarray,
    log_density: np.ndarray,
    answers: _Answers,
    threads: Threads,
) -> None:
    """Write the answers of any rows, of one part."""
    rows = asked.seen_rows(numbers).of(part.columns)
    found = part.leave_out_of(rows, log_joint, _FAR, _SLACK, threads)
    which, places = np.nonzero(rows.seen)
    cells = numbers[which], part.columns[places]
    log_others, mean, spread, doubtful = found[:, which, places]
    answers.log_conditional[cells] = log_density[cells[0]] - log_others
    answers.expected[cells] = mean + asked.centre[cells[1]]
    answers.spread[cells] = spread
    answers.doubtful[cells] = doubtful > 0.0


def _alike(asked: AskedRows, numbers: np.ndarray) -> Iterator[slice]:
    """Yield ranges of rows that have seen the same cells; single rows if they have noise."""
    patterns = asked.patterns[numbers]
    size = max(1, _BLOCK_NUMBERS // (asked.n_components * asked.rows.shape[1]))
    if asked.noise is not None:
        size = 1
    starts = np.flatnonzero(np.diff(patterns, prepend=-1))
    for start, end in zip(starts, np.append(starts[1:], numbers.shape[0]), strict=True):
        for first in range(start, end, size):
            yield slice(first, min(first + size, end))


def _explain_block(
    asked: AskedRows,
    parts: list[Part],
    numbers: np.ndarray,
    log_joint: np.ndarray,
    log_density: np.ndarray,
    answers: _Answers,
) -> None:
    """Write the answers of rows that have seen the same cells."""
    log_conditional, expected, spread, doubtful = answers
    rows = asked.seen_rows(numbers)
    for part in parts:
        own = rows.of(part.columns)
        columns = part.columns[own.seen[0]]
        if not columns.size:
            continue
        left_out = part.leave_out(own)
        shares = np.subtract(log_joint[:, :, None], left_out.log_densities)
        largest = shares.max(axis=0)
        far = np.nonzero(left_out.log_densities < _FAR)
        if far[0].size:
            slack = _SLACK - _ROUNDING * left_out.log_densities[far]
            matters = shares[far] + slack > largest[far[1:]]
            doubtful[numbers[far[1][matters]], columns[far[2][matters]]] = True
        shares -= largest
        np.exp(shares, out=shares)
        totals = shares.sum(axis=0)
        shares /= totals
        cells = numbers[:, None], columns
        log_conditional[cells] = log_density[numbers, None] - largest - np.log(totals)
        if isinstance(part, LevelPart):
            for m, place in enumerate(np.flatnonzero(own.seen[0])):
                probabilities = shares[:, :, m].T @ part.tables[place]
                probabilities *= asked.level_weights.get(int(columns[m]), 1.0)
                best = probabilities.argmax(axis=1)
                expected[numbers, columns[m]] = best
                spread[numbers, columns[m]] = probabilities[np.arange(best.shape[0]), best]
            continue
        means, variances = left_out.means, left_out.variances
        mean = np.einsum("krs,krs->rs", shares, np.broadcast_to(means, shares.shape))
        within = np.square(means - mean)
        within += variances
        expected[cells] = mean + asked.centre[columns]
        spread[cells] = np.sqrt(np.einsum("krs,krs->rs", shares, within))
