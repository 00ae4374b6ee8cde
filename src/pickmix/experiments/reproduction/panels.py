"""What a figure shows, without how it is drawn."""

from __future__ import annotations

from dataclasses import dataclass

from pickmix.experiments.reproduction.runs import Run


@dataclass(frozen=True)
class CurvePanel:
    """A series of the histories against time and against component evaluations.

    Attributes
    ----------
    title : str
    y : str
        A name of `history.SERIES`.
    runs : tuple of Run
        All seeds; runs of one algorithm are one line.
    marks_t95 : bool
        Whether t95 of each line is marked.
    """

    title: str
    y: str
    runs: tuple[Run, ...]
    marks_t95: bool = False


@dataclass(frozen=True)
class ErrorPanel:
    """AE at t95 against the time to t95; runs of one algorithm are one line over the parameter.

    Attributes
    ----------
    title : str
    varies : str
        Attribute of the runs that changes along a line: "K", "B" or "M". Of an algorithm without
        it, all runs have None, and the line is a point.
    runs : tuple of Run
    """

    title: str
    varies: str
    runs: tuple[Run, ...]


Panel = CurvePanel | ErrorPanel


@dataclass(frozen=True)
class Figure:
    """One figure of the paper.

    Attributes
    ----------
    title : str
    panels : tuple
    percentiles : (float, float)
        Of the band around the median.
    """

    title: str
    panels: tuple[Panel, ...]
    percentiles: tuple[float, float] = (1.0, 99.0)
