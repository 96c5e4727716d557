"""A class of any size that is quick to judge: each submission solves only the part without training, or nothing."""

import inspect
from pathlib import Path

from nbformat import NotebookNode
from traitlets.config import Config

from grading.attacks.attack import CELL, LAB, worthless
from grading.gradebook.nbgrader_classroom import ROOT, Classroom
from grading.samples.sample import read_lab
from shardcourse.lessons.folders import copy_files

POINTS = 3  # for that part


def small_class(root: Path, n: int, settings: Config | None = None, wrong_every: int | None = None) -> Classroom:
    """Return a new course in `root`, with everything handed in. Close it when done."""
    copy_files(ROOT / "solutions" / LAB, root / "solutions" / LAB)
    classroom = Classroom(root, settings)
    classroom.release(LAB)
    for i in range(n):
        classroom.hand_in(LAB, f"student{i:03}", submission(i, right=not wrong_every or i % wrong_every > 0))
    return classroom


def submission(number: int, right: bool) -> NotebookNode:
    """Return a submission. No two are the same."""
    released, solved = read_lab("labs", LAB), read_lab("solutions", LAB)
    sources = {c.metadata.nbgrader.grade_id: c.source for c in solved.cells}
    for cell in released.cells:
        if cell.metadata.nbgrader.grade_id == CELL:
            cell.source = sources[CELL] + f"\n# by student {number}\n"
            if not right:
                cell.source += f"\n{inspect.getsource(worthless)}\n{CELL} = {worthless.__name__}\n"
    return released
