"""The coordinates of a deep mixture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.covariance import ledoit_wolf

_LEAST_VARIANCE = 1e-4  # Narrow directions are stretched a hundredfold at most.


@dataclass(frozen=True)
class Frame:
    """Rows are shifted by `center` (D,), divided by `scale` (D,), times `whitening` (D, D)."""

    center: np.ndarray
    scale: np.ndarray
    whitening: np.ndarray | None

    def to_model(self, X: np.ndarray) -> np.ndarray:
        # Shifted in float64: float32 rows far from the origin lose nothing.
        rows: np.ndarray = (X.astype(np.float64) - self.center) / self.scale
        return rows if self.whitening is None else rows @ self.whitening

    def from_model(self, rows: np.ndarray) -> np.ndarray:
        if self.whitening is not None:
            rows = np.linalg.solve(self.whitening, rows.T).T
        return np.asarray(rows * self.scale + self.center)

    def log_volume(self) -> float:
        """log|det| of `to_model`."""
        volume = -float(np.log(self.scale).sum())
        if self.whitening is None:
            return volume
        return volume + float(np.linalg.slogdet(self.whitening)[1])

    def log_volume_by_column(self) -> np.ndarray:
        """Terms (D,) of `log_volume` by column, if columns are not mixed."""
        return np.asarray(-np.log(self.scale))

    def log_volume_of(self, rows: np.ndarray) -> np.ndarray | float:
        """log|det| of `to_model` for the seen cells of each row (N, D): one number if complete."""
        missing = np.isnan(rows)
        if not missing.any():
            return self.log_volume()
        return np.asarray(~missing @ self.log_volume_by_column())


def find_frame(X: np.ndarray, kind: str) -> Frame:
    """Frame of a kind, "whiten", "columns" or "none", for rows X (N, D); NaN is a missing value.

    Whitening takes the inverse square root of the columns' correlations, shrunk as by Ledoit and
    Wolf (2004); of all ways to whiten, it moves columns the least.
    """
    n_features = X.shape[1]
    if kind == "none":
        return Frame(np.zeros(n_features), np.ones(n_features), None)
    with np.errstate(over="ignore", invalid="ignore"):
        rows = X.astype(np.float64)
        missing = np.isnan(rows)
        mean = np.nanmean if missing.any() else np.mean
        # From the first value that was seen: sums of far-off data would lose digits.
        first = rows[missing.argmin(axis=0), np.arange(n_features)]
        center = first + mean(rows - first, axis=0)
        scale = np.sqrt(mean((rows - center) ** 2, axis=0))
    if not np.isfinite(scale).all():
        raise ValueError(
            "X must have columns whose squares fit into float64, got values up to "
            f"{float(np.nanmax(np.abs(X))):.3g}. Rescale it."
        )
    # A constant column, up to rounding, has no scale.
    constant = (scale <= 1e-12 * np.abs(center)) | (scale == 0.0)
    scale = np.where(constant, 1.0, scale)
    if kind == "columns" or n_features == 1 or X.shape[0] < 3:
        return Frame(center, scale, None)
    correlations, _ = ledoit_wolf((rows - center) / scale, assume_centered=True)
    # A constant column stays as it is.
    correlations[constant, constant] = 1.0
    variances, axes = np.linalg.eigh(correlations)
    whitening = (axes / np.sqrt(np.maximum(variances, _LEAST_VARIANCE))) @ axes.T
    return Frame(center, scale, whitening)
