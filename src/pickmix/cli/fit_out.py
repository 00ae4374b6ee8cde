"""Where `pickmix fit` puts its results, and the checks that come before the fit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pickmix.cli.reading import STANDARD
from pickmix.data.files import write_table
from pickmix.estimators.persistence import ARRAYS_FILE, DESCRIPTION_FILE, holds_model, save
from pickmix.fitting.trace import TRACE_DTYPE

# Names that a message lists.
_SHOWN_NAMES = 3


@dataclass(frozen=True)
class Output:
    """A place for the results of a fit: a folder, or one .npz file for the model alone.

    Attributes
    ----------
    path : Path
    held_model : bool
        Whether an earlier model was there before the fit.
    """

    path: Path
    held_model: bool

    @property
    def is_file(self) -> bool:
        """Whether the model goes into one file, without trace, picture and report."""
        return _is_file_name(self.path)

    def save(self, model: Any) -> list[str]:
        """Save a fitted model, and its trace if there is a folder; return the names of files."""
        save(model, self.path)
        if self.is_file:
            return [self.path.name]
        trace = {name: model.trace_[name] for name in TRACE_DTYPE.names or ()}
        write_table(self.path / "trace.csv", trace)
        return [DESCRIPTION_FILE, ARRAYS_FILE, "trace.csv"]

    def beside(self) -> Output:
        """A free place beside this one, for an interrupted model."""
        number = 1
        while True:
            end = "-interrupted" if number == 1 else f"-interrupted-{number}"
            # From the absolute path, as "." has no name.
            path = self.path.absolute() if self.path.name in ("", "..") else self.path
            suffix = path.suffix if self.is_file else ""
            place = path.with_name(f"{path.name.removesuffix(suffix)}{end}{suffix}")
            if not place.exists():
                return Output(place, held_model=False)
            number += 1

    def explain_place_beside(self, place: Output) -> None:
        """Say that the earlier model stayed, and how to take the interrupted one."""
        flag = "" if self.is_file else "-r "
        click.echo(
            f"note: {self.path} holds an earlier model, which was kept. The interrupted model is "
            f"in {place.path}; to use it instead: rm {flag}{self.path} && mv "
            f"{place.path} {self.path}. With --keep, interrupted fits replace the earlier model.",
            err=True,
        )


def _is_file_name(path: Path) -> bool:
    return path.suffix == ".npz"


def check_out(out: Path, own: Iterable[Path | str | None] = ()) -> Output:
    """Refuse a place that cannot be written to, or that holds something else, before the fit.

    Parameters
    ----------
    out : Path
    own : paths
        Other folders of the same command (for checkpoints and converted rows), which may be there.
    """
    if out == STANDARD:
        raise ValueError("--out must be a folder or a file name ending in .npz, got -")
    # "is_dir" and the like say no, rather than raise, where a part of the path is a file.
    there = out if out.exists() else None
    if there is not None and _is_file_name(out) != out.is_file():
        expected = "a file" if _is_file_name(out) else "a folder or a name ending in .npz"
        found = "a folder" if out.is_dir() else "a file"
        raise ValueError(f"--out {out}: expected {expected}, found {found}")
    held_model = there is not None and holds_model(out)
    if there is not None and not held_model:
        _refuse_foreign(out, [Path(folder).absolute() for folder in own if folder is not None])
    _try_writing(out)
    return Output(out, held_model)


def _refuse_foreign(out: Path, own: list[Path]) -> None:
    """Refuse files that no fit has made; hidden ones may be there."""
    if out.is_file():
        raise ValueError(
            f"--out {out}: found a file that is not a saved model; it is not replaced. Choose "
            "another name, or remove the file"
        )
    names = sorted(
        entry.name
        for entry in out.absolute().iterdir()
        if not entry.name.startswith(".")
        and not any(entry in (folder, *folder.parents) for folder in own)
    )
    if names and out.absolute() not in own:
        more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
        raise ValueError(
            f"--out {out}: expected a new folder, an empty one or one with an earlier model, found "
            f"{', '.join(names[:_SHOWN_NAMES])}{more} in it. Choose another name, such as "
            f"{out / 'model'}"
        )


def _try_writing(out: Path) -> None:
    """Make a file, and remove it, where the results will be."""
    folder = out.absolute().parent if _is_file_name(out) else out.absolute()
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    if not existing.is_dir():
        raise NotADirectoryError(f"--out {out}: expected a folder, but {existing} is a file")
    try:
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".pickmix-"):
            pass
    except OSError as error:
        raise PermissionError(
            f"--out {out}: cannot write to {existing} ({error.strerror})"
        ) from error
