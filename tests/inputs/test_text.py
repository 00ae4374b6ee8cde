"""Text files with gaps, decimal commas and packed by gzip."""

import gzip

import numpy as np
import pytest

from pickmix.inputs import text as inputs_text
from pickmix.inputs.files import read_table, write_table
from pickmix.inputs.text import is_packed, number_blocks, table_suffix, text_layout

GAP = np.nan


def text(tmp_path, content, name="rows.csv"):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8", newline="")
    return path


class TestGaps:
    @pytest.mark.parametrize(
        "content",
        [
            "a,b,c\n1,,3\n,5,\n",
            "a,b,c\r\n1, ,3\r\n , 5 , \r\n",
            'a,b,c\n"1","",3\n"",5,""\n',
            "a;b;c\n1;NA;3\nN/A;5;null\n",
            "a|b|c\n1||3\n|5|\n",
            "a\tb\tc\n1\tnan\t3\n\t5\t\n",
            "a b c\n1 NA 3\nNaN 5 NULL\n",
            'a,b,c\n1,"NA",3\nNA,5,None\n',
            "1,,3\n,5,\n",
            "NA,b,c\n1,,3\n,5,\n",
        ],
    )
    def test_an_empty_cell_or_a_word_for_it_is_nan(self, tmp_path, content):
        rows, _ = read_table(text(tmp_path, content))
        np.testing.assert_array_equal(rows, [[1.0, GAP, 3.0], [GAP, 5.0, GAP]])

    def test_a_row_may_have_nothing_at_all(self, tmp_path):
        for content in ("a,b\n1,2\n,\n3,4\n", "a\tb\n1\t2\n\t\n3\t4\n"):
            rows, _ = read_table(text(tmp_path, content))
            np.testing.assert_array_equal(rows, [[1.0, 2.0], [GAP, GAP], [3.0, 4.0]])

    def test_a_name_may_look_like_a_missing_value(self, tmp_path):
        rows, names = read_table(text(tmp_path, "NA\n1.5\n"))
        assert names == ["NA"]
        assert rows.tolist() == [[1.5]]
        rows, names = read_table(text(tmp_path, "1,NA\n2,3\n"))
        assert names is None
        np.testing.assert_array_equal(rows, [[1.0, GAP], [2.0, 3.0]])

    def test_gaps_beside_columns_of_words(self, tmp_path):
        path = text(tmp_path, 'kind,x,y\n"a, , b",,2\nNA,3,\n')
        rows, _ = read_table(path, columns=["y", "x"])
        np.testing.assert_array_equal(rows, [[2.0, GAP], [GAP, 3.0]])

    @pytest.mark.parametrize("size", [5, 9, 100])
    def test_blocks_end_with_rows(self, tmp_path, monkeypatch, size):
        monkeypatch.setattr(inputs_text, "_BLOCK", size)
        path = text(tmp_path, "a,b\n1,2\n3,\n5,6\n7,8 # nine\n")
        blocks = list(number_blocks(path, text_layout(path), [0, 1]))
        assert len(blocks) == 1 or size < 30
        expected = [[1.0, 2.0], [3.0, GAP], [5.0, 6.0], [7.0, 8.0]]
        np.testing.assert_array_equal(np.concatenate(blocks), expected)

    def test_a_number_sign_among_words_is_no_comment(self, tmp_path):
        rows, names = read_table(text(tmp_path, "room #,b\n1,2 # two\n"))
        assert names == ["room #", "b"]
        assert rows.tolist() == [[1.0, 2.0]]
        path = text(tmp_path, "a,where,b\n1,flat #3,2\n# none\n,#4,4 # four\n")
        rows, _ = read_table(path, columns=["a", "b"])
        np.testing.assert_array_equal(rows, [[1.0, 2.0], [GAP, 4.0]])
        rows, names = read_table(text(tmp_path, "1 2 # a, b\n3 4\n"))
        assert names is None
        assert rows.tolist() == [[1.0, 2.0], [3.0, 4.0]]


class TestDecimalComma:
    @pytest.mark.parametrize(
        "content",
        [
            "a;b\n1,5;2\n-,25;1e3\n",
            "a\tb\n1,5\t2\n-0,25\t1,0e3\n",
            'a;b\n"1,5";"2"\n"-0,25";1000\n',
        ],
    )
    def test_it_is_found_between_semicolons_and_tabs(self, tmp_path, content):
        rows, names = read_table(text(tmp_path, content))
        np.testing.assert_array_equal(rows, [[1.5, 2.0], [-0.25, 1000.0]])
        assert names == ["a", "b"]

    def test_without_a_header(self, tmp_path):
        rows, names = read_table(text(tmp_path, "1,5;2,5\n3,5;4,5\n"))
        assert rows.tolist() == [[1.5, 2.5], [3.5, 4.5]]
        assert names is None

    def test_with_gaps(self, tmp_path):
        rows, _ = read_table(text(tmp_path, "a;b\n1,5;\n;2,5\n"))
        np.testing.assert_array_equal(rows, [[1.5, GAP], [GAP, 2.5]])

    def test_points_and_commas_together_are_refused(self, tmp_path):
        path = text(tmp_path, "a;b\n1.5;2\n3;4,5\n")
        with pytest.raises(ValueError, match=r"column 'b', got '4,5' in line 3; .*decimal=','"):
            read_table(path)
        with pytest.raises(ValueError, match=r"column 'a', got '1.5' in line 2; .*decimal='.'"):
            read_table(path, decimal=",")

    def test_groups_of_thousands_are_no_numbers(self, tmp_path):
        with pytest.raises(ValueError, match="got '1,234,567' in line 2"):
            read_table(text(tmp_path, "a;b\n1,234,567;2\n"))

    def test_asked_for_between_blanks(self, tmp_path):
        path = text(tmp_path, "a b\n1,5 2,5\n", "rows.txt")
        assert read_table(path, decimal=",")[0].tolist() == [[1.5, 2.5]]

    def test_a_comma_that_comes_late_is_asked_about(self, tmp_path):
        path = text(tmp_path, "a;b\n" + "1;2\n" * 500 + "1,5;2\n")
        with pytest.raises(ValueError, match=r"got '1,5' in line 502; .*decimal=','"):
            read_table(path)
        assert read_table(path, decimal=",")[0][-1].tolist() == [1.5, 2.0]


class TestPacked:
    @pytest.mark.parametrize("name", ["rows.csv.gz", "rows.tsv.gz", "ROWS.CSV.GZ"])
    def test_what_is_written_is_read_back(self, tmp_path, name):
        path = write_table(tmp_path / name, {"a": [1.5, 1 / 3], "b": [2, 3]})
        assert path.read_bytes()[:2] == b"\x1f\x8b"
        mark = "\t" if ".tsv" in name else ","
        assert gzip.decompress(path.read_bytes()).decode().splitlines()[0] == f"a{mark}b"
        rows, names = read_table(path)
        np.testing.assert_array_equal(rows, [[1.5, 2.0], [1 / 3, 3.0]])
        assert names == ["a", "b"]
        assert [file.name for file in tmp_path.iterdir()] == [name]

    def test_the_same_rows_are_the_same_bytes(self, tmp_path):
        first, second = (
            write_table(tmp_path / f"{name}.csv.gz", {"a": np.arange(100.0)}) for name in "xy"
        )
        assert first.read_bytes() == second.read_bytes()

    def test_gaps_and_decimal_commas(self, tmp_path):
        path = tmp_path / "rows.csv.gz"
        path.write_bytes(gzip.compress(b"a;b\n1,5;\n2;3\n"))
        np.testing.assert_array_equal(read_table(path)[0], [[1.5, GAP], [2.0, 3.0]])

    def test_a_gz_that_is_none(self, tmp_path):
        path = text(tmp_path, "a,b\n1,2\n", "rows.csv.gz")
        message = r"rows\.csv\.gz: expected a file packed by gzip, .*name it rows\.csv$"
        with pytest.raises(ValueError, match=message):
            read_table(path)

    @pytest.mark.parametrize("n_rows", [3, 100_000])
    def test_a_gz_that_is_cut_short(self, tmp_path, n_rows):
        path = tmp_path / "rows.csv.gz"
        numbers = np.random.default_rng(0).normal(size=n_rows)
        whole = gzip.compress("\n".join(map(str, numbers)).encode())
        path.write_bytes(whole[: len(whole) - 10])
        with pytest.raises(ValueError, match=r"rows\.csv\.gz: the file is damaged or cut short"):
            read_table(path)

    def test_suffixes(self):
        assert table_suffix("a.csv.gz") == ".csv"
        assert table_suffix("a.parquet.gz") == ".parquet.gz"
        assert is_packed("a.txt.gz")
        assert not is_packed("a.npy.gz")
        assert not is_packed("a.csv")


def test_names_that_are_nearly_right_are_shown(tmp_path):
    path = text(tmp_path, "Species,year,mass\n1,2,3\n")
    with pytest.raises(ValueError, match=r"no column 'speceis', but 'Species'; there are Species,"):
        read_table(path, columns=["speceis"])
    many = ",".join(f"x{number}" for number in range(1000))
    path = text(tmp_path, f"{many}\n" + ",".join("1" * 1000) + "\n")
    with pytest.raises(ValueError, match=r"no column 'q'; there are .*x29, \.\.\. or 0 to 999$"):
        read_table(path, columns=["q"])


@pytest.mark.parametrize(
    ("text", "delimiter", "n_columns"),
    [
        ("a, b|c\nd|e\n", "|", 2),
        ("a,b\tc\n1,2\n", ",", 2),
        ("a;b,c\n1;2,5\n", ";", 2),
        # Cells are missing in the last row: the likeliest mark is taken, so that it is refused.
        ("a;b|c\n1;2|3\n4\n", ";", 2),
    ],
)
def test_the_delimiter_is_a_mark_that_parts_all_rows_alike(tmp_path, text, delimiter, n_columns):
    path = tmp_path / "a.csv"
    path.write_text(text)
    layout = text_layout(path)
    assert (layout.delimiter, layout.n_columns) == (delimiter, n_columns)
