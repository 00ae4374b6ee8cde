"""Merges of every family cost what the divergence says, and keep moments."""

import numpy as np
import pytest
from family_cases import CASES, K, draw, every_family, every_plain_family

from pickmix.families.layout import Moments, merge_groups
from pickmix.kernels import numpy_kernels
from pickmix.model.merging import find_merges


@every_family
def test_a_merge_costs_the_divergence_of_both_parts(name):
    # By SciPy's densities of rows of the two parts: w_1 KL(one || merged) + w_2 KL(two || merged).
    case, random = CASES[name], np.random.default_rng(1)
    family, parameters = case.family(), case.parameters(random)
    weights = random.dirichlet(np.full(K, 3.0))
    moments = family.moments_of(parameters, np.zeros(family.layout.n_columns))
    moments = moments._replace(mass=weights)
    merges = find_merges(family, moments, numpy_kernels)
    a, b = merges.children[0]
    assert b < K
    labels = np.arange(K)
    labels[b] = a
    labels = np.unique(labels, return_inverse=True)[1]
    grouped = merge_groups(family.layout, moments, labels)
    merged = grouped._replace(mass=np.ones(K - 1))
    merged = Moments(*(part[labels[a]][None] for part in merged))
    if family.has_shared_parts:
        # What all share stays as it is in the bound.
        merged = _with_shared_scatter(family, merged, moments)
    prior = family.make_prior(merged, "none", 1.0)
    model = family.empty_model(1)
    family.maximise(merged, np.zeros(1, dtype=np.int32), prior, model, None)
    one = family.parameters(model, np.zeros(family.layout.n_columns))
    expected, variance = 0.0, 0.0
    for k in (a, b):
        rows = draw(family, parameters, int(k), 40_000, random)
        differences = case.log_density(parameters, k, rows) - case.log_density(one, 0, rows)
        expected += weights[k] * differences.mean()
        variance += weights[k] ** 2 * differences.var() / rows.shape[0]
    assert merges.costs[0] == pytest.approx(expected, abs=5.0 * np.sqrt(variance))
    assert merges.costs[0] > 5.0 * np.sqrt(variance)


def _with_shared_scatter(family, merged, moments):
    scatter = merged.scatter.copy()
    groups = getattr(family, "groups", None)
    if groups is None:
        scatter[:] = moments.scatter[0]
    else:
        for group in groups:
            if group.family.shared:
                scatter[:, group.products] = moments.scatter[0, group.products]
    return merged._replace(scatter=scatter)


@every_plain_family
def test_nodes_have_the_moments_of_their_components(name):
    case, random = CASES[name], np.random.default_rng(2)
    family = case.family()
    moments = family.moments_of(case.parameters(random), np.zeros(family.layout.n_columns))
    moments = moments._replace(mass=random.dirichlet(np.ones(K)))
    merges = find_merges(family, moments, numpy_kernels)
    members = [frozenset([k]) for k in range(K)]
    for a, b in merges.children.tolist():
        members.append(members[a] | members[b])
    assert len(members[-1]) == K
    for node, leaves in enumerate(members):
        labels = np.array([0 if k in leaves else 1 for k in range(K)])
        together = merge_groups(family.layout, moments, labels)
        for found, expected in zip(merges.moments, together, strict=True):
            assert found[node] == pytest.approx(expected[0], rel=1e-10, abs=1e-12)
