"""Results of a bench: a tidy CSV file that grows run by run and survives interruption."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pickmix.data.files import replacing

TEXTS = ("setting", "rival", "kind", "outcome", "versions")
COLUMNS = (
    "setting",
    "rival",
    "seed",
    # "curve": on the way; "end": the result, the last row of a run.
    "kind",
    "seconds",
    "work_seconds",
    "compile_seconds",
    "evaluations_per_row",
    # Mean log-density per row: of all held-out rows, and of the first 5,000, as curves have it.
    "held_out",
    "held_out_some",
    "train",
    "true_held_out",
    "true_held_out_some",
    "live_components",
    "peak_megabytes",
    "outcome",
    "n_rows",
    "n_features",
    "n_components",
    "versions",
    "cpu_count",
    "load_average",
)
CURVE, END = "curve", "end"
# What a run says of itself before it fits; never in the file.
FACTS = "facts"
# Outcomes that a later attempt can change without any change in the software.
NOT_INSTALLED, NO_DATA = "not installed", "no data"
NOT_TRIED = (NOT_INSTALLED, NO_DATA)


class Run(NamedTuple):
    """One fit of the bench, by names."""

    setting: str
    rival: str
    seed: int


Row = dict[str, Any]


class Results:
    """Rows of a CSV file, with whole runs only.

    What an interrupted write left behind is ignored, and cleared away by the next `add`.

    Parameters
    ----------
    path : Path
        Need not exist yet.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     results = Results(Path(folder, "results.csv"))
    ...     run = Run("mixsim", "em", 0)
    ...     results.add(run, [{"kind": "end", "outcome": "converged", "seconds": 1.5}])
    ...     again = Results(results.path)
    >>> again.finished(run), again.rows[0]["seconds"], again.rows[0]["held_out"]
    (True, 1.5, nan)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = []
        self._must_rewrite = True
        if path.exists():
            self._read()

    def _read(self) -> None:
        with open(self.path, newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            if tuple(header) != COLUMNS:
                raise ValueError(
                    f"{self.path}: expected the columns {', '.join(COLUMNS)}, got "
                    f"{', '.join(header) or 'none'}"
                )
            lines = list(reader)
        rows = [_parse(line) for line in lines]
        whole = [row for row in rows if row is not None]
        ended = {_run(row) for row in whole if row["kind"] == END}
        self.rows = [row for row in whole if _run(row) in ended]
        self._must_rewrite = len(self.rows) != len(lines)

    def finished(self, run: Run) -> bool:
        """Whether a run is there and nothing would change if it were made again."""
        return any(
            _run(row) == run and row["kind"] == END and not row["outcome"].startswith(NOT_TRIED)
            for row in self.rows
        )

    def add(self, run: Run, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append the rows of a run, the last of kind "end", in the place of what it had."""
        new = [_complete({**row, **run._asdict()}) for row in rows]
        kept = [row for row in self.rows if _run(row) != run]
        replaces = len(kept) != len(self.rows)
        self.rows = kept + new
        if self._must_rewrite or replaces:
            with replacing(self.path) as temporary:
                _append(temporary, _lines(self.rows, header=True))
            self._must_rewrite = False
        else:
            _append(self.path, _lines(new))

    def of(self, setting: str, rival: str, kind: str) -> list[Row]:
        """Rows of one kind, all seeds, in the order they were made."""
        wanted = (setting, rival, kind)
        return [row for row in self.rows if (row["setting"], row["rival"], row["kind"]) == wanted]


def _run(row: Row) -> Run:
    return Run(row["setting"], row["rival"], row["seed"])


def _complete(row: Mapping[str, Any]) -> Row:
    """All columns, in order; what is not known is NaN or empty."""
    complete: Row = {}
    for name in COLUMNS:
        value = row.get(name)
        if name in TEXTS:
            # A line break would tear the line that a reader looks for.
            complete[name] = " ".join(str(value or "").split())
        elif name == "seed":
            complete[name] = int(row["seed"])
        else:
            complete[name] = math.nan if value is None else float(value)
    return complete


def _parse(line: list[str]) -> Row | None:
    if len(line) != len(COLUMNS):
        return None
    row = dict(zip(COLUMNS, line, strict=True))
    try:
        return _complete({name: value for name, value in row.items() if value != ""})
    except (ValueError, KeyError):
        return None


def _lines(rows: Iterable[Mapping[str, Any]], header: bool = False) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    if header:
        writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow(["" if _is_missing(row[name]) else _short(row[name]) for name in COLUMNS])
    return text.getvalue()


def _is_missing(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _short(value: Any) -> Any:
    # Counts are kept as floats; 100 reads better than 100.0.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _append(path: Path, text: str) -> None:
    """One write, on disk before this returns: a run is there as a whole or is made again."""
    with open(path, "a", newline="", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
