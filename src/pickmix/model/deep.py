"""The fitted mixture by gradients: a network, its tables and weights, and array queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.checks import refuse_overflow
from pickmix.gradient.network import Network
from pickmix.gradient.queries import Fitted, posterior, top
from pickmix.model.frame import Frame


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

    def in_frame(self, rows: np.ndarray) -> tuple[Fitted, np.ndarray]:
        """The network for rows (N, D), and the rows in its coordinates."""
        network = self.network
        if self.for_missing is not None and np.isnan(rows).any():
            network = self.for_missing(network)
        fitted = Fitted(network, self.tables, self.log_weights, self.dtype)
        return fitted, self.frame.to_model(rows)

    def score_samples(self, rows: np.ndarray) -> np.ndarray:
        """Log-densities (N,)."""
        fitted, rows = self.in_frame(rows)
        scores = fitted.score_samples(rows)
        refuse_overflow(scores)
        return np.asarray(scores + self.frame.log_volume_of(rows))

    def _query(self, function: Callable[[Any], Any], rows: np.ndarray) -> list[np.ndarray]:
        """Apply a function to log p(x, component) (R, K) of blocks of rows; join its results.

        The last result are log-densities.
        """
        fitted, rows = self.in_frame(rows)
        results = [
            np.concatenate(arrays) for arrays in zip(*fitted.map(function, rows), strict=True)
        ]
        refuse_overflow(results[-1])
        return results

    def predict_proba(self, rows: np.ndarray) -> np.ndarray:
        """Posterior probabilities of components (N, K)."""
        return self._query(posterior, rows)[0].astype(np.float64)

    def top_components(self, rows: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
        """The m most probable components (N, m) and their posterior probabilities (N, m)."""
        components, probabilities, _ = self._query(lambda values: top(values, m), rows)
        return components, probabilities.astype(np.float64)

    def sample(self, n_rows: int, random: Any) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows (N, D), grouped by component, and their components (N,), by a RandomState."""
        uniforms = random.random_sample((n_rows, self.network.n_slots))
        seed = int(random.randint(2**31 - 1))
        fitted = Fitted(self.network, self.tables, self.log_weights, self.dtype)
        rows, choices = fitted.draw_rows(uniforms, seed)
        order = np.argsort(choices[:, 0], kind="stable")
        return self.frame.from_model(rows[order]), choices[order, 0]
