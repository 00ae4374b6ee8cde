"""Which implementation runs: a matter of sizes, and of nothing else."""

import inspect

import numpy as np
import pytest

from pickmix import GaussianMixture
from pickmix.closed_form import starts
from pickmix.families.gaussian import GAUSSIANS
from pickmix.fitting import settings as settings_module
from pickmix.fitting.settings import resolve
from pickmix.kernels import needs_compiled
from pickmix.selection.partitions import SearchSet


def test_more_of_anything_never_needs_less():
    rows, components, features = (1, 1000, 10**5, 10**7), (1, 30, 256, 257, 10**4), (1, 4, 40)
    table = np.array(
        [
            [[needs_compiled(GAUSSIANS["full"](D).layout, N, K) for D in features] for N in rows]
            for K in components
        ]
    )
    for axis in range(3):
        assert (np.diff(table.astype(int), axis=axis) >= 0).all()
    assert not table[0, 0].any()
    assert table[-1].all()
    assert table[:, -1].all()


def test_iris_is_small_and_the_papers_data_are_not():
    assert not needs_compiled(GAUSSIANS["full"](4).layout, 150, 3)
    assert needs_compiled(GAUSSIANS["full"](10).layout, 200_000, 100)


def settings_of(**changed):
    return GaussianMixture(**({"n_components": 5} | changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"algorithm": "em"},
        {"algorithm": "tsaem", "proposal": SearchSet(3)},
        {"proposal": "table"},
        {"batch_size": 10},
        {"max_steps": 10**6},
        {"n_jobs": 7},
        {"n_init": 50},
        {"random_state": 3},
        {"annealing": "anti"},
    ],
    ids=lambda changed: "-".join(changed),
)
@pytest.mark.parametrize(("n_rows", "compiled"), [(1000, False), (10**6, True)])
def test_settings_beside_sizes_do_not_matter(changed, n_rows, compiled):
    family = GAUSSIANS["full"](3)
    for settings in (settings_of(), settings_of(**changed)):
        assert resolve(settings, family, n_rows, 5, start_is_given=False).compiled == compiled


def test_nothing_but_sizes_is_asked_for():
    asked = ["layout", "n_rows", "n_components", "is_partial"]
    assert [*inspect.signature(needs_compiled).parameters] == asked
    # Starts in cells are compiled only, so no problem that needs them may run in NumPy.
    assert needs_compiled(GAUSSIANS["diag"](1).layout, 1, starts._LARGEST_WHOLE + 1)


@pytest.mark.parametrize("covariance_type", list(GAUSSIANS))
def test_both_sides_of_the_border_find_the_same(covariance_type, monkeypatch):
    """Forced over the border, a fit ends where it ends in NumPy, but for float32's last digits."""
    rng = np.random.default_rng(0)
    centres = 10.0 * np.array(list(np.ndindex(2, 2)))
    X = centres[rng.integers(4, size=600)] + rng.normal(size=(600, 2))
    ends = []
    for compiled in (False, True):
        monkeypatch.setattr(settings_module, "needs_compiled", lambda *sizes, c=compiled: c)
        ends.append(GaussianMixture(4, covariance_type=covariance_type, random_state=0).fit(X))
    one, other = ends
    assert one.lower_bound_ == pytest.approx(other.lower_bound_, abs=1e-4)
    order = np.lexsort(np.round(one.means_).T)
    again = np.lexsort(np.round(other.means_).T)
    np.testing.assert_allclose(one.means_[order], other.means_[again], atol=1e-3)
