"""The results store: tidy Parquet, one row per evaluation, whole runs only.

A run that has finished is written to a file of its own under its key, in one move, so that a killed
process leaves whole runs or nothing. `compact` gathers these files into one. Rows repeat what is
known of their run, which costs next to nothing in a columnar file and lets any tool read it alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from pickmix.data.files import replacing
from pickmix.experiments.reproduction.history import COMPLETE, FACTS, SERIES, TEXTS, History
from pickmix.experiments.reproduction.runs import ConvergenceRun, DeepRun, GaussianRun, Run

_KINDS: dict[str, type[Run]] = {kind.kind: kind for kind in (GaussianRun, ConvergenceRun, DeepRun)}
_SETTINGS_TEXTS = ("kind", "algorithm", "dataset", "protocol", "model")
_SETTINGS_NUMBERS = (
    *("version", "T", "D", "K", "N", "omega", "B", "M", "annealing"),
    *("first_steps", "step_size", "s", "b", "l"),
)


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            "The results store needs pyarrow: pip install 'pickmix[reproduce]'"
        ) from error
    return pyarrow


class Store:
    """Histories of runs in a folder.

    Parameters
    ----------
    folder : Path
        Need not exist yet. Holds `results.parquet` and, until `compact`, `runs/*.parquet`.

    Examples
    --------
    >>> import tempfile
    >>> run = GaussianRun("EM", 10, 0)
    >>> series = {name: np.array([1.0, 2.0]) for name in SERIES}
    >>> facts = {name: "max_steps" if name in TEXTS else 0.5 for name in FACTS}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Store(Path(folder)).add(History(run, series, facts))
    ...     found = Store(Path(folder)).get(run)
    >>> found.series["seconds"], found.facts["test"]
    (array([1., 2.]), 0.5)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._histories: dict[str, History] = {}
        paths = [self._all, *sorted(self._parts.glob("*.parquet"))]
        for path in paths:
            if path.exists():
                for history in _read(path):
                    self._histories[history.run.key] = history

    @property
    def _all(self) -> Path:
        return self.folder / "results.parquet"

    @property
    def _parts(self) -> Path:
        return self.folder / "runs"

    def get(self, run: Run) -> History | None:
        """The history of a run, if it is there."""
        return self._histories.get(run.key)

    def histories(self) -> dict[str, History]:
        """All histories by the keys of their runs."""
        return dict(self._histories)

    def has(self, run: Run, limit_seconds: float | None = None) -> bool:
        """Whether nothing would be gained by making a run under this limit.

        A run that a limit broke off has to be made again if it may now take longer; one that
        failed has not, as it would fail again.
        """
        history = self.get(run)
        if history is None:
            return False
        if history.facts["outcome"] in COMPLETE:
            return True
        before = float(history.facts["limit_seconds"])
        if history.facts["outcome"] != "max_time" or math.isnan(before):
            return True
        return limit_seconds is not None and limit_seconds <= before

    def add(self, history: History) -> None:
        """Keep a history, in the place of a former one of the same run."""
        self._parts.mkdir(parents=True, exist_ok=True)
        _write(self._parts / f"{history.run.key}.parquet", [history])
        self._histories[history.run.key] = history

    def compact(self) -> None:
        """Gather all runs into one file.

        Killed at any point, it leaves every run in the one file, in its own, or in both.
        """
        parts = sorted(self._parts.glob("*.parquet"))
        if not parts:
            return
        ordered = sorted(self._histories.values(), key=_order)
        _write(self._all, ordered)
        for path in parts:
            path.unlink()
        self._parts.rmdir()


def _order(history: History) -> tuple[str, str, str, int]:
    # Alike rows beside each other: small files, and the same file whoever finished first.
    run = history.run
    return (run.kind, run.algorithm, json.dumps(run.settings(), sort_keys=True), run.seed)


def _write(path: Path, histories: Iterable[History]) -> None:
    arrow = _pyarrow()
    columns: dict[str, list[Any]] = {}
    schema = [("key", arrow.string()), ("spec", arrow.string()), ("seed", arrow.int64())]
    schema += [(name, arrow.string()) for name in _SETTINGS_TEXTS]
    schema += [(name, arrow.float64()) for name in _SETTINGS_NUMBERS]
    schema += [(name, arrow.float64()) for name in SERIES]
    schema += [(name, arrow.string() if name in TEXTS else arrow.float64()) for name in FACTS]
    for name, _ in schema:
        columns[name] = []
    for history in histories:
        run = history.run
        n = history.series["step"].shape[0]
        settings = run.settings()
        same: dict[str, Any] = {"key": run.key, "spec": run.spec, "seed": run.seed, **history.facts}
        same.update({name: settings.get(name) for name in _SETTINGS_TEXTS + _SETTINGS_NUMBERS})
        for name, _ in schema:
            if name in SERIES:
                columns[name].extend(history.series[name].tolist())
            else:
                value = same[name]
                columns[name].extend([float(value) if isinstance(value, bool) else value] * n)
    table = arrow.table(
        {name: arrow.array(columns[name], type=kind, from_pandas=True) for name, kind in schema}
    )
    with replacing(path) as temporary:
        arrow.parquet.write_table(table, temporary, compression="zstd")


def _read(path: Path) -> Iterator[History]:
    table = _pyarrow().parquet.read_table(path)
    columns = {
        name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names
    }
    keys = columns["key"]
    if keys.size == 0:
        return
    # Rows of a run lie together.
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    for start, end in zip(starts, np.r_[starts[1:], keys.size], strict=True):
        rows = slice(start, end)
        run = _run(columns, int(start))
        if run is None or run.key != keys[start]:
            # Of a version whose runs mean something else.
            continue
        facts = {
            name: columns[name][start] if name in TEXTS else float(columns[name][start])
            for name in FACTS
        }
        yield History(run, {name: columns[name][rows].copy() for name in SERIES}, facts)


def _run(columns: dict[str, np.ndarray], row: int) -> Run | None:
    """Make a run again from the row's settings; None if they do not fit."""
    kind = _KINDS.get(columns["kind"][row])
    if kind is None:
        return None
    values: dict[str, Any] = {"seed": int(columns["seed"][row])}
    for field in fields(kind):
        name = field.name
        if name == "seed":
            continue
        value = columns[name][row]
        if value is None or (isinstance(value, float) and math.isnan(value)):
            values[name] = None
        elif field.type == "bool":
            values[name] = bool(value)
        elif field.type in ("int", "int | None"):
            values[name] = int(value)
        else:
            values[name] = value if isinstance(value, str) else float(value)
    return kind(**values)
