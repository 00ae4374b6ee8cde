"""Rows in memory; random mixtures whose parameters are known; the paper's tables."""
