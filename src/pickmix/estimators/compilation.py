"""Compile before the clock starts: work time must not measure Numba's compiler.

Kernels are compiled for explicit signatures, one each: all families and covariances share them.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
import numpy as np

from pickmix import compiled
from pickmix.closed_form import seeding
from pickmix.data.rows import ArrayRows, PartialRows
from pickmix.families import cholesky
from pickmix.families.layout import Model, Moments, make_layout
from pickmix.fitting.settings import FitSettings
from pickmix.kernels.numba_kernels import block_setup, choices, pairs, partial, stores
from pickmix.kernels.numba_kernels.blocks import sweep_blocks
from pickmix.kernels.numba_kernels.partial import sweep_partial_blocks
from pickmix.kernels.statistics import no_sums

_logger = logging.getLogger("pickmix")

# Types of arguments: numbers, arrays in C order by type and dimension (i4 is one of 32 bits; a2s
# may have strides), and tuples. "range" are two integers, start and stop.
_SIGNATURES: dict[Any, str] = {
    cholesky.factorise_components: "layout f2 s1 f1 f2 f1 b1 range",
    seeding.seed_cells: "f2 s1 i1 i1 f2 i1 range",
    seeding.nearest_in_cell: "f2 s1 f2 i1 s1 range",
    choices.find_nearest: "g2 g2 i1 s2 s2 range",
    choices.count_rows: "s1 s1 i1 i1",
    choices.split_pending: "i2 f2 s1 f1 key f1 i1 tree int i2 range",
    choices.descend: "f2 int tree s1 range",
    choices.keep_largest: "f2 s2 s2 f2",
    choices.accept_rows: "s1 s2 f1 f2a f1 f2 float i1 key int s2 f1 range",
    stores.draw_from_table: "i1 s1 int lists key int s2 f2 f1",
    stores.update_table: "i1 s2 int float float lists",
    stores.collect_sets: "i1 s2 s2 int key s2",
    stores.learn_distances: "s2 f2 s1a s2 f2 i2",
    pairs.evaluate_candidates: "layout model f2 s2 f2 range",
    pairs.evaluate_all: "layout model f2 f2 range",
    pairs.group_by_component: "s2 f2 f1 s1 s1 i1 i1 f1",
    pairs.accumulate_pairs: "layout f2 i1 i1 f1 sums range",
    pairs.accumulate_all: "layout f2 f1 f2 sums range",
    pairs.blend: "layout moments model s1 sums float f2 f1 range",
    sweep_blocks: "layout model f2 f1 i1 s1 i1 i1 range float key bool i1 s1 s1 sums f1 work",
    sweep_partial_blocks: (
        "layout model f2 f1 i1 s1 s1 i1 i1 i1 int range float key bool i1 s1 sums f1 i1 f2 f2 f2 "
        "partial_work"
    ),
}
# What starts, M-steps and the queries after a fit need.
_ALWAYS = (
    cholesky.factorise_components,
    pairs.evaluate_candidates,
    pairs.evaluate_all,
    pairs.group_by_component,
    pairs.accumulate_pairs,
    pairs.blend,
)
#: Kernels of each kind of fit.
KINDS: dict[str, tuple[Any, ...]] = {
    "partition": (
        *_ALWAYS,
        choices.count_rows,
        choices.split_pending,
        choices.descend,
        sweep_blocks,
    ),
    "em": (*_ALWAYS, pairs.accumulate_all),
    "ssaem": (*_ALWAYS, choices.keep_largest),
    "tsaem": (*_ALWAYS, choices.keep_largest, stores.collect_sets, stores.learn_distances),
    "mcsaem": _ALWAYS,
    "uniform": (*_ALWAYS, choices.accept_rows),
    "table": (*_ALWAYS, choices.accept_rows, stores.draw_from_table, stores.update_table),
    "partial": (sweep_partial_blocks,),
    # Seeds in cells, and searches for rows that come later.
    "many": (seeding.seed_cells, seeding.nearest_in_cell, choices.find_nearest),
}
_SAME_KERNELS = {"saem": "em", "optimal": "mcsaem", "table-forgetting": "table"}
_MOST_BLOCKS = 16  # With more blocks, starts and searches use cells.
_MOST_PROCESSES = 2  # That compile at the same time.
_IMPORT_SECONDS = 2.0  # Until such a process begins.
_compiled: set[str] = set()


def compile_kernels(settings: FitSettings, source: ArrayRows) -> float:
    """Compile what a fit needs for these rows; return the seconds it took.

    Nothing is done for problems that run in NumPy.
    """
    if not settings.compiled:
        return 0.0
    kind = _SAME_KERNELS.get(settings.proposal_name, settings.proposal_name)
    # A user's proposal may need any kernel of chains.
    kinds = [kind if kind in KINDS else "uniform"]
    block_size = (
        settings.partition.block_size if settings.partition is not None else settings.n_components
    )
    if settings.n_components > _MOST_BLOCKS * block_size:
        kinds.append("many")
    if isinstance(source, PartialRows):
        kinds.append("partial")
    return ensure_compiled(*kinds)


def ensure_compiled(*kinds: str) -> float:
    """Load the kernels of some kinds of fits, once in a process; return the seconds it took.

    Another process compiles those that are not on disk yet.
    """
    needed = [kind for kind in kinds if kind not in _compiled]
    if not needed:
        return 0.0
    started = time.perf_counter()
    shares = _shares_of_work(needed)
    if any(shares):
        _logger.warning(
            "pickmix compiles its kernels, once on this machine: about %.0f seconds. "
            "(`pickmix compile` does it ahead of the first fit.)",
            _IMPORT_SECONDS + max(sum(map(_seconds, share)) for share in shares),
        )
        _compile_elsewhere(shares)
    compile_kinds(needed)
    return time.perf_counter() - started


# Processor seconds of kernels that take more than half a second, on one core of 2026.
_SECONDS: dict[Any, float] = {
    sweep_blocks: 14.0,
    sweep_partial_blocks: 12.0,
    cholesky.factorise_components: 2.5,
    choices.find_nearest: 2.0,
    choices.split_pending: 2.0,
    seeding.seed_cells: 2.0,
    pairs.evaluate_candidates: 1.5,
    pairs.evaluate_all: 1.5,
    pairs.accumulate_pairs: 1.0,
    pairs.accumulate_all: 1.0,
    pairs.blend: 1.5,
}

compiled.before_first_use = ensure_compiled


def _seconds(kernel: Any) -> float:
    return _SECONDS.get(kernel, 0.5)


def _shares_of_work(kinds: Iterable[str]) -> list[list[Any]]:
    """Kernels that are not on disk yet, divided between processes, longest first."""
    loaded = {each for kind in KINDS if _is_on_disk(kind) for each in KINDS[kind]}
    missing = {each for kind in kinds if not _is_on_disk(kind) for each in KINDS[kind]} - loaded
    shares: list[list[Any]] = [[] for _ in range(min(_MOST_PROCESSES, os.cpu_count() or 1))]
    for kernel in sorted(missing, key=lambda each: (-_seconds(each), each.__name__)):
        min(shares, key=lambda share: sum(map(_seconds, share))).append(kernel)
    return shares


def _compile_elsewhere(shares: list[list[Any]]) -> None:
    """Let other processes compile kernels, for this one to load from disk.

    A process that compiles a kernel also holds its callees compiled separately, and may use those.
    They are optimised differently, so its results would differ in their last bits from those of
    processes that load the kernel. If nothing can be kept on disk, or no other process started,
    this one compiles.
    """
    paths = os.pathsep.join(path for path in sys.path if path)
    numbers = {kernel: number for number, kernel in enumerate(_SIGNATURES)}
    # Without a cache, as with NUMBA_DISABLE_JIT, there is no folder either.
    with contextlib.suppress(AttributeError, OSError):
        # Where nothing can be written, another process would compile in vain.
        os.makedirs(cache_folder(), exist_ok=True)
        if not os.access(cache_folder(), os.W_OK):
            return
        processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    "from pickmix.estimators import compilation; "
                    f"compilation.compile_numbers({[numbers[kernel] for kernel in share]})",
                ],
                env=os.environ | {"PYTHONPATH": paths},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for share in shares
            if share
        ]
        try:
            for process in processes:
                process.wait()
        finally:
            for process in processes:
                process.kill()


def compile_all(kinds: Iterable[str]) -> None:
    """Compile the kernels of some kinds of fits in several processes."""
    kinds = list(kinds)
    _compile_elsewhere(_shares_of_work(kinds))
    compile_kinds(kinds)


def compile_numbers(numbers: Iterable[int]) -> None:
    """Compile some kernels of `_SIGNATURES`, or load them from disk."""
    types = _types()
    for number in numbers:
        kernel = list(_SIGNATURES)[number]
        names = _SIGNATURES[kernel].replace("range", "int int").split()
        kernel.compile(tuple(types[name] for name in names))


def compile_kinds(kinds: Iterable[str]) -> None:
    """Compile the kernels of some kinds of fits, or load them from disk."""
    numbers = {kernel: number for number, kernel in enumerate(_SIGNATURES)}
    for kind in kinds:
        if not numba.config.DISABLE_JIT:
            compile_numbers(numbers[kernel] for kernel in KINDS[kind])
        _compiled.add(kind)
        with contextlib.suppress(AttributeError, OSError):
            _marker(kind).touch()


def _types() -> dict[str, Any]:
    """Numba's types by the names that `_SIGNATURES` uses."""
    layout = make_layout([("full", 2)])
    f1, f2 = np.empty(0), np.empty((0, 0))
    i1, s1 = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
    examples = {
        "layout": layout,
        "model": Model(f2, f2, f2, f2, f2, f1, f1, f1),
        "moments": Moments(f1, f1, f2, f2, f2),
        "sums": no_sums(1, layout),
        "lists": (i1, f1, s1, f1, i1),
        "tree": (f2, f1, np.empty((0, 2), dtype=np.int32)),
        "work": block_setup.make_workspace(layout, 1),
        "partial_work": partial.make_workspace(layout, 0, 1),
        "key": np.uint64(0),
        "b1": np.empty(0, dtype=np.bool_),
        "f2a": np.empty((4, 4))[::2, ::2],
        "s1a": np.empty(4, dtype=np.int32)[::2],
        "g2": np.empty((0, 0), dtype=np.float32),
    }
    types = {name: numba.typeof(value) for name, value in examples.items()}
    types |= {"int": numba.int64, "float": numba.float64, "bool": numba.boolean}
    for letter, number in {"f": np.float64, "i": np.int64, "s": np.int32}.items():
        for n in (1, 2):
            types[f"{letter}{n}"] = numba.typeof(np.empty((0,) * n, dtype=number))
    return types


def cache_folder() -> str:
    """Where Numba keeps compiled kernels."""
    return str(sweep_blocks.stats.cache_path)


def _marker(kind: str) -> Path:
    """The file that says that the kernels of a kind, as they are now, have been compiled."""
    files = sorted({Path(sys.modules[each.__module__].__file__ or "") for each in KINDS[kind]})
    stamps = [(file.stat().st_mtime, file.stat().st_size) for file in files]
    machine = llvmlite.binding.get_host_cpu_name(), sys.version, numba.__version__
    digest = hashlib.sha256(repr((stamps, machine)).encode()).hexdigest()
    return Path(cache_folder()) / f"pickmix-{kind}-{digest[:16]}"


def _is_on_disk(kind: str) -> bool:
    """Whether a process has compiled the kernels of a kind, and kept them."""
    try:
        return _marker(kind).exists()
    except (AttributeError, OSError):
        return False
