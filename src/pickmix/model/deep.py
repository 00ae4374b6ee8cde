"""The fitted mixture by gradients: a network, its tables and weights, and array queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from pickmix.checks import refuse_overflow
from pickmix.families.registry import make_family
from pickmix.gradient.network import Network
from pickmix.gradient.queries import Fitted, posterior, top
from pickmix.model.deep_rows import DrawnRows, GaussianRows
from pickmix.model.frame import Frame
from pickmix.model.mixture import MixtureModel


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
    #: Columns (d,) of the network that the mixture is about; None if it is about all.
    columns: np.ndarray | None = None

    @property
    def n_components(self) -> int:
        return int(self.weights.shape[0])

    @property
    def n_features(self) -> int:
        """Columns of the network."""
        return int(self.frame.center.shape[0])

    @property
    def n_columns(self) -> int:
        return self.n_features if self.columns is None else int(self.columns.shape[0])

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

    @cached_property
    def gaussians(self) -> tuple[MixtureModel, np.ndarray, bool]:
        """Gaussians that components are, or are like: of all columns of the network.

        Also where those of each component begin (K,), and whether components are these.
        """
        fitted = Fitted(self.network, self.tables, self.log_weights, self.dtype)
        children, shares, means, covariances, are_exact = fitted.normals()
        scale: np.ndarray = np.diag(self.frame.scale)
        if self.frame.whitening is not None:
            scale = scale @ np.linalg.inv(self.frame.whitening).T
        covariances = scale @ covariances @ scale.T
        parameters = {"means": self.frame.from_model(means), "covariances": covariances}
        family = make_family("full", np.zeros((1, self.n_features)), 0.0)
        model = MixtureModel(family, shares * self.weights[children], parameters)
        return model, np.searchsorted(children, np.arange(self.n_components)), are_exact

    def whole(self, rows: np.ndarray) -> np.ndarray:
        """Rows (N, D) with all columns of the network, NaN where they are not the mixture's."""
        if self.columns is None:
            return rows
        whole = np.full((rows.shape[0], self.n_features), np.nan)
        whole[:, self.columns] = rows
        return whole

    def of_columns(self, whole: np.ndarray) -> np.ndarray:
        """Rows (N, d) of rows of the network."""
        return whole if self.columns is None else whole[:, self.columns]

    def query_rows(self, rows: np.ndarray, names: np.ndarray | None = None) -> GaussianRows:
        """Rows that may have gaps, and their numbers in messages."""
        return (GaussianRows if self.gaussians[2] else DrawnRows)(self, rows, names)

    def _knows(self, rows: np.ndarray) -> bool:
        """Whether the network itself has the density of rows (N, d)."""
        return self.for_missing is not None or not np.isnan(self.whole(rows)).any()

    def score_samples(self, rows: np.ndarray) -> np.ndarray:
        """Log-densities (N,)."""
        if not self._knows(rows):
            return self.query_rows(rows).log_densities()
        return self.score_whole(self.whole(rows))

    def score_whole(self, rows: np.ndarray) -> np.ndarray:
        """Log-densities (N,) of rows of the network."""
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
        if not self._knows(rows):
            return self.query_rows(rows).weights()
        return self.posterior_whole(self.whole(rows))

    def posterior_whole(self, rows: np.ndarray) -> np.ndarray:
        """Posterior probabilities of components (N, K), given rows of the network."""
        return self._query(posterior, rows)[0].astype(np.float64)

    def top_components(self, rows: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
        """The m most probable components (N, m) and their posterior probabilities (N, m)."""
        if not self._knows(rows):
            probabilities = self.predict_proba(rows)
            components = np.argsort(-probabilities, axis=1, kind="stable")[:, :m]
            return components, np.take_along_axis(probabilities, components, axis=1)
        found = self._query(lambda values: top(values, m), self.whole(rows))
        return found[0], found[1].astype(np.float64)

    def marginal(self, columns: np.ndarray) -> DeepModel:
        """The mixture of some columns (d,), in their order."""
        return replace(self, columns=columns if self.columns is None else self.columns[columns])

    def sample(self, n_rows: int, random: Any) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows (N, D), grouped by component, and their components (N,), by a RandomState."""
        uniforms = random.random_sample((n_rows, self.network.n_slots))
        seed = int(random.randint(2**31 - 1))
        fitted = Fitted(self.network, self.tables, self.log_weights, self.dtype)
        rows, choices = fitted.draw_rows(uniforms, seed)
        order = np.argsort(choices[:, 0], kind="stable")
        return self.of_columns(self.frame.from_model(rows[order])), choices[order, 0]
