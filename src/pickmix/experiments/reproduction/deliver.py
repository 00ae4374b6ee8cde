"""From the store to what a reader looks at: pictures and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pickmix.experiments.reproduction.drawing import figures
from pickmix.experiments.reproduction.experiments import Experiment, Scale
from pickmix.experiments.reproduction.store import Store
from pickmix.experiments.reproduction.tables import deep_tables, render
from pickmix.experiments.reproduction.tables.figure_tables import figure_tables

_TABLES: dict[str, Any] = {
    "table-best": deep_tables.best_table,
    "table-fixed": deep_tables.fixed_table,
    "table-all": deep_tables.all_table,
}


def deliver(experiment: Experiment, scale: Scale, store: Store, folder: Path) -> list[Path]:
    """Draw an experiment from what the store has of it; fit nothing.

    Returns
    -------
    list of Path
        What was written; empty if the store has no run of it.
    """
    runs = experiment.runs(scale)
    histories = {run.key: history for run in runs if (history := store.get(run)) is not None}
    if not histories:
        return []
    if experiment.figure is not None:
        path = folder / f"{experiment.name}.png"
        figure = experiment.figure(scale)
        if figures.draw(figure, histories, path) is None:
            return []
        numbers = render.write(figure_tables(figure, histories), folder, experiment.name)
        return [path, path.with_suffix(".pdf"), *numbers]
    tables = _TABLES[experiment.name](runs, histories)
    return render.write(tables, folder, experiment.name)
