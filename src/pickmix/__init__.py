"""Mixture models with very many components, fitted by visiting only a few of them per row."""

from pickmix.estimators.flow_mixture import FlowMixture
from pickmix.estimators.gaussian_mixture import GaussianMixture
from pickmix.estimators.mixture import Mixture
from pickmix.estimators.persistence import load, save
from pickmix.estimators.sum_product_transform_network import SumProductTransformNetwork
from pickmix.selection.partitions import RandomPartition
from pickmix.selection.proposals import Proposal
from pickmix.selection.truncated import SearchSet

__version__ = "0.2.0.dev0"

__all__ = [
    "FlowMixture",
    "GaussianMixture",
    "Mixture",
    "Proposal",
    "RandomPartition",
    "SearchSet",
    "SumProductTransformNetwork",
    "__version__",
    "load",
    "save",
]
