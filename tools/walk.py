"""Count the stacked calls and the files of pickmix that a fit goes through, and list the deepest.

    python tools/walk.py [gaussian | flow | table]

A profile hook sees every call of a Python function. Calls of pickmix's functions that are on the
stack at the same time are counted, and the files that they are in. Imports and the compilation of
kernels come before: a first fit is not counted. PYTHONPATH chooses the code.
"""

from __future__ import annotations

import sys
import threading
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import pickmix

HOME = str(Path(pickmix.__file__).parent)


def make_fit(kind: str) -> Any:
    """A fit without arguments."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 4)) + 6.0 * rng.integers(0, 5, size=(20_000, 1))
    if kind == "gaussian":
        return lambda: pickmix.GaussianMixture(300, random_state=0, n_jobs=1).fit(X)
    if kind == "flow":
        return lambda: pickmix.FlowMixture(random_state=0, max_time=3.0).fit(X[:500])
    names = ["a", "b", "c", "d"]
    table = {name: X[:2000, i] for i, name in enumerate(names)}
    table["e"] = rng.choice(["x", "y", "z"], 2000)
    return lambda: pickmix.TableMixture(20, random_state=0).fit(table)


def main(kind: str) -> None:
    fit = make_fit(kind)
    stack: list[str] = []
    deepest: list[str] = []
    files: set[str] = set()

    def name_of(frame: FrameType) -> str | None:
        code = frame.f_code
        if not code.co_filename.startswith(HOME) or code.co_name.startswith("<"):
            return None
        return f"{Path(code.co_filename).relative_to(HOME)}: {code.co_qualname}"

    def hook(frame: FrameType, event: str, argument: object) -> None:
        nonlocal deepest
        name = name_of(frame)
        if name is None:
            return
        if event == "call":
            stack.append(name)
            files.add(name.split(":")[0])
            if len(stack) > len(deepest):
                deepest = stack.copy()
        elif event == "return" and stack:
            stack.pop()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit()
        threading.setprofile(None)
        sys.setprofile(hook)
        fit()
        sys.setprofile(None)
    print(f"{kind}: {len(deepest)} stacked calls, {len(files)} files")
    print("\n".join(f"  {'  ' * depth}{name}" for depth, name in enumerate(deepest)))
    print("files: " + ", ".join(sorted(files)))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "gaussian")
