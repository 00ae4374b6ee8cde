"""`pickmix.simulation.rotated`, under its public name."""

from pickmix.simulation.rotated import generate

__all__ = ["generate"]
