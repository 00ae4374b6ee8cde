"""The Gaussian mixtures that deep fits begin with."""

from __future__ import annotations

import copy
import math
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.checks import check_randomness
from pickmix.closed_form.fit import fit_mixture
from pickmix.closed_form.growth import grow, most_components
from pickmix.estimators.compilation import compile_kernels
from pickmix.estimators.fit_rows import FitRows
from pickmix.families.cholesky import factorise
from pickmix.families.gaussian import GAUSSIANS
from pickmix.families.shrinkage import background_reach
from pickmix.fitting.settings import ClosedFormSettings, resolve
from pickmix.gradient.settings import Settings
from pickmix.gradient.start import Gaussians
from pickmix.model.frame import Frame
from pickmix.threads import use_threads

# With "auto": the most components, and the share of `max_time` after which no others are tried.
_MOST_CHOSEN = 1024
_SHARE_OF_TIME = 0.5
# Rows of a component on average, at least, if their number is given.
_ROWS_PER_COMPONENT = 2
_SOME_COMPONENTS = 64  # The number that decides whether growth is compiled.
# A component that bends does the work of several Gaussians: so much fewer are tried as well.
_FEWER = 4
# Columns with a spread in these bounds are fitted as they are; `reg_covar` suits them.
_SPREADS = (1e-2, 1e2)


@dataclass(eq=False, repr=False, kw_only=True)
class _Parameters(ClosedFormSettings):
    """The parameters of `GaussianMixture`, by default its defaults."""

    background: bool = True


def fit_gaussians(
    X: np.ndarray,
    weights: np.ndarray | None,
    n_components: int | None,
    form: str,
    frame: Frame,
    settings: Settings,
    background: bool = False,
) -> Gaussians:
    """Fit at most `n_components` Gaussians to rows (N, D), fewer where rows are too few.

    None chooses the number, and then there is a background.

    It is the fit of `GaussianMixture` on the rows as they are, but for columns in extreme units.
    The Gaussians come in the coordinates of the frame. Their covariances are "full" or "diag".
    With `background` a broad one is added, if the fit has none.
    """
    is_usual = (frame.scale >= _SPREADS[0]) & (frame.scale <= _SPREADS[1])
    units = np.where(is_usual, 1.0, frame.scale)
    data = FitRows(X / units, weights)
    parameters = _Parameters(reg_covar=settings.reg_covar)
    if n_components is None:
        # All of it if need be: more Gaussians are then the better use of the time.
        parameters.max_time = settings.max_time
    family = GAUSSIANS[form](X.shape[1], settings.reg_covar)
    most = most_components(family, X.shape[0], _MOST_CHOSEN)
    number = min(_SOME_COMPONENTS, most)
    if n_components is not None:
        number = max(1, min(n_components, X.shape[0] // _ROWS_PER_COMPONENT))
    sizes: dict[str, Any] = {"start_is_given": False, "is_partial": data.is_partial}
    resolved = resolve(parameters, family, X.shape[0], number, **sizes)
    source = data.source(family, resolved.compiled)
    compile_kernels(resolved, source)
    draws = check_randomness(settings.gaussian_seed)
    first, second = copy.deepcopy(draws).randint(2**31 - 1, size=2).tolist()
    seed, start = first * 2**31 + second, None
    with use_threads(None), warnings.catch_warnings():
        # What a start has not reached, the fit that follows may.
        warnings.simplefilter("ignore")
        if n_components is None:
            growth = grow(family, source, resolved, seed, most)
            start, background = growth.start, True
            if parameters.max_time is not None:
                parameters.max_time = max(1e-9, parameters.max_time - growth.seconds)
            resolved = resolve(parameters, family, X.shape[0], growth.n_components, **sizes)
            compile_kernels(resolved, source)
        result, _ = fit_mixture(source, family, resolved, [seed], start=start, draws=draws)
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

    With validation rows, which decide between them, there is a second with a quarter of these.
    """
    started = time.perf_counter()
    chosen = fit_gaussians(X, weights, None, form, frame, settings)
    fewer = max(1, chosen.n_components // _FEWER)
    time_for_more = math.inf if settings.max_time is None else _SHARE_OF_TIME * settings.max_time
    is_late = time.perf_counter() - started > time_for_more
    if validation is None or fewer == chosen.n_components or is_late:
        return [chosen]
    return [chosen, fit_gaussians(X, weights, fewer, form, frame, settings, True)]
