"""Mixture models with very many components, fitted by visiting only a few of them per row."""

__version__ = "0.1.0"
