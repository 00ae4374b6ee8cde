"""Counters of an engine's work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """Totals since the engine was made."""

    rows: int = 0  # Row visits.
    evaluations: int = 0  # Evaluations of a component on a row.
    acceptance_sum: float = 0.0  # Acceptance probabilities, means over draws, summed over visits.
    refused: int = 0  # Updates refused because they had no finite, positive definite covariance.
