"""The page and the pictures of a bench, from a frame with a row for each run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pickmix_experiments.catalogue import Figure, Panel
from pickmix_experiments.datasets import DATASETS, parse_setting
from pickmix_experiments.drawing import draw
from pickmix_experiments.methods import METHODS, SKLEARN_PAIRS
from pickmix_experiments.store import NOT_TRIED, Rows, frame_of, median
from pickmix_experiments.tables import MISSING, pipes

# Stands for the better of scikit-learn's starts, in the faster of its two forms.
SCIKIT_LEARN = "scikit-learn"
# Differences in held-out log-likelihood per row up to this many nats are ties.
TIE = 0.1
# Messages of other libraries are long; the file of results has them whole.
_LONGEST_OUTCOME = 60
_ABOUT = """\
Medians over seeds. *Held-out* is the mean log-density per row of rows that were not fitted, in
nats; *gain* is how much it is above that of scikit-learn, *short of the truth* how much that of the
mixture which made the rows is above it. *Seconds* are wall time with the start, without compilation
and without measuring. scikit-learn is the better of its starts that were run, with one thread in
BLAS or with as many as there are cores, whichever is faster. *Evaluations* are those of a component
on a row, divided by the number of rows, without the start. *Live* components weigh at least half a
row. *Memory* is the peak above what the data and the libraries took before the fit."""
_ABOUT_SUMMARY = """\
A case is a data set with a number of components. A *win* is a gain of more than 0.1 nats per row
over the other, a *loss* is one of less than -0.1, and the rest are ties. A rival whose runs all
failed or were ended loses to one that finished. Medians are over cases in which both finished; the
ratio is the rival's seconds divided by the other's."""
_MEASURED = ("test", "short", "seconds", "evaluations", "live_components", "peak_megabytes")


class Comparison(NamedTuple):
    """How one rival did against another; medians are over the cases that both ended on."""

    wins: int
    ties: int
    losses: int
    median_gain: float
    median_ratio: float


def case_of(setting: str) -> tuple[str, int]:
    """Return the name of the data and K."""
    known = DATASETS.get(setting)
    return (setting, known.n_components or 0) if known else parse_setting(setting) or (setting, 0)


def find_reference(results: Any) -> str | None:
    """Return the better of scikit-learn's starts, and of its ways to use threads the faster."""
    finished = results[results["test"].notna()]
    pairs = [finished[finished.index.isin(pair)] for pair in SKLEARN_PAIRS]
    better = max(filter(len, pairs), key=lambda pair: pair["test"].max(), default=None)
    return None if better is None else str(better["seconds"].idxmin())


class Cases:
    """Settings, and who was better how often: medians over seeds.

    The frame `results` has a row for each (setting, rival). Frames `held_out`, `seconds` and
    `tried` have a row for each setting and a column for each rival and for `SCIKIT_LEARN`; NaN is
    where no run came to its end.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        runs = frame_of(rows, every=True).rename(columns={"algorithm": "rival"})
        runs = runs.replace([np.inf, -np.inf], np.nan)
        # Differences are those of each seed: rows of different seeds differ more than rivals do.
        runs["short"] = runs["true_test"] - runs["test"]
        runs["tried"] = ~runs["outcome"].str.startswith(NOT_TRIED)
        self.runs, self.rivals = runs, _ordered(runs["rival"], METHODS)
        cases = {setting: case_of(setting) for setting in runs["setting"].unique()}
        names = _ordered((name for name, _ in cases.values()), DATASETS)
        order = sorted(cases, key=lambda setting: (names.index(cases[setting][0]), cases[setting]))
        self.cases = {setting: cases[setting] for setting in order}

        groups = runs.groupby(["setting", "rival"])
        good = runs[runs["test"].notna()].groupby(["setting", "rival"])
        results = groups[["n_rows", "n_features"]].median().join(good[list(_MEASURED)].median())
        outcome, tried = groups["outcome"].agg(outcomes), groups["tried"].any()
        self.results = results.assign(outcome=outcome, tried=tried)
        wide = self.results.unstack().reindex(order)
        self.held_out, self.seconds = wide["test"].copy(), wide["seconds"].copy()
        self.tried = wide["tried"].eq(True)
        references = {name: find_reference(results.loc[name]) for name in order}
        for values in (self.held_out, self.seconds):
            values[SCIKIT_LEARN] = [
                values.loc[setting, name] if name else math.nan
                for setting, name in references.items()
            ]
        sklearn = [name for pair in SKLEARN_PAIRS for name in pair if name in self.rivals]
        self.tried[SCIKIT_LEARN] = self.tried[sklearn].any(axis=1)

    def challengers(self) -> list[str]:
        """Return rivals that are not scikit-learn's; the library's default first."""
        others = [name for name in self.rivals if not any(name in pair for pair in SKLEARN_PAIRS)]
        return sorted(others, key=lambda rival: rival != "pickmix")

    def gains(self, rival: str, other: str = SCIKIT_LEARN) -> Any:
        """Return held-out log-likelihoods per row minus the other's, by setting."""
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


def _ordered(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return names, each once, in the order of those that are known, unknown ones last."""
    names = list(dict.fromkeys(names))
    return sorted(names, key=[*known, *names].index)


def page(
    title: str, cases: Cases, missing: Mapping[str, str] | None, pictures: Iterable[Path] = ()
) -> str:
    """Return the page of a bench; it names data that are missing, and why."""
    parts = [f"# {title}: rivals in one harness", _ABOUT, _summary(cases)]
    parts += [f"![{path.stem}]({path.name})" for path in pictures]
    parts += ["## Results", _results_table(cases)]
    measured = {name for name, _ in cases.cases.values()}
    lines = [f"- {name}: {why}" for name, why in (missing or {}).items() if name not in measured]
    parts += ["## Missing tables", "\n".join(lines)] if lines else []
    return "\n\n".join(filter(None, [*parts, machine_line(cases.runs)])) + "\n"


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
                lines.append([*line, number(gain, "+,.3f"), significant(ratio)])
    if not lines:
        return ""
    header = ["", "against", "K", "cases", "wins", "ties", "losses", "median gain"]
    header.append("median ratio of seconds")
    return "\n\n".join(["## Summary", pipes(header, lines, (0, 1)), _ABOUT_SUMMARY])


def _results_table(cases: Cases) -> str:
    """Return a line for each data set, K and rival."""
    header = ["data", "K", "rows", "columns", "rival", "held-out", "gain", "short of the truth"]
    header += ["seconds", "seconds ÷ scikit-learn's", "evaluations per row", "live"]
    lines = []
    for setting, (name, K) in cases.cases.items():
        for rival in cases.rivals:
            if (setting, rival) in cases.results.index:
                row = cases.results.loc[(setting, rival)]
                sizes = [number(row[key], ",.0f") for key in ("n_rows", "n_features")]
                gain, ratio = (of(rival)[setting] for of in (cases.gains, cases.ratios))
                line = [name, f"{K:,}", *sizes, rival, number(row["test"], ",.3f")]
                line += [number(gain, "+,.3f"), number(row["short"], ",.3f")]
                line += [significant(row["seconds"]), significant(ratio)]
                line += [number(row[key], ",.0f") for key in _MEASURED[3:]]
                lines.append([*line, row["outcome"]])
    return pipes([*header, "memory, MB", "outcome"], lines, (0, 4, -1))


def outcomes(endings: Iterable[str]) -> str:
    """How the runs of all seeds ended: "2 converged, 1 timed out after 60 s"."""
    texts = [" ".join(text.replace("|", "/").split()) for text in endings]
    short = [t if len(t) <= _LONGEST_OUTCOME else f"{t[: _LONGEST_OUTCOME - 1]}…" for t in texts]
    return ", ".join(f"{count} {outcome}" for outcome, count in Counter(short).items())


def number(value: float, form: str) -> str:
    return f"{value:{form}}" if math.isfinite(value) else MISSING


def significant(value: float) -> str:
    """Write three significant digits, never with an exponent."""
    if value == 0.0 or not math.isfinite(value):
        return "0" if value == 0.0 else MISSING
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def machine_line(runs: Any) -> str:
    """Name what the numbers were made with, and how busy the machine was."""
    cores = sorted({int(threads) for threads in runs["threads"].dropna()})
    if not cores:
        return ""
    parts = {part for versions in runs["versions"] for part in versions.split("; ") if part}
    loads = runs["load_average"].dropna()
    busy = ""
    if len(loads):
        busy = f"; load average at the start of a run {loads.min():.1f} to {loads.max():.1f}"
    return f"{' or '.join(map(str, cores))} cores{busy}. {', '.join(sorted(parts))}."


def draw_settings(cases: Cases, folder: Path) -> list[Path]:
    """Draw curves and ends of fits for each setting that has any."""
    drawn = []
    for setting in cases.cases:
        rows = [row for row in cases.rows.values() if row["setting"] == setting]
        rows.sort(key=lambda row: cases.rivals.index(row["algorithm"]))
        figure = Figure(setting, (Panel("", "validation", None, "ends"),), (50.0, 50.0))
        path = folder / f"gaussian-{setting}.png"
        if draw(figure, dict(enumerate(rows)), path, pdf=False) is not None:
            drawn.append(path)
    return drawn
