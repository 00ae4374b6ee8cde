"""What a fit shows while it runs."""

from __future__ import annotations

import math
import sys
from typing import Any

from tqdm import tqdm


class Progress:
    """A tqdm bar over steps with log-likelihood, acceptance and rows per second.

    Parameters
    ----------
    n_steps : int
        Steps at most.
    verbose : int
        0 shows nothing, 1 a bar, 2 and more one line per evaluation.
    """

    def __init__(self, n_steps: int, verbose: int) -> None:
        self.verbose = verbose
        self._bar: Any = None
        if verbose == 1:
            self._bar = tqdm(total=n_steps, unit="step", file=sys.stderr, dynamic_ncols=True)

    def advance(self, n_steps: int) -> None:
        """Say that steps were made."""
        if self._bar is not None:
            self._bar.update(n_steps)

    def report(self, record: Any, speed: float) -> None:
        """Show the newest evaluation, a `FitInfo`, and the rows visited per second."""
        values = {"log-likelihood": f"{record.log_likelihood:.4f}"}
        if not math.isnan(record.validation):
            values["validation"] = f"{record.validation:.4f}"
        if not math.isnan(record.acceptance):
            values["acceptance"] = f"{record.acceptance:.3f}"
        values["rows/s"] = f"{speed:,.0f}"
        if self._bar is not None:
            self._bar.set_postfix(values, refresh=False)
        elif self.verbose > 1:
            shown = "  ".join(f"{name} {value}" for name, value in values.items())
            print(f"step {record.step}  pass {record.epoch:.1f}  {shown}", flush=True)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()
