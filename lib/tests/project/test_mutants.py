"""`make mutants`: every mistake of mutants.toml can be planted, and what catches one is told, or that nothing does."""

import subprocess
from pathlib import Path

import pytest
from course_copy import ROOT
from mutants import Mutant, locate, planted, test_files, try_out_all, try_programs, unplantable
from programs import ENGINES

test_files.__test__ = False  # it is no test, though it is called like one

SUMS = """FIRST = 1


def add(a, b):
    return a + b


class Account:
    def add(self, n):
        self.total += n
        self.total += 0


def called_by_night():
    return FIRST
"""
TESTS = """import pytest
from sums.core import add


def test_nothing():
    pass


def test_adding():
    assert add(1, 2) == 3


@pytest.mark.night
def test_by_night():
    from sums.core import called_by_night
    assert called_by_night() == 1
"""

PROGRAMS = """import sys
from sums.core import add

_, most, first, last, engine = sys.argv[1:]
found = [seed for seed in range(int(first), int(last)) if engine == "slow" and seed > 3100 and add(1, 2) != 3]
print(f"{engine}: {len(found[:int(most)])} findings", *(f"{engine}, program {seed}: 3" for seed in found), sep="\\n")
"""


@pytest.fixture
def project(tmp_path) -> Path:
    """A package of one module with its tests."""
    for name, text in {"sums/__init__.py": "", "sums/core.py": SUMS, "tests/test_sums.py": TESTS}.items():
        (tmp_path / "lib" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lib" / name).write_text(text)
    (tmp_path / "grading").mkdir()
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def mistake(place: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(place, old, new, list(tests or ["test_sums"]))


def test_every_mistake_of_the_file_can_be_planted_and_has_tests():
    mutants = planted(ROOT)
    assert mutants and unplantable(mutants, ROOT) == []
    for mutant in mutants:
        assert mutant.old != mutant.new and mutant.tests, mutant.place
        assert set(mutant.programs) <= ENGINES.keys(), mutant.place
    assert len({(m.place, m.old, m.new) for m in mutants}) == len(mutants)


def test_a_mistake_changes_its_definition_and_nothing_else(project):
    path, changed = locate(mistake("core.add", "a + b", "a - b"), project)
    assert (path, changed) == (Path("lib/sums/core.py"), SUMS.replace("a + b", "a - b"))
    assert locate(mistake("FIRST", "1", "2"), project)[1] == SUMS.replace("FIRST = 1", "FIRST = 2")
    assert locate(mistake("Account", "self.total += n", "pass"), project)[1] == SUMS.replace("self.total += n", "pass")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (mistake("add", "a + b", "a - b"), "'add' names sums.core.add, sums.core.Account.add: name exactly one"),
        (mistake("subtract", "a", "b"), "'subtract' names nothing: name exactly one"),
        (mistake("dd", "a + b", "a - b"), "'dd' names nothing"),
        (mistake("Account.add", "self.total", "x"), "'Account.add': 'self.total' occurs 2 times in it, not once"),
        (mistake("core.add", "a * b", "x"), "'core.add': 'a * b' occurs 0 times"),
        (mistake("core.add", "a + b", "a +"), "'core.add': invalid syntax"),
        (mistake("core.add", "a + b", "a - b", "test_gone"), "'core.add': no test file is called test_gone"),
    ],
)  # fmt: skip
def test_what_can_not_be_planted_is_refused_by_name(wrong, words, project):
    [why] = unplantable([wrong, mistake("core.add", "a + b", "a - b")], project)
    assert words in why


def test_who_catches_a_mistake_is_told_and_that_nobody_does(project, capsys):
    """Tests of the night do not count by day; and no mistake stays for the next one, or in the project itself."""
    mutants = [mistake("core.add", "a + b", "a - b"), mistake("called_by_night", "FIRST", "2")]
    outcomes = try_out_all(mutants, project, "not night", jobs=1)
    assert [o.place for o in outcomes] == [m.place for m in mutants]
    assert [o.caught_by for o in outcomes] == ["lib/tests/test_sums.py::test_adding", ""]
    assert (project / "lib" / "sums" / "core.py").read_text() == SUMS
    said = capsys.readouterr().out.splitlines()
    assert [line.split(" s  ")[1] for line in said] == [
        "core.add: lib/tests/test_sums.py::test_adding",
        "called_by_night: NOT CAUGHT",
    ]


def test_programs_are_tried_on_each_engine_until_one_finds_the_mistake(project):
    (project / "lib" / "tests" / "lab").mkdir()
    (project / "lib" / "tests" / "lab" / "test_programs.py").write_text(PROGRAMS)
    subprocess.run(["git", "add", "-A"], cwd=project, check=True)
    found, missed = mistake("core.add", "a + b", "a - b"), mistake("called_by_night", "FIRST", "2")
    found.programs = missed.programs = ["quick", "slow"]
    outcomes = try_out_all([found, missed], project, "", 1, try_programs)
    assert [o.caught_by for o in outcomes] == ["slow, program 3101", ""]
