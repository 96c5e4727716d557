"""A reader's own copy of a course that can't be written, as of one that many share: else no notebook could be saved."""

import os
import shutil
from pathlib import Path

WORKED_ON = ("course", "labs", "grading/nbgrader_config.py")


def can_be_saved(course: Path) -> bool:
    """May the lessons be written, and files beside them be made?"""
    lessons = course / "course"
    return all(os.access(place, os.W_OK) for place in (lessons, *lessons.glob("*.ipynb")))


def own_copy(course: Path, target: Path) -> int:
    """Copy what is worked on, and say how many files are new. What is there already is the reader's, and stays."""
    files = [f for part in WORKED_ON for f in (course / part, *(course / part).rglob("*")) if f.is_file()]
    wanted = {target / f.relative_to(course): f for f in files if ".ipynb_checkpoints" not in f.parts}
    new = {mine: theirs for mine, theirs in wanted.items() if not mine.exists()}
    for mine, theirs in new.items():
        mine.parent.mkdir(parents=True, exist_ok=True)
        draft = mine.with_name(f".{mine.name}.{os.getpid()}")  # a copy that was broken off is not taken for a notebook
        shutil.copyfile(theirs, draft)
        draft.replace(mine)
    return len(new)
