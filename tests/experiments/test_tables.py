"""Tables as texts, and the numbers behind figures, against medians by hand."""

import csv
import io
import math
import re

import numpy as np
import pytest
from made_histories import history

from pickmix_experiments.catalogue import Figure, Panel
from pickmix_experiments.runs import ConvergenceRun, GaussianRun
from pickmix_experiments.tables import (
    Cell,
    Column,
    Table,
    csv_text,
    figure_tables,
    markdown,
    with_best,
    write,
)

COLUMNS = (
    Column("dataset", "data set"),
    Column("test_a", "A_1", "test", spread=True),
    Column("test_b", "B", "test", spread=True),
    Column("seeds", "seeds"),
    Column("ratio", "a & b | c", "speed-up"),
)
VALUES = (
    (
        Cell("iris"),
        Cell(-1.234, 0.5, best=True, cut=True),
        Cell(-2.0),
        Cell(5, digits=0),
        Cell(1 / 3),
    ),
    (Cell("a_b"), Cell(), Cell(-1.5e30, math.inf), Cell(0, digits=0), Cell(math.inf)),
)
TABLE = Table(
    "one",
    "50% of it",
    [dict(zip(COLUMNS, values, strict=True)) for values in VALUES],
    ["† A run was cut.", "x ± y – z"],
    [{"dataset": Cell("mean rank"), "test_a": Cell(1.5, best=True)}],
)
OTHER = Table("two", "Another", [{COLUMNS[0]: Cell(""), Column("extra", "extra"): Cell(2.5)}])


def markdown_rows(text):
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_markdown():
    text = markdown([TABLE, OTHER])
    assert text.startswith("## 50% of it\n\n| data set |")
    assert "\n\n† A run was cut.\n\n" in text
    assert "\n\n## Another\n\n" in text
    rows = markdown_rows(markdown([TABLE]))
    assert rows[0] == ["data set", r"test, A\_1", "test, B", "seeds", r"speed-up, a & b \| c"]
    assert rows[1] == ["---", "---:", "---:", "---:", "---:"]
    assert rows[2] == ["iris", "**-1.23 ± 0.50**†", "-2.00", "5", "0.33"]
    assert rows[3] == [r"a\_b", "–", "-1.50e+30", "0", "–"]
    assert rows[4] == ["*mean rank*", "**1.50**", "", "", ""]
    assert markdown_rows(markdown([OTHER]))[2] == ["–", "2.50"]


def test_csv_reads_back():
    rows = list(csv.DictReader(io.StringIO(csv_text([TABLE, OTHER]))))
    assert list(rows[0]) == [
        *("table", "summary", "cut", "dataset", "test_a", "test_a_std", "test_b", "test_b_std"),
        *("seeds", "ratio", "extra"),
    ]
    iris, strange, rank, last = rows
    assert (iris["table"], iris["summary"], iris["cut"]) == ("one", "0", "1")
    assert float(iris["test_a"]) == -1.234
    assert float(iris["test_a_std"]) == 0.5
    assert iris["test_b_std"] == ""
    assert iris["seeds"] == "5"
    assert float(iris["ratio"]) == 1 / 3
    assert (strange["test_a"], strange["ratio"], strange["test_b_std"]) == ("", "", "")
    assert float(strange["test_b"]) == -1.5e30
    assert strange["cut"] == "0"
    assert (rank["summary"], rank["test_a"], rank["test_a_std"]) == ("1", "1.5", "")
    assert (last["table"], last["dataset"], last["extra"]) == ("two", "", "2.5")
    assert not re.search("[†±–*]", csv_text([TABLE, OTHER]))


def test_write(tmp_path):
    folder = tmp_path / "new" / "folder"
    paths = write([TABLE, OTHER], folder, "deep")
    assert [path.name for path in paths] == ["deep.md", "deep.csv"]
    assert [path.read_text(encoding="utf-8") for path in paths] == [
        render([TABLE, OTHER]) for render in (markdown, csv_text)
    ]
    write([TABLE], folder, "deep")
    assert paths[0].read_text(encoding="utf-8") == markdown([TABLE])
    assert sorted(path.name for path in folder.iterdir()) == ["deep.csv", "deep.md"]


@pytest.mark.parametrize(
    ("values", "lowest", "best"),
    [
        ((1.0, 2.0), False, [False, True]),
        ((1.0, 2.0), True, [True, False]),
        ((2.0, 2.0), False, [True, True]),
        ((2.0, math.nan), False, [False, False]),
    ],
)
def test_best(values, lowest, best):
    cells = with_best({n: Cell(value) for n, value in enumerate(values)}, lowest=lowest)
    assert [cell.best for cell in cells.values()] == best


def tables(panel, histories):
    by_key = {one.run.key: one for one in histories}
    return figure_tables(Figure("Title", (panel,)), by_key)


def cells(table):
    by_key = [{column.key: cell for column, cell in row.items()} for row in table.rows]
    return {row["algorithm"].value: row for row in by_key}


def test_likelihoods():
    runs = [GaussianRun(name, 9, seed) for name in ("SAEM", "MHSAEM-U") for seed in range(3)]
    ends = [-110.0, -100.0, -104.0, -90.0, -95.0, -91.0]
    histories = [
        history(run, values=(-200.0, end - 4.0, end), true_log_likelihood=-80.0)
        for run, end in zip(runs, ends, strict=True)
    ]
    (table,) = tables(Panel("left", "log_likelihood", tuple(runs)), histories)
    assert table.title == "Title: left"
    saem, uniform = cells(table)["SAEM"], cells(table)["MHSAEM-U"]
    assert (saem["final"].value, saem["lowest"].value, saem["highest"].value) == (-104, -110, -100)
    assert uniform["final"].value == -91.0
    assert uniform["final"].best
    assert not saem["final"].best
    # Within 5 % of the highest value at the second record already.
    assert saem["t95"].value == -108.0
    assert saem["seconds_to_t95"].value == 2.0
    assert saem["seconds"].value == 3.0
    assert saem["true"].value == -80.0
    assert saem["seeds"].value == 3


def test_a_cut_run_is_marked():
    run = GaussianRun("SAEM", 9, 0)
    panel = Panel("", "log_likelihood", (run,))
    (table,) = tables(panel, [history(run, "max_time", true_log_likelihood=0.0)])
    assert cells(table)["SAEM"]["final"].cut
    assert table.notes == ["† ended by max_time."]
    assert table.title == "Title"


def test_bias_is_compared_with_chance():
    run = ConvergenceRun("MHSAEM-O", 9, 0)
    one = history(run, values=np.zeros(10))
    one.series["bias"] = np.array([4.0] * 5 + [3.0] * 5)
    one.series["bias_by_chance"] = np.array([2.0] * 5 + [3.0] * 5)
    (table,) = tables(Panel("", "bias", (run,)), [one])
    found = cells(table)["MHSAEM-O"]
    assert (found["first"].value, found["last"].value) == (4.0, 3.0)
    assert (found["ratio_first"].value, found["ratio_last"].value) == (2.0, 1.0)
    assert found["ratio_end"].value == 1.0


def test_errors_over_a_parameter():
    runs = [GaussianRun("MHSAEM-U", 9, seed, M=M) for M in (1, 8) for seed in range(3)]
    runs.append(GaussianRun("SAEM", 9, 0))
    histories = [
        history(run, values=(-300.0, -100.0 - n), true_log_likelihood=-90.0)
        for n, run in enumerate(runs)
    ]
    (table,) = tables(Panel("over M", "M", tuple(runs)), histories)
    uniform, saem = cells(table)["MHSAEM-U"], cells(table)["SAEM"]
    assert uniform["error_M1"].value == pytest.approx(11.0)
    assert uniform["error_M8"].value == pytest.approx(14.0)
    assert uniform["seconds_M8"].value == 2.0
    # It knows no M: the same for all.
    assert saem["error_M1"].value == saem["error_M8"].value == pytest.approx(16.0)
    assert "3 seeds" in table.notes[0]
