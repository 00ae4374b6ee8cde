"""Text files: what their cells mean, what is refused by line, and what is written back."""

import csv
import gzip
import io
import pathlib
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pickmix.inputs import text as inputs_text
from pickmix.inputs.errors import InputError
from pickmix.inputs.files import read_table
from pickmix.inputs.open_rows import open_rows
from pickmix.inputs.text import (
    number_blocks,
    raw_cells,
    read_cells,
    written_rows,
)
from pickmix.inputs.text import text_layout as layout_of

GAP = np.nan
SMALL = [[1, 2], [3, 4]]
GAPS = [[1, GAP, 3], [GAP, 5, GAP]]
COMMAS = [[1.5, 2], [-0.25, 1000]]
#: Contents of a file, its rows, its names (as one word), and options.
READ = [
    # Dialects.
    ("a,b\n1,2\n3,4\n", SMALL, "ab", {}),
    ("a;b\n1;2\n3;4\n", SMALL, "ab", {}),
    ("a\tb\n1\t2\n3\t4", SMALL, "ab", {}),
    ("a b\n1   2\n3 4\n", SMALL, "ab", {}),
    ("\ufeffa,b\r\n1,2\r\n3,4\r\n", SMALL, "ab", {}),
    ('# a comment\n\n"a","b"\n"1",2\n\n3, 4\n', SMALL, "ab", {}),
    ('\ufeff# by hand\n\n"a";"b"\n1;2\n\n# more\n"3";4 # four\n\n', SMALL, "ab", {}),
    # Headers.
    ("1 2e3\nnan 4\n", [[1, 2000], [GAP, 4]], None, {}),
    ("1,2,3", [[1, 2, 3]], None, {}),
    ("1\n2\n", [[1], [2]], None, {}),
    ("x,2020\n1,2\n", [[1, 2]], ["x", "2020"], {}),
    ("NA\n1.5\n", [[1.5]], ["NA"], {}),
    ("1,NA\n2,3\n", [[1, GAP], [2, 3]], None, {}),
    # Gaps.
    ("a,b,c\n1,,3\n,5,\n", GAPS, "abc", {}),
    ("a,b,c\r\n1, ,3\r\n , 5 , \r\n", GAPS, "abc", {}),
    ('a,b,c\n"1","",3\n"",5,""\n', GAPS, "abc", {}),
    ("a;b;c\n1;NA;3\nN/A;5;null\n", GAPS, "abc", {}),
    ("a|b|c\n1||3\n|5|\n", GAPS, "abc", {}),
    ("a\tb\tc\n1\tnan\t3\n\t5\t\n", GAPS, "abc", {}),
    ("a b c\n1 NA 3\nNaN 5 NULL\n", GAPS, "abc", {}),
    ('a,b,c\n1,"NA",3\nNA,5,None\n', GAPS, "abc", {}),
    ("1,,3\n,5,\n", GAPS, None, {}),
    ("NA,b,c\n1,,3\n,5,\n", GAPS, ["NA", "b", "c"], {}),
    ("a,b\n1,2\n,\n3,4\n", [[1, 2], [GAP, GAP], [3, 4]], "ab", {}),
    ("a\tb\n1\t2\n\t\n3\t4\n", [[1, 2], [GAP, GAP], [3, 4]], "ab", {}),
    # Columns of words, and number signs among them.
    ("k,x,y\nred,1,2\nblue,3,4\n", [[2, 1], [4, 3]], "yx", {"columns": ["y", "x"]}),
    ('k,x,y\n"a, , b",,2\nNA,3,\n', [[2, GAP], [GAP, 3]], "yx", {"columns": ["y", "x"]}),
    ("room #,b\n1,2 # two\n", [[1, 2]], ["room #", "b"], {}),
    ("a,w,b\n1,no #3,2\n# none\n,#4,4 # four\n", [[1, 2], [GAP, 4]], "ab", {"columns": [0, 2]}),
    ("1 2 # a, b\n3 4\n", SMALL, None, {}),
    # Decimal commas.
    ("a;b\n1,5;2\n-,25;1e3\n", COMMAS, "ab", {}),
    ("a\tb\n1,5\t2\n-0,25\t1,0e3\n", COMMAS, "ab", {}),
    ('a;b\n"1,5";"2"\n"-0,25";1000\n', COMMAS, "ab", {}),
    ("1,5;2,5\n3,5;4,5\n", [[1.5, 2.5], [3.5, 4.5]], None, {}),
    ("a;b\n1,5;\n;2,5\n", [[1.5, GAP], [GAP, 2.5]], "ab", {}),
    ("a b\n1,5 2,5\n", [[1.5, 2.5]], "ab", {"decimal": ","}),
    ("1,5\n2,5\n", [[1.5], [2.5]], None, {"decimal": ","}),
    ("1,5\n2,5\n", [[1, 5], [2, 5]], None, {"decimal": "."}),
]


def text(folder, content, name="rows.csv"):
    path = folder / name
    content = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


# Blocks end with rows, and headers may be longer than blocks.
@pytest.mark.parametrize("block", [5, 1 << 25])
@pytest.mark.parametrize(("content", "expected", "names", "options"), READ)
def test_rows(tmp_path, monkeypatch, content, expected, names, options, block):
    monkeypatch.setattr(inputs_text, "_BLOCK", block)
    path = text(tmp_path, content, "rows.csv" if block == 5 else "rows.txt.gz")
    rows, found = read_table(path, **options)
    np.testing.assert_array_equal(rows, expected)
    assert found == (None if names is None else list(names))


@pytest.mark.parametrize(
    ("content", "message", "options"),
    [
        ("", "empty file", {}),
        ("\n# only\n", "only blank lines and comments", {}),
        ("a,b\n", "only a header: a, b", {}),
        ("a,b\n1,2\n3\n", "expected 2 columns, got 1 in line 3", {}),
        ("1,2\n\n3,4,5\n", "expected 2 columns, got 3 in line 3", {}),
        ("a,b\n1,2\n3,-\n", "column 'b', got '-' in line 3", {}),
        ("1,2\n3,x\n", "column 1, got 'x' in line 2", {}),
        ("k,x\nred,1\n", "column 'k', got 'red' in line 2; leave .* with columns=", {}),
        ("a,a\n1,2\n", "two columns are named 'a'", {"columns": ["a"]}),
        ("Sp,y\n1,2\n", "no column 'spp', but 'Sp'; there are Sp, y or 0 to 1", {"columns": "spp"}),
        (b"\xff\xfe1,2\n", "expected text in UTF-8, got the byte 0xff; if it is in Latin-1", {}),
        ("a;b\n1.5;2\n3;4,5\n", r"column 'b', got '4,5' in line 3; .*decimal=','", {}),
        ("a;b\n1.5;2\n3;4,5\n", r"column 'a', got '1.5' in line 2; .*='.'", {"decimal": ","}),
        ("a;b\n1,234,567;2\n", "got '1,234,567' in line 2", {}),
        ("a;b\n" + "1;2\n" * 500 + "1,5;2\n", "got '1,5' in line 502; .*decimal=','", {}),
    ],
)
def test_what_is_refused(tmp_path, content, message, options):
    path = text(tmp_path, content)
    if isinstance(options.get("columns"), str):
        options = {"columns": [options["columns"]]}
    with pytest.raises(ValueError, match=rf"rows\.csv: .*{message}"):
        read_table(path, **options)


def test_a_second_column_of_one_name_is_renamed_as_in_pandas(tmp_path):
    path = text(tmp_path, "a,b,a,a.1,a\n1,2,3,4,5\n6,7,8,9,1\n")
    assert list(inputs_text.read_text(path).columns) == ["a", "b", "a.2", "a.1", "a.3"]


def test_messages_stay_short(tmp_path):
    many = ",".join(f"x{number}" for number in range(10_000))
    path = text(tmp_path, f"{many}\n")
    for read in (read_cells, read_table):
        with pytest.raises(ValueError, match=r"got only a header: x0, .* more") as caught:
            read(path)
        assert len(str(caught.value)) < 600
    path = text(tmp_path, f"{many}\n" + ",".join("1" * 10_000) + "\n")
    with pytest.raises(ValueError, match=r"no column 'q'; there are .*x29, \.\.\. or 0 to 9999$"):
        read_table(path, columns=["q"])
    long = "x" * 300_000
    path = text(tmp_path, f'a,b\n1,{long}\n2,"{long},"\n')
    assert read_cells(path)[0][1].to_pylist() == [long, f"{long},"]
    with pytest.raises(InputError, match="expected numbers in column 'b'") as caught:
        read_table(path)
    assert (caught.value.line, caught.value.column, caught.value.value) == (2, "b", long)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("content", "delimiter", "n_columns"),
    [
        ("a, b|c\nd|e\n", "|", 2),
        ("a,b\tc\n1,2\n", ",", 2),
        ("a;b,c\n1;2,5\n", ";", 2),
        # Cells are missing in the last row: the likeliest mark is taken, so that it is refused.
        ("a;b|c\n1;2|3\n4\n", ";", 2),
    ],
)
def test_the_delimiter_is_a_mark_that_parts_all_rows_alike(tmp_path, content, delimiter, n_columns):
    layout = layout_of(text(tmp_path, content))
    assert (layout.delimiter, layout.n_columns) == (delimiter, n_columns)


def test_packed_files_that_are_damaged(tmp_path):
    path = tmp_path / "rows.csv.gz"
    path.write_text("a,b\n1,2\n")
    message = r"rows\.csv\.gz: expected a file packed by gzip, .*name it rows\.csv$"
    with pytest.raises(ValueError, match=message):
        read_table(path)
    for n_rows in (3, 20_000):
        numbers = np.random.default_rng(0).normal(size=n_rows)
        path.write_bytes(gzip.compress("\n".join(map(str, numbers)).encode())[:-10])
        for read in (read_table, open_rows):
            with pytest.raises(ValueError, match=r"rows\.csv\.gz: the file is damaged or cut"):
                read(path)


# Cells


def written(path, layout, end):
    """The file as it is put together again."""
    mark = layout.delimiter
    rows = [mark.join(raw_cells(row, mark)) + end for row in written_rows(path, layout)]
    with open(path, newline="") as file:
        return "".join([file.readline() for _ in range(layout.n_skipped)] + rows)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_file_comes_back_to_the_letter(tmp_path, end):
    lines = ["# from here", "", "id;room #;x", 'a; "1;2" ;3,50', '"b', ' c";;NA', "d;e;1"]
    path = text(tmp_path, end.join([*lines, ""]))
    cells, layout = read_cells(path)
    assert written(path, layout, end).encode() == path.read_bytes()
    assert cells[0].to_pylist() == ["a", f"b{end} c", "d"]
    assert [cell.strip() for cell in cells[1].to_pylist()] == ["1;2", "", "e"]
    assert layout.decimal == ","


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('b,a\n1,x\n\n# no "ne\n2,#y\n', ["x", "#y"]),
        ("b,colour\nx,#ff0000\n# red\ny,#00ff00\n", ["#ff0000", "#00ff00"]),
        ("a,b\n1,2\n3\n", "expected 2 columns, got 1 in line 3"),
        ('a,b\n1,"x\n2,y\n', "a quotation mark in line 2 has no end"),
        ("a,b\n", "expected rows, got only a header: a, b"),
    ],
)
def test_cells_between_comments_and_mistakes(tmp_path, content, expected):
    path = text(tmp_path, content)
    if isinstance(expected, list):
        assert read_cells(path)[0][1].to_pylist() == expected
        return
    with pytest.raises(ValueError, match=rf"rows\.csv: {expected}"):
        read_cells(path)


CELLS = st.text(st.sampled_from("ab1.;,|\t \"#\n\r'é-"), max_size=6)
TABLES = st.integers(2, 4).flatmap(
    lambda n: st.lists(st.lists(CELLS, min_size=n, max_size=n), min_size=1, max_size=5)
)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(TABLES, st.sampled_from([",", ";", "\t", "|"]), st.sampled_from(["\n", "\r\n"]))
def test_what_csv_writes_is_read_and_comes_back_to_the_letter(rows, delimiter, end):
    content = io.StringIO(newline="")
    writer = csv.writer(content, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([[f"name {k}" for k in range(len(rows[0]))], *rows])
    with tempfile.TemporaryDirectory() as folder:
        path = text(pathlib.Path(folder), content.getvalue())
        cells, layout = read_cells(path)
        columns = [column.to_pylist() for column in cells.columns]
        assert [list(row) for row in zip(*columns, strict=True)] == rows
        assert written(path, layout, end) == content.getvalue()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("header", "names"),
    [
        ('a,"b{end}c",d', ["a", "b{end}c", "d"]),
        ('"a, in{end}{end}mm",b,"c{end}d"', ["a, in{end}{end}mm", "b", "c{end}d"]),
        ('a,5" pipe,d', ["a", '5" pipe', "d"]),
    ],
)
def test_names_may_hold_line_breaks(tmp_path, header, names, end):
    path = tmp_path / "rows.csv"
    lines = [header.replace("{end}", end), "1,2,3", "4,5,6", ""]
    path.write_bytes(end.join(lines).encode())
    layout = layout_of(path)
    assert layout.names == [name.replace("{end}", end) for name in names]
    (rows,) = number_blocks(path, layout, [0, 1, 2])
    np.testing.assert_array_equal(rows, [[1, 2, 3], [4, 5, 6]])
