"""The command line as tests use it, in this process."""

from click.testing import CliRunner

from pickmix.cli import main

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
