"""`pickmix compile`."""

from __future__ import annotations

import time

import click

from pickmix.cli.console import clear_errors
from pickmix.estimators.compilation import KINDS, cache_folder, compile_kinds


@click.command("compile")
@click.option(
    "--only",
    type=click.Choice(sorted(KINDS)),
    multiple=True,
    help="Fits to compile for. All by default; `partition` is the default fit.",
)
@clear_errors
def compile_all(only: tuple[str, ...]) -> None:
    """Compile the kernels ahead of the first fit, and keep them on disk.

    Fits of small tables run in NumPy and compile nothing. The first fit of a large one compiles
    kernels for some twenty seconds, once on a machine. This verb does that ahead: in the image of
    a container, or in a step of CI that is cached. Set NUMBA_CACHE_DIR to choose where they are
    kept.

    \b
    Examples:
      pickmix compile
      pickmix compile --only partition
    """
    started = time.perf_counter()
    compile_kinds(only or tuple(KINDS))
    seconds = time.perf_counter() - started
    click.echo(f"Compiled in {seconds:.1f} s. Kept in {cache_folder()}.")
