"""Progress bars of a fit."""

from __future__ import annotations

import math
import sys
import warnings
from typing import Any


def make_bar(**settings: Any) -> Any:
    """A bar of tqdm: a widget in a notebook that has ipywidgets, else text on stderr."""
    with warnings.catch_warnings():
        # Without ipywidgets text does as well, and what is called experimental is the choice.
        warnings.simplefilter("ignore")
        from tqdm.autonotebook import tqdm
    return tqdm(file=sys.stderr, dynamic_ncols=True, **settings)


def close_bar(bar: Any) -> None:
    if hasattr(bar, "container"):
        # Widgets turn red if the total was not reached, but a fit that converges is no failure.
        bar.total = bar.n
    bar.close()


class Progress:
    """A tqdm bar over steps with log-likelihood, acceptance and rows per second.

    verbose = 0 shows nothing, 1 a bar, 2 and more one line per evaluation.
    """

    def __init__(self, n_steps: int, verbose: int, done: int = 0) -> None:
        self.verbose = verbose
        self._bar: Any = None
        if verbose == 1:
            self._bar = make_bar(total=n_steps, initial=done, unit="step")

    def advance(self, n_steps: int, n_rows: int) -> None:
        """Count steps, and the rows visited since the beginning."""
        if self._bar is not None:
            self._bar.update(n_steps)

    def report(self, record: Any, speed: float) -> None:
        """Show the newest evaluation, a `FitInfo`, and the rows visited per second."""
        values = {"log-likelihood": f"{record.log_likelihood:.4f}"}
        if not math.isnan(record.validation):
            values["validation"] = f"{record.validation:.4f}"
        # It is 1, and uninformative, where nothing can be rejected.
        if not math.isnan(record.acceptance) and record.acceptance != 1.0:
            values["acceptance"] = f"{record.acceptance:.3f}"
        values["rows/s"] = f"{speed:,.0f}"
        if self._bar is not None:
            self._bar.set_postfix(values, refresh=False)
        elif self.verbose > 1:
            shown = "  ".join(f"{name} {value}" for name, value in values.items())
            print(f"step {record.step}  pass {record.epoch:.1f}  {shown}", flush=True)

    def close(self) -> None:
        if self._bar is not None:
            close_bar(self._bar)


class GrowthProgress:
    """A bar over rounds of growth, with the number of components."""

    def __init__(self, verbose: int) -> None:
        self.verbose = verbose
        self._bar: Any = None

    def __enter__(self) -> GrowthProgress:
        if self.verbose == 1:
            self._bar = make_bar(unit="round", desc="components")
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            close_bar(self._bar)

    def tell(self, n_components: int, log_likelihood: float) -> None:
        """Show a round: its components, and the leave-one-out log-likelihood per row."""
        values = {"components": f"{n_components:,}", "left-out": f"{log_likelihood:.4f}"}
        if self._bar is not None:
            self._bar.set_postfix(values, refresh=False)
            self._bar.update(1)
        elif self.verbose > 1:
            print("  ".join(f"{name} {value}" for name, value in values.items()), flush=True)


class PassProgress(Progress):
    """A bar over the rows of each pass, with the remaining time; `label` replaces its number."""

    def __init__(self, n_rows: int, verbose: int, done: int = 0, label: str = "") -> None:
        super().__init__(0, 0, 0)
        self.verbose = verbose
        self._n_rows = n_rows
        self._label = label
        self._done = done
        if verbose == 1:
            self._bar = self._new_bar()

    def _new_bar(self) -> Any:
        number, done = divmod(self._done, self._n_rows)
        return make_bar(
            total=self._n_rows,
            initial=done,
            desc=self._label or f"pass {number + 1}",
            unit=" rows",
            unit_scale=True,
        )

    def advance(self, n_steps: int, n_rows: int) -> None:
        if self._bar is None:
            return
        if self._done and self._done % self._n_rows == 0:
            close_bar(self._bar)
            self._bar = self._new_bar()
        self._bar.update(n_rows - self._done)
        self._done = n_rows
