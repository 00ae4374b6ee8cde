"""Mixed tables: groups of columns, each of a family of its own, independent given the component."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.families.base import Family, HeldOutRows, LeftOutPairs, Parameters, Part, Prior
from pickmix.families.cholesky import HALF_LOG_2PI
from pickmix.families.layout import Layout, Model, Moments


@dataclass(frozen=True)
class Group:
    """A family within a product, and the positions of its parts in those of the product."""

    family: Family
    label: str  # Name and number, which parameters begin with.
    columns: np.ndarray  # (d,) Its columns in the user's rows.
    positions: np.ndarray  # (d,) Its columns in the sweep's rows.
    #: Its parts of means, scatters and counts.
    coordinates: slice
    products: slice
    levels: slice

    def moments(self, whole: Moments) -> Moments:
        return Moments(
            whole.mass,
            whole.squares,
            np.ascontiguousarray(whole.mean[:, self.coordinates]),
            np.ascontiguousarray(whole.scatter[:, self.products]),
            np.ascontiguousarray(whole.counts[:, self.levels]),
        )

    def parameters(self, whole: Parameters) -> dict[str, np.ndarray]:
        start = f"{self.label}_"
        named = {name: values for name, values in whole.items() if name.startswith(start)}
        return {name.removeprefix(start): values for name, values in named.items()}

    def model(self, whole: Model) -> Model:
        """The group's view of a model, without normalisers: those of a product are sums."""
        own = self.family.empty_model(0)
        if self.family.has_linear:
            linear, constants = whole.linear, whole.constants
            own = own._replace(
                linear=linear[:, self.coordinates], constants=constants[:, self.coordinates]
            )
        factor = whole.factor[:1] if self.family.shared else whole.factor
        return own._replace(
            location=whole.location[:, self.coordinates],
            factor=factor[:, self.products],
            tables=whole.tables[:, self.levels],
            log_mass=whole.log_mass,
            decay=whole.decay,
        )


@dataclass
class ProductPrior(Prior):
    """The priors of all groups, as one."""

    groups: tuple[Group, ...]
    parts: tuple[Prior, ...]

    @property
    def n_rows(self) -> float:
        return self.parts[0].n_rows

    @n_rows.setter
    def n_rows(self, value: float) -> None:
        for part in self.parts:
            part.n_rows = value

    @property
    def needs_gains(self) -> bool:
        return any(part.needs_gains for part in self.parts)

    def pool(self, moments: Moments, masses: np.ndarray) -> None:
        for group, part in zip(self.groups, self.parts, strict=True):
            part.pool(group.moments(moments), masses)

    def absorb(
        self, kept: float, mass: float, squares: float, freedom: float, scatter: np.ndarray
    ) -> None:
        for group, part in zip(self.groups, self.parts, strict=True):
            if part.needs_gains:
                part.absorb(kept, mass, squares, freedom, scatter[group.products])

    def resume(self) -> None:
        for part in self.parts:
            part.resume()

    def choices(self) -> list[ProductPrior]:
        """Those of each part, beside the others as they are."""
        return [
            ProductPrior(self.groups, (*self.parts[:n], choice, *self.parts[n + 1 :]))
            for n, part in enumerate(self.parts)
            for choice in part.choices()
        ]

    @property
    def undecided(self) -> bool:  # type: ignore[override]
        return any(part.undecided for part in self.parts)

    @property
    def estimates_shrinkage(self) -> bool:
        return any(part.estimates_shrinkage for part in self.parts)

    def estimate_shrinkage(
        self, moments: Moments, masses: np.ndarray, held_out: HeldOutRows
    ) -> None:
        for group, part in zip(self.groups, self.parts, strict=True):
            if part.estimates_shrinkage:
                # Only Gaussians alone have noise.
                own = held_out._replace(residuals=held_out.residuals[:, :, group.coordinates])
                part.estimate_shrinkage(group.moments(moments), masses, own)

    def copy(self) -> ProductPrior:
        return ProductPrior(self.groups, tuple(part.copy() for part in self.parts))

    def content(self) -> dict[str, Any]:
        return {"parts": [part.content() for part in self.parts]}

    def restore(self, content: dict[str, Any]) -> None:
        for part, kept in zip(self.parts, content["parts"], strict=True):
            part.restore(kept)

    def take(self, components: np.ndarray) -> ProductPrior:
        return ProductPrior(self.groups, tuple(part.take(components) for part in self.parts))

    def put(self, components: np.ndarray, other: ProductPrior, which: np.ndarray) -> None:
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            mine.put(components, theirs, which)


class Product(Family):
    """Groups (family, columns) of columns, independent given the component; not nested.

    The sweep's rows hold the coordinates of all groups first, in their order, and then all levels;
    `column_order` are their columns in the user's rows.

    >>> from pickmix.families.categorical import Categorical
    >>> from pickmix.families.gaussian import FullGaussian
    >>> family = Product([(Categorical([3]), [1]), (FullGaussian(2), [0, 2])])
    >>> family.column_order
    array([0, 2, 1])
    >>> family.n_parameters(10)
    70
    """

    name = "product"
    column_order: np.ndarray

    def __init__(self, groups: Sequence[tuple[Family, Sequence[int]]]) -> None:
        families = [family for family, _ in groups]
        self.layout = join_layouts([family.layout for family in families])
        self.reg_covar = max(family.reg_covar for family in families)
        self.has_linear = any(family.has_linear for family in families)
        self.rise_scale = max(family.rise_scale for family in families)
        most = [family.most_surveyed for family in families if family.most_surveyed is not None]
        self.most_surveyed = min(most, default=None)
        self.groups = _place(groups, self.layout.n_coordinates)
        self.column_order = np.empty(self.layout.n_columns, dtype=np.int64)
        for group in self.groups:
            self.column_order[group.positions] = group.columns

    def centre(self, mean: np.ndarray) -> np.ndarray:
        centre = np.empty_like(mean)
        for group in self.groups:
            centre[group.positions] = group.family.centre(mean[group.positions])
        return centre

    def coordinates(self, rows: np.ndarray) -> np.ndarray:
        found = rows.take(self.column_order, axis=1)
        for group in self.groups:
            if not group.family.keeps_columns:
                found[:, group.positions] = group.family.coordinates(rows[:, group.columns])
        return found

    def in_users_columns(self, values: np.ndarray) -> np.ndarray:
        out = np.empty_like(values)
        for group in self.groups:
            out[..., group.columns] = group.family.in_users_columns(values[..., group.positions])
        return out

    def for_gaps(self, parameters: Parameters) -> tuple[Family, Parameters]:
        made = [group.family.for_gaps(group.parameters(parameters)) for group in self.groups]
        families = [family for family, _ in made]
        if families == [group.family for group in self.groups]:
            return self, parameters
        columns = [group.columns.tolist() for group in self.groups]
        other = Product(list(zip(families, columns, strict=True)))
        return other, other.join_parameters([part for _, part in made])

    def check(self, rows: np.ndarray, columns: Sequence[int] | None = None) -> str | None:
        for group in self.groups:
            numbers = group.columns.tolist()
            names = numbers if columns is None else [columns[column] for column in numbers]
            problem = group.family.check(rows[:, group.columns], names)
            if problem is not None:
                return problem
        return None

    def limits(self) -> np.ndarray:
        limits = np.zeros(self.layout.n_columns)
        for group in self.groups:
            limits[group.columns] = group.family.limits()
        return limits

    def parents(self) -> np.ndarray:
        parents = np.full(self.layout.n_columns, -1, dtype=np.int64)
        for group in self.groups:
            within = group.family.parents()
            parents[group.columns] = np.where(within < 0, -1, group.columns[within])
        return parents

    def has_inner_gaps(self, rows: np.ndarray) -> np.ndarray:
        flags = [group.family.has_inner_gaps(rows[:, group.columns]) for group in self.groups]
        return np.asarray(np.any(flags, axis=0))

    def log_gap_terms(self, parameters: Parameters, rows: np.ndarray) -> np.ndarray:
        terms = [
            group.family.log_gap_terms(group.parameters(parameters), rows[:, group.columns])
            for group in self.groups
            if group.family.has_inner_gaps(rows[:, group.columns]).any()
        ]
        return np.asarray(np.sum(terms, axis=0))

    def column_groups(self) -> list[tuple[Family, np.ndarray]]:
        return [(group.family, group.columns) for group in self.groups]

    def log_base(self, rows: np.ndarray) -> np.ndarray | None:
        parts = [group.family.log_base(rows[:, group.positions]) for group in self.groups]
        known = [part for part in parts if part is not None]
        return np.asarray(np.sum(known, axis=0)) if known else None

    def row_positions(self, rows: np.ndarray) -> np.ndarray:
        positions = [group.family.row_positions(rows[:, group.positions]) for group in self.groups]
        return np.concatenate(positions, axis=1)

    @property
    def least_variance(self) -> float:
        families = [group.family for group in self.groups]
        return min((f.least_variance for f in families if f.layout.n_products), default=0.0)

    def positions(self, model: Model) -> np.ndarray:
        positions = [group.family.positions(group.model(model)) for group in self.groups]
        return np.concatenate(positions, axis=1)

    def scales(self, prior: Prior) -> np.ndarray:
        return np.concatenate([group.family.scales(part) for group, part in self._parts(prior)])

    def make_prior(self, moments: Moments, shrinkage: str, n_rows: float) -> ProductPrior:
        parts = [g.family.make_prior(g.moments(moments), shrinkage, n_rows) for g in self.groups]
        return ProductPrior(self.groups, tuple(parts))

    def _parts(self, prior: Prior) -> list[tuple[Group, Prior]]:
        assert isinstance(prior, ProductPrior)
        return list(zip(self.groups, prior.parts, strict=True))

    def maximise(
        self,
        moments: Moments,
        members: np.ndarray,
        prior: Prior,
        model: Model,
        compiled: bool,
    ) -> np.ndarray:
        n_members = members.shape[0]
        touched = Moments(*(array[members] for array in moments))
        all_components = np.arange(n_members, dtype=np.int32)
        failures = np.zeros(n_members, dtype=np.bool_)
        models = []
        for group, part in self._parts(prior.take(members)):
            own = group.family.empty_model(n_members)._replace(decay=model.decay)
            failures |= group.family.maximise(
                group.moments(touched), all_components, part, own, compiled
            )
            models.append(own)
        good, sound = members[~failures], ~failures
        log_normaliser = np.zeros(n_members)
        for group, own in zip(self.groups, models, strict=True):
            log_normaliser += own.log_normaliser
            model.location[good, group.coordinates] = own.location[sound]
            model.tables[good, group.levels] = own.tables[sound]
            if group.family.has_linear:
                model.linear[good, group.coordinates] = own.linear[sound]
                model.constants[good, group.coordinates] = own.constants[sound]
            if not group.family.shared:
                model.factor[good, group.products] = own.factor[sound]
            elif good.shape[0]:
                self._share(group, own, model)
        model.log_normaliser[good] = log_normaliser[sound]
        return failures

    def _share(self, group: Group, own: Model, model: Model) -> None:
        """Give all components the shared factor of a group."""
        diagonal = self.layout.starts[1:][group.coordinates] - 1
        with np.errstate(divide="ignore"):
            before = np.log(model.factor[:, diagonal]) - HALF_LOG_2PI
        change = own.log_normaliser - before.sum(axis=1)
        model.log_normaliser[:] += np.where(np.isfinite(change), change, 0.0)
        model.factor[:, group.products] = own.factor

    def split(
        self, model: Model, moments: Moments, prior: Prior, uniforms: np.ndarray
    ) -> tuple[Moments, Moments]:
        pairs = []
        begin = 0
        for group, part in self._parts(prior):
            end = begin + group.family.scales(part).shape[0]
            own = np.ascontiguousarray(uniforms[:, begin:end])
            pairs.append(group.family.split(group.model(model), group.moments(moments), part, own))
            begin = end
        one, other = (_join_moments(half) for half in zip(*pairs, strict=True))
        return one, other

    def left_out_falls(self, model: Model, prior: Prior, pairs: LeftOutPairs) -> np.ndarray:
        falls = np.zeros(pairs.components.shape[0])
        for group, part in self._parts(prior):
            own = group.model(model)._replace(log_normaliser=model.log_normaliser)
            its_pairs = pairs._replace(rows=pairs.rows[:, group.positions])
            falls += group.family.left_out_falls(own, part, its_pairs)
        return falls

    def negative_entropy(self, moments: Moments, shared: np.ndarray) -> np.ndarray:
        parts = [
            group.family.negative_entropy(group.moments(moments), shared[group.products])
            for group in self.groups
        ]
        return np.asarray(np.sum(parts, axis=0))

    @property
    def has_shared_parts(self) -> bool:
        return any(group.family.has_shared_parts for group in self.groups)

    def parameters(self, model: Model, centre: np.ndarray) -> dict[str, np.ndarray]:
        return self.join_parameters(
            [g.family.parameters(g.model(model), centre[g.positions]) for g in self.groups]
        )

    def join_parameters(self, parts: Sequence[Parameters]) -> dict[str, np.ndarray]:
        return {
            f"{group.label}_{name}": values
            for group, part in zip(self.groups, parts, strict=True)
            for name, values in part.items()
        }

    def parameter_shapes(self, n_components: int) -> dict[str, tuple[int, ...]]:
        return {
            f"{group.label}_{name}": shape
            for group in self.groups
            for name, shape in group.family.parameter_shapes(n_components).items()
        }

    def check_parameters(self, parameters: Parameters, prefix: str = "") -> None:
        for group in self.groups:
            own = group.parameters(parameters)
            group.family.check_parameters(own, f"{prefix}{group.label}_")

    def moments_of(self, parameters: Parameters, centre: np.ndarray) -> Moments:
        parts = [
            group.family.moments_of(group.parameters(parameters), centre[group.positions])
            for group in self.groups
        ]
        return _join_moments(parts)

    def n_parameters(self, n_components: int) -> int:
        return sum(group.family.n_parameters(n_components) for group in self.groups)

    def n_parameters_each(self) -> int:
        return sum(group.family.n_parameters_each() for group in self.groups)

    def n_parameters_of(self, parameters: Parameters, n_components: int) -> int:
        return sum(
            group.family.n_parameters_of(group.parameters(parameters), n_components)
            for group in self.groups
        )

    def parts(self, parameters: Parameters, centre: np.ndarray) -> list[Part]:
        found = []
        for group in self.groups:
            own = group.parameters(parameters)
            for part in group.family.parts(own, centre[group.columns]):
                part.columns, part.label = group.columns[part.columns], f"{group.label}_"
                found.append(part)
        return found


def _join_moments(parts: Sequence[Moments]) -> Moments:
    mass, squares, *sums = zip(*parts, strict=True)
    return Moments(mass[0], squares[0], *(np.concatenate(arrays, axis=1) for arrays in sums))


def join_layouts(layouts: Sequence[Layout]) -> Layout:
    """The layout of groups side by side: coordinates of all, then levels of all."""
    sizes = [layout.n_coordinates for layout in layouts]
    shift = np.repeat(np.cumsum(sizes) - sizes, sizes)

    def ends(each: list[np.ndarray]) -> np.ndarray:
        return np.append(0, np.cumsum(np.concatenate([np.diff(one) for one in each])))

    joined = Layout(
        np.concatenate([layout.first for layout in layouts]) + shift,
        np.concatenate([layout.last for layout in layouts]) + shift,
        ends([layout.starts for layout in layouts]).astype(np.int64),
        ends([layout.offsets for layout in layouts]).astype(np.int64),
    )
    first, *others = layouts
    if any(layout.kernels or (first.kernels and layout.n_products) for layout in others):
        raise ValueError(
            "family 'low_rank' must be the first group, with counts and categories as the others."
        )
    return first.beginning(joined)


def _place(groups: Sequence[tuple[Family, Sequence[int]]], n_coordinates: int) -> tuple[Group, ...]:
    """Find the positions of the parts of each group."""
    layouts = [family.layout for family, _ in groups]
    sizes = np.array(
        [
            (own.n_coordinates, own.n_products, own.n_levels, own.n_columns - own.n_coordinates)
            for own in layouts
        ]
    )
    ends = sizes.cumsum(axis=0).tolist()
    starts = (np.array(ends) - sizes).tolist()
    placed = []
    for number, (family, columns) in enumerate(groups):
        parts = [slice(a, b) for a, b in zip(starts[number], ends[number], strict=True)]
        coordinates, products, levels, level_columns = parts
        positions = np.r_[coordinates, n_coordinates + np.r_[level_columns]].astype(np.int64)
        own_columns = np.array(columns, dtype=np.int64)
        label = f"{family.name}{number}"
        placed.append(Group(family, label, own_columns, positions, coordinates, products, levels))
    return tuple(placed)
