"""The contract of a family: what a component is, in closed form."""

from __future__ import annotations

import abc
import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from pickmix.checks import check_restored
from pickmix.families.distributions import (
    Distribution,
    Inverse,
    NormalMixture,
    normal_quantiles,
    normal_within,
)
from pickmix.families.layout import Layout, Model, Moments

NO_MASS = 1e-140  # Masses at or below this are none: their squares would leave float64.

Parameters = Mapping[str, np.ndarray]
RandomSource = np.random.Generator | np.random.RandomState


def check_not_negative(name: str, values: np.ndarray) -> None:
    """Raise if a parameter has a negative value."""
    if (values < 0.0).any():
        raise ValueError(
            f"{name} must not be negative, got a smallest value of {float(values.min())!r}."
        )


def describe_wrong_cell(
    rows: np.ndarray,
    sound: np.ndarray,
    columns: Sequence[int] | None,
    expected: Callable[[int], str],
) -> str | None:
    """The first cell of rows (N, D) that is neither `sound` (N, D) nor missing, as text.

    `expected` says what a column must hold; `columns` (D,) are their numbers in messages.
    """
    wrong = ~(sound | np.isnan(rows))
    if not wrong.any():
        return None
    row, column = np.argwhere(wrong)[0].tolist()
    return (
        f"column {column if columns is None else columns[column]} must hold {expected(column)}, "
        f"but row {row} holds {float(rows[row, column])!r}"
    )


class HeldOutRows(NamedTuple):
    """Rows of some components, about their means."""

    components: np.ndarray  # (M,)
    residuals: np.ndarray  # (M, m, C) NaN where a value is missing.
    #: (M, m) How much of a row belongs to the component, in units of a mean row; 0 where there is
    #: none.
    weights: np.ndarray
    noise: np.ndarray | None = None  # (M, m, C, C) Covariances.


class LeftOutPairs(NamedTuple):
    """Pairs of a component and a row that is left out of its estimate."""

    components: np.ndarray  # (n,)
    log_densities: np.ndarray  # (n,) log p(x | k), tables and linear parts aside.
    rows: np.ndarray  # (B, D)
    which: np.ndarray  # (n,) The row of each pair.
    weights: np.ndarray  # (n,) Of the row in the component.
    counts: np.ndarray  # (n,) Effective rows of the component.


class Prior(abc.ABC):
    """Parameters that components share, and the shrinkage of each component towards them."""

    n_rows: float  # Rows behind all statistics together.
    background: int = -1  # The component of outlying rows; -1 if there is none.
    undecided: bool = False  # Whether `choose` is due before the first M-step.

    @property
    def needs_gains(self) -> bool:
        """Whether `absorb` must be called after every update."""
        return False

    @property
    def estimates_shrinkage(self) -> bool:
        """Whether `choose` has an effect."""
        return False

    def allow_background(self, extent: np.ndarray) -> None:
        """Allow a background component, for rows up to `extent` (D,) from the centre."""
        return

    def resume(self) -> None:
        """Take moments as they are: those of parameters that have been shrunk already."""
        return

    @property
    def wants_background(self) -> bool:
        """Whether narrower components are to be tried, which a background must make safe."""
        return False

    @property
    def lacks_background(self) -> bool:
        """Whether there is none, and columns that vary are constant in components."""
        return False

    def resume_background(self, component: int, moments: Moments) -> None:
        """Make a component the background that its moments describe."""
        self.background = component

    @abc.abstractmethod
    def pool(self, moments: Moments, masses: np.ndarray) -> None:
        """Re-estimate the shared parameters from components of masses (K,), shares of all."""

    def absorb(
        self, kept: float, mass: Any, squares: Any, freedom: Any, scatter: np.ndarray
    ) -> None:
        """Add the totals of an update, which kept the share `kept` of the past."""
        raise TypeError(f"{type(self).__name__} learns nothing from a single update.")

    def estimate_shrinkage(
        self, moments: Moments, masses: np.ndarray, held_out: HeldOutRows
    ) -> None:
        """Estimate the shrinkage of each component from rows assigned to it."""
        return

    def choices(self) -> Sequence[Self]:
        """Priors of which that is taken under which rows, left out, are most probable."""
        return ()

    def copy(self) -> Self:
        """An independent copy. Arrays are replaced, never written."""
        return copy.copy(self)

    def content(self) -> dict[str, Any]:
        """What has been learnt, as arrays and numbers."""
        kept = (np.ndarray, np.generic, bool, int, float)
        return {name: value for name, value in vars(self).items() if isinstance(value, kept)}

    def restore(self, content: dict[str, Any]) -> None:
        """Take back the content of a prior of as many components."""
        for name in vars(self).keys() | {"n_rows", "background", "undecided"}:
            value = getattr(self, name)
            if isinstance(value, np.ndarray):
                setattr(self, name, check_restored(name, content[name], value).copy())
            elif name in content:
                setattr(self, name, type(value)(content[name]))

    def take(self, components: np.ndarray) -> Self:
        """The prior of these components, with their shrinkage."""
        return self.copy()

    def put(self, components: np.ndarray, other: Self, which: np.ndarray) -> None:
        """Give components the shrinkage that the components `which` have under another prior."""
        return


class Family(abc.ABC):
    """A feature map and an M-step: all knowledge about a family is in its file."""

    name: str  # The user's name for it.
    shared: bool = False  # True if all components share one factor.
    has_linear: bool = False  # True if components have a linear part.
    reg_covar: float = 0.0  # Largest number that is added to a variance.
    takes_noise: bool = False  # Whether rows may have Gaussian noise of known covariance.
    rise_scale: float = 1.0  # Multiplies the rise of a log-likelihood below which a fit ends.
    #: Columns that relocation counts, at most: where rows are wide, fewer rows of a component are
    #: surveyed, in fewer steps, and moves that seem to lose are not tried.
    most_surveyed: int | None = None
    keeps_columns: bool = True  # Whether `coordinates` are columns, each by itself.
    layout: Layout
    #: Column i of the sweep's rows is column column_order[i] of the user's; None if all are in
    #: place. `check` takes the user's rows, everything else the sweep's.
    column_order: np.ndarray | None = None

    # Features.

    def centre(self, mean: np.ndarray) -> np.ndarray:
        """Origin (D,) of the coordinates that the sweep sees, for rows with this mean."""
        return mean

    def coordinates(self, rows: np.ndarray) -> np.ndarray:
        """The user's rows (N, D) as the sweep sees them, not centred."""
        return rows if self.column_order is None else rows[:, self.column_order]

    def for_gaps(self, parameters: Parameters) -> tuple[Family, Parameters]:
        """A family for rows with gaps, and the parameters of the same components in it."""
        return self, parameters

    def factor_part(self, parameters: Parameters) -> Any:
        """The part that has expected factors, of components with loadings."""
        raise TypeError(f"{self.name!r} has no factors.")

    def in_users_columns(self, values: np.ndarray) -> np.ndarray:
        """Values (..., D) of the sweep's columns as values of the user's."""
        if self.column_order is None:
            return values
        out = np.empty_like(values)
        out[..., self.column_order] = values
        return out

    def check(self, rows: np.ndarray, columns: Sequence[int] | None = None) -> str | None:
        """The first invalid cell of rows (N, D) as text, or None; `columns` (D,) are numbers."""
        return None

    def log_base(self, rows: np.ndarray) -> np.ndarray | None:
        """The part of log p(x) without parameters, (N,), of uncentred rows; None if 0."""
        return None

    def row_positions(self, rows: np.ndarray) -> np.ndarray:
        """Positions (B, d) of rows (B, D) for trees and cells."""
        return rows

    def limits(self) -> np.ndarray:
        """Largest values of the user's columns (D,) that parameters depend on, else 0.

        Together with `name` they identify the family: a constructor in the registry makes it again.
        """
        return np.zeros(self.layout.n_columns)

    def parents(self) -> np.ndarray:
        """The user's column that each column (D,) depends on given the component, -1 if none."""
        return np.full(self.layout.n_columns, -1, dtype=np.int64)

    def has_inner_gaps(self, rows: np.ndarray) -> np.ndarray:
        """Whether the user's rows (N, D) have gaps that `log_gap_terms` are for, (N,)."""
        return np.zeros(rows.shape[0], dtype=np.bool_)

    def log_gap_terms(self, parameters: Parameters, rows: np.ndarray) -> np.ndarray:
        """What the sweep's log p(x | k) of the user's rows (N, D) lacks, (K, N)."""
        raise TypeError(f"The sweep evaluates all rows of {self.name!r}.")

    def column_groups(self) -> list[tuple[Family, np.ndarray]] | None:
        """Families of groups of the user's columns, if this is a product."""
        return None

    # Components.

    @abc.abstractmethod
    def positions(self, model: Model) -> np.ndarray:
        """Positions (K, d) of components for trees and cells."""

    @abc.abstractmethod
    def scales(self, prior: Prior) -> np.ndarray:
        """Typical scales (d,) of a component along its positions."""

    @abc.abstractmethod
    def make_prior(self, moments: Moments, shrinkage: str, n_rows: float) -> Prior:
        """Prior for components with these moments.

        `shrinkage` is "none" (maximum likelihood), "few" (components of few rows are shrunk towards
        the others) or "pooled" (all are, by as much as they have in common).
        """

    @abc.abstractmethod
    def maximise(
        self,
        moments: Moments,
        members: np.ndarray,
        prior: Prior,
        model: Model,
        compiled: bool,
    ) -> np.ndarray:
        """M-step: write the rows `members` (U,) of the model from their moments.

        Returns flags (U,) of components without an estimate; their old parameters stay. The work is
        `compiled` and spread over threads, or done in NumPy.
        """

    def self_scores(self, model: Model, moments: Moments) -> np.ndarray:
        """Mean log-density (K,) of a component's own rows, up to a constant of the family."""
        scores = np.einsum("kl,kl->k", model.tables, moments.counts) + model.log_normaliser
        if model.linear.shape[0]:
            scores += np.einsum("kc,kc->k", model.linear, moments.mean - model.location)
        return np.asarray(scores)

    def left_out_falls(self, model: Model, prior: Prior, pairs: LeftOutPairs) -> np.ndarray:
        """Decrease of log p(x | k), (n,), when component k is estimated without the row.

        By default parameters cost one nat each, spread over the rows.
        """
        own = self.n_parameters(2) - self.n_parameters(1)
        return np.asarray(own * pairs.weights / np.maximum(pairs.counts, 1.0))

    def has_background(self, prior: Prior) -> bool:
        """Whether a component may become a background of outlying rows."""
        return False

    def background_log_densities(self, prior: Prior, rows: np.ndarray) -> np.ndarray:
        """log p(x | background) of rows (N, D), (N,)."""
        raise TypeError(f"{self.name!r} has no background.")

    @abc.abstractmethod
    def split(
        self, model: Model, moments: Moments, prior: Prior, uniforms: np.ndarray
    ) -> tuple[Moments, Moments]:
        """Moments of two halves of every component, of half its mass, along its widest direction.

        `uniforms` (K, d) serve families that have no such direction.
        """

    # Costs of merges.

    @abc.abstractmethod
    def negative_entropy(self, moments: Moments, shared: np.ndarray) -> np.ndarray:
        """Mean log-density (n,) of components with these moments under themselves.

        Without terms that are linear in the moments, whose sum a merge keeps. A merge of components
        of weights w_1 and w_2 costs w_1 S_1 + w_2 S_2 - (w_1 + w_2) S_merged, where S is this
        function (Runnalls 2007, for Gaussians). `shared` (P,) is the covariance that all components
        share, if any.
        """

    @property
    def has_shared_parts(self) -> bool:
        """Whether parameters depend on other components: merges then change them all."""
        return self.shared

    # Parameters in the user's terms.

    @abc.abstractmethod
    def parameters(self, model: Model, centre: np.ndarray) -> dict[str, np.ndarray]:
        """The parameters in use, in the user's shapes."""

    @abc.abstractmethod
    def moments_of(self, parameters: Parameters, centre: np.ndarray) -> Moments:
        """Moments, of mass 1, from which `maximise` without shrinkage makes these parameters."""

    def join_parameters(self, parts: Sequence[Parameters]) -> dict[str, np.ndarray]:
        """Join the parameters of all groups of columns."""
        (parameters,) = parts
        return dict(parameters)

    def parameter_shapes(self, n_components: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters of K components, by name."""
        with np.errstate(all="ignore"):
            model, centre = self.empty_model(n_components), np.zeros(self.layout.n_columns)
            return {name: array.shape for name, array in self.parameters(model, centre).items()}

    def check_parameters(self, parameters: Parameters, prefix: str = "") -> None:
        """Raise a ValueError that names an invalid parameter; `prefix` begins its name.

        Shapes and finiteness are checked before.
        """
        return

    @abc.abstractmethod
    def n_parameters(self, n_components: int) -> int:
        """Free parameters of K components, weights aside."""

    def n_parameters_each(self) -> int:
        """Parameters of a component that its rows decide, rather than what components share."""
        return self.n_parameters(2) - self.n_parameters(1)

    def n_parameters_of(self, parameters: Parameters, n_components: int) -> int:
        """Free parameters of these components, where not all have as many."""
        return self.n_parameters(n_components)

    @abc.abstractmethod
    def parts(self, parameters: Parameters, centre: np.ndarray) -> list[Part]:
        """Groups of the user's columns that are independent given the component.

        `centre` (D,), in the order of the user's columns, is the origin of what parts return.
        """

    @property
    def least_variance(self) -> float:
        """The least variance that the M-step adds to the scatter of every coordinate."""
        return 0.0

    def empty_model(self, n_components: int) -> Model:
        layout = self.layout
        C, K = layout.n_coordinates, n_components
        n_factors, n_linear = 1 if self.shared else K, K if self.has_linear else 0
        return Model(
            location=np.zeros((K, C)),
            factor=np.zeros((n_factors, layout.n_products)),
            linear=np.zeros((n_linear, C)),
            constants=np.zeros((n_linear, C)),
            tables=np.zeros((K, layout.n_levels)),
            log_normaliser=np.zeros(n_factors),
            log_mass=np.zeros(K),
            decay=np.array([1.0, 1.0, 0.0, -np.inf, self.least_variance]),
        )


# Conditioning: given the component, the columns fall into independent parts, which condition pairs
# of a row and a component, exactly.


class SeenRows(NamedTuple):
    """Rows of which some cells are seen."""

    values: np.ndarray  # (R, D) About the parts' centres; anything where nothing is seen.
    seen: np.ndarray  # (R, D)
    patterns: np.ndarray  # (R,) Rows of one number have seen the same cells.
    noise: np.ndarray | None = None  # (R, D, D) Covariances, for Gaussian parts.

    def of(self, columns: np.ndarray) -> SeenRows:
        """The rows restricted to these columns."""
        noise = None if self.noise is None else self.noise[:, columns[:, None], columns]
        return SeenRows(self.values[:, columns], self.seen[:, columns], self.patterns, noise)


class Pairs(NamedTuple):
    """Pairs of a row and a component."""

    rows: SeenRows
    which: np.ndarray  # (P,) The row of each pair, 0 to R - 1.
    components: np.ndarray  # (P,)

    def of(self, columns: np.ndarray) -> Pairs:
        return self._replace(rows=self.rows.of(columns))


class LeftOut(NamedTuple):
    """Conditionals of each cell given the row's other cells, under every component."""

    log_densities: np.ndarray  # (K, R, s) log p_k(x_j | x_-j).
    means: np.ndarray  # (K, R, s) About the centres. Those of levels are NaN.
    variances: np.ndarray  # (K, 1, s)
    #: Probabilities (K, R, L) of the levels of cell number m, if they depend on other cells.
    levels: Callable[[int], np.ndarray] | None = None


class Part(abc.ABC):
    """Columns that depend on each other, given the component, and on no others.

    By default they are independent given the component. What describes components treats columns as
    normal with these means and variances; parts that know better override it. `targets` (m,) are
    columns of the part, numbered 0 to d - 1.
    """

    kind: str  # "number", "count" or "level".
    columns: np.ndarray  # (d,) In the user's rows.
    #: (K, d) Of each component, about the centre. NaN for levels.
    means: np.ndarray
    variances: np.ndarray
    parameters: dict[str, np.ndarray]  # The user's. The first has a typical value per column.
    label: str = ""  # Prefix of the names of its parameters.
    tables: Sequence[Any] = ()  # Probabilities (K, L) of the levels of each column.
    levels_depend: bool = False  # Whether levels depend on those of other columns of the part.

    def typical(self) -> np.ndarray:
        """Mean or best level (K, d) of each component, in the user's units."""
        return next(iter(self.parameters.values()))

    def marginal(self, targets: np.ndarray) -> dict[str, np.ndarray]:
        """Parameters over some of the part's columns."""
        return {
            # One number per component serves all columns.
            name: values[:, targets] if values.ndim > 1 else values.copy()
            for name, values in self.parameters.items()
        }

    def conditional(self, rows: SeenRows, targets: np.ndarray) -> dict[str, np.ndarray]:
        """Parameters over some unseen columns given the seen cells of a single row."""
        return self.marginal(targets)

    def moments(self, pairs: Pairs, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances (P, m) of columns, about the centre, given the row's seen cells."""
        cells = pairs.components[:, None], targets
        return self.means[cells], self.variances[cells]

    def level_shares(self, pairs: Pairs, target: int) -> np.ndarray:
        """Probabilities (P, L) of a column's levels, given the row's seen cells."""
        table = self.tables[target]
        return np.asarray((table / table.sum(axis=1, keepdims=True))[pairs.components])

    def joint_shares(self, pairs: Pairs, first: int, second: int) -> np.ndarray:
        """Probabilities (P, L, L') of the levels of two columns, given the row's seen cells."""
        one, other = self.level_shares(pairs, first), self.level_shares(pairs, second)
        return np.asarray(one[:, :, None] * other[:, None, :])

    def covariances(self, pairs: Pairs, targets: np.ndarray) -> np.ndarray:
        """Covariances (P, m, m) of columns within the components of pairs."""
        return self.moments(pairs, targets)[1][:, :, None] * np.eye(targets.shape[0])

    def modes(self, pairs: Pairs, targets: np.ndarray) -> np.ndarray:
        """Modes (P, m) of columns within the components of pairs, about the centre."""
        return self.moments(pairs, targets)[0]

    def draw(self, pairs: Pairs, targets: np.ndarray, random: RandomSource) -> np.ndarray:
        """One draw of columns (P, m) for each pair, about the centre."""
        means, variances = self.moments(pairs, targets)
        return np.asarray(means + np.sqrt(variances) * random.standard_normal(means.shape))

    def within(
        self, pairs: Pairs, target: int, low: np.ndarray, high: np.ndarray
    ) -> tuple[np.ndarray, Inverse]:
        """Probabilities between two ends, about the centre, and values there by uniforms.

        Ends are (m,) or (P, 1) and count as inside; results are (P, m) or (P, 1).
        """
        means, variances = self.moments(pairs, np.array([target]))
        return normal_within(means, np.sqrt(variances), low, high)

    @abc.abstractmethod
    def leave_out(self, rows: SeenRows) -> LeftOut:
        """Each seen cell given the row's other seen cells. All rows have one pattern."""

    def quantiles(
        self,
        weights: np.ndarray,
        means: np.ndarray,
        variances: np.ndarray,
        starts: np.ndarray,
        share: float,
        pairs: Pairs | None = None,
    ) -> np.ndarray:
        """Quantiles (R,) of mixtures of one column, about the centre.

        The components of mixture r are the pairs from starts[r] on, with weights (P,), and the
        means and variances (P,) that `moments` of the pairs returned.
        """
        return normal_quantiles(weights, means, np.sqrt(variances), starts, share)

    def with_noise(self) -> Part:
        """The same columns as a part that accepts correlated noise."""
        return self

    def distribution(self, column: int, weights: np.ndarray) -> Distribution:
        """The distribution of one column, 0 to d - 1, in a mixture with weights (K,)."""
        deviations = np.sqrt(self.variances[:, column])
        return NormalMixture(weights, self.typical()[:, column], deviations)

    def n_levels(self) -> list[int]:
        """The number of levels of each column, 0 if it holds numbers.

        A column of numbers has one coordinate in the methods below, a column of levels one for each
        level: 1 for the level that a row has, 0 for all others.
        """
        return [table.shape[1] for table in self.tables] or [0] * self.columns.shape[0]

    def coordinate_means(self) -> np.ndarray:
        """Means (K, c) of the coordinates: of numbers, or probabilities of levels."""
        return self.typical()

    def coordinate_variances(self) -> np.ndarray:
        return self.variances

    def covariances_along(self, components: np.ndarray, basis: np.ndarray) -> np.ndarray:
        """Covariances (n, m, m) of components along the columns of a basis (c, m)."""
        return np.asarray((basis.T * self.variances[components][:, None, :]) @ basis)

    def log_volumes(self, rows: np.ndarray, spread: np.ndarray) -> np.ndarray:
        """How much smaller components (K,) are than all rows (N, d) with this spread (d,), in nats.

        Half the log-determinant of the covariance in units of the spread; of levels, the entropy in
        the component less that among the rows. Both are differences of entropies, so they add up.
        """
        return np.asarray((0.5 * np.log(self.variances) - np.log(spread)).sum(axis=1))

    def squared_distances(self, rows: np.ndarray, component: np.ndarray) -> np.ndarray:
        """Squares (N,) of distances of rows (N, d) from a component each, in its deviations.

        Missing cells (NaN) count for nothing.
        """
        variances = np.maximum(self.variances[component], 1e-300)
        away = np.nan_to_num(rows - self.typical()[component])
        return np.asarray((np.square(away) / variances).sum(axis=1))

    def positions(self) -> np.ndarray:
        """Points (K, m) whose distances are about those of components of typical size."""
        return np.asarray(self.typical() / np.sqrt(np.median(self.variances, axis=0)))

    def bhattacharyya(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """-log of the integral of sqrt(p q), (P,), for pairs of components (P,)."""
        means, variances = self.typical(), self.variances
        middle = 0.5 * (variances[first] + variances[second])
        logs = np.log(variances)
        away = 0.125 * np.square(means[first] - means[second]) / middle
        return np.asarray(
            (away + 0.5 * np.log(middle) - 0.25 * (logs[first] + logs[second])).sum(axis=1)
        )

    @staticmethod
    def baseline(values: np.ndarray) -> float:
        """Log-density of values (n,), in all, under one distribution fitted to them."""
        mean = float(values.mean())
        # One value over and over fits a normal distribution of any narrowness; this one is narrow.
        variance = max(float(values.var()), 1e-12 * max(1.0, mean**2))
        return -0.5 * len(values) * (math.log(2.0 * math.pi * variance) + 1.0)
