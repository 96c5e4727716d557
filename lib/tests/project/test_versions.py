"""One version everywhere, and README's table of machines says what lib/benchmarks/machines.toml says."""

import re
import tomllib
from pathlib import Path

import yaml

import shardlab

ROOT = Path(__file__).parents[3]
BENCHMARKS = ROOT / "lib" / "benchmarks"
PARTS = ("demo", "tests", "course", "labs", "grading")


def test_one_version_is_stated_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
    assert {project["version"], newest, cited} == {shardlab.__version__}


def test_pythons_are_those_that_were_run():
    conda = (ROOT / "environment.yml").read_text()
    newest = max(int(m["python"].split(".")[1]) for m in _machines() if m["demo"] == "run")
    assert f"python>=3.11,<3.{newest + 1}" in conda


def test_the_table_of_machines_is_that_of_the_records():
    readme = (ROOT / "README.md").read_text()
    table = readme.split("<!-- machines:")[1].split("-->", 1)[1].split("<!-- end of machines -->")[0].strip()
    head = f"| system | Python | torch | {' | '.join(PARTS)} | again |"
    rows = [
        f"| {m['system']} | {m['python']} | {m['torch']} | {' | '.join(m[p] for p in PARTS)} | `{m['command']}` |"
        for m in _machines()
    ]
    assert table.splitlines() == [head, "|" + "---|" * (len(PARTS) + 4), *rows]


def test_a_demo_that_ran_on_a_bare_machine_ended_well():
    logged = [m for m in _machines() if "log" in m]
    assert len(logged) == 3
    for machine in logged:
        log = (BENCHMARKS / machine["log"]).read_text()
        assert f"Python {machine['python']}\n" in log
        assert machine["demo"] == "run" and "\n8 passed, 0 failed\n" in log


def _machines() -> list[dict[str, str]]:
    found = tomllib.loads((BENCHMARKS / "machines.toml").read_text())["machine"]
    assert all(m[part] in ("run", "in part", "prepared", "refused") for m in found for part in PARTS)
    return found
