"""`pickmix bench anomalies`: the detector on ADBench, beside 26 detectors with published values.

Sets are files adbench/NAME.npz in the folder that PICKMIX_DATA names, and the published areas are
adbench/published-semi.csv and published-unsup.csv (Livernoche and others 2024, vicliv/DTE on
GitHub). The protocols are theirs. At most 50,000 rows; sets under 1,000 rows are drawn with
replacement up to 1,000 first, so there test rows repeat fitted ones. Columns are standardised by
the rows of the fit.
*semi*: fitted to the first half of the normal rows, measured on the others. *unsup*: fitted to as
many rows as there are, drawn with replacement, measured on all.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.stats import rankdata
from sklearn.ensemble import IsolationForest
from sklearn.metrics import average_precision_score, roc_auc_score

from pickmix import MixtureDetector
from pickmix.cli.console import clear_errors
from pickmix.model.scales import WIDTHS, Tails
from pickmix_experiments.datasets import data_file
from pickmix_experiments.evidence import read

SETTINGS = ("semi", "unsup")
OURS, FOREST = "pickmix", "isolation forest"
# The detector without some of its parts: scales that count, and whether rows score themselves.
ABLATION = {
    "rows score themselves": (slice(None), True),
    "without single columns": (slice(0, -1), False),
    "single columns only": (slice(-1, None), False),
    "one component, all widths": (slice(0, len(WIDTHS)), False),
    "all components, all widths": (slice(-1 - len(WIDTHS), -1), False),
    "all components, least width": (slice(-1 - len(WIDTHS), -len(WIDTHS)), False),
}
_MOST_ROWS, _LEAST_ROWS = 50_000, 1000
_MOST_REFERENCE = 20_000


def read_set(path: Path, setting: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows to fit, rows to measure on, and whether these are anomalies."""
    with np.load(path, allow_pickle=True) as arrays:
        X, y = arrays["X"].astype(np.float64), arrays["y"].astype(np.int64)
    random = np.random.RandomState(seed)
    if len(y) < _LEAST_ROWS:
        chosen = random.choice(len(y), _LEAST_ROWS, replace=True)
        X, y = X[chosen], y[chosen]
    elif len(y) > _MOST_ROWS:
        chosen = random.choice(len(y), _MOST_ROWS, replace=False)
        X, y = X[chosen], y[chosen]
    fitted = measured = np.arange(len(y))
    if setting == "semi":
        normal, half = np.flatnonzero(y == 0), round(0.5 * np.count_nonzero(y == 0))
        fitted, measured = normal[:half], np.append(normal[half:], np.flatnonzero(y))
    mean, deviation = X[fitted].mean(axis=0), X[fitted].std(axis=0)
    rows = (X - mean) / np.where(deviation > 0.0, deviation, 1.0)
    if setting == "unsup":
        fitted = random.choice(fitted, len(fitted), replace=True)
    return rows[fitted], rows[measured], y[measured]


def _ablate(
    detector: MixtureDetector, fitted: np.ndarray, measured: np.ndarray
) -> dict[str, np.ndarray]:
    """Scores of rows by a fitted detector without some of its parts."""
    densities, rows = {}, [detector._read(X) for X in (fitted, measured)]
    for novelty in (False, True):
        detector.novelty = novelty
        densities[novelty] = [detector._log_densities(X) for X in rows]
    scores = {}
    for name, (scales, self_scored) in ABLATION.items():
        reference, found = (part[scales] for part in densities[self_scored])
        scores[name] = -Tails.of(reference).surprise(found).max(axis=0)
    return scores


def measure(path: Path, setting: str, seed: int, ablation: bool) -> dict[str, Any]:
    """Areas, average precisions and seconds of all methods on one set."""
    fitted, measured, y = read_set(path, setting, seed)
    result: dict[str, Any] = {"set": path.stem, "setting": setting, "seed": seed}
    result |= {"n_rows": len(fitted), "n_columns": fitted.shape[1], "methods": {}}
    # What the settings say about the rows of the fit: all of them are normal, or nothing.
    detector = MixtureDetector(random_state=seed, novelty=setting == "semi")
    for name, method in ((OURS, detector), (FOREST, IsolationForest(random_state=seed))):
        start = time.process_time()
        scores = method.fit(fitted).score_samples(measured)
        seconds = time.process_time() - start
        result["methods"][name] = _areas(y, scores) | {"seconds": seconds}
    if setting == "semi":
        scores = MixtureDetector(random_state=seed).fit(fitted).score_samples(measured)
        result["methods"][f"{OURS}, novelty=False"] = _areas(y, scores)
    if ablation:
        reference = fitted[np.random.RandomState(seed).permutation(len(fitted))[:_MOST_REFERENCE]]
        for name, scores in _ablate(detector, reference, measured).items():
            result["methods"][name] = _areas(y, scores)
    return result


def _areas(y: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    area = 100.0 * roc_auc_score(y, -scores)
    return {"area": area, "precision": 100.0 * average_precision_score(y, -scores)}


def read_published(folder: Path, setting: str) -> tuple[list[str], dict[str, np.ndarray]]:
    """Names of detectors, and their areas (26,) on each set."""
    with (folder / f"published-{setting}.csv").open(encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    return header[2:], {line[0]: np.array(line[2:], dtype=np.float64) for line in lines}


def summarise(results: Iterable[dict[str, Any]], folder: Path) -> str:
    """Means over seeds and sets, and mean ranks among published detectors, as Markdown."""
    by_case: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in results:
        by_case.setdefault((result["setting"], result["set"]), []).append(result)
    lines: list[str] = []
    for setting in SETTINGS:
        names, published = read_published(folder, setting)
        # Held in the published table only; other files are measured but not ranked.
        sets = [name for case, name in by_case if case == setting and name in published]
        if not sets:
            continue
        large = [name for name in sets if by_case[setting, name][0]["n_drawn_from"] >= _LEAST_ROWS]
        for title, chosen in (("all sets", sets), ("sets of at least 1,000 rows", large)):
            if chosen:
                lines += _table(f"{setting}, {title}", chosen, by_case, setting, names, published)
    return "\n".join(lines) + "\n"


def _table(
    title: str,
    sets: list[str],
    by_case: dict[tuple[str, str], list[dict[str, Any]]],
    setting: str,
    names: list[str],
    published: dict[str, np.ndarray],
) -> list[str]:
    def mean(name: str, method: str, what: str) -> float:
        values = [r["methods"].get(method, {}).get(what, np.nan) for r in by_case[setting, name]]
        return float(np.mean(values))

    theirs = np.stack([published[name] for name in sets])
    ours = np.array([mean(name, OURS, "area") for name in sets])
    ranks = rankdata(-np.column_stack([theirs, ours]), axis=1).mean(axis=0)
    seeds = sorted({result["seed"] for name in sets for result in by_case[setting, name]})
    lines = [f"## {title}: {len(sets)} sets, seeds {seeds}", ""]
    lines += [
        "| method | mean AUC | average precision | mean rank | processor seconds: median, most |"
    ]
    lines += ["|---|---|---|---|---|"]
    results = [result for name in sets for result in by_case[setting, name]]
    for method in [m for m in results[0]["methods"] if m not in ABLATION]:
        area, precision = (
            np.mean([mean(n, method, w) for n in sets]) for w in ("area", "precision")
        )
        seconds = np.array([mean(name, method, "seconds") for name in sets])
        timed = "" if np.isnan(seconds).any() else f"{np.median(seconds):.1f}, {seconds.max():.1f}"
        rank = f"{ranks[-1]:.2f}" if method == OURS else ""
        lines.append(f"| {method} | {area:.2f} | {precision:.2f} | {rank} | {timed} |")
    for number in np.argsort(-theirs.mean(axis=0))[:5]:
        area, rank = theirs[:, number].mean(), ranks[number]
        lines.append(f"| {names[number]} (published) | {area:.2f} | | {rank:.2f} | |")
    best = int(np.argmin(ranks[:-1]))
    lines += ["", f"Best mean rank of the published: {names[best]}, {ranks[best]:.2f}.", ""]
    ablated = [result["methods"] for result in results if result["ablation"]]
    for method in [OURS, *ABLATION] if ablated else []:
        area, precision = (
            np.mean([methods[method][what] for methods in ablated])
            for what in ("area", "precision")
        )
        lines.append(f"- {method}: {area:.2f}, {precision:.2f} ({len(ablated)} runs)")
    return [*lines, ""]


@click.command()
@click.option("--set", "sets", multiple=True, metavar="NAME", help="File; repeat. [all]")
@click.option("--setting", type=click.Choice(SETTINGS), multiple=True, help="[both]")
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option(
    "--ablation", is_flag=True, help="Also measure the detector without some of its parts."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("pickmix-bench"),
    metavar="DIR",
    show_default=True,
    help="Folder for the results. Runs that it already holds are not repeated.",
)
@clear_errors
def anomalies(
    sets: tuple[str, ...], setting: tuple[str, ...], seeds: int, ablation: bool, out: Path
) -> None:
    """Compare the detector of unusual rows with 26 published ones, on ADBench.

    The sets are files adbench/NAME.npz in the folder that the environment variable PICKMIX_DATA
    names, with the published values beside them. The folder of results gets anomalies.jsonl, a line
    of JSON per set, setting and seed, and anomalies.md. After Ctrl-C, the same command resumes
    where it stopped.

    \b
    Examples:
      pickmix bench anomalies --seeds 1 --out results
      pickmix bench anomalies --set 6_cardio --set 45_wine --ablation --out results
    """
    folder = data_file("ADBench", "adbench/published-semi.csv").parent
    files = {
        path.stem: path for path in sorted(folder.glob("*.npz"), key=lambda p: p.stat().st_size)
    }
    for name in sets:
        if name not in files:
            raise ValueError(f"--set: expected one of {', '.join(files)}, got {name!r}")
    out.mkdir(parents=True, exist_ok=True)
    store = out / "anomalies.jsonl"
    results = read(store)
    known = {(r["set"], r["setting"], r["seed"], r["ablation"]) for r in results}
    for seed in range(seeds):
        for name in sets or files:
            for case in setting or SETTINGS:
                if known & {(name, case, seed, ablation), (name, case, seed, True)}:
                    continue
                with np.load(files[name], allow_pickle=True) as arrays:
                    n_rows = len(arrays["y"])
                result = measure(files[name], case, seed, ablation)
                result |= {"ablation": ablation, "n_drawn_from": n_rows}
                results.append(result)
                with store.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")
                ours = result["methods"][OURS]
                click.echo(
                    f"{name}, {case}, seed {seed}: {ours['area']:.2f}, {ours['seconds']:.1f} s"
                )
    page = summarise(results, folder)
    (out / "anomalies.md").write_text(page, encoding="utf-8")
    click.echo(page)
