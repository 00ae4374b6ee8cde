"""What an engine counts while it works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """Totals since the engine was made.

    Attributes
    ----------
    rows : int
        Row visits.
    evaluations : int
        Evaluations of a component on a row.
    acceptance_sum : float
        Acceptance probabilities, averaged over a row's draws and summed over visits.
    refused : int
        Updates refused because they had no finite, positive definite covariance.
    """

    rows: int = 0
    evaluations: int = 0
    acceptance_sum: float = 0.0
    refused: int = 0
