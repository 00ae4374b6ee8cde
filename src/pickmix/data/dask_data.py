"""How to recognise a Dask collection."""

from __future__ import annotations

from typing import Any


def is_dask(data: Any) -> bool:
    """Whether data is a Dask array or dataframe; Dask is not imported to find out.

    >>> is_dask([1.0, 2.0])
    False
    """
    return type(data).__module__.startswith(("dask.array", "dask.dataframe", "dask_expr"))
