"""Cells of text files: what csv makes of them, and what is written back."""

import csv
import io
import pathlib
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pickmix.inputs import text as inputs_text
from pickmix.inputs.errors import InputError
from pickmix.inputs.files import read_table
from pickmix.inputs.text import quoted, read_cells, split_cells


def written(cells, end):
    """The file as it is put together again."""
    mark = cells.layout.delimiter
    rows = "".join(mark.join(row) + end for row in cells.rows(mark))
    return "".join(cells.start()[:-1]) + rows


LINES = [
    "a,b",
    "a,",
    ",",
    '"a","b"',
    '"",""',
    '"a,b",c,',
    'x,"y ""q"" , z",w',
    '5" pipe,3',
    '"a\nb",c',
    'x,"b"""',
]


@pytest.mark.parametrize("line", LINES)
def test_cells_mean_what_csv_makes_of_them_and_join_to_the_line(line):
    assert ",".join(split_cells(line, ",", raw=True)) == line
    assert split_cells(line, ",") == next(csv.reader(io.StringIO(line)))


@pytest.mark.parametrize("text", ["a", "a,b", 'say "x"', "two\nlines", " blank ", "a;b"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_what_is_written_is_read_back(text, delimiter):
    (row,) = csv.reader(io.StringIO(quoted(text, delimiter)), delimiter=delimiter)
    assert row == [text]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_file_comes_back_to_the_letter(tmp_path, end):
    lines = ["# from here", "", "id;room #;x", 'a; "1;2" ;3,50', '"b', ' c";;NA', "d;e;1"]
    path = tmp_path / "rows.csv"
    path.write_bytes(end.join([*lines, ""]).encode())
    cells = read_cells(path)
    assert written(cells, end).encode() == path.read_bytes()
    assert cells.table[0].to_pylist() == ["a", f"b{end} c", "d"]
    assert cells.table[1].to_pylist() == ["1;2", "", "e"]
    assert cells.layout.decimal == ","


def test_blank_lines_and_comments_between_rows_are_no_rows(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('a,b\n1,x\n\n# no "ne\n2,#y\n')
    assert read_cells(path).table[1].to_pylist() == ["x", "#y"]


def test_a_first_cell_may_begin_as_comments_do(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("colour,b\n#ff0000,x\n# red\n#00ff00,y\n")
    assert read_cells(path).table[0].to_pylist() == ["#ff0000", "#00ff00"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n3\n", "expected 2 columns, got 1 in line 3"),
        ('a,b\n1,"x\n2,y\n', "a quotation mark in line 2 has no end"),
        ("a,b\n", "expected rows, got only a header: a, b"),
    ],
)
def test_what_is_wrong_is_named_by_line(tmp_path, content, message):
    path = tmp_path / "rows.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"rows\.csv: {message}"):
        read_cells(path)


def test_fields_of_any_length(tmp_path):
    path = tmp_path / "rows.csv"
    long = "x" * 300_000
    path.write_text(f'a,b\n1,{long}\n2,"{long},"\n')
    assert read_cells(path).table[1].to_pylist() == [long, f"{long},"]
    with pytest.raises(InputError, match="expected numbers in column 'b'") as caught:
        read_table(path)
    assert (caught.value.line, caught.value.column, caught.value.value) == (2, "b", long)
    assert len(str(caught.value)) < 400
    assert read_table(path, columns=["a"])[0].tolist() == [[1.0], [2.0]]


def test_a_long_header_loses_no_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs_text, "_BLOCK", 20)
    path = tmp_path / "rows.csv"
    path.write_text("# a comment above the names\nfirst name,second name\n1,2\n3,4\n")
    assert read_table(path)[0].tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_a_header_of_very_many_names_makes_a_short_message(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(",".join(f"name{k}" for k in range(100_000)) + "\n")
    for read in (read_cells, read_table):
        with pytest.raises(ValueError, match=r"got only a header: name0, .* more") as caught:
            read(path)
        assert len(str(caught.value)) < 600


CELLS = st.text(st.sampled_from("ab1.;,|\t \"#\n\r'é-"), max_size=6)
TABLES = st.integers(2, 4).flatmap(
    lambda n: st.lists(st.lists(CELLS, min_size=n, max_size=n), min_size=1, max_size=5)
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(TABLES, st.sampled_from([",", ";", "\t", "|"]), st.sampled_from(["\n", "\r\n"]))
def test_what_csv_writes_is_read_and_comes_back_to_the_letter(rows, delimiter, end):
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([[f"name {k}" for k in range(len(rows[0]))], *rows])
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "rows.csv")
        path.write_bytes(text.getvalue().encode())
        cells = read_cells(path)
        columns = [column.to_pylist() for column in cells.table.columns]
        assert [list(row) for row in zip(*columns, strict=True)] == rows
        assert written(cells, end) == text.getvalue()
