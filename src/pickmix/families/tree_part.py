"""What columns of levels are given others of their tree: messages between neighbours, exactly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pickmix.families.base import LeftOut, Pairs, RandomSource, SeenRows
from pickmix.families.categorical import LEAST_PROBABILITY, LevelPart, entropy
from pickmix.families.column_trees import restricted_parents

_MOST_NUMBERS = 4_000_000  # Numbers in the largest array of a message.


class TreePart(LevelPart):
    """Levels that depend on those of their parents, p(level | parent's) = conditionals[q].

    Distances, positions and coordinates for pictures are those of the columns one by one.
    """

    levels_depend = True

    def __init__(
        self,
        columns: np.ndarray,
        probabilities: np.ndarray,
        offsets: np.ndarray,
        parents: Sequence[int],
        order: Sequence[int],
        conditionals: Sequence[np.ndarray | None],
    ) -> None:
        super().__init__(columns, probabilities, offsets)
        self._parents, self._order = parents, order
        self._children: list[list[int]] = [[] for _ in parents]
        for q, parent in enumerate(parents):
            if parent >= 0:
                self._children[parent].append(q)
        #: p(level | level of the parent), (K, n of the parent, n); roots have one such level.
        self._given = [
            self.tables[q][:, None, :] if table is None else np.maximum(table, LEAST_PROBABILITY)
            for q, table in enumerate(conditionals)
        ]

    # Messages. Pairs have evidence: a level that is seen, or none.

    def _messages(self, pairs: Pairs) -> tuple[list[np.ndarray | None], np.ndarray]:
        """What the cells below say of the parent of each column, and log p of all seen cells.

        Messages are (P, n of the parent), up to a factor that log p has; None says nothing.
        """
        components = pairs.components
        messages: list[np.ndarray | None] = [None] * len(self._parents)
        log_scale = np.zeros(components.shape[0])
        seen_columns = np.flatnonzero(pairs.rows.seen.any(axis=0)).tolist()
        for q in reversed(self._order):
            below = self._below(pairs, q, messages, with_own=False)
            if below is None and q not in seen_columns:
                continue
            message = self._up(pairs, q, below)
            largest = message.max(axis=1)
            messages[q] = message / largest[:, None]
            log_scale += np.log(largest)
        return messages, log_scale

    def _own(self, pairs: Pairs, q: int) -> tuple[np.ndarray, np.ndarray]:
        """Pairs (s,) that have seen the level of a column, and the levels (s,)."""
        seen = np.flatnonzero(pairs.rows.seen[pairs.which, q])
        return seen, pairs.rows.values[pairs.which[seen], q].astype(np.int64)

    def _below(
        self,
        pairs: Pairs,
        q: int,
        messages: Sequence[np.ndarray | None],
        with_own: bool,
        without: int = -1,
    ) -> np.ndarray | None:
        """Product (P, n) of messages to a column, without one child, with the level it has."""
        product: np.ndarray | None = None
        for child in self._children[q]:
            message = messages[child]
            if message is not None and child != without:
                product = message if product is None else product * message
        if with_own:
            seen, levels = self._own(pairs, q)
            if seen.size:
                shape = pairs.components.shape[0], self.tables[q].shape[1]
                product = np.ones(shape) if product is None else product.copy()
                kept = product[seen, levels]
                product[seen] = 0.0
                product[seen, levels] = np.maximum(kept, LEAST_PROBABILITY)
        return product

    def _up(self, pairs: Pairs, q: int, below: np.ndarray | None) -> np.ndarray:
        """The message (P, n of the parent) of a column with this product of messages to it."""
        table, components = self._given[q], pairs.components
        message = np.ones((components.shape[0], table.shape[1]))
        seen, levels = self._own(pairs, q)
        message[seen] = table[components[seen], :, levels]
        if below is None:
            return message
        message[seen] *= np.maximum(below[seen, levels], LEAST_PROBABILITY)[:, None]
        unseen = np.ones(components.shape[0], dtype=np.bool_)
        unseen[seen] = False
        for some in _chunks(np.flatnonzero(unseen), table.shape[1] * table.shape[2]):
            message[some] = np.einsum("pab,pb->pa", table[components[some]], below[some])
        return message

    def _down(
        self,
        pairs: Pairs,
        q: int,
        messages: Sequence[np.ndarray | None],
        known: dict[int, np.ndarray],
    ) -> np.ndarray:
        """p(level of a column | cells that are not below it), (P, n); `known` has former ones."""
        path = [q]
        while path[-1] not in known and self._parents[path[-1]] >= 0:
            if pairs.rows.seen[:, self._parents[path[-1]]].all():
                break
            path.append(self._parents[path[-1]])
        for column in reversed(path):
            if column not in known:
                known[column] = self._one_down(pairs, column, messages, known)
        return known[q]

    def _one_down(
        self,
        pairs: Pairs,
        q: int,
        messages: Sequence[np.ndarray | None],
        known: dict[int, np.ndarray],
    ) -> np.ndarray:
        components, parent = pairs.components, self._parents[q]
        if parent < 0:
            return np.asarray(self.tables[q][components])
        table = self._given[q]
        found = np.empty((components.shape[0], table.shape[2]))
        seen, levels = self._own(pairs, parent)
        found[seen] = table[components[seen], levels]
        unseen = np.ones(components.shape[0], dtype=np.bool_)
        unseen[seen] = False
        rest = np.flatnonzero(unseen)
        if rest.size:
            above = known[parent]
            others = self._below(pairs, parent, messages, with_own=False, without=q)
            above = above if others is None else above * others
            above = above[rest] / above[rest].sum(axis=1, keepdims=True)
            for some, of in _both_chunks(rest, above, table.shape[1] * table.shape[2]):
                found[some] = np.einsum("pab,pa->pb", table[components[some]], of)
        return found

    # Answers.

    def log_densities(self, rows: np.ndarray) -> np.ndarray:
        """log p_k of the seen cells of rows (N, Q), (K, N)."""
        n_components = self.tables[0].shape[0]
        seen = ~np.isnan(rows)
        found = np.empty((n_components, rows.shape[0]))
        widest = max(table.shape[1] for table in self.tables)
        for some in _chunks(np.arange(rows.shape[0]), n_components * widest):
            part = SeenRows(rows[some], seen[some], np.zeros(some.size))
            found[:, some] = self._messages(_all_pairs(part, n_components))[1].reshape(
                n_components, -1
            )
        return found

    def log_densities_apart(self, rows: np.ndarray) -> np.ndarray:
        """As the sweep has it: levels with a missing parent count by themselves."""
        found = np.zeros((self.tables[0].shape[0], rows.shape[0]))
        missing = np.isnan(rows)
        levels = np.where(missing, 0.0, rows).astype(np.int64)
        for q, parent in enumerate(self._parents):
            logs = np.log(self.tables[q])[:, levels[:, q]]
            if parent >= 0:
                both = ~(missing[:, q] | missing[:, parent])
                logs[:, both] = np.log(self._given[q])[:, levels[both, parent], levels[both, q]]
            found += np.where(missing[:, q], 0.0, logs)
        return found

    def level_shares(self, pairs: Pairs, target: int) -> np.ndarray:
        messages = self._messages(pairs)[0]
        return self._shares(pairs, target, messages, {})

    def joint_shares(self, pairs: Pairs, first: int, second: int) -> np.ndarray:
        shares, rows = self.level_shares(pairs, first), pairs.rows
        values, seen = rows.values.copy(), rows.seen.copy()
        seen[:, first] = True
        given = []
        for level in range(shares.shape[1]):
            values[:, first] = level
            with_level = pairs._replace(rows=rows._replace(values=values, seen=seen))
            given.append(self.level_shares(with_level, second))
        return np.asarray(shares[:, :, None] * np.stack(given, axis=1))

    def _shares(
        self,
        pairs: Pairs,
        q: int,
        messages: Sequence[np.ndarray | None],
        known: dict[int, np.ndarray],
        with_own: bool = True,
    ) -> np.ndarray:
        below = self._below(pairs, q, messages, with_own)
        shares = self._down(pairs, q, messages, known)
        shares = shares if below is None else shares * below
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def modes(self, pairs: Pairs, targets: np.ndarray) -> np.ndarray:
        messages = self._messages(pairs)[0]
        known: dict[int, np.ndarray] = {}
        best = [self._shares(pairs, int(q), messages, known).argmax(axis=1) for q in targets]
        return np.stack(best, axis=1).astype(np.float64)

    def draw(self, pairs: Pairs, targets: np.ndarray, random: RandomSource) -> np.ndarray:
        messages = self._messages(pairs)[0]
        components = pairs.components
        n = components.shape[0]
        drawn = np.zeros((n, len(self._parents)), dtype=np.int64)
        wanted = set(targets.tolist())
        for q in reversed(self._order):
            if q in wanted and self._parents[q] >= 0:
                wanted.add(self._parents[q])
        for q in self._order:
            if q not in wanted:
                continue
            parent = self._parents[q]
            above = drawn[:, parent] if parent >= 0 else np.zeros(n, dtype=np.int64)
            shares = self._given[q][components, above]
            below = self._below(pairs, q, messages, with_own=True)
            sums = np.cumsum(shares if below is None else shares * below, axis=1)
            marks = random.uniform(size=n) * sums[:, -1]
            drawn[:, q] = (marks[:, None] >= sums[:, :-1]).sum(axis=1)
        return drawn[:, targets].astype(np.float64)

    def leave_out(self, rows: SeenRows) -> LeftOut:
        seen = np.flatnonzero(rows.seen[0])
        n_components, n_rows = self.tables[0].shape[0], rows.values.shape[0]
        pairs = _all_pairs(rows, n_components)
        messages = self._messages(pairs)[0]
        known: dict[int, np.ndarray] = {}

        def levels(m: int) -> np.ndarray:
            shares = self._shares(pairs, int(seen[m]), messages, known, with_own=False)
            return shares.reshape(n_components, n_rows, -1)

        log_densities = np.empty((n_components, n_rows, seen.shape[0]))
        for m, column in enumerate(seen.tolist()):
            of_row = rows.values[:, column].astype(np.int64)
            shares = levels(m)[:, np.arange(n_rows), of_row]
            log_densities[:, :, m] = np.log(np.maximum(shares, LEAST_PROBABILITY))
        nothing = np.full((n_components, 1, seen.shape[0]), np.nan)
        return LeftOut(log_densities, nothing, nothing, levels)

    def marginal(self, targets: np.ndarray) -> dict[str, np.ndarray]:
        d = len(self._parents)
        nothing = SeenRows(np.zeros((1, d)), np.zeros((1, d), dtype=np.bool_), np.zeros(1))
        return self.conditional(nothing, targets)

    def conditional(self, rows: SeenRows, targets: np.ndarray) -> dict[str, np.ndarray]:
        parents = restricted_parents(self._parents, targets.tolist())
        n_components = self.tables[0].shape[0]
        pairs = _all_pairs(rows, n_components)
        messages = self._messages(pairs)[0]
        known: dict[int, np.ndarray] = {}
        levels = [self._shares(pairs, int(q), messages, known) for q in targets]
        conditionals = []
        for q, parent in zip(targets.tolist(), parents, strict=True):
            if parent < 0:
                continue
            above = int(targets[parent])
            n_above = self.tables[above].shape[1]
            values, seen = np.repeat(rows.values, n_above, axis=0), rows.seen.copy()
            values[:, above] = np.arange(n_above)
            seen[:, above] = True
            each = SeenRows(values, np.repeat(seen, n_above, axis=0), np.zeros(n_above))
            shares = self.level_shares(_all_pairs(each, n_components), q)
            conditionals.append(shares.reshape(n_components, -1))
        found = {"probabilities": levels, "conditionals": conditionals}
        return {name: np.concatenate(each, axis=1) for name, each in found.items() if each}

    def log_volumes(self, rows: np.ndarray, spread: np.ndarray) -> np.ndarray:
        volumes = super().log_volumes(rows, spread)
        for q, parent in enumerate(self._parents):
            if parent >= 0:
                table = self._given[q]
                within = entropy(table.reshape(-1, table.shape[2])).reshape(table.shape[:2])
                volumes += (self.tables[parent] * within).sum(axis=1) - entropy(self.tables[q])
        return volumes

    def bhattacharyya(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        below = [np.ones((first.shape[0], table.shape[1])) for table in self.tables]
        total = np.zeros(first.shape[0])
        for q in reversed(self._order):
            roots = np.sqrt(self._given[q][first] * self._given[q][second])
            overlap = np.einsum("pab,pb->pa", roots, below[q])
            if self._parents[q] >= 0:
                below[self._parents[q]] *= overlap
            else:
                total -= np.log(overlap[:, 0])
        return total


def _all_pairs(rows: SeenRows, n_components: int) -> Pairs:
    """All pairs of rows and components, component after component."""
    n_rows = rows.values.shape[0]
    which = np.tile(np.arange(n_rows), n_components)
    return Pairs(rows, which, np.repeat(np.arange(n_components), n_rows))


def _chunks(numbers: np.ndarray, width: int) -> list[np.ndarray]:
    """Pieces of numbers (n,) of which arrays with `width` numbers each stay small."""
    size = max(1, _MOST_NUMBERS // max(1, width))
    return [numbers[first : first + size] for first in range(0, numbers.shape[0], size)]


def _both_chunks(
    numbers: np.ndarray, values: np.ndarray, width: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    places = _chunks(np.arange(numbers.shape[0]), width)
    return [(numbers[some], values[some]) for some in places]
