"""Why a row is unusual: each cell given the other cells of its row.

Two cells that are extreme together explain each other, and a wrong cell makes those that belong to
it look wrong too. So the most surprising cell, or pair of cells, is taken out, and the others are
compared with what is left of the row, as long as something notable comes out.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pickmix.checks import refuse_overflow
from pickmix.families.base import Part
from pickmix.inputs.errors import aligned
from pickmix.model.columns import LEVEL_KINDS
from pickmix.model.conditional import conditional_moments, level_probabilities
from pickmix.model.rows import QueryRows, log_sum_exp

_BLOCK_NUMBERS = 150_000  # In the largest arrays: 1 MB stays in the cache.
_AGAIN = 100_000  # Doubtful cells that are evaluated again at a time.
# log p_k(x) - log p_k(x_j | x_-j) has lost digits if both are below this. Where such a component
# matters without x_j, or might by what rounding did, the cell is evaluated again.
_FAR = -1e5
_SLACK = 40.0
_ROUNDING = 1e-13
_MOST_SHOWN = 3  # Rows in the printed form.
_NOTABLE = 4.5  # Nats; as of three standard deviations.
_TOGETHER = 2.0  # What a pair must be more surprising than its cells are one by one.
_MOST_GROUPS = 3  # Cells or pairs that are taken out of a row.
_MOST_EXTREME = 12  # Cells of a row that may be part of a pair.


@dataclass(frozen=True)
class Explanation:
    """How surprising each cell of some rows is, given the other cells of its row.

    Of a `TableMixture`, columns are those of the model in the order of the fitted table, and values
    are in its units and levels.

    Attributes
    ----------
    values : (N, D) array
        The cells: numbers, of a table any objects, None if missing.
    log_density : (N,) array
        log p(x) of the observed cells.
    log_conditional : (N, D) array
        ``log p(x_j | x_-j) = log p(x) - log p(x_-j)``. A low value is a surprise. NaN for
        missing cells.
    expected : (N, D) array
        The mean of x_j given the others, as far as they count for `surprise`. For a category: the
        most probable level.
    spread : (N, D) array
        The standard deviation of x_j given the others, of dates in days. For a category: the
        probability of the expected level.
    ranked : (N, M) int array
        Numbers of columns, the largest `surprise` first; -1 after the last observed cell.
    kinds : tuple of str
        "number", "count" or "level", for each column; of a table as in its schema.
    names : tuple of str
        Names of the columns, or their numbers as text.
    surprise : (N, D) array
        What cells are ranked by: how much less probable a cell is than the expected value,
        log p(expected | others) - log p(cell | others), where the expected value is the most
        probable level, or the peak of a normal distribution with the spread. That has no units, so
        it compares columns of all kinds; z standard deviations are about z^2 / 2. Once a cell of 3
        standard deviations or more is found, those after it are compared with the row without it.
    groups : (N, D) int array
        Cells of a row with the same number, not -1, are unusual together: each explains the other,
        and none of the rest explains them. Their `surprise` is that of both, and their `expected`
        and `spread` are given the cells outside of their group.
    scales : tuple of str
        Of a `MixtureDetector`: the scale at which each row is most unusual. Else empty.
    """

    values: np.ndarray
    log_density: np.ndarray
    log_conditional: np.ndarray
    expected: np.ndarray
    spread: np.ndarray
    ranked: np.ndarray
    kinds: tuple[str, ...]
    names: tuple[str, ...]
    surprise: np.ndarray
    groups: np.ndarray
    scales: tuple[str, ...] = ()

    def __len__(self) -> int:
        return int(self.values.shape[0])

    def table(self, i: int, top: int | None = None) -> str:
        """A text table of row i: its cells, the most surprising first."""
        lines = [("column", "value", "expected", "spread", "surprise")]
        for column in [int(column) for column in self.ranked[i] if column >= 0][:top]:
            spread = f"{self.spread[i, column]:.3g}"
            if self.kinds[column] in LEVEL_KINDS:
                spread = f"(p = {spread})"
            else:
                spread = f"+- {spread}{' days' if self.kinds[column] == 'date' else ''}"
            cells = self.values[i, column], self.expected[i, column]
            texts = [f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in cells]
            shown = f"{self.surprise[i, column]:.2f}{self.beside(i, column)}"
            lines.append((self.names[column], texts[0], texts[1], spread, shown))
        scale = f" ({self.scales[i]})" if self.scales else ""
        head = f"row {i}: log p(row) = {self.log_density[i]:.3f}{scale}"
        return "\n".join([head, *aligned(lines, 1)])

    def beside(self, i: int, column: int) -> str:
        """Text that names the columns that are unusual together with one of row i, if any."""
        group = self.groups[i, column]
        others = np.flatnonzero((self.groups[i] == group) & (group >= 0))
        names = [self.names[other] for other in others.tolist() if other != column]
        return f" with {', '.join(names)}" if names else ""

    def records(self) -> list[dict[str, Any]]:
        """One dict for each row and ranked column, most surprising first."""
        rows, ranks = np.nonzero(self.ranked >= 0)
        return [
            {
                "row": row,
                "rank": rank,
                "column": self.names[column],
                "value": self.values[row, column],
                "expected": self.expected[row, column],
                "spread": float(self.spread[row, column]),
                "log_conditional": float(self.log_conditional[row, column]),
                "surprise": float(self.surprise[row, column]),
                "together": self.beside(row, column).removeprefix(" with "),
                "log_density": float(self.log_density[row]),
            }
            for row, rank in zip(rows.tolist(), ranks.tolist(), strict=True)
            for column in [int(self.ranked[row, rank])]
        ]

    def to_frame(self) -> Any:
        """A pandas frame with a line per row and ranked column."""
        # Here, as pandas is no requirement.
        pandas: Any = importlib.import_module("pandas")
        return pandas.DataFrame(self.records())

    def __str__(self) -> str:
        shown = [self.table(i) for i in range(min(len(self), _MOST_SHOWN))]
        if len(self) > _MOST_SHOWN:
            shown.append(f"... and {len(self) - _MOST_SHOWN} more rows")
        return "\n\n".join(shown)


def rank_columns(surprise: np.ndarray, top: int | None) -> np.ndarray:
    """Numbers of columns (N, top) by falling surprise (N, D); -1 after the last that is no NaN."""
    seen = ~np.isnan(surprise)
    # Ties, as of levels that are the expected ones, are in the order of the columns: their last
    # digits depend on the processor.
    ranked = np.argsort(np.where(seen, -np.round(surprise, 12), np.inf), axis=1, kind="stable")
    ranked[np.arange(surprise.shape[1]) >= np.count_nonzero(seen, axis=1)[:, None]] = -1
    return ranked[:, :top]


class Answers(NamedTuple):
    """Answers for all rows (N,) and cells (N, D); `doubtful` ones lost digits."""

    log_density: np.ndarray
    log_conditional: np.ndarray
    expected: np.ndarray
    spread: np.ndarray
    doubtful: np.ndarray
    surprise: np.ndarray


def explain_rows(
    query: QueryRows,
    names: Sequence[str],
    top: int | None,
    level_units: np.ndarray | float = 0.0,
) -> Explanation:
    """Explain all rows in the model's coordinates, a block at a time.

    `level_units` (N, D) is what log-probabilities of levels gain where codes stand for several.
    """
    answers = answer_rows(query)
    groups = np.full(query.natural.shape, -1)
    surprise = _surprise(query, answers, level_units)
    if query.noise is None:
        answers, surprise = _take_groups(query, answers, surprise, groups, level_units)
    return Explanation(
        query.natural.copy(),
        answers.log_density,
        answers.log_conditional,
        answers.expected,
        answers.spread,
        rank_columns(surprise, top),
        tuple(query.kinds()[: query.natural.shape[1]]),
        tuple(names),
        surprise,
        groups,
    )


def answer_rows(query: QueryRows, all_cells: bool = True) -> Answers:
    """Each cell given the others of its row.

    p(x_-j) = sum_k w_k p_k(x) / p_k(x_j | x_-j), and all p_k(x_j | x_-j) of a row and a component
    come from one precision matrix. Cells where that loses digits are evaluated by themselves, or
    have no `expected` value unless `all_cells`. Of mapped columns, answers are in natural units.
    """
    answers = _answer_model_rows(query, all_cells)
    return answers if query.maps is None else _natural_answers(query, answers)


def _answer_model_rows(query: QueryRows, all_cells: bool) -> Answers:
    shape = query.rows.shape
    parts = query.parts if query.noise is None else [part.with_noise() for part in query.parts]
    log_density, doubtful = np.zeros(shape[0]), np.zeros(shape, dtype=np.bool_)
    log_conditional, expected, spread = (np.full(shape, np.nan) for _ in range(3))
    surprise = np.full(shape, np.nan)
    answers = Answers(log_density, log_conditional, expected, spread, doubtful, surprise)
    for numbers, log_joint in query.log_joints():
        log_density[numbers] = log_sum_exp(log_joint)
        for block in _alike(query, numbers):
            _explain_block(query, parts, numbers[block], log_joint[:, block], answers)
    refuse_overflow(log_density)
    log_density[~query.seen.any(axis=1)] = 0.0
    if all_cells:
        _evaluate_again(query, answers)
    else:
        expected[doubtful] = np.nan
    log_conditional[~query.seen] = np.nan
    is_level = np.isin(query.kinds().astype(str), LEVEL_KINDS)
    with np.errstate(divide="ignore"):
        peak = np.where(is_level, 0.0, -0.5 * np.log(2.0 * np.pi))
        peak = peak + np.where(is_level, 1.0, -1.0) * np.log(spread)
    surprise[:] = peak - log_conditional
    return answers


def _natural_answers(query: QueryRows, answers: Answers) -> Answers:
    """Answers for natural cells: an atom or none, and then the number, by the chain rule.

    Of a number, what is expected is the value of the expected score.
    """
    maps = query.maps
    assert maps is not None
    D = maps.n_natural
    answers = Answers(answers.log_density, *(part[:, :D].copy() for part in answers[1:]))
    answers.log_density[:] += np.sum(query.log_slopes, axis=-1)
    answers.log_conditional[:] += query.log_slopes
    for d in range(D):
        each = maps[d]
        seen = np.flatnonzero(~np.isnan(query.natural[:, d]))
        if each is None or not seen.size:
            continue
        score, deviation = answers.expected[seen, d], answers.spread[seen, d]
        if each.levels.size:
            known = ~np.isnan(score)
            answers.expected[seen[known], d] = each.levels[score[known].astype(np.int64)]
            continue
        ends = each.backward(score - deviation), each.backward(score + deviation)
        answers.expected[seen, d] = each.backward(score)
        answers.spread[seen, d] = 0.5 * (ends[1] - ends[0])
        if d in maps.indicators:
            _answer_atoms(query, answers, d, seen)
    return answers


def _answer_atoms(query: QueryRows, answers: Answers, d: int, seen: np.ndarray) -> None:
    """Add to the answers for numbers which atom a cell is, or none, given the other cells."""
    each, place = query.map_of(d), query.atom_part(d)
    assert query.maps is not None
    assert place is not None
    codes = query.rows[seen, query.maps.indicators[d]].astype(np.int64)
    rows = query.natural[seen]
    rows[:, d] = np.nan
    others = query.with_rows(rows, None)
    shares = level_probabilities(others, *place)
    means, deviations = conditional_moments(others, np.array([d]))
    of_code = np.log(shares[np.arange(seen.size), codes])
    best = shares.argmax(axis=1)
    gained = np.log(shares.max(axis=1)) - of_code
    is_atom, likely = codes > 0, best > 0
    for name, rest in (("log_conditional", of_code), ("surprise", gained)):
        part = getattr(answers, name)
        part[seen, d] = np.where(is_atom, 0.0, part[seen, d]) + rest
    expected = np.where(likely, np.append(0.0, each.atoms)[best], answers.expected[seen, d])
    # A number is expected, but there is an atom.
    expected = np.where(is_atom & ~likely, means[:, 0], expected)
    answers.expected[seen, d] = expected
    answers.spread[seen, d] = np.where(is_atom | likely, deviations[:, 0], answers.spread[seen, d])


# What explains some of the rows (n,), given as (n, D) with other gaps, and their surprises.
Given = Callable[[np.ndarray, np.ndarray], tuple[Answers, np.ndarray]]


def _surprise(query: QueryRows, answers: Answers, level_units: np.ndarray | float) -> np.ndarray:
    """How much less probable cells (N, D) are than what is expected there."""
    kinds = query.kinds()[: answers.surprise.shape[1]].astype(str)
    return np.asarray(answers.surprise - np.where(np.isin(kinds, LEVEL_KINDS), level_units, 0.0))


def _take_groups(
    query: QueryRows,
    answers: Answers,
    surprise: np.ndarray,
    groups: np.ndarray,
    level_units: np.ndarray | float,
) -> tuple[Answers, np.ndarray]:
    """Take notable cells and pairs out of rows, one after another, and number them in `groups`.

    Returns expectations and surprises of cells given those that are left when they are reached, and
    of pairs given the cells outside of them.
    """
    units = np.broadcast_to(level_units, query.natural.shape)

    def given(numbers: np.ndarray, rows: np.ndarray) -> tuple[Answers, np.ndarray]:
        some = query.with_rows(rows, None)
        found = answer_rows(some)
        return found, _surprise(some, found, units[numbers])

    extreme = _find_extreme(query, given)
    answers = Answers(*(part.copy() for part in answers))
    surprise, current, rows = surprise.copy(), surprise.copy(), query.natural.copy()
    active = np.arange(rows.shape[0])
    for group in range(_MOST_GROUPS):
        extreme &= ~np.isnan(rows)
        largest = _largest(current)
        may_have_more = (largest > _NOTABLE) | (np.count_nonzero(extreme, axis=1) > 1)
        active = active[may_have_more[active]]
        if not active.size:
            break
        number, taken = largest[active], current[active] == largest[active, None]
        # Of a pair one cell is given the row without the other, and the other is given all.
        of, first = np.nonzero(extreme[active])
        if of.size:
            without = rows[active[of]]
            without[np.arange(of.size), first] = np.nan
            both = given(active[of], without)[1] + current[active[of], first][:, None]
            alone = np.maximum(current[active], 0.0)
            gain = both - alone[of] - alone[of, first][:, None]
            both[~(gain > _TOGETHER) | ~extreme[active[of]]] = -np.inf
            for pair in np.argsort(both.max(axis=1), kind="stable").tolist():
                row, second = of[pair], both[pair].argmax()
                if both[pair, second] > max(number[row], _NOTABLE):
                    number[row], taken[row] = both[pair, second], False
                    taken[row, [first[pair], second]] = True
        kept = number > _NOTABLE
        active, taken, number = active[kept], taken[kept], number[kept]
        if not active.size:
            break
        _give_rest(given, rows, active, taken, answers)
        of, columns = np.nonzero(taken)
        groups[active[of], columns] = group
        surprise[active[of], columns] = number[of]
        rows[active[of], columns] = np.nan
        found, current[active] = given(active, rows[active])
        of, columns = np.nonzero(~np.isnan(rows[active]))
        surprise[active[of], columns] = current[active[of], columns]
        for name in ("expected", "spread"):
            getattr(answers, name)[active[of], columns] = getattr(found, name)[of, columns]
    return answers, surprise


def _largest(surprise: np.ndarray) -> np.ndarray:
    """The largest surprise (N,) of each row, -inf if there is none."""
    return np.asarray(np.where(np.isnan(surprise), -np.inf, surprise).max(axis=1))


def _find_extreme(query: QueryRows, given: Given) -> np.ndarray:
    """Whether cells (N, D) are notable by themselves; only the most extreme of a row."""
    N, D = query.natural.shape
    extreme = np.full((N, D), -np.inf)
    for column in range(D):
        alone = np.full((N, D), np.nan)
        alone[:, column] = query.natural[:, column]
        seen = np.flatnonzero(~np.isnan(query.natural[:, column]))
        if seen.size:
            extreme[seen, column] = given(seen, alone[seen])[1][:, column]
    most = min(_MOST_EXTREME, D)
    least = np.partition(extreme, D - most, axis=1)[:, D - most]
    return np.asarray((extreme > _NOTABLE) & (extreme >= least[:, None]))


def _give_rest(
    given: Given, rows: np.ndarray, active: np.ndarray, taken: np.ndarray, answers: Answers
) -> None:
    """Write the answers for cells of pairs given the cells outside of them."""
    pairs = np.flatnonzero(taken.sum(axis=1) == 2)
    if not pairs.size:
        return
    columns = np.nonzero(taken[pairs])[1].reshape(-1, 2)
    for side in range(2):
        without = rows[active[pairs]]
        without[np.arange(pairs.size), columns[:, 1 - side]] = np.nan
        found = given(active[pairs], without)[0]
        cells = np.arange(pairs.size), columns[:, side]
        for name in ("expected", "spread"):
            getattr(answers, name)[active[pairs], columns[:, side]] = getattr(found, name)[cells]


def _evaluate_again(query: QueryRows, answers: Answers) -> None:
    """Evaluate the doubtful cells again, by densities of their rows without them."""
    all_rows, all_columns = np.nonzero(answers.doubtful)
    for first in range(0, all_rows.shape[0], _AGAIN):
        cells = all_rows[first : first + _AGAIN], all_columns[first : first + _AGAIN]
        numbers = np.arange(cells[0].shape[0])
        rows = query.rows[cells[0]]
        rows[numbers, cells[1]] = np.nan
        noise = None if query.noise is None else query.noise[cells[0]]
        others = QueryRows(query.model, rows, noise, query.level_weights)
        answers.log_conditional[cells] = answers.log_density[cells[0]] - others.log_densities()
        if noise is not None:
            # Noise may correlate cells that are independent without it.
            continue
        targets, which = np.unique(cells[1], return_inverse=True)
        means, deviations = conditional_moments(others, targets)
        answers.expected[cells] = means[numbers, which]
        answers.spread[cells] = deviations[numbers, which]


def _alike(query: QueryRows, numbers: np.ndarray) -> Iterator[slice]:
    """Yield ranges of rows of one pattern of seen cells; single rows if they have noise."""
    patterns = query.patterns[numbers]
    size = max(1, _BLOCK_NUMBERS // (query.model.n_components * query.rows.shape[1]))
    if query.noise is not None:
        size = 1
    starts = np.flatnonzero(np.diff(patterns, prepend=-1))
    for start, end in zip(starts, np.append(starts[1:], numbers.shape[0]), strict=True):
        for first in range(start, end, size):
            yield slice(first, min(first + size, end))


def _explain_block(
    query: QueryRows,
    parts: list[Part],
    numbers: np.ndarray,
    log_joint: np.ndarray,
    answers: Answers,
) -> None:
    """Write the answers of rows of one pattern."""
    log_density, log_conditional, expected, spread, doubtful, _ = answers
    rows = query.seen_rows(numbers)
    for part in parts:
        seen = rows.of(part.columns)
        columns = part.columns[seen.seen[0]]
        if not columns.size:
            continue
        left_out = part.leave_out(seen)
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
        if part.tables:
            for m, place in enumerate(np.flatnonzero(seen.seen[0]).tolist()):
                if left_out.levels is None:
                    probabilities = shares[:, :, m].T @ part.tables[place]
                else:
                    levels = left_out.levels(m)
                    probabilities = np.einsum("kr,krl->rl", shares[:, :, m], levels)
                probabilities *= query.weights_of(columns[m])
                expected[numbers, columns[m]] = probabilities.argmax(axis=1)
                spread[numbers, columns[m]] = probabilities.max(axis=1)
            continue
        means, variances = left_out.means, left_out.variances
        mean = np.einsum("krs,krs->rs", shares, np.broadcast_to(means, shares.shape))
        within = np.square(means - mean)
        within += variances
        expected[cells] = mean + query.centre[columns]
        spread[cells] = np.sqrt(np.einsum("krs,krs->rs", shares, within))


#: The name of explanations of tables.
TableExplanation = Explanation
