"""What all verbs share: one-line notes and errors, tables of text."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click

# What shells report for a program that Ctrl-C ended.
INTERRUPTED_EXIT_CODE = 130
# And for one whose output nobody reads any more, as in `pickmix sample model --out - | head`.
UNREAD_EXIT_CODE = 141
# Errors of disks that are full.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class InputError(click.ClickException):
    exit_code = 2


def clear_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except BrokenPipeError:
            # Nobody's mistake: whoever reads the output has seen enough.
            raise
        except (ValueError, TypeError, OSError, ImportError, MemoryError) as error:
            raise InputError(first_line(error)) from error

    return guarded


def first_line(error: Exception) -> str:
    """What is wrong: scikit-learn's messages fill pages, but their first line says it."""
    message = str(error)
    if isinstance(error, OSError) and error.strerror:
        # Of what is written, only standard output has no name.
        is_full = error.errno in _FULL and error.strerror == os.strerror(error.errno)
        name = error.filename or ("standard output" if is_full else "")
        message = f"{name}: {error.strerror}" if name else error.strerror
    return (message.strip().splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def until_unread() -> Iterator[None]:
    """End quietly when nobody reads standard output any more; say so if it is full."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still in its buffer would be written at the end, and fail once more.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(UNREAD_EXIT_CODE) from None
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise InputError(first_line(error)) from error


@contextlib.contextmanager
def notes() -> Iterator[None]:
    """Print warnings that concern the user as one-line notes once the block is done."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        # Python's own categories (DeprecationWarning, ...) speak to programmers.
        warnings.simplefilter("always", UserWarning)
        warnings.simplefilter("always", RuntimeWarning)
        try:
            yield
        finally:
            for text in dict.fromkeys(" ".join(str(w.message).split()) for w in caught):
                click.echo(f"note: {text}", err=True)


def show_table(rows: Iterable[tuple[str, str]]) -> None:
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"  {name:<{width}}  {value}")
