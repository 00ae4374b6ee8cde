"""Kernels compiled ahead, by their signatures, are all that fits and queries need."""

import numpy as np
import pytest

from pickmix import GaussianMixture
from pickmix.compiled import KERNELS
from pickmix.estimators import compilation

RNG = np.random.default_rng(0)
X = 4.0 * RNG.normal(size=(99, 3))[RNG.integers(0, 99, 2000)] + RNG.normal(size=(2000, 3))
GAPS = np.where(RNG.random(X.shape) < [0.0, 0.1, 0.1], np.nan, X)


def compiled():
    """All versions of all kernels that this process holds."""
    return {(kernel.__name__, signature) for kernel in KERNELS for signature in kernel.signatures}


CASES = {
    "partition": ({"max_iter": 3}, X),
    "single precision": ({"max_iter": 2, "covariance_type": "diag"}, X.astype(np.float32)),
    "small blocks": ({"n_components": 1000, "max_iter": 1}, X),
    "partial": ({"max_iter": 2}, GAPS),
    "em": ({"algorithm": "em", "max_steps": 3}, X),
    "partial em": ({"algorithm": "em", "max_steps": 3}, GAPS),
    "saem": ({"algorithm": "saem", "max_steps": 3}, X),
    "ssaem": ({"algorithm": "ssaem", "max_steps": 3}, X),
    "tsaem": ({"algorithm": "tsaem", "max_steps": 3}, X),
    "partial tsaem": ({"algorithm": "tsaem", "max_steps": 3}, GAPS),
    "mcsaem": ({"algorithm": "mcsaem", "max_steps": 3}, X),
    "partial mcsaem": ({"algorithm": "mcsaem", "max_steps": 3}, GAPS),
    "uniform": ({"proposal": "uniform", "max_steps": 3}, X),
    "table": ({"proposal": "table", "max_steps": 3}, X),
    "forgetting": ({"proposal": "table-forgetting", "max_steps": 3}, X),
    "optimal": ({"proposal": "optimal", "max_steps": 3}, X),
}


@pytest.mark.filterwarnings("ignore")  # Fits of few steps have not converged.
@pytest.mark.parametrize("name", list(CASES))
def test_a_fit_compiles_nothing_beside_the_signatures(name, monkeypatch):
    parameters, rows = CASES[name]
    loaded = []

    def ensure(*kinds):
        """Load kernels as a fit does; then note what there is."""
        compilation.compile_kinds(kinds)
        loaded.append(compiled())
        return 1.0

    monkeypatch.setattr(compilation, "ensure_compiled", ensure)
    mixture = GaussianMixture(**{"n_components": 300, "random_state": 0} | parameters).fit(rows)
    mixture.score_samples(rows[:200])
    assert len(loaded) == 1
    new = {(name, signature) for name, signature in compiled() - loaded[0] if name != "_gather"}
    assert not new


def test_every_kernel_of_a_fit_is_listed_once():
    listed = [kernel for kernels in compilation.KINDS.values() for kernel in kernels]
    assert set(listed) == set(compilation._SIGNATURES)
