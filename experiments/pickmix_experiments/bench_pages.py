"""Pages and a picture of the benches, from a frame with a row for each run; medians over seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.figure
import numpy as np
from matplotlib import rc_context
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from pickmix.inspection.displays.colours import (
    BLACK,
    BLUE,
    GREEN,
    GRID,
    INK,
    ORANGE,
    PURPLE,
    VERMILION,
)
from pickmix_experiments.baselines import BASELINES, SKLEARN_PAIRS
from pickmix_experiments.bench_data import SETTINGS, TABLES, parse_name
from pickmix_experiments.drawing import RC, look_of
from pickmix_experiments.store import NOT_TRIED, Store, frame_of, median
from pickmix_experiments.tables import MISSING, pipes

# Stands for the better of scikit-learn's starts, in the faster of its two forms.
SCIKIT_LEARN = "scikit-learn"
# Differences in held-out log-likelihood per row up to this many nats are ties.
TIE = 0.1
# Messages of other libraries are long; the file of results has them whole.
_LONGEST_OUTCOME = 60
_ABOUT_GAUSSIAN = """\
Medians over seeds; a seed is other rows and another start. *Held-out* is the mean log-density per
row of rows that were not fitted, *short of the truth* how much that of the mixture which made them
is above it. *Seconds* are wall time with the start, without compilation and without measuring;
they are compared with those of the better of scikit-learn's two starts, with one thread in BLAS or
with as many as there are cores, whichever is faster. *Evaluations* are those of a component on a
row, divided by the number of rows, without the start. *Live* components weigh at least half a row.
*Memory* is the peak above what the data and the libraries took before the fit."""
_ABOUT_TABLES = """\
Each case is a table and a number of components K, the same for all rivals. Numbers are medians
over seeds; a seed is another start on the same rows. *Held-out* is the mean log-density per row of
rows that were not fitted, in nats. *Gain* is how much it is above that of scikit-learn: the better
of its starts that were run, with one thread in BLAS or with as many as there are cores, whichever
is faster. *Seconds* are wall time with the start, without compilation and without measuring.
`tables.jsonl` also has component evaluations and peak memory."""
_ABOUT_SUMMARY = """\
A *win* is a gain of more than 0.1 nats per row over the other, a *loss* is one of less than -0.1,
and the rest are ties. A rival whose runs all failed or were ended loses to one that finished.
Medians are over cases in which both finished; the ratio is the rival's seconds divided by the
other's."""


def ends_of(store: Store) -> Any:
    """Return a frame of all runs, `rival` for what fitted, NaN for values that are not finite."""
    histories = store.histories()
    frame = frame_of([history.run for history in histories.values()], histories, every=True)
    return frame.rename(columns={"algorithm": "rival"}).replace([np.inf, -np.inf], np.nan)


def ordered(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return names, each once, in the order of those that are known, unknown ones last."""
    names = list(dict.fromkeys(names))
    return sorted(names, key=[*known, *names].index)


def find_reference(ends: Any) -> str | None:
    """Return the better of scikit-learn's starts, and of its ways to use threads the faster."""
    medians = ends[ends["test"].notna()].groupby("rival")[["test", "seconds"]].median()
    pairs = [medians[medians.index.isin(pair)] for pair in SKLEARN_PAIRS]
    better = max(filter(len, pairs), key=lambda pair: pair["test"].max(), default=None)
    return None if better is None else str(better["seconds"].idxmin())


def gaussian_page(ends: Any, pictures: Iterable[str] = ()) -> str:
    """Return the page of `pickmix bench gaussian`; `pictures` are settings that have one."""
    parts = ["# Gaussian mixtures: rivals in one harness", _ABOUT_GAUSSIAN]
    for setting in ordered(ends["setting"], SETTINGS):
        parts.append(f"## {setting}")
        if setting in SETTINGS:
            summary = SETTINGS[setting].summary
            parts.append(f"{summary[0].upper()}{summary[1:]}.")
        parts.append(setting_table(ends[ends["setting"] == setting]))
        if setting in pictures:
            parts.append(f"![Held-out log-likelihood, {setting}](gaussian-{setting}.png)")
    return _page(*parts, machine_line(ends))


def _page(*parts: str) -> str:
    return "\n\n".join(filter(None, parts)) + "\n"


def setting_table(ends: Any) -> str:
    """Return the table of one setting: a line per baseline."""
    rivals = ordered(ends["rival"], BASELINES)
    # Differences are those of each seed: rows of different seeds differ more than rivals do.
    ends = ends.assign(short=ends["true_test"] - ends["test"])
    measured = ["test", "short", "seconds", "evaluations", "live_components", "peak_megabytes"]
    good = ends[ends["test"].notna()].groupby("rival")[measured].median().reindex(rivals)
    columns = {"held-out": good["test"].map(partial(number, digits=3))}
    # Each seed once, from whichever rival knows the truth of its rows.
    truth = median(ends.dropna(subset=["true_test"]).drop_duplicates("seed")["true_test"])
    if math.isfinite(truth):
        columns["short of the truth"] = good["short"].map(partial(number, digits=3))
    columns["seconds"] = good["seconds"].map(significant)
    if reference := find_reference(ends):
        ratios = good["seconds"] / good["seconds"][reference]
        columns[f"seconds ÷ {reference}'s"] = ratios.map(significant)
    for name, key in zip(("evaluations per row", "live", "memory, MB"), measured[3:], strict=True):
        columns[name] = good[key].map(partial(number, digits=0))
    columns["outcome"] = ends.groupby("rival")["outcome"].agg(outcomes)
    lines = [[rival, *(column[rival] for column in columns.values())] for rival in rivals]
    if math.isfinite(truth):
        lines.insert(0, ["*true mixture*", f"{truth:.3f}", "0", *[""] * (len(columns) - 2)])
    return pipes(["", *columns], lines, (0, -1))


class Comparison(NamedTuple):
    """How one rival did against another; medians are over the cases that both ended on."""

    wins: int
    ties: int
    losses: int
    median_gain: float
    median_seconds_ratio: float


class Cases:
    """Tables with a number of components each, and who was better how often.

    `cases` are settings to (table, K), by table in the order of `TABLES` and by K. Frames
    `held_out` and `seconds` hold medians over seeds, with a row for each case and a column for each
    rival and for `SCIKIT_LEARN`. NaN is where no run came to its end; `tried` says where a rival
    was tried.
    """

    def __init__(self, ends: Any) -> None:
        cases = {name: case for name in ends["setting"].unique() if (case := parse_name(name))}
        # Tables that are no longer known come last.
        rank = {name: number for number, name in enumerate(TABLES)}
        order = sorted(cases, key=lambda name: (rank.get(cases[name][0], len(rank)), cases[name]))
        self.cases = {name: cases[name] for name in order}
        self.ends = ends = ends[ends["setting"].isin(self.cases)]
        self.rivals = ordered(ends["rival"], BASELINES)
        good = ends[ends["test"].notna()]
        tried = ends[~ends["outcome"].str.startswith(NOT_TRIED)]
        self.held_out, self.seconds, counts = (
            runs.pivot_table(value, "setting", "rival", how)
            .reindex(index=list(self.cases), columns=self.rivals)
            .astype(float)
            for runs, value, how in (
                (good, "test", "median"),
                (good, "seconds", "median"),
                (tried, "seed", "count"),
            )
        )
        self.tried = counts.notna()
        references = [find_reference(ends[ends["setting"] == name]) for name in self.cases]
        for values in (self.held_out, self.seconds):
            rows = zip(values.to_dict("records"), references, strict=True)
            values[SCIKIT_LEARN] = [row[name] if name else math.nan for row, name in rows]
        sklearn = [name for pair in SKLEARN_PAIRS for name in pair if name in self.rivals]
        self.tried[SCIKIT_LEARN] = self.tried[sklearn].any(axis=1)

    def challengers(self) -> list[str]:
        """Return baselines that are not scikit-learn's; the library's default first."""
        others = [name for name in self.rivals if not any(name in pair for pair in SKLEARN_PAIRS)]
        return sorted(others, key=lambda rival: rival != "pickmix")

    def gains(self, rival: str, other: str = SCIKIT_LEARN) -> Any:
        """Return held-out log-likelihoods per row minus the other's, by case."""
        return self.held_out[rival] - self.held_out[other]

    def ratios(self, rival: str, other: str = SCIKIT_LEARN) -> Any:
        return self.seconds[rival] / self.seconds[other]

    def compare(self, rival: str, other: str = SCIKIT_LEARN, K: int | None = None) -> Comparison:
        """Compare two rivals over all cases, or those of one K, that both were tried on."""
        shared = self.tried[rival] & self.tried[other]
        shared &= np.array([K in (None, its_K) for _, its_K in self.cases.values()], dtype=bool)
        gains = self.gains(rival, other)[shared]
        # An unfinished run loses against a finished one; two unfinished ones do not count.
        lost = self.held_out[shared][[rival, other]].isna()
        decided = gains.mask(lost[rival] & ~lost[other], -np.inf)
        decided = decided.mask(lost[other] & ~lost[rival], np.inf)
        return Comparison(
            int((decided > TIE).sum()),
            int((decided.abs() <= TIE).sum()),
            int((decided < -TIE).sum()),
            median(gains),
            median(self.ratios(rival, other)[shared]),
        )


def tables_page(
    ends: Any, *, missing: Mapping[str, str] | None = None, picture: bool = False
) -> str:
    """Return the page of `pickmix bench tables`.

    It names tables that are missing, and why, and shows the picture if there is one beside it.
    """
    cases = Cases(ends)
    parts = ["# Real tables: rivals in one harness", _ABOUT_TABLES, _summary(cases)]
    if picture:
        parts.append("![Gain over scikit-learn and ratio of seconds, per table and K](tables.png)")
    parts += ["## Tables", _cases_table(cases)]
    lost = cases.ends[cases.ends["test"].isna()].groupby(["setting", "rival"])["outcome"]
    endings = dict(lost.agg(outcomes))
    bad = [
        f"- {table}, K = {K:,}, {rival}: {endings[name, rival]}"
        for name, (table, K) in cases.cases.items()
        for rival in cases.rivals
        if (name, rival) in endings
    ]
    measured = {table for table, _ in cases.cases.values()}
    lines = [f"- {name}: {why}" for name, why in (missing or {}).items() if name not in measured]
    for title, items in (("Runs without a result", bad), ("Missing tables", lines)):
        parts += [f"## {title}", "\n".join(items)] if items else []
    return _page(*parts, machine_line(ends))


def _summary(cases: Cases) -> str:
    """Who wins how often, over all cases and for each K."""
    rivals = cases.challengers()
    pairs = [(rival, SCIKIT_LEARN) for rival in rivals]
    if {"pickmix", "em"} <= set(rivals):
        pairs.insert(1, ("pickmix", "em"))
    lines = []
    for rival, other in pairs:
        for K in (None, *sorted({K for _, K in cases.cases.values()})):
            *counts, gain, ratio = cases.compare(rival, other, K)
            if sum(counts):
                line = [rival, other, "all"] if K is None else ["", "", f"{K:,}"]
                line += map(str, (sum(counts), *counts))
                lines.append([*line, signed(gain), significant(ratio)])
    if not lines:
        return ""
    header = ["", "against", "K", "cases", "wins", "ties", "losses", "median gain"]
    header.append("median ratio of seconds")
    return "\n\n".join(["## Summary", pipes(header, lines, (0, 1)), _ABOUT_SUMMARY])


def _cases_table(cases: Cases) -> str:
    sizes = cases.ends.groupby("setting")[["n_rows", "n_features"]].median()
    against = cases.challengers() if cases.tried[SCIKIT_LEARN].any() else []
    whole, exact = partial(number, digits=0), partial(number, digits=3)
    columns = {"rows": sizes["n_rows"].map(whole), "columns": sizes["n_features"].map(whole)}
    columns |= {f"held-out, {r}": cases.held_out[r].map(exact) for r in cases.rivals}
    columns |= {f"gain, {r}": cases.gains(r).map(signed) for r in against}
    columns |= {f"seconds, {r}": cases.seconds[r].map(significant) for r in cases.rivals}
    lines = [
        [table, f"{K:,}", *(column[name] for column in columns.values())]
        for name, (table, K) in cases.cases.items()
    ]
    return pipes(["table", "K", *columns], lines)


def outcomes(endings: Iterable[str]) -> str:
    """How the runs of all seeds ended: "2 converged, 1 timed out after 60 s"."""
    texts = [" ".join(text.replace("|", "/").split()) for text in endings]
    short = [t if len(t) <= _LONGEST_OUTCOME else f"{t[: _LONGEST_OUTCOME - 1]}…" for t in texts]
    return ", ".join(f"{count} {outcome}" for outcome, count in Counter(short).items())


def number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}" if math.isfinite(value) else MISSING


def significant(value: float) -> str:
    """Write three significant digits, never with an exponent."""
    if value == 0.0 or not math.isfinite(value):
        return "0" if value == 0.0 else MISSING
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def signed(value: float) -> str:
    return f"{value:+,.3f}" if math.isfinite(value) else MISSING


def machine_line(ends: Any) -> str:
    """Name what the numbers were made with, and how busy the machine was."""
    cores = sorted({int(threads) for threads in ends["threads"].dropna()})
    if not cores:
        return ""
    parts = {part for versions in ends["versions"] for part in versions.split("; ") if part}
    loads = ends["load_average"].dropna()
    busy = ""
    if len(loads):
        busy = f"; load average at the start of a run {loads.min():.1f} to {loads.max():.1f}"
    return f"{' or '.join(map(str, cores))} cores{busy}. {', '.join(sorted(parts))}."


_COLOURS = (BLUE, ORANGE, VERMILION, GREEN, PURPLE, BLACK)
# Of the height of a table's line: what the dots of its numbers of components spread over.
_SPREAD = 0.5
_INCHES_PER_TABLE = 0.32


def draw_gains(cases: Cases, path: Path) -> Path | None:
    """Draw all cases; None if none of them can be compared with scikit-learn.

    A line is a table. Colours are numbers of components, markers are rivals: full for the first,
    hollow for the others.
    """
    rivals = cases.challengers()
    gained = cases.held_out[rivals].notna().any(axis=1) & cases.held_out[SCIKIT_LEARN].notna()
    tables = list(dict.fromkeys(cases.cases[name][0] for name in gained.index[gained]))
    if not tables:
        return None
    with rc_context({**RC, "axes.grid.axis": "y"}):
        size = (11.0, 2.2 + _INCHES_PER_TABLE * len(tables))
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        gains, ratios = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        # Linear within ties, which would otherwise fill the picture with noise.
        gains.set_xscale("symlog", linthresh=TIE)
        ratios.set_xscale("log")
        for axes, values in ((gains, cases.gains), (ratios, cases.ratios)):
            for rival in rivals:
                _draw_dots(axes, cases, values(rival).dropna(), rival, tables)
        gains.axvspan(-TIE, TIE, color=GRID, zorder=0)
        gains.axvline(0.0, color=INK, linewidth=1.0, zorder=1)
        gains.set_xlabel("gain over scikit-learn, nats per held-out row (grey: ties)")
        gains.set_yticks(range(len(tables)), tables)
        gains.set_ylim(len(tables) - 0.4, -0.6)
        ratios.axvline(1.0, color=INK, linewidth=1.0, zorder=1)
        ratios.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ratios.xaxis.set_minor_locator(NullLocator())
        ratios.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
        ratios.set_xlabel("seconds ÷ scikit-learn's")
        handles, labels = gains.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=6, frameon=False)
        figure.savefig(path, dpi=150)
    return path


def _draw_dots(axes: Any, cases: Cases, values: Any, rival: str, tables: list[str]) -> None:
    components = sorted({K for table, K in cases.cases.values() if table in tables})
    first = rival == cases.challengers()[0]
    for rank, K in enumerate(components):
        shift = _SPREAD * ((rank + 0.5) / len(components) - 0.5)
        colour = _COLOURS[rank % len(_COLOURS)]
        of_K = values[[cases.cases[name][1] == K for name in values.index]]
        if len(of_K):
            heights = [tables.index(cases.cases[name][0]) + shift for name in of_K.index]
            look = {"marker": look_of(rival).marker, "markersize": 7 if first else 6}
            look |= {"markerfacecolor": colour if first else "none", "markeredgecolor": colour}
            # Dots at the edge are drawn whole.
            look |= {"linestyle": "none", "clip_on": False, "zorder": 3 if first else 2}
            axes.plot(of_K, heights, **look, label=f"{rival}, K = {K:,}")
