"""Small models, and their log-joints without JAX."""

from functools import partial

import numpy as np
from explicit_trees import every_tree, log_softmax, tree_as_affine_map
from scipy import stats
from step_inputs import DiagonalGaussian

from pickmix.gradient.components import ComponentMixture
from pickmix.gradient.realnvp import RealNVP
from pickmix.gradient.sptn import SumProductTransform

N_ROWS = 1000
# Steps that a compiled chunk with M samples has room for.
LENGTHS = {1: 40, 3: 20}
K, D = 6, 2


def gaussian_log_joint(tables, logits, x):
    """log p(x, z) of every component, (K, B)."""
    log_scale, mean = np.split(tables[0], 2, axis=1)
    density = stats.norm.logpdf(x, mean[:, None], np.exp(log_scale)[:, None]).sum(axis=2)
    return density + log_softmax(logits)[:, None]


def tree_log_joint(network, tables, logits, x):
    """log p(x, tree) of every tree, (n_trees, B)."""
    trees = every_tree(network)
    named = network.unpack(
        [table[row] for table, row in zip(tables, network.rows(trees), strict=True)]
    )
    values = []
    for number, tree in enumerate(trees):
        own = [{name: value[number] for name, value in layer.items()} for layer in named]
        matrix, shift, log_weight = tree_as_affine_map(own, tree, 2, 2, network.n_features)
        leaves = stats.norm.logpdf(x @ matrix.T + shift).sum(axis=1)
        values.append(leaves + np.linalg.slogdet(matrix)[1] + log_weight)
    return np.array(values) + log_softmax(logits)[trees[:, 0], None]


NETWORKS = {
    "gaussians": ComponentMixture(DiagonalGaussian(), K, D),
    "flows": ComponentMixture(RealNVP(hidden=2), K, 3),
    # Scopes (3) and (2, 1): padded places, and 2 * 2^2 trees.
    "trees": SumProductTransform(2, 2, 2, 3, transforms="rotations"),
    # Three children at the root, two below.
    "triangular trees": SumProductTransform((3, 2), 2, 2, 3, transforms="triangular"),
    "plain trees": SumProductTransform(2, 2, 2, 3, transforms=False),
}
LOG_JOINTS = {
    "gaussians": gaussian_log_joint,
    "trees": partial(tree_log_joint, NETWORKS["trees"]),
    "triangular trees": partial(tree_log_joint, NETWORKS["triangular trees"]),
    "plain trees": partial(tree_log_joint, NETWORKS["plain trees"]),
}


def random_parameters(name, seed=0):
    rng = np.random.default_rng(seed)
    network = NETWORKS[name]
    tables = tuple(0.5 * rng.normal(size=shape) for shape in network.shapes)
    return tables, rng.normal(size=network.n_children)


def random_rows(name, seed=1):
    return np.random.default_rng(seed).normal(size=(N_ROWS, NETWORKS[name].n_features))
