"""Gaussian mixtures that deep fits begin with, and how many components they have."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from pickmix.estimators.deep_frame import Frame
from pickmix.estimators.gaussian_mixture import GaussianMixture
from pickmix.gradient.gaussian_start import Gaussians

# With "auto": the most components that are tried, and the rows that each must have on average.
MOST_CHOSEN = 128
_ROWS_PER_COMPONENT = 2
# Numbers of components that may fall behind, one after the other, before the search ends.
_FALLS = 2
# Share of the rows that choose where none are watched.
_SHARE_LEFT_OUT = 0.2
# A component that bends does the work of several Gaussians: so much fewer are tried as well.
_FEWER = 4
# Columns with a spread in these bounds are fitted as they are; `reg_covar` suits them.
_SPREADS = (1e-2, 1e2)


@dataclass(frozen=True)
class GaussianFits:
    """How Gaussian mixtures are fitted.

    Attributes
    ----------
    frame : Frame
        How rows are transformed for the deep model. The Gaussians are in its coordinates.
    form : {"full", "diag"}
        Of their covariances.
    reg_covar : float
    seed : int
        `random_state` of the fits.
    """

    frame: Frame
    form: str
    reg_covar: float
    seed: int

    def fit(self, X: np.ndarray, weights: np.ndarray | None, n_components: int) -> Gaussians:
        """Fit at most `n_components` Gaussians to rows (N, D), fewer where rows are too few.

        It is the fit of `GaussianMixture` on the rows as they are, but for columns in extreme
        units.
        """
        n_fitted = max(1, min(n_components, X.shape[0] // _ROWS_PER_COMPONENT))
        mixture = GaussianMixture(
            n_fitted, covariance_type=self.form, reg_covar=self.reg_covar, random_state=self.seed
        )
        spreads = self.frame.scale
        is_usual = (spreads >= _SPREADS[0]) & (spreads <= _SPREADS[1])
        units = np.where(is_usual, 1.0, spreads)
        with warnings.catch_warnings():
            # What a start has not reached, the fit that follows may.
            warnings.simplefilter("ignore")
            mixture.fit(X / units, sample_weight=weights)
        factors = mixture.precisions_cholesky_
        if self.form == "diag":
            cholesky = factors[:, :, None] * np.eye(X.shape[1])
        else:
            cholesky = np.swapaxes(factors, 1, 2)
        return Gaussians(
            mixture.weights_,
            self.frame.to_model(mixture.means_ * units),
            self._cholesky_in_frame(cholesky / units),
        )

    def _cholesky_in_frame(self, cholesky: np.ndarray) -> np.ndarray:
        """Lower triangular factors (K, D, D) of precisions in the coordinates of the frame."""
        scaled = cholesky * self.frame.scale
        if self.frame.whitening is None:
            return np.ascontiguousarray(scaled)
        # Rows are multiplied by W, so factors by the inverse of W'; then made triangular again.
        mixed = scaled @ np.linalg.inv(self.frame.whitening).T
        upper = np.asarray(np.linalg.qr(mixed[:, :, ::-1], mode="r"))
        lower = upper[:, ::-1, ::-1]
        signs = np.sign(np.diagonal(lower, axis1=1, axis2=2))
        return np.ascontiguousarray(lower * signs[:, :, None])

    def choose(
        self, X: np.ndarray, weights: np.ndarray | None, watched: np.ndarray | None
    ) -> list[Gaussians]:
        """Gaussian mixtures to begin with, the one that explains watched rows (V, D) best first.

        Numbers of components are powers of two. The second mixture has a quarter of the components.
        Without watched rows a share of the rows chooses, and the chosen number is fitted to all.
        """
        if watched is None:
            n_left_out = int(_SHARE_LEFT_OUT * X.shape[0])
            if n_left_out == 0:
                return [self.fit(X, weights, 1)]
            order = np.random.default_rng([self.seed, 7]).permutation(X.shape[0])
            kept = np.sort(order[n_left_out:])
            own = None if weights is None else weights[kept]
            found = self._search(X[kept], own, X[order[:n_left_out]])
            best = max(found, key=lambda number: found[number][0])
            return [self.fit(X, weights, best)]
        found = self._search(X, weights, watched)
        best = max(found, key=lambda number: found[number][0])
        numbers = dict.fromkeys([best, max(1, best // _FEWER)])
        return [found[number][1] for number in numbers]

    def _search(
        self, X: np.ndarray, weights: np.ndarray | None, watched: np.ndarray
    ) -> dict[int, tuple[float, Gaussians]]:
        """Score on watched rows, and mixture, by the number of components 1, 2, 4, ..."""
        found: dict[int, tuple[float, Gaussians]] = {}
        rows = self.frame.to_model(watched)
        best, falls, number = -np.inf, 0, 1
        most = min(MOST_CHOSEN, X.shape[0] // _ROWS_PER_COMPONENT)
        while falls < _FALLS and (number == 1 or number <= most):
            gaussians = self.fit(X, weights, number)
            value = float(np.logaddexp.reduce(gaussians.log_joint(rows), axis=1).mean())
            found[number] = (value, gaussians)
            falls = 0 if value > best else falls + 1
            best = max(best, value)
            number *= 2
        return found
