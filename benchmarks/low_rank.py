"""Low-rank covariances on wide rows, beside a plain mixture of factor analysers and scikit-learn.

    python benchmarks/low_rank.py embeddings ROWS.npz [METHOD ...]
    python benchmarks/low_rank.py mixed ROWS.npz
    python benchmarks/low_rank.py generated [ROWS [COLUMNS]]
    python benchmarks/low_rank.py visits
    python benchmarks/low_rank.py digits
    python benchmarks/low_rank.py gaps
    python benchmarks/low_rank.py tables FILE.npz ...

"embeddings" takes an archive with an array X (N, D), adds noise of deviation 0.05 (values after a
ReLU are tied at zero), fits to four fifths of the rows and prints nats per row of the others, with
processor seconds. "mixed" fits tables of the same rows beside a category of twelve levels: clusters
of k-means, and any level for a fifth of the rows. "generated" fits 200 clusters of low rank, and
compares with the truth. "visits" prints microseconds of one thread for the visit of a row, with 100
components in blocks of 25.
"digits" fits pictures whose borders are tied, plain, on a larger canvas and enlarged. "gaps" hides
a fifth of the cells of 100 columns, and compares with complete rows and with filled ones. "tables"
compares rank 5 with diagonal covariances on arrays X (without rows of y = 1). All add lines to
benchmarks/results/low_rank_NAME.csv.
"""

from __future__ import annotations

import csv
import os
import resource
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from scipy.ndimage import zoom
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.decomposition import FactorAnalysis
from sklearn.impute import KNNImputer
from sklearn.mixture import GaussianMixture as SklearnMixture

from pickmix import GaussianMixture, TableMixture
from pickmix.closed_form.chains import Chains
from pickmix.closed_form.state import MixtureState
from pickmix.data.rows import ArrayRows, Batches
from pickmix.families.low_rank import LowRankGaussian
from pickmix.kernels import numpy_kernels
from pickmix.selection.partitions import draw_partition
from pickmix.selection.randomness import StepRandomness

N_COMPONENTS = 50
TRUE_CLUSTERS, TRUE_RANK = 200, 8
RESULTS = Path(os.environ.get("PICKMIX_BENCH_OUT", Path(__file__).parent / "results"))


def record(name: str, **values: object) -> None:
    """Print a line and add it to the file of a study, with the load of the machine."""
    line = {
        key: round(value, 3) if isinstance(value, float) else value for key, value in values.items()
    } | {"load": round(os.getloadavg()[0], 1)}
    print(", ".join(f"{key} {value}" for key, value in line.items()), flush=True)
    path = RESULTS / f"low_rank_{name}.csv"
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, line, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(line)


class PlainFactorAnalysers:
    """Mixture of factor analysers by EM (Ghahramani and Hinton 1996), every component on all."""

    def __init__(self, n_components: int, rank: int, max_iter: int = 60, tol: float = 1e-2) -> None:
        self.K, self.H, self.max_iter, self.tol = n_components, rank, max_iter, tol

    def fit(self, X: np.ndarray) -> PlainFactorAnalysers:
        labels = KMeans(self.K, n_init=1, random_state=0).fit_predict(X)
        self.weights = np.bincount(labels, minlength=self.K) / len(X)
        self.means = np.stack([X[labels == k].mean(axis=0) for k in range(self.K)])
        noise = np.stack([X[labels == k].var(axis=0) for k in range(self.K)])
        self.noise = noise + 1e-3 * X.var()
        drawn = np.random.default_rng(0).normal(size=(self.K, X.shape[1], self.H))
        self.loadings = 0.1 * drawn * np.sqrt(self.noise)[:, :, None]
        before = -np.inf
        for self.n_iter in range(1, self.max_iter + 1):  # noqa: B020
            joint = self._log_joints(X)
            value = float(np.logaddexp.reduce(joint).mean())
            shares = np.exp(joint - np.logaddexp.reduce(joint))
            for k in range(self.K):
                self._update(X, k, shares[k])
            self.weights = shares.mean(axis=1)
            if value - before < self.tol:
                break
            before = value
        return self

    def _factors(self, X: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Deviations, expected factors, their covariance, and the log-determinant."""
        weighted = self.loadings[k] / self.noise[k][:, None]
        precision = np.eye(self.H) + self.loadings[k].T @ weighted
        covariance, away = np.linalg.inv(precision), X - self.means[k]
        half = float(np.log(self.noise[k]).sum() + np.linalg.slogdet(precision)[1])
        return away, away @ weighted @ covariance, covariance, half

    def _log_joints(self, X: np.ndarray) -> np.ndarray:
        out = np.empty((self.K, len(X)))
        for k in range(self.K):
            away, z, _, logs = self._factors(X, k)
            scaled = away / self.noise[k]
            squares = (scaled * away).sum(axis=1) - ((scaled @ self.loadings[k]) * z).sum(axis=1)
            logs += X.shape[1] * np.log(2.0 * np.pi)
            out[k] = np.log(max(self.weights[k], 1e-300)) - 0.5 * (logs + squares)
        return out

    def _update(self, X: np.ndarray, k: int, shares: np.ndarray) -> None:
        _, z, covariance, _ = self._factors(X, k)
        n = max(float(shares.sum()), 1e-10)
        joined = np.column_stack([z, np.ones(len(X))])
        second = (joined * shares[:, None]).T @ joined
        second[: self.H, : self.H] += n * covariance
        cross = (X * shares[:, None]).T @ joined
        solved = np.linalg.solve(second + 1e-10 * np.eye(self.H + 1), cross.T).T
        self.loadings[k], self.means[k] = solved[:, : self.H], solved[:, self.H]
        variances = (shares @ np.square(X) - (solved * cross).sum(axis=1)) / n
        # Without a floor a component of few rows has no density.
        self.noise[k] = np.maximum(variances, 1e-3)

    def score(self, X: np.ndarray) -> float:
        return float(np.logaddexp.reduce(self._log_joints(X)).mean())


def methods() -> dict[str, object]:
    K = N_COMPONENTS
    low = {"covariance_type": "low_rank", "random_state": 0}
    return {
        "pickmix rank 5": GaussianMixture(K, rank=5, **low),
        "pickmix rank auto": GaussianMixture(K, **low),
        "pickmix diag": GaussianMixture(K, covariance_type="diag", random_state=0),
        "scikit-learn diag": SklearnMixture(K, covariance_type="diag", random_state=0),
        "FactorAnalysis 50": FactorAnalysis(50, random_state=0),
        "plain EM rank 5": PlainFactorAnalysers(K, 5),
        "plain EM rank 20": PlainFactorAnalysers(K, 20),
    }


def embeddings_of(path: str) -> np.ndarray:
    random = np.random.default_rng(0)
    X = np.load(path)["X"].astype(np.float64)
    X += random.normal(0.0, 0.05, X.shape)
    return np.asarray(X[random.permutation(len(X))])


def mixed(path: str) -> None:
    random, X = np.random.default_rng(1), embeddings_of(path)
    levels = KMeans(12, n_init=1, random_state=0).fit_predict(X)
    levels = np.where(random.random(len(X)) < 0.2, random.integers(12, size=len(X)), levels)
    table: dict[str, np.ndarray] = {f"e{j:03d}": column for j, column in enumerate(X.T)}
    table["level"] = np.array(list("abcdefghijkl"))[levels]
    n = 4 * len(X) // 5
    train = {name: values[:n] for name, values in table.items()}
    new = {name: values[n:] for name, values in table.items()}
    numbers = {name: values for name, values in new.items() if name != "level"}
    for kind in (
        {"covariance_type": "diag"},
        {"covariance_type": "low_rank", "rank": 5, "axes": "columns"},
        {"covariance_type": "low_rank", "rank": 5},
        {"covariance_type": "low_rank"},
    ):
        mixture = TableMixture(N_COMPONENTS, column_transform=None, random_state=0, **kind)
        began = time.process_time()
        mixture.fit(train)
        seconds = time.process_time() - began
        guessed = mixture.predict_columns(numbers, "level")
        record(
            "mixed",
            covariances=kind["covariance_type"],
            rank=kind.get("rank", "auto"),
            principal_axes=hasattr(mixture, "principal_axes_"),
            new=float(mixture.score(new)),
            numbers_alone=float(mixture.marginal(list(numbers)).score(numbers)),
            right_levels=float((guessed == new["level"]).mean()),
            cpu_seconds=seconds,
            iterations=mixture.n_iter_,
        )


def embeddings(path: str, wanted: list[str]) -> None:
    X = embeddings_of(path)
    train, new = np.split(X, [4 * len(X) // 5])
    for name, method in methods().items():
        if wanted and name not in wanted:
            continue
        began = time.process_time()
        method.fit(train)  # type: ignore[attr-defined]
        seconds = time.process_time() - began
        values = method.score(new), method.score(train)  # type: ignore[attr-defined]
        n_iter = getattr(method, "n_iter_", getattr(method, "n_iter", 0))
        record(
            "embeddings",
            method=name,
            new=float(values[0]),
            fitted=float(values[1]),
            cpu_seconds=seconds,
            iterations=n_iter,
        )


def generated(n_rows: int, n_columns: int) -> None:
    """Clusters with means, loadings and noise of their own, in float32."""
    random = np.random.default_rng(0)
    K, H = TRUE_CLUSTERS, TRUE_RANK
    means = random.normal(size=(K, n_columns))
    loadings = random.normal(size=(K, n_columns, H)) * 0.5
    noise = random.uniform(0.3, 1.0, (K, n_columns))
    n_all = n_rows + 5000
    labels = random.integers(K, size=n_all)
    X = np.empty((n_all, n_columns), dtype=np.float32)
    for k in range(K):
        its = np.flatnonzero(labels == k)
        drawn = random.normal(size=(its.size, H)) @ loadings[k].T + means[k]
        X[its] = drawn + np.sqrt(noise[k]) * random.normal(size=drawn.shape)
    truth = GaussianMixture(K, covariance_type="low_rank")
    truth.n_features_in_, truth.n_jobs = n_columns, 1
    parameters = {"means": means, "loadings": loadings, "noise_variances": noise}
    truth._set_parameters(np.full(K, 1.0 / K), parameters)
    began, clock = time.process_time(), time.perf_counter()
    mixture = GaussianMixture(K, covariance_type="low_rank", random_state=0).fit(X[:n_rows])
    cpu, wall = time.process_time() - began, time.perf_counter() - clock
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    new = X[n_rows:].astype(np.float64)
    record(
        "generated",
        rows=n_rows,
        columns=n_columns,
        new=float(mixture.score(new)),
        truth=float(truth.score(new)),
        cpu_seconds=cpu,
        seconds=wall,
        peak_gib=memory,
        rows_gib=X.nbytes / 2**30,
        usual_rank=int(np.bincount(mixture.ranks_).argmax()),
        passes=mixture.n_iter_,
        outcome=mixture.outcome_,
    )


def visits() -> None:
    for D, H in ((63, 5), (512, 10), (784, 10)):
        random, K = np.random.default_rng(0), 100
        means, loadings = random.normal(size=(K, D)) * 0.3, random.normal(size=(K, D, H)) * 0.5
        noise, chain = random.uniform(0.3, 1.0, (K, D)), random.integers(K, size=20_000)
        X = random.normal(size=(chain.size, D)) * np.sqrt(noise)[chain] + means[chain]
        X += np.einsum("ndh,nh->nd", loadings[chain], random.normal(size=(chain.size, H)))
        family, source = LowRankGaussian(D, 1e-6, H), ArrayRows(X)
        parameters = {"means": means, "loadings": loadings, "noise_variances": noise}
        moments = family.moments_of(parameters, source.center)
        moments.mass[:], moments.squares[:] = 1.0 / K, 1.0 / chain.size / K
        prior = family.make_prior(moments, "pooled", float(chain.size))
        state, times = MixtureState(family, moments, numpy_kernels, prior), []
        for t in range(1, 9):
            step = StepRandomness(0, t)
            positions, scales = state.positions(), state.scales()
            partition = draw_partition(positions, 32, 0.02, step, numpy_kernels, scales)
            chains = Chains(source, chain.astype(np.int32), Batches(chain.size, chain.size, 0))
            began = time.process_time()
            swept = chains.sweep(state, partition, t, step)
            middle = time.process_time()
            assert swept.statistics is not None
            state.absorb(swept.statistics, 1.0)
            times.append((middle - began, time.process_time() - middle))
        visit, step_m = 1e6 * np.min(times, axis=0) / chain.size
        record(
            "visits",
            columns=D,
            rank=H,
            sweep_us_per_row=float(visit),
            m_step_us_per_row=float(step_m),
        )


def digits() -> None:
    images = load_digits().images[np.random.default_rng(0).permutation(1797)]
    canvas = np.pad(images, ((0, 0), (10, 10), (10, 10)))
    tables = {"plain": images, "canvas": canvas, "enlarged": zoom(images, (1, 3.5, 3.5), order=1)}
    for name, pictures in tables.items():
        X = pictures.reshape(len(pictures), -1)
        for kind in ({"covariance_type": "diag"}, {"covariance_type": "low_rank", "rank": 5}):
            mixture = GaussianMixture(10, random_state=0, **kind).fit(X[:1400])
            scores = mixture.score_samples(X[1400:])
            record(
                "digits",
                pictures=name,
                covariances=kind["covariance_type"],
                mean=float(scores.mean()),
                median=float(np.median(scores)),
            )


def gaps() -> None:
    """Clusters of low rank in 100 columns: complete, with a fifth of the cells hidden, and filled.

    Densities are those of complete new rows, errors those of hidden cells of these.
    """
    K, D, H, n = 20, 100, 5, 6000
    for seed in range(3):
        random = np.random.default_rng(seed)
        means, loadings = random.normal(size=(K, D)), 0.5 * random.normal(size=(K, D, H))
        noise, labels = random.uniform(0.3, 1.0, (K, D)), random.integers(K, size=n + 2000)
        X = means[labels] + np.sqrt(noise)[labels] * random.normal(size=(labels.size, D))
        X += np.einsum("ndh,nh->nd", loadings[labels], random.normal(size=(labels.size, H)))
        seen = np.where(random.random(X.shape) < 0.2, np.nan, X)
        column_means = np.nanmean(seen[:n], axis=0)
        nearest = KNNImputer(n_neighbors=10)
        tables = {
            "complete": X[:n],
            "a fifth missing": seen[:n],
            "filled by means": np.where(np.isnan(seen[:n]), column_means, seen[:n]),
            "filled by 10 neighbours": nearest.fit_transform(seen[:n]),
        }
        hidden = np.isnan(seen[n:])
        for name, rows in tables.items():
            began = time.process_time()
            mixture = GaussianMixture(K, covariance_type="low_rank", axes="columns", random_state=0)
            mixture.fit(rows)
            seconds = time.process_time() - began
            error = (mixture.impute(seen[n:]) - X[n:])[hidden]
            record(
                "gaps",
                seed=seed,
                rows=name,
                new=float(mixture.score(X[n:])),
                error=float(np.sqrt(np.square(error).mean())),
                cpu_seconds=seconds,
            )
        for name, values in (
            ("means", np.where(hidden, column_means, X[n:])),
            ("10 neighbours", nearest.transform(seen[n:])),
        ):
            error = (values - X[n:])[hidden]
            print(f"seed {seed}, {name} alone: error {np.sqrt(np.square(error).mean()):.3f}")


def tables(paths: list[str]) -> None:
    for path in paths:
        with np.load(path, allow_pickle=True) as archive:
            X = np.asarray(archive["X"], dtype=np.float64)
            if "y" in archive:
                X = X[archive["y"] == 0]
        X = X[np.random.default_rng(0).permutation(len(X))[:5000]]
        line: dict[str, object] = {"table": Path(path).stem, "rows": len(X), "columns": X.shape[1]}
        for kind in ({"covariance_type": "diag"}, {"covariance_type": "low_rank", "rank": 5}):
            began, n = time.process_time(), 4 * len(X) // 5
            mixture = GaussianMixture(max(2, len(X) // 250), random_state=0, **kind).fit(X[:n])
            seconds, scores = time.process_time() - began, mixture.score_samples(X[n:])
            name = kind["covariance_type"]
            line |= {
                f"{name}_mean": float(scores.mean()),
                f"{name}_median": float(np.median(scores)),
                f"{name}_cpu_seconds": seconds,
            }
        record("tables", **line)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1] == "embeddings":
        embeddings(sys.argv[2], sys.argv[3:])
    elif sys.argv[1] == "mixed":
        mixed(sys.argv[2])
    elif sys.argv[1] == "tables":
        tables(sys.argv[2:])
    elif sys.argv[1] in ("visits", "digits", "gaps"):
        {"visits": visits, "digits": digits, "gaps": gaps}[sys.argv[1]]()
    else:
        sizes = [int(size) for size in sys.argv[2:4]]
        generated(*(sizes + [200_000, 1000][len(sizes) :]))
