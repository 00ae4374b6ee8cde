"""Random Gaussian mixtures whose parameters are known, and rows drawn from them."""
