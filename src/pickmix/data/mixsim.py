"""`pickmix.simulation.mixsim`, under its public name."""

from pickmix.simulation.mixsim import MixSimMixture, generate, pairwise_overlap

__all__ = ["MixSimMixture", "generate", "pairwise_overlap"]
