"""Conditional mixtures, one per row of given values, computed on demand."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pickmix.estimators.questions_columns import check_cells, find_column, labels_of
from pickmix.estimators.questions_rows import AskedRows
from pickmix.estimators.validation import RandomSeed, check_generator, check_integer
from pickmix.families.conditioning import LevelPart
from pickmix.families.conditioning_quantiles import normal_quantiles, poisson_quantiles


class ConditionalMixtures:
    """The mixtures p(columns | given) of n rows of given values, as one object.

    Given a row, component k has the weight w_k p_k(given) / p(given), and the conditional
    distribution of its family. All answers are exact. They are computed on demand, a block of rows
    at a time. `GaussianMixture.conditional` makes such objects.

    Attributes
    ----------
    columns : (d,) int array
        Numbers of the columns that the mixtures are about.
    names : list of str
        Their names, or their numbers as text.

    Examples
    --------
    >>> import numpy as np
    >>> from pickmix import GaussianMixture
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=500)
    >>> X = np.column_stack([x, 2.0 * x + 0.1 * rng.normal(size=500)])
    >>> mixture = GaussianMixture(1, random_state=0).fit(X)
    >>> answers = mixture.conditional({0: [-1.0, 0.5, 1.0]})
    >>> len(answers), answers.mean().round(1).ravel(), answers.std().round(1).ravel()
    (3, array([-2.,  1.,  2.]), array([0.1, 0.1, 0.1]))
    """

    def __init__(self, mixture: Any, asked: AskedRows, columns: np.ndarray) -> None:
        self._mixture = mixture
        self._asked = asked
        self.columns = columns
        labels = labels_of(mixture)
        self.names = [labels[column] for column in columns]
        self._parts = asked.parts_of(columns)

    def __len__(self) -> int:
        return int(self._asked.rows.shape[0])

    def __repr__(self) -> str:
        return f"<{len(self)} conditional mixtures of {', '.join(self.names)}>"

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> Any:
        """The mixture given row i, as a fitted mixture of the same class."""
        n = len(self)
        number = operator.index(i)
        if not -n <= number < n:
            raise IndexError(f"there are {n} conditional mixtures, got number {i}.")
        number %= n
        noise = None if self._asked.noise is None else self._asked.noise[[number]]
        rows, weights_of = self._asked.rows[[number]], self._asked.level_weights
        alone = AskedRows(self._mixture, rows, noise, weights_of)
        row = alone.seen_rows(np.array([0]))
        parameters = [
            part.conditional(row.of(part.columns), places)
            for part, places, _ in alone.parts_of(self.columns)
        ]
        weights = ConditionalMixtures(self._mixture, alone, self.columns).weights()[0]
        return self._mixture._over_columns(self.columns, weights, parameters)

    def weights(self) -> np.ndarray:
        """Weights of the components, (n, K). Large."""
        weights = np.empty((len(self), self._asked.n_components))
        for numbers, log_joint in self._asked.log_joints():
            log_joint -= log_joint.max(axis=0)
            shares = np.exp(log_joint, out=log_joint)
            weights[numbers] = (shares / shares.sum(axis=0)).T
        return weights

    def mean(self) -> np.ndarray:
        """Means (n, d). For a category: the most probable level."""
        return self.describe(with_std=False)[0]

    def std(self) -> np.ndarray:
        """Standard deviations (n, d). For a category: NaN."""
        return self.describe()[1]

    def describe(self, with_std: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations (n, d), at the cost of one; NaN unless `with_std`."""
        shape = len(self), self.columns.shape[0]
        means, variances = np.empty(shape), np.full(shape, np.nan)
        for some in self._asked.posteriors(shape[1]):
            for part, places, among in self._parts:
                cells = some.numbers[:, None], among
                if isinstance(part, LevelPart):
                    for place, target in zip(places, among, strict=True):
                        shares = some.average_components(part.tables[place])
                        shares *= self._weights_of(target)
                        means[some.numbers, target] = shares.argmax(axis=1)
                    continue
                rows = some.rows.of(part.columns)
                inner, spread = part.moments(rows, some.which, some.components, places)
                mean = some.average(inner)
                means[cells] = mean + self._asked.centre[part.columns[places]]
                if with_std:
                    variances[cells] = some.average(spread + np.square(inner - mean[some.which]))
        return means, np.sqrt(variances)

    def covariance(self) -> np.ndarray:
        """Covariances (n, d, d), of numbers and counts."""
        self._refuse_levels("covariance")
        d = self.columns.shape[0]
        covariances = np.empty((len(self), d, d))
        for some in self._asked.posteriors(d * d):
            P = some.weights.shape[0]
            inner, within = np.empty((P, d)), np.zeros((P, d, d))
            for part, places, among in self._parts:
                rows = some.rows.of(part.columns)
                inner[:, among] = part.moments(rows, some.which, some.components, places)[0]
                within[:, among[:, None], among] = part.covariances(
                    rows, some.which, some.components, places
                )
            inner -= some.average(inner)[some.which]
            within += inner[:, :, None] * inner[:, None, :]
            covariances[some.numbers] = some.average(within)
        return covariances

    def quantile(self, q: float | ArrayLike) -> np.ndarray:
        """Quantiles of each column by itself, (n, d, len(q)), of numbers and counts.

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
        found = np.empty((len(self), self.columns.shape[0], wanted.shape[0]))
        for some in self._asked.posteriors(self.columns.shape[0]):
            for part, places, among in self._parts:
                rows = some.rows.of(part.columns)
                inner, spread = part.moments(rows, some.which, some.components, places)
                for place, target in enumerate(among):
                    mean, centre = inner[:, place], self._asked.centre[self.columns[target]]
                    for number, share in enumerate(wanted.tolist()):
                        if part.kind == "count":
                            values = poisson_quantiles(some.weights, mean, some.starts, share)
                        else:
                            deviations = np.sqrt(spread[:, place])
                            values = centre + normal_quantiles(
                                some.weights, mean, deviations, some.starts, share
                            )
                        found[some.numbers, target, number] = values
        return found

    def mode(self) -> np.ndarray:
        """Modes (n, d) of the most probable components.

        That is the conditional mean of the component with the largest weight for numbers, its most
        probable value for counts and levels. It is the mode of the mixture if components are well
        separated.
        """
        modes = np.empty((len(self), self.columns.shape[0]))
        for some in self._asked.posteriors():
            everyone = np.arange(some.numbers.shape[0])
            for part, places, among in self._parts:
                found = part.modes(some.rows.of(part.columns), everyone, some.best, places)
                if isinstance(part, LevelPart):
                    for m, (place, target) in enumerate(zip(places, among, strict=True)):
                        shares = part.tables[place][some.best] * self._weights_of(target)
                        found[:, m] = shares.argmax(axis=1)
                centre = self._asked.centre[part.columns[places]]
                modes[some.numbers[:, None], among] = found + centre
        return modes

    def _weights_of(self, target: int) -> np.ndarray | float:
        """What probabilities of a column's levels are multiplied by to find the largest."""
        return self._asked.level_weights.get(int(self.columns[target]), 1.0)

    def probabilities(self, column: str | int) -> np.ndarray:
        """Probabilities (n, L) of the levels of a category."""
        number = find_column(self._mixture, column, "column")
        for part, places, among in self._parts:
            where = np.flatnonzero(self.columns[among] == number)
            if not where.size or not isinstance(part, LevelPart):
                continue
            table = part.tables[places[where[0]]]
            shares = np.empty((len(self), table.shape[1]))
            for some in self._asked.posteriors():
                shares[some.numbers] = some.average_components(table)
            return shares
        raise ValueError(
            f"column must be one of the categories among {', '.join(self.names)}, got {column!r}."
        )

    def score_samples(self, Y: ArrayLike) -> np.ndarray:
        """log p(y_i | given_i), (n,), of rows Y (n, d) or of one row (d,) for all."""
        values = np.asarray(Y, dtype=np.float64)
        n, d = len(self), self.columns.shape[0]
        if values.shape not in ((n, d), (d,), (1, d)):
            raise ValueError(f"Y must have shape {(n, d)} or {(d,)}, got {values.shape}.")
        rows = self._asked.rows.copy()
        rows[:, self.columns] = values
        check_cells(self._mixture, rows, "Y")
        joint = AskedRows(self._mixture, rows, self._asked.noise, self._asked.level_weights)
        return np.asarray(joint.log_densities() - self._asked.log_densities())

    def sample(self, n_draws: int = 1, random_state: RandomSeed = None) -> np.ndarray:
        """Draws (n, n_draws, d).

        Parameters
        ----------
        n_draws : int, default=1
        random_state : int, RandomState, Generator or None, default=None
            None means that of the mixture.
        """
        check_integer("n_draws", n_draws, 1)
        own = self._mixture.random_state
        random = check_generator(own if random_state is None else random_state)
        drawn = np.empty((len(self), n_draws, self.columns.shape[0]))
        for some in self._asked.posteriors():
            R = some.numbers.shape[0]
            components = some.choose(random.uniform(size=(R, n_draws))).ravel()
            which = np.repeat(np.arange(R), n_draws)
            for part, places, among in self._parts:
                rows = some.rows.of(part.columns)
                values = part.draw(rows, which, components, places, random)
                values += self._asked.centre[part.columns[places]]
                cells = some.numbers[:, None, None], np.arange(n_draws)[:, None], among
                drawn[cells] = values.reshape(R, n_draws, -1)
        return drawn

    def _refuse_levels(self, question: str) -> None:
        kinds = self._asked.kinds()[self.columns]
        levels = [name for name, kind in zip(self.names, kinds, strict=True) if kind == "level"]
        if levels:
            raise ValueError(
                f"{question} is for numbers and counts, got the categories {', '.join(levels)}. "
                "Ask for probabilities of their levels instead."
            )


def check_quantiles(q: float | ArrayLike | Sequence[float]) -> np.ndarray:
    """Quantiles as an array of numbers strictly between 0 and 1."""
    try:
        wanted = np.atleast_1d(np.asarray(q, dtype=np.float64))
        sound = wanted.ndim == 1 and wanted.size > 0 and bool(((wanted > 0) & (wanted < 1)).all())
    except (TypeError, ValueError):
        sound = False
    if not sound:
        raise ValueError(f"quantiles must be numbers strictly between 0 and 1, got {q!r}.")
    return wanted
