"""The packages import each other as pyproject.toml's contracts say, and files stay short enough to read."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from course_copy import ROOT

PLANTED = {
    "shardlab imports the simulator, inside a function": (
        "lib/shardlab/launch/api.py",
        "def _late():\n    from shardsim.network import Network\n    return Network\n",
        "shardlab is not allowed to import shardsim",
    ),
    "the index of messages imports torch": (
        "lib/shardwhy/logs.py",
        "def _late():\n    import torch\n    return torch\n",
        "shardwhy is not allowed to import torch",
    ),
    "a package imports the grader": (
        "lib/shardcourse/experiments/scaling.py",
        "import grading.judge.verdict\n",
        "shardcourse is not allowed to import grading",
    ),
    "a circle inside a package": (
        "lib/shardplan/records.py",
        "import shardplan.advice.advice\n",
        "No cycles are allowed in shardplan",
    ),
    "the judge imports the gradebook": (
        "grading/judge/verdict.py",
        "import grading.gradebook.queue\n",
        "grading.judge is not allowed to import grading.gradebook",
    ),
}


def lint_imports(root: Path) -> tuple[int, str]:
    """Exit status and words of lint-imports on the packages below `root`."""
    paths = os.environ | {"PYTHONPATH": f"{root / 'lib'}{os.pathsep}{root}", "COLUMNS": "200"}
    command = [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"]
    done = subprocess.run(command, cwd=root, env=paths, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path) -> Path:
    for folder in [*(ROOT / "lib").glob("shard*"), ROOT / "grading"]:
        shutil.copytree(
            folder,
            tmp_path / folder.relative_to(ROOT),
            ignore=lambda _, names: {n for n in names if n == "__pycache__"},
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", PLANTED)
def test_an_import_from_the_wrong_room_is_found(name, copy):
    file, line, words = PLANTED[name]
    with (copy / file).open("a") as stream:
        stream.write(line)
    status, said = lint_imports(copy)
    assert status == 1 and words in said.replace("\n", " "), said


def test_no_import_is_from_the_wrong_room(copy):
    assert lint_imports(copy)[0] == 0


def test_no_file_has_more_than_300_lines():
    files = [f for folder in [*(ROOT / "lib").glob("shard*"), ROOT / "grading"] for f in folder.rglob("*.py")]
    files = [f for f in files if not {"tests", "samples"} & set(f.relative_to(ROOT).parts)]
    assert len(files) > 300
    assert [f"{f.relative_to(ROOT)}: {n}" for f in files if (n := len(f.read_text().splitlines())) > 300] == []


def test_the_readme_says_where_each_hop_of_a_parameter_is():
    hops = re.findall(r"`(\w+\.py):(\d+) (\w+)`", (ROOT / "lib" / "README.md").read_text())
    assert len(hops) == 16
    for file, line, name in hops:
        found = (ROOT / "lib" / "shardlab" / "fsdp" / file).read_text().splitlines()[int(line) - 1]
        assert f"def {name}(" in found, f"{file}:{line} is not {name}"


def test_what_a_student_reads_stays_small():
    files = list((ROOT / "lib" / "shardlab").rglob("*.py"))
    assert len(files) <= 60
    assert sum(len(f.read_text().splitlines()) for f in files) <= 8000
    fsdp = [f for f in files if f.parent.name == "fsdp"]
    assert len([f for f in fsdp if f.name != "__init__.py"]) <= 6
    assert sum(len(f.read_text().splitlines()) for f in fsdp) <= 1100
