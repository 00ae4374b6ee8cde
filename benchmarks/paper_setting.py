"""All algorithms of the paper's Table 1 at its setting (D, K, N, omega, B, M, T).

(10, 100, 10k, 0.1, 200, 2, 20k), from the paper's start, with its step sizes and anti-annealing.
Writes a table and one plot of the training log-likelihood against work time, and measures how
many MHSAEM-U steps fit into the time of one scikit-learn EM iteration on the same data.

    python benchmarks/paper_setting.py --out benchmarks/results
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
import warnings
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from sklearn.mixture import GaussianMixture as RivalMixture
from threadpoolctl import threadpool_limits

from pickmix import GaussianMixture
from pickmix.data.mixsim import generate

D, K, N, OMEGA, B, M = 10, 100, 10_000, 0.1, 200, 2
PAPER = {"batch_size": B, "n_samples": M, "step_size": "paper", "init_params": "paper"}
# (label, parameters, steps of EM-like algorithms that evaluate everything are fewer)
ALGORITHMS = {
    "EM": {"algorithm": "em"},
    "SAEM": {"algorithm": "saem"},
    "SSAEM": {"algorithm": "ssaem"},
    "TSAEM": {"algorithm": "tsaem"},
    "MCSAEM": {"algorithm": "mcsaem"},
    "MHSAEM-U": {"algorithm": "mhsaem", "proposal": "uniform"},
    "MHSAEM-TF": {"algorithm": "mhsaem", "proposal": "table-forgetting"},
    "MHSAEM-T": {"algorithm": "mhsaem", "proposal": "table"},
}


def fit_all(X, n_steps, n_em, seed):
    """Fit every algorithm; return (label, step, seconds, evaluations, log-likelihood) rows."""
    records = []
    for label, parameters in ALGORITHMS.items():
        steps = n_em if label == "EM" else n_steps
        exact = []

        def record(info, exact=exact):
            # Every pass at first, then every tenth: the plot's time axis is logarithmic.
            if info.step % 10 == 0 or info.step < 1000:
                exact.append((info.step, info.seconds, info.evaluations, info.estimator().score(X)))

        mixture = GaussianMixture(
            K,
            **PAPER,
            **parameters,
            annealing="anti",
            max_steps=steps,
            random_state=seed,
            callbacks=[record],
        ).fit(X)
        final = mixture.score(X)
        work = mixture.trace_["seconds"][-1]
        records += [(label, *entry) for entry in exact]
        records.append((label, steps, work, mixture.n_component_evaluations_, final))
        per_row = mixture.n_component_evaluations_ / mixture.trace_["epoch"][-1] / N
        print(
            f"{label:10s} steps {steps:6d}  work {work:7.2f} s  "
            f"evaluations/row/pass {per_row:6.1f}  "
            f"log-likelihood {final:8.4f}  live {mixture.trace_['live_components'][-1]:3d}",
            flush=True,
        )
    return records


def time_of_one_rival_iteration(X):
    """Seconds per EM iteration of scikit-learn, by the difference of a long and a short run."""

    def run(n_iterations):
        rival = RivalMixture(
            K, max_iter=n_iterations, tol=0.0, init_params="random_from_data", random_state=0
        )
        start = time.perf_counter()
        rival.fit(X)
        return time.perf_counter() - start

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (run(11) - run(1)) / 10


def time_of_one_step(X, n_steps=2000):
    """Seconds of work per MHSAEM-U step after warm-up."""
    mixture = GaussianMixture(
        K, **PAPER, **ALGORITHMS["MHSAEM-U"], max_steps=n_steps, random_state=0
    ).fit(X)
    half = mixture.trace_.size // 2
    trace = mixture.trace_
    return (trace["seconds"][-1] - trace["seconds"][half]) / (
        trace["step"][-1] - trace["step"][half]
    )


def compare_speed(X, repeats=5):
    """Median ratio of one scikit-learn iteration to one step, in alternation."""
    time_of_one_step(X, 500)  # compile
    rows = []
    for threads in (None, 1):
        with threadpool_limits(threads):
            ratios = []
            for _ in range(repeats):
                rival, ours = time_of_one_rival_iteration(X), time_of_one_step(X)
                ratios.append(rival / ours)
        rows.append(("default" if threads is None else "1", rival, ours, statistics.median(ratios)))
        print(
            f"BLAS threads {rows[-1][0]:8s} scikit-learn iteration {rival * 1e3:6.1f} ms, step "
            f"{ours * 1e6:6.1f} us: {rows[-1][3]:.0f} steps per iteration (median of {repeats})",
            flush=True,
        )
    return rows


def plot(records, true_score, path):
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    colours = [
        "#000000",
        "#56B4E9",
        "#CC79A7",
        "#D55E00",
        "#009E73",
        "#0072B2",
        "#E69F00",
        "#999999",
    ]
    for label, colour in zip(ALGORITHMS, colours, strict=True):
        rows = sorted(r[1:] for r in records if r[0] == label)
        seconds, scores = [r[1] for r in rows], [r[3] for r in rows]
        axes.plot(seconds, scores, label=label, color=colour, linewidth=1.5)
    axes.axhline(true_score, color="black", linestyle=":", linewidth=1, label="true mixture")
    axes.set(
        xscale="log",
        xlabel="work time (seconds)",
        ylabel="training log-likelihood per row",
        title=f"MixSim (D, K, N, ω, B, M) = ({D}, {K}, {N}, {OMEGA}, {B}, {M}), the paper's start",
    )
    axes.grid(alpha=0.3)
    axes.legend(ncols=2, fontsize=9)
    figure.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--em-iterations", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--speed-only", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    truth = generate(K, D, OMEGA, random_state=arguments.seed)
    X, _ = truth.sample(N, random_state=arguments.seed)
    true_score = float(truth.score_samples(X).mean())
    print(f"true mixture: {true_score:.4f}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    speed = compare_speed(X)
    with open(arguments.out / "paper_setting_speed.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["blas_threads", "sklearn_iteration_seconds", "step_seconds", "ratio"])
        writer.writerows(speed)
    if arguments.speed_only:
        return
    records = fit_all(X, arguments.steps, arguments.em_iterations, arguments.seed)
    with open(arguments.out / "paper_setting.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["algorithm", "step", "seconds", "evaluations", "log_likelihood"])
        writer.writerows([("true", 0, 0, 0, true_score), *records])
    plot(records, true_score, arguments.out / "paper_setting.png")


if __name__ == "__main__":
    main()
