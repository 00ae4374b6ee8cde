"""The fitted mixture by gradients: a network, its tables and weights, and queries of arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pickmix.checks import refuse_overflow
from pickmix.model.frame import Frame

if TYPE_CHECKING:
    from pickmix.gradient.network import Network


@dataclass(frozen=True, eq=False)
class DeepModel:
    """A mixture of deep components. Arrays must not be written."""

    network: Network
    tables: tuple[np.ndarray, ...]
    weights: np.ndarray  # (K,); they sum to one.
    frame: Frame  # The coordinates of the network.
    dtype: str
    #: The network for rows that have missing cells; None if they must be complete.
    for_missing: Callable[[Network], Network] | None = None

    @property
    def n_components(self) -> int:
        return int(self.weights.shape[0])

    @property
    def n_columns(self) -> int:
        return int(self.frame.center.shape[0])

    @property
    def n_parameters(self) -> int:
        return int(self.network.n_parameters)

    def parts(self) -> tuple[list[Any], None]:
        """No groups of columns in closed form; see `MixtureModel.parts`."""
        return [], None

    @property
    def log_weights(self) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.weights))

    def in_frame(self, rows: np.ndarray) -> tuple[Network, np.ndarray]:
        """The network for rows (N, D), and the rows in its coordinates."""
        network = self.network
        if self.for_missing is not None and np.isnan(rows).any():
            network = self.for_missing(network)
        return network, self.frame.to_model(rows)

    def _map(self, rows: np.ndarray, function: Callable[[Any], Any]) -> list[Any]:
        """Apply a function to log p(x, component) (R, K) of blocks of rows."""
        from pickmix.gradient.queries import map_blocks

        network, rows = self.in_frame(rows)
        return map_blocks(function, network, self.tables, self.log_weights, rows, self.dtype)

    def score_samples(self, rows: np.ndarray) -> np.ndarray:
        """Log-densities (N,)."""
        from pickmix.gradient.queries import score_samples

        network, rows = self.in_frame(rows)
        scores = score_samples(network, self.tables, self.log_weights, rows, self.dtype)
        refuse_overflow(scores)
        return np.asarray(scores + self.frame.log_volume_of(rows))

    def predict_proba(self, rows: np.ndarray) -> np.ndarray:
        """Posterior probabilities of components (N, K)."""
        from pickmix.gradient.queries import posterior

        parts = self._map(rows, posterior)
        refuse_overflow(np.concatenate([log_density for _, log_density in parts]))
        return np.concatenate([probabilities for probabilities, _ in parts]).astype(np.float64)

    def top_components(self, rows: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
        """The m most probable components (N, m) and their posterior probabilities (N, m)."""
        from pickmix.gradient.queries import top

        parts = self._map(rows, lambda log_joint: top(log_joint, m))
        refuse_overflow(np.concatenate([log_density for *_, log_density in parts]))
        components = np.concatenate([components for components, _, _ in parts])
        probabilities = np.concatenate([probabilities for _, probabilities, _ in parts])
        return components, probabilities.astype(np.float64)

    def sample(self, n_rows: int, random: Any) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows (N, D), grouped by component, and their components (N,), by a RandomState."""
        from pickmix.gradient.queries import draw_rows

        uniforms = random.random_sample((n_rows, self.network.n_slots))
        seed = int(random.randint(2**31 - 1))
        rows, choices = draw_rows(
            self.network, self.tables, self.log_weights, uniforms, seed, self.dtype
        )
        order = np.argsort(choices[:, 0], kind="stable")
        return self.frame.from_model(rows[order]), choices[order, 0]
