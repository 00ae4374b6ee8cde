"""Random-partition Gibbs on a stream of batches: a search finds each row's component, then a
sweep."""

from __future__ import annotations

import numpy as np

from pickmix.closed_form.algorithm import PartitionSelection, step
from pickmix.closed_form.chains import Chains
from pickmix.closed_form.relocation import Relocation
from pickmix.closed_form.search import Routes, draw_routes, search
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows, Batches
from pickmix.selection.randomness import StepRandomness
from pickmix.selection.settings import RandomPartition

_PROBES = 4  # Cells searched by new rows: fewer than in a fit, which searches once.
_ROWS_PER_COMPONENT = 100  # In which a step may replace all statistics.
_POWER = 0.6
_RELOCATE_EVERY = 4  # Batches between rounds of relocation.
_RELOCATION_ROWS = 40  # Rows per component that such a batch must have.
# Times the usual margin that a move must gain. Halves are fitted to the batch that judges them,
# wholes are not; and moves by chance would never end in a stream, each one undoing what was
# learnt from many batches.
_CAUTION = 20.0


def automatic_gamma(n_rows: int, n_seen: float, n_components: int) -> float:
    """Step size (1 + u)^-0.6 of a batch, u rows seen in units that suffice for all components.

    A batch that is only a part of such a unit gets that part of it.
    """
    unit = max(n_rows, _ROWS_PER_COMPONENT * n_components)
    return n_rows / unit * float((1.0 + n_seen / unit) ** -_POWER)


class OnlineMixture:
    """A mixture that follows a stream of batches, updated in place, about `center` (D,)."""

    def __init__(
        self,
        state: MixtureState,
        settings: RandomPartition,
        center: np.ndarray,
        seed: int,
        n_seen: float,
        n_batches: int,
    ) -> None:
        self.state = state
        self.settings = settings
        self.center = center
        self.seed = seed
        self.n_seen = n_seen
        self.n_batches = n_batches
        self.evaluations = 0
        self._routes: Routes | None = None
        self._rows_to_go = 0
        self._selection: PartitionSelection | None = None

    def learn(self, source: ArrayRows, gamma: float | None, relocates: bool) -> tuple[float, int]:
        """Learn from one batch; return a bound of its log-likelihood and the updates refused.

        The bound is the mean log-density per row of the best blocks that the rows met, under the
        parameters before the update.
        """
        state = self.state
        self.n_batches += 1
        random = StepRandomness(self.seed, self.n_batches)
        if gamma is None:
            gamma = automatic_gamma(source.n_rows, self.n_seen, state.n_components)
        self.n_seen += source.n_rows
        if self._routes is None or self._rows_to_go <= 0:
            self._rows_to_go = state.n_components
            self._routes = draw_routes(state, random, n_probes=_PROBES)
        self._rows_to_go -= source.n_rows
        chain, bounds, evaluations = search(state, source, self._routes)
        weights = source.weights_of(np.arange(source.n_rows))[0]
        bound = float(weights @ bounds / weights.sum()) - state.log_total()
        batches = Batches(source.n_rows, source.n_rows, self.seed)
        chains = Chains(source, chain, batches)
        if self._selection is None:
            self._selection = PartitionSelection(state, chains, self.settings, 1)
        selection = self._selection
        selection.use(chains, self.n_seen)
        counters = selection.counters
        counters.evaluations = counters.refused = 0
        step(state, selection, self.n_batches, gamma, 1.0, random)
        self.evaluations += evaluations + counters.evaluations
        enough = source.n_rows >= _RELOCATION_ROWS * state.n_components
        if relocates and enough and self.n_batches % _RELOCATE_EVERY == 0:
            relocation = Relocation(state, chains, _CAUTION)
            relocation.round(self.n_batches, random)
            self.evaluations += relocation.evaluations
        return bound, counters.refused
