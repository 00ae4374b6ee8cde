"""Cells of text files: what csv makes of them, and what is written back."""

import csv
import io

import pytest

from pickmix.data.text_cells import quoted, raw_cells, read_cells, unquoted

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
    cells = raw_cells(line, ",")
    assert ",".join(cells) == line
    assert [unquoted(cell) for cell in cells] == next(csv.reader(io.StringIO(line)))


def test_a_cell_that_goes_on_in_the_next_line():
    assert raw_cells('1,"a', ",") is None
    assert raw_cells('x,"b""', ",") is None


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
    written = "".join(cells.before) + "".join(map(cells.line, cells.rows))
    assert written.encode() == path.read_bytes()
    assert cells.values(0) == ["a", f"b{end} c", "d"]
    assert cells.values(1) == ["1;2", "", "e"]
    assert cells.layout.decimal == ","


def test_blank_lines_and_comments_between_rows_are_no_rows(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('a,b\n1,x\n\n# no "ne\n2,#y\n')
    assert read_cells(path).values(1) == ["x", "#y"]


def test_a_first_cell_may_begin_as_comments_do(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("colour,b\n#ff0000,x\n# red\n#00ff00,y\n")
    assert read_cells(path).values(0) == ["#ff0000", "#00ff00"]


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
