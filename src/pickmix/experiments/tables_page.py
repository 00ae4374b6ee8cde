"""The page of `pickmix bench tables`: a summary, and a line per table and number of components."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pickmix.experiments.comparison import (
    SCIKIT_LEARN,
    Case,
    Comparison,
    cases_of,
    challengers,
    compare,
)
from pickmix.experiments.results import Results
from pickmix.experiments.rivals import RIVALS
from pickmix.experiments.tables import (
    machine_line,
    measured,
    number,
    outcomes,
    pipe_table,
    significant,
)

PICTURE = "tables.png"
_ABOUT = """\
Each case is a table with a number of components K, which all rivals are told. Numbers are medians
over seeds; a seed is another start on the same rows. *Held-out* is the mean log-density per row of
rows that were not fitted, in nats. *Gain* is how much it is above that of scikit-learn: the better
of its starts that were run, with one thread in BLAS or with as many as there are cores, whichever
is faster. *Seconds* are wall time with the start, without compilation and without measuring.
`tables.csv` also has component evaluations and peak memory."""
_ABOUT_SUMMARY = """\
A *win* is a gain of more than 0.1 nats per row over the other, a *loss* is one of less than -0.1,
and the rest are ties. A rival whose runs all failed or were ended loses to one that finished.
Medians are over cases in which both finished; the ratio is the rival's seconds divided by the
other's."""


def markdown(
    results: Results, *, missing: Mapping[str, str] | None = None, picture: bool = False
) -> str:
    """Write the page.

    Parameters
    ----------
    results : Results
    missing : mapping of str to str, optional
        Tables that could not be read, and why.
    picture : bool
        Whether there is a picture `tables.png` beside the page.
    """
    cases = cases_of(results)
    parts = ["# Real tables: rivals in one harness", _ABOUT, _summary(cases)]
    if picture:
        parts.append(f"![Gain over scikit-learn and ratio of seconds, per table and K]({PICTURE})")
    parts += ["## Tables", _table(cases), _without_result(cases)]
    measured_tables = {case.table for case in cases}
    parts.append(
        _section(
            "## Missing tables",
            [
                f"- {name}: {reason}"
                for name, reason in (missing or {}).items()
                if name not in measured_tables
            ],
        )
    )
    parts.append(machine_line(results.rows))
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(title: str, lines: list[str]) -> str:
    return "\n\n".join([title, "\n".join(lines)]) if lines else ""


def _summary(cases: list[Case]) -> str:
    """Who wins how often, over all cases and for each K."""
    rivals = challengers(cases)
    pairs = [(rival, SCIKIT_LEARN) for rival in rivals]
    if {"pickmix", "em"} <= set(rivals):
        pairs.insert(1, ("pickmix", "em"))
    lines = []
    for rival, other in pairs:
        whole = compare(cases, rival, other)
        if whole.n_cases == 0:
            continue
        lines.append(_summary_line(rival, other, "all", whole))
        for K in sorted({case.n_components for case in cases}):
            some = compare([case for case in cases if case.n_components == K], rival, other)
            if some.n_cases:
                lines.append(_summary_line("", "", f"{K:,}", some))
    if not lines:
        return ""
    header = ["", "against", "K", "cases", "wins", "ties", "losses", "median gain"]
    header.append("median ratio of seconds")
    dashes = ["---", "---", *["---:"] * (len(header) - 2)]
    return "\n\n".join(["## Summary", pipe_table([header, dashes, *lines]), _ABOUT_SUMMARY])


def _summary_line(rival: str, other: str, K: str, comparison: Comparison) -> list[str]:
    counts = (comparison.n_cases, comparison.wins, comparison.ties, comparison.losses)
    return [
        rival,
        other,
        K,
        *map(str, counts),
        signed(comparison.median_gain),
        significant(comparison.median_seconds_ratio),
    ]


def _table(cases: list[Case]) -> str:
    found = {rival for case in cases for rival in case.ends}
    rivals = [name for name in RIVALS if name in found] + sorted(found.difference(RIVALS))
    against = challengers(cases) if any(SCIKIT_LEARN in case.held_out for case in cases) else []
    header = ["table", "K", "rows", "columns"]
    header += [f"held-out, {rival}" for rival in rivals]
    header += [f"gain, {rival}" for rival in against]
    header += [f"seconds, {rival}" for rival in rivals]
    lines = [header, ["---"] + ["---:"] * (len(header) - 1)]
    for case in cases:
        line = [case.table, f"{case.n_components:,}"]
        line += [number(case.n_rows, 0), number(case.n_features, 0)]
        line += [number(case.held_out.get(rival, math.nan), 3) for rival in rivals]
        line += [signed(case.gain(rival)) for rival in against]
        line += [significant(case.seconds.get(rival, math.nan)) for rival in rivals]
        lines.append(line)
    return pipe_table(lines)


def _without_result(cases: list[Case]) -> str:
    lines = []
    for case in cases:
        for rival, rows in case.ends.items():
            good = measured(rows)
            bad = [row for row in rows if row not in good]
            if bad:
                lines.append(f"- {case.table}, K = {case.n_components:,}, {rival}: {outcomes(bad)}")
    return _section("## Runs without a result", lines)


def signed(value: float) -> str:
    """Three digits after the point and a sign; a dash for NaN.

    Examples
    --------
    >>> signed(0.25), signed(-1200.0), signed(float("nan"))
    ('+0.250', '-1,200.000', '–')
    """
    return "–" if math.isnan(value) else f"{value:+,.3f}"
