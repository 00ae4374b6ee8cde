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
    """Compile the kernels before the first fit, and keep them on disk.

    Fits of small tables run in NumPy and compile nothing. The first fit of a large table compiles
    kernels, which takes about twenty seconds, once per machine. This command does it in advance: in
    the image of a container, or in a cached step of CI. NUMBA_CACHE_DIR chooses where kernels are
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
