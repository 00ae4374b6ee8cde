"""Row sources: where batches of rows come from, complete or seen in part.

A source hands out float64 rows in coordinates centred on the data, so that nothing downstream
loses digits to a far-away origin, and so that float32 and float64 data meet the same kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_MOST_FEATURES = 8_000_000  # Numbers that are kept for all rows.


class ArrayRows:
    """Rows of an array in memory, with weights.

    Parameters
    ----------
    data : (N, D) array of float32 or float64
        Finite values; not copied.
    weights : (N,) array, optional
        Positive row weights. None means one each.
    center : (D,) array, optional
        Origin of the coordinates handed out; the weighted mean of the data by default.
    """

    def __init__(
        self, data: np.ndarray, weights: np.ndarray | None = None, center: np.ndarray | None = None
    ) -> None:
        self.data = data
        self.n_rows, self.n_features = data.shape
        self.weights = weights
        self.mean_weight = 1.0 if weights is None else float(weights.mean())
        self._ones = np.empty(0)
        #: The smallest and the largest values (D,) of a larger table that these rows stand for.
        self.limits: tuple[np.ndarray, np.ndarray] | None = None
        #: What log-likelihoods of the rows gain in the units of their table, (N,).
        self.log_units: np.ndarray | None = None
        self.center = self._mean() if center is None else np.asarray(center, dtype=np.float64)
        self._features: Any = None

    def features(self, make: Callable[[np.ndarray], Any], size: int) -> Any:
        """`make` of all rows, made once and kept; None if so many numbers per row are too many."""
        if self._features is None and self.n_rows * size <= _MOST_FEATURES:
            self._features = make(self.gather(np.arange(self.n_rows)))
        return self._features

    def _mean(self) -> np.ndarray:
        # A first guess keeps the sums small for data far from the origin.
        guess = self.data[0].astype(np.float64)
        return np.asarray(guess + self._average(guess, power=1))

    def _average(self, origin: np.ndarray, power: int) -> np.ndarray:
        """Weighted mean (D,) of a power of the rows' distances from an origin (D,)."""
        total = np.zeros(self.n_features)
        for start in range(0, self.n_rows, 65536):
            # In C order, so that sums do not depend on the layout of the data.
            block = self.data[start : start + 65536].astype(np.float64, order="C") - origin
            if power == 2:
                block = np.square(block)
            if self.weights is None:
                total += block.sum(axis=0)
            else:
                total += self.weights[start : start + 65536] @ block
        return total / float(self.n_rows if self.weights is None else self.weights.sum())

    def extent(self) -> np.ndarray:
        """The largest distance of a row from the centre, in each column, (D,)."""
        if self.limits is not None:
            return np.maximum(self.limits[1] - self.center, self.center - self.limits[0])
        return self._reach()

    def _reach(self) -> np.ndarray:
        largest = np.zeros(self.n_features)
        for start in range(0, self.n_rows, 65536):
            block = self.data[start : start + 65536].astype(np.float64) - self.center
            np.maximum(largest, np.abs(block).max(axis=0), out=largest)
        return largest

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """The given rows, centred, as (B, D) float64."""
        # `take` is several times as fast, but would copy other layouts as a whole.
        is_plain = self.data.flags.c_contiguous
        values = self.data.take(rows, axis=0) if is_plain else self.data[rows]
        values = values.astype(np.float64, order="C", copy=False)
        values -= self.center
        return values

    def gather_about(self, rows: np.ndarray, origin: np.ndarray) -> np.ndarray:
        """Deviations of the given rows from an origin (D,), as (B, D) float32."""
        values = self.data.take(rows, axis=0)
        if values.dtype == np.float32:
            return np.subtract(values, self.center + origin, out=values, casting="same_kind")
        values -= self.center + origin
        return values.astype(np.float32)

    def part(self, rows: np.ndarray, weights: np.ndarray) -> ArrayRows:
        """Some rows with other weights, copied."""
        nothing = np.zeros(self.n_features)
        return ArrayRows(self.gather(rows), weights.copy(), nothing)

    def filled(self) -> ArrayRows:
        """Rows without gaps or noise: these."""
        return self

    def patterns_of(self, rows: np.ndarray) -> np.ndarray | None:
        """Nothing is missing."""
        return None

    def weights_of(self, rows: np.ndarray) -> tuple[np.ndarray, float]:
        """Weights of the given rows, (B,), and what as many rows weigh on average.

        Statistics of a batch are divided by the latter: divided by the sum of the batch's own
        weights they would not average to those of all rows.
        """
        n_rows = rows.shape[0]
        if self.weights is not None:
            return self.weights[rows], n_rows * self.mean_weight
        # Other threads may do the same at the same time.
        ones = self._ones
        if ones.shape[0] < n_rows:
            ones = self._ones = np.ones(n_rows)
        return ones[:n_rows], float(n_rows)

    def spread(self) -> np.ndarray:
        """Variance of each column about the centre, (D,)."""
        return self._average(self.center, power=2)


class Batches:
    """Which rows form the batch of step t: every pass visits every row once, in a new order.

    A pass is cut into `n_batches` batches whose sizes differ by at most one row.

    Examples
    --------
    >>> batches = Batches(n_rows=10, batch_size=4, seed=0)
    >>> batches.n_batches
    3
    >>> visited = np.concatenate([batches.rows(step) for step in (1, 2, 3)])
    >>> sorted(visited.tolist()) == list(range(10))
    True
    """

    def __init__(self, n_rows: int, batch_size: int, seed: int) -> None:
        self.n_rows = n_rows
        self.n_batches = max(1, -(-n_rows // batch_size))
        self.seed = seed
        self._pass = -1
        self._order = np.arange(n_rows)

    def __getstate__(self) -> dict[str, Any]:
        # The order of a pass is drawn again when it is asked for.
        return {"n_rows": self.n_rows, "n_batches": self.n_batches, "seed": self.seed}

    def __setstate__(self, values: dict[str, Any]) -> None:
        vars(self).update(values, _pass=-1, _order=np.arange(values["n_rows"]))

    def rows(self, step: int) -> np.ndarray:
        """Row numbers of the batch of step t = 1, 2, ..."""
        if self.n_batches == 1:
            return self._order
        number, batch = divmod(step - 1, self.n_batches)
        if number != self._pass:
            # Counter-based: the order is a function of (seed, pass), whatever came before.
            generator = np.random.Generator(
                np.random.Philox(key=np.array([self.seed, number], dtype=np.uint64))
            )
            self._order = np.arange(self.n_rows)
            generator.shuffle(self._order)
            self._pass = number
        start = self.n_rows * batch // self.n_batches
        stop = self.n_rows * (batch + 1) // self.n_batches
        return self._order[start:stop]


# Rows that give others what they miss, and rows that look for them at a time.
DONORS = 4096
_BLOCK_ROWS = 4096
# Values of noise so many times as wide as their column, in variances, say nothing about it.
_WIDEST_NOISE = 4.0


class PartialRows(ArrayRows):
    """Rows of an array in memory, seen in part.

    Parameters
    ----------
    data : (N, D) array of float32 or float64
        NaN is a missing value.
    weights, center
        As in `ArrayRows`. The centre is the mean of what was seen of each column.
    noise : (N, D) or (N, D (D + 1) / 2) array, optional
        Variances of the noise, or its covariances as lower triangles, row by row.
    patterns : (N,) int32 array, optional
        Which cells are missing; see `find_patterns`.
    """

    def __init__(
        self,
        data: np.ndarray,
        weights: np.ndarray | None = None,
        center: np.ndarray | None = None,
        noise: np.ndarray | None = None,
        patterns: np.ndarray | None = None,
    ) -> None:
        # What says where rows are, and how wide: all but values that are little else than noise.
        self._telling = data if noise is None else _without_noisy(data, noise)
        super().__init__(data, weights, center)
        self.noise = noise
        self._filled: ArrayRows | None = None
        self.patterns = find_patterns(data) if patterns is None else patterns

    def _mean(self) -> np.ndarray:
        # A value that was seen first keeps the sums small for data far from the origin.
        there = ~np.isnan(self._telling)
        first = self._telling[there.argmax(axis=0), np.arange(self.n_features)].astype(np.float64)
        guess = np.where(np.isnan(first), 0.0, first)
        return np.asarray(guess + self._average(guess, power=1))

    def _average(self, origin: np.ndarray, power: int) -> np.ndarray:
        total, mass = np.zeros(self.n_features), np.zeros(self.n_features)
        for start in range(0, self.n_rows, 65536):
            block = self._telling[start : start + 65536].astype(np.float64, order="C") - origin
            there = ~np.isnan(block)
            block = np.where(there, block, 0.0) ** power
            weights = self.weights_of(np.arange(start, start + block.shape[0]))[0]
            total += weights @ block
            mass += weights @ there
        return np.asarray(total / np.where(mass > 0.0, mass, 1.0))

    def _reach(self) -> np.ndarray:
        largest = np.zeros(self.n_features)
        for start in range(0, self.n_rows, 65536):
            block = self._telling[start : start + 65536].astype(np.float64) - self.center
            np.fmax(
                largest, np.abs(block).max(axis=0, initial=0.0, where=~np.isnan(block)), largest
            )
        return largest

    def gather(self, rows: np.ndarray) -> np.ndarray:
        values = super().gather(rows)
        if self.noise is None:
            return values
        return np.concatenate([values, self.noise[rows]], axis=1)

    def part(self, rows: np.ndarray, weights: np.ndarray) -> PartialRows:
        noise = None if self.noise is None else self.noise[rows]
        nothing = np.zeros(self.n_features)
        values = super().gather(rows)
        return PartialRows(values, weights.copy(), nothing, noise, self.patterns[rows])

    def patterns_of(self, rows: np.ndarray) -> np.ndarray | None:
        return np.asarray(self.patterns[rows])

    def filled(self) -> ArrayRows:
        if self._filled is None:
            data = fill(self._telling) if np.isnan(self._telling).any() else self.data
            self._filled = ArrayRows(data, self.weights, self.center)
        return self._filled


def make_rows(
    data: np.ndarray,
    weights: np.ndarray | None = None,
    center: np.ndarray | None = None,
    noise: np.ndarray | None = None,
) -> ArrayRows:
    """Rows seen in part, or complete ones if nothing is missing and there is no noise."""
    if noise is None and not np.isnan(data).any():
        return ArrayRows(data, weights, center)
    return PartialRows(data, weights, center, noise)


def find_patterns(rows: np.ndarray) -> np.ndarray:
    """Numbers (N,) int32 of the sets of cells that are missing in rows (N, D).

    Examples
    --------
    >>> find_patterns(np.array([[1.0, np.nan], [2.0, 3.0], [np.nan, 4.0], [5.0, np.nan]]))
    array([1, 0, 2, 1], dtype=int32)
    """
    missing = np.packbits(np.isnan(rows), axis=1)
    if missing.shape[1] <= 8:
        # As one number each, which sorts much faster than rows of bytes.
        wide = np.zeros((missing.shape[0], 8), dtype=np.uint8)
        wide[:, -missing.shape[1] :] = missing
        codes = wide.view(">u8")[:, 0].astype(np.uint64)
        found = np.unique(codes, return_inverse=True)[1]
    else:
        found = np.unique(missing, axis=0, return_inverse=True)[1]
    return np.asarray(found.reshape(-1).astype(np.int32))


def fill(rows: np.ndarray) -> np.ndarray:
    """Fill the missing cells of rows (N, D) from the nearest rows that have them.

    Good enough to start from. Rows that miss less come first, and then give to those that miss
    more.

    Examples
    --------
    >>> fill(np.array([[0.0, 0.0], [9.0, 8.0], [9.1, np.nan]]))
    array([[0. , 0. ],
           [9. , 8. ],
           [9.1, 8. ]])
    """
    out = rows.copy()
    n_missing = np.isnan(rows).sum(axis=1)
    order = np.argsort(n_missing, kind="stable")
    n_missing = n_missing[order]
    begin = int(np.searchsorted(n_missing, 1))
    if begin == 0:
        # No row is complete. Those that miss least begin, with what is usual.
        begin = max(1, order.shape[0] // 100)
        first = order[:begin]
        out[first] = np.where(np.isnan(rows[first]), _medians(rows), rows[first])
    while begin < order.shape[0]:
        stop = int(np.searchsorted(n_missing, n_missing[begin], side="right"))
        donors = out[order[np.unique(np.linspace(0, begin - 1, DONORS).astype(np.int64))]]
        out[order[begin:stop]] = fill_from(rows[order[begin:stop]], donors)
        begin = stop
    return out


def _medians(rows: np.ndarray) -> np.ndarray:
    """Medians (D,) of what was seen; 0 where that is nothing."""
    return np.array([np.median(x[~np.isnan(x)]) if not np.isnan(x).all() else 0.0 for x in rows.T])


def _without_noisy(data: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Data (N, D) in which values are missing whose noise is wider than their column.

    The width is that of the half of the values with the least noise.
    """
    D = data.shape[1]
    if noise.shape[1] > D:
        noise = noise[:, np.cumsum(np.arange(1, D + 1)) - 1]
    out = data
    for column in range(D):
        values, variances = data[:, column].astype(np.float64), noise[:, column]
        seen = np.flatnonzero(~np.isnan(values))
        if not seen.size:
            continue
        best = seen[variances[seen] <= np.median(variances[seen])]
        low, high = np.quantile(values[best], [0.25, 0.75])
        width = (high - low) / 1.35 if high > low else float(np.std(values[best]))
        noisy = seen[variances[seen] > _WIDEST_NOISE * width**2]
        if noisy.size and noisy.size < seen.size:
            out = data.copy() if out is data else out
            out[noisy, column] = np.nan
    return out


def fill_from(rows: np.ndarray, donors: np.ndarray) -> np.ndarray:
    """Fill the missing cells of rows (N, D) from the nearest of complete donors (M, D).

    Distances are over the columns that were seen, in standard deviations of the donors.
    """
    origin, spread = donors.mean(axis=0), donors.std(axis=0)
    scale = np.where(spread > 0.0, spread, 1.0)
    given = ((donors - origin) / scale).astype(np.float32)
    squares = np.square(given)
    out = rows.copy()
    for start in range(0, rows.shape[0], _BLOCK_ROWS):
        some = rows[start : start + _BLOCK_ROWS]
        seen = ~np.isnan(some)
        scaled = np.where(seen, (some - origin) / scale, 0.0).astype(np.float32)
        # |x - y|^2 over what was seen of x, but for a part that all donors share.
        distances = seen.astype(np.float32) @ squares.T
        distances -= 2.0 * scaled @ given.T
        nearest = donors[distances.argmin(axis=1)]
        out[start : start + _BLOCK_ROWS] = np.where(seen, some, nearest)
    return out
