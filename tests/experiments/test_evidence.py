"""`pickmix bench all`: its questions, what is left out, rows that resume."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import multivariate_normal

from pickmix_experiments import deconvolution, evidence
from pickmix_experiments.bench import bench
from pickmix_experiments.evidence import QUESTIONS, ask, load, read, table


@pytest.fixture
def pool():
    with ThreadPoolExecutor(1) as pool:
        yield pool


def run(*arguments):
    return CliRunner().invoke(bench, ["all", *map(str, arguments)])


def test_the_bench_lists_its_questions_and_what_is_left_out(monkeypatch, tmp_path):
    monkeypatch.delenv("PICKMIX_DATA", raising=False)
    text = run("--list").output
    assert [line.split()[0] for line in text.splitlines()[: len(QUESTIONS)]] == list(QUESTIONS)
    assert "left out: imputation: PICKMIX_DATA is not set" in text
    monkeypatch.setenv("PICKMIX_DATA", str(tmp_path))
    only = run("--only", "imputation", "--quick", "--out", tmp_path)
    assert only.exit_code == 0, only.output
    expected = "not in the folder that PICKMIX_DATA names: imputation/published.csv"
    assert only.output == f"left out: imputation: {expected}\n"


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_have_plain_settings_each_once(name):
    question = load(name)
    for quick in (False, True):
        cells = [json.dumps(cell) for cell in question.cells(quick)]
        assert len(set(cells)) == len(cells)
        assert cells or quick
        assert all(json.loads(cell) for cell in cells)


def test_a_question_is_measured_once_and_resumes(tmp_path, pool, monkeypatch):
    lines = ask("thresholds", tmp_path, True, pool)
    assert [line["method"] for line in lines] == ["planted", "clean", "novelty"]
    known = {"versions", "commit", "cpu", "cores", "load_average", "cell_cpu_seconds"}
    assert known | {"peak_megabytes", "seconds", "cpu_seconds", "seed"} <= set(lines[0])
    # Planted rows lie outside, so that most of them are found.
    assert lines[0]["hits"] > 0.5
    text = table("thresholds", lines)
    assert text.splitlines()[0].startswith("| method | n_rows | flagged | hits |")
    monkeypatch.setattr(evidence, "perform", None)
    assert ask("thresholds", tmp_path, True, pool) == lines


def test_an_error_is_a_row_and_is_tried_again(tmp_path, capsys, monkeypatch):
    calls = []

    def measure(n_rows, seed):
        calls.append(seed)
        if len(calls) == 1:
            raise ZeroDivisionError("of no use\nmore")
        yield {"method": "made up", "flagged": 0.25}

    question = evidence.Question(
        lambda quick: [{"n_rows": 1, "seed": 0}], measure, "method", "flagged"
    )
    monkeypatch.setattr(evidence, "load", lambda name: question)
    file = tmp_path / "made-up.jsonl"
    for expected in ([], [0.25], [0.25]):
        with ThreadPoolExecutor(1) as pool:
            found = ask("made-up", tmp_path, shared=pool)
        assert [line["flagged"] for line in found] == expected
        if not found:
            # As a killed process may leave it.
            file.write_text(file.read_text() + '{"question": "made-up", "n_ro')
    assert calls == [0, 0]
    assert "failed: ZeroDivisionError: of no use" in capsys.readouterr().err
    assert [line["outcome"] for line in read(file)][1] == "done"


def test_a_script_gives_what_it_prints(tmp_path, monkeypatch):
    from pickmix_experiments.questions import scripts

    code = "import sys\nprint('words\\n| a |\\n|---|\\n|', *sys.argv[1:])"
    (tmp_path / "small.py").write_text(code)
    monkeypatch.setattr(scripts, "FOLDER", tmp_path)
    monkeypatch.setenv("PICKMIX_BENCH_OUT", str(tmp_path))
    monkeypatch.setenv("PICKMIX_DATA", "a folder")
    (line,) = scripts.run("small.py {data}/file")
    assert (
        line["output"] == f"| a |\n|---|\n| a folder/file --out {tmp_path / 'small-py-data-file'}"
    )
    with pytest.raises(FileNotFoundError, match=r"expected missing\.py in"):
        next(scripts.run("missing.py"))


def test_deconvolution_is_em_of_rows_with_noise():
    rng = np.random.default_rng(0)
    noise = rng.uniform(0.1, 2.0, (300, 3))
    rows = rng.normal(size=(300, 3)) + 3.0 * rng.integers(2, size=(300, 1))
    rows += np.sqrt(noise) * rng.normal(size=noise.shape)
    model = deconvolution.start(rows, noise, 2, 0)
    parts = [
        [w * multivariate_normal(m, V + np.diag(S)).pdf(x) for w, m, V in zip(*model, strict=True)]
        for x, S in zip(rows[:20], noise[:20], strict=True)
    ]
    expected = np.log(np.sum(parts, axis=1))
    np.testing.assert_allclose(deconvolution.log_density(rows[:20], noise[:20], model), expected)
    likelihoods = []
    with ThreadPoolExecutor(1) as pool:
        for _ in range(20):
            model, likelihood = deconvolution.iterate(rows, noise, model, pool)
            likelihoods.append(likelihood)
    assert np.all(np.diff(likelihoods) > -1e-5)
    assert likelihoods[-1] > likelihoods[0] + 0.001
