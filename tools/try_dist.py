"""Try a wheel and a source distribution as users get them, on every Python at hand.

    python tools/try_dist.py dist

Each is installed into a new virtual environment, without anything of this clone in sight, and used:
import, version, the command line on a small file, a report, a deep fit with the extra. The newest
Python also fits the embedded example, which compiles, and logs a fit to MLflow. Prints sizes and
seconds, and ends with an error at the first thing that fails. Needs the standard library only, and
a package index for pip.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

OLDEST = (3, 11)
# What is in the source distribution, to build and to test; and what must not be.
NEEDED = ("pyproject.toml", "README.md", "LICENSE", "Makefile", "src/pickmix/__init__.py")
NEEDED += ("tests/conftest.py", "requirements/test.txt", "docs/architecture.md", "CHANGELOG.md")
NEEDED += ("experiments/pyproject.toml",)
UNWANTED = ("/_build/", "/.venv", "__pycache__", "/.cache/", "/.git/", "/auto_examples/", ".pyc")

USE = """
import pathlib, sys
import numpy as np
import pickmix
assert pickmix.__version__ == {version!r}, pickmix.__version__
assert pathlib.Path(pickmix.__file__).is_relative_to(sys.prefix), pickmix.__file__
assert (pathlib.Path(pickmix.__file__).parent / "py.typed").exists()
X = np.random.default_rng(0).normal(size=(200, 2))
mixture = pickmix.GaussianMixture(3, random_state=0).fit(X)
assert "GaussianMixture" in mixture._repr_html_()
again = pickmix.load(pickmix.save(mixture, "python.npz"))
assert (again.score_samples(X) == mixture.score_samples(X)).all()
for name in pickmix.__all__:
    try:
        getattr(pickmix, name)
    except ImportError as error:
        assert "pip install 'pickmix[" in str(error), name
"""
LOG = """
import mlflow, numpy as np, pickmix
from pickmix.callbacks import MLflowCallback
mlflow.set_tracking_uri("runs")
X = np.random.default_rng(0).normal(size=(200, 2))
with mlflow.start_run() as run:
    mixture = pickmix.GaussianMixture(2, random_state=0, callbacks=MLflowCallback()).fit(X)
logged = mlflow.MlflowClient().get_metric_history(run.info.run_id, "log_likelihood")
assert [metric.value for metric in logged] == mixture.trace_["log_likelihood"].tolist()
"""


def find_pythons() -> dict[tuple[int, int], str]:
    """An interpreter of each version that can make environments: on the path, and of pyenv."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    folders += [str(folder) for folder in sorted(pyenv.glob("*/bin"))]
    candidates = [getattr(sys, "_base_executable", sys.executable)]
    for minor in range(OLDEST[1], 30):
        for folder in folders:
            found = shutil.which(f"python3.{minor}", path=folder)
            if found:
                candidates.append(found)
    pythons: dict[tuple[int, int], str] = {}
    ask = "import sys, venv, ensurepip; print(*sys.version_info[:2], sys.prefix == sys.base_prefix)"
    for candidate in candidates:
        # The starters of pyenv are there for versions that are not switched on, and then fail.
        answer = subprocess.run([candidate, "-c", ask], capture_output=True, text=True)
        if answer.returncode:
            continue
        major, minor, is_base = answer.stdout.split()
        version = int(major), int(minor)
        if version >= OLDEST and is_base == "True":
            pythons.setdefault(version, candidate)
    return dict(sorted(pythons.items()))


class Trial:
    """One distribution in one environment.

    Parameters
    ----------
    python : str
        The interpreter.
    archive : Path
        Wheel or source distribution.
    folder : Path
        For the environment and all that is written.
    """

    def __init__(self, python: str, archive: Path, folder: Path) -> None:
        self.archive, self.folder = archive, folder
        self.seconds: dict[str, float] = {}
        self.bin = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        # Nothing of the clone, of another environment or of an earlier trial.
        hidden = ("PYTHON", "VIRTUAL_ENV", "NUMBA_", "MAKE", "JAX_", "XLA_")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
        self.environment |= {"XDG_CACHE_HOME": str(folder / "cache")}
        self.environment |= {"NUMBA_CACHE_DIR": str(folder / "numba")}
        folder.mkdir(parents=True)
        self.run("environment", python, "-m", "venv", str(folder / "venv"))

    def run(self, what: str, *command: str) -> str:
        """Run a command in the folder, and note its time; a failure ends everything."""
        started = time.perf_counter()
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - started
        if done.returncode:
            shown = " ".join(command)
            sys.exit(f"{self.archive.name}: {what} failed\n{shown}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def install(self, what: str, extra: str = "") -> None:
        """Install the distribution, with an extra perhaps."""
        self.run(
            what,
            str(self.bin / "python"),
            *("-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            f"pickmix{extra} @ {self.archive.resolve().as_uri()}",
        )

    def pickmix(self, what: str, *arguments: str) -> str:
        """Run the command line."""
        return self.run(what, str(self.bin / "pickmix"), *arguments)


def try_one(trial: Trial, version: str, whole: bool) -> None:
    """Use an installation as its user would; `whole` also fits what has to be compiled."""
    trial.install("install")
    use = USE.format(version=version)
    trial.run("use", str(trial.bin / "python"), "-W", "error", "-c", use)
    if version not in trial.pickmix("use", "--version"):
        sys.exit(f"{trial.archive.name}: pickmix --version does not say {version}")
    rows = trial.folder / "rows.csv"
    draw = random.Random(0)
    lines = [f"{draw.gauss(k % 3 * 5, 1)},{draw.gauss(-(k % 3) * 5, 1)}" for k in range(300)]
    rows.write_text("\n".join(["width,height", *lines]) + "\n")
    trial.pickmix("fit", "fit", "rows.csv", "--components", "3", "--seed", "0", "--out", "model")
    trial.pickmix("fit", "score", "model", "rows.csv", "--out", "scores.csv")
    if len((trial.folder / "scores.csv").read_text().split()) < 300:
        sys.exit(f"{trial.archive.name}: fewer scores than rows")
    trial.pickmix("report", "report", "model", "rows.csv", "--out", "report.html")
    if "</html>" not in (trial.folder / "report.html").read_text(encoding="utf-8"):
        sys.exit(f"{trial.archive.name}: the report is no page")
    trial.install("install deep", "[deep]")
    deep = ("--model", "flow", "--components", "2", "--max-steps", "40", "--out", "deep")
    trial.pickmix("deep fit", "fit", "rows.csv", *deep)
    trial.pickmix("deep fit", "score", "deep", "rows.csv", "--out", "scores.csv")
    if whole:
        trial.pickmix("example", "fit", "--out", "example")
        # MLflow brings so many packages that the tests do without it where it is not there.
        trial.install("mlflow", "[mlflow]")
        trial.environment["MLFLOW_ALLOW_FILE_STORE"] = "true"
        trial.run("mlflow", str(trial.bin / "python"), "-c", LOG)


def check_contents(wheel: Path, source: Path) -> None:
    """Refuse archives that lack something, or hold what belongs to this machine."""
    with tarfile.open(source) as archive:
        names = archive.getnames()
    top = names[0].split("/")[0]
    missing = [name for name in NEEDED if f"{top}/{name}" not in names]
    # Every file of the package is in both, those that are not Python too.
    package = [n.removeprefix(f"{top}/src/") for n in names if n.startswith(f"{top}/src/pickmix/")]
    with zipfile.ZipFile(wheel) as archive:
        inside = archive.namelist()
    missing += [name for name in package if name not in inside]
    unwanted = [n for n in names + inside if any(part in f"/{n}" for part in UNWANTED)]
    # Experiments are a package of their own.
    unwanted += [name for name in inside if name.startswith(("experiments/", "pickmix_exp"))]
    if missing or unwanted:
        sys.exit(f"missing: {missing}\nunwanted: {unwanted[:20]}")


def main() -> None:
    """Try everything in a folder of distributions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="with one wheel and one source distribution")
    parser.add_argument("--python", action="append", help="try these interpreters only")
    parser.add_argument("--keep", type=Path, help="keep environments here, for a look afterwards")
    options = parser.parse_args()
    (wheel,) = options.folder.glob("*.whl")
    (source,) = options.folder.glob("*.tar.gz")
    version = wheel.name.split("-")[1]
    check_contents(wheel, source)
    for archive in (wheel, source):
        print(f"{archive.name}: {archive.stat().st_size / 1e6:.2f} MB", flush=True)
    pythons = find_pythons()
    if options.python:
        pythons = {key: value for key, value in pythons.items() if value in options.python}
        for given in set(options.python) - set(pythons.values()):
            ask = "import sys, json; print(json.dumps(sys.version_info[:2]))"
            answer = subprocess.run([given, "-c", ask], capture_output=True, text=True, check=True)
            pythons[tuple(json.loads(answer.stdout))] = given
    if not pythons:
        sys.exit("no Python 3.11 or newer that can make virtual environments")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="pickmix-dist-") as temporary:
        place = options.keep or Path(temporary)
        for number, python in pythons.items():
            for archive in (wheel, source):
                kind = "wheel" if archive is wheel else "sdist"
                name = f"{number[0]}.{number[1]}-{kind}"
                trial = Trial(python, archive, place / name)
                try_one(trial, version, whole=archive is wheel and number == max(pythons))
                spent = ", ".join(f"{what} {s:.1f} s" for what, s in trial.seconds.items())
                print(f"Python {name.replace('-', ', ')}: {spent}", flush=True)
                if not options.keep:
                    shutil.rmtree(trial.folder)
    print(f"All fine after {time.perf_counter() - started:.0f} s.")


if __name__ == "__main__":
    main()
