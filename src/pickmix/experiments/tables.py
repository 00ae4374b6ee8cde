"""The page of `pickmix bench gaussian`: a Markdown table per setting, medians over seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np

from pickmix.experiments.results import END, Results, Row
from pickmix.experiments.rivals import RIVALS, YARDSTICKS
from pickmix.experiments.settings import SETTINGS

# Other libraries' messages go on; the CSV file has them whole.
_LONGEST_OUTCOME = 60
_ABOUT = """\
Medians over seeds; a seed is other rows and another start. *Held-out* is the mean log-density per
row of rows that were not fitted, *short of the truth* how much that of the mixture which made them
is above it. *Seconds* are wall time with the start, without compilation and without measuring;
they are compared with those of the better of scikit-learn's two starts, with one thread in BLAS or
with as many as there are cores, whichever is faster. *Evaluations* are those of a component on a
row, divided by the number of rows, without the start. *Live* components weigh at least half a row.
*Memory* is the peak above what the data and the libraries took before the fit."""


def markdown(results: Results, *, pictures: Iterable[str] = ()) -> str:
    """Write the page.

    Parameters
    ----------
    results : Results
    pictures : iterable of str
        Settings of which there is a picture `gaussian-<setting>.png` beside the page.
    """
    pictures = set(pictures)
    parts = ["# Gaussian mixtures: rivals in one harness", _ABOUT]
    for setting in settings_of(results):
        parts.append(f"## {setting}")
        if setting in SETTINGS:
            summary = SETTINGS[setting].summary
            parts.append(f"{summary[0].upper()}{summary[1:]}.")
        parts.append(table(results, setting))
        if setting in pictures:
            parts.append(f"![Held-out log-likelihood, {setting}](gaussian-{setting}.png)")
    machine = machine_line(results.rows)
    return "\n\n".join(part for part in [*parts, machine] if part) + "\n"


def settings_of(results: Results) -> list[str]:
    """Settings that there are rows of, in the order of `SETTINGS`, unknown ones last."""
    found = dict.fromkeys(row["setting"] for row in results.rows)
    return [name for name in SETTINGS if name in found] + [n for n in found if n not in SETTINGS]


def rivals_of(results: Results, setting: str) -> list[str]:
    """Rivals that there are rows of in a setting, in the order of `RIVALS`, unknown ones last."""
    found = dict.fromkeys(row["rival"] for row in results.rows if row["setting"] == setting)
    return [name for name in RIVALS if name in found] + [n for n in found if n not in RIVALS]


def table(results: Results, setting: str) -> str:
    """Write the table of one setting."""
    rivals = rivals_of(results, setting)
    ends = {rival: results.of(setting, rival, END) for rival in rivals}
    yardstick = find_yardstick(ends)
    truth = median(_once_per_seed(ends), "true_held_out")
    header = ["", "held-out"]
    if not math.isnan(truth):
        header.append("short of the truth")
    header.append("seconds")
    if yardstick is not None:
        header.append(f"seconds ÷ {yardstick}'s")
    header += ["evaluations per row", "live", "memory, MB", "outcome"]
    lines = [header, ["---"] + ["---:"] * (len(header) - 2) + ["---"]]
    if not math.isnan(truth):
        lines.append(["*true mixture*", f"{truth:.3f}", "0", *[""] * (len(header) - 3)])
    for rival in rivals:
        good = measured(ends[rival])
        line = [rival, number(median(good, "held_out"), 3)]
        if not math.isnan(truth):
            # The difference of each seed: rows of different seeds differ more than rivals do.
            gaps = [row["true_held_out"] - row["held_out"] for row in good]
            line.append(number(median_of(gaps), 3))
        seconds = median(good, "seconds")
        line.append(significant(seconds))
        if yardstick is not None:
            line.append(significant(seconds / median(measured(ends[yardstick]), "seconds")))
        line += [
            number(median(good, "evaluations_per_row"), 0),
            number(median(good, "live_components"), 0),
            number(median(good, "peak_megabytes"), 0),
            outcomes(ends[rival]),
        ]
        lines.append(line)
    return pipe_table(lines)


def pipe_table(lines: Iterable[Iterable[str]]) -> str:
    """Put cells into Markdown; the second line holds the dashes below the header."""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def median(rows: Iterable[Row], column: str) -> float:
    """Median of a column; NaN without values."""
    return median_of([row[column] for row in rows])


def median_of(values: Iterable[float]) -> float:
    """Median of the values that are not NaN; NaN without any."""
    known = [value for value in values if not math.isnan(value)]
    return float(np.median(known)) if known else math.nan


def measured(rows: Iterable[Row]) -> list[Row]:
    """Rows of runs that came to an end with a mixture."""
    return [row for row in rows if not math.isnan(row["held_out"])]


def find_yardstick(ends: dict[str, list[Row]]) -> str | None:
    """The better of scikit-learn's starts, and of its ways to use threads the faster."""
    good = {name: measured(ends.get(name, [])) for pair in YARDSTICKS for name in pair}
    pairs = [[name for name in pair if good[name]] for pair in YARDSTICKS]
    known = [pair for pair in pairs if pair]
    if not known:
        return None
    better = max(known, key=lambda pair: max(median(good[name], "held_out") for name in pair))
    return min(better, key=lambda name: median(good[name], "seconds"))


def _once_per_seed(ends: dict[str, list[Row]]) -> list[Row]:
    """One row for each seed, of whichever rival knows the truth of its rows."""
    by_seed = {
        row["seed"]: row
        for rows in ends.values()
        for row in rows
        if not math.isnan(row["true_held_out"])
    }
    return list(by_seed.values())


def outcomes(rows: Iterable[Row]) -> str:
    """How the runs of all seeds ended: "2 converged, 1 timed out after 60 s"."""
    counts = Counter(_shortened(row["outcome"].replace("|", "/")) for row in rows)
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items())


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_OUTCOME else f"{text[: _LONGEST_OUTCOME - 1]}…"


def number(value: float, digits: int) -> str:
    """So many digits after the point; a dash for NaN."""
    return "–" if math.isnan(value) else f"{value:,.{digits}f}"


def significant(value: float) -> str:
    """Three significant digits, never with an exponent."""
    if math.isnan(value):
        return "–"
    if value == 0.0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def machine_line(rows: list[Row]) -> str:
    """What the numbers were made with, and how busy the machine was."""
    cores = sorted({int(row["cpu_count"]) for row in rows if not math.isnan(row["cpu_count"])})
    if not cores:
        return ""
    versions = sorted({part for row in rows for part in row["versions"].split("; ") if part})
    loads = [row["load_average"] for row in rows if not math.isnan(row["load_average"])]
    busy = ""
    if loads:
        busy = f"; load average at the start of a run {min(loads):.1f} to {max(loads):.1f}"
    return f"{' or '.join(map(str, cores))} cores{busy}. {', '.join(versions)}."
