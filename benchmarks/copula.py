"""One Gaussian copula for a mixed table: the rival of `synthetic_rows.py`.

Columns keep their own distributions: numbers by their ranks, categories by thresholds on a normal
variable, one interval per level, in the order of the levels. One correlation matrix of the normal
scores ties them together (Song 2000; what the Synthetic Data Vault's GaussianCopula does).
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import norm, rankdata


class GaussianCopula:
    """Fit to a frame without holes, then draw rows."""

    def fit(self, frame: pd.DataFrame, seed: int = 0) -> GaussianCopula:
        """Learn the columns' distributions, and correlations of their normal scores."""
        rng = np.random.default_rng(seed)
        self.frame = frame
        n_rows = len(frame)
        scores = np.empty(frame.shape)
        self.sorted: list[np.ndarray] = []
        for place, name in enumerate(frame.columns):
            column = frame[name]
            if isinstance(column.dtype, pd.CategoricalDtype):
                codes = column.cat.codes.to_numpy()
                shares = np.bincount(codes, minlength=len(column.cat.categories)) / n_rows
                ends = np.cumsum(shares)
                self.sorted.append(ends)
                # Anywhere in the level's interval: scores are normal then, whatever the levels.
                uniform = ends[codes] - shares[codes] * rng.random(n_rows)
            else:
                values = column.to_numpy(np.float64)
                self.sorted.append(np.sort(values))
                uniform = (rankdata(values) - 0.5) / n_rows
            scores[:, place] = norm.ppf(np.clip(uniform, 1e-9, 1.0 - 1e-9))
        self.correlation = np.corrcoef(scores.T)
        return self

    def sample(self, n_rows: int, seed: int = 0) -> pd.DataFrame:
        """Draw rows, each number one that was observed."""
        rng = np.random.default_rng(seed)
        D = len(self.frame.columns)
        factor = np.linalg.cholesky(self.correlation + 1e-9 * np.eye(D))
        uniform = norm.cdf(rng.standard_normal((n_rows, D)) @ factor.T)
        drawn = {}
        for place, name in enumerate(self.frame.columns):
            column, known = self.frame[name], self.sorted[place]
            if isinstance(column.dtype, pd.CategoricalDtype):
                codes = np.searchsorted(known[:-1], uniform[:, place], side="right")
                drawn[name] = pd.Categorical.from_codes(codes, dtype=column.dtype)
                continue
            # Observed values only: in between there may be none, and that would be easy to tell.
            place_of = np.minimum((uniform[:, place] * known.size).astype(np.int64), known.size - 1)
            drawn[name] = known[place_of]
        return pd.DataFrame(drawn)
