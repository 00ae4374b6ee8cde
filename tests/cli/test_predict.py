"""`pickmix predict` says what the estimators say; `pickmix fit --hold-out` scores other rows."""

import numpy as np
import pytest
from commands import QUICK, error_of, nameless, printed_rows, run_well
from sklearn.exceptions import ConvergenceWarning

import pickmix
from pickmix.inputs.files import read_table, write_table


def test_numbers(tmp_path, places, X):
    out = tmp_path / "predicted.csv"
    options = ["--target", "b", "--std", "--quantiles", "0.1,0.9", "--out", out]
    result = run_well("predict", places / "model", places / "rows.csv", *options)
    written, names = read_table(out)
    assert names == ["b", "b_std", "b_q0.1", "b_q0.9"]
    mean, std, quantiles = nameless(places / "model").predict_columns(
        X, 1, return_std=True, quantiles=[0.1, 0.9]
    )
    np.testing.assert_allclose(written, np.column_stack([mean, std, quantiles]), rtol=1e-12)
    share = 1.0 - np.square(mean - X[:, 1]).sum() / np.square(X[:, 1] - X[:, 1].mean()).sum()
    assert f"b: mean absolute error {np.abs(mean - X[:, 1]).mean():.4g}, R2 {share:.3f}" in (
        result.stdout
    )


@pytest.mark.parametrize("suffix", ["csv", "npy"])
def test_rows_need_not_have_the_target(tmp_path, places, X, suffix):
    path = tmp_path / f"a.{suffix}"
    write_table(path, {"a": X[:, 0]})
    _, rows = printed_rows("predict", places / "model", path, "--target", "b")
    expected = nameless(places / "model").predict_columns(X[:, :1], 1)
    np.testing.assert_allclose([float(row[0]) for row in rows], expected, rtol=1e-12)


def test_targets_do_not_predict_each_other(places, X):
    _, rows = printed_rows("predict", places / "model", places / "rows.csv", "--target", "a,b")
    mixture = nameless(places / "model")
    expected = np.broadcast_to(mixture.weights_ @ mixture.means_, X.shape)
    np.testing.assert_allclose(np.array(rows, dtype=float), expected)


def test_columns_of_a_table(tables, people):
    arguments = ["predict", tables / "model", tables / "people.csv", "--target", "species,mass"]
    header, rows = printed_rows(*arguments)
    assert header == ["name", "species", "species_probability", "mass"]
    model = pickmix.load(tables / "model")
    others = {name: people[name] for name in ("height", "born", "tagged")}
    mixtures = model.conditional(others, ["species", "mass"])
    levels, probabilities = mixtures.probabilities("species")
    assert [row[1] for row in rows] == levels[probabilities.argmax(axis=1)].tolist()
    np.testing.assert_allclose([float(row[2]) for row in rows], probabilities.max(axis=1))
    np.testing.assert_allclose([float(row[3]) for row in rows], mixtures.mean()["mass"])
    seen = [value is not None for value in people["species"]]
    right = np.mean([r[1] == s for r, s in zip(rows, people["species"], strict=True) if s])
    said = f"species: right in {right:.1%} of the {sum(seen)} rows that have it"
    assert said in run_well(*arguments).stdout


def test_levels_that_the_fit_has_not_seen_count_as_missing(tmp_path, tables):
    header = "name,species,mass,height,born,tagged"
    for number, species in enumerate(("Emperor", "")):
        text = f"{header}\nx,{species},3700,190.5,2007-05-05,true\n"
        (tmp_path / f"{number}.csv").write_text(text)
    answers = [
        run_well("predict", tables / "model", tmp_path / f"{number}.csv", "--target", "mass")
        for number in range(2)
    ]
    assert answers[0].stdout == answers[1].stdout
    assert "levels that were not in the fit: 'Emperor'" in answers[0].stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--target", "c"], "no column 'c'; there are a, b or 0 to 1 (--target)"),
        (["--target", "b", "--quantiles", "half"], "--quantiles must be numbers such as 0.05,0.95"),
    ],
)
def test_mistakes(places, options, expected):
    assert expected in error_of("predict", places / "model", places / "rows.csv", *options)


def test_commands_that_are_meant():
    result = error_of("predikt")
    assert "No such command 'predikt'. Did you mean 'predict'?" in result


def test_rows_that_are_held_out(tmp_path, places, X):
    options = [*QUICK, "--hold-out", "0.2", "--out", tmp_path / "model"]
    printed = run_well("fit", places / "rows.csv", *options).stdout
    assert "rows                         240\n" in printed
    held_out = np.sort(np.random.default_rng(0).permutation(300)[:60])
    kept = np.delete(X, held_out, axis=0)
    expected = pickmix.GaussianMixture(3, max_iter=3, tol=0.0, random_state=0).fit(kept)
    assert f"held out, per row            {expected.score(X[held_out]):.4f}  (60 rows)" in printed
    assert "needs rows in memory" in error_of("fit", f"{places}/part-*.csv", "--hold-out", "0.2")


def test_reports_look_at_held_out_rows_and_name_them(tmp_path, tables):
    options = ["--components", "2", "--max-iter", "3", "--no-plot", "--id", "name"]
    run_well("fit", tables / "people.csv", *options, "--hold-out", "0.1", "--out", tmp_path / "m")
    page = (tmp_path / "m" / "report.html").read_text(encoding="utf-8")
    held_out = np.sort(np.random.default_rng(0).permutation(240)[:24]).tolist()
    for row in range(240):
        assert (f'"No. {row}, x"' in page) == (row in held_out)


@pytest.mark.parametrize(
    ("algorithm", "tol", "expected"),
    [("em", 1e-9, "still rose by more than tol=1e-09"), ("mhsaem", 1e9, "too few to see")],
)
def test_fits_that_end_early_say_what_is_known(algorithm, tol, expected):
    X = np.random.default_rng(0).standard_exponential((500, 4))
    mixture = pickmix.GaussianMixture(8, algorithm=algorithm, max_iter=3, tol=tol, random_state=0)
    with pytest.warns(ConvergenceWarning, match=expected):
        mixture.fit(X)
