"""`pickmix compile`, and the word that a first compilation is announced with."""

import logging
import subprocess
import sys

import numpy as np
import pytest
from commands import run, run_well

from pickmix import GaussianMixture
from pickmix.estimators import compilation
from pickmix.kernels.numba_kernels import choices


def test_kernels_are_kept():
    result = run_well("compile", "--only", "em")
    assert "Compiled in" in result.stdout
    assert compilation.cache_folder() in result.stdout
    assert "em" in compilation._compiled


def test_unknown_kinds_are_refused():
    result = run("compile", "--only", "gibbs")
    assert result.exit_code == 2
    assert "'partition'" in result.stderr


def test_other_processes_compile(monkeypatch):
    """One process per share; each compiles the kernels with these numbers."""
    shares = [[choices.count_rows], [choices.descend]]
    numbers = [list(compilation._SIGNATURES).index(kernel) for (kernel,) in shares]
    commands = []

    class Process:
        def __init__(self, command, **_):
            commands.append(command)

        def wait(self):
            return 0

        def kill(self):
            pass

    monkeypatch.setattr(subprocess, "Popen", Process)
    compilation._compile_elsewhere(shares)
    assert [command[0] for command in commands] == [sys.executable] * 2
    for command, number in zip(commands, numbers, strict=True):
        assert command[-1].endswith(f"compile_numbers([{number}])")


@pytest.mark.parametrize("on_disk", [False, True])
def test_the_first_compilation_is_announced(monkeypatch, caplog, on_disk):
    monkeypatch.setattr(compilation, "_compiled", set())
    monkeypatch.setattr(compilation, "_is_on_disk", lambda kernel: on_disk)
    started = []
    monkeypatch.setattr(compilation, "_compile_elsewhere", started.extend)
    X = np.random.default_rng(0).normal(size=(400, 2))
    with caplog.at_level(logging.WARNING, logger="pickmix"):
        mixture = GaussianMixture(300, random_state=0, max_steps=1).fit(X)
    assert mixture.compile_seconds_ > 0.0
    assert ("once on this machine" in caplog.text) == (not on_disk)
    # Other processes compile, so that this one has the bits of all that load kernels.
    needed = [] if on_disk else compilation.KINDS["partition"]
    assert {kernel for share in started for kernel in share} == set(needed)
    assert GaussianMixture(300, random_state=0, max_steps=1).fit(X).compile_seconds_ == 0.0


def test_small_fits_announce_nothing(monkeypatch, caplog):
    monkeypatch.setattr(compilation, "_compiled", set())
    X = np.random.default_rng(0).normal(size=(60, 2))
    with caplog.at_level(logging.WARNING, logger="pickmix"):
        mixture = GaussianMixture(3, random_state=0, max_steps=1).fit(X)
    assert mixture.compile_seconds_ == 0.0
    assert not caplog.text
