"""Covariances of low rank, diag(s) (I + Q diag(d) Q') diag(s), as arrays.

Q (D, H) is orthonormal. A model holds 1 / s, f = d / (1 + d) and C = Q / s, so that with r = x - m
and u = C'r

    log p(x, k) = log w_k + c_k - 1/2 sum_j r_j^2 / s_j^2 + 1/2 sum_h f_h u_h^2.

Columns of C with f = 0 are spare: they are not evaluated, but statistics along them tell whether a
direction has become one. Those with f < 0 are not there. Moments hold variances, and the directions
that the rows of a component have been seen along: noise variances psi and
B = diag(psi)^(1/2) Q diag(lambda)^(1/2), with eigenvalues lambda of the scatter in units of psi.
Statistics hold variances and T = sum w r u' about the location and along the C of the model that
was swept with; only such of one model may be added.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator

import numpy as np

from pickmix.families.layout import Layout, make_layout

ABSENT = -1.0  # In place of f or d, of a column of C that is not there.
_PIECE_NUMBERS = 2**17  # Numbers of components worked on together.
_USUAL_WIDTH = 24  # Directions that are used of many.
_LEAST_PIVOT = 1e-8  # Squares of sines; columns nearer to dependent are made orthonormal by QR.


class LowRankLayout(Layout):
    """D coordinates with P = D (H + 2): variances, D more numbers, and H directions.

    Counts and levels may follow, which have no products.
    """

    width: int  # D.
    rank: int  # H, the largest.
    monotone: bool  # Whether M-steps are those of EM, which never lower the likelihood.

    @classmethod
    def of(
        cls, n_columns: int, rank: int, monotone: bool = False, joined: Layout | None = None
    ) -> LowRankLayout:
        """The layout of D columns, or of a product of families that begins with it."""
        if joined is None:
            base = make_layout([("diagonal", n_columns)])
            joined = base._replace(starts=base.starts * (rank + 2))
        made = cls(*joined)
        made.width, made.rank, made.monotone = n_columns, rank, monotone
        return made

    def beginning(self, joined: Layout) -> LowRankLayout:
        return LowRankLayout.of(self.width, self.rank, self.monotone, joined)

    @property
    def n_others(self) -> int:
        """Columns of counts and levels."""
        return self.n_columns - self.width

    def origin(self, location: np.ndarray) -> np.ndarray:
        """A location (C,) as an origin of rows, about which counts and levels are as they are."""
        return np.append(location[: self.width], np.zeros(self.n_others))

    @property
    def kernels(self) -> str:
        return "low_rank"

    @property
    def is_diagonal(self) -> bool:
        return False

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Equal numbers where variances are."""
        D = self.width
        i, j = np.zeros(self.n_products, dtype=np.int64), np.full(self.n_products, -1)
        i[:D] = j[:D] = np.arange(D)
        return i, j

    def products(self, points: np.ndarray) -> np.ndarray:
        """Squares, and nothing along directions: statistics are about locations there."""
        out = np.zeros((points.shape[0], self.n_products))
        np.square(points[:, : self.width], out=out[:, : self.width])
        return out

    def work(self) -> float:
        # Products of matrices are as fast in NumPy.
        return 0.0

    def split(self, packed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Views (n, D), (n, D) and (n, D, H) of packed numbers (n, P), direction by direction.

        Of narrower ones, (n, D (w + 2)), there are w directions.
        """
        D = self.width
        directions = packed[:, 2 * D :].reshape(packed.shape[0], packed.shape[1] // D - 2, D)
        return packed[:, :D], packed[:, D : 2 * D], directions.transpose(0, 2, 1)

    def used(self, directions: np.ndarray) -> np.ndarray:
        """Directions (n, D, w) of moments without those that are zero for all n."""
        n = _n_used(directions.shape[2], lambda place: bool(directions[:, :, place].any()))
        return directions[:, :, :n]

    def parts(
        self, factors: np.ndarray, some: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """1 / s (n, D), f (n, c) and C (n, D, c) of components (n,) of a model's factors (K, P)."""
        D = self.width
        shares = factors[some, D : D + self.rank]
        c = int((shares >= 0.0).sum(axis=1).max(initial=0))
        inverse, _, columns = self.split(factors[some, : (c + 2) * D])
        return inverse, shares[:, :c], columns

    def narrow(self, packed: np.ndarray, some: np.ndarray) -> np.ndarray:
        """Packed moments (n, D (w + 2)) of components (n,), without directions that none has.

        What most components leave empty is most of the memory of a high rank: it is not touched.
        """
        D = self.width
        shaped = packed.reshape(packed.shape[0], self.rank + 2, D)
        n = _n_used(self.rank, lambda place: bool(shaped[some, place + 2].any()))
        return np.asarray(shaped[some, : n + 2].reshape(some.shape[0], (n + 2) * D))

    def put(self, packed: np.ndarray, some: np.ndarray, narrow: np.ndarray) -> None:
        """Replace components (n,) of packed numbers (K, P) by narrow ones (n, D (w + 2))."""
        n, D = narrow.shape[1] // self.width, self.width
        shaped = packed.reshape(packed.shape[0], self.rank + 2, D)
        while n < self.rank + 2 and shaped[some, n].any():
            shaped[some, n] = 0.0
            n += 1
        packed[some, : narrow.shape[1]] = narrow

    def take(self, scatters: np.ndarray, some: np.ndarray) -> np.ndarray:
        narrow = self.narrow(scatters, some)
        out = np.zeros((some.shape[0], self.n_products))
        out[:, : narrow.shape[1]] = narrow
        return out

    def pieces(self, n: int, first: int = 0) -> Iterator[slice]:
        """Ranges that cover first, ..., n - 1, of as many components as the cache holds."""
        size = max(1, _PIECE_NUMBERS // (self.width * min(self.rank + 2, _USUAL_WIDTH)))
        for start in range(first, n, size):
            yield slice(start, min(start + size, n))

    def mixed_scatters(
        self,
        shares: np.ndarray,
        scatters: np.ndarray,
        away: np.ndarray,
        labels: np.ndarray,
        n_groups: int,
    ) -> np.ndarray:
        out = np.zeros((n_groups, self.n_products))
        by_group = np.argsort(labels, kind="stable")
        ends = np.searchsorted(labels[by_group], np.arange(n_groups + 1))
        for group in range(n_groups):
            some = by_group[ends[group] : ends[group + 1]]
            if some.shape[0] == 1 and not away[some, : self.width].any():
                out[group] = scatters[some[0]]
            elif some.shape[0]:
                its = self.narrow(scatters, some)
                self._mix(shares[some], list(its), away[some], out[group : group + 1])
        return out

    def merged_scatters(
        self, share: np.ndarray, one: np.ndarray, other: np.ndarray, away: np.ndarray
    ) -> np.ndarray:
        out, every = np.zeros(one.shape), np.arange(one.shape[0])
        one, other = self.narrow(one, every), self.narrow(other, every)
        for n, part in enumerate(share[:, 0].tolist()):
            shares = np.array([1.0 - part, part])
            apart = np.stack([-part * away[n], (1.0 - part) * away[n]])
            self._mix(shares, [one[n], other[n]], apart, out[n : n + 1])
        return out

    def _mix(
        self, shares: np.ndarray, scatters: list[np.ndarray], away: np.ndarray, out: np.ndarray
    ) -> None:
        """Write the scatter of one group of components into out (1, P), exact but for its rank.

        The covariance of a group is F F' + diag psi with F of all loadings and distances; what is
        dropped of it stays in the variances.
        """
        away = away[:, : self.width]
        columns, noise, total = [], np.zeros(self.width), shares @ np.square(away)
        for share, scatter in zip(shares.tolist(), scatters, strict=True):
            (variances,), (reference,), (directions,) = self.split(scatter[None])
            (values,) = eigenvalues(self, scatter[None])
            some = np.flatnonzero(values > 1.0)
            columns.append(directions[:, some] * np.sqrt(share * (1.0 - 1.0 / values[some])))
            noise += share * np.where(reference > 0.0, reference, variances)
            total += share * variances
        noise = np.maximum(noise, 1e-8 * total)
        loadings = np.concatenate([*columns, (np.sqrt(shares)[:, None] * away).T], axis=1)
        q, d = canonical(loadings, noise)
        self.write(out, total, noise, q[None, :, : self.rank], 1.0 + d[: self.rank])

    def times(self, scatters: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Scatters (n, P) times columns (n, D, c)."""
        variances, reference, directions = self.split(scatters)
        noise = np.where(reference > 0.0, reference, variances + 1e-280)
        values, deviations = eigenvalues(self, scatters), np.sqrt(noise)[:, :, None]
        q = self.used(directions) / deviations
        q /= np.sqrt(np.where(values > 0.0, values, 1.0))[:, None, :]
        squares = np.square(q)
        rest = variances / noise - (squares @ values[:, :, None])[:, :, 0]
        rest = np.maximum(rest, 0.0) / np.maximum(1.0 - squares.sum(axis=2), 1e-3)
        white = deviations * columns
        along = q.transpose(0, 2, 1) @ white
        out = q @ (values[:, :, None] * along) + rest[:, :, None] * (white - q @ along)
        return np.asarray(deviations * out)

    def write(
        self,
        out: np.ndarray,
        variances: np.ndarray,
        noise: np.ndarray,
        q: np.ndarray,
        values: np.ndarray,
    ) -> None:
        """Write moments of components, of q (n, D, c), into out (n, P), which is zero."""
        total, reference, directions = self.split(out)
        total[:], reference[:] = variances, noise
        c = q.shape[2]
        np.multiply(q, np.sqrt(values)[..., None, :], out=directions[:, :, :c])
        directions[:, :, :c] *= np.sqrt(noise)[..., None]


def _n_used(most: int, is_used: Callable[[int], bool]) -> int:
    """How many places of 0, ..., most - 1 are used; the used ones come first."""
    return bisect.bisect_left(range(most), True, key=lambda place: not is_used(place))


def eigenvalues(layout: LowRankLayout, scatters: np.ndarray) -> np.ndarray:
    """Eigenvalues lambda (n, w) of scatters (n, P) in units of the noise; 0 where there is none."""
    _, noise, directions = layout.split(scatters)
    precisions = 1.0 / np.where(noise > 0.0, noise, 1.0)
    return np.asarray((precisions[:, None, :] @ np.square(layout.used(directions)))[:, 0])


def orthonormal(columns: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Q (n, D, c) and falling values with Q diag(values) Q' = columns diag(d) columns', Q'Q = I.

    Columns with d = ABSENT are zero, and are so in Q.
    """
    if not columns.shape[2]:
        return columns, d
    gram = columns.transpose(0, 2, 1) @ columns
    diagonal = np.arange(columns.shape[2])
    gram[:, diagonal, diagonal] += d == ABSENT
    lower, sound = np.zeros_like(gram), np.zeros(gram.shape[0], dtype=np.bool_)
    try:
        lower = np.linalg.cholesky(gram)
        pivots = np.square(lower[:, diagonal, diagonal]) / gram[:, diagonal, diagonal]
        sound = pivots.min(axis=1) > _LEAST_PIVOT
    except np.linalg.LinAlgError:
        pass
    inverse = np.zeros_like(gram)
    inverse[:, diagonal, diagonal] = 1.0
    inverse[sound] = np.linalg.inv(lower[sound])
    if not sound.all():
        columns = columns.copy()
        for n in np.flatnonzero(~sound).tolist():
            some = np.flatnonzero(d[n] != ABSENT)
            columns[n][:, some], upper = np.linalg.qr(columns[n][:, some])
            lower[n] = np.eye(d.shape[1])
            lower[n][np.ix_(some, some)] = upper.T
    values, vectors = np.linalg.eigh((lower.transpose(0, 2, 1) * d[:, None, :]) @ lower)
    turned = inverse.transpose(0, 2, 1) @ vectors[:, :, ::-1]
    return columns @ turned, values[:, ::-1]


def canonical(loadings: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Q (D, c) and falling d of loadings (D, c): L L' + diag(noise) = s (I + Q diag(d) Q') s."""
    columns = loadings / np.sqrt(noise)[:, None]
    values, vectors = np.linalg.eigh(columns.T @ columns)
    values, vectors = values[::-1], vectors[:, ::-1]
    some = values > max(1e-13 * float(values.max(initial=0.0)), 1e-13)
    d = values[some]
    return columns @ (vectors[:, some] / np.sqrt(d)), d


def whitened_step(scatter: np.ndarray, deviations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One step of subspace iteration: directions (n, D, c) and eigenvalues (n, c), falling.

    `scatter` (n, D, c) is that of the rows times C; in units of the deviations s (n, D) it is the
    whitened scatter times Q, whose leading eigenvectors are sought (Jöreskog 1967).
    """
    product = scatter / deviations[:, :, None]
    values, vectors = np.linalg.eigh(product.transpose(0, 2, 1) @ product)
    values, vectors = np.sqrt(np.maximum(values[:, ::-1], 0.0)), vectors[:, :, ::-1]
    least = 1e-7 * np.maximum(values.max(axis=1, initial=0.0), 1e-300)
    values = np.where(values > least[:, None], values, 0.0)
    return product @ (vectors / np.where(values > 0.0, values, np.inf)[:, None, :]), values


def em_step(
    scatter: np.ndarray, variances: np.ndarray, c: np.ndarray, f: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """EM step of a factor analyser with mean known: loadings (D, c) and noise variances (D,).

    `scatter` (D, c) is that of the rows times C, `variances` (D,) its diagonal. With the mean at
    that of the rows it is a step of AECM (Meng and van Dyk 1997): the likelihood never falls.
    """
    d = f / (1.0 - f)
    gains = np.sqrt(d) / (1.0 + d)
    cross = scatter * gains
    second = np.diag(1.0 / (1.0 + d)) + gains[:, None] * (c.T @ cross)
    loadings = np.linalg.solve(0.5 * (second + second.T), cross.T).T
    noise = variances - np.einsum("dh,dh->d", loadings, cross)
    return loadings, np.maximum(noise, 1e-10 * variances + 1e-280)


def shrunk(values: np.ndarray, ratio: float | np.ndarray) -> np.ndarray:
    """Variances d (c,) of new rows along sample directions with eigenvalues lambda (c,).

    `ratio` is c = D / n. An eigenvalue below (1 + sqrt c)^2 may be noise, and gives 0; others are
    shrunk to (l - 1) cos^2, with l the population's eigenvalue and cos^2 that of the angle between
    its direction and the sample's (Donoho, Gavish and Johnstone 2018).
    """
    some = values > np.square(1.0 + np.sqrt(ratio))
    raised = np.where(some, values + 1.0 - ratio, 3.0)
    under = np.maximum(np.square(raised) - 4.0 * np.where(some, values, 1.0), 0.0)
    y = 0.5 * (raised + np.sqrt(under)) - 1.0
    return np.where(some, np.maximum((np.square(y) - ratio) / (y + ratio), 0.0), 0.0)


def unshrunk(d: np.ndarray, ratio: np.ndarray) -> np.ndarray:
    """The eigenvalues lambda that `shrunk` makes d of."""
    y = 0.5 * (d + np.sqrt(np.square(d) + 4.0 * ratio * (1.0 + d)))
    return np.asarray((1.0 + y) * (1.0 + ratio / np.maximum(y, 1e-300)))
