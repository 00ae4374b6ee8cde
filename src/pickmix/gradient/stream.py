"""The gradient engine on one batch of a stream: it begins where the batch before has ended."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from pickmix.gradient.adam import Adam
from pickmix.gradient.engine import GradientEngine
from pickmix.gradient.precision import precision
from pickmix.gradient.state import Root

#: Of each table that learns, and of the root at the end: first and second moments, and updates.
Moments = list[tuple[np.ndarray, ...]]


def padded_rows(n_rows: int) -> int:
    """Rows that a program for `n_rows` rows is compiled for: few programs serve all batches.

    Examples
    --------
    >>> [padded_rows(n_rows) for n_rows in (1, 16, 17, 1000)]
    [16, 16, 32, 1024]
    """
    return max(16, 1 << (n_rows - 1).bit_length())


class StreamEngine(GradientEngine):
    """An engine whose steps are numbered on from those before, and whose moments can be set.

    Rows are filled up to a power of two, and so are batches: batches of a stream that differ a
    little in size share a compiled program. Steps never visit rows that fill up.
    """

    #: Steps before this batch of the stream.
    steps_before = 0
    _n_rows = 0

    def fill_up(self, batch_size: int) -> None:
        """Fill the rows up, and the batches of steps to `batch_size`. Before anything else."""
        self._n_rows = self._data.shape[0]
        n_more = padded_rows(self._n_rows) - self._n_rows
        self._batch_size = batch_size
        with precision(self.dtype):
            self._data = jnp.pad(self._data, ((0, n_more), (0, 0)))
            chain = jnp.pad(self.state.chain, ((0, n_more), (0, 0)))
            self.state = self.state._replace(chain=chain)

    def advance(self, first: int, most: int) -> int:
        """Make steps, numbered as the stream numbers them."""
        return super().advance(first - self.steps_before, most)

    def live_components(self) -> int:
        """Children of the root that weigh at least half a row."""
        return int(np.count_nonzero(np.exp(self.log_weights()) * self._n_rows >= 0.5))

    def _evaluate_chain(self) -> None:
        super()._evaluate_chain()
        # Rows that fill up count for nobody.
        self.counters.evaluations -= self._data.shape[0] - self._n_rows

    def set_moments(self, moments: Moments) -> None:
        """Go on with Adam's moments of another engine."""
        with precision(self.dtype):
            *adams, root = (
                Adam(*(jnp.array(values, self.dtype) for values in adam)) for adam in moments
            )
        logits = self.state.root.logits
        self.state = self.state._replace(adams=tuple(adams), root=Root(logits, root))

    def moments(self) -> Moments:
        """Adam's moments of the tables that learn, and of the root, copied."""
        adams: Any = [*self.state.adams, self.state.root.adam]
        return [tuple(np.array(values) for values in adam) for adam in adams]
