"""A family with parts of its own is inspected without any code for it."""

import json

import numpy as np
import pytest
from report_cases import payload_of

import pickmix
from pickmix.families.base import Part
from pickmix.families.gaussian import DiagonalGaussian
from pickmix.families.gaussian_parts import DiagonalPart


class Plain(Part):
    """What a user must write: nothing that describes components."""

    kind = "number"

    def __init__(self, whole):
        self.columns, self.parameters = whole.columns, whole.parameters
        self.means, self.variances = whole.means, whole.variances
        self.whole = whole

    def leave_out(self, rows):
        return self.whole.leave_out(rows)


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3)) * [1.0, 5.0, 0.2]
    X[:150] += 4.0
    X[:9, 1] = np.nan
    settings = {"covariance_type": "diag", "random_state": 0, "max_iter": 5, "tol": 0.0}
    return pickmix.GaussianMixture(4, **settings).fit(X), X


def test_a_report_is_the_same_with_parts_of_a_new_type(fitted, monkeypatch):
    model, X = fitted
    expected = payload_of(pickmix.report(model, X))
    parts = DiagonalGaussian.parts

    def plain_parts(self, parameters, centre):
        return [Plain(part) for part in parts(self, parameters, centre)]

    monkeypatch.setattr(DiagonalGaussian, "parts", plain_parts)
    assert not isinstance(model.model_.parts()[0][0], DiagonalPart)
    found = payload_of(pickmix.report(model, X))
    del expected["made"], found["made"]
    assert json.dumps(found) == json.dumps(expected)
