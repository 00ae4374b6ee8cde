"""Distributions of some columns of a table given others, in the units and levels of the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pickmix.data.typed_encoding import decode, decode_column, encode
from pickmix.data.typed_given import is_single
from pickmix.data.typed_readers import read_typed
from pickmix.data.typed_schema import LEVEL_KINDS, ColumnSchema
from pickmix.data.typed_tables import TypedTable
from pickmix.data.typed_writers import write_typed
from pickmix.estimators.conditional_mixtures import ConditionalMixtures
from pickmix.estimators.validation import RandomSeed, check_generator


class TableConditionals:
    """The distributions p(columns | given) of n rows of given values, as one object.

    Answers by column are dicts of arrays with n rows, in the units and with the levels of the
    table. They are computed on demand. `TableMixture.conditional` makes such objects.

    Attributes
    ----------
    names : list of str
        The columns that the distributions are about.

    Examples
    --------
    >>> import numpy as np
    >>> from pickmix import TableMixture
    >>> rng = np.random.default_rng(0)
    >>> sex = rng.choice(["f", "m"], 400)
    >>> table = {"sex": sex, "height": np.where(sex == "m", 180.0, 160.0) + rng.normal(size=400)}
    >>> mixture = TableMixture(2, random_state=0).fit(table)
    >>> answers = mixture.conditional({"sex": ["f", "m"]})
    >>> answers.mean()["height"].round(0), answers.std()["height"].round(0)
    (array([160., 180.]), array([1., 1.]))
    >>> levels, probabilities = mixture.conditional({"height": 161.0}).probabilities("sex")
    >>> levels, probabilities.round(2)
    (array(['f', 'm'], dtype='<U1'), array([[1., 0.]]))
    """

    def __init__(self, mixture: Any, mixtures: ConditionalMixtures, names: Sequence[str]) -> None:
        self._mixture = mixture
        self._mixtures = mixtures
        self._schema = mixture.schema_
        self.names = list(names)

    def __len__(self) -> int:
        return len(self._mixtures)

    def __repr__(self) -> str:
        return f"<{len(self)} conditional mixtures of {', '.join(self.names)}>"

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> Any:
        """The mixture given row i, as a fitted `TableMixture` of `names`."""
        # The mixture inside wants its columns in the order of their names.
        by_name = ConditionalMixtures(
            self._mixture.mixture_, self._mixtures._asked, np.sort(self._mixtures.columns)
        )
        return self._mixture._of_columns(self.names, by_name[i])

    def weights(self) -> np.ndarray:
        """Weights of the components, (n, K). Large."""
        return self._mixtures.weights()

    def mean(self) -> dict[str, np.ndarray]:
        """Means of numbers, integers and counts, not rounded; of dates, rounded to their step.

        For categories and booleans: the most probable level. A dict of (n,) arrays.
        """
        return self._plain(self._mixtures.mean())

    def std(self) -> dict[str, np.ndarray]:
        """Standard deviations, of dates in days; NaN for levels. A dict of (n,) arrays."""
        return self._scaled(self._mixtures.std())

    def describe(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """`mean` and `std`, at the cost of one."""
        means, deviations = self._mixtures.describe()
        return self._plain(means), self._scaled(deviations)

    def quantile(self, q: float | ArrayLike) -> dict[str, np.ndarray]:
        """Quantiles of each column by itself, not for levels: a dict of (n, len(q)) arrays."""
        levels = [name for name in self.names if self._schema[name].kind in LEVEL_KINDS]
        if levels:
            raise ValueError(
                f"quantile is for numbers, counts and dates, got {', '.join(map(repr, levels))}. "
                "Ask for probabilities of their levels instead."
            )
        return self._plain(self._mixtures.quantile(q))

    def mode(self) -> dict[str, np.ndarray]:
        """Modes of the most probable components: a dict of (n,) arrays.

        They fit together; the means of several columns need not.
        """
        return self._plain(self._mixtures.mode())

    def probabilities(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Levels (L,) of a category or boolean, and their probabilities (n, L)."""
        schema = self._schema[self._checked(column)]
        if not schema.codes:
            raise ValueError(
                f"column must be a category or boolean, got the {schema.kind} {column!r}."
            )
        number = int(self._mixtures.columns[self.names.index(column)])
        shares = self._mixtures.probabilities(number)[:, list(schema.codes)]
        return np.array(schema.levels), np.asarray(shares * np.array(schema.shares))

    def score_samples(self, Y: Any) -> np.ndarray:
        """log p(y_i | given_i), (n,), in the units of the table.

        Parameters
        ----------
        Y : table
            With the columns `names`, and n rows or one for all. Missing cells are left out.
        """
        table = read_typed(_listed(Y))
        lacking = [name for name in self.names if name not in table.columns]
        if lacking or table.n_rows not in (1, len(self)):
            raise ValueError(
                f"Y must have {len(self)} row(s), or one, and the columns {', '.join(self.names)}, "
                f"got {table.n_rows} row(s) of {', '.join(table.columns)}."
            )
        own = TypedTable(
            {name: table.columns[name] for name in self.names}, table.n_rows, table.origin
        )
        others = [column.name for column in self._schema.modelled]
        rows, log_units = encode(self._schema, own, others)
        wanted = np.broadcast_to(
            rows[:, self._mixtures.columns], (len(self), self._mixtures.columns.shape[0])
        )
        return np.asarray(self._mixtures.score_samples(wanted) + log_units.sum(axis=1))

    def sample(self, n_draws: int = 1, random_state: RandomSeed = None) -> Any:
        """Draw rows, as a table of the kind that was fitted, with the columns `names`.

        Parameters
        ----------
        n_draws : int, default=1
        random_state : int, RandomState, Generator or None, default=None
            None means that of the estimator.

        Returns
        -------
        table : of n * n_draws rows
            First the draws given row 0, then those given row 1, and so on.
        """
        own = self._mixture.random_state
        random = check_generator(own if random_state is None else random_state)
        drawn = self._mixtures.sample(n_draws, random)
        rows = np.zeros((len(self) * n_draws, len(self._schema.modelled)))
        rows[:, self._mixtures.columns] = drawn.reshape(rows.shape[0], -1)
        return write_typed(decode(self._schema, rows, self.names, random))

    def _checked(self, column: str) -> str:
        if column not in self.names:
            raise ValueError(f"column must be one of {', '.join(self.names)}, got {column!r}.")
        return column

    def _plain(self, values: np.ndarray) -> dict[str, np.ndarray]:
        return {
            name: plain_values(self._schema[name], values[:, place])
            for place, name in enumerate(self.names)
        }

    def _scaled(self, values: np.ndarray) -> dict[str, np.ndarray]:
        return {
            name: values[:, place] * self._schema[name].scale
            for place, name in enumerate(self.names)
        }


def _listed(Y: Any) -> Any:
    """A dict of single values as one of lists."""
    if not isinstance(Y, Mapping):
        return Y
    if not all(map(is_single, Y.values())):
        return Y
    plain = {name: v[()] if isinstance(v, np.ndarray) else v for name, v in Y.items()}
    return {name: [value] for name, value in plain.items()}


def plain_values(schema: ColumnSchema, values: np.ndarray) -> np.ndarray:
    """Coordinates as values of the table; numbers are not rounded."""
    if schema.kind in ("number", "integer", "count"):
        return np.asarray(values * schema.scale + schema.origin)
    column = decode_column(schema, values.ravel())
    plain = column.values if column.levels is None else column.levels[column.values]
    return np.asarray(plain).reshape(values.shape)
