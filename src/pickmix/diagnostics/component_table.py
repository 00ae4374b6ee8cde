"""The components of a mixture as a table: weight, rows, volume, neighbour and typical row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.data.typed_schema import LEVEL_KINDS
from pickmix.diagnostics.columns import is_table
from pickmix.diagnostics.looking import Looked, look_at
from pickmix.diagnostics.shapes import Shapes


@dataclass(frozen=True)
class ComponentTable:
    """What there is to say of each of K components, by N rows.

    Attributes
    ----------
    weight : (K,) array
    rows : (K,) int64 array
        How many rows have it as their most probable component.
    log_volume : (K,) array
        Half the log-determinant of its covariance in units of the columns' spread; of levels, how
        much less entropy it has than the rows. NaN of deep components without rows.
    neighbour : (K,) int64 array
        The nearest other component; -1 if there is none.
    separation : (K,) array
        How far that is, in standard deviations: sqrt(8 B) with the Bhattacharyya distance B.
    typical : (K,) int64 array
        Which of its rows is nearest to its centre; -1 if it has none.
    centre : (K, D) array
        Means, rates and most probable levels (codes), columns and units as in `read_values`.
    looked : Looked
        The rows.
    """

    weight: np.ndarray
    rows: np.ndarray
    log_volume: np.ndarray
    neighbour: np.ndarray
    separation: np.ndarray
    typical: np.ndarray
    centre: np.ndarray
    looked: Looked

    def __len__(self) -> int:
        return int(self.weight.shape[0])

    @property
    def side(self) -> np.ndarray:
        """Side (K,) of a cube with the component's volume, in units of the columns' spread."""
        return np.asarray(np.exp(self.log_volume / self.centre.shape[1]))


def component_table(model: Any, X: Any, *, looked: Looked | None = None) -> ComponentTable:
    """Describe every component of a fitted mixture by rows.

    Parameters
    ----------
    model : fitted estimator of pickmix
    X : table of N rows, as the model takes it
    looked : Looked, default=None
        What `look_at(model, X)` gave, if it was called before.

    Returns
    -------
    table : ComponentTable

    Examples
    --------
    >>> import numpy as np
    >>> from pickmix import GaussianMixture
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(c, 1.0, (200, 2)) for c in (0.0, 10.0)])
    >>> table = component_table(GaussianMixture(2, random_state=0).fit(X), X)
    >>> table.rows, table.neighbour
    (array([200, 200]), array([1, 0]))
    >>> bool(13.0 < table.separation[0] < 16.0)
    True
    """
    looked = look_at(model, X) if looked is None else looked
    shapes = Shapes(model, looked)
    K = shapes.n_components
    neighbour, separation = shapes.neighbours()
    centre = shapes.centres()
    return ComponentTable(
        weight=np.asarray(model.weights_ / model.weights_.sum()),
        rows=np.bincount(looked.component, minlength=K).astype(np.int64),
        log_volume=shapes.log_volumes(looked.rows),
        neighbour=neighbour,
        separation=separation,
        typical=_typical(shapes, looked),
        centre=_in_units(model, centre) if is_table(model) else centre,
        looked=looked,
    )


def _typical(shapes: Shapes, looked: Looked) -> np.ndarray:
    """The row of each component (K,) that is nearest to its centre, or -1."""
    found = np.full(shapes.n_components, -1, dtype=np.int64)
    distance = shapes.squared_distances(looked.rows, looked.component)
    # The nearest one is written last.
    order = np.argsort(-distance, kind="stable")
    found[looked.component[order]] = order
    return found


def _in_units(model: Any, encoded: np.ndarray) -> np.ndarray:
    """Encoded values (K, D) of a table in its own units and order; dates in days."""
    place = {column.name: number for number, column in enumerate(model.schema_.modelled)}
    found = []
    for column in model.schema_.columns.values():
        if column.is_modelled:
            own = encoded[:, place[column.name]]
            if column.kind not in LEVEL_KINDS:
                own = own * column.scale + (0 if column.kind == "date" else column.origin)
            found.append(own)
    return np.stack(found, axis=1)
