"""The command line as tests use it, in this process."""

import contextlib
import csv
import io
import signal

from click.testing import CliRunner

import pickmix
from pickmix.cli import main
from pickmix.closed_form.algorithm import Engine

#: Options of a short fit that leaves the model and its trace only.
QUICK = ["--components", "3", "--max-iter", "3", "--tol", "0", "--no-plot", "--no-report"]


def run(*arguments, stdin=None):
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)


def run_well(*arguments, stdin=None):
    """What a command that succeeds has printed."""
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result


def error_of(*arguments, stdin=None):
    """The one line of an error, which comes last."""
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 2, result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert result.stderr.splitlines()[-1] == line
    assert "Traceback" not in result.output
    return line


def lines_of(text, delimiter=","):
    return list(csv.reader(io.StringIO(text), delimiter=delimiter))


def printed_rows(*arguments, stdin=None):
    """Header and rows that a command writes to standard output."""
    header, *rows = lines_of(run_well(*arguments, "--out", "-", stdin=stdin).stdout)
    return header, rows


def as_csv(columns, delimiter=",", decimal=".", gap=""):
    def cell(value):
        if value is None:
            return gap
        text = str(value).replace(".", decimal) if isinstance(value, float) else str(value)
        return f'"{text}"' if delimiter in text else text

    lines = [list(columns), *zip(*columns.values(), strict=True)]
    return "".join(delimiter.join(map(cell, line)) + "\n" for line in lines)


def summary_of(text):
    """Names and values of the summary of a fit."""
    lines = [line[2:].split("  ", 1) for line in text.splitlines() if line.startswith("  ")]
    return {name: value.strip() for name, value in lines}


def nameless(path):
    """A saved model that takes arrays without a warning."""
    model = pickmix.load(path)
    del model.feature_names_in_
    return model


def same_model(one, other):
    return pickmix.load(one).means_.tobytes() == pickmix.load(other).means_.tobytes()


@contextlib.contextmanager
def pythons_own_ctrl_c():
    # Hosts may run tests with SIGINT ignored; the fit heeds Python's own handler only.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def ctrl_c_after_step(monkeypatch, number):
    """Press Ctrl-C after this step of a fit."""
    step = Engine.advance

    def interrupted(self, first, most):
        made = step(self, first, most)
        if first == number:
            signal.raise_signal(signal.SIGINT)
        return made

    with monkeypatch.context() as patch, pythons_own_ctrl_c():
        patch.setattr(Engine, "advance", interrupted)
        yield
