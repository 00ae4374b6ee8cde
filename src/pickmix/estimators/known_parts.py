"""Fits that know something: components that stay as given, and labels of some rows."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import column_or_1d

from pickmix.checks import check_array_parameter
from pickmix.families.gaussian import Gaussian, check_positive_definite
from pickmix.families.registry import make_family
from pickmix.fitting.loop import Outcome
from pickmix.inputs.arrays import check_weights, read_numbers
from pickmix.model.mixture import MixtureModel

_MOST_ROUNDS, _PASSES = 30, 5
_DRAWN = 200  # Rows of a fixed component, to find what it replaces.
_LEAST_SHARE = 1e-12  # Rows of weight zero would be left out.


def fit_around(mixture: Any, X: Any, sample_weight: Any) -> None:
    """Fit the components that are not fixed, and all weights.

    With p(x) = sum_k pi_k f_k(x) + pi g(x), f fixed and g a mixture, EM weighs each row by its
    posterior probability of g, fits g to rows of these weights (a rise is enough, so each round
    continues the last), and takes the mean posteriors for the pi. The start is a fit of K
    components without those that the fixed ones replace.
    """
    if isinstance(mixture.n_components, str):
        raise ValueError(
            f"n_components must be a number with fixed_components, got {mixture.n_components!r}."
        )
    rows = read_numbers(mixture, X, reset=True)
    given = check_weights(sample_weight, rows.shape[0])
    weights = np.ones(rows.shape[0]) if given is None else np.asarray(given, dtype=np.float64)
    fixed = _fixed_parameters(mixture, rows.shape[1])
    n_fixed, K = fixed["means"].shape[0], int(mixture.n_components)
    if n_fixed >= K:
        raise ValueError(
            f"n_components counts the fixed components too: it must be at least {n_fixed + 1}, got "
            f"{K}."
        )
    # The fixed components are what rows that belong to no group have.
    free = clone(mixture).set_params(fixed_components=None, callbacks=(), background=False)
    family = make_family(mixture.covariance_type, rows, 0.0)
    assert isinstance(family, Gaussian)
    logs = [
        MixtureModel(family, np.ones(1), {name: a[k : k + 1] for name, a in fixed.items()})
        for k in range(n_fixed)
    ]
    shares = np.append(np.full(n_fixed, 1.0 / K), 1.0 - n_fixed / K)
    best, bounds, outcome = None, [-np.inf], Outcome.MAX_ITER
    with warnings.catch_warnings():
        # Rounds go on where the last one ended.
        warnings.simplefilter("ignore", ConvergenceWarning)
        start = _without(free.fit(rows, sample_weight=weights), logs)
        free = clone(free).set_params(
            n_components=K - n_fixed,
            weights_init=start.weights / start.weights.sum(),
            means_init=start.parameters["means"],
            precisions_init=family.invert(start.parameters["covariances"]),
        )
        log_densities = np.column_stack([m.score_samples(rows) for m in (*logs, start)])
        for number in range(_MOST_ROUNDS):
            joint = log_densities + np.log(shares)
            log_density = logsumexp(joint, axis=1)
            bounds.append(float(weights @ log_density / weights.sum()))
            if number > 0 and bounds[-1] >= max(bounds):
                best = shares, free.weights_, free._get_parameters()
            if number > 1 and bounds[-1] - bounds[-2] < mixture.tol:
                outcome = Outcome.CONVERGED
                break
            posteriors = np.exp(joint - log_density[:, None])
            shares = np.maximum(weights @ posteriors / weights.sum(), _LEAST_SHARE)
            visible = np.maximum(posteriors[:, -1], _LEAST_SHARE)
            free.fit(rows, sample_weight=weights * visible)
            free.set_params(warm_start=True, max_iter=_PASSES)
            log_densities[:, -1] = free.score_samples(rows)
    assert best is not None
    shares, free_weights, parameters = best
    kept = {n: v for n, v in vars(free).items() if n.endswith("_") or n in ("_passes", "_chain")}
    mixture.__dict__.update(kept)
    mixture._learn_columns(rows)
    names = ("means", "covariances")
    joined = {name: np.concatenate([fixed[name], parameters[name]]) for name in names}
    mixture._set_parameters(np.append(shares[:-1], shares[-1] * free_weights), joined)
    mixture._effective_counts = mixture.weights_ * rows.shape[0]
    mixture.background_, mixture.outcome_ = None, str(outcome)
    mixture.converged_ = outcome == Outcome.CONVERGED
    mixture.lower_bound_, mixture.lower_bounds_ = max(bounds), bounds[1:]
    mixture.n_features_in_ = rows.shape[1]


def _without(fitted: Any, fixed: list[MixtureModel]) -> MixtureModel:
    """A mixture without the components that explain draws of the fixed ones best."""
    model, random = fitted.model_, np.random.default_rng(0)
    left = np.ones(model.n_components, dtype=np.bool_)
    for known in fixed:
        explained = model.predict_proba(known.sample(_DRAWN, random)[0]).mean(axis=0)
        left[np.where(left, explained, -1.0).argmax()] = False
    parameters = {name: values[left] for name, values in model.parameters.items()}
    return MixtureModel(model.family, model.weights[left], parameters)


def _fixed_parameters(mixture: Any, n_columns: int) -> dict[str, np.ndarray]:
    given = mixture.fixed_components
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ValueError(
            f"fixed_components must be a pair (means, covariances), got {type(given)!r}."
        )
    if mixture.covariance_type == "tied":
        raise ValueError('fixed_components is not for covariance_type="tied", which has no parts.')
    means = np.asarray(given[0], dtype=np.float64)
    n_fixed = means.shape[0] if means.ndim == 2 else 0
    means = check_array_parameter("fixed_components[0]", given[0], (max(n_fixed, 1), n_columns))
    family = make_family(mixture.covariance_type, means, 0.0)
    assert isinstance(family, Gaussian)
    name, shape = "fixed_components[1]", family.shape(n_fixed)
    covariances = check_array_parameter(name, given[1], shape)
    check_positive_definite(name, covariances, family.name)
    return {"means": means, "covariances": covariances}


def fit_labelled(mixture: Any, X: Any, labels: Any, sample_weight: Any) -> None:
    """Fit a mixture of rows and labels, a column of levels more, and keep that of the rows."""
    # It is made of this one's parent.
    from pickmix.estimators.family_mixture import FamilyMixture

    rows = read_numbers(mixture, X, reset=True)
    values = np.asarray(column_or_1d(labels))
    if values.shape[0] != rows.shape[0]:
        raise ValueError(
            f"labels must have one value for each of {rows.shape[0]} rows, got {values.shape[0]}."
        )
    known = np.array([v is not None and v == v and v != -1 for v in values.tolist()])
    if not known.any():
        raise ValueError("labels must hold a label, got only missing ones (-1, NaN or None).")
    levels, codes = np.unique(np.array(values[known].tolist()), return_inverse=True)
    column = np.full(rows.shape[0], np.nan)
    column[known] = codes
    described, D = mixture._description(), rows.shape[1]
    if described in ("low_rank", "auto"):
        raise ValueError(
            f'labels are for other covariance types than {described!r}: use "full" or "diag".'
        )
    plain = isinstance(described, str)
    groups = [(described, list(range(D)))] if plain else list(described)
    shared = FamilyMixture().get_params(deep=False).keys() - {"family"}
    settings = {n: v for n, v in mixture.get_params(deep=False).items() if n in shared}
    joint = FamilyMixture([*groups, ("categorical", [D])], **settings)
    joint._evaluation_tasks = mixture._evaluation_tasks
    joint._fit(np.column_stack([rows, column]), sample_weight)
    model = joint.model_.marginal(np.arange(D))
    prefix = f"{described}0_" if plain else ""
    parameters = {name.removeprefix(prefix): a for name, a in model.parameters.items()}
    private = ("_passes", "_chain", "_effective_counts")
    kept = {n: v for n, v in vars(joint).items() if n.endswith("_") or n in private}
    named = {"n_features_in_", "column_limits_", "parameters_", "feature_names_in_"}
    mixture.__dict__.update({n: v for n, v in kept.items() if n not in named})
    mixture._learn_columns(rows)
    mixture._set_parameters(joint.weights_, parameters)
    mixture.labels_ = levels
    probabilities = joint.parameters_[f"categorical{len(groups)}_probabilities"]
    mixture.label_probabilities_ = probabilities
