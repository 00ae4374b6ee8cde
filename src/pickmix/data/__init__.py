"""Rows in memory; the public names of generators of mixtures and of the paper's tables."""
