"""Waiting times, as a user would add them: one file outside of the package, one registered name."""

import numpy as np

from pickmix.families.base import Family, LeftOut, Part, Prior, check_not_negative
from pickmix.families.layout import halves, make_layout, moments_of_mass_one

LEAST = 1e-12


class NoPrior(Prior):
    """Maximum likelihood."""

    def __init__(self, n_rows):
        self.n_rows = n_rows

    def pool(self, moments, masses):
        """Nothing is learnt."""


class ExponentialPart(Part):
    """Independent exponential columns, given the component."""

    kind = "number"

    def __init__(self, columns, means):
        self.columns, self.parameters = columns, {"times": means}
        self.means, self.variances = means, np.square(means)

    def modes(self, pairs, targets):
        return np.zeros((pairs.components.shape[0], targets.shape[0]))

    def draw(self, pairs, targets, random):
        return random.exponential(self.moments(pairs, targets)[0])

    def leave_out(self, rows):
        seen = np.flatnonzero(rows.seen[0])
        means = self.means[:, None, seen]
        return LeftOut(-rows.values[:, seen] / means - np.log(means), means, np.square(means))


class Exponential(Family):
    """Times with a mean per component and column: log p = -x / mean - log(mean)."""

    name = "exponential"
    has_linear = True

    def __init__(self, n_columns):
        self.n_features = n_columns
        self.layout = make_layout([("linear", n_columns)])

    def centre(self, mean):
        return np.zeros_like(mean)

    def check(self, rows, columns=None):
        wrong = ~((rows >= 0.0) & np.isfinite(rows) | np.isnan(rows))
        if not wrong.any():
            return None
        row, column = np.argwhere(wrong)[0].tolist()
        return f"column {column} must hold times from 0 on, but row {row} holds {rows[row, column]}"

    def positions(self, model):
        return np.log(-1.0 / model.linear)

    def row_positions(self, rows):
        return np.log(np.maximum(rows, LEAST))

    def scales(self, prior):
        return np.ones(self.n_features)

    def make_prior(self, moments, shrinkage, n_rows):
        return NoPrior(float(n_rows))

    def maximise(self, moments, members, prior, model, compiled):
        means = np.maximum(moments.mean[members], LEAST)
        model.location[members] = means
        model.linear[members] = -1.0 / means
        model.constants[members] = -np.log(means) - 1.0
        model.log_normaliser[members] = model.constants[members].sum(axis=1)
        return np.zeros(members.shape[0], dtype=np.bool_)

    def split(self, model, moments, prior, uniforms):
        shift = np.where(uniforms < 0.5, -0.5, 0.5) * moments.mean
        return halves(moments, mean=shift)

    def negative_entropy(self, moments, shared):
        return -np.log(np.maximum(moments.mean, LEAST)).sum(axis=1)

    def parameters(self, model, centre):
        return {"times": model.location + centre}

    def moments_of(self, parameters, centre):
        return moments_of_mass_one(mean=np.array(parameters["times"] - centre))

    def check_parameters(self, parameters, prefix=""):
        check_not_negative(f"{prefix}times", parameters["times"])

    def n_parameters(self, n_components):
        return n_components * self.n_features

    def parts(self, parameters, centre):
        return [ExponentialPart(np.arange(self.n_features), parameters["times"] - centre)]
