"""Gaussian components with covariances of low rank: loadings and noise variances."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pickmix.families.base import Family, LeftOutPairs, Parameters, Part, Prior
from pickmix.families.gaussian import FullGaussian
from pickmix.families.gaussian_parts import DensePart
from pickmix.families.layout import (
    SCALE,
    Model,
    Moments,
    halves,
    moments_of_mass_one,
)
from pickmix.families.low_rank_layout import (
    ABSENT,
    LowRankLayout,
    canonical,
    eigenvalues,
    orthonormal,
    unshrunk,
)
from pickmix.families.low_rank_part import LowRankPart
from pickmix.families.low_rank_prior import LEAST_FREEDOM, LowRankPrior
from pickmix.families.shrinkage import FEWEST_ROWS

MOST_NUMBERS = 10**8  # In covariances that are asked for.
_MOST_RANK = 96  # Of "auto".
_MOST_LOADINGS = 3 * 10**7  # Of "auto", in all: a fit holds some ten times as many numbers.
_COLUMNS_OF_TOL = 4
_SPARE = 2  # Directions beyond the rank that are followed.
# Variances between these are in the range of float32, inverted and squared.
_LEAST_VARIANCE, _LARGEST_VARIANCE = 1e-36, 1e30
_FIRST_DIRECTIONS = 32  # Followed at first; more if all turn out to be there.
_FREE_DIRECTIONS = 48  # Of a component, as moves of components count its parameters.
_FIRST_PSEUDO_ROWS = 2.0  # Of noise variances, before they have been chosen.
_SPLIT_DISTANCE = 0.7  # Standard deviations of halves from the mean of the whole.
_LEAST_REST = 0.05  # Effective rows that a component keeps at least when one is left out.
_LEAST_LEFT = 0.02  # Of a noise variance when a row is left out.
_NOTHING = 1e4  # Decrease of the log-density of a component's only row.
_PAIR_NUMBERS = 2_000_000  # In rows of pairs at a time.


def most_rank(rank: int | str, n_columns: int, n_components: int | str = 1) -> int:
    """The largest rank of a component in D columns."""
    if not isinstance(rank, str):
        return min(int(rank), n_columns - 1)
    number = 1 if isinstance(n_components, str) else int(n_components)
    affordable = max(2, _MOST_LOADINGS // (number * n_columns))
    return max(1, min(_MOST_RANK, n_columns // 2, affordable))


def ranks(loadings: np.ndarray) -> np.ndarray:
    """Ranks (K,) of loadings (K, D, H)."""
    return np.asarray(loadings.any(axis=1).sum(axis=1))


class LowRankGaussian(Family):
    """N(mean, L L' + diag(noise)), with at most `rank` columns in L, fewer where rows show fewer.

    `reg_covar`, one number or (D,), is added to every noise variance. With `monotone`, M-steps are
    those of EM. With `axes` A (D, D) noise is independent in the coordinates x A, not in columns.
    """

    name = "low_rank"
    most_surveyed = 8

    def __init__(
        self,
        n_columns: int,
        reg_covar: float | np.ndarray = 1e-6,
        rank: int = 5,
        monotone: bool = False,
        axes: np.ndarray | None = None,
    ) -> None:
        self.n_features = n_columns
        # Marginals keep the width of loadings, and have no more directions than columns.
        self.n_loadings, self.rank = rank, min(rank, n_columns)
        self.axes = axes
        self._reg_covar = reg_covar
        # Log-likelihoods of many columns rise for long by what no column shows.
        self.rise_scale = 1.0 if monotone else max(1.0, n_columns / _COLUMNS_OF_TOL)
        self.floors = np.full(n_columns, np.asarray(reg_covar, dtype=np.float64))
        if axes is not None:
            self.keeps_columns = False
            self._back = np.linalg.inv(axes)
            self.floors = self.floors @ np.square(axes)
        self.reg_covar = float(self.floors.max())
        self.layout: LowRankLayout = LowRankLayout.of(n_columns, self.rank, monotone)
        generator = np.random.Generator(np.random.Philox(key=n_columns))
        drawn = generator.normal(size=(n_columns, self.rank))
        self._sketch = drawn / np.sqrt(np.square(drawn).sum(axis=0))

    def coordinates(self, rows: np.ndarray) -> np.ndarray:
        if self.axes is None:
            return rows
        if np.isnan(rows).any():
            raise ValueError(
                'axes="principal" is for rows without missing values, got some. Use axes="columns".'
            )
        return np.asarray(rows @ self.axes)

    def in_users_columns(self, values: np.ndarray) -> np.ndarray:
        return values if self.axes is None else np.asarray(values @ self._back)

    def log_base(self, rows: np.ndarray) -> np.ndarray | None:
        if self.axes is None:
            return None
        return np.full(rows.shape[0], np.linalg.slogdet(self.axes)[1])

    def positions(self, model: Model) -> np.ndarray:
        return model.location

    def scales(self, prior: Prior) -> np.ndarray:
        assert isinstance(prior, LowRankPrior)
        noise = prior.noise + self.floors
        return np.asarray(np.sqrt(np.maximum(noise, 1e-12 * noise.max() + 1e-280)))

    def make_prior(self, moments: Moments, shrinkage: str, n_rows: float) -> LowRankPrior:
        shares, D = moments.mass / moments.mass.max(), self.n_features
        noise = shares @ moments.scatter[:, :D] / shares.sum()
        if not noise.max() < _LARGEST_VARIANCE:
            raise ValueError(
                'covariance_type="low_rank" computes in float32, for columns with standard '
                f"deviations below {_LARGEST_VARIANCE**0.5:.0e}, got {noise.max() ** 0.5:.2g}. "
                "Divide the columns by their standard deviations."
            )
        return LowRankPrior(
            n_rows,
            noise,
            -1.0 if shrinkage == "none" else _FIRST_PSEUDO_ROWS,
            shrinkage == "pooled",
            np.zeros(D),
            self.layout,
            self.floors,
            np.log(np.maximum(noise + self.floors, 1e-280)),
            np.full(D, _FIRST_PSEUDO_ROWS),
        )

    def maximise(
        self,
        moments: Moments,
        members: np.ndarray,
        prior: Prior,
        model: Model,
        compiled: bool,
    ) -> np.ndarray:
        assert isinstance(prior, LowRankPrior)
        counts = moments.mass * (model.decay[SCALE] * prior.n_rows)
        failures = np.zeros(members.shape[0], dtype=np.bool_)
        for some in self.layout.pieces(members.shape[0]):
            k = members[some]
            noise, q, d = self._components(self.layout.narrow(moments.scatter, k), counts[k], prior)
            away = np.flatnonzero(k == prior.background)
            noise[away] = np.square(prior.reach) + self.floors
            q[away], d[away] = 0.0, ABSENT
            sound = np.isfinite(noise).all(axis=1) & (noise > _LEAST_VARIANCE).all(axis=1)
            failures[some] = ~sound
            if not sound.all():
                # A component without parameters has none to keep.
                new = ~sound & (self.layout.split(model.factor[k])[0] == 0.0).any(axis=1)
                noise[new], q[new], d[new] = 1.0, 0.0, ABSENT
                sound |= new
                k, noise, q, d = k[sound], noise[sound], q[sound], d[sound]
            self.write(model, k, noise, q, d)
            model.location[k] = np.where(k[:, None] == prior.background, 0.0, moments.mean[k])
        return failures

    def _components(
        self, scatter: np.ndarray, counts: np.ndarray, prior: LowRankPrior
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Noise (n, D), orthonormal Q (n, D, w) and d (n, w); spare directions have d = 0.

        Directions beyond these are zero, with d = ABSENT.
        """
        noise, d, raw = prior.estimate(scatter, counts)
        directions = self.layout.split(scatter)[2]
        n_seen, n_real = (raw > 0.0).sum(axis=1), (d > 0.0).sum(axis=1)
        used = prior.shrunk_noise(noise, counts)
        # Directions that are not there are dropped by and by: what has just begun is not known yet.
        n_kept, n_first = n_seen, self.rank
        if prior.shrinks:
            more = np.where(n_real == n_seen, np.maximum(n_real // 2, _SPARE), _SPARE)
            n_kept = np.maximum(n_real + more, n_seen - -(-n_seen // 8))
            n_first = min(self.rank, _FIRST_DIRECTIONS)
        n_kept = np.where(n_seen > 0, np.minimum(n_kept, self.rank), n_first)[:, None]
        n_old = np.minimum(n_seen[:, None], n_kept)
        width = int(n_kept.max(initial=0))
        place, n_new = np.arange(width), max(0, width - raw.shape[1])
        raw, d = (np.pad(each, ((0, 0), (0, n_new)))[:, :width] for each in (raw, d))
        columns, directions = np.zeros((*used.shape, width)), directions[:, :, :width]
        known = columns[:, :, : directions.shape[2]]
        np.divide(directions, np.sqrt(used)[:, :, None], out=known)
        columns /= np.sqrt(np.where(raw > 0.0, raw, 1.0))[:, None, :]
        columns *= (place < n_old)[:, None, :]
        begun, lasting = np.flatnonzero(n_old[:, 0] < n_kept[:, 0]), place < n_kept
        new = (lasting & (place >= n_old))[begun]
        columns[begun] += self._sketch[:, :width] * new[:, None, :]
        q, d = orthonormal(columns, np.where(lasting, np.where(place < n_old, d, 0.0), ABSENT))
        d = np.where(place < n_real[:, None], d, np.where(lasting, 0.0, ABSENT))
        if self.layout.monotone and (n_seen == 0).any():
            # EM leaves loadings of zero where they are.
            new = np.flatnonzero(n_seen == 0)
            q[new], d[new] = np.linalg.qr(self._sketch[:, :width])[0], 1.0
            used[new] /= 1.0 + np.square(q[new]).sum(axis=2)
        return used, q, d

    def write(
        self, model: Model, components: np.ndarray, noise: np.ndarray, q: np.ndarray, d: np.ndarray
    ) -> None:
        """Write covariances of components (n,) into a model."""
        layout, width = self.layout, d.shape[1]
        known, inverse = np.maximum(d, 0.0), 1.0 / np.sqrt(noise)
        shares = np.full((components.shape[0], self.rank), ABSENT)
        shares[:, :width] = np.where(d == ABSENT, ABSENT, known / (1.0 + known))
        packed = np.empty((components.shape[0], layout.n_coordinates * (width + 2)))
        own = layout.split(packed)
        own[0][:], own[1][:] = inverse, 0.0
        own[1][:, : self.rank] = shares
        np.multiply(q, inverse[:, :, None], out=own[2])
        layout.put(model.factor, components, packed)
        half = np.log(noise).sum(axis=1) + np.log1p(known).sum(axis=1)
        half += noise.shape[1] * math.log(2.0 * math.pi)
        model.log_normaliser[components] = -0.5 * half

    def covariance_of(self, model: Model, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Noise (D,), Q (D, c) and d (c,) of a component, without spare directions."""
        inverse, shares, columns = self.layout.split(model.factor[k : k + 1])
        n = int((shares[0] > 0.0).sum())
        f = shares[0, :n]
        return 1.0 / np.square(inverse[0]), columns[0, :, :n] / inverse[0][:, None], f / (1.0 - f)

    def left_out_falls(self, model: Model, prior: Prior, pairs: LeftOutPairs) -> np.ndarray:
        """Decrease of log p(x | k), (n,), when component k is estimated without the row.

        The mean moves away from the row, directions lean less towards it, and its residual is
        missing from the noise variances.
        """
        assert isinstance(prior, LowRankPrior)
        components, _, rows, which, weights, counts = pairs
        falls = np.zeros(components.shape[0])
        order = np.argsort(components, kind="stable")
        ends = np.flatnonzero(np.diff(components[order], prepend=-1, append=-1))
        size = max(1, _PAIR_NUMBERS // self.n_features)
        for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            k = int(components[order[first]])
            for start in range(first, last, size):
                some = order[start : min(start + size, last)]
                if k == prior.background:
                    continue
                # Where nothing was seen, a row is where the component is.
                away = np.nan_to_num(rows[which[some], : self.n_features] - model.location[k])
                falls[some] = self._falls(
                    model, prior, float(counts[some[0]]), k, away, weights[some]
                )
        return falls

    def _falls(
        self,
        model: Model,
        prior: LowRankPrior,
        count: float,
        k: int,
        away: np.ndarray,
        weights: np.ndarray,
    ) -> np.ndarray:
        noise, q, d = self.covariance_of(model, k)
        white = away / np.sqrt(noise)
        u = white @ q
        squares = np.einsum("nd,nd->n", white, white)
        f = d / (1.0 + d)
        distance = squares - np.square(u) @ f
        rest = np.maximum(count - weights, _LEAST_REST)
        moved = count / rest
        n_columns = float((1.0 - self.floors / noise).sum())
        values = unshrunk(d, np.asarray(n_columns / max(count, 1.0)))
        unexplained = np.maximum(squares - np.square(u).sum(axis=1), 0.0)
        lean = (weights / rest * unexplained)[:, None] / np.maximum(values - 1.0, 1e-12)
        left = u / (1.0 + lean)
        residual = np.square(white - (u * f) @ q.T)
        pseudo = prior.freedoms if prior.in_logarithms else max(prior.pseudo_rows, 0.0)
        freedom = max(count - 1.0, LEAST_FREEDOM) + pseudo
        ratios = freedom - (weights * moved)[:, None] * residual
        ratios /= np.maximum(freedom - weights[:, None], _LEAST_REST)
        # A column's noise that comes from other rows alone is known to be no less than this, unless
        # it is constant in them.
        least = np.minimum(self.floors / noise, _LEAST_LEFT) if prior.in_logarithms else _LEAST_LEFT
        ratios = np.maximum(ratios, least)
        plain = residual.sum(axis=1)
        grown = (residual / ratios).sum(axis=1) / np.maximum(plain, 1e-300)
        along = np.square(left) @ (f / (1.0 + d))
        far = np.maximum(squares - np.square(left) @ f - along, 0.0)
        without = np.square(moved) * (far * grown + along)
        falls = 0.5 * (np.log(ratios).sum(axis=1) + without - distance)
        return np.where(count - weights > FEWEST_ROWS, np.minimum(falls, _NOTHING), _NOTHING)

    def has_background(self, prior: Prior) -> bool:
        return isinstance(prior, LowRankPrior) and bool((prior.reach > 0.0).any())

    def background_log_densities(self, prior: Prior, rows: np.ndarray) -> np.ndarray:
        assert isinstance(prior, LowRankPrior)
        variances = np.square(prior.reach) + self.floors
        values = rows[:, : self.n_features]
        terms = np.log(2.0 * np.pi * variances) + np.square(values) / variances
        return np.asarray(-0.5 * np.where(np.isnan(values), 0.0, terms).sum(axis=1))

    def split(
        self, model: Model, moments: Moments, prior: Prior, uniforms: np.ndarray
    ) -> tuple[Moments, Moments]:
        assert isinstance(prior, LowRankPrior)
        layout, scatter = self.layout, moments.scatter.copy()
        variances, _, directions = layout.split(scatter)
        first = directions[:, :, 0] if self.rank else np.zeros_like(variances)
        values = eigenvalues(layout, scatter)[:, :1].sum(axis=1)
        long = np.sqrt(np.maximum(1.0 - 1.0 / np.maximum(values, 1.0), 0.0))
        shift = _SPLIT_DISTANCE * long[:, None] * first
        # Without a direction, along the column that is widest in units of the noise.
        none = np.flatnonzero(values <= 1.0 + 1e-9)
        widest = (variances[none] / np.maximum(prior.noise, 1e-280)).argmax(axis=1)
        shift[none] = 0.0
        shift[none, widest] = _SPLIT_DISTANCE * np.sqrt(variances[none, widest])
        # A constant column may be left with less than nothing by rounding.
        variances[:] = np.maximum(variances - np.square(shift), 0.0)
        if self.rank:
            kept = 1.0 - _SPLIT_DISTANCE**2 * (1.0 - 1.0 / np.maximum(values, 1.0))
            directions[:, :, 0] *= np.sqrt(kept)[:, None]
        return halves(moments._replace(scatter=scatter), mean=shift)

    def negative_entropy(self, moments: Moments, shared: np.ndarray) -> np.ndarray:
        plain = self.make_prior(moments, "none", 1.0)
        out = np.empty(moments.mass.shape[0])
        for some in self.layout.pieces(out.shape[0]):
            noise, d, _ = plain.estimate(moments.scatter[some], out[some])
            out[some] = -0.5 * (np.log(noise).sum(axis=1) + np.log1p(d).sum(axis=1))
        return out

    # Parameters.

    def parameters(self, model: Model, centre: np.ndarray) -> dict[str, np.ndarray]:
        """Loadings are as wide as the largest rank."""
        inverse, f, columns = self.layout.split(model.factor)
        f = np.maximum(f[:, : self.rank], 0.0)
        noise = 1.0 / np.square(inverse)
        width = int((f > 0.0).sum(axis=1).max(initial=0))
        scale = np.sqrt(f[:, :width] / (1.0 - f[:, :width]))
        loadings = columns[:, :, :width] * (noise[:, :, None] * scale[:, None, :])
        # Signs are arbitrary: the largest loading of a factor is positive.
        largest = np.take_along_axis(loadings, np.abs(loadings).argmax(axis=1)[:, None], axis=1)
        loadings = np.where(largest < 0.0, -loadings, loadings)
        made = {"means": model.location + centre, "loadings": loadings, "noise_variances": noise}
        if self.axes is None:
            return made
        loadings, means = self._back.T @ loadings, self.in_users_columns(made["means"])
        return made | {"means": means, "loadings": loadings, "axes": self.axes}

    def parameter_shapes(self, n_components: int) -> dict[str, tuple[int, ...]]:
        means = n_components, self.n_features
        shapes = {"means": means, "loadings": (*means, self.n_loadings), "noise_variances": means}
        D = self.n_features
        return shapes if self.axes is None else shapes | {"axes": (D, D)}

    def check_parameters(self, parameters: Parameters, prefix: str = "") -> None:
        noise = parameters["noise_variances"]
        if (noise <= 0.0).any():
            raise ValueError(
                f"{prefix}noise_variances must be positive, got a smallest value of "
                f"{float(noise.min())!r}."
            )

    def moments_of(self, parameters: Parameters, centre: np.ndarray) -> Moments:
        means, loadings, noise = self._in_coordinates(parameters)
        means = means - centre
        scatter = np.zeros((means.shape[0], self.layout.n_products))
        for k in range(means.shape[0]):
            q, d = canonical(loadings[k], noise[k])
            variances = noise[k] + np.square(loadings[k]).sum(axis=1)
            variances = np.maximum(variances - self.floors, 1e-3 * self.floors)
            out = scatter[k : k + 1]
            self.layout.write(
                out, variances, noise[k], q[None, :, : self.rank], 1.0 + d[: self.rank]
            )
        return moments_of_mass_one(mean=means, scatter=scatter)

    def _in_coordinates(self, parameters: Parameters) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Means, loadings and noise of the sweep's coordinates."""
        means, loadings = parameters["means"], parameters["loadings"]
        if self.axes is not None:
            means, loadings = means @ self.axes, self.axes.T @ loadings
        return means, loadings, parameters["noise_variances"]

    def n_parameters(self, n_components: int) -> int:
        # Of the cap, few directions are free: others are shrunk or absent.
        return n_components * self._n_free(min(self.rank, _FREE_DIRECTIONS))

    def n_parameters_of(self, parameters: Parameters, n_components: int) -> int:
        return sum(self._n_free(rank) for rank in ranks(parameters["loadings"]).tolist())

    def _n_free(self, rank: int) -> int:
        # Loadings are determined up to a rotation.
        return self.n_features * (rank + 2) - rank * (rank - 1) // 2

    def parts(self, parameters: Parameters, centre: np.ndarray) -> list[Part]:
        columns = np.arange(self.n_features)
        if self.axes is None:
            return [LowRankPart(columns, parameters, centre)]
        full = self.as_full(parameters)
        return [DensePart(columns, full["means"], full["covariances"], centre)]

    def for_gaps(self, parameters: Parameters) -> tuple[Family, Parameters]:
        if self.keeps_columns:
            return self, parameters
        return FullGaussian(self.n_features, 0.0), self.as_full(parameters)

    def as_full(self, parameters: Parameters) -> dict[str, np.ndarray]:
        """The same components with full covariances."""
        K, D = parameters["means"].shape
        if K * D * D > MOST_NUMBERS:
            raise ValueError(
                f'axes="principal" answers this by {K} matrices of {D} columns, which are too '
                'large. Fit with axes="columns".'
            )
        matrices = np.stack([self.covariance(parameters, k) for k in range(K)])
        return {"means": parameters["means"], "covariances": matrices}

    def factor_part(self, parameters: Parameters) -> LowRankPart:
        """The sweep's coordinates as a part."""
        means, loadings, noise = self._in_coordinates(parameters)
        parts = {"means": means, "loadings": loadings, "noise_variances": noise}
        return LowRankPart(np.arange(self.n_features), parts, np.zeros(self.n_features))

    def covariance(self, parameters: Parameters, k: int) -> np.ndarray:
        """The covariance (D, D) of one component."""
        loadings, noise = parameters["loadings"][k], parameters["noise_variances"][k]
        back = np.eye(self.n_features) if self.axes is None else self._back
        return np.asarray(loadings @ loadings.T + (back.T * noise) @ back)

    def restricted(self, n_columns: int) -> Family:
        """The family of some columns."""
        if self.axes is not None:
            return FullGaussian(n_columns, 0.0)
        return LowRankGaussian(n_columns, 0.0, self.n_loadings)

    def __reduce__(self) -> Any:
        made = self.n_features, self._reg_covar, self.n_loadings, self.layout.monotone, self.axes
        return LowRankGaussian, made
