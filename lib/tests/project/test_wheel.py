"""What `pip install` of the repository gives: every file of the packages, and a command line that works anywhere."""

import fnmatch
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from deadlines import deadline_s

ROOT = Path(__file__).parents[3]
AS_TEXT = {"capture_output": True, "text": True}
NEED_A_CLONE = (
    "demo",
    "tidy",
    "book",
    "prove",
    "bench plan",
    "release",
    "kit --out x",
    "grade lab2_ddp",
    "feedback",
    "report",
)


def _packages() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "lib", "grading"], cwd=ROOT, **AS_TEXT)
    files = [Path(line) for line in listed.stdout.splitlines() if (ROOT / line).is_file()]
    left_out = {f"grading/{name}" for name in ("samples", "attacks", "bench", "student_kit")}
    packages = {file.parent for file in files if file.name == "__init__.py"}
    return [
        f
        for f in files
        if packages.intersection(f.parents) and "tests" not in f.parts and "/".join(f.parts[:2]) not in left_out
    ]


def test_each_file_of_a_package_is_named_for_the_wheel():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    everywhere = patterns["*"]
    for file in _packages():
        package = file.parts[1] if file.parts[0] == "lib" else file.parts[0]
        inside = file.as_posix().split(f"{package}/", 1)[1]
        module = file.suffix == ".py" and (ROOT / file.parent / "__init__.py").exists()
        beside_modules = (ROOT / file.parent / "__init__.py").exists() and any(
            fnmatch.fnmatch(file.name, pattern) for pattern in everywhere
        )
        named = any(fnmatch.fnmatch(inside, pattern) for pattern in patterns.get(package, []))
        assert module or beside_modules or named, f"{file} would be missing after pip install: see package-data"


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Return a folder with the packages of the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, copy], check=True)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, copy]
    subprocess.run(build, check=True)
    with zipfile.ZipFile(next(folder.glob("shardlab-*.whl"))) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


def _shardlab(installed: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-P", "-m", "shardcourse.cli.entry", *words],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(installed), "COLUMNS": "120"},
        timeout=deadline_s(120),
        **AS_TEXT,
    )


@pytest.mark.night
def test_the_wheel_has_every_file_of_the_packages(installed):
    for file in _packages():
        there = installed / (file.relative_to("lib") if file.parts[0] == "lib" else file)
        assert there.read_bytes() == (ROOT / file).read_bytes(), file


@pytest.mark.night
@pytest.mark.parametrize("command", NEED_A_CLONE)
def test_a_command_that_needs_the_clone_says_so(installed, tmp_path, command):
    done = _shardlab(installed, tmp_path, *command.split())
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith(f"shardlab {command.split()[0]}: this needs the course's own folders")


@pytest.mark.night
@pytest.mark.parametrize(
    "command, said",
    [
        ("--version", "shardlab 0."),
        ("doctor", "tier"),
        ("plan llama-3.1-8b --machine H100 --gpus 8", "fits"),
        ("claims --lesson 6", "holds"),
        ("why --help", "first cause"),
    ],
)
def test_a_command_that_needs_no_clone_works_anywhere(installed, tmp_path, command, said):
    done = _shardlab(installed, tmp_path, *command.split())
    assert "Traceback" not in done.stderr and said in done.stdout, done.stdout + done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.night
def test_the_installed_library_runs_a_lesson_of_a_clone(installed, tmp_path):
    (tmp_path / "course").mkdir()
    for name in ("00_start_here.ipynb", "train.py"):
        (tmp_path / "course" / name).write_bytes((ROOT / "course" / name).read_bytes())
    done = _shardlab(installed, tmp_path, "run", "course/00_start_here.ipynb", "--tier", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "build" / "run" / "00_start_here.ipynb").is_file()
