"""Compile before the clock starts: work time must not measure Numba's compiler."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from pickmix import compiled
from pickmix.closed_form.cells import draw_cells
from pickmix.closed_form.seeding import PlacedRows, seed_in_cells
from pickmix.closed_form.starts import Start, Starter
from pickmix.data.partial_rows import PartialRows, make_rows
from pickmix.data.rows import ArrayRows
from pickmix.estimators.closed_form_fit import Before, fit_once
from pickmix.estimators.plan import Plan, resolve_plan
from pickmix.families.gaussian import FullGaussian
from pickmix.model.mixture import make_backend
from pickmix.selection.randomness import StepRandomness
from pickmix.selection.settings import RandomPartition
from pickmix.sweep.partial_sweep import sweep_partial_blocks
from pickmix.sweep.blocks import sweep_blocks
from pickmix.sweep.contract import Backend
from pickmix.sweep.pair_kernels import evaluate_all, evaluate_candidates
from pickmix.threads import Threads

_logger = logging.getLogger("pickmix")

# Kinds of fits that compile the same kernels: algorithm, proposal, and a kernel that shows whether
# they are there.
KINDS: dict[str, tuple[str, Any, Any]] = {
    "partition": ("mhsaem", RandomPartition(block_size=2, shuffle=0.5), sweep_blocks),
    "em": ("em", "auto", evaluate_all),
    "ssaem": ("ssaem", "auto", evaluate_all),
    "tsaem": ("tsaem", "auto", evaluate_candidates),
    "mcsaem": ("mcsaem", "auto", evaluate_all),
    "uniform": ("mhsaem", "uniform", evaluate_candidates),
    "table": ("mhsaem", "table", evaluate_candidates),
    "partial": (
        "mhsaem",
        RandomPartition(block_size=2, shuffle=0.5),
        sweep_partial_blocks,
    ),
}
_SAME_KERNELS = {"saem": "em", "optimal": "mcsaem", "table-forgetting": "table"}
_N_ROWS = 24
_compiled: set[str] = set()


def compile_kernels(plan: Plan, source: ArrayRows) -> float:
    """Compile what a plan needs for these rows; return the seconds it took.

    One compilation serves all families and covariances, and is kept on disk. Nothing is done for
    problems that run in NumPy.
    """
    if not plan.compiled:
        return 0.0
    kind = _SAME_KERNELS.get(plan.proposal_name, plan.proposal_name)
    if kind not in KINDS:
        # A user's proposal has seen no rows yet, and should not see made-up ones.
        kind = "uniform"
    seconds = ensure_compiled(kind)
    if isinstance(source, PartialRows):
        seconds += ensure_compiled("partial")
    if seconds:
        # Gathering is compiled for every type and layout of rows.
        source.gather(np.arange(1))
    return seconds


def ensure_compiled(kind: str) -> float:
    """Run a small fit of a kind on made-up rows, once in a process; return the seconds it took."""
    if kind in _compiled:
        return 0.0
    started = time.perf_counter()
    if not _is_on_disk(KINDS[kind][2]):
        _logger.warning(
            "pickmix compiles its kernels, once on this machine: about 20 seconds. "
            "(`pickmix compile` does it ahead of the first fit.)"
        )
        _compile_elsewhere(kind)
    compile_kinds([kind])
    return time.perf_counter() - started


compiled.before_first_use = ensure_compiled


def _compile_elsewhere(kind: str) -> None:
    """Let another process compile the kernels of a kind, for this one to load from disk.

    A process that compiles a kernel also holds its callees compiled separately, and may use those.
    They are optimised differently, so its results would differ in their last bits from those of
    processes that load the kernel. If nothing can be kept on disk, or no other process started,
    this one compiles.
    """
    code = f"from pickmix.estimators.compilation import compile_kinds; compile_kinds([{kind!r}])"
    paths = os.pathsep.join(path for path in sys.path if path)
    # Without a cache, as with NUMBA_DISABLE_JIT, there is no folder either.
    with contextlib.suppress(AttributeError, OSError, subprocess.SubprocessError):
        # Where nothing can be written, another process would compile in vain.
        os.makedirs(cache_folder(), exist_ok=True)
        if not os.access(cache_folder(), os.W_OK):
            return
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )


def compile_kinds(kinds: Iterable[str]) -> None:
    """Compile the kernels of some kinds of fits, or load them from disk."""
    for kind in kinds:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _fit_made_up_rows(kind)
        _compiled.add(kind)


def cache_folder() -> str:
    """Where Numba keeps compiled kernels."""
    return str(sweep_blocks.stats.cache_path)


def _is_on_disk(kernel: Any) -> bool:
    """Whether Numba has a compiled version of a kernel in its cache."""
    try:
        return bool(kernel._cache._cache_file._load_index())
    except (AttributeError, OSError):
        return False


def _fit_made_up_rows(kind: str) -> None:
    algorithm, proposal, _ = KINDS[kind]
    settings = SimpleNamespace(
        n_components=5,
        algorithm=algorithm,
        proposal=proposal,
        n_samples="auto",
        reuse_log_joint=False,
        batch_size="auto" if kind in ("partition", "partial") else 4,
        step_size=0.5,
        annealing=None,
        max_iter=1,
        # Twice through all rows: the second visit of a row may take another path.
        max_steps=12,
        max_time=None,
        tol=0.0,
        evaluate_every=6,
        n_init=2,
        init_params="auto",
    )
    plan = resolve_plan(settings, FullGaussian(2, 1.0), _N_ROWS, given=False)
    threads = Threads()
    made_up = np.random.default_rng(0).normal(size=(_N_ROWS, 2))
    if kind == "partial":
        made_up[::3, 1] = np.nan
    source = make_rows(made_up)

    def choose_start(starter: Starter) -> Start:
        if plan.partition is None:
            return starter.from_data("k-means++")
        return starter.spread_out(plan.partition, _N_ROWS)

    fit_once(
        replace(plan, compiled=True),
        source,
        0,
        make_backend(True, threads),
        choose_start,
        before=Before(),
        verbose=0,
        callbacks=(),
        make_estimator=lambda state: None,
    )
    if kind == "partial":
        _ask_about(plan, made_up, make_backend(True, threads))
    elif plan.partition is not None:
        # What only very many components need: trees grown in parts, seeds in cells.
        backend = make_backend(True, threads)
        rows = np.random.default_rng(0).normal(size=(256, 2))
        backend.operations.grow_tree(rows, 1, np.uint64(1), np.ones(2))
        # Searches for rows that come later, and the background there.
        draw_cells(rows, np.ones(2), 32, StepRandomness(0, 0), backend)
        nobody = np.full((1, 1), -1, dtype=np.int32)
        backend.log_joint(plan.family.layout, plan.family.empty_model(2), rows[:1], nobody)
        # And what the first query after a fit needs.
        backend.log_joint_all(plan.family.layout, plan.family.empty_model(2), rows)
        placed, numbers = PlacedRows(source, plan.family), np.arange(_N_ROWS)
        seed_in_cells(placed, numbers, 2, np.uint64(1), np.random.default_rng(0), backend)


def _ask_about(plan: Plan, rows: np.ndarray, backend: Backend) -> None:
    """Compile for other algorithms, and for queries after a fit, on partial rows."""
    layout, model = plan.family.layout, plan.family.empty_model(2)
    model.factor[:] = 1.0
    pairs = np.zeros((rows.shape[0], 1), dtype=np.int32)
    ones = np.ones(rows.shape[0])
    backend.log_joint(layout, model, rows, pairs)
    backend.log_joint_all(layout, model, rows)
    backend.sums_of_all(layout, rows, ones, np.ones((2, rows.shape[0])), model)
    backend.pair_statistics(layout, 2, rows, ones, pairs, ones[:, None], 1.0, model)
