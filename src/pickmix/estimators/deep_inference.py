"""Queries of a fitted deep mixture, in blocks of rows."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from pickmix.estimators.deep_frame import Frame
from pickmix.estimators.deep_rows import check_seen
from pickmix.estimators.queries import DensityQueries, refuse_overflow
from pickmix.estimators.row_sources import by_chunks
from pickmix.estimators.validation import RandomSeed, check_integer, check_randomness

if TYPE_CHECKING:
    import jax

    from pickmix.gradient.network import Network
    from pickmix.gradient.stream import Moments


def require_jax() -> None:
    """Refuse to work without JAX, and say how to install it."""
    if importlib.util.find_spec("jax") is None:
        raise ImportError("Deep mixtures need JAX: pip install 'pickmix[deep]'")


class DeepInference(DensityQueries):
    """Queries of a mixture that has weights_, tables_, center_ and scale_."""

    dtype: str
    random_state: RandomSeed
    weights_: np.ndarray
    tables_: list[np.ndarray]
    center_: np.ndarray
    scale_: np.ndarray
    whitening_: np.ndarray | None
    n_steps_: int
    # What a fit that continues takes from the earlier one: the tree of each row, passes made, the
    # seed that chose the validation rows, and Adam's moments of a stream.
    _chain: np.ndarray
    _passes: float = 0.0
    _split_seed: int = 0
    _moments: Moments | None = None

    def __sklearn_is_fitted__(self) -> bool:
        # A fit that failed has left n_features_in_ behind, which looks fitted to scikit-learn.
        return hasattr(self, "tables_")

    def _network(self, n_features: int, n_children: int | None = None) -> Network:
        """The network over D columns; without a number of children, that of the fitted tables."""
        raise TypeError("Use FlowMixture, SumProductTransformNetwork or Mixture.")

    def _takes_missing(self) -> bool:
        """Whether rows may have gaps (NaN), which are then integrated out."""
        return False

    def _partial_network(self, network: Network) -> Network:
        """The same network for rows that have gaps."""
        raise TypeError("Use SumProductTransformNetwork with transforms=False.")

    def _n_children(self, asked: int | None) -> int:
        """Children of the root: those asked for, or else those that were fitted."""
        return int(self.weights_.shape[0] if asked is None else asked)

    @property
    def _frame(self) -> Frame:
        return Frame(self.center_, self.scale_, self.whitening_)

    def _prepare(self, X: Any) -> tuple[Network, np.ndarray]:
        require_jax()
        check_is_fitted(self)
        X = check_seen(self, X)
        network = self._network(X.shape[1])
        if np.isnan(X).any():
            network = self._partial_network(network)
        return network, self._frame.to_model(X)

    def _log_weights(self) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.weights_))

    def _map(self, X: Any, function: Callable[[jax.Array], Any]) -> list[Any]:
        """Apply a function to log p(x, component) (R, K) of blocks of rows."""
        from pickmix.gradient.queries import map_blocks

        network, rows = self._prepare(X)
        return map_blocks(function, network, self.tables_, self._log_weights(), rows, self.dtype)

    @by_chunks
    def score_samples(self, X: Any) -> np.ndarray:
        """Log-density of each row, (N,)."""
        from pickmix.gradient.queries import score_samples

        network, rows = self._prepare(X)
        scores = score_samples(network, self.tables_, self._log_weights(), rows, self.dtype)
        refuse_overflow(scores)
        return np.asarray(scores + self._frame.log_volume_of(rows))

    @by_chunks
    def predict_proba(self, X: Any) -> np.ndarray:
        """Posterior probabilities of all components, (N, K)."""
        from pickmix.gradient.queries import posterior

        parts = self._map(X, posterior)
        refuse_overflow(np.concatenate([likelihood for _, likelihood in parts]))
        return np.concatenate([probabilities for probabilities, _ in parts]).astype(np.float64)

    @by_chunks
    def top_components(self, X: Any, m: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """The m most probable components of each row and their posterior probabilities.

        Parameters
        ----------
        X : array-like of shape (N, D)
        m : int, default=1
            At most the number of components.

        Returns
        -------
        components : (N, m) int array
            Most probable first.
        probabilities : (N, m) array
            Exact posterior probabilities, so a row sums to at most one.
        """
        from pickmix.gradient.queries import top

        check_is_fitted(self)
        n_components = self.weights_.shape[0]
        if check_integer("m", m, 1) > n_components:
            raise ValueError(f"m must be at most n_components={n_components}, got {m!r}.")
        parts = self._map(X, lambda log_joint: top(log_joint, m))
        refuse_overflow(np.concatenate([likelihood for *_, likelihood in parts]))
        components = np.concatenate([components for components, _, _ in parts])
        probabilities = np.concatenate([probabilities for _, probabilities, _ in parts])
        return components, probabilities.astype(np.float64)

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows from the fitted mixture.

        Returns
        -------
        X : (n_samples, D) array
            Grouped by component.
        y : (n_samples,) array
            Components.
        """
        from pickmix.gradient.queries import draw_rows

        require_jax()
        check_is_fitted(self)
        check_integer("n_samples", n_samples, 1)
        random = check_randomness(self.random_state)
        network = self._network(self.center_.shape[0])
        uniforms = random.random_sample((n_samples, network.n_slots))
        seed = int(random.randint(2**31 - 1))
        rows, choices = draw_rows(
            network, self.tables_, self._log_weights(), uniforms, seed, self.dtype
        )
        order = np.argsort(choices[:, 0], kind="stable")
        return self._frame.from_model(rows[order]), choices[order, 0]

    def _n_parameters(self) -> int:
        return self._network(self.center_.shape[0]).n_parameters
