"""`make test` and the slices of the night have every test between them, each once; each slice's turn comes as often."""

import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from itertools import product
from types import SimpleNamespace

import night
import pytest
from course_copy import ROOT
from pytest_split.algorithms import Algorithms

MARKS = ("night", "alone", "browser")
MAKEFILE = (ROOT / "Makefile").read_text()
QUICK = re.search(r"^QUICK := (.*)$", MAKEFILE, re.M)[1]


def selects(expression: str, marks: set[str]) -> bool:
    """As pytest reads `-m`."""
    return eval(expression, {mark: mark in marks for mark in MARKS})


def test_every_mark_belongs_to_quick_or_night_or_alone_or_to_what_make_opens_in_a_browser():
    """Whatever marks a test has, one expression selects it, and only one."""
    for chosen in product((False, True), repeat=len(MARKS)):
        marks = {mark for mark, yes in zip(MARKS, chosen, strict=True) if yes}
        homes = [name for name, expression in {"quick": QUICK, **night.MARKS}.items() if selects(expression, marks)]
        assert homes == (
            [] if "browser" in marks else ["alone"] if "alone" in marks else ["night"] if marks else ["quick"]
        )


def test_every_browser_test_is_in_a_slice_that_make_opens():
    """By file: `make look` and `make hour` name theirs, and `make book` is made of the course."""
    marked = re.compile(r"^ *(@|pytestmark = \[?)?pytest\.mark\.browser\b", re.M)
    tests = [p for folder in ("lib", "grading") for p in (ROOT / folder / "tests").rglob("test_*.py")]
    in_browser = {p.name for p in tests if marked.search(p.read_text())}
    named = set(re.findall(r"test_\w+\.py", " ".join(recipe(name) for name in night.MADE)))
    assert in_browser and in_browser == named


def recipe(target: str) -> str:
    return re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.M)[1]


def test_make_opens_every_slice_that_it_is_to():
    assert all(recipe(name) for name in night.MADE)
    assert [night.command(name) for name in night.MADE] == [["make", name] for name in night.MADE]


@pytest.mark.parametrize("measured", [0, 1, 700, 1000])
@pytest.mark.parametrize("kind", night.NUMBER)
def test_slices_of_a_kind_have_all_of_it_each_once(kind, measured):
    """Whether or not a test's time is known, and though some take a hundred times as long as others."""
    tests = [SimpleNamespace(nodeid=f"lib/tests/test_{i % 7}.py::test_{i}") for i in range(1000)]
    durations = {test.nodeid: 0.1 if i % 5 else 10.0 for i, test in enumerate(tests[:measured])}
    names = [name for name in night.slices() if name.startswith(kind)]
    found = []
    for name in names:
        (algorithm, splits, group) = (option(name, o) for o in ("--splitting-algorithm", "--splits", "--group"))
        groups = Algorithms[algorithm].value(int(splits), tests, durations)
        found += groups[int(group) - 1].selected
    assert len(names) == night.NUMBER[kind] and len(found) == len(tests)
    assert {id(test) for test in found} == {id(test) for test in tests}


def option(name: str, of: str) -> str:
    """What a slice's command has behind that word."""
    command = night.command(name)
    return command[command.index(of) + 1]


def test_names_of_slices_are_unique_and_count_to_their_number():
    assert len(night.slices()) == len(set(night.slices())) == sum(night.NUMBER.values()) + len(night.MADE)
    for name in night.slices():
        if name not in night.MADE:
            kind, group = name.split("-")
            assert (option(name, "--splits"), option(name, "--group")) == (str(night.NUMBER[kind]), group)
            assert night.command(name)[1:5] == ["-m", "pytest", "-m", night.MARKS[kind]]


def test_an_alone_slice_shares_the_machine_with_nobody():
    assert "-n" in night.command("night-1") and "-n" not in night.command("alone-1")


def test_each_slices_turn_comes_as_often(monkeypatch):
    """Over many commits: by chi square, which such hashes exceed once in a thousand sets of them."""
    n = 40 * len(night.slices())
    hashes = [hashlib.sha1(str(i).encode()).hexdigest() for i in range(n)]
    drawn = iter(hashes)
    monkeypatch.setattr(night.subprocess, "check_output", lambda *_, **__: f"{next(drawn)}\n")
    turns = Counter(night.whose_turn() for _ in hashes)
    assert set(turns) == set(night.slices())
    freedom = len(night.slices()) - 1
    assert sum((count - 40) ** 2 / 40 for count in turns.values()) < freedom + 3.1 * (2 * freedom) ** 0.5 + 6


def test_the_turn_is_that_of_the_commit_that_is_checked_out():
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    if commit:
        assert night.whose_turn() == night.slices()[int(commit, 16) % len(night.slices())] == night.whose_turn()


def test_a_slice_that_does_not_exist_is_named(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["night.py", "night-1", "nigth-2"])
    with pytest.raises(SystemExit) as ended:
        night.main()
    assert ended.value.code == 2 and "no slice is called nigth-2; there are night-1, " in capsys.readouterr().err


@pytest.mark.parametrize("statuses", [(0, 0), (1, 0), (0, 5)])
def test_one_slice_that_fails_keeps_no_other_from_running_and_fails_the_night(statuses, monkeypatch, capsys):
    left, ran = iter(statuses), []

    def run(command, **options):
        ran.append(command)
        return subprocess.CompletedProcess(command, next(left))

    monkeypatch.setattr(night.subprocess, "run", run)
    monkeypatch.setattr(night.shutil, "which", lambda name: name)
    monkeypatch.setattr(sys, "argv", ["night.py", "night-1", "hour"])
    assert night.main() == any(statuses)
    assert ran == [night.command("night-1"), ["make", "hour"]]
    failed = [name for name, status in zip(("night-1", "hour"), statuses, strict=True) if status]
    assert (f"failed: {', '.join(failed)}" in capsys.readouterr().out) == bool(failed)


def test_without_a_browser_the_slices_that_need_one_say_so_and_do_not_fail(monkeypatch, capsys):
    monkeypatch.setattr(night.shutil, "which", lambda name: None)
    monkeypatch.setattr(night.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0))
    monkeypatch.setattr(sys, "argv", ["night.py", "hour", "book"])
    assert night.main() == 0
    said = capsys.readouterr().out
    assert "slice hour: not run, since there is no Chromium here" in said and "slice book: 0.0 min" in said


@pytest.mark.parametrize("kind", night.NUMBER)
def test_no_slice_is_empty_though_a_few_tests_take_longer_than_a_slice(kind):
    """pytest ends with status 5 where no test ran, and CI would fail."""
    tests = [SimpleNamespace(nodeid=f"test_{i}") for i in range(20 * night.NUMBER[kind])]
    durations = {test.nodeid: 1000.0 if i % 50 == 0 else 1.0 for i, test in enumerate(tests)}
    name = f"{kind}-1"
    groups = Algorithms[option(name, "--splitting-algorithm")].value(night.NUMBER[kind], tests, durations)
    assert all(group.selected for group in groups)


def test_no_test_is_said_to_take_no_time():
    """Where all that is known of a kind takes 0 s, all of it falls to one slice, and the others are empty."""
    assert min(json.loads(night.DURATIONS.read_text()).values()) > 0
