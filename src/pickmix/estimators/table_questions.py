"""Answers of a mixture of a table in terms of the table: levels, dates, its own units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from pickmix.data.typed_checks import settled
from pickmix.data.typed_encoding import decode, encode
from pickmix.data.typed_filling import filled_column
from pickmix.data.typed_given import as_given, encode_given, given_rows, n_given
from pickmix.data.typed_levels import level_weights
from pickmix.data.typed_readers import open_table, read_typed
from pickmix.data.typed_schema import TableSchema
from pickmix.data.typed_tables import TypedTable
from pickmix.data.typed_writers import replace_columns, write_typed
from pickmix.estimators.conditional_mixtures import ConditionalMixtures
from pickmix.estimators.questions_rows import AskedRows
from pickmix.estimators.table_conditionals import TableConditionals
from pickmix.estimators.table_explanation import TableExplanation, explain_table
from pickmix.estimators.validation import RandomSeed, check_flag, check_generator, check_integer


class TableQuestions:
    """Samples, imputation, conditionals, regression and explanations of a `TableMixture`."""

    schema_: TableSchema
    mixture_: Any
    random_state: Any

    def sample(
        self,
        n_samples: int = 1,
        random_state: RandomSeed = None,
        *,
        given: Mapping[str, Any] | None = None,
    ) -> Any:
        """Draw rows, as a table of the kind that was fitted: column order, types, levels.

        Columns of kind "skip" are left out. For a Parquet file the result is a pyarrow Table, for a
        CSV file a dict of arrays. Draws of integers and dates are rounded to their step; they may
        lie beyond the range of the fitted table.

        Parameters
        ----------
        n_samples : int, default=1
        random_state : int, RandomState, Generator or None, default=None
            None means that of the estimator.
        given : dict, default=None
            Values of some columns, one or n_samples for each. The result has these values; the
            other columns are drawn given them.

        Examples
        --------
        >>> import numpy as np
        >>> from pickmix import TableMixture
        >>> table = {"sex": ["f", "m"] * 50, "height": np.repeat([[160, 180]], 50, axis=0).ravel()}
        >>> mixture = TableMixture(2, random_state=0).fit(table)
        >>> mixture.sample(2, random_state=0, given={"sex": "m"})["sex"]
        array(['m', 'm'], dtype=object)
        """
        check_is_fitted(self)
        check_integer("n_samples", n_samples, 1)
        random = check_generator(self.random_state if random_state is None else random_state)
        n_rows = 1 if n_given(given or {}) is None else n_samples
        seen = given_rows(self.schema_, given or {}, n_rows)
        if seen is None:
            rows = self.mixture_.sample(n_samples, random)[0]
            # They come grouped by component.
            rows = rows[random.permutation(n_samples)]
            return write_typed(decode(self.schema_, rows, random=random))
        rows = encode_given(self.schema_, seen)
        free = np.flatnonzero(np.isnan(rows).all(axis=0))
        rows = np.repeat(rows, n_samples // rows.shape[0], axis=0)
        if np.isnan(rows).any():
            rows = self.mixture_._impute(rows, "draw", 1, random)
        drawn = decode(self.schema_, rows, random=random)
        columns = dict(drawn.columns)
        names = [column.name for column in self.schema_.modelled]
        for place, name in enumerate(names):
            if place not in free:
                columns[name] = as_given(self.schema_[name], seen.columns[name], columns[name])
        return write_typed(TypedTable(columns, n_samples, drawn.origin))

    def _level_weights(self) -> dict[int, np.ndarray]:
        """Of encoded columns whose rare levels share a code: see `level_weights`."""
        found = {place: level_weights(c) for place, c in enumerate(self.schema_.modelled)}
        return {place: weights for place, weights in found.items() if weights is not None}

    def _conditionals(
        self, rows: np.ndarray, targets: Sequence[int], names: Sequence[str]
    ) -> TableConditionals:
        """The distributions of encoded columns given encoded rows."""
        asked = AskedRows(self.mixture_, rows, level_weights=self._level_weights())
        mixtures = ConditionalMixtures(self.mixture_, asked, np.array(targets, dtype=np.int64))
        return TableConditionals(self, mixtures, names)

    def impute(
        self,
        X: Any,
        strategy: str = "mean",
        *,
        n_draws: int = 1,
        random_state: RandomSeed = None,
    ) -> Any:
        """Fill in missing cells, in the types of the table; all others keep their values.

        Integers and dates are rounded to their step, counts to whole numbers; categories get a
        level. Draws may lie beyond the range of the fitted table, as those of `sample`. Columns of
        kind "skip", and columns that the fit did not have, are not touched; a column that was
        constant in the fit gets its value.

        Parameters
        ----------
        X : table
            As in `fit`.
        strategy : {"mean", "mode", "draw"}, default="mean"
            As in `FamilyMixture.impute`: means and most probable levels; modes of the most probable
            component; or draws.
        n_draws : int, default=1
            Filled tables to make, with "draw".
        random_state : int, RandomState, Generator or None, default=None
            For "draw". None means that of the estimator.

        Returns
        -------
        filled : table of the same kind, or list of n_draws tables
            A Parquet file gives a pyarrow Table, a CSV file a dict of arrays.
        """
        return self._impute(X, strategy, n_draws, random_state)

    def _impute(
        self,
        X: Any,
        strategy: str,
        n_draws: int,
        random_state: RandomSeed,
        absent: Sequence[str] = (),
    ) -> Any:
        """As `impute`, for tables that need not have the columns `absent`."""
        check_is_fitted(self)
        original, table = open_table(X)
        rows, _ = encode(self.schema_, table, absent)
        own = self.random_state if random_state is None else random_state
        random = check_generator(own) if strategy == "draw" else None
        filled = self.mixture_._impute(
            rows, strategy, n_draws, random, level_weights=self._level_weights()
        )
        alike = table.origin == self.schema_.origin
        made = []
        for complete in filled if n_draws > 1 else [filled]:
            columns = {
                name: filled_column(self.schema_[name], table.columns[name], values, random, alike)
                for name, values in self._with_gaps(table, complete)
            }
            made.append(replace_columns(original, table.origin, columns))
        return made if n_draws > 1 else made[0]

    def _with_gaps(self, table: TypedTable, rows: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """Columns that have gaps and can be filled, with their coordinates."""
        place = {column.name: number for number, column in enumerate(self.schema_.modelled)}
        found = []
        for name, column in table.columns.items():
            known = name in self.schema_.columns and self.schema_[name].kind != "skip"
            if known and settled(self.schema_[name], column).missing.any():
                own = rows[:, place[name]] if name in place else np.zeros(rows.shape[0])
                found.append((name, own))
        return found

    def sample_conditional(self, X: Any, random_state: RandomSeed = None) -> Any:
        """Fill in missing cells by one draw each: `impute` with "draw"."""
        return self.impute(X, "draw", random_state=random_state)

    def predict_columns(
        self,
        X: Any,
        columns: str | Sequence[str],
        *,
        return_std: bool = False,
        quantiles: float | ArrayLike | None = None,
    ) -> Any:
        """Expected values of some columns, given the others.

        Parameters
        ----------
        X : table
            The columns to predict may be missing, and are ignored.
        columns : str or list of str
            Columns to predict.
        return_std : bool, default=False
            Return standard deviations as well.
        quantiles : float or list of floats, default=None
            Return these quantiles as well.

        Returns
        -------
        mean : (N,) array, or a dict of them if `columns` is a list
            Means of numbers, integers and counts, not rounded; of dates, rounded to their step;
            the most probable level of categories and booleans.
        std : the same, if `return_std`
            Dates in days. NaN for levels.
        quantiles : (N, q) array or a dict of them, if `quantiles` is given
            Not for levels.
        """
        check_is_fitted(self)
        check_flag("return_std", return_std)
        names = [columns] if isinstance(columns, str) else list(columns)
        targets = self._places(names)
        rows = self._rows_without(X, targets)
        answers = self._conditionals(rows, targets, names)
        found = list(answers.describe()) if return_std else [answers.mean()]
        if quantiles is not None:
            found.append(answers.quantile(quantiles))
        plain = [answer[columns] for answer in found] if isinstance(columns, str) else found
        return plain[0] if len(plain) == 1 else tuple(plain)

    def predict_levels(self, X: Any, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities of the levels of a category or boolean, given the other columns.

        Parameters
        ----------
        X : table
            The column itself may be missing, and is ignored.
        column : str

        Returns
        -------
        levels : (L,) array
        probabilities : (N, L) array
        """
        check_is_fitted(self)
        targets = self._places([column])
        answers = self._conditionals(self._rows_without(X, targets), targets, [column])
        return answers.probabilities(column)

    def conditional(
        self, given: Any, columns: str | Sequence[str] | None = None
    ) -> TableConditionals:
        """The distributions of some columns given values of others, one for each row of values.

        Parameters
        ----------
        given : dict or table
            ``{name: value or n values}``, or a table of n rows whose columns are given. Cells
            without a value are not given.
        columns : str or list of str, default=None
            Columns to ask for. None means every column that is not given.

        Returns
        -------
        answers : TableConditionals
            With `mean`, `std`, `quantile`, `mode`, `probabilities`, `sample` and `score_samples`;
            ``answers[i]`` is a fitted `TableMixture` of these columns.
        """
        check_is_fitted(self)
        if isinstance(given, Mapping):
            n_rows = n_given(given)
            table = given_rows(self.schema_, given, 1 if n_rows is None else n_rows)
        else:
            table = read_typed(given)
        rows = np.full((1, len(self.schema_.modelled)), np.nan)
        if table is not None:
            known = any(column.name in table.columns for column in self.schema_.modelled)
            rows = np.repeat(rows, table.n_rows, axis=0)
            rows = encode_given(self.schema_, table) if known else rows
        is_given = ~np.isnan(rows).all(axis=0)
        places = {column.name: place for place, column in enumerate(self.schema_.modelled)}
        if columns is None:
            names = [n for n in self.schema_.columns if n in places and not is_given[places[n]]]
            if not names:
                raise ValueError("given must leave a column to ask for, got values of all of them.")
        else:
            names = [columns] if isinstance(columns, str) else list(columns)
        targets = self._places(names)
        both = [name for name in names if is_given[places[name]]]
        if both:
            raise ValueError(
                f"columns must not be given as well, got both for {', '.join(map(repr, both))}."
            )
        return self._conditionals(rows, targets, names)

    def marginal(self, columns: str | Sequence[str]) -> Any:
        """The mixture of some of the columns.

        Parameters
        ----------
        columns : str or list of str
            Columns of the model, in the order of the new mixture.

        Returns
        -------
        mixture : fitted TableMixture
            Its density is the integral of the density of this mixture over all other columns.

        Examples
        --------
        >>> import numpy as np
        >>> from pickmix import TableMixture
        >>> table = {"sex": ["f", "m"] * 50, "height": np.repeat([[160, 180]], 50, axis=0).ravel()}
        >>> mixture = TableMixture(2, random_state=0).fit(table)
        >>> mixture.marginal("sex").score_samples({"sex": ["f"]}).round(2)
        array([-0.69])
        """
        check_is_fitted(self)
        names = [columns] if isinstance(columns, str) else list(columns)
        targets = self._places(names)
        return self._of_columns(names, self.mixture_.marginal(sorted(targets)))

    def _of_columns(self, names: Sequence[str], mixture: Any) -> Any:
        """A mixture of tables with these columns; its encoded columns stand by name."""
        mine: Any = self
        settings = mine.get_params(deep=False)
        kinds = {name: kind for name, kind in (settings["schema"] or {}).items() if name in names}
        settings |= {"schema": kinds or None, "exclude": (), "checkpoint": None}
        made = type(mine)(**settings | {"n_components": int(mixture.weights_.shape[0])})
        made.schema_ = TableSchema([self.schema_[name] for name in names], self.schema_.origin)
        made.mixture_ = mixture
        made.feature_names_in_ = np.array(list(names), dtype=object)
        made.n_features_in_ = len(names)
        return made

    def explain(self, X: Any, top: int | None = None) -> TableExplanation:
        """Which cells make a row unusual: each cell given all others of its row.

        Parameters
        ----------
        X : table
        top : int, default=None
            Rank this many columns of each row; None means all.

        Returns
        -------
        explanation : TableExplanation
            Values and expectations in the units and with the levels of the table;
            ``print(explanation.table(i))`` shows row i.
        """
        check_is_fitted(self)
        table = read_typed(X)
        rows, log_units = encode(self.schema_, table)
        if top is not None:
            check_integer("top", top, 1)
        found = self.mixture_._explain(rows, level_weights=self._level_weights())
        return explain_table(self.schema_, table, found, log_units, top)

    def _places(self, names: Sequence[str]) -> list[int]:
        """Numbers of encoded columns."""
        known = [column.name for column in self.schema_.modelled]
        for name in names:
            if name not in known:
                raise ValueError(
                    f"columns must be part of the model, that is {', '.join(map(repr, known))}, "
                    f"got {name!r}."
                )
        if not names or len(set(names)) < len(names):
            raise ValueError(f"columns must hold at least one name, each once, got {names!r}.")
        return [known.index(name) for name in names]

    def _rows_without(self, X: Any, targets: Sequence[int]) -> np.ndarray:
        """Encoded rows in which the columns to predict are missing."""
        names = [self.schema_.modelled[target].name for target in targets]
        table = read_typed(X)
        others = {name: c for name, c in table.columns.items() if name not in names}
        known = [c.name for c in self.schema_.modelled if c.name in others]
        if not known:
            # Nothing is given: every row has the distribution of the whole.
            return np.full((table.n_rows, len(self.schema_.modelled)), np.nan)
        return encode(self.schema_, TypedTable(others, table.n_rows, table.origin), names)[0]
