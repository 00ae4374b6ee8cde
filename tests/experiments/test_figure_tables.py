"""Numbers behind figures, against medians by hand."""

import math

import numpy as np
import pytest
from made_histories import history

from pickmix.experiments.catalogue import Figure, Panel
from pickmix.experiments.runs import ConvergenceRun, GaussianRun
from pickmix.experiments.tables.figures import figure_tables


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


def test_acceptance_at_both_ends():
    run = ConvergenceRun("MHSAEM-U", 9, 0)
    one = history(run, values=np.zeros(10))
    one.series["acceptance"] = np.linspace(1.0, 0.1, 10)
    (table,) = tables(Panel("", "acceptance", (run,)), [one])
    assert cells(table)["MHSAEM-U"]["first"].value == 1.0
    assert cells(table)["MHSAEM-U"]["last"].value == pytest.approx(0.1)


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


def test_nothing_measured_no_table():
    run = GaussianRun("SAEM", 9, 0)
    assert tables(Panel("", "log_likelihood", (run,)), []) == []
    failed = history(run, "failed: ValueError", values=(math.nan,))
    assert tables(Panel("", "K", (run,)), [failed]) == []
