"""Conditional mixtures, one per row of given values, computed on demand."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pickmix.checks import check_integer
from pickmix.families.base import Pairs, Part, RandomSource
from pickmix.model.columns import Columns
from pickmix.model.events import Event, draw_where, make_events
from pickmix.model.mapped import (
    add_level_covariances,
    mapped_covariances,
    mapped_modes,
    mapped_moments,
    mapped_quantiles,
    pair_moments,
)
from pickmix.model.mixture import MixtureModel
from pickmix.model.rows import QueryRows


class ConditionalMixtures:
    """The mixtures p(columns | given) of n rows of given values, as one object.

    Given a row, component k has the weight w_k p_k(given) / p(given), and the conditional
    distribution of its family. All answers are exact, but those of deep mixtures whose components
    bend (see `effective_draws`). They are computed on demand, a block of rows at a time. The method
    `conditional` of mixtures makes such objects.

    Answers of mixtures of arrays are arrays. Those of a `TableMixture` are dicts of arrays by
    column, in the units and with the levels of the table; `probabilities` is then a pair (levels,
    probabilities), and `sample` a table of n * n_draws rows.

    Attributes
    ----------
    columns : (d,) int array
        Numbers of the columns that the mixtures are about, as the mixture has them.
    names : list of str
        Their names, or their numbers as text.

    Examples
    --------
    >>> import numpy as np
    >>> from pickmix import GaussianMixture, TableMixture
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=500)
    >>> X = np.column_stack([x, 2.0 * x + 0.1 * rng.normal(size=500)])
    >>> mixture = GaussianMixture(1, random_state=0).fit(X)
    >>> answers = mixture.conditional({0: [-1.0, 0.5, 1.0]})
    >>> len(answers), answers.mean().round(1).ravel(), answers.std().round(1).ravel()
    (3, array([-2.,  1.,  2.]), array([0.1, 0.1, 0.1]))

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

    def __init__(
        self,
        rows: QueryRows,
        columns: np.ndarray,
        terms: Columns,
        make_mixture: Callable[[np.ndarray, MixtureModel], Any],
        make_random: Callable[[Any], RandomSource],
    ) -> None:
        self._rows = rows
        self._terms = terms
        self._make_mixture = make_mixture
        self._make_random = make_random
        self.columns = columns
        self.names = terms.labels(columns)
        self._parts = rows.parts_of(columns)

    def __len__(self) -> int:
        return int(self._rows.rows.shape[0])

    def __repr__(self) -> str:
        return f"<{len(self)} conditional mixtures of {', '.join(self.names)}>"

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> Any:
        """The mixture given row i, as a fitted mixture of the same class.

        Of a deep mixture: conditional mixtures of this one row.
        """
        n = len(self)
        number = operator.index(i)
        if not -n <= number < n:
            raise IndexError(f"there are {n} conditional mixtures, got number {i}.")
        number %= n
        noise = None if self._rows.noise is None else self._rows.noise[[number]]
        alone = self._rows.with_rows(self._rows.natural[[number]], noise)
        if not alone.is_family:
            make = self._make_mixture, self._make_random
            return ConditionalMixtures(alone, self.columns, self._terms, *make)
        row = alone.seen_rows(np.array([0]))
        model = alone.model.over_columns(
            self._terms.in_model_order(self.columns),
            alone.weights()[0],
            lambda part, targets: part.conditional(row.of(part.columns), targets),
        )
        return self._make_mixture(self.columns, model)

    def weights(self) -> np.ndarray:
        """Weights of the components, (n, K). Large."""
        return self._rows.weights()

    def effective_draws(self) -> np.ndarray:
        """How many independent draws the answers about each row are worth, (n,).

        Infinite where answers are exact, as they are unless deep components bend.
        """
        return self._rows.effective_draws()

    def mean(self) -> Any:
        """Means (n, d); for a table by column, those of dates rounded to their step.

        For a category or boolean: the most probable level.
        """
        return self.describe(with_std=False)[0]

    def std(self) -> Any:
        """Standard deviations (n, d), of dates in days. For a category: NaN."""
        return self.describe()[1]

    def describe(self, with_std: bool = True) -> tuple[Any, Any]:
        """`mean` and `std`, at the cost of one; NaN instead of the second unless `with_std`."""
        means, deviations = conditional_moments(self._rows, self.columns, with_std)
        return (
            self._terms.values(means, self.columns),
            self._terms.spreads(deviations, self.columns),
        )

    def covariance(self) -> np.ndarray:
        """Covariances (n, d, d), of numbers, counts and dates, which are in days."""
        self._refuse_levels("covariance")
        d = self.columns.shape[0]
        covariances = np.empty((len(self), d, d))
        for block in self._rows.posteriors(d * d):
            P = block.weights.shape[0]
            inner, within = np.empty((P, d)), np.zeros((P, d, d))
            for part, targets, among in self._parts:
                if self._rows.has_map(int(self.columns[among[0]])):
                    columns = self.columns[among]
                    for target, place in zip(targets.tolist(), among.tolist(), strict=True):
                        column = int(self.columns[place])
                        pairs_of = self._rows, block, part, target, column
                        inner[:, place] = pair_moments(*pairs_of)[0]
                    found = mapped_covariances(self._rows, block, part, targets, columns)
                    within[:, among[:, None], among] = found
                    continue
                pairs = block.pairs.of(part.columns)
                inner[:, among] = part.moments(pairs, targets)[0]
                within[:, among[:, None], among] = part.covariances(pairs, targets)
            add_level_covariances(self._rows, block, self.columns, within)
            inner -= block.average(inner)[block.pairs.which]
            within += inner[:, :, None] * inner[:, None, :]
            covariances[block.numbers] = block.average(within)
        scales = self._terms.scales(self.columns)
        return np.asarray(covariances * (scales[:, None] * scales))

    def quantile(self, q: float | ArrayLike) -> Any:
        """Quantiles of each column by itself, (n, d, len(q)), of numbers, counts and dates.

        Parameters
        ----------
        q : float or array-like of floats
            Strictly between 0 and 1. For a count: the smallest value that is not exceeded with
            probability q.

        Examples
        --------
        >>> import numpy as np
        >>> from pickmix import FamilyMixture
        >>> counts = np.random.default_rng(0).poisson(5.0, (500, 2))
        >>> mixture = FamilyMixture("poisson", 1, random_state=0).fit(counts)
        >>> mixture.conditional({0: 3}).quantile([0.1, 0.5, 0.9])
        array([[[2., 5., 8.]]])
        """
        wanted = check_quantiles(q)
        self._refuse_levels("quantile")
        quantiles = np.empty((len(self), self.columns.shape[0], wanted.shape[0]))
        for block in self._rows.posteriors(self.columns.shape[0]):
            for part, targets, among in self._parts:
                mapped = [self._rows.has_map(int(self.columns[column])) for column in among]
                for target, column in zip(targets[mapped], among[mapped], strict=True):
                    for number, share in enumerate(wanted.tolist()):
                        quantiles[block.numbers, column, number] = mapped_quantiles(
                            self._rows, block, part, target, int(self.columns[column]), share
                        )
                if all(mapped):
                    continue
                pairs = block.pairs.of(part.columns)
                means, variances = part.moments(pairs, targets)
                for m, column in enumerate(among):
                    if mapped[m]:
                        continue
                    centre = self._rows.centre[self.columns[column]]
                    for number, share in enumerate(wanted.tolist()):
                        quantiles[block.numbers, column, number] = centre + part.quantiles(
                            block.weights, means[:, m], variances[:, m], block.starts, share, pairs
                        )
        return self._terms.values(quantiles, self.columns)

    def mode(self) -> Any:
        """Modes (n, d) of the most probable components.

        That is the conditional mean of the component with the largest weight for numbers, its most
        probable value for counts and levels. It is the mode of the mixture if components are well
        separated.
        """
        modes = conditional_modes(self._rows, self.columns)
        return self._terms.values(modes, self.columns)

    def probabilities(self, column: str | int) -> Any:
        """Probabilities (n, L) of the levels of a category; of a table, with the levels (L,)."""
        return self._terms.probabilities(column, self.columns, self._shares)

    def _shares(self, number: int) -> np.ndarray | None:
        """Probabilities (n, L) of a column's codes; None without codes or if not queried.

        Of a column with atoms: of none, and of each.
        """
        place = self._rows.atom_part(number)
        for part, targets, among in self._parts:
            where = np.flatnonzero(self.columns[among] == number)
            if place is None and where.size and part.tables:
                place = part, int(targets[where[0]])
        return None if place is None else level_probabilities(self._rows, *place)

    def score_samples(self, Y: Any) -> np.ndarray:
        """log p(y_i | given_i), (n,), of rows Y (n, d) or of one row (d,) for all.

        Of a `TableMixture`: Y is a table with the columns `names`, and n rows or one for all.
        Missing cells are left out, and densities are in the units of the table.
        """
        values, log_units = self._terms.read_targets(Y, self.columns, len(self))
        rows = self._rows.natural.copy()
        rows[:, self.columns] = values
        joint = self._rows.with_rows(rows, self._rows.noise)
        gained = joint.natural_log_densities() - self._rows.natural_log_densities()
        return np.asarray(gained + log_units)

    def sample(
        self,
        n_draws: int = 1,
        random_state: Any = None,
        *,
        where: Mapping[Any, Any] | None = None,
    ) -> Any:
        """Draws (n, n_draws, d); of a `TableMixture`, a table of the kind that was fitted.

        The table has n * n_draws rows: the draws given row 0, then those given row 1, and so on.

        Parameters
        ----------
        n_draws : int, default=1
        random_state : int, RandomState, Generator or None, default=None
            None means that of the mixture.
        where : dict, default=None
            Conditions on columns that are not given, also on others than `columns`, as in
            `sample_conditional`.
        """
        check_integer("n_draws", n_draws, 1)
        random = self._make_random(random_state)
        terms, allowed = self._terms.narrowed(where)
        events = make_events(self._rows, allowed, terms)
        drawn = conditional_draws(self._rows, self.columns, n_draws, random, events)
        return terms.draws(drawn, self.columns, random)

    def _refuse_levels(self, query: str) -> None:
        self._terms.refuse_levels(query, self._rows.kinds(), self.columns)


def level_probabilities(query: QueryRows, part: Part, target: int) -> np.ndarray:
    """Probabilities (n, L) of the levels of a part's column given the rows."""
    shares = np.empty((query.rows.shape[0], part.tables[target].shape[1]))
    for block in query.posteriors():
        shares[block.numbers] = block.average_levels(part, target)
    return shares


def conditional_moments(
    query: QueryRows, columns: np.ndarray, with_std: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Conditional means and deviations (n, d) of columns, NaN unless `with_std`; best levels."""
    shape = query.rows.shape[0], columns.shape[0]
    means, variances = np.empty(shape), np.full(shape, np.nan)
    parts = query.parts_of(columns)
    for block in query.posteriors(shape[1]):
        for part, targets, among in parts:
            mapped = np.array([query.has_map(int(column)) for column in columns[among]])
            for target, place in zip(targets[mapped], among[mapped], strict=True):
                found = mapped_moments(query, block, part, int(target), int(columns[place]))
                means[block.numbers, place] = found[0]
                if with_std:
                    variances[block.numbers, place] = found[1]
            targets, among = targets[~mapped], among[~mapped]
            if not targets.size:
                continue
            if part.tables:
                for target, column in zip(targets, among, strict=True):
                    shares = block.average_levels(part, int(target))
                    shares *= query.weights_of(columns[column])
                    means[block.numbers, column] = shares.argmax(axis=1)
                continue
            cells = block.numbers[:, None], among
            inner, spread = part.moments(block.pairs.of(part.columns), targets)
            mean = block.average(inner)
            means[cells] = mean + query.centre[part.columns[targets]]
            if with_std:
                variances[cells] = block.average(
                    spread + np.square(inner - mean[block.pairs.which])
                )
    return means, np.sqrt(variances)


def conditional_modes(query: QueryRows, columns: np.ndarray) -> np.ndarray:
    """Modes (n, d) of columns in the most probable components."""
    modes = np.empty((query.rows.shape[0], columns.shape[0]))
    parts = query.parts_of(columns)
    for block in query.posteriors():
        pairs = Pairs(block.pairs.rows, np.arange(block.numbers.shape[0]), block.best)
        for part, targets, among in parts:
            inner = part.modes(pairs.of(part.columns), targets)
            if part.tables:
                for m, (target, column) in enumerate(zip(targets, among, strict=True)):
                    shares = part.level_shares(pairs.of(part.columns), int(target))
                    shares = shares * query.weights_of(columns[column])
                    inner[:, m] = shares.argmax(axis=1)
            modes[block.numbers[:, None], among] = inner + query.centre[part.columns[targets]]
            for target, place in zip(targets.tolist(), among.tolist(), strict=True):
                if query.has_map(int(columns[place])):
                    modes[block.numbers, place] = mapped_modes(
                        query,
                        part,
                        target,
                        int(columns[place]),
                        modes[block.numbers, place],
                        pairs,
                    )
    return modes


def conditional_draws(
    query: QueryRows,
    columns: np.ndarray,
    n_draws: int,
    random: RandomSource,
    events: Sequence[Event] = (),
) -> np.ndarray:
    """Draws (n, n_draws, d) of columns, which meet the events."""
    wanted = columns if query.maps is None else query.maps.latent(columns)
    if events:
        latent = draw_where(query, wanted, n_draws, random, events)
    else:
        latent = latent_draws(query, wanted, n_draws, random)
    return latent if query.maps is None else query.maps.backward(latent, columns)


def latent_draws(
    query: QueryRows, columns: np.ndarray, n_draws: int, random: RandomSource
) -> np.ndarray:
    """Draws (n, n_draws, d) of columns of the model."""
    drawn = np.empty((query.rows.shape[0], n_draws, columns.shape[0]))
    parts = query.parts_of(columns)
    for block in query.posteriors_to_draw(n_draws, random):
        R = block.numbers.shape[0]
        components = block.choose(random.uniform(size=(R, n_draws))).ravel()
        pairs = Pairs(block.pairs.rows, np.repeat(np.arange(R), n_draws), components)
        for part, targets, among in parts:
            values = part.draw(pairs.of(part.columns), targets, random)
            values += query.centre[part.columns[targets]]
            cells = block.numbers[:, None, None], np.arange(n_draws)[:, None], among
            drawn[cells] = values.reshape(R, n_draws, -1)
    return drawn


def impute_rows(
    query: QueryRows,
    strategy: str,
    n_draws: int = 1,
    random: RandomSource | None = None,
    events: Sequence[Event] = (),
) -> np.ndarray:
    """Rows (n_draws, n, D) with values instead of NaN: "mean", "mode" or "draw"."""
    missing = np.isnan(query.natural)
    targets = np.flatnonzero(missing.any(axis=0))
    filled = np.repeat(query.natural[None], n_draws, axis=0)
    if not targets.size:
        return filled
    if strategy == "mean":
        values = conditional_moments(query, targets, with_std=False)[0][None]
    elif strategy == "mode":
        values = conditional_modes(query, targets)[None]
    else:
        assert random is not None
        values = conditional_draws(query, targets, n_draws, random, events).transpose(1, 0, 2)
    rows, places = np.nonzero(missing[:, targets])
    filled[:, rows, targets[places]] = values[:, rows, places]
    return filled


def check_quantiles(q: float | ArrayLike | Sequence[float]) -> np.ndarray:
    try:
        wanted = np.atleast_1d(np.asarray(q, dtype=np.float64))
        sound = wanted.ndim == 1 and wanted.size > 0 and bool(((wanted > 0) & (wanted < 1)).all())
    except (TypeError, ValueError):
        sound = False
    if not sound:
        raise ValueError(f"quantiles must be numbers strictly between 0 and 1, got {q!r}.")
    return wanted


#: The name of conditional mixtures of tables.
TableConditionals = ConditionalMixtures
