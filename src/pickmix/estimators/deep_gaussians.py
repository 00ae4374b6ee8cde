"""The Gaussian mixtures that deep fits begin with."""

from __future__ import annotations

from typing import Any

import numpy as np

from pickmix.checks import check_randomness
from pickmix.estimators.family_fit import fit_family
from pickmix.estimators.fit_rows import FitRows
from pickmix.families.cholesky import factorise
from pickmix.families.gaussian import GAUSSIANS
from pickmix.families.shrinkage import background_reach
from pickmix.gradient.settings import Settings
from pickmix.gradient.start import Gaussians
from pickmix.model.frame import Frame

_MOST_CHOSEN = 8192  # Components, with "auto".
_ROWS_PER_COMPONENT = 2  # On average, at least, where their number is given.
_MOST_JUDGING = 4000  # Validation rows.
# A component that bends does the work of several Gaussians: so much fewer are tried as well.
_FEWER = 4
# Columns with a spread in these bounds are fitted as they are: below, `reg_covar` would hide their
# groups; above, Gaussians may be too narrow for float32. Between 1e2 and 1e3 the fit is that of
# `GaussianMixture` (shuttle +1.2 nats, kegg-directed +1.5, bike -1.0, elevators -0.9).
_SPREADS = (1e-2, 1e3)


def fit_gaussians(
    X: np.ndarray,
    weights: np.ndarray | None,
    n_components: int | str,
    form: str,
    frame: Frame,
    settings: Settings,
    background: bool = False,
) -> Gaussians:
    """Fit at most `n_components` Gaussians to rows (N, D), fewer where rows are too few; or "auto".

    It is the fit of `GaussianMixture` on the rows as they are, but for columns in extreme units.
    The Gaussians come in the coordinates of the frame. Their covariances are "full" or "diag".
    With `background` a broad one is added, if the fit has none.
    """
    is_usual = (frame.scale >= _SPREADS[0]) & (frame.scale <= _SPREADS[1])
    units = np.where(is_usual, 1.0, frame.scale)
    family = GAUSSIANS[form](X.shape[1], settings.reg_covar)
    if not isinstance(n_components, str):
        n_components = max(1, min(n_components, X.shape[0] // _ROWS_PER_COMPONENT))
    draws = check_randomness(settings.gaussian_seed)
    given: dict[str, Any] = {"background": True, "max_components": _MOST_CHOSEN}
    result = fit_family(family, FitRows(X / units, weights), n_components, draws, **given)
    packed = family.pack(result.parameters["covariances"])
    factors = family.unpack_factor(factorise(packed, X.shape[1], 0.0)[0])
    diagonal = form == "diag"
    cholesky = factors[:, :, None] * np.eye(X.shape[1]) if diagonal else factors.swapaxes(1, 2)
    means = frame.to_model(result.parameters["means"] * units)
    gaussians = Gaussians(result.weights, means, _cholesky_in_frame(cholesky / units, frame))
    if background and result.background is None:
        return _with_background(gaussians, frame.to_model(X))
    return gaussians


def _with_background(gaussians: Gaussians, rows: np.ndarray) -> Gaussians:
    """Add a Gaussian of one row's weight that reaches as far as the rows (N, D).

    New rows that no other component reaches, as where a column was constant, would have a density
    of next to nothing.
    """
    centre = np.nanmean(rows, axis=0)
    reach = background_reach(np.nanmax(np.abs(rows - centre), axis=0))
    if not reach.any():
        return gaussians
    weight = 1.0 / (rows.shape[0] + 1.0)
    return Gaussians(
        np.append((1.0 - weight) * gaussians.weights, weight),
        np.vstack([gaussians.means, centre]),
        np.concatenate([gaussians.cholesky, np.diag(1.0 / reach)[None]]),
    )


def _cholesky_in_frame(cholesky: np.ndarray, frame: Frame) -> np.ndarray:
    """Lower triangular factors (K, D, D) of precisions in the coordinates of the frame."""
    scaled = cholesky * frame.scale
    if frame.whitening is None:
        return np.ascontiguousarray(scaled)
    # Rows are multiplied by W, so factors by the inverse of W'; then made triangular again.
    mixed = scaled @ np.linalg.inv(frame.whitening).T
    upper = np.asarray(np.linalg.qr(mixed[:, :, ::-1], mode="r"))
    lower = upper[:, ::-1, ::-1]
    signs = np.sign(np.diagonal(lower, axis1=1, axis2=2))
    return np.ascontiguousarray(lower * signs[:, :, None])


def choose_gaussians(
    X: np.ndarray,
    weights: np.ndarray | None,
    validation: np.ndarray | None,
    form: str,
    frame: Frame,
    settings: Settings,
) -> list[Gaussians]:
    """Fit Gaussian mixtures to begin with: as many components as `GaussianMixture` would choose.

    With validation rows (V, D) they may be a half or a quarter of these, where that explains such
    rows better, and there is a second mixture with a quarter of the components of the first.
    """
    chosen = fit_gaussians(X, weights, "auto", form, frame, settings, True)
    if validation is None:
        return [chosen]
    most = chosen.n_components
    mixtures = {most: chosen}
    for number in (most // 2, most // _FEWER):
        mixtures[number] = fit_gaussians(X, weights, number, form, frame, settings, True)
    rows = frame.to_model(validation[:: 1 + validation.shape[0] // _MOST_JUDGING])

    def value(number: int) -> float:
        return float(np.logaddexp.reduce(mixtures[number].log_joint(rows), axis=1).mean())

    best = max(mixtures, key=value)
    fewer = best // _FEWER
    if fewer not in mixtures:
        mixtures[fewer] = fit_gaussians(X, weights, fewer, form, frame, settings, True)
    first, second = mixtures[best], mixtures[fewer]
    return [first, second] if second.n_components < first.n_components else [first]
