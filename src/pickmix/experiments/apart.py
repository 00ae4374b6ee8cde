"""One run in a process of its own, so that its peak memory means something.

    python -m pickmix.experiments.apart SETTINGS SEED OUT [MAX_SECONDS]

It writes its measurements as lines of JSON; those of a killed process stay.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from pickmix.experiments.fits.perform import Recorder, perform
from pickmix.experiments.machine import cpu_count
from pickmix.experiments.runs import Run, run_of
from pickmix.experiments.store import History, make_history


def perform_apart(run: Run, limit_seconds: float | None = None) -> History:
    """Make a run in a process of its own; its outcome says how the process ended."""
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as folder:
        out, errors = Path(folder, "lines.jsonl"), Path(folder, "errors.txt")
        with open(errors, "wb") as error_file:
            process = subprocess.Popen(
                _command(run, out, limit_seconds),
                # Kept open: the process ends when it closes, so that none is left behind.
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=error_file,
                # Ctrl-C is for the bench. Our fits would end early with a result of their own.
                start_new_session=True,
            )
            try:
                code = process.wait()
            finally:
                process.kill()
                process.communicate()
        for line in out.read_text("utf-8").splitlines(True) if out.exists() else ():
            # The last one may have been cut short.
            if line.endswith("\n"):
                said = json.loads(line)
                recorder.add(**said["record"]) if "record" in said else recorder.know(**said)
        if "outcome" not in recorder.facts:
            text = errors.read_text("utf-8", errors="replace")
            recorder.know(outcome=_outcome(code, limit_seconds, text))
    return make_history(run, recorder.records, recorder.facts)


def _command(run: Run, out: Path, limit_seconds: float | None) -> list[str]:
    arguments = [json.dumps(run.settings()), str(run.seed), str(out)]
    arguments += [] if limit_seconds is None else [str(limit_seconds)]
    return [sys.executable, "-m", "pickmix.experiments.apart", *arguments]


def _outcome(code: int, limit_seconds: float | None, errors: str) -> str:
    """The outcome of a process that ended without one."""
    if code < 0:
        if limit_seconds is not None and -code == getattr(signal, "SIGALRM", 0):
            return f"timed out after {limit_seconds:g} s"
        name = signal.Signals(-code).name
        # The kernel ends what takes more memory than there is this way.
        return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    lines = errors.strip().splitlines()
    return f"failed: {lines[-1]}" if lines else f"failed: exit code {code}"


class _Telling(Recorder):
    """Writes records and facts at once."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file

    def add(self, **values: float) -> None:
        """Write a record."""
        self.know(record=values)

    def know(self, **facts: Any) -> None:
        """Write facts."""
        print(json.dumps(facts), file=self._file, flush=True)


def leave_with_parent() -> None:
    """End this process when standard input closes: the one that started it is gone."""

    def wait() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    _settings, _seed, _out, *_limit = sys.argv[1:]
    leave_with_parent()
    # A rival that wants more memory than there is must not cost another process its life.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    _run = run_of(_settings, int(_seed))
    assert _run is not None
    with open(_out, "a", encoding="utf-8") as _file:
        perform(_run, float(_limit[0]) if _limit else None, cpu_count(), _Telling(_file))
