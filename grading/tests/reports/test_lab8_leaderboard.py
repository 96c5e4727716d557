"""The leaderboard: who is ranked, in which order, and that it is made anew from what the gradebook holds."""

import os
from types import SimpleNamespace

import pytest

from grading.checks.lab8_capstone.lab import CHECKS
from grading.judge.verdict import Verdict
from grading.reports.leaderboard import THE_LINE, write_leaderboard

LAB = "lab8_capstone"
SHARE = "tokens/s over the reference line's"


def verdicts(shares, cap=3, same=3):
    figures = {
        "lab8.same": {},
        "lab8.cap": {f"{i}: peak": (f"{peak} MB", "4.00 MB") for i, peak in enumerate((3.0, 2.0, 3.8))},
        "lab8.links": {f"{i}: leaves a node in a step": ("0.92 MB", "1.06 MB") for i in range(3)},
        "lab8.tokens": {f"{i}: {SHARE}": (share, "0.90") for i, share in enumerate(shares)},
    }
    points = {"lab8.same": same, "lab8.cap": cap}
    return [
        Verdict(name, points.get(name, check.points), check.points, "", "", figures[name])
        for name, check in CHECKS.items()
    ]


@pytest.fixture
def classroom(tmp_path):
    """A class whose gradebook is a dict: student -> verdicts."""
    grades = {}

    def hand_in(student, found):
        grades[student] = found
        folder = tmp_path / "grading" / "autograded" / student / LAB
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{LAB}.ipynb").write_text("{}")

    def grade(lab, student):
        if student not in grades:
            raise LookupError(student)
        return SimpleNamespace(verdicts=grades[student])

    def autograded(lab, student):
        return tmp_path / "grading" / "autograded" / student / lab / f"{lab}.ipynb"

    def students(lab, where):
        return [folder.name for folder in (tmp_path / "grading" / where).iterdir()]

    return SimpleNamespace(root=tmp_path, grade=grade, hand_in=hand_in, autograded=autograded, students=students)


def rows(classroom):
    lines = write_leaderboard(classroom, LAB)[0].read_text().splitlines()[1:]
    return [line.split(",")[:4] for line in lines]


def test_the_fastest_stands_first_and_the_line_has_no_rank(classroom):
    classroom.hand_in("ada", verdicts(["0.90", "0.90", "0.90"]))
    classroom.hand_in("bob", verdicts(["1.20", "1.00", "1.10"]))
    assert rows(classroom) == [
        ["1", "bob", "1.10", "0.95"],
        ["", THE_LINE, "1.00", ""],
        ["2", "ada", "0.90", "0.95"],
    ]


@pytest.mark.parametrize(
    "found",
    [
        verdicts(["1.20", "1.20", "1.20"], cap=2),
        verdicts(["1.20", "1.20", "1.20"], same=2),
        verdicts(["1.20", "not timed: does not fit", "1.20"]),
        verdicts(["1.20", "0: timed steps left work out", "1.20"]),
        verdicts(["1.20", "1.20", "1.20"])[:3],
        [],
    ],
    ids=["over the cap", "wrong", "not timed", "idle", "a check missing", "graded by hand"],
)
def test_who_is_not_ranked(classroom, found):
    classroom.hand_in("eve", found)
    assert [row[1] for row in rows(classroom)] == [THE_LINE]


def test_grading_again_replaces_the_row(classroom):
    classroom.hand_in("ada", verdicts(["0.90", "0.90", "0.90"]))
    rows(classroom)
    classroom.hand_in("ada", verdicts(["0.70", "0.70", "0.70"]))
    assert [row[1:3] for row in rows(classroom)] == [[THE_LINE, "1.00"], ["ada", "0.70"]]


def test_a_pseudonym_stands_for_the_name(classroom):
    classroom.hand_in("ada", verdicts(["0.90", "0.90", "0.90"]))
    folder = classroom.root / "grading" / "leaderboard"
    folder.mkdir(parents=True)
    (folder / "pseudonyms.csv").write_text("ada,Blue Heron\n")
    written = [path.read_text() for path in write_leaderboard(classroom, LAB)]
    assert all("Blue Heron" in text and "ada" not in text for text in written)


def test_a_pseudonym_counts_in_a_table_that_a_spreadsheet_saved(classroom):
    """Some begin the file with a byte order mark, which must not belong to the first name."""
    classroom.hand_in("ada", verdicts(["0.90", "0.90", "0.90"]))
    folder = classroom.root / "grading" / "leaderboard"
    folder.mkdir(parents=True)
    (folder / "pseudonyms.csv").write_text("\ufeffada,Blue Heron\n")
    assert [row[1] for row in rows(classroom)] == [THE_LINE, "Blue Heron"]


def test_one_odd_grade_takes_nobody_else_from_the_table(classroom, caplog):
    classroom.hand_in("ada", verdicts(["0.90", "0.90", "0.90"]))
    classroom.hand_in("bob", None)
    assert [row[1] for row in rows(classroom)] == [THE_LINE, "ada"]
    assert "bob is not in the leaderboard" in caplog.text


def test_a_file_that_cannot_be_written_stays_and_is_named(classroom, monkeypatch):
    classroom.hand_in("ada", verdicts(["0.90", "0.90", "0.90"]))
    before = write_leaderboard(classroom, LAB)[0].read_text()
    classroom.hand_in("bob", verdicts(["0.95", "0.95", "0.95"]))

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match=rf"{LAB}.csv can't be written \(Permission denied\)"):
        write_leaderboard(classroom, LAB)
    folder = classroom.root / "grading" / "leaderboard"
    assert (folder / f"{LAB}.csv").read_text() == before
    assert {path.name for path in folder.iterdir()} == {f"{LAB}.csv", f"{LAB}.md"}


def test_a_lab_without_a_line_has_no_leaderboard(classroom):
    assert write_leaderboard(classroom, "lab2_ddp") == []
