"""Row sources: where batches of rows come from.

A source hands out float64 rows in coordinates centred on the data, so that nothing downstream
loses digits to a far-away origin, and so that float32 and float64 data meet the same kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np


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
        self,
        data: np.ndarray,
        weights: np.ndarray | None = None,
        center: np.ndarray | None = None,
    ) -> None:
        self.data = data
        self.n_rows, self.n_features = data.shape
        self.weights = weights
        self.mean_weight = 1.0 if weights is None else float(weights.mean())
        self._ones = np.empty(0)
        #: The smallest and the largest values (D,) of a larger table that these rows stand for.
        self.limits: tuple[np.ndarray, np.ndarray] | None = None
        self.center = self._mean() if center is None else np.asarray(center, dtype=np.float64)

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
        values = self.data[rows].astype(np.float64, order="C", copy=False)
        values -= self.center
        return values

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
