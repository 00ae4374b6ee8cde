"""What a mixture says of the rows of an AnnData, written into it."""

from __future__ import annotations

from typing import Any

import numpy as np

from pickmix.checks import check_integer
from pickmix.estimators.closed_form_mixture import ClosedFormMixture
from pickmix.inputs.open_rows import is_annotated

_MOST_DENSE = 50  # Components.


def annotate(
    mixture: ClosedFormMixture, data: Any, *, key: str = "mixture", top: int | None = None
) -> None:
    """Write components, posteriors and log-densities of the cells of an AnnData into it.

    AnnData is not imported: any object with `X`, `obs`, `obsm` and `var_names` will do. Rows of
    files and sparse rows are read chunk by chunk.

    Parameters
    ----------
    mixture : fitted mixture in closed form
        Fitted to the AnnData (``GaussianMixture(20).fit(data)``) or to such columns.
    data : AnnData
        Gets ``obs[key]``, the most probable component of each cell as text,
        ``obs[key + "_log_density"]``, and ``obsm[key]``, posterior probabilities.
    key : str, default="mixture"
    top : int, default=None
        Keep only the largest posteriors of a row, as a sparse array. None means all up to 50
        components, and the 5 largest beyond.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from types import SimpleNamespace
    >>> import pickmix
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> obs = pd.DataFrame(index=range(200))
    >>> cells = SimpleNamespace(X=X, obs=obs, obsm={}, var_names=["a", "b"])
    >>> mixture = pickmix.GaussianMixture(3, random_state=0).fit(cells)
    >>> pickmix.annotate(mixture, cells)
    >>> list(cells.obs), cells.obsm["mixture"].shape
    (['mixture', 'mixture_log_density'], (200, 3))
    """
    if not is_annotated(data):
        raise TypeError(
            f"data must have X, obs, obsm and var_names, as an AnnData has, got {type(data)!r}."
        )
    K = mixture.model_.n_components
    if top is None:
        top = None if K <= _MOST_DENSE else 5
    else:
        check_integer("top", top, 1)
    posteriors = mixture.transform(data, top=top)
    data.obs[key] = np.asarray(mixture.predict(data)).astype(str)
    data.obs[f"{key}_log_density"] = np.asarray(mixture.score_samples(data))
    data.obsm[key] = posteriors
