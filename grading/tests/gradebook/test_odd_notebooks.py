"""Odd notebooks one by one, without ranks: the work that is in them counts, or a sentence says what to do."""

import json
from functools import cache
from pathlib import Path

import nbformat
import pytest
from class_of_two import released_class
from nbformat.v4 import new_output
from odd_notebooks import BLANK, NAME, NOTHING_DONE, TOLD, WHOLE, WORK
from submissions import LAB

from grading import instructor_commands
from grading.gradebook import inspect_files
from grading.gradebook.grade_class import grade_all
from grading.gradebook.inspect_files import SubmissionError, inspect, read_submission
from grading.gradebook.normalise_notebook import repairs_of
from grading.judge.find_lab import lab_module
from grading.judge.judge_submission import Judged
from grading.judge.verdict import Verdict

TASKS = ("token_ddp", "plan_buckets")


@cache
def released() -> nbformat.NotebookNode:
    return nbformat.reads(BLANK, as_version=4)


def name_of(cell: nbformat.NotebookNode) -> str:
    return cell.metadata.get("nbgrader", {}).get("grade_id", "")


def as_bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def write(folder: Path, files: dict[str, str | bytes]) -> None:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(as_bytes(text))


@pytest.fixture
def read(tmp_path, monkeypatch):
    """read(files): the notebook of a folder with these files, in this process."""
    monkeypatch.setattr(inspect_files, "limited", lambda function, *arguments: function(*arguments))

    def of(files: dict[str, str | bytes]) -> nbformat.NotebookNode:
        write(tmp_path, files)
        inspect(tmp_path)
        return read_submission(tmp_path, LAB, released())

    return of


def work_of(nb: nbformat.NotebookNode, task: str) -> str:
    """The first line of what a task defines."""
    source = next(cell.source for cell in nb.cells if name_of(cell) == task)
    return next(line for line in source.splitlines() if line.startswith(("def ", "class ")))


@pytest.mark.parametrize("odd", WORK)
def test_the_work_is_there_and_each_check_stands_below_it(odd, read):
    files, sentence = WORK[odd]
    made, whole = read(files), nbformat.reads(WHOLE, as_version=4)
    nbformat.validate(made)
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    for task in TASKS:
        line = work_of(whole, task).replace('"', "'")
        at = max(i for i, cell in enumerate(code) if line in cell.source.replace('"', "'"))
        checks = [c for c in released().cells if c.cell_type == "code" and c.metadata.nbgrader.grade]
        below = [name_of(c) for c in checks if released().cells.index(c) > place(task)]
        assert set(below) <= {name_of(cell) for cell in code[at + 1 :]}
    given = {name_of(c): c.source for c in released().cells if c.metadata.nbgrader.locked and c.cell_type == "code"}
    assert {name_of(cell): cell.source for cell in code if name_of(cell) in given} == given
    assert sentence in " ".join(repairs_of(made))
    assert sentence or repairs_of(made) == []


def place(task: str) -> int:
    return [name_of(cell) for cell in released().cells].index(task)


@pytest.mark.parametrize("odd", TOLD)
def test_what_has_no_notebook_in_it_is_told_in_words(odd, read):
    files, words = TOLD[odd]
    with pytest.raises(SubmissionError) as told:
        read(files)
    assert words in str(told.value)
    assert "ask for" in str(told.value) or "grade again" in str(told.value)


@pytest.mark.parametrize("odd", NOTHING_DONE)
def test_what_programs_leave_is_no_other_submission(odd, read):
    assert [c.source for c in read(NOTHING_DONE[odd]).cells] == [c.source for c in released().cells]


def judge(self, submission, settings) -> Judged:
    """In the place of what takes minutes."""
    verdicts = [Verdict(name, 1.0, check.points, "so") for name, check in lab_module(LAB).CHECKS.items()]
    outputs = [[new_output("stream", text="x")] if c.cell_type == "code" else [] for c in submission.notebook.cells]
    return Judged([{"outputs": o, "execution_count": 1} for o in outputs], verdicts, "", 1.0)


@pytest.mark.night
def test_a_class_of_them_is_graded_and_each_has_a_page(tmp_path_factory):
    graded = {odd: files for odd, (files, _) in WORK.items()} | NOTHING_DONE
    with released_class(tmp_path_factory, judge) as classroom:
        for odd, files in (graded | {odd: files for odd, (files, _) in TOLD.items()}).items():
            write(classroom.submitted(LAB, odd), files)
        outcomes = {g.student: g for g in grade_all(classroom, LAB, classroom.students(LAB))}
        without_page = dict(instructor_commands._feedback(classroom, LAB))
        assert {odd: outcomes[odd].problem for odd in graded} == dict.fromkeys(graded, "")
        assert {outcomes[odd].grade.total for odd in graded} == {len(lab_module(LAB).CHECKS)}
        assert [odd for odd, (_, words) in TOLD.items() if words not in outcomes[odd].problem] == []
        assert without_page == {}
        pages = classroom.root / "grading" / "feedback"
        assert [odd for odd in graded if not (pages / odd / LAB / f"{LAB}.html").stat().st_size] == []
        handed_in = {odd: (classroom.submitted(LAB, odd) / NAME).read_bytes() for odd in graded}
        assert handed_in == {odd: as_bytes(files[NAME]) for odd, files in graded.items()}, "nothing is lost"


def test_the_table_has_forty_kinds_that_are_not_in_the_class():
    from test_odd_submissions import ENCODED, FILES, PAGES, PROBLEMS, REPAIRED

    assert len(WORK) + len(TOLD) >= 40
    assert not {*WORK, *TOLD} & {*ENCODED, *FILES, *PAGES, *PROBLEMS, *REPAIRED}
    assert len({json.dumps({name: str(text) for name, text in files.items()}) for files, _ in WORK.values()}) == len(
        WORK
    )
    assert {NAME} <= {name for files, _ in WORK.values() for name in files}
