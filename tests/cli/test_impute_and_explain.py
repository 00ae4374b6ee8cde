"""`pickmix impute`, `explain` and `sample --given`: they say what the estimators say."""

import gzip

import commands
import numpy as np
import pyarrow
import pytest
from commands import error_of, lines_of, nameless, printed_rows, run_well
from pyarrow import parquet

import pickmix
from pickmix.inputs.files import read_table, write_table

QUICK = [*commands.QUICK, "--max-iter", "5", "--quiet"]


def model_of(places, tables, name):
    return (places if name == "numbers" else tables) / "model"


# Written in a way of its own: quotes, blanks, zeros, a comment, a column of no model.
TEXT = """# penguins
who,height,"species",mass,born,tagged,note
"x, 1", 190.50 ,Adelie,,2008-05-05,True, kept "as" is
2,,"Gentoo",05000,NA,,
3,201.0,,3.9e3,2007-01-01,False,"a
b"
"""


class TestImpute:
    def test_only_what_was_missing_is_written(self, tmp_path, tables):
        path = tmp_path / "gaps.csv"
        path.write_text(TEXT)
        filled = run_well("impute", tables / "model", path, "--out", "-").stdout
        model = pickmix.load(tables / "model")
        expected = model.impute(
            {
                "height": [190.5, None, 201.0],
                "species": ["Adelie", "Gentoo", None],
                "mass": [None, 5000, 3900],
                "born": ["2008-05-05", None, "2007-01-01"],
                "tagged": [True, None, False],
            }
        )
        species = expected["species"][2]
        species = f'"{species}"' if "," in species else species
        parts = [
            *(
                "# penguins\n",
                'who,height,"species",mass,born,tagged,note\n',
                '"x, 1", 190.50 ,Adelie,',
            ),
            *(f"{expected['mass'][0]:d}", ',2008-05-05,True, kept "as" is\n2,'),
            *(repr(expected["height"][1]), ',"Gentoo",05000,', expected["born"][1], ","),
            *(str(expected["tagged"][1]), ",\n3,201.0,", species),
            ',3.9e3,2007-01-01,False,"a\nb"\n',
        ]
        assert filled == "".join(parts)

    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    def test_a_table_without_gaps_comes_back_to_the_letter(self, tmp_path, tables, end):
        text = f'height,mass{end}190.50, "3700"{end}191,03800{end}'
        path, out = tmp_path / "whole.csv", tmp_path / "filled.csv"
        path.write_bytes(text.encode())
        result = run_well("impute", tables / "model", path, "--out", out)
        assert f"no missing cell in {path}" in result.stdout
        assert out.read_bytes() == text.encode()

    def test_a_category_that_is_mostly_missing_gets_a_note(self, tmp_path):
        path, lines = (
            tmp_path / "birds.csv",
            ["Minor,12.5", "None,3", "None,8.5", "None,7", "Major,30"],
        )
        path.write_text("damage done,cost\n" + "\n".join(lines * 8) + "\n")
        fit = ("fit", path, "--components", 1, "--no-report", "--quiet", "--out")
        run_well(*fit, tmp_path / "model")
        result = run_well("impute", tmp_path / "model", path, "--out", tmp_path / "filled.csv")
        assert "24 of 80 cells filled\nnote: most cells of category 'damage done'" in result.stdout
        assert "--gap-levels 'damage done'" in result.stdout
        run_well(*fit, tmp_path / "kept", "--gap-levels", "damage done")
        result = run_well("impute", tmp_path / "kept", path, "--out", tmp_path / "filled.csv")
        assert "note" not in result.stdout

    @pytest.mark.parametrize("strategy", ["mean", "mode", "draw"])
    def test_numbers(self, tmp_path, places, strategy):
        path = tmp_path / "gaps.csv"
        path.write_text("b,a\n,1.5\n3,\n,\n30,12\n")
        options = ["--strategy", strategy, "--seed", 3, "--out", tmp_path / "filled.csv"]
        result = run_well("impute", places / "model", path, *options)
        assert "4 of 8 cells filled" in result.stdout
        rows = np.array([[1.5, np.nan], [np.nan, 3.0], [np.nan, np.nan], [12.0, 30.0]])
        expected = nameless(places / "model").impute(rows, strategy, random_state=3)
        written, names = read_table(tmp_path / "filled.csv")
        assert names == ["b", "a"]
        np.testing.assert_array_equal(written, expected[:, ::-1])

    def test_draws_stand_below_each_other(self, tmp_path, places):
        path = tmp_path / "gaps.csv"
        path.write_text("a,b\n1.5,\n,3\n")
        options = ["--strategy", "draw", "--draws", 3, "--seed", 5]
        header, rows = printed_rows("impute", places / "model", path, *options)
        assert header == ["draw", "a", "b"]
        gaps = np.array([[1.5, np.nan], [np.nan, 3.0]])
        expected = nameless(places / "model").impute(gaps, "draw", n_draws=3, random_state=5)
        written = np.array(rows, dtype=float)
        np.testing.assert_array_equal(written[:, 0], [1, 1, 2, 2, 3, 3])
        np.testing.assert_array_equal(written[:, 1:].reshape(3, 2, 2), expected)
        message = error_of("impute", places / "model", path, "--draws", 3)
        assert "--draws 3 needs --strategy draw" in message

    def test_decimal_commas_and_semicolons_stay(self, tmp_path, places):
        path = tmp_path / "gaps.csv"
        path.write_text("a;b\n1,50;\n;3\n")
        filled = run_well("impute", places / "model", path, "--out", "-").stdout
        gaps = np.array([[1.5, np.nan], [np.nan, 3.0]])
        expected = nameless(places / "model").impute(gaps)
        b, a = (repr(float(v)).replace(".", ",") for v in (expected[0, 1], expected[1, 0]))
        assert filled == f"a;b\n1,50;{b}\n{a};3\n"

    @pytest.mark.parametrize("suffix", [".tsv", ".csv.gz", ".parquet", ".npy"])
    def test_other_files(self, tmp_path, places, suffix):
        path, out = tmp_path / "gaps.csv", tmp_path / f"filled{suffix}"
        path.write_text("a,b\n1.5,\n,3\n")
        run_well("impute", places / "model", path, "--out", out)
        gaps = np.array([[1.5, np.nan], [np.nan, 3.0]])
        np.testing.assert_array_equal(read_table(out)[0], nameless(places / "model").impute(gaps))
        if suffix == ".tsv":
            assert out.read_text().splitlines()[0] == "a\tb"
        if suffix == ".csv.gz":
            assert gzip.decompress(out.read_bytes()).startswith(b"a,b\n1.5,")

    def test_from_parquet(self, tmp_path, tables):
        table = pyarrow.table(
            {
                "who": ["x", "y"],
                "mass": pyarrow.array([None, 5000], pyarrow.int64()),
                "species": ["Gentoo", None],
                "height": [217.0, 216.5],
            }
        )
        parquet.write_table(table, tmp_path / "gaps.parquet")
        out = tmp_path / "filled.parquet"
        run_well("impute", tables / "model", tmp_path / "gaps.parquet", "--out", out)
        with pytest.warns(UserWarning, match="lacks the columns 'born', 'tagged'"):
            expected = pickmix.load(tables / "model").impute(table.drop_columns("who"))
        written = parquet.read_table(out).to_pydict()
        assert written["who"] == ["x", "y"]
        for name in ("mass", "species", "height"):
            assert written[name] == expected[name].to_pylist()
        assert written["species"] == ["Gentoo", "Gentoo"]

    def test_an_excluded_column_is_not_looked_at_and_stays(self, tmp_path, places):
        path = tmp_path / "gaps.csv"
        path.write_text("a,b\n1.5,\n100,3\n,\n")
        _, rows = printed_rows("impute", places / "model", path, "--exclude", "a")
        assert [row[0] for row in rows] == ["1.5", "100", ""]
        expected = nameless(places / "model").impute(np.full((1, 2), np.nan))[0, 1]
        assert [float(row[1]) for row in rows] == pytest.approx([expected, 3.0, expected])

    def test_words_among_numbers_are_named_by_row(self, tmp_path, places, tables):
        path = tmp_path / "words.csv"
        path.write_text("a,b,mass\n1,2,3\n3,x,y\n")
        for model, column, value in (("numbers", "b", "x"), ("table", "mass", "y")):
            message = error_of("impute", model_of(places, tables, model), path)
            assert (
                f"words.csv: column '{column}' must hold numbers, but row 2 holds '{value}'"
                in message
            )

    def test_without_out_the_filled_cells_are_shown(self, tmp_path, places):
        path = tmp_path / "gaps.csv"
        path.write_text("a,b\n1.5,\n" + "1,2\n" * 5 + ",3\n" * 20)
        lines = run_well("impute", places / "model", path).stdout.splitlines()
        assert lines[0] == "21 of 52 cells filled"
        assert lines[1].startswith("row 1: b=")
        assert lines[2].startswith("row 7: a=")
        assert lines[-1] == "... 11 more rows; --out FILE writes all, --out - prints all"


class TestExplain:
    def test_numbers(self, tmp_path, places):
        rows, _ = read_table(places / "rows.csv")
        rows = rows.copy()
        rows[17, 1] += 8.0
        rows[200, 0] = 50.0
        write_table(tmp_path / "rows.csv", {"a": rows[:, 0], "b": rows[:, 1]})
        model = nameless(places / "model")
        lowest = np.argsort(model.score_samples(rows))[:4]
        assert lowest[0] == 200
        expected = model.explain(rows[lowest])
        for options in ([], ["--chunk-size", 70]):
            arguments = [places / "model", tmp_path / "rows.csv", "--top", 4, *options]
            header, lines = printed_rows("explain", *arguments)
            assert header == [
                *("row", "log_density", "column", "observed", "expected", "spread"),
                *("log_conditional", "surprise", "together"),
            ]
            assert [int(line[0]) for line in lines[::2]] == (lowest + 1).tolist()
            for number, line in enumerate(lines):
                place, column = number // 2, expected.ranked[number // 2, number % 2]
                assert line[2] == "ab"[column]
                numbers = [float(line[k]) for k in (1, 3, 4, 5, 6, 7)]
                wanted = [
                    expected.log_density[place],
                    rows[lowest[place], column],
                    expected.expected[place, column],
                    expected.spread[place, column],
                    expected.log_conditional[place, column],
                    expected.surprise[place, column],
                ]
                np.testing.assert_allclose(numbers, wanted, rtol=1e-9)

    def test_a_table(self, tmp_path, tables):
        path = tmp_path / "rows.csv"
        path.write_text(
            "who,species,mass,height,born,tagged\n"
            "usual,Adelie,3700,190,2008-01-01,False\n"
            "odd,Gentoo,3700,190,2008-01-01,False\n"
        )
        arguments = [tables / "model", path, "--id", "who", "--top", 1]
        shown = run_well("explain", *arguments, "--reasons", 2).stdout.splitlines()
        assert shown[0].startswith("row 2, who odd: log-density ")
        assert shown[1].split()[:4] == ["column", "observed", "expected", "spread"]
        assert len(shown) == 4
        assert shown[2].split()[:3] == ["species", "Gentoo", "Adelie"]
        header, lines = printed_rows("explain", *arguments)
        assert header[:2] == ["who", "row"]
        assert lines[0][3] == "species"
        assert {line[0] for line in lines} == {"odd"}
        assert len(lines) == 3
        out = tmp_path / "reasons.parquet"
        assert "x.npy: expected a name ending in .csv" in error_of(
            "explain", *arguments[:2], "--out", tmp_path / "x.npy"
        )
        run_well("explain", *arguments, "--out", out)
        # Numbers and words stand in one column, which is one of words then.
        written = parquet.read_table(out).to_pydict()
        assert written["observed"] == [line[4] for line in lines]
        assert written["spread"] == [float(line[6]) for line in lines]


class TestSampleGiven:
    @pytest.mark.parametrize(("value", "is_far"), [("6", False), ("5000", True)])
    def test_values_far_from_all_rows_are_told(self, places, value, is_far):
        result = run_well("sample", places / "model", "--given", f"a={value}")
        assert ("far from all rows of the fit" in result.stderr) == is_far

    @pytest.mark.parametrize(("value", "is_far"), [("4000", False), ("90000", True)])
    def test_values_far_from_a_table_are_told(self, tables, value, is_far):
        result = run_well("sample", tables / "model", "--given", f"mass={value}")
        assert ("far from all rows of the fit" in result.stderr) == is_far

    def test_numbers(self, places):
        arguments = ["sample", places / "model", "--rows", 400, "--given", "a=6", "--seed", 2]
        header, rows = printed_rows(*arguments)
        assert header == ["a", "b"]
        drawn = np.array(rows, dtype=float)
        assert (drawn[:, 0] == 6.0).all()
        mean, std = nameless(places / "model").predict_columns([[6.0]], 1, return_std=True)
        assert drawn[:, 1].mean() == pytest.approx(mean[0], abs=4 * std[0] / 20)
        assert drawn[:, 1].std() == pytest.approx(std[0], rel=0.2)
        assert printed_rows(*arguments)[1] == rows

    def test_a_table(self, tables):
        given = ["--given", "species=Chin, strap", "--given", "born=2008-05-05"]
        header, rows = printed_rows("sample", tables / "model", "-n", 30, *given)
        assert header == ["species", "mass", "height", "born", "tagged"]
        assert {(row[0], row[3]) for row in rows} == {("Chin, strap", "2008-05-05")}
        assert np.mean([float(row[1]) for row in rows]) == pytest.approx(3800, abs=250)
        assert all(float(row[1]).is_integer() for row in rows)

    @pytest.mark.parametrize(
        ("model", "given", "message"),
        [
            ("numbers", "a", "--given must be NAME=VALUE, got 'a'"),
            ("numbers", "c=1", "no column 'c'; there are a, b or 0 to 1 (--given)"),
            ("numbers", "a=x", "--given a must be a number, got 'x'"),
            ("numbers", "a=", "--given a must have a value, got ''"),
            ("table", "specie=Adelie", "no column 'specie', but 'species'"),
            ("table", "species=Emperor", "--given species must be a level that the fit has seen"),
            ("table", "born=May", "--given born must hold dates, such as 2024-05-31, got 'May'"),
        ],
    )
    def test_bad_conditions(self, places, tables, model, given, message):
        assert message in error_of("sample", model_of(places, tables, model), "--given", given)

    def test_conditions(self, places, tables):
        header, rows = printed_rows("sample", places / "model", "-n", 50, "--given", "5 < a <= 6")
        first = np.array(rows, dtype=float)[:, header.index("a")]
        assert first.min() > 5.0
        assert first.max() <= 6.0
        given = ["--given", 'species in {"Chin, strap"}', "--given", "mass>3700"]
        header, rows = printed_rows("sample", tables / "model", "-n", 30, *given)
        assert {row[0] for row in rows} == {"Chin, strap"}
        assert all(float(row[1]) > 3700 for row in rows)

    @pytest.mark.parametrize(
        ("model", "given", "message"),
        [
            ("numbers", "a > x", "--given a must be about numbers"),
            ("table", "species > b", "--given species must be a set of levels"),
            ("table", "mass in 3", "--given must be NAME=VALUE, got 'mass in 3'"),
            ("table", "born > May", "--given born must hold dates"),
        ],
    )
    def test_bad_ranges(self, places, tables, model, given, message):
        assert message in error_of("sample", model_of(places, tables, model), "--given", given)

    def test_a_column_twice(self, places):
        given = ["--given", "a=1", "--given", "a=2"]
        assert "must name each column once" in error_of("sample", places / "model", *given)


@pytest.fixture(scope="module")
def levels_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("levels")
    words, truths = ("1.50", "2.00", "n/s"), ("TRUE", "FALSE", "maybe")
    rows = [f"{words[i % 3]},{truths[i % 3]},{i % 3}.{i % 10},kg" for i in range(120)]
    (folder / "fit.csv").write_text("v,t,y,unit\n" + "\n".join(rows) + "\n")
    run_well("fit", folder / "fit.csv", *QUICK, "--out", folder / "model")
    return folder / "model"


class TestLevelsAsTheyAreWritten:
    """Columns of levels of which a later file holds only those that look like something else."""

    def test_gaps_beside_them_are_filled(self, levels_model, tmp_path):
        (tmp_path / "gaps.csv").write_text("v,t,y\nNA,TRUE,\n1.50,NA,\nNA,NA,0.3\n")
        result = run_well("impute", levels_model, tmp_path / "gaps.csv", "--out", "-")
        lines = lines_of(result.stdout)
        assert [line[:2] for line in lines[1:3]] == [["1.50", "TRUE"]] * 2
        assert all(line[2] for line in lines[1:])
        assert "not in the fit" not in result.stderr
        (tmp_path / "none.csv").write_text("v,t,y\n,,0.3\n,,1.5\n")
        result = run_well("impute", levels_model, tmp_path / "none.csv", "--out", "-")
        assert all(all(line) for line in lines_of(result.stdout))

    def test_they_are_scored_and_given(self, levels_model, tmp_path):
        (tmp_path / "few.csv").write_text("v,t,y,unit\n1.50,TRUE,0.3,kg\n2.00,FALSE,1.3,kg\n")
        result = run_well("score", levels_model, tmp_path / "few.csv", "--out", "-")
        assert "note" not in result.stderr
        table = {"v": ["1.50", "2.00"], "t": ["TRUE", "FALSE"], "y": [0.3, 1.3], "unit": ["kg"] * 2}
        expected = pickmix.load(levels_model).score_samples(table)
        np.testing.assert_allclose([float(x[0]) for x in lines_of(result.stdout)[1:]], expected)
        drawn = run_well(
            "sample", levels_model, "--given", "v=1.50", "--given", "unit=kg", "--out", "-"
        )
        assert lines_of(drawn.stdout)[1][0] == "1.50"
        message = error_of("sample", levels_model, "--given", "unit=g")
        assert "--given unit must be 'kg', the only value in the fit, got 'g'" in message

    def test_what_columns_leave_out_is_no_surprise(self, levels_model, tmp_path):
        (tmp_path / "gaps.csv").write_text("v,t,y,unit\nNA,TRUE,,kg\n")
        options = ["--columns", "t,y", "--out", "-"]
        result = run_well("impute", levels_model, tmp_path / "gaps.csv", *options)
        assert "lacks" not in result.stderr
        assert lines_of(result.stdout)[1][:2] == ["NA", "TRUE"]

    def test_marks_among_numbers_are_filled_like_gaps(self, tmp_path):
        rows = "".join(f"{i % 9}.{i % 7},{i % 4}\n" for i in range(60))
        (tmp_path / "t.csv").write_text("a,b\n" + rows + "?,2\n")
        kind = ["--kind", "a=number"]
        run_well("fit", tmp_path / "t.csv", *kind, *QUICK, "--out", tmp_path / "model")
        result = run_well("impute", tmp_path / "model", tmp_path / "t.csv", "--out", "-")
        lines = lines_of(result.stdout)
        assert 0.0 <= float(lines[-1][0]) <= 9.0
        assert "1 value(s) that are no numbers, such as '?'" in result.stderr
