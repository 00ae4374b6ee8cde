"""Log fits to TensorBoard."""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pickmix.callbacks.base import Callback, metrics_of, parameters_of, require
from pickmix.fitting.loop import FitInfo


@dataclass(eq=False)
class TensorBoardCallback(Callback):
    """Write each evaluation for TensorBoard, and the estimator's parameters with the first.

    Look at it with ``tensorboard --logdir FOLDER``. Names are those of `trace_`. Steps of a second
    start (`n_init`) begin again, so each further start is a run of its own, in a folder `start_2`
    and so on. Needs the extra `tensorboard`, which writes the files; TensorBoard itself may be
    elsewhere.

    Parameters
    ----------
    folder : path
        Give each fit a folder of its own.
    flush_seconds : float, default=5
        Values are on disk after so long at the latest, and when the callback is closed.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from pickmix import GaussianMixture
    >>> from pickmix.callbacks import TensorBoardCallback
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     board = TensorBoardCallback(folder)
    ...     _ = GaussianMixture(2, random_state=0, callbacks=board).fit(X)
    ...     board.close()
    """

    folder: str | os.PathLike[str]
    flush_seconds: float = 5.0
    _start: int = field(default=0, init=False, repr=False)
    _writer: Any = field(default=None, init=False, repr=False)
    _closing: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        require("tensorboardX", "tensorboard", type(self).__name__)

    def __call__(self, info: FitInfo) -> None:
        """Write an evaluation."""
        if self._begins(info):
            self.close()
            self._start += 1
        if self._writer is None:
            self._writer = self._open()
            listed = "\n".join(f"    {name} = {v}" for name, v in parameters_of(info).items())
            self._writer.add_text("parameters", listed, info.step)
        for name, value in metrics_of(info).items():
            self._writer.add_scalar(name, value, info.step)

    def close(self) -> None:
        """Write what is left, and close the file. A fit that follows opens another one."""
        if self._closing is not None:
            self._closing()
        self._writer = self._closing = None

    def _open(self) -> Any:
        from tensorboardX import SummaryWriter

        folder = Path(self.folder)
        if self._start > 1:
            folder = folder / f"start_{self._start}"
        writer = SummaryWriter(str(folder), flush_secs=self.flush_seconds)
        # Nobody says when a fit has ended: the file is closed with the callback, or with Python.
        self._closing = weakref.finalize(self, writer.close)
        return writer
