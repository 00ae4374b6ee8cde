"""Mixture models with very many components, fitted by visiting only a few of them per row."""

from pickmix.estimators.gaussian_mixture import GaussianMixture
from pickmix.estimators.persistence import load, save
from pickmix.selection.proposals import Proposal
from pickmix.selection.truncated import SearchSet

__version__ = "0.1.0"

__all__ = ["GaussianMixture", "Proposal", "SearchSet", "__version__", "load", "save"]
