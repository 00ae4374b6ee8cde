"""What a release says of itself agrees, and what it is built from is there."""

import importlib.util
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

import pickmix
from pickmix.cli import main

HERE = Path(__file__).parent.parent
WORKFLOWS = sorted((HERE / ".github" / "workflows").glob("*.yml"))


def test_one_version_everywhere():
    citation = (HERE / "CITATION.cff").read_text(encoding="utf-8")
    changelog = (HERE / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == pickmix.__version__
    version, date = re.search(r"^## (\S+), (\S+)$", changelog, re.MULTILINE).groups()
    assert version == pickmix.__version__
    assert re.search(r"^date-released: (.+)$", citation, re.MULTILINE)[1] == date


def test_workflows_run_targets_that_there_are():
    yaml = pytest.importorskip("yaml")
    targets = set(re.findall(r"^([a-z-]+):", (HERE / "Makefile").read_text(), re.MULTILINE))
    made = set()
    for file in WORKFLOWS:
        # YAML takes the word "on" for a boolean.
        workflow = yaml.safe_load(file.read_text())
        assert workflow[True]
        for job in workflow["jobs"].values():
            for step in job["steps"]:
                if "uses" in step:
                    assert re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"])
                else:
                    made.add(step["run"].removeprefix("make "))
    assert made == {"test-all", "docs", "dist"}
    assert made <= targets
    (tests,) = yaml.safe_load((WORKFLOWS[0].parent / "tests.yml").read_text())["jobs"].values()
    classified = re.findall(r"Python :: (3\.\d+)", (HERE / "pyproject.toml").read_text())
    assert tests["strategy"]["matrix"]["python"] == classified


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(command, cwd=HERE, check=True, capture_output=True)
    return folder


def test_the_wheel_has_all_files_of_the_package(built):
    (wheel,) = built.glob(f"pickmix-{pickmix.__version__}-*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    source = HERE / "src"
    sources = {
        str(file.relative_to(source))
        for file in (source / "pickmix").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert sources <= inside
    assert "pickmix/py.typed" in inside
    assert all(name.startswith(("pickmix/", "pickmix-")) for name in inside)


def test_the_source_distribution_can_be_built_and_tested(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    for folder in ("src", "tests", "docs", "examples", "requirements", "tools"):
        for file in (HERE / folder).rglob("*.py"):
            place = file.relative_to(HERE)
            if not {"_build", "auto_examples", "__pycache__"} & set(place.parts):
                assert str(place) in names
    for name in ("Makefile", "README.md", "CHANGELOG.md", "LICENSE", ".ci/run"):
        assert name in names
    assert not [n for n in names if "_build/" in n or "__pycache__" in n or n.startswith(".venv")]


def test_a_trial_of_a_distribution_asks_for_a_report(tmp_path, monkeypatch):
    place = HERE / "tools" / "try_dist.py"
    spec = importlib.util.spec_from_file_location("try_dist", place)
    try_dist = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(try_dist)
    monkeypatch.chdir(tmp_path)
    verbs = []

    class Here(try_dist.Trial):
        """A trial in this process: nothing is installed, and nothing deep is fitted."""

        def __init__(self):
            self.archive = self.folder = self.bin = tmp_path

        def run(self, what, *command):
            if not command[0].endswith("pickmix") or what == "deep fit":
                return ""
            verbs.append(command[1])
            result = CliRunner().invoke(main, list(command[1:]))
            assert result.exit_code == 0, result.output
            return result.output

    try_dist.try_one(Here(), pickmix.__version__, whole=False)
    assert verbs == ["--version", "fit", "score", "report"]
    assert "</html>" in (tmp_path / "report.html").read_text(encoding="utf-8")
