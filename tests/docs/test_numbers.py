"""Numbers of README.md and docs/benchmarks.md are those of the files that they name.

A table is followed by a line "From:" with links. The names in a line of the table (or its number,
where that comes first) choose records of these files: lines of CSV, of JSON or of Markdown tables,
and means and medians of them over seeds. Each number of the line must be one of the chosen records,
rounded as on the page. Numbers with a point in the text of a section must be in its files, too.
"""

import csv
import json
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ("README.md", "docs/benchmarks.md")
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")
# Columns that say what was measured, not what came out: they are not averaged over seeds.
KEYS = ("labels", "missing", "rows", "K")


class Record(NamedTuple):
    names: frozenset
    numbers: dict


def plain(text):
    """A cell without marks and links."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("*", "").replace("`", "").strip()


def words(text):
    return re.sub(r"\(.*?\)", "", plain(str(text))).strip().lower()


def numbers_of(text):
    return [shown.replace(",", "") for shown in NUMBER.findall(plain(str(text)))]


def record_of(row):
    """A record of cells as texts, or as values."""
    cells = {name: [float(n) for n in numbers_of(cell)] for name, cell in row.items()}
    for name, cell in row.items():
        # With an exponent.
        if isinstance(cell, str | float | int) and re.fullmatch(r"[-+.\de]+", str(cell)):
            cells[name] = [float(cell)]
    return Record(frozenset(words(cell) for cell in row.values()), cells)


def lines_of_markdown(text):
    title, names = "", []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("## "):
            title = line[3:].split(",")[0]
        if not line.startswith("|"):
            names = []
        elif not names:
            names = cells
        elif set(line) - set("|-: "):
            yield {"title": title, **dict(zip(names, cells, strict=False))}


def flat(row):
    """A row of a store: plain values, the last of each list, and the table of a setting."""
    row |= {f"last {name}": values[-1] for name, values in row.pop("trace", {}).items()}
    return row | {"table": re.sub(r"-k\d+$", "", row.get("setting", ""))}


@cache
def records(path):
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        return [record_of(row) for row in lines_of_markdown(text)]
    if path.suffix == ".csv":
        rows = list(csv.DictReader(text.splitlines()))
    else:
        rows = [flat(json.loads(line)) for line in text.splitlines() if line]
    made, frame = [record_of(row) for row in rows], pd.DataFrame(rows)
    repeated = [name for name in ("seed", "split") if name in frame]
    # A seed of the bench of Gaussian mixtures is another mixture.
    if not repeated or "spec" in frame:
        return made
    frame = frame.drop(columns=["versions", "commit", "finished_at"], errors="ignore")
    values = frame.apply(pd.to_numeric, errors="coerce")
    measured = [n for n in frame if values[n].notna().any() and n not in (*KEYS, *repeated)]
    # K is a setting of some studies, and chosen in others.
    for keys in (KEYS, ("labels", "missing", "rows")):
        by = [n for n in frame if n not in (*measured, *repeated) and (n in keys or n not in KEYS)]
        groups = values[measured].groupby([frame[n] for n in by], sort=False, dropna=False)
        for summary in (groups.mean(), groups.median()):
            made += [record_of(row) for row in summary.reset_index().to_dict("records")]
    return made


class Table(NamedTuple):
    line: int
    lines: list
    paths: list
    #: Column and value that all records have.
    where: dict


def tables(page):
    lines = (ROOT / page).read_text("utf-8").splitlines()
    start = None
    for n, line in enumerate([*lines, ""]):
        if line.startswith("|") and start is None:
            start = n
        elif not line.startswith("|") and start is not None:
            source = next((text for text in lines[n : n + 3] if text.startswith("From:")), "")
            where = {name: float(value) for name, value in re.findall(r"(\w+) = (\d+)", source)}
            yield Table(start + 1, lines[start:n], files_in(source), where)
            start = None


def files_in(text):
    return [RESULTS / name for name in re.findall(r"benchmarks/results/([\w./-]+)\)", text)]


def is_shown(shown, record, scale=1.0):
    """Whether a number of the page is one of a record, rounded."""
    digits = len(shown.partition(".")[2])
    values = scale * np.array([v for vs in record.numbers.values() for v in vs])
    return bool(np.any(np.abs(values - float(shown)) <= 0.5001 * 10.0**-digits))


def choose(cells, known):
    """The records that a line is about."""
    named = False
    for cell in cells:
        for name in dict.fromkeys((words(cell), *words(cell).split(", "))):
            part = [record for record in known if len(name) > 1 and name in record.names]
            if part and numbers_of(name.split()[0]) != [name]:
                known, named = part, True
    if not named:
        first = numbers_of(cells[0])
        known = [
            r for r in known if first and any(float(first[0]) in v for v in r.numbers.values())
        ]
    return known


def unexplained(table):
    """Numbers of a table that no record has, and lines that name no record."""
    known = [record for path in table.paths for record in records(path)]
    for name, value in table.where.items():
        known = [record for record in known if record.numbers.get(name) == [value]]
    missing = []
    for line in table.lines[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        chosen = choose(cells, known)
        if not chosen:
            missing.append(f"{cells[0]}: no record")
        names = {name for record in chosen for name in record.names}
        for cell in cells:
            parts = {words(cell), *words(cell).split(", ")}
            scale = 100.0 if "%" in cell else 1.0
            for shown in numbers_of(cell) if not parts & names - set(numbers_of(cell)) else ():
                if not any(is_shown(shown, record, scale) for record in chosen):
                    missing.append(f"{cells[0]}: {shown}")
    return missing


def cases():
    for page in PAGES:
        for table in tables(page):
            if table.paths:
                yield pytest.param(table, id=f"{page}-{table.line}")


@pytest.mark.parametrize("table", list(cases()))
def test_numbers_of_tables(table):
    assert unexplained(table) == []


def test_changed_numbers_are_noticed():
    """Change the last digit of every number: the chosen records are few enough to tell."""
    noticed = []
    for (table,) in (case.values for case in cases()):
        for place, line in enumerate(table.lines[2:], 2):
            for found in NUMBER.finditer(line):
                digit = str((int(line[found.end() - 1]) + 4) % 10)
                changed = line[: found.end() - 1] + digit + line[found.end() :]
                lines = [*table.lines[:place], changed, *table.lines[place + 1 :]]
                noticed.append(bool(unexplained(table._replace(lines=lines))))
    assert len(noticed) > 500
    assert np.mean(noticed) > 0.85


def test_every_table_names_its_files():
    unnamed = [table.lines[0] for page in PAGES for table in tables(page) if not table.paths]
    assert unnamed == 2 * ["| question | peer | cases | wins | ties | losses |"]


def sections(page):
    """Text outside of tables and code, and the files named in it, by heading."""
    text = (ROOT / page).read_text("utf-8")
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for part in re.split(r"^## ", text, flags=re.MULTILINE):
        prose = "\n".join(line for line in part.splitlines() if not line.startswith("|"))
        yield files_in(prose), plain(re.sub(r"`[^`]*`", "", prose))


def test_numbers_of_the_choice_of_tools():
    paths = {path for table in tables("docs/benchmarks.md") for path in table.paths}
    known = [record for path in sorted(paths) for record in records(path)]
    text = re.sub(r"`[^`]*`", "", (ROOT / "docs" / "howto" / "choose-a-tool.md").read_text("utf-8"))
    shown = {number for number in numbers_of(text) if "." in number}
    assert [n for n in sorted(shown) if not any(is_shown(n, r) for r in known)] == []


@pytest.mark.parametrize("page", PAGES)
def test_numbers_of_the_text(page):
    missing = []
    for paths, prose in sections(page):
        known = [record for path in paths for record in records(path)]
        shown = [number for number in numbers_of(prose) if "." in number]
        missing += [n for n in shown if known and not any(is_shown(n, r) for r in known)]
    assert missing == []


def read(name):
    return pd.read_csv(RESULTS / name)


def bench(name):
    """The first seed of a bench that is kept as JSON lines, by setting and method."""
    rows = [json.loads(text) for text in (RESULTS / name).read_text("utf-8").splitlines() if text]
    frame = pd.DataFrame(rows)
    frame = frame[frame["seed"] == 0]
    return frame.set_index(["setting", "algorithm"])["test"].unstack()


def best_of_sklearn(name, suffix=""):
    values = bench(name)
    values = values[values.index.str.endswith(suffix)]
    theirs = values[[column for column in values if column.startswith("sklearn")]].max(axis=1)
    return values["pickmix"] - theirs


def published(question, measure, method=None):
    values = read("published.csv").query("question == @question and measure == @measure")
    values = values[values["method"] == method] if method else values
    return values.set_index("set")["value"]


def classes(peer, shares):
    frame = read("answers_classify.csv").query("labels in @shares")
    values = frame.set_index(["set", "labels", "method"])["log_loss"].unstack()
    return values[peer] - values["mixture"]


def wide(name, by, method, value):
    return read(name).groupby([by, method])[value].median().unstack()


def gains(question, peer):
    """What pickmix is better by, case by case, and what counts as a tie."""
    method = peer.removesuffix(" (published)")
    if found := re.fullmatch(r"density of real tables, K = (\d+)", question):
        return best_of_sklearn("tables/tables.jsonl", f"-k{found[1]}"), 0.1
    if question.startswith("generated"):
        now, before = (best_of_sklearn(f"gaussian/{name}.jsonl") for name in ("now", "gaussian"))
        return now.combine_first(before), 0.1
    if question.startswith("density of UCI sets"):
        values = wide("uci_chosen.csv", "set", "who", "test")
        return values["pickmix"] - values["scikit-learn"], 0.1
    if question == 'n_components="auto"':
        frame = read("automatic_number.csv")
        return frame["held_out"] - frame["best"], 0.1
    if question.startswith("missing cells"):
        measure = "mae" if question.endswith("error") else "best"
        frame = read("answers_impute.csv").query("method == 'mixture'")
        return published("imputation", measure) - frame.groupby("set")[measure].mean(), 0.0
    if question == "density of a target":
        ours = pd.read_json(RESULTS / "bench" / "regression.jsonl", lines=True)
        ours = ours.groupby("set")["log_density"].mean()
        return ours - published("density", "log_density", method), 0.0
    if question == "quantiles of a target":
        values = wide("regression.csv", "set", "who", "crps")
        return values["boosting"] - values["pickmix"], 0.0
    if question.startswith("classes"):
        shares = [1.0] if question.endswith("all labels") else [0.1, 0.01]
        return classes(peer.split()[0], shares), 0.0
    if question.startswith("synthetic tables"):
        frame = read("drawn_tables.csv").query("variant == 'default'")
        return frame.groupby("set")["c2st"].median() - published("c2st", "c2st", method), 0.03
    values = wide("deep_tables.csv", "table", "who", "test")
    return values["flows"] - values["Gaussians"], 0.1


def summary_lines():
    for table in (table for page in PAGES for table in tables(page)):
        if "wins" in table.lines[0]:
            for line in table.lines[2:]:
                yield [plain(cell) for cell in line.strip("|").split("|")]


@pytest.mark.parametrize(
    "cells", list(summary_lines()), ids=lambda cells: f"{cells[0]}, {cells[1]}"
)
def test_wins_ties_and_losses(cells):
    question, peer, *shown = cells
    found, tie = gains(question, peer)
    wins, losses = int((found > tie).sum()), int((found < -tie).sum())
    counts = [len(found), wins, len(found) - wins - losses, losses]
    assert [int(number) for number in shown] == counts
